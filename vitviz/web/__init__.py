"""Contain and bundle the browser application, and write the data that it reads. Does not import Gradio."""
