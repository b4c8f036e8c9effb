"""Test the notebook widget: its messages in this process, and its page in Chromium with a simulated notebook."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browsing import new_page
from patience import wait_until
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from running import CHURCH

from vitviz.attribution.attention import rollout_scores
from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.view import View
from vitviz.web.payload import block_bytes, rollout_bytes
from vitviz.widget import ExplorerWidget, answer

USUAL = {"fuse": "mean", "discard": 0, "residual": 0.5, "start": 0}
NOTEBOOK = """async ({ esm, manifest, name }) => {
    const traits = { manifest, selection: {} };
    const listeners = [];
    const model = {
        get: (trait) => traits[trait],
        set: (trait, value) => { traits[trait] = value; },
        save_changes: () => window.save(name, traits.selection),
        on: (event, listener) => { if (event === 'msg:custom') listeners.push(listener); },
        send: async (message) => {
            const { reply, data } = await window.ask(name, message);
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            for (const listener of listeners) listener(reply, data ? [new DataView(bytes.buffer)] : []);
        },
    };
    const { default: widget } = await import(URL.createObjectURL(new Blob([esm], { type: 'text/javascript' })));
    const el = Object.assign(document.createElement('div'), { id: name });
    document.body.append(el);
    await widget.render({ model, el });
}"""


@pytest.fixture(scope="module")
def view(small: str) -> View:
    return Explorer(small).open(CHURCH)


class Notebook:
    """Show two widgets of one view in a page."""

    def __init__(self, page: Browser, view: View) -> None:
        self.page, self.widgets = page, {"first": ExplorerWidget(view), "second": ExplorerWidget(view)}
        page.expose_function("save", lambda name, selection: setattr(self.widgets[name], "selection", selection))
        page.expose_function("ask", self.ask)
        for name, widget in self.widgets.items():
            manifest = json.loads(json.dumps(widget.manifest))
            page.evaluate(NOTEBOOK, {"esm": widget._esm, "manifest": manifest, "name": name})
            page.wait_for_function(f"document.querySelector('#{name} .vv').vitviz?.drawn > 0")

    def ask(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        sent: list[Any] = []
        self.widgets[name].send = lambda reply, buffers=(): sent.append((reply, *buffers))
        self.widgets[name]._answer(None, message, [])
        ((reply, *data),) = sent
        return {"reply": reply, "data": base64.b64encode(b"".join(data)).decode()}


@pytest.fixture(scope="module")
def notebook(browser: Chromium, view: View) -> Iterator[Notebook]:
    with new_page(browser) as page:
        yield Notebook(page, view)


def test_selection_reaches_only_its_widget(notebook: Notebook, view: View) -> None:
    page, (first, second) = notebook.page, notebook.widgets.values()
    page.locator("#second .vv-picture").focus()
    page.keyboard.press("ArrowRight")
    page.click(f"#second .vv-grid button[data-value='{view.trace.depth - 1},1']")
    wait_until(lambda: page.evaluate("true") and second.selection.get("head") == 1, "a selection")
    rows, columns = view.trace.grid
    assert second.selection["patch"] == [rows // 2, columns // 2]
    assert second.selection["block"] == view.trace.depth - 1
    assert second.selection["prediction"]["index"] == view.best(1)[0]
    assert first.selection.get("patch") is None


def test_kernel_computes_rollout_with_other_options(notebook: Notebook) -> None:
    page = notebook.page
    page.evaluate(
        "document.querySelector('#first .vv').vitviz.store.dispatch("
        "{ type: 'change', change: { mode: 'rollout', fuse: 'max' } })"
    )
    page.wait_for_function(
        "(() => { const { scenes, store } = document.querySelector('#first .vv').vitviz;"
        " const { answers } = scenes.get(store.get().scene.id);"
        " return answers.rollout !== null && JSON.parse(answers.options).fuse === 'max'; })()"
    )
    assert not page.locator("#first .vv-message").is_visible()


def test_answers_match_the_view(view: View) -> None:
    assert answer(view, "block", {"block": 1}) == block_bytes(view.trace, 1)
    assert answer(view, "rollout", {"token": None, **USUAL}) == rollout_bytes(view.trace)
    row = np.frombuffer(answer(view, "rollout", {"token": 5, **USUAL}), "<f4")
    np.testing.assert_array_equal(row, rollout_scores(view.trace, 5)[0].numpy())


@pytest.mark.parametrize(
    ("name", "ask"), [("page", {}), (None, None), ("block", {"block": 99}), ("block", {}), ("rollout", [1])]
)
def test_invalid_questions_are_refused(view: View, name: Any, ask: Any) -> None:
    with pytest.raises(VitvizError, match=r"^Expected .*"):
        answer(view, name, ask)


def test_notebook_without_widgets_shows_the_picture(view: View) -> None:
    data, _ = ExplorerWidget(view)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert base64.b64decode(data["image/png"]) == view._repr_png_()
