"""The address of a visitor: of the connection, or as the operator's proxies forward it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import run_async
from starlette.datastructures import Headers
from starlette.responses import Response

from vitviz.server.account import Account
from vitviz.server.firewall import Firewall
from vitviz.server.settings import Settings
from vitviz.server.uploads import UploadFolder


def as_seen(place: Path, proxies: int, forwarded: str | None, path: str = "/config") -> tuple[str, str | None]:
    """Return the address and the header with which a request reaches gradio."""
    seen: list[tuple[str, str | None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], Headers(scope=scope).get("x-forwarded-for")))
        await Response()(scope, receive, send)

    allowed = Settings(proxies=proxies, mcp=True)
    firewall = Firewall(
        app, uploads=UploadFolder(place), account=Account(), max_file=1, allowed=allowed, busy=lambda _: ""
    )

    async def ask() -> None:
        transport = httpx.ASGITransport(firewall, client=("10.0.0.1", 1))
        async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as client:
            await client.get(path, headers={"x-forwarded-for": forwarded} if forwarded else {})

    run_async(ask)
    return seen[0]


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "6.6.6.6", "10.0.0.1"),
        (1, None, "10.0.0.1"),
        (1, "6.6.6.6, 7.7.7.7, 1.2.3.4", "1.2.3.4"),
        (2, "6.6.6.6, 1.2.3.4, 5.5.5.5", "1.2.3.4"),
        (2, "1.2.3.4", "10.0.0.1"),
    ],
)
def test_only_entries_of_the_operators_proxies_are_believed(
    proxies: int, forwarded: str | None, address: str, tmp_path: Path
) -> None:
    assert as_seen(tmp_path, proxies, forwarded)[0] == address


def test_a_tool_is_called_in_the_name_of_its_visitor(tmp_path: Path) -> None:
    # Gradio passes the headers of a tool's request on to its own server.
    assert as_seen(tmp_path, 0, "6.6.6.6", "/gradio_api/mcp/") == ("10.0.0.1", "10.0.0.1")
