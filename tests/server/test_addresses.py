"""Who a visitor is, and what of an operator's folder is left alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from vitviz.server.account import Account
from vitviz.server.firewall import Firewall
from vitviz.server.settings import Settings
from vitviz.server.uploads import UploadFolder, remove_leftovers


def seen(place: Path, proxies: int, forwarded: str | None, path: str = "/config") -> tuple[str, str | None]:
    """Return the address and the header with which a request reaches gradio."""
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        found.append((scope["client"][0], headers.get(b"x-forwarded-for", b"").decode() or None))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Any) -> None:
        return

    allowed = Settings(proxies=proxies, mcp=True)
    firewall = Firewall(
        app, uploads=UploadFolder(place), account=Account(), max_file=1, allowed=allowed, busy=lambda _: ""
    )
    headers = [(b"host", b"localhost")] + ([(b"x-forwarded-for", forwarded.encode())] if forwarded else [])
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("10.0.0.1", 1),
    }
    asyncio.run(firewall(scope, receive, send))
    return found[0]


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
    assert seen(tmp_path, proxies, forwarded)[0] == address


def test_a_tool_is_called_in_the_name_of_its_visitor(tmp_path: Path) -> None:
    """Gradio passes the headers of a tool's request on to its own server."""
    assert seen(tmp_path, 0, "6.6.6.6", "/gradio_api/mcp/") == ("10.0.0.1", "10.0.0.1")


def test_folders_of_the_operator_are_left_alone_at_the_start(tmp_path: Path) -> None:
    own = ["uploads-1", "uploads-old", "vitviz-uploads-mine", "vitviz-uploads-1-0123456x"]
    for name in own:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    without_lock = tmp_path / "vitviz-uploads-7-01234567"
    without_lock.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "vitviz-uploads-8-01234567"
    link.symlink_to(target)
    link.with_name(f"{link.name}.lock").touch()
    left = tmp_path / "vitviz-uploads-9-01234567"
    left.mkdir()
    left.with_name(f"{left.name}.lock").touch()
    remove_leftovers(tmp_path)
    assert all((tmp_path / name / "file").exists() for name in own)
    assert without_lock.exists()
    assert target.exists()
    assert os.path.lexists(link)
    assert not left.exists()
