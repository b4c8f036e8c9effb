"""Define the pictures that the Python API returns."""

import os
from pathlib import Path
from typing import Any

from PIL import Image

from vitviz.writing import replacing


class Picture(Image.Image):
    """A PIL image whose `save` returns the path of the file, as the other `save` methods of vitviz do.

    Methods that return a new image, such as `resize`, return a plain PIL image.

    Args:
        image: the picture, whose pixels are not copied.
    """

    def __init__(self, image: Image.Image) -> None:
        super().__init__()
        self.__dict__.update(image.__dict__)

    def save(self, fp: Any, format: str | None = None, **params: Any) -> Path | None:  # type: ignore[override]
        """Write the picture as `PIL.Image.Image.save` does, and return the path; `None` for an open file."""
        if not isinstance(fp, str | bytes | os.PathLike):
            super().save(fp, format, **params)
            return None
        path = Path(os.fsdecode(fp))
        with replacing(path) as beside:
            super().save(beside, format, **params)
        return path
