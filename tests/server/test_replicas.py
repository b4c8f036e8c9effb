"""Two server processes behind a proxy that alternates: one page asks both, and outlives the end of one of them."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import SCENE, click_patch, expect_map, folder, own_photograph, ready, upload

import vitviz
from vitviz.explorer import Explorer
from vitviz.view import View

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds until a server listens: it imports PyTorch and gradio first
SLOW = 60_000  # milliseconds; the model runs many times
GONE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Server:
    """Run `vitviz app` in a process of its own, on the same port however often it is started."""

    def __init__(self, place: Path, model: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
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


class Proxy:
    """Pass each request to another of some ports than the one before, whoever asks: no visitor has a server.

    Attributes:
        questions: (port, name) of each question of the page.
    """

    def __init__(self, ports: list[int]) -> None:
        self.questions: list[tuple[int, str]] = []
        self._turns = {True: cycle(ports), False: cycle(ports)}  # of questions, and of all else
        self._loop = asyncio.new_event_loop()  # in a thread of its own: Playwright has one in this one
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._pass, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]

    def _run(self, task: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(PATIENCE)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one request and its answer; the connection ends with them."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            question = re.match(rb"POST /vitviz/(\w+) ", head)
            port = next(self._turns[question is not None])
            if question:
                self.questions.append((port, question[1].decode()))
            try:
                answers, asks = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.write(GONE)
                await writer.drain()
                return
            asks.write(re.sub(rb"(?im)^connection:[^\r]*", b"Connection: close", head))
            ways = [asyncio.create_task(copy(*way)) for way in ((reader, asks), (answers, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            asks.close()
        except (OSError, asyncio.IncompleteReadError):
            pass  # a connection that was opened ahead of any request, or broken off
        finally:
            writer.close()

    async def _end(self) -> None:
        """Break off what is open, such as the page's heartbeat."""
        self._server.close()
        open_ones = asyncio.all_tasks() - {asyncio.current_task()}
        for one in open_ones:
            one.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a stream to its end."""
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()


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
def proxy(servers: list[Server]) -> Iterator[Proxy]:
    started = Proxy([server.port for server in servers])
    yield started
    started.close()


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
    page: Browser, servers: list[Server], proxy: Proxy, view: Any, tmp_path: Path
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
    assert {port for port, _ in proxy.questions} == ports
    assert errors == []

    servers[0].kill()
    before = len(proxy.questions)
    look(page, "Layers")  # what goes to the server that is gone is asked once more
    page.get_by_role("tab", name="Explore").click()
    page.select_option("[data-key=fuse]", "min")
    expect_map(page, seen.rollout((3, 4), fuse="min"))
    assert {port for port, _ in proxy.questions[before:]} == ports
    assert all("502" in error for error in errors)
    errors.clear()

    servers[0].start()
    servers[0].wait()
    before = len(proxy.questions)
    for fuse in ("mean", "max"):
        page.select_option("[data-key=fuse]", fuse)
        expect_map(page, seen.rollout((3, 4), fuse=fuse))
    page.get_by_role("tab", name="Explain").click()
    for method in ("legrad", "attn_lrp"):
        page.click(f".vv-explain [data-method={method}]")
        expect(page.locator(".vv-explain .vv-title")).to_have_text(seen.explain(method).title, timeout=SLOW)
        look(page, "Explain")
    assert {port for port, _ in proxy.questions[before:]} == ports  # also the one that knew nothing of the photograph
    assert errors == []
