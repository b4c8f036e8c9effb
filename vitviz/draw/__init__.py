"""Draw numbers as pictures.

- `colors`, `text`: color maps, themes, font.
- `overlay`: one map over one photograph. `colorbar`, `sheet`: color bars, contact sheets.
- `predictions`: photographs with a model's predictions.
- `figures`: figures with matplotlib, as PNG, SVG or PDF.
"""
