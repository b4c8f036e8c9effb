"""The page of a model of several labels, and of one that predicts a value: what Python says, and no softmax."""

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from running import folder, ready, served

from vitviz.formatting import output
from vitviz.weights.checkpoint import load_folder, save

ABOUT = {
    "several": {"labels": ("cat", "dog", "fox"), "problem_type": "multi_label_classification"},
    "value": {"labels": ("age in years",)},
}


@pytest.mark.parametrize("kind", ABOUT)
def test_panels_show_probabilities_or_values(page: Page, tmp_path: Path, kind: str) -> None:
    path = folder(tmp_path / kind, about=ABOUT[kind], classes=len(ABOUT[kind]["labels"]))
    model = load_folder(path)
    with torch.no_grad():
        model.head.bias += torch.tensor([3.0, 2.5, -4.0] if kind == "several" else [40.0])
    save(model, path)
    for app in served(path, default=path, bundled=()):
        view = app.view()
        ready(page, app.url)
        several, panel = kind == "several", page.locator(".vv-predictions")
        expect(panel.locator("h2")).to_have_text(view.describe())
        said = [output(value, model.problem_type) for _, value in view.predictions()]
        expect(panel.locator("ol li > span:last-child")).to_have_text(said)
        expect(panel.locator("ol li i").first).to_be_visible(visible=several)
        expect(panel.locator(".vv-known")).to_be_visible(visible=several)

        page.goto(f"{app.url}?tab=explain")
        explain = page.locator(".vv-explain")
        expect(explain.locator(".vv-low")).not_to_have_text("")
        explain.locator("[data-do=test]").click()
        expect(explain.locator(".vv-charts svg")).to_have_count(2)
        marks = explain.locator(".vv-charts svg g text").all_text_contents()  # of the upright axes
        (test,) = view.faithfulness(view.explain("gae"))
        whole = output(float(test.deletion.probabilities[0]), model.problem_type)
        assert ("0 %" in marks) == several
        if not several:
            highest = max(one.max() for one in (test.deletion.probabilities, test.deletion.random))
            assert output(float(f"{highest:.4g}"), model.problem_type) in marks
        expect(explain.locator(".vv-verdict")).to_have_text(test.describe())
        page.goto(f"{app.url}?tab=explain&removed=30")
        expect(page.locator(".vv-moved small").first).to_have_text(f"was {whole}")

        page.goto(f"{app.url}?tab=layers")
        layers = page.locator(".vv-charts svg text")
        title = f"{'Probability' if several else 'Value'} after each layer"
        expect(layers.filter(has_text=title)).to_have_count(1)
