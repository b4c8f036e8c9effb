"""Receive request bodies and send answers; both are bounded, booked, and aborted if a client stalls.

Forms must be in UTF-8: a client could name a codec that takes arbitrarily long to decode.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import IO, Any

import anyio
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from vitviz.server.account import Booking, OverBudgetError, Resource

MAX_FIELDS = 4
MAX_NAME = 200  # bytes in the name of a field or file
FIELD_BYTES = 2**20  # all fields together, without the file
SLOW_BYTES, SLOW_SECONDS = 20_000, 30.0  # bodies with fewer bytes in this time are refused
BODY_SECONDS = 300  # time limit for receiving a request body
RETRY = 10  # seconds after which a refused client may try again
PIECE = 2**15  # bytes of an answer that are sent at once


class Refused(Exception):
    """Raised to refuse a request before any work is done."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(
            text, status, {name.replace("_", "-"): value for name, value in headers.items()}
        )


class Stalled(Exception):
    """Raised if a client does not read its answer."""


def busy(what: str) -> Refused:
    """Return the error for a request that exceeds a limit."""
    return Refused(429, f"Busy: {what}. Try again in {RETRY} s.", retry_after=str(RETRY))


def address(scope: Scope) -> str:
    """Return the client's address."""
    return str(scope["client"][0]) if scope.get("client") else ""


# Requests


async def chunks(
    receive: Receive,
    most: int,
    booking: Booking,
    stall: float,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a request's body; book each before receiving the next.

    Args:
        receive: the request's ASGI callable.
        most: largest allowed body, in bytes.
        booking: booking to which received bytes are added.
        stall: seconds within which the next part must arrive.
        clock: returns the time in seconds.

    Raises:
        Refused: if the body is too long or too slow, the budget has no room, or the client has left.
    """
    count, window, seen = 0, clock(), 0
    while True:
        try:
            with anyio.fail_after(stall):
                message = await receive()
        except TimeoutError as error:
            raise Refused(408, f"Expected the next part of the request within {stall:g} s. Send it again.") from error
        if message["type"] == "http.disconnect":
            raise Refused(400, "Expected a complete request, got a part of it. Send it again.")
        body = message.get("body", b"")
        count += len(body)
        if count > most:
            raise Refused(413, f"Expected a request of at most {most / 10**6:.0f} MB. Send less.")
        try:
            booking.add(len(body))
        except OverBudgetError as error:
            full = error.resource is Resource.DISK
            raise Refused(507, str(error)) if full else busy("too much is being sent") from error
        yield body
        if not message.get("more_body", False):
            return
        if (now := clock()) - window >= SLOW_SECONDS:
            if count - seen < SLOW_BYTES:
                raise Refused(408, f"Expected {SLOW_BYTES:,} bytes in {SLOW_SECONDS:g} s, got fewer. Send it again.")
            window, seen = now, count


def json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that a body contains.

    Raises:
        Refused: if it contains none.
    """
    try:
        content = json.loads(body.decode())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused(400, "Expected a JSON object as the body.")
    return content


@dataclass
class Form:
    """Form with at most one file.

    Attributes:
        fields: text fields by name.
        files: the file by its field name; empty if there is none.
        filename: name of the file on the client's machine.
    """

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, IO[bytes]] = field(default_factory=dict)
    filename: str = ""


async def read_form(
    headers: Headers, body: AsyncGenerator[bytes, None], most: int, target: IO[bytes] | None = None
) -> Form:
    """Read a form.

    Args:
        headers: the request's headers.
        body: parts of the request's body.
        most: largest allowed body, in bytes.
        target: file on disk that receives the form's file; by default it stays in memory.

    Raises:
        Refused: if the body is not a form, is too large, or is not in UTF-8.
        OSError: if the disk is full.
    """
    kind, options = parse_options_header(headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise Refused(415, "Expected a body of type multipart/form-data.")
    charset = options.get(b"charset", b"utf-8").lower()
    if charset not in (b"utf-8", b"utf8"):
        raise Refused(415, "Expected a form in UTF-8, got another charset. Send it in UTF-8.")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise Refused(413, f"Expected a file of at most {most // 10**6} MB. Send a smaller one.")
    wrong = Refused(400, "Expected a form with at most one file.")
    if not options.get(b"boundary"):
        raise wrong
    reader = _Reader(target)
    try:
        parser = MultipartParser(options[b"boundary"], reader.callbacks())
        async for part in body:
            parser.write(part)
            await reader.flush()
        parser.finalize()
        return reader.form()
    except (FormParserError, UnicodeDecodeError, _WrongForm) as error:
        raise wrong from error


class _WrongForm(Exception):
    """Raised for a form with more than one file, too many fields, or names that are too long."""


class _Reader:
    """Collect the parts of a form from the parser, which limits the headers of each part."""

    def __init__(self, target: IO[bytes] | None) -> None:
        self._target, self._on_disk = target or io.BytesIO(), target is not None
        self._fields: dict[str, bytearray] = {}
        self._pending = bytearray()  # part of the file that is not written yet
        self._file = self._filename = ""
        self._part: bytearray = self._pending
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""

    def callbacks(self) -> Any:
        """Return the parser's callbacks."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_part_data": self._add,
        }

    def _begin(self) -> None:
        self._disposition = b""

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        name, filename = options.get(b"name"), options.get(b"filename")
        if name is None or len(name) > MAX_NAME:
            raise _WrongForm
        if filename is None:
            self._part = self._fields.setdefault(name.decode(), bytearray())
            if len(self._fields) > MAX_FIELDS:
                raise _WrongForm
        else:
            if self._file or len(filename) > MAX_NAME:
                raise _WrongForm
            self._file, self._filename, self._part = name.decode() or "file", filename.decode(), self._pending

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._part += data[start:end]
        if self._part is not self._pending and sum(map(len, self._fields.values())) > FIELD_BYTES:
            raise _WrongForm

    async def flush(self) -> None:
        """Write the received part of the file."""
        if self._pending:
            if self._on_disk:
                await anyio.to_thread.run_sync(self._target.write, bytes(self._pending))
            else:
                self._target.write(self._pending)
            self._pending.clear()

    def form(self) -> Form:
        """Return the complete form."""
        fields = {name: data.decode() for name, data in self._fields.items()}
        self._target.seek(0)
        return Form(fields, {self._file: self._target} if self._file else {}, self._filename)


# Answers


async def send_in_pieces(send: Send, message: Message, stall: float) -> None:
    """Send an ASGI message, and split long bodies into pieces; each piece must be read within `stall` seconds.

    Raises:
        Stalled: if the client does not read.
    """
    body = memoryview(message.get("body", b""))
    for start in range(0, max(1, len(body)), PIECE):
        piece = dict(message)
        if len(body) > PIECE:
            piece["body"] = bytes(body[start : start + PIECE])
            piece["more_body"] = message.get("more_body", False) or start + PIECE < len(body)
        try:
            with anyio.fail_after(stall):
                await send(piece)
        except TimeoutError as error:
            raise Stalled from error


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
