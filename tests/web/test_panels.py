"""Compare Explain, Heads and Layers in a real browser with Python's numbers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from offered import SPOTS
from patience import wait_until
from PIL import Image
from playwright.sync_api import Locator, expect
from playwright.sync_api import Page as Browser
from running import CHURCH, CLOSE, DOG, SCENE, Gate, Running, address, example, expect_map, ready, settled, upload
from viewer_pages import pixels

from vitviz.attribution.registry import METHODS
from vitviz.evaluation.evidence import find_set
from vitviz.formatting import output, percent
from vitviz.heatmap import Heatmap
from vitviz.view import View

QUESTIONS = "**/vitviz/*"
FLAT = f'"values": {[0.0] * 7 * 11}'  # of the tiny model's grid
SUMS = "Contributions to the score"
TABS = {"Why": "Why", "Heads": "Inside", "Layers": "Inside", SUMS: "Inside"}  # the tab of each section


def view_of(name: str) -> str:
    """Return JavaScript that finds a view of the page."""
    return f"vitviz.panels.find(({{ root }}) => root.matches('{name}'))"


def tab(page: Browser, name: str) -> Locator:
    """Open the tab of a section, and return the section."""
    page.get_by_role("tab", name=TABS[name]).click()
    panel = page.locator(f".vv-tab[aria-label='{name}']")
    expect(panel).to_be_visible()
    return panel


def explained(page: Browser) -> Locator:
    """Wait until the panel of explanations shows a map, and return the panel."""
    panel = tab(page, "Why")
    expect(panel.locator(".vv-low")).not_to_have_text("")
    return panel


def expect_drawn(page: Browser, panel: Locator, heatmap: Heatmap) -> None:
    """Check that the panel shows this map: its title, and its colors within 1.5 steps of 255."""
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
    scale = heatmap.scale()
    low, high = scale.vmin, scale.vmax
    expected = 255 * (heatmap.values.clip(low, high) - low) / (high - low)

    def off() -> float:
        index = np.array(page.evaluate(f"Array.from({view_of('.vv-explain')}.mapPane.pane.index)"))
        return float(np.abs(index.reshape(expected.shape) - expected).max()) if index.size == expected.size else 255

    wait_until(lambda: off() <= 1.5, heatmap.title)


def bars(page: Browser, panel: Locator) -> dict[str, float]:
    """Wait until no question is running, and return the bars by class."""
    settled(page)
    rows = panel.locator(".vv-moved li").all()
    return {
        row.locator(".vv-name").inner_text(): float(row.locator("i").get_attribute("style").split(":")[1].split(";")[0])
        for row in rows
    }


def after_drop(view: View, shown: dict[str, float], **gone: list[tuple[int, int]]) -> dict[str, float]:
    """Return the probabilities of the shown classes without these patches or heads."""
    after = view.intervene(**gone).after[0]
    return {label: after[view.labels.index(label)] for label in shown}


def choose(panel: Locator, field: str, label: str) -> None:
    """Type the name of a class into a field of Explain, and choose it with Enter."""
    panel.locator(f"[data-field={field}] input").fill(label)
    panel.locator(f"[data-field={field}] input").press("Enter")


def strongest(view: View, method: str, share: float) -> list[tuple[int, int]]:
    rows, columns = view.trace.grid
    order = np.argsort(-view.explain(method).values.ravel(), kind="stable")[: round(share * rows * columns)]
    return [divmod(int(patch), columns) for patch in order]


def test_explain_maps_match_python(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    heatmap = view.explain("gae")
    expect_drawn(opened, panel, heatmap)
    expect(panel.locator(".vv-about")).to_contain_text(re.compile(r"Outside the picture: \d\.\d+ on CLS"))
    target, against = (panel.locator(f"[data-field={name}] input") for name in ("target", "against"))
    expect(target).to_have_value(view.predictions(1)[0][0])
    expect(panel.locator("[data-field=method] option")).to_have_count(len(METHODS))
    expect(panel.locator(".vv-moved")).to_be_visible()
    assert bars(opened, panel) == pytest.approx(dict(view.predictions(5)), abs=1e-4)
    expect(panel.locator(".vv-moved small:not(:empty)")).to_have_count(0)  # nothing is hidden, so nothing "was"
    panel.locator(".vv-picture").focus()  # keys move over a map
    opened.keyboard.press("ArrowUp")
    rows, columns = view.trace.grid
    expect(panel.locator(".vv-note")).to_contain_text(f"Row {rows // 2}, column {columns // 2 + 1}: ")
    choose(panel, "target", "thing 7")
    choose(panel, "against", "thing 3")
    panel.locator("[data-field=method]").select_option("attn_lrp")
    heatmap = view.explain("attn_lrp", contrast=("thing 7", "thing 3"))
    assert heatmap.signed
    expect_drawn(opened, panel, heatmap)
    choose(panel, "target", "thing 3")  # a class is not compared with itself
    expect(against).to_have_value("any other")
    expect(opened.locator(".vv-message")).to_contain_text("compared with all others")


def test_faithfulness_and_removal_match_python(opened: Browser, app: Running) -> None:
    panel, view = explained(opened), app.view()
    columns, gone = view.trace.grid[1], [(2, 3), (4, 9), (5, 9)]  # hidden by clicks
    held = panel.locator(".vv-held")
    scale = held.bounding_box()["width"] / view.photo.width
    for row, column in gone:
        left, top, right, bottom = view.geometry.patch_box(row, column, view.trace.grid)
        held.click(position={"x": scale * (left + right) / 2, "y": scale * (top + bottom) / 2})
    expect(panel.locator(".vv-moved small").first).not_to_have_text("")
    shown = bars(opened, panel)
    assert opened.evaluate("vitviz.store.get().erased") == [row * columns + column for row, column in gone]
    assert shown == pytest.approx(after_drop(view, shown, drop=gone), abs=2e-3)
    panel.locator("[data-do=restore]").click()
    assert bars(opened, panel) == pytest.approx(dict(view.predictions(5)), abs=1e-3)
    untested = panel.locator(".vv-verdict").inner_text()
    panel.locator("[data-do=test]").click()
    expect(panel.locator(".vv-chart")).to_have_count(2)
    test = view.faithfulness(view.explain("gae"))[0]
    expect(panel.locator(".vv-verdict")).to_have_text(test.describe())
    chart = panel.locator(".vv-chart").first
    assert f"Area {test.deletion.area:.2f}" in chart.locator("svg").get_attribute("aria-label")
    best = panel.locator("[data-field=method] option").first  # the best method comes first
    expect(best).to_have_attribute("value", "gae")
    expect(best).to_contain_text(f"{abs(test.gain):.2f}")
    panel.locator("input[data-do=away]").fill("60")
    expect(panel.locator(".vv-moved small").first).not_to_have_text("")
    shown = bars(opened, panel)
    assert shown == pytest.approx(after_drop(view, shown, drop=strongest(view, "gae", 0.6)), abs=2e-3)
    panel.locator("[data-field=method]").select_option("legrad")  # another map has no test, and different patches
    expect(panel.locator(".vv-chart")).to_have_count(0)
    expect(panel.locator(".vv-verdict")).to_have_text(untested)
    expect(panel.locator(".vv-title")).to_have_text(view.explain("legrad").title)


def test_failed_questions_are_reported_and_retried(opened: Browser) -> None:
    for names in (("Why",), ("Heads", "Layers")):
        opened.route(QUESTIONS, lambda route: route.fulfill(status=502))
        for name in names:
            expect(tab(opened, name).locator(".vv-trouble")).to_contain_text("The server does not answer")
        opened.unroute(QUESTIONS)
        opened.get_by_role("tab", name="Look").click()
        expect(opened.locator(".vv-explore")).to_be_visible()  # a frame without the tab lets its questions be repeated
        for name in names:
            panel = tab(opened, name)
            expect(panel.locator(".vv-moved li, .vv-dot, .vv-alike canvas").first).to_be_visible()
            expect(panel.locator(".vv-trouble")).to_be_hidden()
    panel = explained(opened)
    words = json.dumps({"error": {"kind": "failed", "text": "Nobody answers."}})
    opened.route("**/vitviz/explain", lambda route: route.fulfill(body=f"{words}\n"))
    panel.locator("[data-field=method]").select_option("legrad")
    expect(panel.locator(".vv-trouble")).to_have_text("Nobody answers.")
    expect(panel.locator(".vv-note")).not_to_contain_text("Computing")
    expect(panel.locator(".vv-title")).to_have_text("LeGrad")  # without the map of the previous method
    expect(panel.locator(".vv-low")).to_have_text("")
    opened.unroute("**/vitviz/explain")
    flat = lambda route: route.fulfill(body=re.sub(r'"values": ?\[.*?\]', FLAT, route.fetch().text()))  # noqa: E731
    opened.route("**/vitviz/explain", flat)
    panel.locator("[data-field=method]").select_option("attn_lrp")
    expect(panel.locator(".vv-note")).to_contain_text("All patches have the same value")
    opened.unroute("**/vitviz/explain")
    panel.locator("[data-field=method]").select_option("rollout")
    expect(panel.locator(".vv-note")).not_to_contain_text("All patches have the same value")
    expect(panel.locator(".vv-trouble")).to_be_hidden()
    expect(panel.locator(".vv-title")).to_contain_text("Rollout of layers 1 to ")
    expect(panel.locator(".vv-low")).not_to_have_text("")


def test_all_methods_are_ranked_and_use_the_width_of_the_page(opened: Browser, tmp_path: Path) -> None:
    Image.open(DOG).resize((500, 760)).save(tmp_path / "tall.png")
    upload(opened, tmp_path / "tall.png")
    opened.wait_for_function(f"{SCENE}?.source.photo")
    panel = explained(opened)
    quick = [name for name, method in METHODS.items() if not method.slow]
    run, left_out = panel.locator("[data-do=all]"), panel.locator(".vv-left-out")
    expect(run).to_have_text("Compare all")
    expect(left_out).to_have_text(re.compile(r"Skips \w+ slow methods; run those individually\."))
    expect(left_out).not_to_contain_text("best")
    run.click()
    expect(left_out).to_contain_text("best on top")
    expect(run).to_have_text("Compare all")
    expect(panel.locator(".vv-beside h2")).to_have_text("All maps side by side, best first")
    expect(panel.locator(".vv-all button")).to_have_count(len(quick))
    texts = panel.locator(".vv-all small").all_inner_texts()
    numbers = [float(re.search(r"\d\.\d\d", text).group()) for text in texts]
    gains = [-number if "below" in text else number for text, number in zip(texts, numbers, strict=True)]
    assert gains == sorted(gains, reverse=True)
    expect(panel.locator(".vv-one-scale")).to_contain_text("own scale")
    expect(panel.locator(".vv-all button").first).to_have_attribute("aria-pressed", "true")  # the best is shown
    settled(opened)
    assert panel.locator(".vv-beside").bounding_box()["width"] > 800
    assert opened.evaluate("document.documentElement.scrollHeight") < 2450


def test_the_explanation_of_a_method_has_a_figure_of_the_photograph(opened: Browser, app: Running) -> None:
    panel, view = explained(opened), app.view()
    rows, columns = view.trace.grid
    panel.locator(".vv-choice .vv-i summary").click()
    for method in ("gae", "attn_lrp"):  # one without signs and one with them
        panel.locator("[data-field=method]").select_option(method)
        heatmap = view.explain(method)
        expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
        settled(opened)
        drawn = pixels(opened, "() => document.querySelector('[data-figure=method]')")[..., :3]
        assert drawn.shape == (rows, 2 * columns + 1, 3)
        for left, shown in ((0, view.attention()), (columns + 1, heatmap)):  # the attention, then the map of the method
            name = "RdBu_r" if shown.signed else "spotlight"
            table = np.reshape(opened.evaluate("name => [...vitviz.colors[name]]", name), (256, 3))
            wanted = table[shown.scale().indices(shown.values, 1.0)]
            assert np.abs(drawn[:, left : left + columns] - wanted).mean() < 1


def test_two_models_of_one_photograph_show_the_difference_of_their_maps(
    page: Browser, app: Running, models: dict[str, str]
) -> None:
    second = models["reversed"]
    ready(page, f"{app.url}?tab=why&pane=1&model2={second}&method=gae&difference=1")
    panel = page.locator(".vv-explain")
    expect(panel.locator(".vv-title").nth(1)).to_contain_text("second map minus first map")
    maps = [app.view(**options).explain("gae", "thing 3").values.clip(0) for options in ({}, {"model": second})]
    choose(panel, "target", "thing 3")
    settled(page)
    shown = page.evaluate(f"{view_of('.vv-explain')}.between.values")
    left, right = (values / values.mean() for values in maps)
    np.testing.assert_allclose(shown, (right - left).ravel(), atol=1e-3)
    panel.get_by_text("Difference of the two maps").click()
    expect(panel.locator(".vv-title").nth(1)).not_to_contain_text("minus")


def test_asking_for_the_rival_class_keeps_the_method(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    panel.locator("[data-field=method]").select_option("legrad")
    panel.locator("[data-do=versus]").click()
    settled(opened)
    expect(panel.locator("[data-field=method]")).to_have_value("legrad")
    assert address(opened)["method"] == "legrad"


def test_another_click_or_tab_cancels_a_running_question(opened: Browser) -> None:
    panel = explained(opened)
    gate = Gate(opened, "**/vitviz/explain")
    panel.locator("[data-field=method]").select_option("legrad")
    expect(panel.locator(".vv-title")).to_have_text("LeGrad")
    expect(panel.locator(".vv-low")).to_have_text("")  # the previous map is removed
    gate.wait()
    with opened.expect_event("requestfailed", lambda request: "legrad" in (request.post_data or "")):
        panel.locator("[data-field=method]").select_option("attn_lrp")
    with opened.expect_event("requestfailed", lambda request: "attn_lrp" in (request.post_data or "")):
        opened.get_by_role("tab", name="Look").click()
    gate.open()


def test_slow_method_starts_and_stops_on_request(opened: Browser) -> None:
    panel = explained(opened)
    gate = Gate(opened, "**/vitviz/explain")
    panel.locator("[data-field=method]").select_option("kernel_shap")
    method = METHODS["kernel_shap"]
    note, status, run = panel.locator(".vv-note"), opened.locator("#status"), panel.locator("[data-do=run]")
    expect(panel.locator(".vv-title")).to_have_text(method.title)
    expect(panel.locator(".vv-method-about")).to_have_text(method.about)
    expect(panel.locator(".vv-about")).to_contain_text(method.paper)
    settled(opened)
    assert not gate.held  # the method is selected, but not started
    run.click()
    expect(note).to_contain_text(f"Computing {method.title}")
    expect(status).to_be_visible()
    expect(run).to_have_text("Stop")
    gate.wait()
    run.click()
    expect(status).to_be_hidden()
    expect(note).to_have_text("")
    run.click()
    gate.wait(2)
    example(opened, "Dog")  # another photograph stops the method, and does not restart it
    opened.wait_for_function(f"{SCENE}?.manifest.image === 'Dog'")
    settled(opened)
    expect(run).to_contain_text(f"Run {method.title}")
    assert len(gate.held) == 2
    expect(panel.locator("[data-field=method]")).to_have_value("kernel_shap")


@pytest.mark.tier("all")
def test_address_restores_explain_and_heads(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    choose(panel, "target", "thing 7")
    panel.locator("[data-field=method]").select_option("legrad")
    panel.locator("input[data-do=away]").fill("30")
    opened.reload()
    panel = opened.locator(".vv-explain")
    expect_drawn(opened, panel, app.view().explain("legrad", "thing 7"))
    expect(panel.locator("input[data-do=away]")).to_have_value("30")
    expect(panel.locator(".vv-moved small").first).not_to_have_text("")
    opened.get_by_role("tab", name="Inside").click()
    panel = opened.locator(".vv-heads-view")
    panel.locator("[data-field=statistic]").select_option("mass_cls")
    panel.locator("[data-field=off]").check()
    cell = panel.locator(".vv-cell[data-place='2,1']")
    cell.click()
    opened.reload()
    expect(panel.locator("[data-field=statistic]")).to_have_value("mass_cls")
    expect(cell).to_have_attribute("aria-pressed", "true")
    opened.go_back()
    expect(cell).to_have_attribute("aria-pressed", "false")


def test_heads_tab_matches_python_and_switches_heads_off(opened: Browser, app: Running, small: str) -> None:
    panel = tab(opened, "Heads")
    view = app.view()
    expect(panel.locator(".vv-dot")).to_have_count(view.trace.depth * view.trace.heads)
    statistics = view.heads(["distance", "mass_cls"])
    cells = panel.locator(".vv-cell")
    shown = [float(text) for text in cells.all_inner_texts()]
    np.testing.assert_allclose(shown, statistics["distance"].ravel(), rtol=0.006)
    assert len({len(text.partition(".")[2]) for text in cells.all_inner_texts()}) == 1  # equal decimals
    ticks = panel.locator(".vv-dots g text").all_text_contents()
    assert all(len(tick.strip("0.")) <= 1 for tick in ticks), ticks  # round numbers
    panel.locator(".vv-dot[data-place='1,2']").hover()
    expect(panel.locator(".vv-title")).to_have_text(view.attention(1, 2).title)  # a dot is a head as a cell is
    panel.locator(".vv-dot[data-place='1,2']").click()
    expect(opened.locator(".vv-explore .vv-title")).to_have_text(view.attention(1, 2).title)
    panel = tab(opened, "Heads")
    maps = panel.locator(".vv-grid button")  # and so is its map in the wall
    expect(maps).to_have_count(view.trace.depth * (view.trace.heads + 1))
    settled(opened)
    for block, head in ((0, "mean"), (2, 1)):
        button = panel.locator(f".vv-grid [data-value='{block},{head}']")
        button.hover()
        heatmap = view.attention(block, head)
        expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
        place = int(button.get_attribute("data-place"))
        shown = opened.evaluate(f"[...{view_of('.vv-heads-view')}.walls.grid.index[{place}]]")
        wanted = heatmap.scale().indices(heatmap.values, 1.0).ravel()
        assert np.abs(np.array(shown, int) - wanted).max() <= 1
    maps.nth(1).click()
    expect(opened.locator(".vv-explore .vv-title")).to_have_text(view.attention(0, 0).title)
    panel = tab(opened, "Heads")
    assert cells.evaluate_all("(all) => all.filter((cell) => cell.tabIndex === 0).length") == 1
    cells.first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.place") == "2,1"
    panel.locator("[data-field=statistic]").select_option("mass_cls")
    expect(cells.first).to_have_text(re.compile(r"^[\d.]+\xa0%$"))
    assert float(cells.first.inner_text()[:-2]) == pytest.approx(100 * statistics["mass_cls"][0, 0], rel=0.01)
    panel.locator("[data-field=statistic]").select_option("ablation_probability")
    expect(panel.locator(".vv-chart-title")).to_have_text("Probability drop")
    settled(opened)
    assert "−0\xa0%" not in cells.all_inner_texts()
    panel.locator("[data-field=off]").check()
    off = [(2, 0), (2, 3), (1, 4)]
    panel.locator(".vv-grid [data-value='2,0']").click()
    panel.locator(".vv-grid [data-value='2,mean']").click()  # not a head
    for block, head in off[1:]:
        panel.locator(f".vv-cell[data-place='{block},{head}']").click()
    expect(panel.locator(".vv-title")).to_have_text(f"{view.attention(1, 4).title}: off")
    expect(panel.locator(".vv-off")).to_contain_text("Off: 3 of 15, layer.head 3.1, 3.4, 2.5")
    expect(panel.locator(".vv-moved small").first).not_to_have_text("")
    shown = bars(opened, panel)
    assert shown == pytest.approx(after_drop(view, shown, heads=off), abs=1e-3)
    opened.get_by_role("tab", name="Look").click()
    expect(opened.locator(".vv-explore .vv-grid [data-value='1,4']")).to_have_class(re.compile("vv-is-off"))
    tab(opened, "Heads").locator("[data-do=on]").click()
    expect(panel.locator(".vv-off")).to_contain_text("All heads are on")
    panel.locator("[data-field=off]").uncheck()
    cell = panel.locator(".vv-cell[data-place='1,2']")
    cell.hover()
    heatmap = view.attention(1, 2)
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
    cell.click()
    expect_map(opened, heatmap)
    opened.evaluate("document.activeElement.blur()")
    opened.keyboard.press("]")  # hidden panels leave keys to the explorer
    expect_map(opened, view.attention(2, 2))
    panel = tab(opened, "Heads")
    Gate(opened, "**/vitviz/heads")
    source = {"model": small}
    opened.evaluate("(source) => vitviz.store.dispatch({ type: 'open', source })", source)
    opened.wait_for_function(f"{SCENE}?.manifest.model === {small!r}")
    expect(panel.locator(".vv-dot")).to_have_count(0)  # the previous model's numbers are removed
    assert not any(cells.all_inner_texts())


HIDE = """() => {
    Object.defineProperty(document, 'hidden', { value: true, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_layers_tab_matches_python_and_plays(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Layers")
    view = app.view()
    expect(panel.locator(".vv-alike canvas")).to_have_count(view.trace.depth)
    expect(panel.locator(".vv-read canvas")).to_have_count(view.trace.depth)
    read = view.lens(view.best(4))
    words = panel.locator(".vv-chart svg").get_attribute("aria-label")
    assert all(f"{name}: " in words for name in read.names)
    title, slider = panel.locator(".vv-title"), panel.get_by_role("slider", name="Layer")
    expect(title).to_have_text("Layer 3: patches that look alike to the model")
    panel.locator(".vv-read button").nth(1).click()
    expect(title).to_have_text(f"Layer 2: {read.names[0]}, predicted from each patch")
    expect(panel.locator(".vv-read button").nth(1)).to_have_attribute("aria-pressed", "true")
    panel.locator(".vv-alike button").nth(2).click()
    expect(title).to_have_text("Layer 3: patches that look alike to the model")
    expect(slider).to_have_value("3")
    slider.fill("1")
    expect(title).to_have_text("Layer 1: patches that look alike to the model")
    expect(panel.locator(".vv-playing .vv-number")).to_have_text("1 of 3")
    settled(opened)
    pane = f"{view_of('.vv-layers-view')}.pane"
    shown = pixels(opened, f"() => {pane}.heat.canvas")
    np.testing.assert_allclose(shown[..., :3] / 255, view.token_pca().colors[0], atol=1.01 / 255)
    opened.go_back()  # all moves of the slider are one step of the history
    expect(title).to_have_text("Layer 3: patches that look alike to the model")
    expect(slider).to_have_value("3")
    panel.locator(".vv-alike button").first.focus()
    opened.keyboard.press("[")  # keys act in every tab
    expect(slider).to_have_value("2")
    opened.keyboard.press("]")
    play = panel.locator("[data-do=play]")
    play.click()
    for layer in "123":
        expect(slider).to_have_value(layer)
    play.click()
    expect(play).to_have_text("▶ Play layers")
    play.click()
    expect(play).to_have_text("■ Stop layers")
    opened.evaluate(HIDE)
    expect(play).to_have_text("▶ Play layers")
    held = slider.input_value()
    # A remaining timer would step before this one, which waits for two steps.
    opened.evaluate("new Promise((done) => { setTimeout(done, 2 * vitviz.store.get().pace); })")
    expect(slider).to_have_value(held)


@pytest.mark.parametrize("kind", ["several", "value"])
def test_multi_label_and_regression_outputs_match_python(
    page: Browser, app: Running, models: dict[str, str], kind: str
) -> None:
    ready(page, f"{app.url}?model={models[kind]}")
    view, several, panel = app.view(model=models[kind]), kind == "several", page.locator(".vv-predictions")
    said = [output(value, view.model.problem_type) for _, value in view.predictions()]
    expect(panel.locator("h2")).to_have_text(view.describe())
    expect(panel.locator("ol li > span:last-child")).to_have_text(said)
    expect(panel.locator("ol li i").first).to_be_visible(visible=several)
    expect(panel.locator(".vv-known")).to_be_visible(visible=several)
    panel = explained(page)
    panel.locator("[data-do=test]").click()
    expect(panel.locator(".vv-charts svg")).to_have_count(2)
    (test,) = view.faithfulness(view.explain("gae"))
    expect(panel.locator(".vv-verdict")).to_have_text(test.describe())
    panel.locator("input[data-do=away]").fill("30")
    whole = output(float(test.deletion.probabilities[0]), view.model.problem_type)
    expect(panel.locator(".vv-moved small").first).to_have_text(f"was {whole}")
    title = f"{'Probability' if several else 'Value'} after each layer"
    expect(tab(page, "Layers").locator(".vv-charts svg text").filter(has_text=title)).to_have_count(1)


def test_bars_of_the_score_add_up_to_the_sum_of_python(opened: Browser, app: Running) -> None:
    panel, view = tab(opened, SUMS), app.view()
    sums = view.decompose()
    total = panel.locator(".vv-total")
    expect(total).to_contain_text("embedding + ")
    start, layers, constant, whole = (
        float(number.replace("−", "-")) for number in re.findall(r"−?\d+\.\d+", total.inner_text())
    )
    of_layers = sums.heads.sum() + sums.mlps.sum() + sums.biases.sum()
    expected = [sums.start, of_layers, sums.constant, sums.total]
    assert [start, layers, constant, whole] == pytest.approx(expected, abs=0.02)
    assert start + layers + constant == pytest.approx(whole, abs=1e-9)  # although each is rounded
    panel.locator(".vv-waterfall [data-layer='0']").click()
    expect(panel.locator(".vv-layer-sum")).to_have_text("Heads of layer 1")
    heads = panel.locator(".vv-head-bars [data-head]")
    expect(heads).to_have_count(view.trace.heads)
    shown = [float(text.replace("−", "-")) for text in panel.locator(".vv-head-bars small").all_inner_texts()]
    assert shown == pytest.approx([*sums.heads[0], sums.mlps[0], sums.biases[0]], abs=0.05 * np.abs(shown).max())
    heads.nth(1).hover()  # its map follows the pointer
    title = f"Layer 1, head 2: direct contribution of each patch to {sums.name}"
    expect(panel.locator(".vv-title")).to_have_text(title)
    values = opened.evaluate(f"{view_of('.vv-sums-view')}.heatmap.values")
    np.testing.assert_allclose(values, sums.tokens[0, 1, len(view.trace.prefix) :], atol=1e-6)
    heads.nth(1).click()
    assert opened.evaluate("vitviz.store.get().head") == 1


def test_estimates_beside_exact_runs_match_python_and_can_be_stopped(opened: Browser, app: Running) -> None:
    panel, view = tab(opened, SUMS), app.view()
    panel.locator(".vv-waterfall [data-layer='1']").click()
    settled(opened)
    gate = Gate(opened, "**/vitviz/heads")
    button = panel.locator("[data-do=exact]")
    button.click()
    gate.wait()
    expect(button).to_have_text("Stop")
    button.click()
    expect(button).to_have_text("Run again without each head")
    gate.open()
    settled(opened)
    dots = panel.locator(".vv-exact .vv-dot")
    expect(dots).to_have_count(0)
    fail = lambda route: route.fulfill(body='{"error": {"kind": "failed", "text": "No."}}\n')  # noqa: E731
    opened.route("**/vitviz/heads", fail)
    button.click()
    expect(panel.locator(".vv-exact .vv-refused")).to_have_text("No.")
    opened.unroute("**/vitviz/heads", fail)
    button.click()  # one click repeats what failed
    expect(dots).to_have_count(view.trace.heads)
    expect(button).to_be_hidden()
    table = view.heads(["estimated_logit", "ablation_logit"])
    shown = np.array([re.findall(r"[−\d][\d.]*", dot.text_content())[1:] for dot in dots.all()])
    shown = np.char.replace(np.char.rstrip(shown, "."), "−", "-").astype(float)  # (H, 2)
    expected = np.stack([table[name][1] for name in ("estimated_logit", "ablation_logit")], axis=1)
    np.testing.assert_allclose(shown, expected, atol=0.006 * np.abs(expected).max())


def test_values_from_the_other_photograph_match_python(opened: Browser, app: Running) -> None:
    panel, view, other = tab(opened, SUMS), app.view(), app.view(CHURCH.with_name("giraffe.jpg"))
    label, prefix = view.labels[view.best(1)[0]], len(view.trace.prefix)
    panel.locator(".vv-patching").get_by_text("Compare").click()  # leads to the second picture
    opened.evaluate(
        """() => {
            vitviz.store.dispatch({ type: 'open', source: { image: 'Giraffe' } });
            vitviz.store.dispatch({ type: 'activate', pane: 0 });
            vitviz.store.dispatch({ type: 'change', change: { tab: 'inside', block: 1, head: 2, query: [2, 3] } });
        }"""
    )
    said = panel.locator(".vv-patched li")
    token = prefix + 2 * view.trace.grid[1] + 3
    for place, (part, changes) in enumerate(
        {
            "head 3 of layer 2": {"heads": [(1, 2)]},
            "patch row 3, column 4 as it enters layer 2": {"tokens": [(1, token)]},
            "all that enters layer 2": {"stream": 1},
        }.items()
    ):
        panel.locator(".vv-patching").get_by_text(part, exact=True).click()
        change = view.patch(other, **changes, target=label)
        numbers = [percent(float(each[0])) for each in (change.target_before, change.target_after)]
        goes = f"goes from {numbers[0]} to {numbers[1]}" if numbers[0] != numbers[1] else f"stays at {numbers[0]}"
        expect(said.nth(place)).to_have_text(f"If {part} comes from Giraffe, {label} {goes}.")
    share = other.trace.logits.softmax(-1)[0, view.best(1)[0]].item()
    assert numbers[1] == percent(share)  # the whole stream: the other photograph's answer
    ask = """(size) => {
        const { store } = vitviz;
        store.dispatch({ type: 'activate', pane: 1 });
        store.dispatch({ type: 'open', source: { image: null, size } });
        store.dispatch({ type: 'activate', pane: 0 });
    }"""
    opened.evaluate(ask, 2 * view.trace.grid[0] * view.model.config.patch_size)
    for button in panel.locator(".vv-patching button[data-do]:not([data-do=compare])").all():
        button.click()  # the photograph patched with itself, opened again at the same grid
    expect(said).to_have_count(3)
    whole = percent(view.trace.logits.softmax(-1)[0, view.best(1)[0]].item())
    for words in said.all_inner_texts():
        assert words.replace("\xa0", " ").endswith(f"comes from Church, {label} stays at {whole}.")


def test_edge_of_a_pinned_patch_matches_python(opened: Browser, app: Running) -> None:
    view, point = app.view(), {"patch": [2, 3], "query": [2, 3], "pane": 0, "over": True}
    panel = opened.locator(".vv-edge")
    expect(panel).to_be_hidden()
    opened.evaluate(
        """(pointer) => {
            const { store } = vitviz;
            const change = { tab: 'look', query: [0, 1], block: 0, head: 1, open: ['edge'] };
            store.dispatch({ type: 'change', change });
            store.dispatch({ type: 'hover', pointer: { ...pointer, scene: store.get().scene.id } });
        }""",
        point,
    )
    edge = view.edge(0, 1, (0, 1), (2, 3), cut=True)
    words = f"Layer 1, head 2: row 1, column 2 gives {percent(edge.attention)} of its attention to row 3, column 4."
    expect(panel.locator(".vv-edge-words")).to_have_text(words)
    labels, texts = (panel.locator(f".vv-signed-bar {part}").all_inner_texts() for part in ("span", "small"))
    numbers = {label: float(text.replace("−", "-")) for label, text in zip(labels, texts, strict=True)}
    assert numbers["total"] == pytest.approx(edge.logit, abs=0.01 * abs(edge.terms).max())
    parts = sum(number for label, number in numbers.items() if label not in ("total", "by position alone"))
    assert parts == pytest.approx(edge.logit, abs=0.05 * abs(edge.terms).max())
    assert edge.writes is not None
    assert edge.cut is not None
    panel.get_by_text("What if the head could not look there?").click()  # the key stays though the pointer left it
    expect(panel.locator(".vv-edge-effect")).to_contain_text("(exact")
    effect = panel.locator(".vv-edge-effect").inner_text().replace(edge.target, "").replace("−", "-")
    shown = [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", effect)]
    assert shown == pytest.approx([edge.writes, edge.cut], rel=0.01, abs=1e-6)


def test_bright_spots_of_planted_neurons_match_python(page: Browser, app: Running, models: dict[str, str]) -> None:
    ready(page, f"{app.url}?model={models['spots']}&open=spots")
    view, panel = app.view(model=models["spots"]), page.locator(".vv-spots")
    found, words = view.sinks(), panel.locator(".vv-spots-words")
    for block in (0, 2):
        page.evaluate("(block) => vitviz.store.dispatch({ type: 'change', change: { block } })", block)
        spots = [sink for sink in found.sinks if sink.block == block]
        read, wrote = (percent(sum(getattr(sink, name) for sink in spots), 2) for name in ("attention", "written"))
        said = f"{len(spots)} patches take {read} of layer {block + 1}’s attention and write {wrote} of"
        expect(words).to_contain_text(said)
        marked = [sink.token - len(view.trace.prefix) for sink in spots]
        assert page.evaluate("vitviz.panels[0].marked") == marked
    for block, index in SPOTS:
        expect(words).to_contain_text(f"neuron {index + 1} of layer {block + 1} (")
    for layer, without in (("", found), ("Layer 2", view.sinks(block=1)), ("All these layers", found)):
        if layer:
            panel.get_by_text(layer, exact=True).click()
        settled(page)
        shown = {row.label: row.after for row in without.change.top(len(view.labels))}
        for row in panel.locator(".vv-moved li").all():
            expect(row.locator("> span").last).to_have_text(percent(shown[row.locator(".vv-name").inner_text()]))
    panel.get_by_role("button", name="Repair").click()
    labels = page.locator(".vv-explore .vv-pane .vv-of")
    expect(labels).to_have_text(["Church · Tiny spots", "Church · Tiny spots + 1 register"])
    hover = """() => {
        const pointer = { patch: [2, 3], query: [2, 3], pane: 0, over: true, scene: vitviz.store.get().scene.id };
        vitviz.store.dispatch({ type: 'hover', pointer });
    }"""
    page.evaluate(hover)  # both photographs follow the pointer
    settled(page)
    repaired = view.repair()
    for pane, each in enumerate((view, repaired)):
        expected = each.attention(2, "mean", (2, 3)).values.ravel()
        shown = page.evaluate(f"Array.from(vitviz.panels[0].saved({pane}).saved.values)")
        np.testing.assert_allclose(shown, expected, atol=CLOSE)
    assert "registers2=1" in page.url
    panel.get_by_role("button", name="Repair").click()
    expect(labels).to_have_count(1)
    page.goto(f"{app.url}?open=spots")
    expect(words).to_contain_text("None: no patch")
    expect(panel.get_by_role("button", name="Repair")).to_be_hidden()


def test_few_patches_that_are_enough_match_python_and_are_in_the_link(opened: Browser, app: Running) -> None:
    panel, view = explained(opened), app.view()
    (found, *_) = view.evidence(sets=1).sets
    panel.get_by_text("How few patches are enough?").click()
    words = panel.locator(".vv-few")
    expect(words).to_contain_text("no patch can be left out.")
    rows, columns = view.trace.grid
    expect(words).to_contain_text(f"{len(found.patches)} of {rows * columns} patches alone still say")
    expect(words).to_contain_text(percent(found.probability))
    numbers = {row * columns + column for row, column in found.patches}
    assert set(opened.evaluate("vitviz.store.get().erased")) == set(range(rows * columns)) - numbers
    assert "erased=" in opened.url
    panel.get_by_text("Are others enough, too?").click()
    (other,) = list(find_set(view.model, view.images, apart=found.patches))[-1:]
    expect(words).to_contain_text(f"{len(other.patches)} other of the {rows * columns} patches alone also say")
    expect(words).to_contain_text(percent(other.probability))
    panel.get_by_text("How few must be hidden to change it?").click()
    (change,) = list(find_set(view.model, view.images, removes=True))[-1:]
    expect(words).to_contain_text("back, it says so again.")
    hidden = set(opened.evaluate("vitviz.store.get().erased"))
    assert hidden == {row * columns + column for row, column in change.patches}
    panel.locator("[data-do=restore]").click()
    expect(words).to_have_text("")
