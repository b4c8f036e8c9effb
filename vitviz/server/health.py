"""Report the server's state: `GET /healthz` for load balancers and containers, and a line of JSON for each request."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import datetime, timezone
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from vitviz import __version__
from vitviz.server.endpoints import Endpoints
from vitviz.server.gpu import BORROWED
from vitviz.server.jobs import Kind

OUTCOME = "vitviz.outcome"  # scope key of a dict in which a question records its outcome
# Paths as they are logged, without names of files, scenes and sessions.
GRADIO = r"gradio_api/(file|call/(v2/)?[a-z]+|[a-z_-]+(/[a-z]+)?)"
KNOWN = re.compile(rf"/(vitviz/[a-z]+|healthz|config|{GRADIO})\b|/$")


async def healthz(endpoints: Endpoints, _request: Request) -> JSONResponse:
    """Return the server's state without running the model."""
    return JSONResponse(health(endpoints), headers={"cache-control": "no-store"})


def health(endpoints: Endpoints) -> dict[str, Any]:
    """Return whether the server accepts photographs, its model and device, its queue and its cache.

    "ready" is whether a new visitor's photograph would be accepted now; "seconds" is the expected wait. "scenes"
    describes the cache of open photographs and answers.
    """
    jobs, loaded = endpoints.jobs, endpoints.loaded.begin(endpoints.menu.default)
    ready = loaded.done() and loaded.exception() is None
    device = next(loaded.result().explorer.model.parameters()).device.type if ready else None
    cache = endpoints.cache
    return {
        "ready": ready and jobs.has_place(Kind.PHOTO),
        "version": __version__,
        "model": endpoints.menu.entry(endpoints.menu.default).title,
        "device": "zerogpu" if BORROWED else device,
        "queue": {
            "waiting": jobs.waiting,
            "most": jobs.most,
            "seconds": round(jobs.ahead(Kind.PHOTO)[1], 1),
        },
        "scenes": {
            "bytes": cache.used,
            "most": cache.budget,
            "evicted": cache.evicted,
        },
    }


class RequestLog:
    """Write a line of JSON for each request: its time, path, status, outcome and duration in seconds.

    Lines contain no visitor's address, no file name, and nothing about a photograph.

    Args:
        out: destination; by default standard error.
    """

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out

    def write(self, scope: Scope, status: int, began: float) -> None:
        """Write the line of a request.

        Args:
            scope: the request's ASGI scope.
            status: HTTP status of the answer; 0 if the client left before it.
            began: start of the request by `time.perf_counter`.
        """
        known = KNOWN.match(str(scope["path"]))
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "method": scope["method"] if len(scope["method"]) < 8 else "other",
            "path": known[0] if known else "other",
            "status": status,
            "seconds": round(time.perf_counter() - began, 4),
            **scope[OUTCOME],
        }
        print(json.dumps(line), file=self._out or sys.stderr, flush=True)
