"""List the page's languages, and look up texts in a language."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FILES = sorted((Path(__file__).parent / "core").glob("??.json"))  # named by two letters
LANGUAGES = sorted((file.stem for file in _FILES), key=lambda language: (language != "en", language))
"""Language codes, English first."""


def texts_in(language: str, texts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return texts in a language; missing texts are in English.

    Args:
        language: one of `LANGUAGES`.
        texts: by language and name; names can be nested.
    """
    return _completed(texts.get(language, {}), texts["en"])


def _completed(own: dict[str, Any], english: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _completed(own.get(name, {}), text) if isinstance(text, dict) else own.get(name, text)
        for name, text in english.items()
    }
