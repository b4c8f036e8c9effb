"""The operator's settings: from the command line, the environment, or defaults that depend on the host."""

import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version

import pytest
from gradio.mcp import GradioMCPServer

from vitviz.cli.main import main
from vitviz.page import Page, launch
from vitviz.server.endpoints import Endpoints
from vitviz.settings import GIGABYTE, SETTINGS, Settings, SettingsError, settings


def test_default_settings_depend_on_where_the_page_is_served() -> None:
    local = settings(environ={})
    assert (local.typed, local.upload, local.memory, local.side) == (True, False, 4 * GIGABYTE, 2048)
    assert not settings(host="0.0.0.0", environ={}).typed
    assert not settings(environ={"GRADIO_SERVER_NAME": "0.0.0.0"}).typed
    assert not settings(environ={"GRADIO_SHARE": "True"}).typed
    space = settings(environ={"SPACE_ID": "someone/vitviz"})
    assert (space.typed, space.upload, space.side) == (False, False, 1024)


def test_environment_and_arguments_override_defaults() -> None:
    environ = {"SPACE_ID": "someone/vitviz", "VITVIZ_ALLOW_TYPED": "1", "VITVIZ_SHARPER": "0"}
    environ |= {"VITVIZ_MODEL_MEMORY": "1.5", "VITVIZ_MAX_SIDE": "700", "VITVIZ_MODELS": "timm:a, ./b,"}
    allowed = settings(environ=environ)
    assert (allowed.typed, allowed.sharper, allowed.memory, allowed.side) == (True, False, 1_500_000_000, 700)
    assert allowed.models == ("timm:a", "./b")
    allowed = settings(environ=environ, typed=False, sharper=True, memory=2, side=600, models=["c"])
    assert (allowed.typed, allowed.sharper, allowed.memory, allowed.side) == (False, True, 2 * GIGABYTE, 600)
    assert allowed.models == ("c",)
    host = {"PORT": "8080"}  # set by many hosts
    ports = [settings(environ=environ).port for environ in ({}, host, {**host, "GRADIO_SERVER_PORT": "7000"})]
    assert [*ports, settings(environ=host, port=90).port] == [None, 8080, 7000, 90]
    logs = [settings(environ=environ).log for environ in ({}, {"SPACE_ID": "a/b"}, {"VITVIZ_LOG": "1"})]
    assert logs == [False, True, True]


WRONG = [
    *(("VITVIZ_ALLOW_UPLOAD", "yes"), ("VITVIZ_MCP", "on"), ("VITVIZ_LOG", "json"), ("VITVIZ_ALOW_UPLOAD", "0")),
    *(("VITVIZ_MODEL_MEMORY", "much"), ("VITVIZ_MODEL_MEMORY", "0"), ("VITVIZ_MODEL_MEMORY", "nan")),
    *(("VITVIZ_MAX_SIDE", "-1"), ("PORT", "http"), ("PORT", "0"), ("GRADIO_SERVER_PORT", "70000")),
    *(("VITVIZ_HOSTS", "https://vit.example"), ("VITVIZ_FRAMES", "school.example; script-src *")),
]


def test_wrong_settings_are_refused() -> None:
    for name, value in WRONG:
        with pytest.raises(SettingsError, match="above 0|ALOW|'0'" if value == "0" else re.escape(value)):
            settings(environ={name: value})


LIMITS = {"scene_memory": GIGABYTE, "question_memory": GIGABYTE, "places": 1}


def test_limits_are_read_and_checked() -> None:
    for field, unit in LIMITS.items():
        variable = SETTINGS[field].variable
        assert getattr(settings(environ={}), field) == getattr(Settings(), field)
        assert getattr(settings(environ={variable: "3"}), field) == 3 * unit
        for wrong in ("0", "-1", "nan", "much"):
            with pytest.raises(SettingsError, match=variable):
                settings(environ={variable: wrong})


