"""Compare numbers and pictures of the explorer's page, opened from disk and offline, with Python's."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viewer_pages
from browsing import menu_click, open_menu
from PIL import Image
from playwright.sync_api import Page, expect
from running import axe, expect_map, unfold
from viewer_pages import ask, box, hover, html, pixels, rest, show, view

from vitviz.draw.colors import lut
from vitviz.draw.overlay import overlay
from vitviz.export import numbers
from vitviz.heatmap import Heatmap, Scale
from vitviz.view import View
from vitviz.web.scene import saved_page


def test_pictures_match_python(offline: Page, tmp_path: Path) -> None:
    """tests/js compares the maps of models of all kinds."""
    text, seen = html(), view()
    show(offline, tmp_path, text)
    fields = ("query", "opacity", "smooth", "grid", "color", "gamma")
    start = offline.evaluate("(fields) => fields.map((field) => vitviz.store.get()[field])", fields)
    for change, look in LOOKS:
        ask(offline, **{**dict(zip(fields, start, strict=True)), **EVEN, **change})
        assert_picture(offline, text, seen, **look)


def test_page_without_rollout_has_no_control_for_it(offline: Page, tmp_path: Path) -> None:
    show(offline, tmp_path, html("too many for rollout"))
    expect(offline.locator(".vv-modes label")).to_have_text(["Attention"])
    offline.locator(".vv-picture").focus()
    offline.keyboard.press("r")
    expect(offline.get_by_role("alert")).to_contain_text("no rollout")
    assert viewer_pages.state(offline, "mode") == "attention"


def assert_picture(page: Page, text: str, seen: View, **look: Any) -> None:
    """Compare the page's picture with Python's overlay."""
    photo = viewer_pages.shown_photo(text)
    geometry = viewer_pages.scene(seen).picture[1]
    drawn = pixels(page, "(view) => view.panes[0].pane.flat()")
    values = np.array(page.evaluate("[...vitviz.panels[0].saved(0).saved.values]"), np.float32)
    python = np.asarray(overlay(photo, values.reshape(seen.trace.grid), geometry, **look))
    assert drawn.shape == (*python.shape[:2], 4)
    far = np.abs(drawn[..., :3].astype(int) - python.astype(int)).max(-1)
    assert far.max() <= 2, (far.max(), np.argwhere(far > 2)[:5].tolist())


EVEN = {"overlay": "even", "opacity": 0.55}  # Python's default
LOOKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"alpha": 0.55}),
    ({"smooth": True, "opacity": 0.8, "color": "magma"}, {"smooth": True, "alpha": 0.8, "cmap": "magma"}),
    ({"query": [1, 2], "grid": True, "gamma": 0.4}, {"query": (1, 2), "grid": True, "alpha": 0.55, "gamma": 0.4}),
]


def test_saved_picture_and_color_bar_match_the_map(explorer: Page, tmp_path: Path) -> None:
    with explorer.expect_download() as downloading:
        menu_click(explorer, "picture")
    downloading.value.save_as(tmp_path / "saved.png")
    saved = Image.open(tmp_path / "saved.png").convert("RGB")
    seen = pixels(explorer, "(view) => view.panes[0].pane.flat()")[..., :3]
    height, width = seen.shape[:2]
    high = round(height * saved.width / width)
    assert saved.width == 1890  # as print needs
    assert saved.height > high  # its caption is below
    small = np.asarray(saved.crop((0, 0, saved.width, high)).resize((width, height), Image.Resampling.BOX), int)
    assert np.abs(small - seen).mean() < 3
    ask(explorer, color="inferno", gamma=0.4)
    bar = pixels(explorer, "(view) => view.find('.vv-bar')")[0, :, :3]
    assert np.array_equal(bar, lut("inferno")[Scale(0.0, 1.0).indices(np.linspace(0, 1, 256), 0.4)])


def test_attribution_maps_match_python(offline: Page, tmp_path: Path) -> None:
    seen = view()
    rng = np.random.default_rng(3)
    signed = Heatmap(
        values=rng.normal(size=seen.trace.grid) + 0.2,
        geometry=seen.geometry,
        photo=seen.photo,
        title="Gradient times input",
        unit="score",
        signed=True,
        prefix_mass={"CLS": 0.25},
    )
    text = saved_page(viewer_pages.scene(seen, maps=[signed]))
    show(offline, tmp_path, text)
    ask(offline, **EVEN)
    offline.get_by_text("Gradient times input", exact=True).first.click()
    ask(offline, query=(1, 1))  # the query belongs to attention and is not framed
    assert_picture(offline, text, seen, signed=True, alpha=0.55)
    assert viewer_pages.title(offline) == "Gradient times input"
    said, limit = offline.locator(".vv-low, .vv-high, .vv-strongest span").all_inner_texts(), signed.scale().vmax
    wanted = [-limit, limit, *(value for _, value in signed.top())]  # scores instead of shares
    assert [viewer_pages.number(text) for text in said] == pytest.approx(wanted, rel=5e-3)
    expect(offline.locator(".vv-note")).to_contain_text("0.25 on CLS")
    expect(offline.locator(".vv-honest")).to_be_hidden()  # this text describes attention


LIGHT = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return Array.from({ length: data.length / 4 }, (_, at) => data[4 * at] + data[4 * at + 1] + data[4 * at + 2]);
}"""


