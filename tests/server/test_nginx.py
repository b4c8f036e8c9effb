"""The app behind nginx with the file that docs/hosting.md names: under a path, and beside a server that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from asking import Visitor, free_port
from attacked import ROOT
from offered import photograph
from patience import patience
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from proxied import nginx
from running import Running, click_patch, expect_map, own_photograph, ready, upload

pytestmark = pytest.mark.tier("all")

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


def visitor(url: str) -> Visitor:
    visitor = Visitor()
    visitor.client = httpx.Client(base_url=url, timeout=patience(60))
    return visitor


def test_questions_are_answered_under_a_path_beside_a_server_that_is_gone(behind: tuple[Running, str]) -> None:
    app, url = behind
    proxied, bare = visitor(url), app.url.rstrip("/")
    page = proxied.client.get("")
    assert page.status_code == 200
    assert f'"root":"{url.rstrip("/")}"' in page.text  # where the page looks for its files
    assert "frame-ancestors 'self' http://localhost:*" in page.headers["content-security-policy"]
    for seed in range(3):  # each worker of nginx comes upon the server that is gone
        scene = proxied.ask("open", photo=photograph(seed), source={})["data"]["id"]
        assert proxied.ask("block", {"scene": scene, "block": 0})[:4] == b"VVB1"
    for address in (f"{url}healthz", f"{bare}/healthz", f"{bare}{PREFIX}/healthz"):  # the last is not cut off
        assert httpx.get(address, timeout=patience(60)).json()["ready"]
    assert visitor(f"{bare}{PREFIX}/").ask("models")["data"]["groups"]


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
    view = app.view(photo)
    expect_map(page, view.attention())
    click_patch(page, view, 3, 4)
    expect_map(page, view.attention(query=(3, 4)))
    page.get_by_role("tab", name="Explain").click()
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()
    expect(page.locator(".vv-trouble:visible, .vv-message:visible")).to_have_count(0)
    page.reload()  # the photograph is kept by the browser
    page.wait_for_function("window.vitviz?.drawn > 0")
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()
