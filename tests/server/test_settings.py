"""What the operator of a page allows: by the command line, by the environment, or by what is safe there. No browser."""

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import httpx
import pytest
from asking import free_port
from patience import patience

from vitviz.cli.main import main
from vitviz.server.api import CheckedBlocks
from vitviz.server.server import launch
from vitviz.settings import GIGABYTE, SETTINGS, Settings, SettingsError, settings


def test_what_is_allowed_depends_on_where_the_page_is_served() -> None:
    here = settings(environ={})
    assert (here.typed, here.upload, here.memory, here.side) == (True, False, 4 * GIGABYTE, 2048)
    assert not settings(host="0.0.0.0", environ={}).typed
    assert not settings(environ={"GRADIO_SERVER_NAME": "0.0.0.0"}).typed
    assert not settings(environ={"GRADIO_SHARE": "True"}).typed
    space = settings(environ={"SPACE_ID": "someone/vitviz"})
    assert (space.typed, space.upload, space.side) == (False, False, 1024)


def test_what_is_said_counts() -> None:
    said = {
        "SPACE_ID": "someone/vitviz",
        "VITVIZ_ALLOW_TYPED": "1",
        "VITVIZ_ALLOW_UPLOAD": "1",
        "VITVIZ_MODEL_MEMORY": "1.5",
        "VITVIZ_MAX_SIDE": "700",
        "VITVIZ_MODELS": "timm:a, ./b,",
    }
    allowed = settings(environ=said)
    assert (allowed.typed, allowed.upload, allowed.memory, allowed.side) == (True, True, 1_500_000_000, 700)
    assert allowed.models == ("timm:a", "./b")
    given = settings(environ=said, typed=False, upload=False, memory=2, side=600, models=["c"])
    assert (given.typed, given.upload, given.memory, given.side) == (False, False, 2 * GIGABYTE, 600)
    assert given.models == ("c",)
    host = {"PORT": "8080"}  # as many hosts say it
    ports = [settings(environ=one).port for one in ({}, host, {**host, "GRADIO_SERVER_PORT": "7000"})]
    assert [*ports, settings(environ=host, port=90).port] == [None, 8080, 7000, 90]
    assert [settings(environ=one).log for one in ({}, {"SPACE_ID": "a/b"}, {"VITVIZ_LOG": "1"})] == [False, True, True]


WRONG = [
    *(("VITVIZ_ALLOW_UPLOAD", "yes"), ("VITVIZ_MCP", "on"), ("VITVIZ_LOG", "json"), ("VITVIZ_ALOW_UPLOAD", "0")),
    *(("VITVIZ_MODEL_MEMORY", "much"), ("VITVIZ_MODEL_MEMORY", "0"), ("VITVIZ_MODEL_MEMORY", "nan")),
    *(("VITVIZ_MAX_SIDE", "-1"), ("PORT", "http"), ("PORT", "0"), ("GRADIO_SERVER_PORT", "70000")),
    *(("VITVIZ_HOSTS", "https://vit.example"), ("VITVIZ_FRAMES", "school.example; script-src *")),
]


def test_a_wrong_setting_is_refused() -> None:
    for name, value in WRONG:
        with pytest.raises(SettingsError, match="above 0|ALOW|'0'" if value == "0" else re.escape(value)):
            settings(environ={name: value})


TABLE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
LIMITS = {"scene_memory": GIGABYTE, "question_memory": GIGABYTE, "transfers": GIGABYTE, "disk": GIGABYTE}
LIMITS |= {"places": 1, "places_of_address": 1, "stall": 1}


def test_limits_have_the_defaults_of_the_document_and_are_read() -> None:
    for field, units in LIMITS.items():
        variable = SETTINGS[field].variable
        (row,) = re.findall(rf"^\| `{variable}` \| (.*) \| (.*) \|$", TABLE, re.MULTILINE)
        assert getattr(Settings(), field) == getattr(settings(environ={}), field) == float(row[1]) * units
        assert getattr(settings(environ={variable: "3"}), field) == 3 * units
        for wrong in ("0", "-1", "nan", "much"):
            with pytest.raises(SettingsError, match=variable):
                settings(environ={variable: wrong})


