"""Choosing a model and an input size in the browser."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny
from browsing import menu_click, menu_select, new_page, open_menu
from offered import WIDTH
from patience import patience
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, DOG, Running, change, example, expect_map, expect_unchanged, head, ready, served, settled
from safetensors.torch import save_file

from vitviz.attribution.registry import METHODS
from vitviz.formatting import describe_bytes
from vitviz.model import memory as budget
from vitviz.model.memory import kept_bytes
from vitviz.model.vit import ViT
from vitviz.server import sizes
from vitviz.server.models import Models
from vitviz.server.sizes import question_bytes

DINO = "timm:vit_small_patch16_224.dino"
ANOTHER = "another model"


def choose(page: Browser, source: str) -> None:
    menu_select(page, "#model select", source)


def ask_for_another(page: Browser) -> None:
    """Open the form for other models, in the menu, which stays open."""
    open_menu(page)
    page.select_option("#model select", ANOTHER)


def expect_model(page: Browser, app: Running, model: str, head: Any = "mean", query: Any = None) -> None:
    """Check that the page shows this model's last layer on the first example, and that the menu selects the model."""
    expect_map(page, app.view(CHURCH, model).attention(-1, head, query))
    expect(page.locator("#model select")).to_have_value(model)


def size_of(app: Running, source: str) -> str:
    return describe_bytes(app.endpoints.menu.entry(source).size)


def test_menu_describes_models_and_switches_between_them(
    opened: Browser, app: Running, small: str, models: dict[str, str]
) -> None:
    groups = opened.locator("#model optgroup")
    assert groups.evaluate_all("all => all.map(({ label }) => label)") == ["On this machine", "Downloaded when chosen"]
    for shown, (_, entries) in zip(groups.all(), app.endpoints.menu.groups, strict=True):
        assert shown.locator("option").all_text_contents() == [entry.describe() for entry in entries]
    expect(groups.first).to_contain_text(f"Tiny sure · {size_of(app, models['sure'])}")
    expect(groups.first.get_by_text("Tiny sure")).to_have_attribute("title", re.compile("MIT"))
    expect(opened.locator("#model select")).to_have_value(app.default)
    head(opened, 3)
    choose(opened, small)
    expect_model(opened, app, small, 3)
    expect(opened.locator(".vv-predictions")).to_contain_text("thing")
    expect(opened.locator("#badge")).to_contain_text("7 × 11 patches")
    expect(opened.locator(".vv-queries label")).to_have_count(4)
    opened.check(".vv-queries input[value='register 2']")
    expect_map(opened, app.view(CHURCH, small).attention(-1, 3, "register 2"))
    choose(opened, models["bare"])
    expect_model(opened, app, models["bare"], 3, "mean")
    expect(opened.locator(".vv-predictions")).to_contain_text("no classifier")
    expect(opened.get_by_label("Texts as classes")).to_be_hidden()  # without a text tower
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text("")
    choose(opened, app.default)
    expect_model(opened, app, app.default, 3)  # the query is CLS again
    example(opened, "Dog")
    expect_map(opened, app.view(DOG).attention(-1, 3))
    choose(opened, small)  # keeps the photograph and this model's query
    expect_map(opened, app.view(DOG, small).attention(-1, 3, "register 2"))


@pytest.mark.tier("all")
def test_typed_models_are_refused_with_a_reason_or_added_to_the_menu(
    opened: Browser, app: Running, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = expect_map(opened, app.view().attention())
    notice = opened.locator("#notice")
    for _ in range(2):  # the menu is reset each time
        choose(opened, DINO)
        expect(notice).to_contain_text("cannot be reached")
        expect(opened.locator("#model select")).to_have_value(app.default)
    expect_unchanged(opened, before)
    head(opened, 2)
    expect_map(opened, app.view().attention(-1, 2))
    ask_for_another(opened)
    expect(opened.locator("#model select")).to_have_value(app.default)
    opened.keyboard.type("timm:mvitv2_tiny")  # the form has the focus
    opened.keyboard.press("Enter")
    expect(notice).to_contain_text("changes from stage to stage")
    expect_map(opened, app.view().attention(-1, 2))
    opened.keyboard.press("Escape")  # closes the form and not the menu
    expect(opened.locator("#another")).not_to_be_visible()
    expect(opened.locator("#model select")).to_be_focused()
    choose(opened, small)  # hides the notice
    expect_model(opened, app, small, 2)
    expect(notice).not_to_be_visible()
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda library, name: tiny.model(3))
    ask_for_another(opened)
    opened.fill("#another [name=source]", "timm:vit_typed")
    opened.click("#load")
    expect_model(opened, app, "timm:vit_typed", 2)
    expect(opened.locator("#model select")).to_be_visible()
    expect(opened.locator("#another")).not_to_be_visible()
    assert opened.locator("#model optgroup").last.get_attribute("label") == "Your models"
    choose(opened, app.default)
    expect_model(opened, app, app.default, 2)
    choose(opened, "timm:vit_typed")
    expect_model(opened, app, "timm:vit_typed", 2)


