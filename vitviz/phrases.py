"""Phrases that the page translates: English text with a key and values.

Python, the command line and API clients see the English. The page receives it as well, and with it the key under which
`vitviz/web/core/zh.json` and other languages have the translation.
"""

from __future__ import annotations

from typing import Any


class Phrase(str):
    """English text that knows its key and values.

    Args:
        key: name of the text in the files of other languages.
        english: the text, with `{0}`, `{1}`, ... for the values.
        values: texts or numbers; phrases among them are translated as well.
    """

    key: str
    values: tuple[Any, ...]

    def __new__(cls, key: str, english: str, *values: Any) -> Phrase:
        """Fill the values in."""
        phrase = super().__new__(cls, english.format(*values) if values else english)
        phrase.key, phrase.values, phrase._english = key, values, english
        return phrase

    _english: str

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return the arguments with which pickle makes a copy."""
        return self.key, self._english, *self.values


def sentences(*texts: str) -> str:
    """Join sentences, without those that are empty."""
    first, *rest = [text for text in texts if text] or [""]
    return Phrase("sentences", "{0} {1}", first, sentences(*rest)) if rest else first


def items(texts: list[str]) -> str:
    """Join items with commas."""
    first, *rest = texts or [""]
    return Phrase("items", "{0}, {1}", first, items(rest)) if rest else first


def phrases(data: Any) -> dict[str, dict[str, Any]]:
    """Return key and values of all phrases in JSON data, by their English."""
    found: dict[str, dict[str, Any]] = {}

    def collect(data: Any) -> None:
        if isinstance(data, Phrase):
            found[str(data)] = {"key": data.key, "values": list(data.values)}
            collect(data.values)
        elif isinstance(data, dict):
            collect([*data.values()])
        elif isinstance(data, list | tuple):
            for each in data:
                collect(each)

    collect(data)
    return found


def text_of(error: Exception) -> str:
    """Return an error's message, with its key if it has one."""
    return error.args[0] if error.args and isinstance(error.args[0], Phrase) else str(error)


def packed(text: Any) -> Any:
    """Return a text as JSON data with its key, for another process; texts without a key and numbers as they are."""
    return [*map(packed, text.__getnewargs__())] if isinstance(text, Phrase) else text


def unpacked(data: Any) -> Any:
    """Return the text of `packed`."""
    return Phrase(*map(unpacked, data)) if isinstance(data, list) else data


def with_phrases(data: dict[str, Any]) -> dict[str, Any]:
    """Return JSON data with its phrases, for the page."""
    found = phrases(data)
    return {**data, "phrases": found} if found else data
