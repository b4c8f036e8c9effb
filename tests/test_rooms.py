"""Delete each room from a copy of the project: the rest works, and commands say what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT
from missing_room import COMMANDS

from vitviz.rooms import ROOMS

pytestmark = pytest.mark.tier("all")
COPIED = ("vitviz", "tests", "scripts", "pyproject.toml", "app.py")
LINKED = ("checkpoints", "examples")
# The app and a saved page in a browser, pictures, and the order of imports.
OTHERS = (
    "tests/server/test_page.py::test_pointer_layers_and_heads_need_no_request",
    "tests/server/test_page.py::test_only_the_first_of_very_many_classes_are_listed",
    "tests/draw/test_sheet.py",
    "tests/test_imports.py::test_modules_import_nothing_from_higher_layers",
)


def test_each_room_has_commands() -> None:
    assert [*COMMANDS] == [*ROOMS]


@pytest.mark.browser
@pytest.mark.parametrize("room", ROOMS)
def test_project_works_without(room: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("node_modules", "__pycache__", "[!_]*.pyi")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name, **({"ignore": ignored} if copy is shutil.copytree else {}))
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.rmtree(tmp_path / "vitviz" / room)

    def run(*words: object) -> None:
        options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(tmp_path)}, "text": True}
        done = subprocess.run([*map(str, words)], capture_output=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr

    run(sys.executable, "tests/missing_room.py", room)
    run(sys.executable, "scripts/write_types.py")
    compiler = ROOT / "tests" / "js" / "node_modules" / "typescript" / "bin" / "tsc"
    run(Path(sys.executable).with_name("node"), compiler, "--project", tmp_path / "tests" / "js")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OTHERS)
