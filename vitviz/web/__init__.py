"""Hold the browser application, bundle it, and write the data that it reads. Nothing here imports gradio."""
