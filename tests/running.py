"""Run the app for browser tests, and compare the page with Python's numbers."""

import gc
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import tiny
from asking import free_port
from offered import folder
from patience import wait_until
from PIL import Image
from playwright.sync_api import Page as Browser
from playwright.sync_api import Route, expect
from viewer_pages import SCENE, number

from vitviz.heatmap import Heatmap
from vitviz.page import Page, launch
from vitviz.resources import resource_folder
from vitviz.server.endpoints import Endpoints
from vitviz.server.menu import Menu
from vitviz.settings import Settings
from vitviz.view import View

MODEL, EVERYDAY = "dinov2-s14-imagenette", "dinov2-s14-everyday"
EXAMPLES = resource_folder("examples")
CHURCH, DOG = EXAMPLES / "church.jpg", EXAMPLES / "dog.jpg"
CLOSE = 2e-3  # tolerance of a probability: queries and keys are sent in half precision
ROUNDED = 5e-4  # rounding error of a percentage with one decimal

READ = """() => {
    const view = vitviz.panels[0];
    const one = view.panes[vitviz.store.get().pane];
    const text = (selector) => one.pane.element.querySelector(selector).textContent;
    return {
        title: text('.vv-title'), answer: text('.vv-answer'), low: text('.vv-low'), high: text('.vv-high'),
        note: `${view.find('.vv-note').textContent} ${view.find('.vv-spread').textContent}`,
        strongest: [...view.root.querySelectorAll('.vv-strongest li')].map((one) =>
            [one.querySelector('button').textContent.match(/\\d+/g).map((place) => place - 1),
                one.querySelector('span').textContent]),
        colors: Array.from(one.pane.index),
        grid: one.pane.grid,
        waiting: one.pane.element.classList.contains('vv-waiting') || !vitviz.resting(),
    };
}"""
SETTLED = """() => vitviz.resting() && vitviz.progress.jobs.size === 0
    && vitviz.panels.every((panel) => ['maps', 'bars', 'others', 'numbers', 'questions']
        .every((name) => !panel[name]?.running))"""

SHOWN = """() => ['.vv-predictions ol', '.vv-sentence', '.vv-predictions h2'].map((part) => (
    document.querySelector(part).textContent.replaceAll(/\\s+/g, '')))"""
SHIFT = """() => {
    window.shift = 0;
    new PerformanceObserver((list) => { for (const { value } of list.getEntries()) window.shift += value; })
        .observe({ type: 'layout-shift', buffered: true });
}"""

HOSTILE = '<img src=x onerror="document.title = 1">'
MANY = (HOSTILE, *(f"thing {number}" for number in range(1, 264)))
THINGS = tuple(f"thing {number}" for number in range(tiny.CLASSES))
# Options of `folder` by name. The app opens with the first model.
MODELS: dict[str, dict[str, Any]] = {
    "native": {"mode": "native"},
    # Its ONNX graphs are those of site_files.MODEL, and are exported once.
    "registers": {"registers": 2, "pooling": "cls+mean", "half": True},
    "bare": {"class_token": False, "pooling": "mean", "classes": 0},
    "unsure": {"classes": len(MANY), "about": {"labels": MANY, "sure_above": 0.87}},
    "sure": {"classes": len(MANY), "about": {"labels": MANY, "sure_above": 0.001}},
    "reversed": {"about": {"labels": ("another", *reversed(THINGS[1:]))}},
    "several": {
        "classes": 3,
        "bias": (3.0, 2.5, -4.0),
        "about": {"labels": ("cat", "dog", "fox"), "problem_type": "multi_label_classification"},
    },
    "spots": {"spots": Image.open(CHURCH)},
    "value": {"classes": 1, "bias": (40.0,), "about": {"labels": ("age in years",)}},
}


def make_models(place: Path) -> dict[str, str]:
    """Save `MODELS` and a windowed model of transformers, and return their folders by name."""
    import transformers

    sizes = {"patch_size": 2, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 3), "window_size": 4}
    config = transformers.SwinConfig(image_size=(48, 32), **sizes, mlp_ratio=1.5, num_labels=5)
    tiny.shaken(transformers.SwinForImageClassification(config)).save_pretrained(place / "windowed")
    return {name: folder(place / name, **options) for name, options in MODELS.items()} | {
        "windowed": str(place / "windowed")
    }


