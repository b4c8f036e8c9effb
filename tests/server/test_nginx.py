"""The app behind nginx with the file that docs/hosting.md names: under a path, and beside a server that is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from attacked import PATIENCE, ROOT
from offered import photograph
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from proxied import free_port, nginx
from running import Running, click_patch, expect_map, own_photograph, ready, upload

PREFIX = "/vitviz"


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """An app beside a server that is gone, and the address that nginx gives it: the path of docs/hosting.md."""
    guide = (ROOT / "docs" / "hosting.md").read_text(encoding="utf-8")
    location = guide.partition("```nginx\n")[2].partition("```")[0]
    assert f"location {PREFIX}/" in location
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("GRADIO_ROOT_PATH", PREFIX)
        app = Running(frames=("http://localhost:*",))
    port = int(app.url.rstrip("/").rpartition(":")[2])
    with nginx(tmp_path_factory.mktemp("nginx"), (port, free_port()), location) as proxy:
        yield app, f"http://127.0.0.1:{proxy.port}{PREFIX}/"
    app.close()


def ask(url: str, name: str, given: dict[str, Any], photo: bytes | None = None) -> tuple[dict[str, Any], bytes]:
    """The last line of an answer, and the bytes behind it."""
    form = {"ask": json.dumps(given), **({} if photo is None else {"source": "{}"})}
    files = {"nothing": (None, "")} if photo is None else {"photo": ("photo", photo)}
    answer = httpx.post(f"{url}vitviz/{name}", data=form, files=files, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    rest = answer.content
    while True:
        line, _, rest = rest.partition(b"\n")
        found = json.loads(line)
        if "progress" not in found:
            return found, rest


def test_questions_are_answered_under_a_path_beside_a_server_that_is_gone(behind: tuple[Running, str]) -> None:
    app, url = behind
    page = httpx.get(url, timeout=PATIENCE)
    assert page.status_code == 200
    assert f'"root":"{url.rstrip("/")}"' in page.text  # where the page looks for its files
    assert "frame-ancestors 'self' http://localhost:*" in page.headers["content-security-policy"]
    for seed in range(3):  # each worker of nginx comes upon the server that is gone
        photo = photograph(seed)
        opened, _ = ask(url, "open", {}, photo)
        block, data = ask(url, "block", {"scene": opened["data"]["id"], "block": 0})
        assert len(data) == block["bytes"] > 0
    bare = app.url.rstrip("/")
    for address in (f"{url}healthz", f"{bare}/healthz", f"{bare}{PREFIX}/healthz"):  # the last is not cut off
        assert httpx.get(address, timeout=PATIENCE).json()["ready"]
    assert ask(f"{bare}{PREFIX}/", "models", {})[0]["data"]["groups"]


@pytest.mark.parametrize("proxied", [True, False], ids=["cut off by nginx", "not cut off"])
def test_a_page_under_a_path_takes_a_photograph_and_explains_it(
    page: Browser, behind: tuple[Running, str], proxied: bool, tmp_path: Path
) -> None:
    app, url = behind
    if not proxied:  # as by a gateway that passes paths on as they are
        url = f"{app.url.rstrip('/')}{PREFIX}/"
    ready(page, f"{url.rstrip('/')}?color=magma")  # as people type it
    assert page.url.startswith(f"{url}?")
    photo = own_photograph(tmp_path)
    upload(page, photo)
    seen = app.view(photo)
    expect_map(page, seen.attention())
    click_patch(page, seen, 3, 4)
    expect_map(page, seen.attention(query=(3, 4)))
    page.get_by_role("tab", name="Explain").click()
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()
    expect(page.locator(".vv-trouble:visible, .vv-message:visible")).to_have_count(0)
    page.reload()  # the photograph is kept by the browser
    page.wait_for_function("window.vitviz?.drawn > 0")
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()
