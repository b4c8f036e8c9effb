"""Test the views Explain, Heads and Layers in a real browser against Python's numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import DOG, MODEL, SCENE, Gate, Running, axe, example, expect_map, folder, ready

from vitviz.attribution.registry import METHODS
from vitviz.formatting import percent
from vitviz.heatmap import Heatmap

SLOW = 60_000  # milliseconds; the model runs many times
QUESTIONS = "**/vitviz/*"


def view_of(name: str) -> str:
    """A view of the page, in JavaScript."""
    return f"vitviz.views.find(({{ root }}) => root.matches('{name}'))"


def settled(page: Browser) -> None:
    """Wait until no question of the views is under way."""
    page.wait_for_timeout(300)
    page.wait_for_function("vitviz.progress.jobs.size === 0 && vitviz.resting()", timeout=SLOW)


def tab(page: Browser, name: str) -> Any:
    """Go to a view and return its section."""
    page.get_by_role("tab", name=name).click()
    panel = page.locator(f".vv-tab[aria-label='{LABELS[name]}']")
    expect(panel).to_be_visible()
    return panel


LABELS = {"Explain": "Why this answer", "Heads": "Heads", "Layers": "Layers"}


def explained(page: Browser) -> Any:
    """The panel of explanations, once it shows a map."""
    panel = tab(page, "Explain")
    expect(panel.locator(".vv-low")).not_to_have_text("", timeout=SLOW)
    return panel


def drawn(page: Browser, heatmap: Heatmap) -> float:
    """How far the colours over the photograph are from a map's, in steps of 255."""
    index = np.array(page.evaluate(f"Array.from({view_of('.vv-explain')}.index)")).reshape(heatmap.values.shape)
    scale = heatmap.scale()
    low, high = scale.vmin, scale.vmax
    return float(np.abs(index - 255 * (heatmap.values.clip(low, high) - low) / (high - low)).max())


def bars(panel: Any) -> dict[str, float]:
    """What the bars say, by class."""
    rows = panel.locator(".vv-moved li").all()
    return {
        row.locator(".vv-name").inner_text(): float(row.locator("i").get_attribute("style").split(":")[1].split(";")[0])
        for row in rows
    }


def test_it_opens_with_a_map_of_the_predicted_class(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    heatmap = view.explain("gae")
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
    assert drawn(opened, heatmap) <= 1.5
    outside = panel.locator(".vv-about")
    expect(outside).to_contain_text(re.compile(r"Outside the picture: \d\.\d+ on CLS"))
    said = re.search(r"([\d.]+) on CLS", outside.inner_text())
    assert said is not None
    assert float(said[1]) == pytest.approx(heatmap.prefix_mass["CLS"], rel=0.05)
    expect(panel.locator("[data-ask=target]")).to_have_value(str(view.best(1)[0]))
    expect(panel.locator(".vv-method")).to_have_count(len(METHODS))
    expect(panel.locator(".vv-moved")).to_be_visible(timeout=SLOW)
    assert bars(panel) == pytest.approx(dict(view.predictions(5)), abs=1e-4)


def test_another_class_and_another_method(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    panel.locator("[data-ask=target]").select_option(label="parachute")
    panel.locator("[data-method=legrad]").click()
    heatmap = view.explain("legrad", "parachute")
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title, timeout=SLOW)
    assert drawn(opened, heatmap) <= 1.5
    panel.locator("[data-ask=against]").select_option(label="church")
    panel.locator("[data-method=attn_lrp]").click()
    heatmap = view.explain("attn_lrp", contrast=("parachute", "church"))
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title, timeout=SLOW)
    assert heatmap.signed
    assert drawn(opened, heatmap) <= 1.5
    panel.locator("[data-method=rollout]").click()
    expect(panel.locator(".vv-title")).to_have_text(view.explain("rollout").title, timeout=SLOW)