class Running:
    """The app under test, with the same photographs in Python."""

    def __init__(self, *models: str, bundled: Sequence[str] = (MODEL,), **allowed: Any) -> None:
        settings = Settings(models=models, **{"sharper": False, **allowed})  # no requests at times of their own
        self.endpoints = Endpoints(Menu(settings, bundled=list(bundled)))
        self.default = self.endpoints.menu.default
        self.port = free_port()
        self.page = Page(self.endpoints)
        launch(self.page, settings, "127.0.0.1", self.port, prevent_thread_lock=True, quiet=True)
        self.url = f"http://127.0.0.1:{self.port}/"
        self._views: dict[tuple[Path, str, int | None], View] = {}

    def close(self) -> None:
        """Stop the server, and free models and photographs."""
        self.page.close()
        del self.page, self.endpoints, self._views  # pytest still references the last test's arguments
        gc.collect()

    def view(self, photo: Path = CHURCH, model: str | None = None, size: int | None = None) -> View:
        """Return Python's view of a photograph, by the page's default model or another."""
        model = model or self.default
        key = (photo, model, size)
        if key not in self._views:
            self._views[key] = self.endpoints.loaded.get(model).explorer.open(photo, size=size)
        return self._views[key]


def served(*models: str, **allowed: Any) -> Iterator[Running]:
    """Serve the app with these models until the fixture ends."""
    running = Running(*models, **allowed)
    yield running
    running.close()


class Gate:
    """Gate that holds back a page's requests to `pattern` while it is closed, as at the start."""

    def __init__(self, page: Browser, pattern: str) -> None:
        self.held: list[Route] = []
        self._page, self._is_open = page, False
        page.route(pattern, self._came)

    def _came(self, route: Route) -> None:
        if self._is_open:
            route.continue_()
        else:
            self.held.append(route)

    def wait(self, count: int = 1) -> None:
        """Wait until this number of requests is held."""
        wait_until(lambda: self._page.evaluate("true") and len(self.held) >= count, "a request")

    def open(self) -> None:
        self._is_open = True
        for route in self.held:
            route.continue_()
        self.held.clear()

    def close(self) -> None:
        self._is_open = False


def own_photograph(folder: Path, name: str = "mine.png") -> Path:
    """Save a photograph that is not an example."""
    photo = folder / name
    Image.open(DOG).crop((100, 0, 700, 500)).save(photo)
    return photo


def ready(page: Browser, url: str) -> None:
    page.goto(url)
    page.wait_for_function("window.vitviz?.drawn > 0")


def complete(page: Browser) -> None:
    """Wait until the browser has all data for this photograph."""
    page.wait_for_function(
        f"(({{ manifest, answers }}) => answers.complete && (!manifest.rollout || answers.rollout !== null))({SCENE})"
    )


def settled(page: Browser) -> None:
    """Wait until the page has drawn everything, and no view waits for a response."""
    page.wait_for_function(SETTLED)


def expect_first_view(page: Browser, url: str) -> None:
    """Assert that a page can be read before its script runs, shows the same afterwards, and that nothing moves."""
    gate = Gate(page, "**/page.*.js")
    page.add_init_script(f"({SHIFT})()")
    page.emulate_media(reduced_motion="reduce")
    page.goto(url, wait_until="commit")
    photo = page.locator(".vv-first img").first
    expect(photo).to_be_visible()
    wait_until(lambda: photo.evaluate("(image) => image.complete && image.naturalWidth > 0"), "the photograph")
    before: Any = page.evaluate(SHOWN)
    assert all(before), before
    gate.open()
    complete(page)
    settled(page)
    assert page.evaluate(SHOWN) == before
    expect(page.locator(".vv-first")).to_have_count(0)
    assert page.evaluate("window.shift") < 0.05


def change(page: Browser, **fields: object) -> None:
    """Change the state like the controls, and wait until it is drawn."""
    page.evaluate("change => vitviz.store.dispatch({ type: 'change', change })", fields)
    page.wait_for_function("vitviz.resting()")


def reading(page: Browser) -> dict[str, Any]:
    """Return the page's texts about the picture, and the drawn colors as numbers 0..255 per patch."""
    return page.evaluate(READ)


def expect_map(page: Browser, heatmap: Heatmap) -> dict[str, Any]:
    """Wait until the page shows this map's colors, title and numbers; return the reading."""
    read: dict[str, Any] = {}
    wrong = ["the page was not read"]

    def shows() -> bool:
        read.update(reading(page))
        wrong[:] = differences(read, heatmap)
        return not wrong

    try:
        wait_until(shows, heatmap.title, poll=0.03)
    except AssertionError as error:
        raise AssertionError(f"{heatmap.title}: {'; '.join(wrong)}") from error
    return read


def expect_unchanged(page: Browser, before: dict[str, Any]) -> None:
    """Assert that the page shows the same as before, even if it draws again."""
    assert {**reading(page), "waiting": False} == before


