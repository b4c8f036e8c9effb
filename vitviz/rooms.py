"""Find the rooms of vitviz: packages that the rest works without, so that their folders can be deleted.

Code outside a room uses it only through this module. The scripts of a room join the page in `vitviz.web.bundle`.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from vitviz.errors import VitvizError

ROOMS = {
    "lecture": "the lecture",
    "site": "static sites",
    "training": "the training of models",
    "film": "films",
    "paper": "figures 6 and 7 of the ViT paper",
}
"""What each room has."""


class MissingRoomError(VitvizError):
    """Raised when a room is used whose folder was deleted."""


def has(room: str) -> bool:
    """Return whether the folder of a room exists."""
    return (Path(__file__).parent / room / "__init__.py").is_file()


def load(room: str, module: str) -> ModuleType:
    """Import a module of a room.

    Raises:
        MissingRoomError: if the folder of the room was deleted.
    """
    if not has(room):
        raise MissingRoomError(
            f"Expected {ROOMS[room]} in the folder vitviz/{room}, got a copy without it. Install vitviz again."
        )
    return import_module(f"vitviz.{room}.{module}")
