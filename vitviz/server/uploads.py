"""Hold what API clients send and fetch, by unguessable names: photographs and long answers, in the cache's memory.

Nothing is written to disk: photographs are private, they show places and faces.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from vitviz.errors import VitvizError
from vitviz.images.limits import format_of
from vitviz.server.bodies import JSON_BYTES, Refused
from vitviz.server.scenes import Cache

ANSWER_SECONDS = 120.0
STORED = "https://uploads.invalid/"  # prefix of photographs in calls of tools; Gradio's tools accept files only as URLs
NO_SUCH_UPLOAD = "Expected a file that was uploaded to this page and is still there. Upload it again."
NO_PICTURE = "Expected a picture (JPEG, PNG or WebP), got something else. Choose another file."
_DATA_URL = re.compile(rb'"data:[^"]*"')


class UploadError(VitvizError):
    """Raised for a file that this page does not accept or does not have; the text says what to do."""


class Uploads:
    """Photographs that API clients have uploaded, and answers that they have not yet fetched.

    Args:
        cache: holds them within its budget.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def add(self, data: bytes) -> str:
        """Store a photograph's file and return its name.

        Raises:
            UploadError: if it is not a picture.
        """
        if format_of(data[:512]) is None:
            raise UploadError(NO_PICTURE)
        name = secrets.token_hex(16)
        self._cache.put((None, f"upload {name}"), data)
        return name

    def read(self, name: object) -> bytes:
        """Return a photograph's file.

        Raises:
            UploadError: for any other name, with one message for all.
        """
        data: bytes | None = self._cache.get((None, f"upload {name}")) if isinstance(name, str) else None
        if data is None:
            raise UploadError(NO_SUCH_UPLOAD)
        return data

    def checked(self, payload: Any) -> Any:
        """Return a request's data in which each file, at any depth, has only its name: Gradio reads paths and URLs.

        Raises:
            UploadError: if a file was not uploaded.
        """
        if isinstance(payload, Mapping):
            if isinstance(path := payload.get("path"), str):
                self.read(name := path.removeprefix(STORED))
                return {"path": name}
            return {name: self.checked(value) for name, value in payload.items()}
        if isinstance(payload, Sequence) and not isinstance(payload, str):
            return [self.checked(value) for value in payload]
        return payload

    def without_photographs(self, body: bytes) -> bytes:
        """Store the pictures in a tool's request, and return it with a URL of `STORED` for each `data:` URL.

        Raises:
            UploadError: if one is not a picture.
        """

        def stored(match: re.Match[bytes]) -> bytes:
            try:
                data = base64.b64decode(match[0][1:-1].partition(b",")[2], validate=True)
            except ValueError as error:
                raise UploadError(NO_PICTURE) from error
            return json.dumps(STORED + self.add(data)).encode()

        return _DATA_URL.sub(stored, body)

    # Answers

    def offer(self, answer: Any) -> Any:
        """Return an answer for an API client; a long one is stored, and its address is returned.

        Gradio keeps answers that its clients do not fetch.
        """
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if len(content) > JSON_BYTES:
            key = None, f"answer {(name := secrets.token_hex(16))}"
            self._cache.put(key, (content, "octet-stream" if content is answer else "json"))
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._cache.pop, key)
            address = f"/vitviz/answer/{name}"
            return address if isinstance(answer, bytes) else {"answer": address}
        return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer

    async def fetch(self, request: Request) -> Response:
        """Send a long answer, once."""
        stored = self._cache.pop((None, f"answer {request.path_params['name']}"))
        if stored is None:
            raise Refused(404, "Expected an answer of the last two minutes that was not fetched. Ask again.")
        content, kind = stored
        return Response(content, media_type=f"application/{kind}", headers={"cache-control": "no-store"})
