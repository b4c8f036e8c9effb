"""The menu of models: what it says, and what it needs."""

from pathlib import Path

import pytest
from offered import folder

from vitviz.server.menu import Menu, MenuError, byte_words, short_licence
from vitviz.server.settings import Settings
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled


def test_the_menu_has_those_of_this_machine_first_and_those_of_the_catalog(tmp_path: Path) -> None:
    sources = (folder(tmp_path / "a"), folder(tmp_path / "b", 1))
    menu = Menu(Settings(models=sources))
    (_, here), (_, listed) = menu.groups
    assert menu.default == here[0].source == bundled()[0]
    assert here[0].licence == "Apache-2.0 and MIT"
    assert here[0].size == pytest.approx(44.1e6, rel=0.01)
    assert [offer.source for offer in here] == [*bundled(), *sources]
    assert (here[-2].title, here[-2].licence) == ("Tiny 0", "MIT")
    assert [offer.source for offer in listed] == [one.source for one in CATALOG]
    assert listed[4].words == "DINO S/16 · 87 MB · Apache-2.0"


def test_the_operators_models_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1")
    (tmp_path / "mine.pt").write_bytes(bytes(3_000_000))
    odd = (str(tmp_path / "broken"), str(tmp_path / "mine.pt"), CATALOG[1].source, "timm:something", "nowhere")
    here = Menu(Settings(models=odd), bundled=[]).groups[0][1]
    assert [offer.words for offer in here] == [
        "broken",
        "mine.pt · 3 MB",
        f"{CATALOG[1].title} · 346 MB · {CATALOG[1].licence}",
        "timm:something",
        "nowhere",
    ]


@pytest.mark.parametrize(
    ("count", "words"), [(9_000, "9 kB"), (481_368, "482 kB"), (44_100_000, "44 MB"), (1_300_000_000, "1.3 GB")]
)
def test_sizes_in_words(count: int, words: str) -> None:
    assert byte_words(count) == words


def test_the_size_is_of_the_weights_and_not_of_a_trainings_state(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    before = Menu(Settings(models=(source,)), bundled=[]).offer(source).size
    (tmp_path / "a" / "state.safetensors").write_bytes(bytes(5_000_000))
    assert Menu(Settings(models=(source,)), bundled=[]).offer(source).size == before > 0


def test_a_page_needs_a_model() -> None:
    with pytest.raises(MenuError, match="checkpoints"):
        Menu(Settings(), bundled=[])


@pytest.mark.parametrize(
    ("licence", "short"),
    [
        ("MIT", "MIT"),
        ("A-2.0 (b) and C (d); for research", "A-2.0 and C"),
        ("unknown", "licence unknown"),
        ("", ""),
    ],
)
def test_licences_in_a_word(licence: str, short: str) -> None:
    assert short_licence(licence) == short
