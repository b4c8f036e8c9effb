"""Loaded models within their bound, and what larger inputs cost. No browser."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
from patience import patience, wait_until

from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.server import sizes
from vitviz.server.models import Models, TooLarge, bytes_of
from vitviz.server.sizes import Pace

SIZE = bytes_of(tiny.model())


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


# --- input sizes


def config(side: int = 224, patch: int = 14, **changes: object) -> ViTConfig:
    sizes = {"image_size": (side, side), "patch_size": patch, "width": 384, "depth": 12, "heads": 6, "classes": 10}
    return ViTConfig(**sizes, **changes)


def test_work_is_counted_as_by_hand() -> None:
    # Twelve blocks, 12 D² a token in the layers, and 2 D for each pair.
    plain = config()
    assert sizes.work(plain, 257) == 12 * (12 * 384**2 * 257 + 2 * 384 * 257**2)
    gated = config(mlp="swiglu", mlp_width=1024)
    assert sizes.work(gated, 1) == 12 * (4 * 384**2 + 3 * 384 * 1024 + 2 * 384)
    assert Pace(257, 0.1).at(plain, 4097) == pytest.approx(0.1 * sizes.work(plain, 4097) / sizes.work(plain, 257))


@pytest.mark.parametrize("mode", ["crop", "native"])
@pytest.mark.parametrize(
    ("side", "patch", "largest"), [(224, 14, 2048), (518, 14, 2048), (224, 8, 2048), (224, 16, 300)]
)
def test_choices_go_from_the_models_own_to_the_largest(mode: str, side: int, patch: int, largest: int) -> None:
    preprocess = Preprocess(mode=mode, height=side, width=side, multiple=patch)
    small = config(side, patch)
    own, *larger = choices = sizes.sizes(small, preprocess, (900, 600), Pace(257, 0.1), largest)
    assert own.size is None
    assert own.patches == pytest.approx((side // patch) ** 2, rel=0.05)
    sides = [choice.size for choice in larger]
    assert sides == sorted(set(sides))
    assert sides[-1] % patch == 0
    assert sides[-1] <= largest
    assert sides[-1] > largest - patch or choices[-1].patches > 24_000
    assert all(choice.patches <= 25_500 for choice in choices)
    for choice in larger:
        height, width = preprocess.at(choice.size, patch).input_size(900, 600)
        assert choice.patches == (height // patch) * (width // patch)
        assert choice.seconds == pytest.approx(0.1 * sizes.work(small, choice.patches + 1) / sizes.work(small, 257))
        assert f"{choice.patches:,} patches" in choice.describe()["words"]


def test_a_model_as_large_as_allowed_has_no_larger_choice() -> None:
    (own,) = sizes.sizes(config(), Preprocess(height=224, width=224), (9, 9), None, 224)
    assert own.describe() == {"size": None, "words": "Own · 256 patches"}


def test_guesses_are_rounded() -> None:
    said = {0.3: "under a second", 3.4: "about 3 s", 61: "about 60 s", 100: "about 2 min", 3000: "about 50 min"}
    assert {seconds: sizes.about(seconds) for seconds in said} == said


def test_the_fastest_run_sets_the_pace() -> None:
    view = Explorer(tiny.model()).open(np.zeros((50, 70, 3), np.uint8))
    tokens = view.trace.tokens.shape[1]
    view.seconds = 1.0
    assert sizes.faster(view, None) == Pace(tokens, 1.0)
    assert sizes.faster(view, Pace(tokens, 0.5)) == Pace(tokens, 0.5)
    assert sizes.faster(view, Pace(tokens, 2.0)) == Pace(tokens, 1.0)
