"""Declare each operator setting once: its environment variable, its option of `vitviz app`, its meaning and default.

`settings()`, the options and the table of docs/settings.md are generated from the fields of `Settings`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vitviz.errors import VitvizError
from vitviz.resources import PUBLISHED

LOCALHOST = {"127.0.0.1", "localhost", "::1"}
SPACES = ("https://huggingface.co", "https://*.hf.space")
GIGABYTE = 10**9
SHARPER_SECONDS = 2.0  # longest forward pass that the page may ask for before the visitor does
LEAST_SECRET = 16  # characters
HOST = r"\*|[\w.-]+|\[[0-9a-fA-F:]+\]"  # without scheme, port and path
ORIGIN = r"https?://(\*\.)?[\w.-]+(:\d+)?"


class SettingsError(VitvizError):
    """Raised for an invalid setting; the message names it and says what was expected."""


class Place(NamedTuple):
    """Where the page is served: environment variables, whether on a Space, and whether to this machine only."""

    environ: Mapping[str, str]
    space: bool
    local: bool


@dataclass(frozen=True)
class Setting:
    """Declaration of one setting.

    Args:
        variable: environment variable; empty if `placed` reads variables of the host or of Gradio.
        convert: `convert(name, value)` returns the field's value from a text or a Python value, or raises
            `SettingsError` with `name`.
        about: description in the documents and the help.
        usual: description of the default; empty if the number is enough.
        placed: returns the default if it depends on the place.
        option: option of `vitviz app`; empty for none.
        metavar: name of the option's value in the help; empty for a switch.
        default: the default as an operator would write it.
    """

    variable: str
    convert: Callable[[str, Any], Any]
    about: str
    usual: str = ""
    placed: Callable[[Place], Any] | None = None
    option: str = ""
    metavar: str = ""
    default: Any = None

    @property
    def words(self) -> str:
        """Return the description of the default."""
        return self.usual or f"{self.default:g}"


def _kind(expected: str, parse: Callable[[str], Any]) -> Callable[[str, object], Any]:
    """Return a converter for `Setting`; `parse` returns `None` for a text that is not as `expected`, or fails."""

    def convert(name: str, value: object) -> Any:
        parsed = None
        with suppress(ValueError):
            parsed = parse(str(value))
        if parsed is None:
            raise SettingsError(f"Expected {expected} in {name}, got {str(value)!r}. Change or unset it.")
        return parsed

    return convert


def _parse_switch(text: str) -> bool:
    return bool(("0", "1", "False", "True").index(text) % 2)


def _text(_: str, value: str) -> str:
    return value.strip()


def _list(form: str = ".*", example: str = "") -> Callable[[str, str | Sequence[str]], tuple[str, ...]]:
    def convert(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        names = tuple(filter(None, (part.strip() for part in parts)))
        if invalid := [part for part in names if not re.fullmatch(form, part)]:
            raise SettingsError(f"Expected names such as {example} in {name}, got {invalid[0]!r}. Change it.")
        return names

    return convert


def _number(units: int = 1) -> Callable[[str, object], int]:
    """Return a converter of positive numbers that multiplies by `units` and rounds."""

    def parse(text: str) -> int | None:
        return round(float(text) * units) if 0 < float(text) < math.inf else None

    return _kind("a number above 0", parse)


def _whole(low: int, high: int) -> Callable[[str, object], int]:
    def parse(text: str) -> int | None:
        return int(text) if int(text) in range(low, high + 1) else None

    return _kind(f"a whole number from {low} to {high}", parse)


_switch, _PORT = _kind("1 or 0", _parse_switch), _whole(1, 2**16 - 1)


def _port(place: Place) -> int | None:
    """Return the port from the environment; many hosts set PORT."""
    for name in ("GRADIO_SERVER_PORT", "PORT"):
        if text := place.environ.get(name, "").strip():
            return _PORT(name, text)
    return None


def _hosts(name: str, value: str | Sequence[str]) -> frozenset[str]:
    hosts = _list(HOST, "example.org")(name, value)
    return frozenset() if "*" in hosts else frozenset(LOCALHOST | {host.lower() for host in hosts})


def _secret(name: str, value: str) -> bytes:
    if len(value) < LEAST_SECRET:
        raise SettingsError(
            f"Expected at least {LEAST_SECRET} characters in {name}, got {len(value)}. "
            "Make one with secrets.token_hex() of Python."
        )
    return value.encode()


def _field(variable: str, convert: Callable[[str, Any], Any], default: Any, about: str, **more: Any) -> Any:
    """Return a field of `Settings` that declares a setting, with its default in the operator's units."""
    setting = Setting(variable, convert, about, default=default, **more)
    return field(default=convert(variable, default), metadata={"setting": setting})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What visitors may do, and how much memory, disk and time they may use. Memory and disk are in bytes.

    A page for this machine only answers to this machine's names; otherwise any site that its user opens could point its
    own name here and read the page (DNS rebinding). Models that visitors name are downloaded to this machine's disk.
    """

    # fmt: off
    checkpoints: str = _field(
        "VITVIZ_CHECKPOINTS", _text, "", "folder of the bundled models, instead of the package's own",
        usual="`checkpoints/` of the package")
    models: tuple[str, ...] = _field(
        "VITVIZ_MODELS", _list(), (), "models for the page's menu: anything that `vitviz.load` accepts",
        usual="only the bundled models", option="--model", metavar="SOURCE")
    default: str = _field(
        "VITVIZ_DEFAULT", _text, "",
        "the model that the page opens with: one from the menu, or anything that `vitviz.load` accepts; if it cannot "
        "be loaded, the page shows a message and opens with the bundled one",
        usual=f"the first `--model`, else the bundled one; on a Space `{PUBLISHED}`",
        placed=lambda place: PUBLISHED if place.space and not place.environ.get("VITVIZ_MODELS") else "",
        option="--default", metavar="MODEL")
    typed: bool = _field(
        "VITVIZ_ALLOW_TYPED", _switch, True, "visitors may enter names of torchvision, timm and Hugging Face models",
        usual="1 on localhost only, else 0", placed=lambda place: place.local, option="--allow-typed")
    upload: bool = _field(
        "VITVIZ_ALLOW_UPLOAD", _switch, False, "checkpoints may be uploaded, on a page that only this machine reaches",
        option="--allow-upload")
    sharper: bool = _field(
        "VITVIZ_SHARPER", _switch, True,
        "while no visitor waits, also open the photograph at twice the input size, if that takes up to "
        f"{SHARPER_SECONDS:g} seconds, so that the page's button Sharper answers at once")
    memory: int = _field(
        "VITVIZ_MODEL_MEMORY", _number(GIGABYTE), 4,
        "memory for loaded models, in GB; the least recently used are evicted first",
        option="--model-memory", metavar="GB")
    side: int = _field(
        "VITVIZ_MAX_SIDE", _number(), 2048, "longest side of an input, in pixels", usual="2048; 1024 on a Space",
        placed=lambda place: 1024 if place.space else 2048, option="--max-side", metavar="PIXELS")
    hosts: frozenset[str] = _field(
        "VITVIZ_HOSTS", _hosts, (), "host names under which the page is served, separated by commas; `*` for any",
        usual="this machine's names; a Space's own; any if it listens on another address",
        placed=lambda place: place.environ.get("SPACE_HOST") or ("" if place.local else "*"))
    frames: tuple[str, ...] = _field(
        "VITVIZ_FRAMES", _list(ORIGIN, "https://example.org"), (), "origins that may show the page in a frame",
        usual="none; Hugging Face's on a Space", placed=lambda place: SPACES if place.space else ())
    log: bool = _field(
        "VITVIZ_LOG", _switch, False,
        "one JSON line per request on standard error, with time, path, outcome and duration, but no addresses, file "
        "names or content of photographs",
        usual="0 on localhost only, else 1", placed=lambda place: not place.local)
    scene_memory: int = _field(
        "VITVIZ_SCENE_MEMORY", _number(GIGABYTE), 1.25,
        "memory for open photographs, their derived data, answers and photographs of API clients, in GB; the least "
        "recently used are evicted first; requests in transfer take at most a third of it, as do answers, and at most "
        "64 MB for one address")
    question_memory: int = _field(
        "VITVIZ_QUESTION_MEMORY", _number(GIGABYTE), 4,
        "memory for one question or forward pass, in GB; errors for larger ones give the largest size that fits")
    places: int = _field(
        "VITVIZ_PLACES", _number(), 192,
        "limit of photographs and short questions that wait or run, and the same limit of long questions; of one "
        "address, at most 64 questions and 8 long ones")
    proxies: int = _field(
        "VITVIZ_PROXIES", _whole(0, 9), 0,
        "number of proxies in front of the server that append to `X-Forwarded-For`: the visitor's address is that many "
        "entries from the right; with 0, uvicorn's `FORWARDED_ALLOW_IPS` applies",
        usual="0; 1 on a Space", placed=lambda place: int(place.space))
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False, metadata={
        "setting": Setting("VITVIZ_SECRET", _secret, usual="random at each start",
                           about="key for the ids of photographs, at least 16 characters; replicas must share it")})
    mcp: bool = _field(
        "VITVIZ_MCP", _switch, False,
        "also serve the page's endpoints as Model Context Protocol tools; needs `gradio[mcp]`", option="--mcp")
    port: int | None = field(default=None, metadata={
        "setting": Setting("", _PORT, "port to listen on", placed=_port, option="--port", metavar="PORT",
                           usual="`GRADIO_SERVER_PORT` or `PORT`, else the first free one from 7860")})
    # fmt: on


SETTINGS: dict[str, Setting] = {field.name: field.metadata["setting"] for field in dataclasses.fields(Settings)}
"""Every setting by its field of `Settings`."""


def settings(*, host: str | None = None, environ: Mapping[str, str] = os.environ, **options: Any) -> Settings:
    """Return the settings: from `options`, else from the environment, else the safe default for the place.

    Args:
        host: address to listen on; by default `GRADIO_SERVER_NAME`, else this machine only.
        environ: the environment; `SPACE_ID` in it means a Space.
        options: fields of `Settings` in the operator's units (memory in GB); `None` is ignored.

    Raises:
        SettingsError: for an invalid value, or an unknown `VITVIZ_` variable, because a misspelt restriction would have
            no effect.
    """
    known = sorted(setting.variable for setting in SETTINGS.values() if setting.variable)
    if unknown := sorted(name for name in environ if name.startswith("VITVIZ_") and name not in known):
        raise SettingsError(f"Expected settings among {', '.join(known)}; got {unknown[0]}. Change or unset it.")
    space, listens = bool(environ.get("SPACE_ID")), host or environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    place = Place(environ, space, listens in LOCALHOST and not space and not shared(environ))
    values = {name: value for name, value in options.items() if value is not None}
    for name, setting in SETTINGS.items():
        if name in values:
            values[name] = setting.convert(setting.option, values[name])
        elif text := environ.get(setting.variable, "").strip():
            values[name] = setting.convert(setting.variable, text)
        elif setting.placed is not None and (value := setting.placed(place)) is not None:
            values[name] = setting.convert(setting.variable, value)
    result = Settings(**values)
    if result.upload:
        _check_own(result, place)
    return result


def _check_own(allowed: Settings, place: Place) -> None:
    """Check that others cannot reach a page that takes checkpoints."""
    reasons = {
        f"another address than {', '.join(sorted(LOCALHOST))}, a Space or a public link": not place.local,
        "GRADIO_ROOT_PATH": bool(place.environ.get("GRADIO_ROOT_PATH")),
        "VITVIZ_PROXIES": allowed.proxies > 0,
        "other names in VITVIZ_HOSTS": not allowed.hosts or not allowed.hosts <= LOCALHOST,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise SettingsError(
            f"Expected a page that only this machine reaches for --allow-upload, got {reason}. Leave one of them out."
        )


def read(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """Return one setting from the environment, else its default, regardless of where the page is served.

    Raises:
        SettingsError: for an invalid value.
    """
    setting = SETTINGS[name]
    return setting.convert(setting.variable, environ.get(setting.variable, "").strip() or setting.default)


def shared(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the operator asked Gradio for a public link; `GRADIO_SHARE=true` is the only way."""
    return environ.get("GRADIO_SHARE", "").lower() == "true"


def is_loopback(address: str) -> bool:
    """Return whether a client's address is this machine's."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # unknown
        return False
