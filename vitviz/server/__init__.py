"""Serve the page and answer its questions. The only package that imports gradio."""
