"""vitviz as people install it: a wheel in an environment of its own, used from a folder that is not the checkout."""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[1]
PATIENCE = 120  # seconds; the machine may have other work
SMALL = "vit-cifar10"


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command to its end and return what it prints."""
    # PYTHONPATH would come before the wheel.
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel: its folder of commands. What vitviz requires is taken from the tests' own."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", folder)
    (wheel,) = folder.glob("vitviz-*.whl")
    venv.create(folder / "env")
    commands = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    # A path in a .pth file does not make Python read the .pth files there: the editable vitviz stays out.
    paths = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    site = Path(sysconfig.get_path("purelib", "venv" if sys.version_info >= (3, 11) else None, vars=paths))
    (site / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(*pip, "--python", commands / "python", "install", "--no-deps", "--no-index", wheel)
    return commands


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder far from the checkout, with one photograph."""
    (tmp_path / "photo.jpg").write_bytes((ROOT / "examples" / "church.jpg").read_bytes())
    return tmp_path


def test_the_library_finds_its_models(installed: Path, elsewhere: Path) -> None:
    program = f"""
import vitviz
print(vitviz.__file__)
view = vitviz.Explorer(vitviz.load({SMALL!r})).open("photo.jpg")
print(view.rollout().values.shape, *vitviz.bundled())
"""
    where, answer = run(installed / "python", "-c", program, cwd=elsewhere).splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert answer.startswith("(8, 8) ")
    assert SMALL in answer


def test_the_commands_work(installed: Path, elsewhere: Path) -> None:
    answer = json.loads(run(installed / "vitviz", "predict", "photo.jpg", "--model", SMALL, "--json", cwd=elsewhere))
    assert "airplane" in json.dumps(answer)
    run(installed / "vitviz", "export", "photo.jpg", "--html", "page.html", "--model", SMALL, cwd=elsewhere)
    assert (elsewhere / "page.html").stat().st_size > 100_000


@pytest.fixture
def served(installed: Path, elsewhere: Path) -> Iterator[str]:
    """The address of `vitviz app`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_TEMP_DIR": str(elsewhere)}
    with (elsewhere / "log.txt").open("w+") as log:
        process = subprocess.Popen(
            [installed / "vitviz", "app"], cwd=elsewhere, env={**os.environ, **settings}, stdout=log, stderr=log
        )
        try:
            began = time.monotonic()
            while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
                assert process.poll() is None, (elsewhere / "log.txt").read_text()
                assert time.monotonic() - began < PATIENCE
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def test_the_app_opens_with_its_examples(served: str, page: Page) -> None:
    page.goto(served)
    expect(page.locator(".vv-explore .vv-answer")).to_contain_text("church", timeout=1000 * PATIENCE)
    page.click("#examples button:has-text('Koala')")
    expect(page.locator(".vv-explore .vv-answer")).not_to_contain_text("church", timeout=1000 * PATIENCE)


def test_the_source_distribution_holds_its_tests(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", "tests", "vitviz", "examples", "checkpoints", "scripts", "docs").split()
    assert set(tracked) <= held
    assert {"Makefile", "pyproject.toml", "requirements-dev.txt", "app.py"} <= held
