"""What the operator of a page allows: which models, how much memory, how large an input."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HERE_ONLY = {"127.0.0.1", "localhost", "::1"}
GIGABYTE = 10**9


class SettingsError(ValueError):
    """A setting that makes no sense; the text names it and says what was expected."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What visitors of this page may do.

    Args:
        models: models of the operator in the menu: anything that `vitviz.load` takes, folders and files included.
        typed: whether visitors may name models of torchvision, timm and Hugging Face that are not in the menu. Each
            is downloaded to this machine's disk.
        upload: whether visitors may upload checkpoints.
        memory: for loaded models, in bytes; the least recently used go first.
        side: the longest side of an input that visitors may ask for, in pixels.
    """

    models: tuple[str, ...] = ()
    typed: bool = True
    upload: bool = False
    memory: int = 4 * GIGABYTE
    side: int = 2048


def settings(
    *,
    host: str | None = None,
    models: Sequence[str] | None = None,
    typed: bool | None = None,
    upload: bool | None = None,
    memory: float | None = None,
    side: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings that hold here: what is given, else the environment's, else what is safe where the page is served.

    | argument | environment | where nothing is said |
    |---|---|---|
    | models | VITVIZ_MODELS, separated by commas | none |
    | typed | VITVIZ_ALLOW_TYPED=1 or 0 | yes on this machine only; no on a Space, for another host, or shared |
    | upload | VITVIZ_ALLOW_UPLOAD=1 or 0 | no |
    | memory, in GB | VITVIZ_MODEL_MEMORY | 4 |
    | side, in pixels | VITVIZ_MAX_SIDE | 2048; 1024 on a Space |

    Args:
        host: the address that the page listens on; `GRADIO_SERVER_NAME` or this machine only by default.
        environ: the environment; a Space is known by its `SPACE_ID`.

    Raises:
        SettingsError: for a value that is none.
    """
    space = bool(environ.get("SPACE_ID"))
    listens = host or environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    named = [name.strip() for name in environ.get("VITVIZ_MODELS", "").split(",")]
    gigabytes = _number("VITVIZ_MODEL_MEMORY", environ, 4.0) if memory is None else memory
    pixels = _number("VITVIZ_MAX_SIDE", environ, 1024 if space else 2048) if side is None else side
    for name, value in (("memory for models, in GB", gigabytes), ("longest side, in pixels", pixels)):
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(f"Expected the {name}, as a number above 0; got {value}.")
    here = listens in HERE_ONLY and not space and not shared(environ)
    return Settings(
        models=tuple(filter(None, named)) if models is None else tuple(models),
        typed=_flag("VITVIZ_ALLOW_TYPED", environ, here) if typed is None else typed,
        upload=_flag("VITVIZ_ALLOW_UPLOAD", environ, False) if upload is None else upload,
        memory=round(gigabytes * GIGABYTE),
        side=round(pixels),
    )


def shared(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the operator has gradio make the page public: `GRADIO_SHARE=true`. Nothing else does."""
    return environ.get("GRADIO_SHARE", "").lower() == "true"


def _number(name: str, environ: Mapping[str, str], default: float) -> float:
    text = environ.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError as error:
        raise SettingsError(f"{name}: expected a number, got {text!r}.") from error


def _flag(name: str, environ: Mapping[str, str], default: bool) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise SettingsError(f"{name}: expected 1 or 0, got {text!r}.")
    return text == "1" if text else default
