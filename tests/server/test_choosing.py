"""Choosing a model and an input size, as a visitor does."""

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    CHURCH,
    DOG,
    MODEL,
    Running,
    axe,
    complete,
    example,
    expect_map,
    expect_unchanged,
    folder,
    head,
    ready,
    served,
)

from vitviz.model import memory as budget
from vitviz.model.vit import ViT
from vitviz.server.models import Models

DINO = "timm:vit_small_patch16_224.dino"
ANOTHER = "another model"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models of the operator's: one with registers, one without class token, classifier or names."""
    place = tmp_path_factory.mktemp("models")
    return [
        folder(place / "registers", registers=2),
        folder(place / "bare", class_token=False, pooling="mean", classes=0),
    ]


@pytest.fixture(scope="module")
def app(small: list[str]) -> Iterator[Running]:
    yield from served(*small)


@pytest.fixture
def opened(page: Browser, app: Running) -> Browser:
    ready(page, app.url)
    return page


def choose(page: Browser, source: str) -> None:
    page.select_option("#model select", source)


def option_of(page: Browser) -> str:
    return page.input_value("#model select")


def expect_model(page: Browser, app: Running, model: str, head: Any = "mean", query: Any = None) -> None:
    """The page shows this model's last layer on the first example, and nothing of another."""
    expect_map(page, app.view(CHURCH, model).attention(-1, head, query))
    expect(page.locator("#model select")).to_have_value(model)


def weights_of(source: str) -> int:
    """Bytes of a folder's weights."""
    return (Path(source) / "model.safetensors").stat().st_size


def test_the_menu_says_what_each_model_is(opened: Browser, small: list[str]) -> None:
    groups = opened.locator("#model optgroup")
    assert groups.evaluate_all("all => all.map(one => one.label)") == ["On this machine", "Downloaded when chosen"]
    here = groups.first.locator("option").all_text_contents()
    assert here == [
        "DINOv2 S/14 · 10 classes · 44 MB · MIT and, by inference, Apache-2.0; fine-tuned on images for research use",
        *(f"Tiny {Path(s).name} · {math.ceil(weights_of(s) / 1000)} kB · MIT" for s in small),
    ]
    listed = groups.last.locator("option").all_text_contents()
    assert len(listed) == 10
    assert "DINOv2 S/14 with registers · 88 MB · Apache-2.0" in listed
    assert option_of(opened) == MODEL


def test_another_model_is_shown_and_the_first_one_comes_back(opened: Browser, app: Running, small: list[str]) -> None:
    head(opened, 3)
    choose(opened, small[0])
    expect_model(opened, app, small[0], 3)
    expect(opened.locator(".vv-predictions")).to_contain_text("thing")
    expect(opened.locator("#badge")).to_contain_text("7 x 11 patches")
    expect(opened.locator(".vv-queries label")).to_have_count(4)
    opened.check(".vv-queries input[value='register 2']")
    expect_map(opened, app.view(CHURCH, small[0]).attention(-1, 3, "register 2"))
    choose(opened, small[1])
    expect_model(opened, app, small[1], 3, "mean")
    expect(opened.locator(".vv-predictions")).to_contain_text("no classifier")
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text("")
    choose(opened, MODEL)
    expect_model(opened, app, MODEL, 3)  # from CLS again


def test_the_photograph_stays_with_another_model(opened: Browser, app: Running, small: list[str]) -> None:
    example(opened, "Dog")
    expect_map(opened, app.view(DOG).attention())
    choose(opened, small[0])
    expect_map(opened, app.view(DOG, small[0]).attention())


def test_a_catalog_model_without_a_network_is_refused_and_everything_stays(opened: Browser, app: Running) -> None:
    before = expect_map(opened, app.view().attention())
    choose(opened, DINO)
    notice = opened.locator("#notice")
    expect(notice).to_contain_text("cannot be reached")
    expect(opened.locator("#model select")).to_have_value(MODEL)
    choose(opened, DINO)  # a second time: the menu goes back once more
    expect(opened.locator("#model select")).to_have_value(MODEL)
    expect_unchanged(opened, before)
    head(opened, 2)
    expect_map(opened, app.view().attention(-1, 2))


def test_the_notice_goes_with_the_next_model(opened: Browser, app: Running, small: list[str]) -> None:
    choose(opened, DINO)
    expect(opened.locator("#notice")).to_be_visible()
    choose(opened, small[0])
    expect_model(opened, app, small[0])
    expect(opened.locator("#notice")).not_to_be_visible()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timm:vit_enormous", "vit_enormous"),
        ("timm:swin_tiny_patch4_window7_224", "windowed"),
        ("/etc/passwd", "Expected the name of a model"),
    ],
)
def test_a_name_that_does_not_do_is_refused_in_words(opened: Browser, app: Running, text: str, words: str) -> None:
    before = expect_map(opened, app.view().attention())
    choose(opened, ANOTHER)
    assert option_of(opened) == MODEL
    opened.keyboard.type(text)  # the form has the focus
    opened.keyboard.press("Enter")
    expect(opened.locator("#notice")).to_contain_text(words)
    expect_unchanged(opened, before)
    opened.keyboard.press("Escape")
    expect(opened.locator("#another")).not_to_be_visible()


