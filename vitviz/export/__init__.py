"""Write files: pages, sites, films and numbers."""

PARTS = ("page", "pictures", "numbers")
"""What `vitviz.export.folder` writes for each photograph."""
SPACE_CARD = """title: vitviz
emoji: 🔍
colorFrom: indigo
colorTo: gray
license: apache-2.0
short_description: See inside a Vision Transformer, on your own photo
"""
"""Description of a Hugging Face Space, in the front matter of its README.md."""
