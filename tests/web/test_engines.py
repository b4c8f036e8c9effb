"""Run one journey through each kind of page in Chromium, Firefox and WebKit, which `make test-engines` installs."""

import base64
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import CENTER, Tab, new_chromium
from firefox import new_firefox
from offered import folder, photograph
from patience import wait_until
from PIL import Image
from playwright.sync_api import Browser
from running import CHURCH, DOG, SETTLED, served
from scipy.stats import spearmanr
from static_site import Site, serve
from viewer_pages import write
from webkit import new_webkit

from vitviz.explorer import Explorer
from vitviz.lecture.texts import STEPS
from vitviz.site.static import write_site
from vitviz.view import View
from vitviz.web.examples import Example
from vitviz.weights import zoo

pytestmark = [pytest.mark.tier("engines"), pytest.mark.timeout(900)]
RESISTING = {"privacy.resistFingerprinting": True}
COLOR = (200, 60, 20)
SCENE = "vitviz.store.get().scene"
SAID = "document.querySelector('#notice').textContent"
REASON = "changes them against fingerprinting"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("models") / "tiny", half=True)


@pytest.fixture(scope="module")
def site(source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site whose example has one color and is cropped at the left and right."""
    place = tmp_path_factory.mktemp("site")
    Image.new("RGB", (900, 300), COLOR).save(place / "plain.png")
    write_site(place / "site", [source], photographs=[Example(place / "plain.png", "Plain", "")], tell=lambda _: None)
    with serve(place / "site", isolated=True) as served:
        yield served


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "mine.png"
    path.write_bytes(photograph(5, 320, 200))
    return path


def allow_canvas(profile: Path, origin: str) -> None:
    """Allow a site to read canvas data, like the button next to the address."""
    profile.mkdir()
    with sqlite3.connect(profile / "permissions.sqlite") as database:
        database.execute("PRAGMA user_version = 12")
        database.execute(
            "CREATE TABLE moz_perms (id INTEGER PRIMARY KEY, origin TEXT, type TEXT, permission INTEGER,"
            " expireType INTEGER, expireTime INTEGER, modificationTime INTEGER)"
        )
        allowed, for_ever = 1, (0, 0)
        database.execute(
            "INSERT INTO moz_perms VALUES (1, ?, 'canvas', ?, ?, ?, 1)", (origin.rstrip("/"), allowed, *for_ever)
        )
    database.close()


def opened(source: str, photo: Path) -> View:
    return Explorer(zoo.load(source)).open(photo)


def ready(tab: Tab, url: str) -> None:
    tab.open(url)
    tab.wait_for("window.vitviz?.drawn > 0 && !vitviz.progress.first && vitviz.resting()")


def seen_around(tab: Tab) -> np.ndarray:
    """Return the visible parts of the photograph that are outside the model's input: (h, w, 3)."""
    box = tab.evaluate(
        "() => { const { x, y, width, height } = document.querySelector('.vv-pane canvas').getBoundingClientRect();"
        " return { x, y, width, height }; }"
    )
    edges = (box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"])
    with Image.open(io.BytesIO(tab.screenshot())) as picture:
        pixels = np.asarray(picture.convert("RGB").crop(edges), dtype=float)
    edge = pixels.shape[1] // 4
    return np.concatenate([pixels[10:-10, 10:edge], pixels[10:-10, -edge:-10]], axis=1)


def test_firefox_resisting_fingerprinting_refuses_to_compute_and_save(site: Site, mine: Path, tmp_path: Path) -> None:
    site.log.clear()
    with new_firefox(tmp_path, RESISTING) as tab:
        ready(tab, site.url)
        example = tab.evaluate(f"() => {SCENE}.id")
        assert "thing" in tab.evaluate("() => document.querySelector('.vv-predictions').textContent")
        assert seen_around(tab).std(axis=(0, 1)).max() < 10, "no stripes"

        tab.evaluate("() => document.querySelector('[data-do=picture]').click()")
        tab.wait_for(f"{SAID}.includes('could not be saved')")
        assert REASON in tab.evaluate(f"() => {SAID}")
        assert not [*tmp_path.glob("*.png")]

        tab.evaluate("() => document.querySelector('[data-tab=why]').click()")
        tab.wait_for(f"document.querySelector('.vv-explain .vv-trouble').textContent.includes({REASON!r})")

        tab.set_files("#photo input[type=file]", mine)
        tab.wait_for(f"{SAID}.includes({REASON!r}) && !{SAID}.includes('could not be saved')")
        assert tab.evaluate(f"() => {SCENE}.id") == example
        assert not tab.problems
    assert not [path for path in site.log if "weights" in path], "nothing is loaded unnecessarily"


def test_firefox_with_canvas_permission_matches_python(site: Site, source: str, mine: Path, tmp_path: Path) -> None:
    allow_canvas(tmp_path / "profile", site.url)
    with new_firefox(tmp_path, RESISTING) as tab:
        ready(tab, site.url)
        tab.set_files("#photo input[type=file]", mine)
        tab.wait_for(f"{SCENE}?.source.photo && !vitviz.progress.first", seconds=120)
        manifest = tab.evaluate(f"() => vitviz.scenes.get({SCENE}.id).manifest")
        assert not tab.problems
    view = opened(source, mine)
    predictions = {label: share for label, share, _ in manifest["predictions"]}
    assert predictions == pytest.approx(dict(view.predictions()), abs=1e-4)


# ---- one journey

KINDS = ("server", "static site", "file")
METHODS = ("gae", "legrad", "attn_lrp")
# The category selects these settings only in the browser's own dialog.
STRICT = {
    "browser.contentblocking.category": "strict",
    "network.cookie.cookieBehavior": 5,
    "privacy.trackingprotection.enabled": True,
    "privacy.fingerprintingProtection": True,
}
DECODERS = 0.01  # difference of probabilities and rank correlations between decoders of JPEG
NO_STORAGE = {"network.cookie.cookieBehavior": 2}
ENGINES: dict[str, Callable[..., AbstractContextManager[Tab]]] = {
    "Firefox": new_firefox,
    "Firefox with strict tracking protection": partial(new_firefox, preferences=STRICT),
    "Firefox without storage": partial(new_firefox, preferences=NO_STORAGE),
    "WebKit": new_webkit,
}
OPEN = "vitviz.scenes.get(vitviz.store.get().scene?.id)"
COPY = """async (bytes) => {
    const blob = new Blob([Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0))], { type: 'image/png' });
    await navigator.clipboard.write([new ClipboardItem({ 'image/png': blob })]);
}"""
DROP = """(bytes) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0))], 'dropped.png'));
    document.querySelector('.vv').dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true }));
}"""
NUMBERS = """async (methods) => {
    const { manifest, answers } = SCENE;
    const explained = methods.map(async (method) => [method,
        (await vitviz.backend.ask('explain', vitviz.store.get().scene, { method, target: 3, against: null })).values]);
    return {
        probabilities: Object.fromEntries(manifest.predictions),
        maps: {
            first: [...answers.map(0, 'mean', { token: 0, direction: 'row' })],
            last: [...answers.map(manifest.depth - 1, 0, { token: 5, direction: 'row' })],
            rollout: [...answers.rolloutOf({ token: 0, direction: 'row' })],
            ...Object.fromEntries(await Promise.all(explained)),
        },
    };
}""".replace("SCENE", OPEN)


@pytest.fixture(scope="module", params=KINDS)
def page_at(
    request: pytest.FixtureRequest, source: str, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Yield each kind of page and its address."""
    with ExitStack() as stack:
        yield (
            request.param,
            {
                "server": lambda: stack.enter_context(contextmanager(served)(source, bundled=())).url,
                "static site": lambda: site.url,
                "file": lambda: write(tmp_path_factory.mktemp("file"), opened(source, CHURCH).html(lecture=True)),
            }[request.param](),
        )


def take(tab: Tab, way: str, photo: Path) -> None:
    """Give the page a photograph, and wait until it is open."""
    before = tab.evaluate(f"() => {SCENE}.source.photo")
    picture = base64.b64encode(photo.read_bytes()).decode()
    if way == "upload":
        tab.set_files("#photo input[type=file]", photo)
    elif way == "drop":
        tab.evaluate(DROP, picture)
    else:
        tab.evaluate(COPY, picture)
        tab.press("Control+v")
    tab.wait_for(f"{SCENE}.source.photo !== {json.dumps(before)}")
    settle(tab)


def settle(tab: Tab) -> None:
    """Wait until the page has all data for this photograph, and no view waits for a response."""
    tab.wait_for(f"window.vitviz?.drawn > 0 && {OPEN}?.answers.complete && {OPEN}.answers.rollout", 180)
    tab.wait_for(f"({SETTLED})()", 180)


def show(tab: Tab, name: str, width: int = 1440) -> None:
    tab.click(f"[role=tab][data-tab={name}]")
    settle(tab)
    assert tab.evaluate("(name) => !document.querySelector(`.vv-tab[data-tab=${name}]`).hidden", name)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, name


def point(tab: Tab) -> None:
    """Point at a patch, then click it."""
    place = tab.evaluate(CENTER, ".vv-explore .vv-held")
    tab.point(*place)
    tab.wait_for("Array.isArray(vitviz.store.get().pointer?.query)")
    tab.point(*place, "pointerDown", "pointerUp")
    tab.wait_for("Array.isArray(vitviz.store.get().query)")


def photographs(tab: Tab, folder: Path, stores: bool) -> dict[str, Any]:
    """Upload, paste and drop photographs, reload the page, and return its numbers for a PNG and a JPEG."""
    for left, way in enumerate(("upload", "paste", "drop")):
        photo = folder / f"{way}.png"
        Image.open(DOG).crop((100 + left, 0, 700, 500)).save(photo)
        take(tab, way, photo)
    tab.open(tab.evaluate("() => location.href"))
    settle(tab)
    assert bool(tab.evaluate(f"() => {SCENE}.source.photo")) == stores
    if not stores:
        take(tab, "drop", photo)
    pixels = tab.evaluate(NUMBERS, METHODS)
    take(tab, "upload", CHURCH)
    return {"the same pixels": pixels, "decoded by the browser": tab.evaluate(NUMBERS, METHODS)}


def explain(tab: Tab) -> None:
    tab.select_option("[data-field=method]", "legrad")
    settle(tab)
    tab.click(".vv-explain [data-do=test]")
    tab.wait_for("document.querySelectorAll('.vv-testing .vv-chart').length === 2", seconds=180)


def switch_head_off(tab: Tab) -> None:
    tab.click("[data-field=off]")
    tab.click(".vv-cell")
    tab.wait_for("document.querySelector('.vv-heads-view .vv-moved li')")


def lecture(tab: Tab) -> None:
    for step in range(1, len(STEPS) + 1):
        tab.wait_for(f"document.querySelector('.vv-step:not([hidden])').dataset.of === '{step}'")
        show(tab, "lecture")
        tab.click("[data-go='1']")


IN_TABS = {"explain": explain, "heads": switch_head_off, "lecture": lecture}


def journey(tab: Tab, kind: str, url: str, folder: Path, *, stores: bool = True) -> dict[str, Any]:
    """Use all parts of a page, and return its numbers; `stores` tells whether a reload keeps a photograph."""
    tab.open(url)
    settle(tab)
    point(tab)
    numbers = {} if kind == "file" else photographs(tab, folder, stores)
    names = tab.evaluate("() => [...document.querySelectorAll('[role=tab]')].map((one) => one.dataset.tab)")
    for name in names:
        show(tab, name)
        IN_TABS.get(name, lambda _: None)(tab)
    show(tab, "look")
    if kind != "file":
        tab.wait_for("location.search.includes('from=')")
        tab.evaluate("() => history.back()")
        tab.wait_for("vitviz.store.get().tab !== 'look'")
        show(tab, "look")
        tab.evaluate("() => document.querySelector('.vv-menu [data-do=link]').click()")
        tab.wait_for("document.querySelector('#notice').textContent.includes('ink')")
        tab.click(".theme")
        tab.wait_for("document.querySelector('.vv').classList.contains('dark')")
    tab.click("[data-do=lang]")
    tab.wait_for("document.querySelector('[data-tab=look]').textContent === '探索'")
    tab.resize(390, 844)
    for name in names:
        show(tab, name, 390)
    tab.resize(1440, 900)
    show(tab, "look")
    tab.evaluate("() => document.querySelector('.vv-menu [data-do=picture]').click()")
    wait_until(lambda: tab.evaluate("() => true") and [*tab.downloads.glob("*.png")], "a download")
    # Firefox reports that it refuses a service worker, which the page expects.
    assert [text for text in tab.problems if stores or "ServiceWorker" not in text] == []
    return numbers


@pytest.fixture(scope="module")
def expected(page_at: tuple[str, str], browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the numbers of a journey in Chromium."""
    folder = tmp_path_factory.mktemp("chromium")
    with new_chromium(browser, folder) as tab:
        return journey(tab, *page_at, folder)


@pytest.mark.parametrize("engine", ENGINES)
def test_journey_works_as_in_chromium(
    engine: str, page_at: tuple[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    with ENGINES[engine](tmp_path) as tab:
        numbers = journey(tab, *page_at, tmp_path, stores="without storage" not in engine)
    for pixels, there in expected.items():
        here, close = numbers[pixels], 1e-3 if pixels == "the same pixels" else DECODERS
        assert here["probabilities"] == pytest.approx(there["probabilities"], abs=close), pixels
        for name, values in there["maps"].items():
            assert spearmanr(values, here["maps"][name]).statistic >= 1 - close, (pixels, name)