def test_a_typed_model_stays_in_the_visitors_menu(
    opened: Browser, app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda library, name: tiny.model(3))
    choose(opened, ANOTHER)
    opened.fill("#another [name=source]", "timm:vit_typed")
    opened.click("#load")
    expect_model(opened, app, "timm:vit_typed")
    expect(opened.locator("#another")).not_to_be_visible()
    assert opened.locator("#model optgroup").last.get_attribute("label") == "Brought by you"
    choose(opened, MODEL)
    expect_model(opened, app, MODEL)
    choose(opened, "timm:vit_typed")
    expect_model(opened, app, "timm:vit_typed")
    choose(opened, MODEL)


def test_the_arrow_keys_load_only_where_they_rest(
    opened: Browser, app: Running, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    permit, asked = app.endpoints.menu.permit, set()

    def note(text: str) -> str:
        asked.add(text)
        return permit(text)

    monkeypatch.setattr(app.endpoints.menu, "permit", note)
    opened.focus("#model select")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    expect_model(opened, app, small[1])
    assert small[1] in asked
    assert small[0] not in asked


class Gate:
    """A model on its way, for as long as the test likes."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, load: Callable[[str], ViT], name: str) -> ViT:
        assert self.open.wait(30)
        return load(name)


@pytest.fixture
def gate(app: Running, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Nothing but the first model is loaded, and every other one waits at the gate."""
    made, menu = Gate(), app.endpoints.menu
    load = menu.load
    fresh = Models(lambda name: load(name) if name == MODEL else made(load, name), menu.settings.memory, MODEL)
    monkeypatch.setattr(app.endpoints, "loaded", fresh)
    fresh.get(MODEL)
    return made


def test_while_a_model_loads_it_is_said_and_the_page_still_answers(
    opened: Browser, app: Running, small: list[str], browser, gate: Gate
) -> None:
    choose(opened, small[0])
    status = opened.locator(".vv-status")
    expect(status).to_be_visible()
    expect(status).to_contain_text(re.compile(r"Loading Tiny registers \(144 kB\) · [12] s"))
    head(opened, 2)  # with the model that is there
    expect_map(opened, app.view().attention(-1, 2))
    other = browser.new_page()
    ready(other, app.url)
    example(other, "Dog")
    expect_map(other, app.view(DOG).attention())
    choose(opened, small[1])  # changed our mind: the last choice counts, whatever comes first
    gate.open.set()
    expect_model(opened, app, small[1], 2)
    expect(status).not_to_be_visible()
    other.close()


def test_one_may_stay_with_the_model_that_is_there(opened: Browser, app: Running, small: list[str], gate: Gate) -> None:
    choose(opened, small[0])
    status = opened.locator(".vv-status")
    expect(status).to_contain_text("Loading Tiny registers")
    choose(opened, MODEL)
    expect(status).not_to_be_visible()  # nobody waits for the other one
    gate.open.set()
    app.endpoints.loaded.get(small[0])
    opened.wait_for_timeout(1000)
    expect_model(opened, app, MODEL)


def test_a_model_that_went_comes_back_when_it_is_asked(opened: Browser, app: Running, small: list[str]) -> None:
    choose(opened, small[0])
    expect_model(opened, app, small[0])
    complete(opened)
    app.endpoints.loaded._evict(app.endpoints.loaded._limit)  # as if a large one came
    assert app.endpoints.loaded.used < 100e6
    head(opened, 2)  # the browser has what it needs
    expect_map(opened, app.view(CHURCH, small[0]).attention(head=2))
    app.endpoints.loaded._evict(app.endpoints.loaded._limit)
    opened.click(".vv-rollout summary")
    opened.check(".vv-modes input[value=rollout]")
    opened.select_option("[data-key=fuse]", "max")  # and now it needs more
    expect_map(opened, app.view(CHURCH, small[0]).rollout(fuse="max"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_form_and_the_notice_pass_axe_and_fit_a_phone(page: Browser, app: Running, theme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ready(page, f"{app.url}?theme={theme}")
    choose(page, DINO)
    expect(page.locator("#notice")).to_be_visible()
    choose(page, ANOTHER)
    expect(page.locator("#another")).to_be_visible()
    expect(page.locator("#another [name=source]")).to_be_focused()
    expect(page.locator(".vv-status")).not_to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not axe(page)


# --- input size


def finer(page: Browser, index: int) -> None:
    page.locator("#size select").select_option(index=index)


def test_a_finer_look_is_said_in_patches_and_time(opened: Browser, app: Running, small: list[str]) -> None:
    choose(opened, small[0])
    expect_model(opened, app, small[0])
    expect(opened.locator("#size option:checked")).to_have_text("Own · 77 patches")
    words = opened.locator("#size option").all_text_contents()
    assert re.search(r"2 x · 308 patches · (under a second|about \d+ (s|min))", words[1])
    finer(opened, 1)
    view = app.view(CHURCH, small[0], 2 * tiny.GRID[1] * tiny.PATCH)
    expect_map(opened, view.attention())
    expect(opened.locator("#badge")).to_contain_text("14 x 22 patches")
    head(opened, 1)
    expect_map(opened, view.attention(-1, 1))
    choose(opened, MODEL)  # another model starts with its own size
    expect_model(opened, app, MODEL, 1)
    expect(opened.locator("#size option:checked")).to_have_text(re.compile("^Own"))


PANES = """() => {
    const { pane, scene, beside } = vitviz.store.get();
    const both = [scene, beside.scene].map(({ id, source }) => [source.model, id]);
    return pane === 0 ? both : both.reverse();
}"""


def test_what_is_chosen_is_for_the_pane_that_is_chosen(opened: Browser, app: Running, small: list[str]) -> None:
    opened.get_by_role("button", name="Compare").click()
    choose(opened, small[0])
    opened.wait_for_function(f"({PANES})()[1][0] === {small[0]!r}")
    opened.locator(".vv-explore .vv-picture").first.focus()
    expect(opened.locator("#model select")).to_have_value(MODEL)
    before = opened.evaluate(PANES)
    finer(opened, 1)
    opened.wait_for_function(f"({PANES})()[0][1] !== {before[0][1]!r}")
    after = opened.evaluate(PANES)
    assert [model for model, _ in after] == [MODEL, small[0]]
    assert after[1] == before[1]
    grid = opened.evaluate("vitviz.store.get().scene.limits.grid")
    assert grid == list(app.view(CHURCH, size=448).trace.grid)
    opened.locator(".vv-explore .vv-picture").nth(1).focus()
    expect(opened.locator("#model select")).to_have_value(small[0])


def test_too_fine_a_look_is_refused_and_everything_stays(
    opened: Browser, app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = expect_map(opened, app.view().attention())
    monkeypatch.setattr(budget, "available_bytes", lambda device: 200 * 2**20)
    finer(opened, 3)
    notice = opened.locator("#notice")
    expect(notice).to_contain_text("memory")
    expect(notice).to_contain_text("largest that fits")
    expect(opened.locator("#size option:checked")).to_have_text(re.compile("^Own"))
    expect_unchanged(opened, before)
    finer(opened, 1)
    expect_map(opened, app.view(CHURCH, size=448).attention())
    expect(notice).not_to_be_visible()


# --- what the operator allows


@pytest.fixture(scope="module")
def closed(small: list[str]) -> Iterator[Running]:
    """A page as on a Space: nothing is typed, nothing uploaded."""
    yield from served(small[0], typed=False)


def test_a_closed_page_has_no_form(page: Browser, closed: Running) -> None:
    ready(page, closed.url)
    assert page.locator(f"#model option[value='{ANOTHER}']").count() == 0
    expect(page.locator("#another")).not_to_be_visible()


@pytest.fixture(scope="module")
def generous(small: list[str]) -> Iterator[Running]:
    """A page that takes checkpoints."""
    yield from served(small[0], upload=True)


def test_a_checkpoint_can_be_uploaded_where_that_is_allowed(page: Browser, generous: Running, tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    torch_state = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3).state_dict()
    good, bad = tmp_path / "mine.safetensors", tmp_path / "bad.safetensors"
    save_file(torch_state, good)
    bad.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    ready(page, generous.url)
    before = expect_map(page, generous.view().attention())
    choose(page, ANOTHER)
    page.locator("#another input[type=file]").set_input_files(str(bad))
    expect(page.locator("#notice")).to_contain_text("xpected")
    expect_unchanged(page, before)
    assert "/tmp" not in page.locator("#notice").inner_text()  # nobody needs to know where uploads lie
    page.locator("#another input[type=file]").set_input_files(str(good))
    expect(page.locator("#badge")).to_contain_text("2 x 2 patches")
    expect(page.locator("#model option:checked")).to_have_text(re.compile(r"mine\.safetensors · 4 MB"))
    assert page.locator("#model optgroup").last.get_attribute("label") == "Brought by you"
    assert "mine.safetensors" not in page.url
