"""Test the page's files: what is shown before the script runs, and how files are sent."""

import gzip
import re
from collections.abc import Iterator

import brotli
import httpx
import pytest
from browsing import new_page
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import Gate, Running, complete, expect_first_view, settled

from vitviz.web import bundle


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Return one client, because each new one reads all certificates."""
    with httpx.Client() as client:
        yield client


def test_files_are_compressed_and_their_names_change_with_their_content(app: Running, client: httpx.Client) -> None:
    named = re.compile(r"vitviz/files/[\w.]+").findall
    names = named(client.get(app.url).text)
    (script,) = {name for name in names if name.endswith(".js")}
    names += named(client.get(f"{app.url}{script}").text)
    assert len(names) >= 5
    for name in names:
        plain = client.get(f"{app.url}{name}", headers={"accept-encoding": "identity"})
        assert plain.status_code == 200, name
        assert "immutable" in plain.headers["cache-control"], name
        for encoding, decode in (("br", brotli.decompress), ("gzip", gzip.decompress)):
            with client.stream("GET", f"{app.url}{name}", headers={"accept-encoding": encoding}) as sent:
                data, used = b"".join(sent.iter_raw()), sent.headers.get("content-encoding")
            assert (decode(data) if used == encoding else data) == plain.content, name
            assert used == (encoding if name.endswith(".js") else None), name
    other = client.get(f"{app.url}vitviz/files/page.00000000.js")  # the address in the HTML of another replica
    assert b"vitvizExplorer" in other.content
    assert client.get(f"{app.url}vitviz/files/photo.00000000.webp").status_code == 404


def test_first_view_is_only_shown_if_the_address_names_nothing_else(page: Browser, app: Running) -> None:
    gate = Gate(page, "**/files/page.*.js")
    for address, first in (("?lang=zh&theme=dark", 1), ("?image=Dog", 0)):
        page.goto(app.url + address)
        expect(page.locator(".vv.dark")).to_have_count(first)
        expect(page.locator(".vv-first")).to_have_count(first)
    gate.open()


def test_page_is_read_before_its_script_runs_and_nothing_moves(page: Browser, app: Running) -> None:
    expect_first_view(page, app.url)


def test_parts_of_the_page_are_loaded_when_they_are_needed(page: Browser, app: Running) -> None:
    loaded: list[str] = []
    page.on("requestfinished", lambda request: loaded.extend(re.findall(r"files/(\w+)\.\w+\.js", request.url)))
    page.goto(app.url)
    complete(page)
    settled(page)
    assert loaded == ["page"]
    page.locator("[data-do=lang]").click()
    lead = page.locator(".vv-lead")
    expect(lead).to_have_text("看看图像模型在看哪里")
    page.locator("[data-tab=lecture][role=tab]").click()
    expect(page.locator(".vv-lecture h2").first).to_have_text("一张照片，一个答案")
    page.locator("[data-do=lang]").click()
    expect(lead).to_have_text("See what an image model looks at")
    page.locator("[data-do=lang]").click()
    expect(lead).to_have_text("看看图像模型在看哪里")
    assert loaded == ["page", "zh", "lecture"]


def test_photograph_and_modules_are_loaded_once_and_before_scripts_ask(page: Browser, app: Running) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.removeprefix(app.url)))
    answer = page.goto(app.url)
    complete(page)
    assert answer
    links = dict(re.findall(r"<([^>]+)>; rel=(\w+)", answer.headers["link"]))
    assert sum(kind == "modulepreload" for kind in links.values()) > 3
    assert [kind for name, kind in links.items() if "/photo." in name] == ["preload"]
    assert all(requests.count(name) == 1 for name in links)
    elsewhere = page.request.get(f"{app.url}?image=Dog")
    assert "link" not in elsewhere.headers


def test_page_opens_in_the_language_of_the_browser(browser: Chromium, app: Running) -> None:
    with new_page(browser, locale="zh-CN") as page:
        for address, text in (("", "看看图像模型在看哪里"), ("?lang=en", "See what an image model looks at")):
            page.goto(app.url + address)
            expect(page.locator(".vv-lead")).to_have_text(text)


def test_part_that_was_lost_is_loaded_again_on_request(page: Browser, app: Running) -> None:
    parts = re.compile(r"files/(lecture|zh)\.")
    page.route(parts, lambda route: route.abort())
    page.goto(f"{app.url}?tab=lecture&lang=zh&step=2")
    message = page.locator("#notice")
    expect(message).to_contain_text("Could not load a part of the page. The server does not answer.")
    expect(page.locator(".vv-lecture > *")).to_have_count(0)
    settled(page)
    page.unroute(parts)
    message.get_by_role("button", name="Try again").click()
    expect(page.locator(".vv-lecture h2").first).to_have_text("照片变成像素")
    expect(page.locator(".vv-lead")).to_have_text("看看图像模型在看哪里")
    expect(message).to_be_hidden()


def test_links_to_pages_have_a_preview() -> None:
    assert "@@head@@" in (bundle.HERE / "index.html").read_text(encoding="utf-8")  # of static sites
    assert f'<meta property="og:description" content="{bundle.LEAD}">' in bundle.preview("preview.jpg")


def test_gradios_page_is_compressed(app: Running, client: httpx.Client) -> None:
    assert client.get(app.url, headers={"accept-encoding": "gzip"}).headers["content-encoding"] == "gzip"
