"""The explorer that runs in the browser: its scripts, its data, and pages made of both. No gradio."""
