"""Find the folders that come with vitviz: photographs and checkpoints."""

from pathlib import Path

DEFAULT = "dinov2-s14-everyday"
"""The bundled model that commands and the page take where none is named."""


def resource_folder(name: str) -> Path:
    """Return the folder `name` ("examples", "checkpoints") that comes with vitviz.

    It lies inside an installed package, where the wheel puts it, or at the root of a checkout.
    """
    package = Path(__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name