def differences(read: dict[str, Any], heatmap: Heatmap) -> list[str]:
    """Return the differences between a reading and this map as text."""
    values = heatmap.values  # (gh, gw)
    if read["waiting"] or read["title"] != heatmap.title or tuple(read["grid"]) != values.shape:
        return [f"the page shows {read['title']!r} of {read['grid']}, waiting: {read['waiting']}"]
    wrong = []
    scale = heatmap.scale()
    low, high = scale.vmin, scale.vmax
    expected = 255 * (values.clip(low, high) - low) / (high - low)
    drawn = np.array(read["colors"], float).reshape(values.shape)
    off = np.abs(drawn - expected).max()
    if off > 1 + 255 * 2 * CLOSE / (high - low) or np.corrcoef(drawn.ravel(), expected.ravel())[0, 1] < 0.999:
        wrong.append(f"colors are off by {off:.0f} of 255")
    for name, value in (("low", low), ("high", high)):
        if read["low"] != "less" and abs(number(read[name]) - value) > CLOSE + ROUNDED:
            wrong.append(f"{name} is {value}, the page says {read[name]}")
    fifth = np.sort(values, axis=None)[-5]
    for (row, column), text in read["strongest"]:
        value = float(values[row, column])
        if abs(number(text) - value) > CLOSE + ROUNDED or value < fifth - CLOSE:
            wrong.append(f"row {row}, column {column} is {value}, the page says {text}")
    if len(read["strongest"]) != 5:
        wrong.append(f"{len(read['strongest'])} strongest patches")
    shares = Counter()  # of prefix tokens; the page sums up registers
    for name, value in heatmap.prefix_mass.items():
        shares["registers" if name.startswith("register") else name] += value
    for name, value in shares.items():
        text = re.search(rf"([\d.]+)\s% (?:stays on the|on) {name}", read["note"])
        if text is None or abs(float(text[1]) / 100 - value) > CLOSE + ROUNDED:
            wrong.append(f"{value} on {name}, the page says {read['note']!r}")
    return wrong


def at_patch(page: Browser, view: View, row: int, column: int, pane: int = 0) -> tuple[float, float]:
    """Return the centre of a patch on the screen, after scrolling to the top."""
    page.evaluate("window.scrollTo(0, 0)")
    box = page.locator(".vv-held").nth(pane).bounding_box()
    left, top, right, bottom = view.geometry.patch_box(row, column, view.trace.grid)
    width, height = view.photo.size
    return box["x"] + (left + right) / 2 / width * box["width"], box["y"] + (top + bottom) / 2 / height * box["height"]


def click_patch(page: Browser, view: View, row: int, column: int) -> None:
    page.mouse.click(*at_patch(page, view, row, column))


def more(page: Browser, *parts: str) -> None:
    """Open the controls of the second level, and folded parts."""
    change(page, open=["more", *parts])


def head(page: Browser, value: int | str) -> None:
    """Choose a head, which counts from 0, or how heads are combined."""
    more(page)
    page.select_option("[data-key=head]", str(value))


def layer(page: Browser, block: int) -> None:
    """Move the slider to a layer; blocks count from 0."""
    page.locator("[data-key=block]").fill(str(block + 1))


def example(page: Browser, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def upload(page: Browser, path: Path) -> None:
    page.locator("#photo input[type=file]").set_input_files(str(path))


def address(page: Browser) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def unfold(page: Browser) -> None:
    """Open all collapsed parts of the explorer."""
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.wait_for_function("vitviz.resting()")


SETTLE = """async () => {
    for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
    const finite = document.getAnimations().filter(({ effect }) => effect.getComputedTiming().endTime < Infinity);
    await Promise.allSettled(finite.map(({ finished }) => finished));
}"""  # a page hears of the system's theme in its next frame; colors are wrong during a theme's transition


def axe(page: Browser, *only: str, within: str | None = None) -> list[Any]:
    """Return axe-core's violations on the page or within an element, by all or some rules."""
    from axe_core_python.base import AXE_SCRIPT

    page.evaluate(SETTLE)
    if not page.evaluate("'axe' in window"):  # compiling the script takes as long as a small page's check
        page.evaluate(AXE_SCRIPT)
    options = {"reporter": "no-passes"} | ({"runOnly": list(only)} if only else {})
    results = page.evaluate("([within, options]) => axe.run(within ?? document, options)", [within, options])
    return [(v["id"], v["help"], [node["html"][:200] for node in v["nodes"]][:3]) for v in results["violations"]]


def expect_accessible(page: Browser, within: str | None = None) -> None:
    """Assert that the page fits a phone and passes axe in both themes; in the dark theme, `within` limits the check."""
    violations = axe(page)
    assert not violations, violations
    theme = page.locator(".theme")
    theme.dispatch_event("click")  # a pointer would close an open menu; the dark theme differs only in colors
    violations = axe(page, "color-contrast", within=within)
    assert not violations, violations
    theme.dispatch_event("click")
    before = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("vitviz.resting()")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(before)
