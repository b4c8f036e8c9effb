"""The page. The only floor that knows gradio."""
