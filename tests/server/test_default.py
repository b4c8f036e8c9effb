"""Larger models that are proposed, and the operator's own default. No browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers as hf
from local_hub import local_hub
from offered import folder, made

from vitviz.cli.main import main
from vitviz.server.larger import LargerModels
from vitviz.server.menu import Menu
from vitviz.server.settings import Settings, settings
from vitviz.weights.catalog import CatalogEntry

LARGE, GONE = "hf:google/large-vit", "hf:google/gone"
CATALOG = (
    CatalogEntry(source=GONE, title="Gone", known_for="nothing", parameters=22_500_000, classes=1000),
    CatalogEntry(source="timm:features", title="Features", known_for="no classes", parameters=7),
    CatalogEntry(source=LARGE, title="Large", known_for="many classes", parameters=22_059_496, classes=1000),
    CatalogEntry(source="torchvision:vit", title="Elsewhere", known_for="no hub", parameters=7, classes=1000),
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A hub on this machine with one model of 1,000 classes, and a catalog that names it."""
    place = tmp_path_factory.mktemp("hub")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 31}
    config = hf.ViTConfig(**sizes, image_size=224, patch_size=32, num_labels=1000)
    hf.ViTForImageClassification(config).save_pretrained(place / "google" / "large-vit")
    hf.ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(place / "google" / "large-vit")
    with pytest.MonkeyPatch.context() as patch, local_hub(place, place / "cache", patch):
        patch.setattr("vitviz.server.larger.CATALOG", CATALOG)
        patch.setattr("vitviz.server.menu.CATALOG", CATALOG)
        yield place


@pytest.fixture
def source(tmp_path: Path) -> str:
    return folder(tmp_path / "own")


def test_nothing_is_proposed_without_a_hub_or_without_memory(
    hub: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    menu = Menu(Settings(models=(source,)), bundled=[])
    assert [one["source"] for one in LargerModels(menu).models()] == [LARGE, GONE]
    assert LargerModels(menu).models()[0]["words"] == "Large, 88 MB"
    assert LargerModels(Menu(Settings(models=(source,), memory=80_000_000), bundled=[])).models() == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert LargerModels(menu).models() == []


def test_a_default_that_cannot_be_had_is_said_and_the_bundled_one_opens(hub: Path, source: str, tmp_path: Path) -> None:
    endpoints = made(tmp_path / "page", (source,), memory=3e3, default=GONE)
    assert endpoints.notice.startswith("Gone could not be opened, so the page opens with Tiny 0. ")
    assert endpoints.menu.default == source
    assert endpoints.open(image="Noise")["model"] == source
    assert endpoints.loaded.holds(endpoints.loaded.get(source).explorer)


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_the_page_opens_with_the_operators_default(hub: Path, source: str, tmp_path: Path, kind: str) -> None:
    own = {"hub": LARGE, "folder": folder(tmp_path / "other", 3)}[kind]
    endpoints = made(tmp_path / "page", (source,), memory=1e5, default=own)
    assert endpoints.notice == ""
    assert (endpoints.menu.default, endpoints.menu.bundled) == (own, source)
    assert endpoints.open(image="Noise")["model"] == own
    assert endpoints.models()["default"] == own


def test_a_page_without_any_model_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="could not be opened"):
        made(tmp_path / "page", (str(tmp_path / "nothing"),))


def test_the_default_is_an_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("vitviz.server.pages.build", lambda allowed: seen.append(allowed))
    monkeypatch.setattr("vitviz.server.server.launch", lambda *_, **__: None)
    monkeypatch.setenv("VITVIZ_DEFAULT", "timm:a")
    assert main(["app"]) == 0
    assert main(["app", "--default", "b", "--mcp"]) == 0
    assert [(allowed.default, allowed.mcp) for allowed in seen] == [("timm:a", False), ("b", True)]
    assert settings(environ={"VITVIZ_DEFAULT": " c "}).default == "c"
