"""Test progress bars of the library and the command line, and Ctrl-C."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import data_files
import pytest
import tiny
import torch
from patience import patience
from running import folder

import vitviz
from vitviz import progress
from vitviz.cli.main import main
from vitviz.view import View


class Terminal(io.StringIO):
    """Stand-in for the standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs work on a terminal and returns the terminal's output."""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)  # fast work ends before the next update

    def run(work: Callable[[], Any], terminal: type[io.StringIO] = Terminal) -> str:
        with redirect_stderr(terminal()) as shown:  # not in a fixture, because pytest resets the stream before the test
            work()
        return shown.getvalue()

    return run


@pytest.fixture
def view() -> View:
    return vitviz.Explorer(tiny.model()).open(PHOTO)


KOALA = vitviz.example("koala")
PHOTO = torch.rand(3, 91, 143, generator=torch.Generator().manual_seed(0))
WORK: list[tuple[str, Callable[[View], Any]]] = [
    ("Occlusion", lambda view: view.explain("occlusion")),
    ("Kernel SHAP", lambda view: view.explain("kernel_shap", samples=64)),
    ("Integrated gradients", lambda view: view.explain("integrated_gradients", steps=8)),
    ("Test of the map", lambda view: view.faithfulness(view.explain("rollout"), 3)),
    ("Input of", lambda view: vitviz.Explorer(view.model).open(PHOTO, size=1001)),
]


@pytest.mark.parametrize(("title", "work"), WORK, ids=[title for title, _ in WORK])
def test_long_work_shows_a_bar_to_its_end(
    title: str, work: Callable[[View], Any], seen: Callable[..., str], view: View
) -> None:
    output = seen(lambda: work(view))
    shares = [int(share) for share in re.findall(rf"{title}[^:]*: +(\d+) %[^%]*, about [\d:?]+ left", output)]
    assert shares == sorted(shares)
    assert shares[-1] >= 80, output


def test_threads_silent_code_and_files_show_no_bar(seen: Callable[..., str], view: View) -> None:
    def in_a_thread() -> None:  # as in a server
        thread = Thread(target=view.explain, args=("occlusion",))
        thread.start()
        thread.join()

    def silently() -> None:
        with progress.silent():
            view.explain("kernel_shap", samples=64)

    assert seen(in_a_thread) == ""
    assert seen(silently) == ""
    assert seen(lambda: view.explain("integrated_gradients", steps=8), io.StringIO) == ""  # no terminal, less than 30 s


class Lines(io.StringIO):
    """Stand-in for a log file, which tells that it has got a line."""

    def __init__(self) -> None:
        super().__init__()
        self.written = Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_long_work_prints_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)

    def next_line() -> str:
        log.written.clear()
        assert log.written.wait(patience(20))
        return log.getvalue().strip().splitlines()[-1]

    with redirect_stderr(Lines()) as log, progress.lines("vitviz train"):
        assert re.match(r"vitviz train: running for \d+:\d\d", next_line())
        with progress.bar(70, "features") as counted:
            counted.update(12)
            while "features" not in next_line():  # a line that began before the bar
                pass
            assert "12/70" in next_line()
            with progress.watch("Occlusion", 3, 5):
                assert "12/70" in next_line()  # the outermost bar
        while "running" not in next_line():
            pass
    for quiet in (progress.silent(), monkeypatch.context()):
        with redirect_stderr(Lines()) as log, quiet as patch:
            if patch is not None:
                patch.setenv("RANK", "1")  # only the first process of torchrun prints
            with progress.lines("vitviz train"), progress.bar(3):
                assert not [thread for thread in enumerate_threads() if thread.name == progress.THREAD]


@pytest.mark.parametrize("command", ["predict", "evaluate", "train"])
def test_commands_print_lines_without_a_terminal(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Callable[..., str]
) -> None:
    """Let each photograph wait until its line has been printed."""
    for label in ("cat", "dog"):
        for seed in range(2):
            data_files.photo(tmp_path / "photos" / label / f"{seed}.png", 32, 32, seed=seed + 7 * (label == "dog"))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    log, update = Lines(), progress.tqdm.update

    def waiting(self: Any, n: float | None = 1) -> Any:
        done, printed = update(self, n), log.getvalue().count("\n")
        while log.getvalue().count("\n") < printed + 2:  # the first may have been made before the update
            log.written.clear()
            assert log.getvalue().count("\n") >= printed + 2 or log.written.wait(patience(20))
        return done

    monkeypatch.setattr(progress.tqdm, "update", waiting)
    photos, model = str(tmp_path / "photos"), folder(tmp_path / "tiny")
    words = {
        "predict": [photos, "--model", model],
        "evaluate": ["--data", photos, "--aim", "predicted", "--limit", "1", "--methods", "rollout", "--model", model],
        "train": ["--data", photos, "--val-share", "0.5", "--out", str(tmp_path / "out"), "--from", model,
                  "--freeze", "backbone", "--epochs", "1", "--batch", "2"],
    }[command]  # fmt: skip
    output = seen(lambda: main([command, *words]), lambda: log)
    titles = {"predict": ["1/4"], "evaluate": ["1/1"], "train": ["photos, train", "features of train", "epoch 1/1"]}
    assert [title for title in titles[command] if title not in output] == []


def test_commands_show_bars_on_a_terminal_unless_they_are_quiet(seen: Callable[..., str], tmp_path: Path) -> None:
    for seed in (0, 1):
        data_files.photo(tmp_path / f"{seed}.png", seed=seed)
    explain = ["explain", str(KOALA), "--method", "occlusion", "--test", "-o", str(tmp_path / "out.png")]
    predict, titles = ["predict", str(tmp_path)], ["Occlusion: ", "Test of the map: ", "/2 ["]
    for command, stream, expected in (
        (predict, Terminal, titles[2:]),
        ([*predict, "--quiet"], Terminal, []),
        (predict, io.StringIO, []),
        (explain, Terminal, titles[:2]),
        ([*explain, "--quiet"], Terminal, []),
    ):
        output = seen(lambda command=command: main([*command, "--model", "vit-cifar10"]), stream)
        assert [title for title in titles if title in output] == expected


@pytest.mark.tier("all")
def test_ctrl_c_ends_a_long_method(tmp_path: Path) -> None:
    """Send Ctrl-C on a terminal, after the bar has appeared."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = ["explain", str(KOALA), "--method", "kernel_shap", "--set", "samples=3000"]
    process = subprocess.Popen([sys.executable, "-m", "vitviz", *command], cwd=tmp_path, stderr=its)
    os.close(its)
    output = b""
    while b"Kernel SHAP:" not in output:
        output += os.read(mine, 1024)
    process.send_signal(signal.SIGINT)
    assert process.wait(patience(20)) == 130
    os.close(mine)
