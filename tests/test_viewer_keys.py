"""The explorer by keyboard, two panes at once, playing, the matrix, and what is said aloud. On pages from disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viewer_pages
from playwright.sync_api import Page, expect
from viewer_pages import ask, box, centre, hover, html, pixels, rest, row_of, show, state, title, view

from vitviz.render.colors import Scale, lut
from vitviz.viewer.page import Scene


@pytest.fixture
def offline(page: Page) -> Iterator[Page]:
    yield from viewer_pages.offline(page)


@pytest.fixture
def opened(offline: Page, tmp_path: Path) -> Page:
    show(offline, tmp_path)
    return offline


# ---- keys

KEYS: list[tuple[str, dict[str, Any]]] = [
    ("ArrowUp", {"query": [3, 5], "pinned": True}),  # from CLS to the middle
    ("ArrowUp", {"query": [2, 5]}),
    ("ArrowRight", {"query": [2, 6]}),
    ("ArrowDown", {"query": [3, 6]}),
    ("ArrowLeft", {"query": [3, 5]}),
    ("[", {"block": 1}),
    ("[", {"block": 0}),
    ("]", {"block": 1}),
    (".", {"head": 0}),
    (".", {"head": 1}),
    (",", {"head": 0}),
    ("0", {"head": "mean"}),
    ("d", {"direction": "column"}),
    ("r", {"mode": "rollout"}),
    ("r", {"mode": "attention"}),
    ("g", {"grid": True}),
    ("Escape", {"query": "cls", "pinned": False}),
    ("ArrowUp", {"query": [3, 5], "pinned": True}),
    ("c", {"query": "cls", "pinned": False}),
]


def test_keys_on_the_picture(opened: Page) -> None:
    opened.locator(".vv-picture").focus()
    for key, expected in KEYS:
        opened.keyboard.press(key)
        assert dict(zip(expected, state(opened, *expected, "full")[:-1], strict=True)) == expected, key
    assert title(opened) == "Layer 2, mean of 5 heads, to CLS"
    expect(opened.get_by_label("who attends to it")).to_be_checked()
    expect(opened.get_by_label("Patch grid")).to_be_checked()


def test_keys_before_anything_has_focus(opened: Page) -> None:
    opened.keyboard.press("[")
    assert state(opened, "block") == 1
    opened.keyboard.press("ArrowDown")  # scrolls the page
    assert state(opened, "query") == "cls"
    hover(opened, view(), 4, 4)
    opened.keyboard.press("ArrowDown")
    assert state(opened, "query", "pinned") == [[5, 4], True]


def test_keys_that_belong_to_inputs_stay_with_them(opened: Page) -> None:
    opened.get_by_text("Colours and scale").click()
    before = state(opened, "block", "head", "query", "direction", "mode", "grid", "full", "help")
    slider = opened.get_by_label("Opacity")
    slider.focus()
    for key in ("[", "]", "0", ".", "d", "r", "g", "c", "f", "?"):
        opened.keyboard.press(key)
    opened.keyboard.press("ArrowRight")
    assert state(opened, "alpha") == pytest.approx(0.6)
    colours = opened.get_by_role("combobox", name="Colours")
    expect(colours).to_have_value("viridis")
    colours.focus()
    opened.keyboard.press("g")
    opened.keyboard.press("[")
    assert state(opened, "cmap") == "gray"
    assert state(opened, "block", "head", "query", "direction", "mode", "grid", "full", "help") == before
    radio = opened.get_by_label("CLS", exact=True)
    radio.focus()
    opened.keyboard.press("ArrowRight")
    assert state(opened, "query") == "register 1"
    opened.keyboard.press("[")
    assert state(opened, "block") == 1
    opened.get_by_label("Patch grid").focus()
    opened.keyboard.press("Space")
    assert state(opened, "grid") is True
    opened.keyboard.press("Control+[")
    assert state(opened, "block") == 1


def test_the_help_opens_closes_and_gives_the_focus_back(opened: Page) -> None:
    picture, help_ = opened.locator(".vv-picture"), opened.get_by_role("dialog")
    for close in ("Escape", "?", "Enter"):
        picture.focus()
        opened.keyboard.press("?")
        expect(help_).to_be_visible()
        expect(help_.locator("dt")).to_have_count(11)
        opened.keyboard.press("[")
        opened.keyboard.press(close)
        expect(help_).to_be_hidden()
        expect(picture).to_be_focused()
    assert state(opened, "block", "help") == [2, False]
    opened.get_by_role("button", name="Keys").click()
    help_.get_by_role("button", name="Close").click()
    expect(opened.get_by_role("button", name="Keys")).to_be_focused()


def test_full_screen(opened: Page) -> None:
    opened.locator(".vv-picture").focus()
    opened.keyboard.press("f")
    opened.wait_for_function("document.fullscreenElement === document.querySelector('.vv')")
    assert state(opened, "full") is True
    opened.keyboard.press("f")
    opened.wait_for_function("document.fullscreenElement === null")
    assert state(opened, "full") is False
    opened.get_by_role("button", name="Full screen").click()
    opened.wait_for_function("document.fullscreenElement !== null")
    opened.evaluate("document.exitFullscreen()")  # as the browser's own key does
    opened.wait_for_function("vitviz.explorer.state.full === false")


def test_everything_can_be_reached_and_focus_is_seen(opened: Page) -> None:
    opened.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    rest(opened)
    reached = set()
    for _ in range(80):
        opened.keyboard.press("Tab")
        name, seen = opened.evaluate(
            """() => {
                const e = document.activeElement;
                const shown = e.closest('.vv-chip') ?? e;
                const { outlineStyle, outlineWidth } = getComputedStyle(shown);
                const kinds = [e.dataset.do, e.dataset.key, e.dataset.kind && `${e.dataset.kind} ${e.dataset.value}`];
                return [kinds.find(Boolean) ?? e.className, outlineStyle === 'none' ? 0 : parseFloat(outlineWidth)];
            }"""
        )
        if name in reached and name == "vv-picture":
            break
        assert name == "" or seen >= 2, name  # "" is the page itself, after the last
        reached.add(name)
    wanted = {"vv-picture", "query", "mode", "direction", "alpha", "grid", "smooth", "numbered", "cmap", "gamma"}
    wanted |= {"shared", "play", "compare", "picture", "full", "help", "cell 0,0", "head mean", "block 2"}
    assert wanted <= reached, wanted - reached


# ---- comparing, playing, the matrix


def test_two_panes_share_the_query_and_have_a_head_each(opened: Page) -> None:
    seen = view()
    ask(opened, head=1)
    opened.get_by_role("button", name="Compare").click()
    opened.click(".vv-heads [data-value='3']")
    assert [title(opened, pane) for pane in (0, 1)] == [f"Layer 3, head {head}, from CLS" for head in (2, 4)]
    for pane in (0, 1):
        hover(opened, seen, 2, 5, pane)
        words = "from patch row 3, column 6"
        assert [title(opened, one) for one in (0, 1)] == [f"Layer 3, head {head}, {words}" for head in (2, 4)]
    opened.locator(".vv-picture").first.focus()  # the controls speak of the first one now
    expect(opened.locator(".vv-heads [aria-pressed=true]")).to_have_attribute("data-value", "1")
    opened.keyboard.press("[")
    assert title(opened, 0).startswith("Layer 2, head 2")
    assert title(opened, 1).startswith("Layer 3, head 4")
    best = max(row_of(seen, 1, 1, "cls", "row", "attention")[4:])
    opened.mouse.move(5, 5)
    rest(opened)
    said = viewer_pages.number(opened.locator(".vv-strongest span").first.inner_text())
    assert said == pytest.approx(best, abs=2.6e-3)
    expect(opened.get_by_role("button", name="Compare")).to_have_attribute("aria-pressed", "true")
    opened.get_by_role("button", name="Compare").click()
    expect(opened.locator(".vv-pane")).to_have_count(1)
    assert title(opened).startswith("Layer 2, head 2")  # the one that was chosen stays
    hover(opened, seen, 0, 0)
    assert title(opened).endswith("row 1, column 1")


def test_the_second_pane_stays_when_it_is_the_chosen_one(opened: Page) -> None:
    opened.get_by_role("button", name="Compare").click()
    opened.click(".vv-heads [data-value='3']")
    first, second = (pixels(opened, f"(e) => e.sides[{pane}].pane.photo.canvas") for pane in (0, 1))
    assert np.array_equal(first, second)  # hatching too, and once
    opened.mouse.click(*centre(opened, view(), 1, 1, pane=1))
    rest(opened)
    opened.wait_for_function("document.querySelector('.vv-live').textContent.includes('head 4')")  # the chosen one
    opened.get_by_role("button", name="Compare").click()
    assert title(opened) == "Layer 3, head 4, from patch row 2, column 2"
    opened.locator(".vv-picture").focus()
    opened.keyboard.press("ArrowDown")
    assert title(opened).endswith("row 3, column 2")


OTHER = "one block, six patches"


def test_two_models_share_a_place_though_their_grids_differ(opened: Page) -> None:
    seen, other = view(), view(OTHER)
    opened.get_by_role("button", name="Compare").click()
    opened.evaluate(
        """async ([manifest, parts]) => {
            for (const [id, text] of Object.entries(parts)) {
                document.body.append(Object.assign(document.createElement('script'), { type: 'text/plain', id, text }));
            }
            const image = new Image();
            image.src = manifest.photo.url;
            await image.decode();
            vitviz.explorer.open(manifest, image);
        }""",
        list(second_manifest(viewer_pages.scene(other), html(OTHER))),
    )
    opened.wait_for_function("vitviz.explorer.sides[1].data.answers.complete")
    assert opened.locator(".vv-layers button").count() == 1
    hover(opened, seen, 6, 10, pane=0)
    assert title(opened, 0).endswith("row 7, column 11")
    assert title(opened, 1).endswith("row 2, column 3")
    hover(opened, other, 1, 0, pane=1)
    assert title(opened, 0).endswith("row 6, column 2")
    opened.mouse.click(*centre(opened, other, 1, 0, pane=1))
    hover(opened, seen, 0, 9, pane=0)  # elsewhere, while a patch is pinned
    assert title(opened, 0).endswith("row 6, column 2")
    assert title(opened, 1).endswith("row 2, column 1")
    opened.locator(".vv-picture").first.focus()
    opened.keyboard.press("ArrowLeft")
    assert title(opened, 0).endswith("row 6, column 1")
    assert title(opened, 0).startswith("Layer 3,")
    opened.locator(".vv-picture").nth(1).focus()
    opened.get_by_role("button", name="Compare").click()
    expect(opened.locator(".vv-pane")).to_have_count(1)  # of the model that was chosen
    expect(opened.locator(".vv-layers button")).to_have_count(1)
    assert pixels(opened, "(e) => e.sides[0].pane.photo.canvas").shape[:2] == (other.photo.height, other.photo.width)
    assert title(opened) == "Layer 1, mean of 5 heads, from patch row 2, column 1"


def test_another_photograph_beside_it_does_not_stop_one_that_is_loading(opened: Page) -> None:
    complete = opened.evaluate(
        """async ([manifest, parts]) => {
            const { explorer } = vitviz;
            for (const [id, text] of Object.entries(parts)) {
                document.body.append(Object.assign(document.createElement('script'), { type: 'text/plain', id, text }));
            }
            const gates = []; // a network that answers when it is told to
            const { fetch } = explorer.host;
            explorer.host.fetch = (url) => new Promise((go) => gates.push(() => go(fetch(url))));
            const { here } = explorer;
            explorer.open({ ...here.data.manifest, id: 'again' }, here.pane.original);
            explorer.act('compare');
            explorer.open(manifest, here.pane.original);
            for (let wait = 0; wait < 20; wait += 1) {
                gates.splice(0).forEach((open) => open());
                await new Promise((go) => setTimeout(go, 5));
            }
            return explorer.sides.map((side) => side.data.answers.complete);
        }""",
        list(second_manifest(viewer_pages.scene(view(OTHER)), html(OTHER))),
    )
    assert complete == [True, True]


def second_manifest(scene: Scene, text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Another page's manifest and parts, with names of their own."""
    found = dict(re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', text))
    parts = {f"second-{name}": data for name, data in found.items()}
    blocks = [name for name in parts if "block" in name]
    return scene.manifest("second", scene.photo_url(), blocks, "second-rollout"), parts


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_playing_steps_through_layers_or_heads_and_stops(offline: Page, tmp_path: Path, motion: Any) -> None:
    offline.emulate_media(reduced_motion=motion)
    show(offline, tmp_path)
    drawn = offline.evaluate("vitviz.explorer.drawn")
    offline.wait_for_timeout(300)
    assert offline.evaluate("[vitviz.explorer.drawn, document.getAnimations().length]") == [
        drawn,
        0,
    ]  # by itself: nothing
    offline.get_by_label("Pace of the animation").select_option("250")
    offline.get_by_role("button", name="Play layers").click()
    for layer in (1, 2, 3, 1):
        expect(offline.locator(".vv-title")).to_have_text(f"Layer {layer}, mean of 5 heads, from CLS")
    offline.get_by_role("button", name="Stop layers").click()
    block = state(offline, "block")
    offline.wait_for_timeout(400)
    assert state(offline, "block") == block
    expect(offline.locator("[data-do=play]")).to_have_attribute("aria-pressed", "false")
    ask(offline, head=3)
    offline.get_by_role("button", name="Play heads").click()
    for head in (5, 1, 2):
        expect(offline.locator(".vv-title")).to_contain_text(f"head {head},")
    offline.get_by_role("button", name="Stop heads").click()


def test_the_matrix_is_linked_both_ways(opened: Page) -> None:
    seen = view()
    ask(opened, head=2, block=1)
    opened.get_by_text("The whole matrix of one head").click()
    expect(opened.locator(".vv-matrix p")).to_contain_text("Layer 2, head 3, 81 x 81 tokens")
    rest(opened)
    shown = pixels(opened, "() => document.querySelector('.vv-cells canvas')")[..., :3]
    values = np.stack([row_of(seen, 1, 2, token, "row", "attention") for token in range(81)])
    index = Scale.over([values], "each").indices(values, 0.5).astype(int)
    near = [lut("viridis")[np.clip(index + step, 0, 255)] for step in (-2, -1, 0, 1, 2)]
    assert np.any([(shown == colours).all(-1) for colours in near], axis=0).all()

    marks = "() => document.querySelector('.vv-cells .vv-aid')"
    hover(opened, seen, 3, 4)
    lines = np.flatnonzero((pixels(opened, marks)[..., 3] > 0).mean(1) > 0.9)  # whole rows of pixels
    step, token = pixels(opened, marks).shape[0] / 81, seen.trace.token((3, 4))
    frame = [line for line in lines if abs(line - (token + 0.5) * step) < step]
    assert len(frame) >= 2
    assert abs(np.mean(frame) - (token + 0.5) * step) < 2

    cells = opened.locator(".vv-cells")
    cells.scroll_into_view_if_needed()
    place = box(opened, ".vv-cells")

    def at(query: int, key: int) -> tuple[float, float]:
        return place["x"] + (key + 0.5) / 81 * place["width"], place["y"] + (query + 0.5) / 81 * place["height"]

    opened.mouse.move(*at(seen.trace.token((5, 6)), seen.trace.token((0, 2))))
    assert title(opened) == "Layer 2, head 3, from patch row 6, column 7"
    value = values[seen.trace.token((5, 6)), seen.trace.token((0, 2))]
    found = re.search(r"Row 1, column 3: ([\d.]+ %)", opened.locator(".vv-note").inner_text())
    assert found
    assert viewer_pages.number(found[1]) == pytest.approx(value, abs=2.6e-3)
    opened.mouse.move(*at(2, 40))
    assert title(opened).endswith("from register 2")
    opened.mouse.move(place["x"] - 3, place["y"] + 5)
    assert title(opened).endswith("from CLS")
    opened.mouse.click(*at(30, 30))
    opened.mouse.move(5, 5)
    assert state(opened, "pinned") is True
    assert title(opened).endswith(f"row {26 // 11 + 1}, column {26 % 11 + 1}")


def test_a_screen_reader_hears_the_readout_once_it_rests(opened: Page) -> None:
    live = opened.locator(".vv-live")
    expect(live).to_have_attribute("aria-live", "polite")
    for patch in ((0, 0), (2, 2), (4, 9)):
        hover(opened, view(), *patch)
    first = opened.locator(".vv-strongest li").first
    row, column = map(int, re.findall(r"\d+", first.locator("button").inner_text()))
    expect(live).to_contain_text("Layer 3, mean of 5 heads, from patch row 5, column 10.")
    expect(live).to_contain_text(opened.locator(".vv-note").inner_text())
    expect(live).to_contain_text(f"Strongest: row {row}, column {column}, {first.locator('span').inner_text()}.")
