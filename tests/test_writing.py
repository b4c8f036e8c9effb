"""Test that files and folders replace existing ones only when they are complete."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import file_size_limit, photo
from documents import ROOT
from PIL import Image
from running import folder
from safetensors.torch import save_file

from vitviz.cli.main import main
from vitviz.site.static import MARK, SITE_IS, Site
from vitviz.writing import WritingError, replacing, write, write_arrays, write_table

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 120, 3), dtype=np.uint8))
WRITERS: dict[str, Callable[[Path], object]] = {
    "x.txt": lambda path: write(path, "text" * 10_000),
    "x.csv": lambda path: write_table(path, [["text"]] * 10_000),
    "x.npz": lambda path: write_arrays(path, {"x": np.zeros(10_000)}),
    "x.png": lambda path: write(path, NOISE.save),
    "x.webp": lambda path: write(path, lambda place: NOISE.save(place, lossless=True)),
    "x.gif": lambda path: write(path, lambda place: NOISE.save(place, save_all=True, append_images=[NOISE])),
    "x.pt": lambda path: write(path, lambda place: torch.save({"x": torch.zeros(10_000)}, place)),
    "x.safetensors": lambda path: write(path, lambda place: save_file({"x": torch.zeros(10_000)}, place)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_full_disk_keeps_the_old_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    with file_size_limit(5_000), pytest.raises(WritingError, match=rf"{name}.*File too large.* [kMG]B left"):
        WRITERS[name](path)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
    WRITERS[name](path)
    assert path.stat().st_size > 5_000
    assert [*tmp_path.iterdir()] == [path]


def test_error_of_a_full_disk_names_the_needed_space(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(WritingError, match=r"\(40 kB\)"):
        write(tmp_path / "x", bytes(40_000))


@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
def test_interruptions_and_other_errors_keep_the_old_file(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail(beside: Path) -> None:
        beside.write_text("new")
        raise error

    with pytest.raises(error):
        write(path, fail)
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "x.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write(path, "")
    assert caught.value.filename == str(path)


KILLED = """
import os, sys
from vitviz.site.static import MARK, SITE_IS, Site
from vitviz.writing import replacing

with replacing(sys.argv[1], folder=True) as beside:
    (beside / "half").write_text("half")
    os._exit(9)
"""


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    path = tmp_path / "site"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment, check=False).returncode == 9
    assert len([*tmp_path.iterdir()]) == 1
    with replacing(path, folder=True) as beside:
        (beside / "whole").write_text("whole")
    assert [*tmp_path.rglob("*")] == [path, path / "whole"]


def test_folder_keeps_files_that_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "site"
    for number in (1, 2):
        with replacing(path, folder=True) as beside:
            (beside / "deep").mkdir()
            (beside / "deep" / "page").write_text(str(number))
        (path / "mine").touch()
    assert (path / "deep" / "page").read_text() == "2"
    assert (path / "mine").exists()
    with pytest.raises(IsADirectoryError), replacing(path, folder=True) as beside:
        beside.write_text("3")  # fails
    assert {file.name for file in path.iterdir()} == {"deep", "mine"}


def test_links_devices_and_modes_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "x.txt", tmp_path / "link.txt"
    path.touch(mode=0o640)
    path.chmod(0o640)
    link.symlink_to(path)
    write(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    write(os.devnull, "nothing")
    assert Path(os.devnull).is_char_device()
    read, pipe = os.pipe()
    write(f"/dev/fd/{pipe}", "piped")
    assert os.read(read, 10) == b"piped"
    for end in (read, pipe):
        os.close(end)


# Command -> its output. PHOTO and THINGS stand for a photograph and a folder of classes. All commands write by the
# module that the other tests check.
COMMANDS = {
    "explain PHOTO --method gae -o": "map.npz",
    "figures PHOTO --kind overlay -o": "overlay.png",
    "validate --data THINGS --confusion": "confusion.csv",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_keep_old_files_on_a_full_disk(
    command: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("thing 3", "thing 8"):
        church = photo(tmp_path / "things" / label / "church.png", 60, 60)
    path = tmp_path / COMMANDS[command]
    path.write_text("old")
    words = [{"PHOTO": str(church), "THINGS": str(tmp_path / "things")}.get(word, word) for word in command.split()]
    output = tmp_path if command.startswith("figures") else path
    with file_size_limit(50):
        code = main([*words, str(output), "--model", model, "--device", "cpu"])
    assert (code, path.read_text()) == (2, "old")
    assert f"Expected room for '{path}'" in capsys.readouterr().err


def test_interrupted_static_sites_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sites" / "mine"

    def fill(site: Site, *_: object) -> None:
        site.write("examples/photo.txt", "half")
        if stops:
            raise KeyboardInterrupt
        site.write(MARK, SITE_IS + '{"files": []};', hashed=False)

    monkeypatch.setattr("vitviz.site.static._fill", fill)
    command = ["export", "--static", str(path), "--model", "vit-cifar10", "--quiet"]
    stops = True
    assert main(command) == 130
    assert [*path.parent.iterdir()] == []
    stops = False
    assert main(command) == 0
    before = {file: file.read_bytes() for file in path.rglob("*.*")}
    stops = True
    assert main(command) == 130
    assert {file: file.read_bytes() for file in path.rglob("*.*")} == before


DIRECT = {
    "write_text": {"training/state.py"},  # a file inside a new state
    "write_bytes": {"site/static.py", "gradio.py"},  # a file inside a new site; the component's cache
    "savez": set[str](),
    # rows and features are appended; a data set is unpacked into a temporary folder; a report is written piece by piece
    "open": {"evaluation/records.py", "export/report.py", "images/datasets.py", "training/features.py"},
}


def test_files_are_written_by_one_module() -> None:
    """Find calls that write in place."""
    direct: dict[str, set[str]] = {name: set() for name in DIRECT}
    for path in (ROOT / "vitviz").rglob("*.py"):
        name = path.relative_to(ROOT / "vitviz").as_posix()
        for call in (
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            values = [
                value.value
                for value in (*call.args, *(word.value for word in call.keywords))
                if isinstance(value, ast.Constant)
            ]
            if called in DIRECT and (called != "open" or {"w", "wb", "a", "ab", "x", "xb"} & {*map(str, values)}):
                direct[called].add(name)
    ours = {"writing.py", "film/film.py", "server/routes.py", "progress.py"}
    assert {name: places - ours for name, places in direct.items()} == DIRECT
