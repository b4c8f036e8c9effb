"""Say how the server is: `GET /healthz` for load balancers and containers, and a line of JSON for each request."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import datetime, timezone
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Scope

from vitviz import __version__
from vitviz.server.account import Resource
from vitviz.server.endpoints import Endpoints
from vitviz.server.gpu import BORROWED
from vitviz.server.scheduler import Kind

OUTCOME = "vitviz.outcome"  # of a scope: a dict in which the page's questions say what came of them
# Addresses as they are logged: names of files, scenes and sessions are left out.
GRADIO = r"gradio_api/(file|call/(v2/)?[a-z]+|[a-z_-]+(/[a-z]+)?)"
KNOWN = re.compile(rf"/(vitviz/[a-z]+|healthz|config|assets|static|{GRADIO})\b|/$")


def health_route(endpoints: Endpoints) -> Route:
    """Return the route `/healthz`, which answers without touching the model."""

    async def healthz(_request: Request) -> JSONResponse:
        return JSONResponse(health(endpoints), headers={"cache-control": "no-store"})

    return Route("/healthz", healthz, methods=["GET"])


def health(endpoints: Endpoints) -> dict[str, Any]:
    """Return whether photographs are taken, by what, and how much waits.

    "ready" is whether a photograph of a new visitor would be taken now rather than refused; "seconds" is how long it
    would wait. "scenes" is what open photographs and answers hold.
    """
    scheduler, loaded = endpoints.scheduler, endpoints.loaded.begin(endpoints.menu.default)
    ready = loaded.done() and loaded.exception() is None
    device = next(loaded.result().explorer.model.parameters()).device.type if ready else None
    account = endpoints.account
    return {
        "ready": ready and account.fits(Resource.PHOTOGRAPHS, ""),
        "version": __version__,
        "model": endpoints.menu.entry(endpoints.menu.default).title,
        "device": "zerogpu" if BORROWED else device,
        "queue": {
            "waiting": scheduler.waiting,
            "most": account.budgets[Resource.PHOTOGRAPHS].total,
            "seconds": round(scheduler.seconds(Kind.PHOTO), 1),
        },
        "scenes": {
            "bytes": account.used(Resource.SCENES),
            "most": account.budgets[Resource.SCENES].total,
            "evicted": endpoints.shelf.evicted,
        },
    }


class RequestLog:
    """Write a line of JSON for each request: when, what, how it ended, and how many seconds it took.

    No address of a visitor, no name of a file, nothing of a photograph.

    Args:
        out: where to; standard error by default.
    """

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out

    def write(self, scope: Scope, status: int, began: float) -> None:
        """Write the line of a request.

        Args:
            scope: of the request.
            status: of the answer; 0 where the client left before there was one.
            began: when it came, by `time.perf_counter`.
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
