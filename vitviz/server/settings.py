"""Read what the operator of a page allows: models, memory, input sizes, hosts."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vitviz.errors import VitvizError

HERE_ONLY = {"127.0.0.1", "localhost", "::1"}
SPACES = ("https://huggingface.co", "https://*.hf.space")
GIGABYTE = 10**9
LEAST_SECRET = 16  # characters


class Limit(NamedTuple):
    """Number that bounds what visitors cause: its variable, its default and its unit; `units` are one of these."""

    variable: str
    default: float
    unit: str
    units: int = 1


LIMITS = {  # by field of `Settings`
    "scene_memory": Limit("VITVIZ_SCENE_MEMORY", 1.25, "GB", GIGABYTE),
    "question_memory": Limit("VITVIZ_QUESTION_MEMORY", 4, "GB", GIGABYTE),
    "transfers": Limit("VITVIZ_TRANSFER_MEMORY", 1, "GB", GIGABYTE),
    "disk": Limit("VITVIZ_UPLOAD_DISK", 2, "GB", GIGABYTE),
    "places": Limit("VITVIZ_PLACES", 192, "places"),
    "places_of_address": Limit("VITVIZ_PLACES_OF_ADDRESS", 60, "places"),
    "stall": Limit("VITVIZ_STALL_SECONDS", 20, "s"),
}
NAMES = {  # of all settings; a misspelt one would be ignored, and leave open what it was to close
    *("VITVIZ_CHECKPOINTS", "VITVIZ_MODELS", "VITVIZ_DEFAULT", "VITVIZ_ALLOW_TYPED", "VITVIZ_ALLOW_UPLOAD"),
    *("VITVIZ_MODEL_MEMORY", "VITVIZ_MAX_SIDE", "VITVIZ_HOSTS", "VITVIZ_FRAMES", "VITVIZ_MCP", "VITVIZ_LOG"),
    *("VITVIZ_PROXIES", "VITVIZ_SECRET", *(limit.variable for limit in LIMITS.values())),
}
HOST = r"\*|[\w.-]+|\[[0-9a-fA-F:]+\]"  # without scheme, port and path
ORIGIN = r"https?://(\*\.)?[\w.-]+(:\d+)?"


class SettingsError(VitvizError):
    """Setting that makes no sense; the text names it and says what was expected."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Permissions of visitors.

    Args:
        models: models of the operator in the menu: anything that `vitviz.load` takes, folders and files included.
        default: the model that the page opens with: one of the menu, or anything that `vitviz.load` takes; empty for
            the first bundled one, which is also what the page opens with where this one cannot be had.
        typed: whether visitors may name models of torchvision, timm and Hugging Face that are not in the menu. Each
            is downloaded to this machine's disk.
        upload: whether visitors may upload checkpoints.
        memory: for loaded models, in bytes; the least recently used go first.
        side: the longest side of an input that visitors may ask for, in pixels.
        hosts: the names under which the page is served; none for any. A page on this machine only answers to this
            machine's names: else any site that a visitor opens could make its own name point here and read the page.
        frames: origins that may show the page in a frame, beside its own.
        mcp: whether the endpoints are tools of a Model Context Protocol server too.
        port: where the page listens; `None` for the first free one from 7860.
        log: whether each request is a line on standard error.
        scene_memory: for open scenes and answers about them, in bytes; the least recently used go first.
        question_memory: that one question or forward pass may take, in bytes.
        transfers: bytes of requests and answers on their way, a quarter of them of one address.
        disk: bytes of uploaded files, half of them of one address.
        places: photographs and short questions that wait or run, and as many long ones.
        places_of_address: those of one address, while another address has any.
        stall: seconds in which a client must send or read something.
        proxies: before this server, each of which appends an address to `X-Forwarded-For`; 0 believes no such header.
        secret: key of the ids of scenes; replicas must share it.
    """

    models: tuple[str, ...] = ()
    default: str = ""
    typed: bool = True
    upload: bool = False
    memory: int = 4 * GIGABYTE
    side: int = 2048
    hosts: frozenset[str] = frozenset(HERE_ONLY)
    frames: tuple[str, ...] = ()
    mcp: bool = False
    port: int | None = None
    log: bool = False
    scene_memory: int = round(LIMITS["scene_memory"].default * GIGABYTE)
    question_memory: int = round(LIMITS["question_memory"].default * GIGABYTE)
    transfers: int = round(LIMITS["transfers"].default * GIGABYTE)
    disk: int = round(LIMITS["disk"].default * GIGABYTE)
    places: int = round(LIMITS["places"].default)
    places_of_address: int = round(LIMITS["places_of_address"].default)
    stall: float = LIMITS["stall"].default
    proxies: int = 0
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False)


def settings(
    *,
    host: str | None = None,
    models: Sequence[str] | None = None,
    default: str | None = None,
    typed: bool | None = None,
    upload: bool | None = None,
    memory: float | None = None,
    side: int | None = None,
    mcp: bool | None = None,
    port: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings: what is given, else the environment's, else what is safe where the page is served.

    | argument | environment | where nothing is said |
    |---|---|---|
    | models | VITVIZ_MODELS, separated by commas | none |
    | default | VITVIZ_DEFAULT | the first bundled model |
    | typed | VITVIZ_ALLOW_TYPED=1 or 0 | yes on this machine only; no on a Space, for another host, or shared |
    | upload | VITVIZ_ALLOW_UPLOAD=1 or 0 | no |
    | memory, in GB | VITVIZ_MODEL_MEMORY | 4 |
    | side, in pixels | VITVIZ_MAX_SIDE | 2048; 1024 on a Space |
    | mcp | VITVIZ_MCP=1 or 0 | no |
    | port | GRADIO_SERVER_PORT, PORT | the first free one from 7860 |
    | | VITVIZ_LOG=1 or 0 | as for typed, the other way round |
    | | VITVIZ_HOSTS, separated by commas; * for any | this machine's names, a Space's own; any for another host |
    | | VITVIZ_FRAMES, separated by commas | none; Hugging Face on a Space |
    | | VITVIZ_PROXIES | 0; 1 on a Space |
    | | VITVIZ_SECRET | random at each start |
    | | those of `LIMITS` | see there |

    Args:
        host: the address that the page listens on; `GRADIO_SERVER_NAME` or this machine only by default.
        environ: the environment; a Space is known by its `SPACE_ID`.

    Raises:
        SettingsError: for a value that is none, or a name that starts as these do and is none of them.
    """
    if unknown := sorted(name for name in environ if name.startswith("VITVIZ_") and name not in NAMES):
        known = ", ".join(sorted(NAMES))
        raise SettingsError(f"Expected settings among {known}; got {unknown[0]}. Change or unset it.")
    space = bool(environ.get("SPACE_ID"))
    listens = host or environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    named = _list("VITVIZ_MODELS", environ)
    gigabytes = _number("VITVIZ_MODEL_MEMORY", environ, 4.0) if memory is None else memory
    pixels = _number("VITVIZ_MAX_SIDE", environ, 1024 if space else 2048) if side is None else side
    upload = _flag("VITVIZ_ALLOW_UPLOAD", environ, False) if upload is None else upload
    limits: dict[str, Any] = {name: _number(one.variable, environ, one.default) for name, one in LIMITS.items()}
    named_limits = [(f"limit {one.variable}, in {one.unit}", limits[name]) for name, one in LIMITS.items()]
    for name, value in (("memory for models, in GB", gigabytes), ("longest side, in pixels", pixels), *named_limits):
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(f"Expected the {name}, as a number above 0; got {value}. Change the setting.")
    for name, one in LIMITS.items():
        limits[name] = limits[name] if name == "stall" else round(limits[name] * one.units)
    secret = environ.get("VITVIZ_SECRET", "").encode()
    if secret:
        if len(secret) < LEAST_SECRET:
            raise SettingsError(
                f"Expected at least {LEAST_SECRET} characters in VITVIZ_SECRET, got {len(secret)}. "
                "Make one with secrets.token_hex() of Python."
            )
        limits["secret"] = secret
    proxies = _number("VITVIZ_PROXIES", environ, 1 if space else 0)
    if proxies not in range(10):
        raise SettingsError(f"Expected a number of proxies from 0 to 9 in VITVIZ_PROXIES, got {proxies:g}. Change it.")
    here = listens in HERE_ONLY and not space and not shared(environ)
    return Settings(
        models=named if models is None else tuple(models),
        default=(environ.get("VITVIZ_DEFAULT", "") if default is None else default).strip(),
        typed=_flag("VITVIZ_ALLOW_TYPED", environ, here) if typed is None else typed,
        upload=upload,
        memory=round(gigabytes * GIGABYTE),
        side=round(pixels),
        hosts=_hosts(environ, here),
        frames=_list("VITVIZ_FRAMES", environ, ORIGIN) or (SPACES if space else ()),
        mcp=_flag("VITVIZ_MCP", environ, False) if mcp is None else mcp,
        port=_port(environ) if port is None else port,
        log=_flag("VITVIZ_LOG", environ, not here),
        proxies=round(proxies),
        **limits,
    )


