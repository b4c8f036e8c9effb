"""Find what comes with vitviz: photographs and checkpoints."""

from pathlib import Path

from vitviz.errors import VitvizError
from vitviz.fields import check_arguments

DEFAULT = "dinov2-s14-everyday"
"""The bundled model that commands and the page take where none is named."""


def resource_folder(name: str) -> Path:
    """Return the folder `name` ("examples", "checkpoints") that comes with vitviz.

    It lies inside an installed package, where the wheel puts it, or at the root of a checkout.
    """
    package = Path(__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name


class ExampleError(VitvizError):
    """Name that no example photograph has."""


@check_arguments(ExampleError)
def example(name: str) -> Path:
    """Return the path of a photograph that comes with vitviz: `vitviz.example("church")`.

    Raises:
        ExampleError: if there is none of that name.
    """
    paths = {path.stem: path for path in sorted(resource_folder("examples").glob("*.jpg"))}
    if name.lower() not in paths:
        raise ExampleError(f"Expected one of the examples {', '.join(paths)}, got {name!r}. Choose one of them.")
    return paths[name.lower()]
