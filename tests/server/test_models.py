"""The menu of models, the names that visitors may use, and the memory limit of loaded models."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
from offered import SIZE, folder, new_endpoints, photograph
from patience import patience, wait_until

from vitviz.formatting import describe_bytes
from vitviz.model.vit import ViT
from vitviz.server.menu import Menu, MenuError, short_licence
from vitviz.server.models import Models, TooLarge, bytes_of
from vitviz.settings import Settings
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled


def test_menu_lists_local_models_before_those_of_the_catalog(sources: tuple[str, ...]) -> None:
    menu = Menu(Settings(models=sources))
    (_, local), (_, published) = menu.groups
    assert menu.default == local[0].source == bundled()[0]
    assert local[0].licence == "MIT and, by inference, Apache-2.0; fine-tuned on images for research use"
    assert local[0].size == pytest.approx(44.1e6, rel=0.01)
    assert [entry.source for entry in local] == [*bundled(), *sources]
    assert (local[-3].title, local[-3].licence) == ("Tiny a", "MIT; nothing else")
    assert [entry.source for entry in published] == [model.source for model in CATALOG]
    assert published[6].describe() == "DINO S/16 · 87 MB"


def test_menu_accepts_any_models_of_the_operator_but_at_least_one(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1")
    (tmp_path / "mine.pt").write_bytes(bytes(3_000_000))
    odd = (str(tmp_path / "broken"), str(tmp_path / "mine.pt"), CATALOG[1].source, "timm:something", "nowhere")
    assert [entry.describe() for entry in Menu(Settings(models=odd), bundled=[]).groups[0][1]] == [
        "broken",
        "mine.pt · 3 MB",
        f"{CATALOG[1].title} · 346 MB",
        "timm:something",
        "nowhere",
    ]
    with pytest.raises(MenuError, match="checkpoints"):
        Menu(Settings(), bundled=[])


def test_sizes_and_licences_are_described() -> None:
    texts = {9_000: "9 kB", 481_368: "482 kB", 44_100_000: "44 MB", 1_300_000_000: "1.3 GB"}
    assert {count: describe_bytes(count) for count in texts} == texts
    licences = {
        "MIT": "MIT",
        "A-2.0 (b) and C (d); for research": "A-2.0 and C; for research",
        "unknown: nobody (MIT) states one": "licence unknown",
        "unknown": "licence unknown",
        "": "",
    }
    assert {licence: short_licence(licence) for licence in licences} == licences


def test_size_of_a_model_excludes_the_state_of_a_training(tmp_path: Path) -> None:
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


def test_names_of_library_models_are_permitted_only_if_typing_is_allowed(sources: tuple[str, ...]) -> None:
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
    endpoints = new_endpoints(tmp_path / "page", sources, typed=typed, upload=typed)
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda source: pytest.fail(f"{source} was read"))
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *source: pytest.fail(f"{source} was fetched"))
    for text in NO_NAMES:
        with pytest.raises(ValueError, match="xpected"):
            endpoints.question("open", {"photo": photograph(), "model": text}).compute()
        with pytest.raises(MenuError):
            endpoints.menu.permit(text)


def test_local_folder_does_not_replace_a_remote_model_of_its_name(
    sources: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "timm:tiny", 9)
    names: list[tuple[str, str]] = []
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *name: names.append(name) or tiny.model())
    new_endpoints(tmp_path / "page", sources).begin("timm:tiny")[1].result()
    assert names == [("timm", "tiny")]


def test_uploaded_checkpoint_is_permitted_only_by_its_hash(sources: tuple[str, ...], tmp_path: Path) -> None:
    menu = Menu(Settings(models=sources, upload=True), bundled=[])
    weights, digest = (Path(sources[1]) / "model.safetensors").read_bytes(), "0123456789abcdef"
    path, source = menu.uploads / digest / "mine.safetensors", f"upload:{digest}"
    path.parent.mkdir()
    path.write_bytes(weights)
    assert menu.permit(source) == source
    assert menu.entry(source).describe() == f"mine.safetensors · {describe_bytes(len(weights))}"
    for other in (f"{source}0", "upload:*", f"upload:../{menu.uploads.name}/{digest}", str(path)):
        with pytest.raises(MenuError):
            menu.permit(other)
    with pytest.raises(MenuError, match="takes no checkpoints"):
        Menu(Settings(models=sources), bundled=[]).permit(source)
    path.unlink()
    with pytest.raises(MenuError, match="Upload it again"):
        menu.permit(source)


class Loader:
    """Return tiny models and record their names; a test can hold up loading with the gate."""

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


def test_least_recently_used_model_is_evicted_and_the_default_kept(loader: Loader) -> None:
    evicted: list[str] = []
    cache = models(loader, 3.5, evicted=evicted.append)
    explorers = {name: cache.get(name) for name in ("first", "a", "b")}
    assert cache.get("a") is explorers["a"]
    cache.get("c")
    assert evicted == ["b"]
    cache.get("d")
    assert evicted == ["b", "a"]
    assert cache.get("first") is explorers["first"]
    assert cache.used <= 3.5 * SIZE
    assert [cache.holds(explorers[name].explorer) for name in ("first", "a", "b")] == [True, False, False]
    assert loader.loaded == ["first", "a", "b", "c", "d"]
    cache.get("b")
    assert loader.loaded[-1] == "b"


def test_bytes_of_counts_all_parameters_and_buffers() -> None:
    model = tiny.model()
    assert bytes_of(model) == 4 * sum(p.numel() for p in model.parameters()) > 10_000
    model.register_buffer("more", model.norm.weight.double())
    assert bytes_of(model) == SIZE + 8 * tiny.WIDTH


def test_memory_is_freed_before_a_model_of_known_size_is_loaded(loader: Loader) -> None:
    cache = models(loader, 2.5, size=lambda name: SIZE)
    cache.get("first")
    cache.get("a")
    loader.gate.clear()
    future = cache.begin("b")
    wait_until(lambda: loader.loaded[-1] == "b", "the model is being loaded")
    assert cache.used == SIZE  # the first model's: "a" is already evicted
    loader.gate.set()
    future.result(patience(60))


def test_model_beyond_the_limit_is_refused_without_evictions_unless_it_is_the_default(loader: Loader) -> None:
    cache = models(loader, 3.0)
    held = [cache.get(name) for name in ("first", "a")]
    with pytest.raises(TooLarge, match="--model-memory"):
        cache.get("large")
    assert all(cache.holds(loaded.explorer) for loaded in held)
    small = models(loader, 0.1)
    assert small.holds(small.get("first").explorer)
    with pytest.raises(TooLarge):
        small.get("a")


def test_requested_model_is_loaded_once_and_blocks_no_other(loader: Loader) -> None:
    cache = models(loader, 9)
    first = cache.get("first")
    loader.gate.clear()
    futures = [cache.begin("slow") for _ in range(3)]
    assert cache.get("first") is first  # while the other model is being loaded
    assert not any(future.done() for future in futures)
    loader.gate.set()
    assert len({id(future.result(patience(60))) for future in futures}) == 1
    assert loader.loaded == ["first", "slow"]
    assert cache.get("slow") is futures[0].result()


def test_failed_model_is_loaded_again(loader: Loader) -> None:
    cache = models(loader, 9)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such thing"):
            cache.get("broken")
    assert loader.loaded == ["broken", "broken"]
    assert cache.used == 0


def test_parallel_requests_stay_within_the_limit(loader: Loader) -> None:
    cache = models(loader, 4.0)
    cache.get("first")

    def used_after(number: int) -> int:
        cache.get(f"model {number * 5 % 7}")
        return cache.used

    with ThreadPoolExecutor(4) as visitors:
        assert max(visitors.map(used_after, range(28))) <= 4.0 * SIZE