def _hosts(environ: Mapping[str, str], here: bool) -> frozenset[str]:
    named = _list("VITVIZ_HOSTS", environ, HOST) or _list("SPACE_HOST", environ)
    if "*" in named or not (named or here):
        return frozenset()
    return frozenset(HERE_ONLY | {name.lower() for name in named})


def _list(name: str, environ: Mapping[str, str], form: str = ".*") -> tuple[str, ...]:
    parts = tuple(filter(None, (part.strip() for part in environ.get(name, "").split(","))))
    if wrong := [part for part in parts if not re.fullmatch(form, part)]:
        example = "https://example.org" if form is ORIGIN else "example.org"
        raise SettingsError(f"Expected names such as {example} in {name}, got {wrong[0]!r}. Change it.")
    return parts


def _port(environ: Mapping[str, str]) -> int | None:
    """Return the port that the environment names; many hosts say it as PORT."""
    name = "GRADIO_SERVER_PORT" if environ.get("GRADIO_SERVER_PORT", "").strip() else "PORT"
    text = environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdecimal() and 0 < int(text[:9]) < 2**16):
        raise SettingsError(f"Expected a port from 1 to 65535 in {name}, got {text!r}. Change or unset it.")
    return int(text) if text else None


def shared(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the operator has gradio make the page public: `GRADIO_SHARE=true`. Nothing else does."""
    return environ.get("GRADIO_SHARE", "").lower() == "true"


def _number(name: str, environ: Mapping[str, str], default: float) -> float:
    text = environ.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError as error:
        raise SettingsError(f"Expected a number in {name}, got {text!r}. Change or unset it.") from error


def _flag(name: str, environ: Mapping[str, str], default: bool) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise SettingsError(f"Expected 1 or 0 in {name}, got {text!r}. Change or unset it.")
    return text == "1" if text else default