@pytest.mark.tier("all")
def test_arrow_keys_in_the_menu_load_only_the_last_model(
    opened: Browser, app: Running, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    permit, sources = app.endpoints.menu.permit, list[str]()
    monkeypatch.setattr(app.endpoints.menu, "permit", lambda text: sources.append(text) or permit(text))
    open_menu(opened)
    opened.focus("#model select")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    expect_model(opened, app, models["bare"], query="mean")
    assert models["bare"] in sources
    assert models["registers"] not in sources


@pytest.fixture
def gate(app: Running, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Delay the loading of all models except the default until the event is set."""
    gate, menu = threading.Event(), app.endpoints.menu

    def load(name: str) -> ViT:
        assert name == app.default or gate.wait(patience(60))
        return menu.load(name)

    monkeypatch.setattr(app.endpoints, "loaded", Models(load, menu.settings.memory, app.default))
    app.endpoints.loaded.get(app.default)
    return gate


def test_page_still_answers_while_it_reports_that_a_model_loads(
    opened: Browser, app: Running, models: dict[str, str], browser: Chromium, gate: threading.Event
) -> None:
    status = opened.locator(".vv-status")
    choose(opened, models["registers"])
    size = size_of(app, models["registers"])
    expect(status).to_contain_text(re.compile(rf"Loading Tiny registers \({size}\) · \d+ s"))
    head(opened, 2)  # a head of the current model
    expect_map(opened, app.view().attention(-1, 2))
    with new_page(browser) as other:
        ready(other, app.url)
        example(other, "Dog")
        expect_map(other, app.view(DOG).attention())
    choose(opened, app.default)
    expect(status).not_to_be_visible()
    choose(opened, models["registers"])
    expect(status).to_contain_text("Loading Tiny registers")
    choose(opened, models["sure"])  # the last choice is shown, whichever model is loaded first
    gate.set()
    app.endpoints.loaded.get(models["registers"])
    expect_model(opened, app, models["sure"], 2)
    expect(status).not_to_be_visible()


def finer(page: Browser, index: int) -> None:
    change(page, open=["input"])
    menu_select(page, "#size select", index=index)


@pytest.mark.tier("all")
def test_larger_input_is_refused_without_enough_memory(
    opened: Browser, app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, before = opened.locator("#size option:checked"), expect_map(opened, app.view().attention())
    with monkeypatch.context() as scarce:
        scarce.setattr(budget, "available_bytes", lambda device: 50 * 2**20)
        finer(opened, 3)
        notice = opened.locator("#notice")
        expect(notice).to_contain_text("memory")
        expect(notice).to_contain_text("largest that fits")
        expect(chosen).to_have_text(re.compile("^Standard"))
        expect_unchanged(opened, before)
    finer(opened, 1)
    expect_map(opened, app.view(size=opened.evaluate("vitviz.store.get().size")).attention())
    expect(notice).not_to_be_visible()


PANES = """() => {
    const { pane, scene, beside } = vitviz.store.get();
    const both = [scene, beside.scene].map(({ id, source }) => [source.model, id]);
    return pane === 0 ? both : both.reverse();
}"""


def test_model_and_size_are_chosen_for_the_active_pane(opened: Browser, app: Running, small: str) -> None:
    menu_click(opened, "compare")
    choose(opened, small)
    opened.wait_for_function(f"({PANES})()[1][0] === {small!r}")
    opened.locator(".vv-explore .vv-picture").first.focus()
    expect(opened.locator("#model select")).to_have_value(app.default)
    before = opened.evaluate(PANES)
    finer(opened, 1)
    opened.wait_for_function(f"({PANES})()[0][1] !== {before[0][1]!r}")
    after = opened.evaluate(PANES)
    assert [model for model, _ in after] == [app.default, small]
    assert after[1] == before[1]
    grid = opened.evaluate("vitviz.store.get().scene.limits.grid")
    assert grid == list(app.view(size=opened.evaluate("vitviz.store.get().size")).trace.grid)
    assert grid != list(app.view().trace.grid)
    opened.locator(".vv-explore .vv-picture").nth(1).focus()
    expect(opened.locator("#model select")).to_have_value(small)


BUTTON = "[data-do=fits]"


def limited(app: Running, monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    monkeypatch.setattr(app.endpoints.menu, "settings", replace(app.endpoints.menu.settings, **limits))


@pytest.mark.tier("all")
def test_refused_questions_offer_the_largest_size(page: Browser, app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    config = app.view().model.config
    limited(app, monkeypatch, question_memory=question_bytes(config, METHODS["gae"], 600, 4))
    ready(page, f"{app.url}?tab=why&method=gae&size={4 * WIDTH}")
    explain = page.locator(".vv-explain")
    expect(explain.locator(".vv-trouble")).to_contain_text("Open the photograph at")
    button = explain.locator(BUTTON)
    expect(button).to_have_text(re.compile(r"^Open at \d+ pixels$"))
    size = int(re.findall(r"\d+", button.inner_text())[0])
    assert WIDTH < size < 4 * WIDTH
    button.click()
    page.wait_for_function(f"vitviz.store.get().scene?.source.size === {size}")
    settled(page)
    expect(explain.locator(".vv-trouble")).to_be_hidden()
    expect(button).to_be_hidden()
    assert page.evaluate("vitviz.panels.find((view) => view.maps).heatmap?.values.length") > 0


@pytest.mark.tier("all")
def test_refused_sizes_offer_the_largest_size(page: Browser, app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ready(page, app.url)
    settled(page)
    config = app.view().model.config
    limited(app, monkeypatch, scene_memory=int(kept_bytes(config, 700) / sizes.SHARE_OF_SCENE) + 5_000_000)
    before = page.evaluate("vitviz.store.get().scene.source")
    page.evaluate(f"vitviz.store.dispatch({{ type: 'open', source: {{ size: {12 * WIDTH} }} }})")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("pixels or fewer")
    assert page.evaluate("vitviz.store.get().scene.source") == before
    size = int(re.findall(r"\d+", notice.locator(BUTTON).inner_text())[0])
    notice.locator(BUTTON).click()
    page.wait_for_function(f"vitviz.store.get().scene?.source.size === {size}")
    expect(notice).to_be_hidden()
    page.evaluate("vitviz.store.dispatch({ type: 'message', texts: ['Something else.'] })")
    expect(notice).to_be_visible()
    expect(notice.locator(BUTTON)).to_be_hidden()


def test_page_that_allows_no_typed_models_has_no_form(page: Browser, small: str) -> None:
    for closed in served(small, bundled=(), typed=False):  # as on a Space, without typed names and uploads
        ready(page, closed.url)
        assert page.locator(f"#model option[value='{ANOTHER}']").count() == 0
        expect(page.locator("#another")).not_to_be_visible()


@pytest.mark.tier("all")
def test_checkpoint_can_be_uploaded_if_allowed(page: Browser, small: str, tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3).state_dict()
    good, bad = tmp_path / "mine.safetensors", tmp_path / "bad.safetensors"
    save_file(state, good)
    bad.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    for generous in served(small, bundled=(), upload=True):
        ready(page, generous.url)
        before = expect_map(page, generous.view().attention())
        choose(page, ANOTHER)
        page.locator("#another input[type=file]").set_input_files(str(bad))
        expect(page.locator("#notice")).to_contain_text("xpected")
        expect_unchanged(page, before)
        assert "/tmp" not in page.locator("#notice").inner_text()  # no path of the server
        page.locator("#another input[type=file]").set_input_files(str(good))
        expect(page.locator("#badge")).to_contain_text("2 × 2 patches")
        expect(page.locator("#model option:checked")).to_have_text(re.compile(r"mine\.safetensors · 4 MB"))
        assert page.locator("#model optgroup").last.get_attribute("label") == "Your models"
        assert "mine.safetensors" not in page.url
