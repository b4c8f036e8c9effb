"""The menu of models: what it says, what may be named; and loaded models within their bound. No browser."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
from offered import SIZE, folder, made, photograph
from patience import patience, wait_until

from vitviz.model.vit import ViT
from vitviz.server.menu import Menu, MenuError, describe_bytes, short_licence
from vitviz.server.models import Models, TooLarge, bytes_of
from vitviz.server.uploads import UploadFolder
from vitviz.settings import Settings
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled


def test_the_menu_has_those_of_this_machine_first_and_those_of_the_catalog(sources: tuple[str, ...]) -> None:
    menu = Menu(Settings(models=sources))
    (_, here), (_, listed) = menu.groups
    assert menu.default == here[0].source == bundled()[0]
    assert here[0].licence == "MIT and, by inference, Apache-2.0; fine-tuned on images for research use"
    assert here[0].size == pytest.approx(44.1e6, rel=0.01)
    assert [entry.source for entry in here] == [*bundled(), *sources]
    assert (here[-3].title, here[-3].licence) == ("Tiny a", "MIT; nothing else")
    assert [entry.source for entry in listed] == [one.source for one in CATALOG]
    assert listed[4].describe() == "DINO S/16 · 87 MB · Apache-2.0"


def test_the_operators_models_may_be_anything_but_none(tmp_path: Path) -> None:
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
    with pytest.raises(MenuError, match="checkpoints"):
        Menu(Settings(), bundled=[])


def test_sizes_and_licences_in_words() -> None:
    words = {9_000: "9 kB", 481_368: "482 kB", 44_100_000: "44 MB", 1_300_000_000: "1.3 GB"}
    assert {count: describe_bytes(count) for count in words} == words
    licences = {
        "MIT": "MIT",
        "A-2.0 (b) and C (d); for research": "A-2.0 and C; for research",
        "unknown: nobody (MIT) states one": "licence unknown",
        "unknown": "licence unknown",
        "": "",
    }
    assert {licence: short_licence(licence) for licence in licences} == licences


def test_the_size_is_of_the_weights_and_not_of_a_trainings_state(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    before = Menu(Settings(models=(source,)), bundled=[]).entry(source).size
    (tmp_path / "a" / "state.safetensors").write_bytes(bytes(5_000_000))
    assert Menu(Settings(models=(source,)), bundled=[]).entry(source).size == before > 0


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


class Loader:
    """Makes tiny models; remembers which, and can be held up."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, name: str) -> ViT:
        self.loaded.append(name)
        assert self.gate.wait(patience(60))
        if name == "broken":
            raise RuntimeError("no such thing")
        return tiny.model(depth=9) if name == "large" else tiny.model()


@pytest.fixture
def loader() -> Loader:
    return Loader()


def models(loader: Loader, room: float, **more: Callable) -> Models:
    return Models(loader, round(room * SIZE), "first", **more)


def test_the_least_recently_used_model_goes_and_the_first_stays(loader: Loader) -> None:
    gone: list[str] = []
    cache = models(loader, 3.5, evicted=lambda name, _: gone.append(name))
    explorers = {name: cache.get(name) for name in ("first", "a", "b")}
    assert cache.get("a") is explorers["a"]
    cache.get("c")
    assert gone == ["b"]
    cache.get("d")
    assert gone == ["b", "a"]
    assert cache.get("first") is explorers["first"]
    assert cache.used <= 3.5 * SIZE
    assert [cache.holds(explorers[name].explorer) for name in ("first", "a", "b")] == [True, False, False]
    assert loader.loaded == ["first", "a", "b", "c", "d"]
    cache.get("b")
    assert loader.loaded[-1] == "b"


def test_bytes_are_those_of_all_parameters_and_buffers() -> None:
    model = tiny.model()
    assert bytes_of(model) == 4 * sum(p.numel() for p in model.parameters()) > 10_000
    model.register_buffer("more", model.norm.weight.double())
    assert bytes_of(model) == SIZE + 8 * tiny.WIDTH


def test_memory_is_freed_before_a_model_of_known_size_is_loaded(loader: Loader) -> None:
    cache = models(loader, 2.5, size=lambda name: SIZE)
    cache.get("first")
    cache.get("a")
    loader.gate.clear()
    coming = cache.begin("b")
    wait_until(lambda: loader.loaded[-1] == "b", "it is loaded")
    assert cache.used == SIZE  # the first alone: the other has gone before this one comes
    loader.gate.set()
    coming.result(patience(60))


def test_a_model_larger_than_the_bound_is_refused_and_evicts_none_but_the_first_is_always_held(loader: Loader) -> None:
    cache = models(loader, 3.0)
    held = [cache.get(name) for name in ("first", "a")]
    with pytest.raises(TooLarge, match="--model-memory"):
        cache.get("large")
    assert all(cache.holds(loaded.explorer) for loaded in held)
    small = models(loader, 0.1)
    assert small.holds(small.get("first").explorer)
    with pytest.raises(TooLarge):
        small.get("a")


def test_a_model_that_several_ask_for_is_loaded_once_and_holds_up_no_other(loader: Loader) -> None:
    cache = models(loader, 9)
    first = cache.get("first")
    loader.gate.clear()
    asked = [cache.begin("slow") for _ in range(3)]
    assert cache.get("first") is first  # while the other is on its way
    assert not any(one.done() for one in asked)
    loader.gate.set()
    assert len({id(one.result(patience(60))) for one in asked}) == 1
    assert loader.loaded == ["first", "slow"]
    assert cache.get("slow") is asked[0].result()


def test_a_model_that_failed_is_tried_again(loader: Loader) -> None:
    cache = models(loader, 9)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such thing"):
            cache.get("broken")
    assert loader.loaded == ["broken", "broken"]
    assert cache.used == 0


def test_many_at_once_keep_the_bound(loader: Loader) -> None:
    cache = models(loader, 4.0)
    cache.get("first")

    def used_after(number: int) -> int:
        cache.get(f"model {number * 5 % 7}")
        return cache.used

    with ThreadPoolExecutor(4) as visitors:
        assert max(visitors.map(used_after, range(28))) <= 4.0 * SIZE