def test_explained_words_have_figures_of_the_open_photograph(offline: Page, tmp_path: Path) -> None:
    seen = view(viewer_pages.FIRST)
    rows, columns = seen.trace.grid
    show(offline, tmp_path, html(viewer_pages.FIRST))
    offline.locator(".vv-honest .vv-i summary").click()
    offline.wait_for_function("document.querySelector('[data-figure=patch]').width === 96")
    for query in ((1, 2), (rows - 1, 0)):
        ask(offline, query=query, block=1, head=1)
        attention = seen.trace.row(1, query)[0, 1, len(seen.trace.prefix) :].numpy()
        light = offline.locator("[data-figure=map]").evaluate(LIGHT)
        assert light[attention.argmax()] == max(light) > light[attention.argmin()] == min(light)
    offline.wait_for_function("document.querySelector('[data-figure=head]').height > 0 && vitviz.resting()")
    sizes = offline.eval_on_selector_all(
        "[data-figure=layer], [data-figure=head]", "all => all.map(({ width, height }) => [width, height])"
    )
    counts = [seen.trace.depth, seen.trace.heads]
    assert sizes == [[min(6, n) * (columns + 1) - 1, -(-n // 6) * (rows + 1) - 1] for n in counts]


def test_page_from_disk_passes_axe_without_overflow(page: Page, tmp_path: Path) -> None:
    said: list[str] = []
    note = lambda message: said.append(message.text) if message.type == "error" else None  # noqa: E731
    page.on("console", note)
    for kind in (viewer_pages.FIRST, "any shape"):
        page.emulate_media(color_scheme="light")
        show(page, tmp_path, html(kind))
        unfold(page)
        for compare in (False, True):
            if compare:
                menu_click(page, "compare")
                hover(page, view(kind), 1, 1, pane=1)
            for width in (390, 1024, 1440):
                page.set_viewport_size({"width": width, "height": 844})
                rest(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                held, photo = box(page, ".vv-held"), view(kind).photo
                assert held["width"] / held["height"] == pytest.approx(photo.width / photo.height, rel=0.01)
                if not compare:
                    assert held["y"] + held["height"] < 844 - 100  # on the first screen, with words below
    ask(page, query=(2, 3), head=1)
    page.evaluate("vitviz.store.dispatch({ type: 'message', texts: ['A message.'] })")
    for scheme, rules in (("light", ()), ("dark", ("color-contrast",))):
        page.emulate_media(color_scheme=scheme)
        assert not axe(page, *rules)
        menu_click(page, "help")
        assert not axe(page, *rules)
        page.keyboard.press("Escape")
    page.remove_listener("console", note)
    assert said == []


def test_layout_does_not_depend_on_the_pointer(explorer: Page) -> None:
    places = """() => [...document.querySelectorAll('.vv-grid, .vv-controls, .vv-more, .vv-side > *')].map((e) =>
        Math.round(e.getBoundingClientRect().top))"""
    before = explorer.evaluate(places)
    hover(explorer, view(), 3, 4)
    assert explorer.evaluate(places) == before
    explorer.mouse.click(*viewer_pages.centre(explorer, view(), 6, 10))
    hover(explorer, view(), 0, 1)
    assert explorer.evaluate(places) == before


@pytest.mark.tier("all")
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.5001])
def test_truncated_page_reports_missing_parts_and_shows_the_rest(offline: Page, tmp_path: Path, keep: float) -> None:
    ((start, block),) = re.findall(r'(<script type="text/plain" id="block-1">)([^<]*)', html())
    offline.goto(viewer_pages.write(tmp_path, html().replace(start + block, start + block[: int(len(block) * keep)])))
    expect(offline.get_by_role("alert")).to_contain_text("layer 2")
    expect(offline.get_by_role("alert")).to_contain_text("cut short")
    offline.wait_for_function(f"{viewer_pages.SCENE}.answers.has(0)")
    for block in (0, 2):
        ask(offline, block=block, query=(2, 2), gamma=1, color="viridis")
        expect_map(offline, view().attention(block, query=(2, 2)))
    ask(offline, block=1)
    expect(offline.locator(".vv-title")).to_contain_text("Layer 2 could not be loaded")
    expect(offline.locator(".vv-strongest li")).to_have_count(0)
    assert pixels(offline, "(view) => view.panes[0].pane.heat.canvas")[..., 3].max() == 0
    ask(offline, mode="rollout")
    expect(offline.locator(".vv-title")).to_contain_text("Rollout of layers 1 to 3")
    ask(offline, mode="attention", block=2)
    assert pixels(offline, "(view) => view.panes[0].pane.heat.canvas")[..., 3].max() == 255
    offline.goto(viewer_pages.write(tmp_path, html()[: len(html()) // 2]))  # truncated
    expect(offline.get_by_role("alert")).to_contain_text("cut short")


def test_saved_numbers_match_the_command_line(explorer: Page, tmp_path: Path) -> None:
    def saved(what: str, choice: str) -> Path:
        menu = explorer.locator(f".vv-save:has(summary[aria-label='Save {what}'])")
        open_menu(explorer)
        menu.locator("summary").click()
        with explorer.expect_download() as download:
            menu.get_by_role("button", name=choice).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        expect(menu.locator("button").first).to_be_hidden()
        return path

    ask(explorer, block=1, head=2, query=[3, 4])
    seen = view()
    python = seen.attention(1, 2, (3, 4))
    path = saved("this map", "Numbers (CSV)")
    record, values = numbers.read(path)
    (_, columns, *rows), (_, python_columns, *python_rows) = (
        file.read_text(encoding="utf-8").splitlines() for file in (path, numbers.save(seen, python, tmp_path / "a.csv"))
    )
    assert columns == python_columns
    ours, pythons = (np.loadtxt(lines, delimiter=",") for lines in (rows, python_rows))
    ours[:, 3:] *= seen.photo.width / record["photo"]["size"][0]  # the page's photograph has another size
    np.testing.assert_allclose(ours, pythons, rtol=5e-3, atol=2e-3)
    assert record["map"]["title"] == python.title
    assert record["map"]["outside"] == pytest.approx(dict(python.prefix_mass), abs=2e-3)
    assert numbers.replay(path, photo=seen.photo, model=seen.model).equal
    again, same = numbers.read(saved("this map", "Numbers (NPZ)"))
    np.testing.assert_array_equal(same, values)
    assert again == record
    with np.load(saved("all heads of all layers", "Numbers (NPZ)"), allow_pickle=False) as file:
        heads = np.stack([heatmap.values for heatmap in seen.head_maps(1, (3, 4))])
        np.testing.assert_allclose(file["values"][7:12], heads, atol=2e-3)  # after a layer's heads and two means
    for what in ("this map", "all heads of all layers"):
        assert Image.open(saved(what, "Picture (PNG)")).width >= 1700


def test_notebook_shows_explorer_in_frame_over_picture(offline: Page, tmp_path: Path) -> None:
    offline.goto(viewer_pages.write(tmp_path, f"<!doctype html>{view()._repr_html_()}"))
    expect(offline.frame_locator("iframe").locator(".vv-title")).to_contain_text("Layer 3")
    top = "() => document.elementFromPoint(200, 200).tagName"
    assert offline.evaluate(top) == "IFRAME"
    offline.evaluate("document.querySelector('iframe').remove()")  # like JupyterLab for an untrusted notebook
    assert offline.evaluate(top) == "IMG"
    assert offline.evaluate("document.querySelector('img').naturalWidth") > 400