def test_a_map_is_tested_beside_it_and_its_test_goes_with_it(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    untested = panel.locator(".vv-verdict").inner_text()
    panel.locator("[data-do=test]").click()
    expect(panel.locator(".vv-chart")).to_have_count(2, timeout=SLOW)
    test = view.faithfulness(view.explain("gae"))[0]
    expect(panel.locator(".vv-verdict")).to_have_text(test.describe())
    said = panel.locator(".vv-chart svg").first.get_attribute("aria-label")
    assert f"Area {test.deletion.area:.2f}" in said
    points = panel.locator(".vv-chart").first.locator("polyline").first.get_attribute("points").split(" ")
    down = np.array([float(point.split(",")[1]) for point in points])  # in the drawing, from its top
    ticks = (
        panel.locator(".vv-chart")
        .first.locator(".vv-rule")
        .evaluate_all("(rules) => rules.map((rule) => rule.getBBox().y)")
    )
    np.testing.assert_allclose((ticks[0] - down) / (ticks[0] - ticks[2]), test.deletion.probabilities, atol=2e-3)
    expect(panel.locator("[data-method=gae] small")).to_contain_text(f"{test.gain:+.2f} over random")
    assert panel.locator(".vv-method").first.get_attribute("data-method") == "gae"  # the best first
    panel.locator("[data-method=legrad]").click()
    expect(panel.locator(".vv-chart")).to_have_count(0, timeout=SLOW)
    expect(panel.locator(".vv-verdict")).to_have_text(untested)


def test_the_bars_are_without_the_patches_of_the_map_on_show(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    panel.locator("input[data-do=away]").fill("60")
    expect(panel.locator(".vv-moved small").first).not_to_have_text("", timeout=SLOW)
    panel.locator("[data-method=legrad]").click()
    rows, columns = view.trace.grid
    gone = np.argsort(-view.explain("legrad").values.ravel(), kind="stable")[: round(0.6 * rows * columns)]
    change = view.intervene(drop=[divmod(int(patch), columns) for patch in gone])
    after = dict(zip(view.labels, change.after[0], strict=True))
    expect(panel.locator(".vv-title")).to_have_text(view.explain("legrad").title, timeout=SLOW)
    settled(opened)
    assert bars(panel) == pytest.approx({label: after[label] for label in bars(panel)}, abs=2e-3)


def test_an_error_goes_when_it_is_mended(opened: Browser) -> None:
    panel = explained(opened)
    trouble = panel.locator(".vv-trouble")
    words = json.dumps({"error": {"kind": "failed", "text": "Nobody answers."}})
    opened.route("**/vitviz/explain", lambda route: route.fulfill(body=f"{words}\n"))
    panel.locator("[data-method=legrad]").click()
    expect(trouble).to_have_text("Nobody answers.")
    expect(panel.locator(".vv-note")).not_to_contain_text("being computed")
    expect(panel.locator(".vv-title")).to_have_text("LeGrad")  # and no map: the one before is not this method's
    expect(panel.locator(".vv-low")).to_have_text("")
    opened.unroute("**/vitviz/explain")
    panel.locator("[data-method=rollout]").click()
    expect(trouble).to_be_hidden()
    expect(panel.locator(".vv-title")).to_have_text("Attention rollout")
    expect(panel.locator(".vv-low")).not_to_have_text("", timeout=SLOW)


def test_a_class_is_not_held_against_itself(opened: Browser) -> None:
    panel = explained(opened)
    target, against = panel.locator("[data-ask=target]"), panel.locator("[data-ask=against]")
    other = against.locator("option").nth(1).get_attribute("value")
    against.select_option(other)
    target.select_option(other)
    expect(against).to_have_value("")
    expect(opened.locator(".vv-message")).to_contain_text("against any other")


def test_a_map_is_read_by_keys(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    panel.locator(".vv-picture").focus()
    opened.keyboard.press("ArrowUp")
    rows, columns = app.view().trace.grid
    expect(panel.locator(".vv-note")).to_contain_text(f"Row {rows // 2}, column {columns // 2 + 1}: ")


@pytest.mark.parametrize("title", ["Explain", "Heads", "Layers"])
def test_a_question_that_failed_is_asked_again(opened: Browser, title: str) -> None:
    opened.route(QUESTIONS, lambda route: route.fulfill(status=502))
    panel = tab(opened, title)
    expect(panel.locator(".vv-trouble")).to_contain_text("The server does not answer", timeout=SLOW)
    opened.unroute(QUESTIONS)
    opened.get_by_role("tab", name="Explore").click()
    panel = tab(opened, title)
    expect(panel.locator(".vv-moved li, .vv-dot, .vv-alike canvas").first).to_be_visible(timeout=SLOW)
    expect(panel.locator(".vv-trouble")).to_be_hidden()


def test_nothing_of_the_model_before_is_left(opened: Browser, small: str) -> None:
    heads = tab(opened, "Heads")
    expect(heads.locator(".vv-dot").first).to_be_visible(timeout=SLOW)
    Gate(opened, "**/vitviz/heads")
    opened.select_option("#model select", small)
    opened.wait_for_function(f"{SCENE}?.manifest.model === {small!r}")
    expect(heads.locator(".vv-dot")).to_have_count(0)
    assert not any(heads.locator(".vv-cell").all_inner_texts())


def test_the_strongest_patches_are_taken_away(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    panel.locator("input[data-do=away]").fill("60")
    rows, columns = view.trace.grid
    values = view.explain("gae").values.ravel()
    gone = np.argsort(-values, kind="stable")[: round(0.6 * rows * columns)]
    change = view.intervene(drop=[divmod(int(patch), columns) for patch in gone])
    expect(panel.locator(".vv-moved small").first).not_to_have_text("", timeout=SLOW)
    after = dict(zip(view.labels, change.after[0], strict=True))
    assert bars(panel) == pytest.approx({label: after[label] for label in bars(panel)}, abs=2e-3)
    covered = opened.evaluate(
        f"(() => {{ const {{ marks }} = {view_of('.vv-explain')}.pane; const {{ width, height }} = marks.canvas;"
        " const { data } = marks.getImageData(0, 0, width, height);"
        " return data.filter((_, i) => i % 4 === 3 && data[i] > 0).length / (width * height); })()"
    )
    assert covered == pytest.approx(0.6, abs=0.02)


def test_all_methods_side_by_side(opened: Browser, app: Running, small: str) -> None:
    opened.select_option("#model select", small)  # a tiny model: the bundled one would take minutes for all of them
    opened.wait_for_function(f"{SCENE}?.manifest.model === {small!r}")
    panel = explained(opened)
    quick = [name for name, method in METHODS.items() if method.cost <= 20]
    expect(panel.locator("[data-do=all]")).to_have_text(f"Run and test {len(quick)} methods")
    for name, method in METHODS.items():
        assert (method.title in panel.locator(".vv-left-out").inner_text()) == (name not in quick)
    expect(panel.locator(".vv-left-out")).not_to_contain_text("best")
    panel.locator("[data-do=all]").click()
    expect(panel.locator(".vv-left-out")).to_contain_text("the best on top", timeout=SLOW)
    expect(panel.locator("[data-do=all]")).to_contain_text("Run and test")
    expect(panel.locator(".vv-beside h2")).to_have_text("All maps side by side, the best first")
    expect(panel.locator(".vv-all figure")).to_have_count(len(quick))
    gains = [float(text.split(" ")[0].replace("−", "-")) for text in panel.locator(".vv-all small").all_inner_texts()]
    assert gains == sorted(gains, reverse=True)
    expect(panel.locator(".vv-one-scale")).to_contain_text("One scale")


def test_another_photograph_is_another_question(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    opened.get_by_role("tab", name="Explore").click()
    example(opened, "Dog")
    expect_map(opened, app.view(DOG).attention())
    panel = tab(opened, "Explain")
    heatmap = app.view(DOG).explain("gae")
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title, timeout=SLOW)
    assert drawn(opened, heatmap) <= 1.5


def test_a_scene_that_the_server_evicted_is_opened_again(opened: Browser, app: Running) -> None:
    explained(opened)
    app.endpoints.scenes.discard(lambda *_: True)
    panel = tab(opened, "Layers")
    expect(panel.locator(".vv-alike canvas").first).to_be_visible(timeout=SLOW)
    expect(panel.locator(".vv-trouble")).not_to_be_visible()
    expect(opened.locator(".vv-message")).not_to_be_visible()


def test_the_heads_are_told_apart(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Heads")
    view = app.view()
    expect(panel.locator(".vv-dot")).to_have_count(view.trace.depth * view.trace.heads, timeout=SLOW)
    found = view.heads(["distance", "mass_cls"])
    said = [float(text) for text in panel.locator(".vv-cell").all_inner_texts()]
    np.testing.assert_allclose(said, found["distance"].ravel(), rtol=0.006)
    panel.locator("[data-ask=statistic]").select_option("mass_cls")
    first = percent(found["mass_cls"][0, 0], 2)
    expect(panel.locator(".vv-cell").first).to_have_text(first)
    panel.locator(".vv-cell[data-place='4,2']").click()
    expect_map(opened, view.attention(4, 2))
    opened.evaluate("document.activeElement.blur()")
    opened.keyboard.press("]")  # the panels are hidden, and take no keys from the explorer
    expect_map(opened, view.attention(5, 2))


def test_heads_are_switched_off(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Heads")
    view = app.view()
    expect(panel.locator(".vv-moved li").first).to_be_visible(timeout=SLOW)
    panel.locator("[data-ask=off]").check()
    off = [(11, 0), (11, 3), (10, 5)]
    for block, head in off:
        panel.locator(f".vv-cell[data-place='{block},{head}']").click()
    expect(panel.locator(".vv-off")).to_contain_text("Off: 3 of 72, layer.head 12.1, 12.4, 11.6")
    settled(opened)
    expect(panel.locator(".vv-moved small").first).not_to_have_text("", timeout=SLOW)
    after = dict(zip(view.labels, view.intervene(heads=off).after[0], strict=True))
    assert bars(panel) == pytest.approx({label: after[label] for label in bars(panel)}, abs=1e-3)
    panel.locator("[data-do=on]").click()
    expect(panel.locator(".vv-off")).to_contain_text("All heads are on")


def test_the_other_pane_is_asked_about_the_class_of_the_same_name(page: Browser, tmp_path: Path) -> None:
    names = [f"thing {place}" for place in range(tiny.CLASSES)]
    first = folder(tmp_path / "first", {"labels": tuple(names)})
    second = folder(tmp_path / "second", {"labels": ("another", *reversed(names[1:]))})
    running = Running(first, second)
    try:
        ready(page, f"{running.url}?model={first}&pane=1&model2={second}")
        page.wait_for_function("vitviz.store.get().beside?.scene?.source.model.endsWith('second')")
        target = page.locator(".vv-explain [data-ask=target]")
        for chosen, expected in (("thing 3", "thing 3"), ("thing 0", running.view(model=second).best(1)[0])):
            page.get_by_role("tab", name="Explain").click()
            target.select_option(value=str(names.index(chosen)))
            page.get_by_role("tab", name="Explore").click()
            page.locator(".vv-explore .vv-picture").nth(1).focus()
            page.get_by_role("tab", name="Explain").click()
            index = 1 + names[:0:-1].index(expected) if isinstance(expected, str) else expected
            expect(target).to_have_value(str(index), timeout=SLOW)
            page.get_by_role("tab", name="Explore").click()
            page.locator(".vv-explore .vv-picture").nth(0).focus()
            assert page.evaluate("vitviz.store.get().pane") == 0
    finally:
        running.close()


def test_the_table_of_heads_is_walked_by_keys(opened: Browser) -> None:
    panel = tab(opened, "Heads")
    cells = panel.locator(".vv-cell")
    expect(cells.first).to_be_visible(timeout=SLOW)
    assert [cell.get_attribute("tabindex") for cell in cells.all()].count("0") == 1
    cells.first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.place") == "2,1"


def test_the_layers_read_the_class(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Layers")
    view = app.view()
    expect(panel.locator(".vv-alike canvas")).to_have_count(view.trace.depth, timeout=SLOW)
    expect(panel.locator(".vv-read canvas")).to_have_count(view.trace.depth)
    read = view.lens(view.best(4))
    words = panel.locator(".vv-chart svg").get_attribute("aria-label")
    for place, name in enumerate(read.names):
        (said,) = re.findall(rf"{name}: ((?:[<> \d.]+ %(?:, )?)+)", words)
        shares = [float(one.strip("<> %")) for one in said.split(", ")]
        np.testing.assert_allclose(shares, 100 * read.probabilities[:, read.classes[place]], atol=0.1)
    assert " 100" not in words
    assert " 0.0 %" not in words
    colors = opened.evaluate(
        "(() => { const canvas = document.querySelectorAll('.vv-alike canvas')[6];"
        " return [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]; })()"
    )
    shown = np.array(colors).reshape(*view.trace.grid, 4)[..., :3] / 255
    np.testing.assert_allclose(shown, view.token_pca().colors[6], atol=1 / 255)


def test_the_panels_pass_axe_in_light_and_dark(opened: Browser) -> None:
    def passes() -> None:
        assert not axe(opened)
        opened.click(".theme")
        assert not axe(opened, "color-contrast")  # what is dark differs in its colors alone
        opened.click(".theme")

    panel = explained(opened)
    panel.locator("[data-do=test]").click()
    expect(panel.locator(".vv-chart")).to_have_count(2, timeout=SLOW)
    passes()
    panel = tab(opened, "Heads")
    expect(panel.locator(".vv-dot").first).to_be_visible(timeout=SLOW)
    passes()
    panel = tab(opened, "Layers")
    expect(panel.locator(".vv-alike canvas").first).to_be_visible(timeout=SLOW)
    passes()


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_sticks_out_of_the_panels(page: Browser, app: Running, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    ready(page, app.url)
    for name, sign in (("Explain", ".vv-moved li"), ("Heads", ".vv-dot"), ("Layers", ".vv-alike canvas")):
        panel = tab(page, name)
        expect(panel.locator(sign).first).to_be_visible(timeout=SLOW)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_model_on_the_menu_is_the_one_that_is_asked(opened: Browser) -> None:
    assert opened.input_value("#model select") == MODEL


# --- what visitors met


def test_a_method_that_takes_long_starts_and_stops_by_hand(opened: Browser) -> None:
    panel = explained(opened)
    gate = Gate(opened, "**/vitviz/explain")
    panel.locator("[data-method=kernel_shap]").click()
    method = METHODS["kernel_shap"]
    expect(panel.locator(".vv-title")).to_have_text(method.title)
    expect(panel.locator(".vv-note")).to_have_text(method.about)
    expect(panel.locator(".vv-about")).to_contain_text(method.paper)
    settled(opened)
    assert not gate.held  # it is chosen, and not started
    run = panel.locator("[data-do=run]")
    run.click()
    expect(panel.locator(".vv-note")).to_contain_text(f"{method.title} is being computed")
    expect(opened.locator("#status")).to_be_visible()
    expect(run).to_have_text("Stop")
    run.click()
    expect(opened.locator("#status")).to_be_hidden()
    expect(panel.locator(".vv-note")).to_have_text(method.about)
    assert len(gate.held) == 1
    run.click()
    example(opened, "Dog")  # another photograph: it stops, and does not start there
    opened.wait_for_function(f"{SCENE}?.manifest.image === 'Dog'")
    settled(opened)
    expect(run).to_contain_text(f"Run {method.title}")
    assert len(gate.held) == 2
    expect(panel.locator("[data-method=kernel_shap]")).to_have_attribute("aria-pressed", "true")


def test_another_click_or_tab_cancels_what_is_under_way(opened: Browser) -> None:
    panel = explained(opened)
    lost: list[str] = []
    gone = lambda request: lost.append(request.post_data or "") if request.url.endswith("/explain") else None  # noqa: E731
    opened.on("requestfailed", gone)
    gate = Gate(opened, "**/vitviz/explain")
    panel.locator("[data-method=legrad]").click()
    expect(panel.locator(".vv-title")).to_have_text("LeGrad")
    expect(panel.locator(".vv-low")).to_have_text("")  # nothing of the map before is left
    panel.locator("[data-method=attn_lrp]").click()
    opened.wait_for_timeout(200)
    assert len(lost) == 1
    assert "legrad" in lost[0]
    opened.get_by_role("tab", name="Explore").click()
    opened.wait_for_timeout(200)
    assert len(lost) == 2
    gate.open()


def test_patches_are_erased_by_clicks(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    view = app.view()
    columns = view.trace.grid[1]
    gone = [(2, 3), (5, 9), (6, 9)]
    box = panel.locator(".vv-held").bounding_box()
    for row, column in gone:
        left, top, right, bottom = view.geometry.patch_box(row, column, view.trace.grid)
        width, height = view.photo.size
        x, y = (
            box["x"] + (left + right) / 2 / width * box["width"],
            box["y"] + (top + bottom) / 2 / height * box["height"],
        )
        opened.mouse.click(x, y)
    expect(panel.locator(".vv-moved small").first).not_to_have_text("", timeout=SLOW)
    settled(opened)
    assert opened.evaluate("vitviz.store.get().erased") == [row * columns + column for row, column in gone]
    after = dict(zip(view.labels, view.intervene(drop=gone).after[0], strict=True))
    assert bars(panel) == pytest.approx({label: after[label] for label in bars(panel)}, abs=2e-3)
    panel.locator("[data-do=restore]").click()
    settled(opened)
    assert bars(panel) == pytest.approx(dict(view.predictions(5)), abs=1e-3)


def test_the_view_belongs_to_the_address(opened: Browser, app: Running) -> None:
    panel = explained(opened)
    panel.locator("[data-ask=target]").select_option(label="parachute")
    panel.locator("[data-method=legrad]").click()
    panel.locator("input[data-do=away]").fill("30")
    opened.reload()
    panel = opened.locator(".vv-explain")
    heatmap = app.view().explain("legrad", "parachute")
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title, timeout=SLOW)
    expect(panel.locator("input[data-do=away]")).to_have_value("30")
    expect(panel.locator(".vv-moved small").first).not_to_have_text("", timeout=SLOW)
    opened.get_by_role("tab", name="Heads").click()
    panel = opened.locator(".vv-heads-view")
    panel.locator("[data-ask=statistic]").select_option("mass_cls")
    panel.locator("[data-ask=off]").check()
    panel.locator(".vv-cell[data-place='3,1']").click()
    opened.reload()
    expect(panel.locator("[data-ask=statistic]")).to_have_value("mass_cls")
    expect(panel.locator(".vv-cell[data-place='3,1']")).to_have_attribute("aria-pressed", "true")
    opened.go_back()
    expect(panel.locator(".vv-cell[data-place='3,1']")).to_have_attribute("aria-pressed", "false")


def test_the_map_of_a_head_is_shown_beside_the_table(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Heads")
    expect(panel.locator(".vv-dot").first).to_be_visible(timeout=SLOW)
    panel.locator(".vv-cell[data-place='4,2']").hover()
    heatmap = app.view().attention(4, 2)
    expect(panel.locator(".vv-title")).to_have_text(heatmap.title)
    expect(panel.locator(".vv-pane .vv-high")).to_have_text(percent(heatmap.scale().vmax))
    panel.locator("[data-ask=off]").check()
    panel.locator(".vv-cell[data-place='4,2']").click()
    expect(panel.locator(".vv-title")).to_have_text(f"{heatmap.title}: off")
    opened.get_by_role("tab", name="Explore").click()
    expect(opened.locator(".vv-grid [data-value='4,2']")).to_have_class(re.compile("vv-is-off"))


def test_numbers_of_heads_are_whole_and_signed_ones_have_signed_colors(opened: Browser, small: str) -> None:
    opened.select_option("#model select", small)
    opened.wait_for_function(f"{SCENE}?.manifest.model === {small!r}")
    panel = tab(opened, "Heads")
    expect(panel.locator(".vv-dot").first).to_be_visible(timeout=SLOW)
    panel.locator("[data-ask=statistic]").select_option("ablation_probability")
    expect(panel.locator(".vv-chart-title")).to_have_text("Probability lost without it", timeout=SLOW)
    said = panel.locator(".vv-cell").all_inner_texts()
    assert all(re.fullmatch(r"−?[\d.]+\xa0%|< 0.01\xa0%", text) for text in said), said
    assert "−0\xa0%" not in said
    cut = "(cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth || cell.offsetHeight > 40).length"
    assert panel.locator(".vv-cell").evaluate_all(cut) == 0
    low, high = (panel.locator(f".vv-side {name}").inner_text() for name in (".vv-low", ".vv-high"))
    assert low == f"−{high}"


def test_a_layer_is_shown_large_and_played(opened: Browser, app: Running) -> None:
    panel = tab(opened, "Layers")
    expect(panel.locator(".vv-alike button")).to_have_count(app.view().trace.depth, timeout=SLOW)
    expect(panel.locator(".vv-title")).to_have_text("Layer 12: what the patches are alike in")
    panel.locator(".vv-read button").nth(6).click()
    expect(panel.locator(".vv-title")).to_have_text("Layer 7: church, read from every patch")
    expect(panel.locator(".vv-read button").nth(6)).to_have_attribute("aria-pressed", "true")
    panel.locator(".vv-alike button").nth(2).click()
    expect(panel.locator(".vv-title")).to_have_text("Layer 3: what the patches are alike in")
    panel.locator("[data-do=play]").click()
    expect(panel.locator(".vv-title")).to_have_text("Layer 5: what the patches are alike in")
    panel.locator("[data-do=play]").click()
    expect(panel.locator("[data-do=play]")).to_have_text("▶ Play layers")


def test_the_patches_of_a_layer_are_colored_over_the_whole_photograph(opened: Browser, app: Running) -> None:
    view = app.view()
    panel = tab(opened, "Layers")
    expect(panel.locator(".vv-alike button")).to_have_count(view.trace.depth, timeout=SLOW)
    slider = panel.get_by_role("slider", name="Layer")
    expect(slider).to_have_value("12")
    slider.fill("4")
    expect(panel.locator(".vv-title")).to_have_text("Layer 4: what the patches are alike in")
    expect(panel.locator(".vv-playing .vv-number")).to_have_text("4 of 12")
    heat = opened.evaluate(
        f"(() => {{ const {{ heat, enlarge }} = {view_of('.vv-layers-view')}.pane; const {{ xs, ys }} = enlarge;"
        " const { width, height } = heat.canvas; const { data } = heat.getImageData(0, 0, width, height);"
        " const at = (x, y) => [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 4)];"
        " const middle = (edges, i) => (edges[i] + edges[i + 1]) >> 1; const colors = [];"
        " for (let i = 0; i + 1 < ys.length; i += 1) for (let j = 0; j + 1 < xs.length; j += 1)"
        " colors.push(at(middle(xs, j), middle(ys, i))); return colors; })()"
    )
    shown = np.array(heat).reshape(*view.trace.grid, 4)
    np.testing.assert_allclose(shown[..., :3] / 255, view.token_pca().colors[3], atol=1.01 / 255)
    assert (shown[..., 3] == 255).all()
    opened.go_back()  # the slider is one step of the history
    expect(panel.locator(".vv-title")).to_have_text("Layer 12: what the patches are alike in")
    expect(slider).to_have_value("12")


HIDE = """() => {
    Object.defineProperty(document, 'hidden', { value: true, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_played_layers_stop_in_a_hidden_tab(opened: Browser) -> None:
    panel = tab(opened, "Layers")
    play = panel.locator("[data-do=play]")
    play.click()
    slider = panel.get_by_role("slider", name="Layer")
    expect(slider).not_to_have_value("12")  # it plays
    expect(play).to_have_text("■ Stop layers")
    opened.evaluate(HIDE)
    expect(play).to_have_text("▶ Play layers")
    held = slider.input_value()
    opened.wait_for_timeout(1500)  # more than two steps
    expect(slider).to_have_value(held)


def test_where_nothing_may_move_each_press_is_a_layer(page: Browser, app: Running) -> None:
    page.emulate_media(reduced_motion="reduce")
    ready(page, f"{app.url}?layer=3&tab=layers")
    panel = page.locator(".vv-layers-view")
    play, slider = panel.get_by_role("button", name="Next layer"), panel.get_by_role("slider", name="Layer")
    for layer in (4, 5):
        play.click()
        expect(slider).to_have_value(str(layer))
    assert page.evaluate("vitviz.store.get().playing") is False


@pytest.mark.parametrize("size", [(1440, 900), (1920, 1080), (1024, 768)])
def test_the_methods_are_not_clipped_and_the_picture_has_room(
    page: Browser, app: Running, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    ready(page, app.url)
    panel = explained(page)
    listed = panel.locator(".vv-methods")
    assert listed.evaluate("(list) => list.scrollHeight <= list.clientHeight + 1")
    box = panel.locator(".vv-held").bounding_box()
    assert box["width"] > 0.42 * size[0]


def test_charts_grow_with_the_room(page: Browser, app: Running) -> None:
    page.set_viewport_size({"width": 1920, "height": 1080})
    ready(page, app.url)
    panel = tab(page, "Layers")
    chart = panel.locator(".vv-chart svg")
    expect(chart).to_be_visible(timeout=SLOW)
    assert chart.bounding_box()["width"] > 700
    assert chart.locator("text").first.evaluate("(text) => parseFloat(getComputedStyle(text).fontSize)") >= 12


def test_the_thumbnails_are_one_tab_stop(opened: Browser) -> None:
    buttons = opened.locator(".vv-grid button")
    assert [one for one in buttons.evaluate_all("(all) => all.map((one) => one.tabIndex)") if one == 0] == [0]
    buttons.first.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate("document.activeElement.dataset.value") == "0,1"


def test_a_skip_link_leads_to_the_photograph(opened: Browser) -> None:
    opened.keyboard.press("Tab")
    expect(opened.locator(".vv-skip")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explore .vv-picture")).to_be_focused()
