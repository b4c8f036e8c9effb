"""Find bundled photographs and checkpoints, and the cache."""

import os
from pathlib import Path

from vitviz.errors import VitvizError
from vitviz.fields import check_arguments

DEFAULT = "dinov2-s14-everyday"
"""Default model of the commands and the page."""

PUBLISHED = "hf:facebook/dinov2-with-registers-small-imagenet1k-1-layer"
"""Published model that a Space opens with, and that other pages suggest first if they reach the model hub."""


def resource_folder(name: str) -> Path:
    """Return the bundled folder `name` ("examples", "checkpoints").

    The folder is inside an installed package, or at the root of a checkout.
    """
    package = Path(__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name


def cache_folder(name: str) -> Path:
    """Return the path of a folder in the user's cache; the folder may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitviz" / name


class ExampleError(VitvizError):
    """Raised for an unknown example photograph."""


def examples() -> list[Path]:
    """Return the paths of the bundled photographs, sorted by name."""
    return sorted(resource_folder("examples").glob("*.jpg"))


@check_arguments(ExampleError)
def example(name: str) -> Path:
    """Return the path of a bundled photograph: `vitviz.example("church")`.

    Raises:
        ExampleError: if it does not exist.
    """
    paths = {path.stem: path for path in examples()}
    if name.lower() not in paths:
        raise ExampleError(f"Expected one of the examples {', '.join(paths)}, got {name!r}. Choose one of them.")
    return paths[name.lower()]
