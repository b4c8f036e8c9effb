"""The menu of models: what it says, and what it needs."""

import io
from pathlib import Path

import pytest
import tiny
from offered import folder, made, photograph

from vitviz.server.menu import Menu, MenuError, describe_bytes, short_licence
from vitviz.server.settings import Settings
from vitviz.server.uploads import UploadFolder
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled


def test_the_menu_has_those_of_this_machine_first_and_those_of_the_catalog(sources: tuple[str, ...]) -> None:
    menu = Menu(Settings(models=sources))
    (_, here), (_, listed) = menu.groups
    assert menu.default == here[0].source == bundled()[0]
    assert here[0].licence == "MIT and, by inference, Apache-2.0; fine-tuned on images for research use"
    assert here[0].size == pytest.approx(44.1e6, rel=0.01)
    assert [entry.source for entry in here] == [*bundled(), *sources]
    assert (here[-3].title, here[-3].licence) == ("Tiny 0", "MIT; nothing else")
    assert [entry.source for entry in listed] == [one.source for one in CATALOG]
    assert listed[4].describe() == "DINO S/16 · 87 MB · Apache-2.0"


def test_the_operators_models_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1")
    (tmp_path / "mine.pt").write_bytes(bytes(3_000_000))
    odd = (str(tmp_path / "broken"), str(tmp_path / "mine.pt"), CATALOG[1].source, "timm:something", "nowhere")
    here = Menu(Settings(models=odd), bundled=[]).groups[0][1]
    assert [entry.describe() for entry in here] == [
        "broken",
        "mine.pt · 3 MB",
        f"{CATALOG[1].title} · 346 MB · {CATALOG[1].licence}",
        "timm:something",
        "nowhere",
    ]


def test_sizes_in_words() -> None:
    words = {9_000: "9 kB", 481_368: "482 kB", 44_100_000: "44 MB", 1_300_000_000: "1.3 GB"}
    assert {count: describe_bytes(count) for count in words} == words


def test_the_size_is_of_the_weights_and_not_of_a_trainings_state(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    before = Menu(Settings(models=(source,)), bundled=[]).entry(source).size
    (tmp_path / "a" / "state.safetensors").write_bytes(bytes(5_000_000))
    assert Menu(Settings(models=(source,)), bundled=[]).entry(source).size == before > 0


def test_a_page_needs_a_model() -> None:
    with pytest.raises(MenuError, match="checkpoints"):
        Menu(Settings(), bundled=[])


def test_licences_in_a_word() -> None:
    words = {
        "MIT": "MIT",
        "A-2.0 (b) and C (d); for research": "A-2.0 and C; for research",
        "unknown: nobody (MIT) states one": "licence unknown",
        "unknown": "licence unknown",
        "": "",
    }
    assert {licence: short_licence(licence) for licence in words} == words


# --- what may be named

NAMES = ["timm:vit_tiny_patch16_224.augreg_in21k", "hf:facebook/dinov2-small", "hf:bare", "torchvision:vit_l_32.A_B"]
NO_NAMES = [
    *("", "/etc/passwd", "/etc", "..", "./checkpoints", "checkpoints/dinov2-s14-imagenette", "~", "\x00"),
    *("hf:/etc", "hf:../../etc", "hf:a/b/c", "hf:a/..", "HF:a/b", "timm:../x", "timm:a/b", "timm:hf-hub:a/b"),
    *("timm:x\ny", "torchvision:", "keras:vit", "file:///etc/passwd", "https://example.com/a.safetensors"),
    *("upload:/etc/passwd", "upload:../a", "upload:*", "upload:0123456789abcdef"),
]


def test_names_of_libraries_may_be_typed_where_that_is_allowed(sources: tuple[str, ...]) -> None:
    free, closed = Menu(Settings(models=sources)), Menu(Settings(models=sources, typed=False))
    for text in NAMES:
        assert free.permit(f"  {text} ") == text
        with pytest.raises(MenuError, match="own machine"):
            closed.permit(text)
    for listed in (sources[1], CATALOG[3].source, closed.default):
        assert closed.permit(listed) == listed


@pytest.mark.parametrize("typed", [True, False])
def test_paths_and_addresses_are_never_read_for_visitors(
    typed: bool, sources: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = made(tmp_path / "page", sources, typed=typed, upload=typed)
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda source: pytest.fail(f"{source} was read"))
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *source: pytest.fail(f"{source} was fetched"))
    for text in NO_NAMES:
        with pytest.raises(ValueError, match="xpected"):
            endpoints.question("open", {"photo": photograph(), "model": text}).compute()
        with pytest.raises(MenuError):
            endpoints.menu.permit(text)


def test_a_folder_with_the_name_of_a_remote_model_is_not_taken_for_it(
    sources: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "timm:tiny", 9)
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *name: asked.append(name) or tiny.model())
    made(tmp_path / "page", sources).begin("timm:tiny")[1].result()
    assert asked == [("timm", "tiny")]


def test_an_uploaded_checkpoint_is_known_by_its_hash_alone(sources: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    uploads = UploadFolder(tmp_path / "uploads")
    weights = (Path(sources[1]) / "model.safetensors").read_bytes()
    path = uploads.add("visitor", "mine.safetensors", io.BytesIO(weights))
    picture = uploads.add("visitor", "mine.png", io.BytesIO(photograph()))
    source = f"upload:{path.parent.name[:16]}"
    menu = Menu(Settings(models=sources, upload=True), bundled=[], uploads=uploads)
    assert menu.permit(source) == source
    assert menu.entry(source).describe() == f"mine.safetensors · {describe_bytes(len(weights))}"
    for other in (f"upload:{path.parent.name}", f"upload:{picture.parent.name[:16]}", str(path)):
        with pytest.raises(MenuError):
            menu.permit(other)
    with pytest.raises(MenuError, match="takes no checkpoints"):
        Menu(Settings(models=sources), bundled=[], uploads=uploads).permit(source)
    path.unlink()
    with pytest.raises(MenuError, match="Upload it again"):
        menu.permit(source)
