"""Larger models that the page suggests, the choice that a browser stores, and the operator's default."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers as hf
from browsing import close_menu, menu_select, open_menu
from local_hub import local_hub
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import DOG, MODEL, Running, example, expect_accessible, expect_map, ready, served

from vitviz.server.endpoints import Endpoints
from vitviz.server.menu import LargerModels, Menu
from vitviz.settings import Settings, settings
from vitviz.weights.catalog import CatalogEntry

LARGE, GONE = "hf:google/large-vit", "hf:google/gone"
CATALOG = (
    CatalogEntry(source=GONE, title="Gone", known_for="nothing", parameters=22_500_000, classes=1000),
    CatalogEntry(source="timm:features", title="Features", known_for="no classes", parameters=7),
    CatalogEntry(source=LARGE, title="Large", known_for="many classes", parameters=22_059_496, classes=1000),
    CatalogEntry(source="torchvision:vit", title="Elsewhere", known_for="no hub", parameters=7, classes=1000),
)
REMEMBERED = "localStorage.getItem('vitviz-model')"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Serve a local hub with one model of 1,000 classes, and a catalog that lists it."""
    place = tmp_path_factory.mktemp("hub")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 31}
    config = hf.ViTConfig(**sizes, image_size=224, patch_size=32, num_labels=1000)
    hf.ViTForImageClassification(config).save_pretrained(place / "google" / "large-vit")
    hf.ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(place / "google" / "large-vit")
    with pytest.MonkeyPatch.context() as patch, local_hub(place, place / "cache", patch):
        patch.setattr("vitviz.server.menu.CATALOG", CATALOG)
        yield place


@pytest.fixture(scope="module")
def app(hub: Path, models: dict[str, str]) -> Iterator[Running]:
    """Serve an app that reaches the hub when it starts."""
    yield from served(models["native"], bundled=())


def expect_large(page: Browser, app: Running) -> None:
    expect_map(page, app.view(model=LARGE).attention())
    expect(page.locator("#model select")).to_have_value(LARGE)
    expect(page.locator(".vv-predictions h2")).to_have_text("It says")
    open_menu(page)
    expect(page.locator("#model")).to_be_visible()
    expect(page.locator(".vv-larger")).not_to_be_visible()
    close_menu(page)


@pytest.mark.tier("all")
def test_larger_model_is_chosen_by_a_click_and_remembered_by_the_browser(page: Browser, app: Running) -> None:
    ready(page, app.url)
    expect(page.locator(".vv-best button")).to_have_text("Use a model with 1,000 classes: Large, 88 MB")
    open_menu(page)
    page.click(".vv-larger summary")
    expect(page.locator(".vv-others button")).to_have_text(["Gone, 90 MB"])
    expect_accessible(page)
    assert page.evaluate(REMEMBERED) is None
    page.click(".vv-best button")
    expect_large(page, app)
    assert page.evaluate(REMEMBERED) == LARGE
    ready(page, app.url)  # another visit
    expect_large(page, app)
    example(page, "Dog")
    expect_map(page, app.view(DOG, LARGE).attention())
    page.go_back()
    expect_large(page, app)
    ready(page, f"{app.url}?model={app.default}")  # a link's model has priority
    expect_map(page, app.view().attention())
    assert page.evaluate(REMEMBERED) == LARGE
    ready(page, f"{app.url}?image=Dog")  # a link without a model
    expect_map(page, app.view(DOG, LARGE).attention())
    menu_select(page, "#model select", app.default)
    expect_map(page, app.view(DOG).attention())
    page.wait_for_function(f"{REMEMBERED} === null")  # the default need not be stored


def test_unavailable_model_is_reported_and_forgotten(page: Browser, app: Running) -> None:
    ready(page, app.url)
    open_menu(page)
    page.click(".vv-larger summary")
    page.click(".vv-others button")
    notice = page.locator(".vv-message")
    expect(notice).to_contain_text("Gone: Expected 'google/gone' from the Hugging Face hub, got HfHubHTTPError")
    assert page.evaluate(REMEMBERED) is None
    page.evaluate(f"localStorage.setItem('vitviz-model', '{GONE}')")
    ready(page, app.url)
    expect(notice).to_contain_text("Gone: Expected 'google/gone' from the Hugging Face hub, got HfHubHTTPError")
    expect_map(page, app.view().attention())
    expect(page.locator("#model select")).to_have_value(app.default)
    page.wait_for_function(f"{REMEMBERED} === null")
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())


def test_no_larger_model_is_proposed_without_a_hub_or_memory(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    menu = Menu(Settings(), bundled=[MODEL])
    assert [model["source"] for model in LargerModels(menu).models()] == [LARGE, GONE]
    assert LargerModels(Menu(Settings(memory=100_000_000), bundled=[MODEL])).models() == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert LargerModels(menu).models() == []


@pytest.mark.tier("all")
def test_unavailable_default_is_reported_and_replaced(page: Browser, hub: Path, models: dict[str, str]) -> None:
    for fallen in served(models["native"], default=GONE, bundled=()):
        native = models["native"]
        ready(page, fallen.url)
        notice = page.locator(".vv-message")
        expect(notice).to_contain_text("Could not open Gone; the page shows Tiny native instead.")
        expect_map(page, fallen.view(model=native).attention())
        expect(page.locator("#model select")).to_have_value(native)
        example(page, "Dog")
        expect_map(page, fallen.view(DOG, native).attention())
        expect(notice).to_be_hidden()


@pytest.mark.parametrize("kind", ["hub", "folder", "bundled"])
def test_page_opens_with_the_operators_default(hub: Path, models: dict[str, str], kind: str) -> None:
    own = {"hub": LARGE, "folder": models["native"], "bundled": MODEL}[kind]
    menu = Menu(settings(environ={"VITVIZ_DEFAULT": own}), bundled=[MODEL])
    assert menu.default == own
    assert menu.bundled == MODEL
    assert menu.permit(own) == own
    endpoints = Endpoints(menu)
    assert endpoints.open(image="Church")["model"] == own
    assert endpoints.notice == ""