@pytest.mark.parametrize("option", ["--model-memory", "--max-side", "--port"])
def test_a_number_on_the_command_line_is_checked_as_in_the_environment(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["app", option, "many"]) == 2
    assert re.search(f"Expected a .*number .* in {option}, got 'many'", capsys.readouterr().err)


def test_replicas_share_a_secret_and_others_have_their_own() -> None:
    assert settings(environ={"VITVIZ_SECRET": "x" * 16}).secret == b"x" * 16
    assert settings(environ={}).secret != settings(environ={}).secret
    with pytest.raises(SettingsError, match="VITVIZ_SECRET"):
        settings(environ={"VITVIZ_SECRET": "short"})


def test_proxies_are_counted() -> None:
    assert [settings(environ=one).proxies for one in ({}, {"SPACE_ID": "a/b"}, {"VITVIZ_PROXIES": "2"})] == [0, 1, 2]
    with pytest.raises(SettingsError, match="VITVIZ_PROXIES"):
        settings(environ={"VITVIZ_PROXIES": "1.5"})


def test_the_command_line_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("vitviz.server.pages.build", lambda allowed, _texts: seen.append(allowed))
    monkeypatch.setattr("vitviz.server.server.launch", lambda page, allowed, **options: seen.append(options))
    monkeypatch.delenv("SPACE_ID", raising=False)
    options = ["--allow-upload", "--model-memory", "1.5", "--max-side", "700", "--model", "a", "--model", "timm:b"]
    assert main(["app", "--host", "0.0.0.0", *options]) == 0
    asked = Settings(models=("a", "timm:b"), default="a", upload=True, memory=1_500_000_000, side=700)
    assert seen[0] == replace(asked, typed=False, hosts=frozenset(), log=True)
    assert seen[1] == {"host": "0.0.0.0", "port": None, "quiet": False}  # gradio chooses, or GRADIO_SERVER_PORT
    assert main(["app", "--allow-typed", "--no-allow-upload"]) == 0
    assert seen[2] == Settings()
    monkeypatch.setenv("VITVIZ_DEFAULT", "timm:a")
    assert main(["app"]) == main(["app", "--default", "b"]) == 0
    assert (seen[4], seen[6]) == (Settings(default="timm:a"), Settings(default="b"))
    assert main(["app", "--model-memory", "0"]) == 2


@pytest.fixture
def demo() -> Iterator[CheckedBlocks]:
    with CheckedBlocks() as demo:
        gr.Markdown("It answers.")
    yield demo
    demo.close()


def test_a_busy_machine_still_serves(demo: CheckedBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    # What gradio finds where its own request for the page takes longer than three seconds.
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)
    # What it sees of the clock where its server takes longer than five seconds to listen.
    monkeypatch.setattr("gradio.http_server.time", SimpleNamespace(time=count(0, 10).__next__, sleep=time.sleep))
    _, address, _ = launch(demo, Settings(), "127.0.0.1", free_port(), prevent_thread_lock=True, quiet=True)
    assert "It answers." in httpx.get(address, timeout=patience(60)).text


def test_a_port_that_is_taken_is_an_error(demo: CheckedBlocks) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="Cannot find empty port"):
            launch(demo, Settings(), "127.0.0.1", taken.getsockname()[1], prevent_thread_lock=True, quiet=True)


def test_tools_need_their_package(demo: CheckedBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settings(environ={}).mcp
    assert settings(environ={"VITVIZ_MCP": "1"}).mcp
    monkeypatch.setattr("vitviz.server.server.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'gradio\[mcp\]'"):
        launch(demo, Settings(mcp=True))