@pytest.mark.parametrize("option", ["--model-memory", "--max-side", "--port"])
def test_numbers_on_the_command_line_are_checked(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", option, "many"]) == 2
    assert re.search(f"Expected a .*number .* in {option}, got 'many'", capsys.readouterr().err)


def test_secret_is_random_unless_it_is_set() -> None:
    assert settings(environ={"VITVIZ_SECRET": "x" * 16}).secret == b"x" * 16
    assert settings(environ={}).secret != settings(environ={}).secret
    with pytest.raises(SettingsError, match="VITVIZ_SECRET"):
        settings(environ={"VITVIZ_SECRET": "short"})


def test_number_of_proxies_is_read() -> None:
    environments = ({}, {"SPACE_ID": "a/b"}, {"VITVIZ_PROXIES": "2"})
    assert [settings(environ=environ).proxies for environ in environments] == [0, 1, 2]
    with pytest.raises(SettingsError, match="VITVIZ_PROXIES"):
        settings(environ={"VITVIZ_PROXIES": "1.5"})


REACHED = [
    *({"VITVIZ_HOSTS": "vit.example"}, {"VITVIZ_HOSTS": "*"}, {"VITVIZ_PROXIES": "1"}, {"GRADIO_ROOT_PATH": "/vit"}),
    *({"SPACE_ID": "a/b"}, {"GRADIO_SHARE": "true"}, {"GRADIO_SERVER_NAME": "0.0.0.0"}, {"SPACE_HOST": "a.hf.space"}),
]


@pytest.mark.parametrize("environ", REACHED, ids=lambda environ: next(iter(environ)))
def test_checkpoints_are_taken_only_on_a_page_that_others_cannot_reach(environ: dict[str, str]) -> None:
    assert settings(environ={"VITVIZ_ALLOW_UPLOAD": "1", "VITVIZ_HOSTS": "localhost"}).upload
    assert not settings(environ=environ).upload
    with pytest.raises(SettingsError, match="--allow-upload"):
        settings(environ={**environ, "VITVIZ_ALLOW_UPLOAD": "1"})
    with pytest.raises(SettingsError, match="--allow-upload"):
        settings(environ=environ, upload=True)


def test_command_line_overrides_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("vitviz.page.build", lambda allowed, _texts: seen.append(allowed))
    monkeypatch.setattr("vitviz.page.serve", lambda page, allowed, **options: seen.append(options))
    monkeypatch.delenv("SPACE_ID", raising=False)
    options = ["--no-allow-upload", "--model-memory", "1.5", "--max-side", "700", "--model", "a", "--model", "timm:b"]
    assert main(["app", "--host", "0.0.0.0", *options]) == 0
    expected = Settings(models=("a", "timm:b"), default="a", memory=1_500_000_000, side=700)
    assert seen[0] == replace(expected, typed=False, hosts=frozenset(), log=True)
    assert seen[1] == {"host": "0.0.0.0", "port": None, "quiet": False}  # Gradio or GRADIO_SERVER_PORT sets the port
    assert main(["app", "--allow-typed", "--no-allow-upload"]) == 0
    assert seen[2] == Settings()
    monkeypatch.setenv("VITVIZ_DEFAULT", "timm:a")
    assert main(["app"]) == main(["app", "--default", "b"]) == 0
    assert (seen[4], seen[6]) == (Settings(default="timm:a"), Settings(default="b"))
    assert main(["app", "--model-memory", "0"]) == 2
    monkeypatch.delenv("VITVIZ_DEFAULT")
    seen.clear()
    for options in ("--model mine --model other", "--model mine --default other", "--default other", ""):
        assert main(["app", *options.split()]) == 0
    assert [allowed.default for allowed in seen[::2]] == ["mine", "other", "other", ""]


@pytest.fixture
def page(endpoints: Endpoints) -> Iterator[Page]:
    page = Page(endpoints)
    yield page
    page.close()


def test_used_port_is_an_error(page: Page) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="Cannot find empty port"):
            launch(page, Settings(), "127.0.0.1", taken.getsockname()[1], prevent_thread_lock=True, quiet=True)


def test_tools_need_their_package(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settings(environ={}).mcp
    assert settings(environ={"VITVIZ_MCP": "1"}).mcp
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mcp", None)
        with pytest.raises(SettingsError, match=r"package mcp .* can use .* pip install 'gradio\[mcp\]'"):
            launch(page, Settings(mcp=True))
    monkeypatch.setattr(GradioMCPServer, "Server", lambda name: object())  # mcp 2 has another class of this name
    with pytest.raises(SettingsError, match=rf"got mcp {version('mcp')}. Run pip install 'gradio\[mcp\]'"):
        launch(page, Settings(mcp=True))
