"""Test progress bars of the library and the command line, and Ctrl-C."""

from __future__ import annotations

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
from threading import Thread
from typing import Any

import data_files
import pytest
import tiny
import torch
from patience import patience

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
    assert seen(lambda: view.explain("integrated_gradients", steps=8), io.StringIO) == ""  # no terminal


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
