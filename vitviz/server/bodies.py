"""Read request bodies: JSON of bounded size, and forms in UTF-8 whose file stays in memory."""

from __future__ import annotations

import json
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse

from vitviz.phrases import Phrase, with_phrases
from vitviz.server.arguments import MAX_PHOTO_BYTES

JSON_BYTES = 2**16
JSON_VALUES = 30_000
LIST_BYTES = 2**18  # a form's field with a long list of numbers
FORM_BYTES = 2**19  # a form without its file
MAX_FIELDS = 4


class Refused(Exception):
    """Raised to refuse a request before any work is done; `response` has the message as answers have errors."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.response = JSONResponse(
            with_phrases({"error": {"kind": "refused", "text": text}}),
            status,
            {name.replace("_", "-"): value for name, value in headers.items()},
        )


def json_value(name: str, text: str | bytes) -> Any:
    """Return the value of a JSON text, whose size is checked before it is parsed: each value takes much memory.

    Raises:
        Refused: if it is not JSON, is too long, or has too many values.
    """
    text = text.encode() if isinstance(text, str) else text
    values = sum(map(text.count, (b",", b"[", b"{")))
    if len(text) > JSON_BYTES or values > JSON_VALUES:
        text = "Expected at most {0} kB and {1} values of JSON as the {2}, got more. Send less."
        raise Refused(413, Phrase("json-too-large", text, JSON_BYTES // 1024, f"{JSON_VALUES:,}", name))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"Expected JSON as the {name}, got something else. Correct it.") from error


class _InMemory(MultiPartParser):
    """Parser that writes no photograph to disk."""

    spool_max_size = MAX_PHOTO_BYTES + FORM_BYTES


async def read_form(request: Request, on_disk: bool = False) -> FormData:
    """Return a form with at most one file; a client's charset is never looked up, because some take minutes to decode.

    Raises:
        Refused: if the body is not a form, or is not in UTF-8.
        OSError: if the disk is full.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise Refused(415, "Expected a body of type multipart/form-data in UTF-8. Send it so.")
    parser = MultiPartParser if on_disk else _InMemory
    limits = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": LIST_BYTES}
    try:
        return await parser(request.headers, request.stream(), **limits).parse()
    except MultiPartException as error:
        raise Refused(400, f"Expected a form with at most one file, got another. {error.message}") from error
