"""Check a copy of the project that lacks a room: python tests/missing_room.py ROOM, in the copy's root."""

import io
import pkgutil
import sys
from contextlib import redirect_stderr
from importlib import import_module

import vitviz
from vitviz import rooms
from vitviz.cli.main import main
from vitviz.web import bundle

COMMANDS = {
    "lecture": ("lecture texts", "app --lecture texts", "export examples/cat.jpg --lecture --texts texts"),
    "site": ("export --static site",),
    "training": ("train --help", "train --data photos", "summary --preset tiny --unfreeze-last 1"),
    "film": ("film examples/cat.jpg --over heads",),
    "paper": ("figures examples/cat.jpg --kind inside", "figures examples/cat.jpg --kind rollout-sheet overlay"),
}
"""Commands of each room."""
PAGES = ("web/app.js", "web/saved.js", "web/component.js", "web/widget.js", "site/page/site.js")


def check(room: str) -> None:
    """Import all modules, bundle all scripts, and run the commands of the missing room."""
    assert not rooms.has(room)
    for found in pkgutil.walk_packages(vitviz.__path__, "vitviz."):
        if found.name != "vitviz.__main__":
            import_module(found.name)
    for entry in PAGES:
        if room != "site" or not entry.startswith("site/"):
            whole = bundle.script(entry, tuple(bundle.part_modules().values()))
            for script in (whole, bundle.parts(entry).get("lecture", "")):
                assert ("vv-lecture'] = Lecture" in script) == (room != "lecture"), entry
    assert bool(bundle.of_rooms("worker/room.js")) == (room != "lecture")
    for command in COMMANDS[room]:
        told = io.StringIO()
        with redirect_stderr(told):
            code = main(command.split())
        assert (code, told.getvalue().count("\n")) == (2, 1), (command, told.getvalue())
        assert f"vitviz: Expected {rooms.ROOMS[room]} in the folder vitviz/{room}, got a copy" in told.getvalue()


if __name__ == "__main__":
    check(sys.argv[1])
