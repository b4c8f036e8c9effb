"""Pictures from numbers.

- `vitviz.render.colors`: which number gets which colour (numpy).
- `vitviz.render.overlay`: one map over one photograph, the patch grid (numpy and Pillow).
- `vitviz.render.colorbar`, `vitviz.render.sheet`: colour bars and contact sheets (numpy and Pillow).
- `vitviz.render.answers`, `vitviz.render.confusion`: a model's answers, right and wrong (numpy and Pillow).
- `vitviz.render.figures`, `vitviz.render.export`: figures and files; they need an `Explorer`.

Nothing is imported here: the light rooms lie far below the last two, and whoever wants them should not
pay for the rest.
"""
