"""Two servers behind nginx without sticky sessions: one page asks both, and outlives the end of one of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from proxied import Nginx, free_port, nginx
from running import SCENE, click_patch, expect_map, folder, own_photograph, ready, upload

import vitviz
from vitviz.explorer import Explorer
from vitviz.view import View

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds until a server listens: it imports PyTorch and gradio first
SLOW = 60_000  # milliseconds; the model runs many times


class Server:
    """Run `vitviz app` in a process of its own, on the same port however often it is started."""

    def __init__(self, place: Path, model: str) -> None:
        self.port = free_port()
        place.mkdir()
        self._log = place / "log.txt"
        settings = {"GRADIO_SERVER_PORT": str(self.port), "GRADIO_SERVER_NAME": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        models = {"VITVIZ_MODELS": model, "VITVIZ_DEFAULT": model, "GRADIO_TEMP_DIR": str(place)}
        self._environment = {**os.environ, **settings, **models}

    def start(self) -> None:
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "vitviz", "app"]
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until it listens."""
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        """End it as a machine that loses its power does."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("models") / "tiny", registers=2)


@pytest.fixture
def servers(model: str, tmp_path: Path) -> Iterator[list[Server]]:
    started = [Server(tmp_path / name, model) for name in ("one", "other")]
    for server in started:
        server.start()
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def proxy(servers: list[Server], tmp_path: Path) -> Iterator[Nginx]:
    place = tmp_path / "nginx"
    place.mkdir()
    with nginx(place, [server.port for server in servers]) as started:
        yield started


@pytest.fixture
def view(model: str, tmp_path: Path) -> Callable[[Path], View]:
    return Explorer(vitviz.load(model)).open


LOOKS: dict[str, tuple[str, str]] = {  # what a tab shows once its questions are answered
    "Explain": (".vv-explain", ".vv-moved li"),
    "Heads": (".vv-heads-view", ".vv-dot"),
    "Layers": (".vv-layers-view", ".vv-alike canvas"),
}


def look(page: Browser, name: str) -> None:
    """Go to a tab, and wait until it shows what it asked for and nothing that went wrong."""
    page.get_by_role("tab", name=name).click()
    root, sign = LOOKS[name]
    expect(page.locator(f"{root} {sign}").first).to_be_visible(timeout=SLOW)
    page.wait_for_function("vitviz.progress.jobs.size === 0 && vitviz.resting()", timeout=SLOW)
    untroubled(page)


def untroubled(page: Browser) -> None:
    expect(page.locator(".vv-message")).to_be_hidden()
    assert page.locator(".vv-trouble:visible").count() == 0


def test_a_page_is_answered_by_both_servers_and_outlives_one(
    page: Browser, servers: list[Server], proxy: Nginx, view: Any, tmp_path: Path
) -> None:
    errors: list[str] = []
    page.on("console", lambda said: errors.append(f"{said.text} {said.location}") if said.type == "error" else None)
    photo = own_photograph(tmp_path)
    seen = view(photo)
    ready(page, f"http://127.0.0.1:{proxy.port}/")
    upload(page, photo)
    expect_map(page, seen.attention())
    page.wait_for_function(f"{SCENE}.answers.complete")
    click_patch(page, seen, 3, 4)
    page.keyboard.press("[")
    expect_map(page, seen.attention(1, query=(3, 4)))
    page.check(".vv-modes input[value=rollout]")
    page.click(".vv-rollout summary")
    page.select_option("[data-key=fuse]", "max")
    expect_map(page, seen.rollout((3, 4), fuse="max"))
    untroubled(page)
    for name in ("Explain", "Heads"):
        look(page, name)
    ports = {server.port for server in servers}
    assert {port for port, _ in proxy.questions()} == ports
    assert errors == []

    servers[0].kill()
    before = len(proxy.questions())
    look(page, "Layers")  # what goes to the server that is gone is asked of the other one
    page.get_by_role("tab", name="Explore").click()
    page.select_option("[data-key=fuse]", "min")
    expect_map(page, seen.rollout((3, 4), fuse="min"))
    assert {port for port, _ in proxy.questions()[before:]} == {servers[1].port}
    assert errors == []

    servers[0].start()
    servers[0].wait()
    before = len(proxy.questions())
    for fuse in ("mean", "max"):
        page.select_option("[data-key=fuse]", fuse)
        expect_map(page, seen.rollout((3, 4), fuse=fuse))
    page.get_by_role("tab", name="Explain").click()
    for method in ("legrad", "attn_lrp"):
        page.click(f".vv-explain [data-method={method}]")
        expect(page.locator(".vv-explain .vv-title")).to_have_text(seen.explain(method).title, timeout=SLOW)
        look(page, "Explain")
    assert {port for port, _ in proxy.questions()[before:]} == ports  # also the one that knew nothing of the photograph
    assert errors == []
