"""Input sizes: the sizes offered, estimates of their cost, refusals that give a size that fits, and scheduling."""

import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from offered import WIDTH, ask, folder, new_endpoints, photograph, view_of, visiting
from patience import patience

from vitviz.attribution.registry import METHODS, attribute
from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.layers import Block
from vitviz.model.memory import forward_bytes, kept_bytes
from vitviz.server import jobs as scheduling
from vitviz.server import opening as module
from vitviz.server import sizes
from vitviz.server.endpoints import Endpoints
from vitviz.server.jobs import BusyError, Jobs, Kind, current
from vitviz.server.routes import describe_error
from vitviz.server.sizes import (
    Pace,
    TooLargeError,
    check_fits,
    heads_need,
    layers_need,
    limit_of,
    method_need,
    most_patches,
    open_need,
    passes_need,
    question_bytes,
)
from vitviz.settings import Settings


def config(side: int = 224, patch: int = 14, **changes: object) -> ViTConfig:
    sizes = {"image_size": (side, side), "patch_size": patch, "width": 384, "depth": 12, "heads": 6, "classes": 10}
    return ViTConfig(**sizes, **changes)


def test_work_matches_a_count_by_hand() -> None:
    # Each of the twelve blocks takes 12 D² multiplications per token in its layers, and 2 D per pair of tokens.
    plain = config()
    assert sizes.work(plain, 257) == 12 * (12 * 384**2 * 257 + 2 * 384 * 257**2)
    gated = config(mlp="swiglu", mlp_width=1024)
    assert sizes.work(gated, 1) == 12 * (4 * 384**2 + 3 * 384 * 1024 + 2 * 384)
    assert Pace(257, 0.1).at(plain, 4097) == pytest.approx(0.1 * sizes.work(plain, 4097) / sizes.work(plain, 257))


@pytest.mark.parametrize("mode", ["crop", "native"])
@pytest.mark.parametrize(
    ("side", "patch", "largest"), [(224, 14, 2048), (518, 14, 2048), (224, 8, 2048), (224, 16, 300)]
)
def test_sizes_range_from_the_models_own_to_the_largest(mode: str, side: int, patch: int, largest: int) -> None:
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


def test_model_of_the_largest_size_has_one_choice() -> None:
    (own,) = sizes.sizes(config(), Preprocess(height=224, width=224), (9, 9), None, 224)
    assert own == sizes.Size(None, 1.0, 256, None)


def test_fastest_run_determines_the_pace() -> None:
    view = Explorer(tiny.model()).open(np.zeros((50, 70, 3), np.uint8))
    tokens = view.trace.tokens.shape[1]
    view.seconds = 1.0
    assert sizes.faster(view, None) == Pace(tokens, 1.0)
    assert sizes.faster(view, Pace(tokens, 0.5)) == Pace(tokens, 0.5)
    assert sizes.faster(view, Pace(tokens, 2.0)) == Pace(tokens, 1.0)


def test_photograph_is_opened_ahead_only_while_nothing_runs(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARPER_SECONDS", math.inf)  # a busy machine is slow
    larger = ask(endpoints, "open", image="Noise")["sizes"][1]
    assert larger["ahead"] == endpoints.menu.settings.sharper
    with endpoints.jobs.run(Kind.SHORT), pytest.raises(BusyError):
        ask(endpoints, "open", image="Noise", size=larger["size"], ahead=True)
    assert ask(endpoints, "open", image="Noise", size=larger["size"], ahead=True)["size"] == larger["size"]
    monkeypatch.setattr(module, "SHARPER_SECONDS", 0)
    assert not any(size["ahead"] for size in ask(endpoints, "open", photo=photograph(3))["sizes"])
    monkeypatch.setattr(module, "SHARPER_SECONDS", math.inf)
    endpoints.menu.settings = replace(endpoints.menu.settings, sharper=False)
    assert not any(size["ahead"] for size in ask(endpoints, "open", photo=photograph(4))["sizes"])


def test_large_input_pauses_for_another_visitors_photograph(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun, end, order = module.open_view, threading.Event(), threading.Event(), []

    def held(explorer: Any, picture: Any, size: int | None) -> Any:
        if size is not None:
            begun.set()
            assert end.wait(patience(60))
        return run(explorer, picture, size)

    monkeypatch.setattr(module, "open_view", held)
    monkeypatch.setattr(sizes, "LARGE", 2)

    def opens(address: str, **arguments: Any) -> None:
        with visiting(address):
            assert ask(endpoints, "open", **arguments)["id"]
        order.append(address)

    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(opens, "large", photo=photograph(1), size=4 * WIDTH)
        assert begun.wait(patience(60))
        opens("photograph", photo=photograph(2))
        end.set()
        large.result(patience(60))
    assert order == ["photograph", "large"]


def test_too_many_patches_are_refused_at_the_models_own_size(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MAX_PATCHES", 50)
    with pytest.raises(TooLargeError, match="77 patches") as refused:
        ask(endpoints, "open", photo=photograph(1))
    error = describe_error(refused.value)
    assert (error["kind"], error["size"]) == ("refused", refused.value.size)
    assert ask(endpoints, "open", photo=photograph(1), size=refused.value.size)["size"] == refused.value.size
    monkeypatch.setattr(sizes, "MAX_PATCHES", 9)
    assert endpoints.open(photograph(), size=3 * tiny.PATCH)["size"] == 3 * tiny.PATCH
    with pytest.raises(ValueError, match=f"at most {3 * tiny.PATCH} pixels for this model, got {4 * tiny.PATCH}"):
        endpoints.open(photograph(), size=4 * tiny.PATCH)


def test_estimates_grow_quadratically_for_methods_that_hold_matrices() -> None:
    config = tiny.model().config
    small, large = (question_bytes(config, METHODS["gae"], tokens, 4) for tokens in (5_000, 10_000))
    assert large > 3.5 * small
    small, large = (question_bytes(config, METHODS["occlusion"], tokens, 4) for tokens in (5_000, 10_000))
    assert large < 2.5 * small


@pytest.mark.parametrize("itemsize", [2, 4])
def test_methods_in_double_precision_need_eight_bytes_per_number(itemsize: int) -> None:
    """The matrices of one block are in float64, whatever the model's precision."""
    config, tokens, method = SHAPES["B/14"], 4_000, METHODS["transformer_lrp"]
    assert method.double
    need = question_bytes(config, method, tokens, itemsize) - forward_bytes(config, tokens, itemsize=8)
    copied = (itemsize + 8) * 12 * config.width**2  # the weights of one block
    assert need == 8 * method.matrices * config.heads * tokens**2 + copied


@pytest.mark.parametrize(
    ("name", "arguments", "estimate", "facts"),
    [
        ("layers", {}, layers_need, ()),
        ("intervene", {"patches": [1]}, passes_need, ()),
        ("rollout", {"token": 0}, method_need, (METHODS["rollout"],)),
        ("heads", {"names": ["gradient"]}, heads_need, (["gradient"],)),
        ("explain", {"method": "gae"}, method_need, (METHODS["gae"],)),
        ("faithfulness", {"methods": ["gae"]}, method_need, (METHODS["gae"],)),
    ],
)
def test_questions_are_refused_if_they_do_not_fit(
    name: str, arguments: dict[str, Any], estimate: Any, facts: tuple[Any, ...], tmp_path: Path
) -> None:
    endpoints = new_endpoints(tmp_path / "page", (folder(tmp_path / "a", classes=3_000),))
    scene = ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)["id"]
    config, (rows, columns) = view_of(endpoints, scene).model.config, view_of(endpoints, scene).trace.grid
    memory = estimate(config, 4, rows * columns, *facts).memory
    endpoints.menu.settings = replace(endpoints.menu.settings, question_memory=memory - 1)
    with pytest.raises(TooLargeError, match=r"Open the photograph at \d+ pixels or fewer") as refused:
        ask(endpoints, name, scene=scene, **arguments)
    assert refused.value.size < 4 * WIDTH
    smaller = ask(endpoints, "open", photo=photograph(1), size=refused.value.size)["id"]
    assert ask(endpoints, name, scene=smaller, **arguments)


def test_estimate_of_layers_depends_on_the_number_of_classes() -> None:
    """A classifier with many classes needs more memory per patch, and more time, than the rest of the model."""
    config, patches = SHAPES["B/14"], 1_000
    few, many = (layers_need(replace(config, classes=classes), 4, patches) for classes in (1_000, 21_841))
    assert many.memory - few.memory == pytest.approx(3 * 4 * 20_841 * patches, rel=0.3)
    assert few.passes < 1 < many.passes


def test_questions_about_large_scenes_are_not_light(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"scene": ask(endpoints, "open", photo=photograph(1))["id"], "block": 0}
    kinds, run, names = list[Kind](), endpoints.jobs.run, ("block", "attention", "lecture")
    monkeypatch.setattr(endpoints.jobs, "run", lambda kind, **booked: kinds.append(kind) or run(kind, **booked))
    questions = [endpoints.question(name, arguments) for name in names]
    assert all(question.is_light() for question in questions)
    monkeypatch.setattr(module, "LIGHT_TOKENS", 20)  # as if a large scene was opened after the checks
    assert all(question.compute() for question in questions)
    assert kinds == [Kind.SHORT] * 3
    assert not any(endpoints.question(name, arguments).is_light() for name in names)


SHAPES = {  # DINOv2's models
    "S/14": ViTConfig(width=384, depth=12, heads=6, patch_size=14, image_size=(518, 518)),
    "B/14": ViTConfig(width=768, depth=12, heads=12, patch_size=14, image_size=(518, 518)),
    "L/14": ViTConfig(width=1024, depth=24, heads=16, patch_size=14, image_size=(518, 518)),
}


def model_of(config: ViTConfig, mode: str = "crop") -> tuple[Any, Preprocess]:
    """Return a stub of a model, without its gigabytes of weights, and its preprocessing."""
    model = torch.nn.Linear(1, 1)
    model.config = config
    return model, Preprocess(height=518, width=518, mode=mode, multiple=config.patch_size)


@pytest.mark.parametrize("mode", ["crop", "native"])
@pytest.mark.parametrize("shape", SHAPES)
def test_offered_sizes_are_never_refused(shape: str, mode: str) -> None:
    config, allowed, photo = SHAPES[shape], Settings(), (4000, 1500)
    model, own = model_of(config, mode)
    offered = sizes.sizes(config, own, photo, None, allowed.side, limit_of(model, allowed, open_need))
    assert len(offered) > 1
    for choice in offered:
        for shape in (photo, sizes.USUAL):  # after and before decoding
            patches = most_patches(config, own, shape, choice.size)
            check_fits(model, own, "the model", shape, patches, allowed, open_need)


def test_inputs_that_fit_are_not_refused() -> None:
    """In measurements, B/14 at 2,044 pixels needs 1.6 GB, and its trace 0.8 GB of it."""
    photo = (1200, 900)

    def check(shape: str, side: int, *estimate: Any) -> None:
        model, own = model_of(SHAPES[shape])
        patches = most_patches(model.config, own, photo, side)
        check_fits(model, own, "the model", photo, patches, Settings(), *estimate)

    check("B/14", 2044, open_need)
    with pytest.raises(TooLargeError, match="1372 pixels"):
        check("L/14", 2044, open_need)
    for shape, method, side in (("S/14", "token_gradcam", 2044), ("B/14", "rollout", 2044), ("L/14", "gae", 896)):
        check(shape, side, method_need, METHODS[method])


def test_estimated_bytes_of_a_trace_match_the_trace(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)["id"]
    config, trace = view_of(endpoints, scene).model.config, view_of(endpoints, scene).trace
    assert trace.nbytes == pytest.approx(kept_bytes(config, trace.tokens.shape[1]), rel=0.1)


def test_sizes_that_would_be_refused_are_not_offered(endpoints: Endpoints) -> None:
    roomy = ask(endpoints, "open", photo=photograph(1))["sizes"]
    trace = kept_bytes(endpoints.loaded.get(endpoints.menu.default).explorer.model.config, 600)
    endpoints.menu.settings = replace(endpoints.menu.settings, scene_memory=int(trace / sizes.SHARE_OF_SCENE) + 20_000)
    opened = ask(endpoints, "open", photo=photograph(2))
    offered = [choice["size"] for choice in opened["sizes"] if choice["size"] is not None]
    assert 1 <= len(offered) < len(roomy)
    for size in offered:
        assert ask(endpoints, "open", photo=photograph(2), size=size)["size"] == size
    with pytest.raises(TooLargeError):
        ask(endpoints, "open", photo=photograph(2), size=roomy[-1]["size"])


def test_too_many_forward_passes_are_refused(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=2 * WIDTH)["id"]
    config, tokens = view_of(endpoints, scene).model.config, view_of(endpoints, scene).trace.tokens.shape[1]
    largest = sizes.work(config, len(config.prefix) + sizes.MAX_PATCHES)
    monkeypatch.setattr(sizes, "MAX_WORK", 5 * sizes.work(config, tokens) / largest)  # five forward passes
    assert ask(endpoints, "heads", scene=scene, names=["entropy"])["values"]
    assert ask(endpoints, "explain", scene=scene, method="gae")["values"]
    for name, arguments in (
        ("heads", {"names": ["ablation_logit"]}),
        ("faithfulness", {"methods": ["gae"]}),
        ("explain", {"method": "occlusion"}),
    ):
        with pytest.raises(TooLargeError, match=r"forward passes: \d+\)\. (Open|Choose)") as refused:
            ask(endpoints, name, scene=scene, **arguments)
        assert refused.value.size is None or refused.value.size < 2 * WIDTH


@pytest.mark.parametrize("method", ["gae", "gradient_rollout", "legrad", "transformer_lrp"])
def test_matrices_of_one_block_are_freed_before_the_next_block(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a block begins, only one block's matrices exist, even without garbage collection."""
    model, images = tiny.model(), tiny.images(1)
    tokens, counts = model.trace(images).tokens.shape[1], []
    forward = Block.forward

    def counted(*args: Any) -> Any:
        tensors = [value for value in gc.get_objects() if type(value) is torch.Tensor]
        counts.append(sum(tensor.ndim == 4 and tensor.shape[-2:] == (tokens, tokens) for tensor in tensors))
        return forward(*args)

    monkeypatch.setattr(Block, "forward", counted)
    gc.collect()
    gc.freeze()  # `get_objects` then omits objects that already exist
    gc.disable()
    try:
        attribute(model, images, 3, method)
    finally:
        gc.enable()
        gc.unfreeze()
    backward = counts[-model.config.depth :]  # transformer_lrp runs a forward pass before
    assert max(counts) == backward[0]


SHORT: dict[str, dict[str, Any]] = {
    "explain": {"method": "gae"},
    "rollout": {"token": 0},
    "heads": {"names": ["entropy"]},
    "layers": {},
    "intervene": {"patches": [1]},
}


def test_short_questions_about_large_scenes_are_long(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE", 2)
    kinds, run = list[Kind](), endpoints.jobs.run
    monkeypatch.setattr(endpoints.jobs, "run", lambda kind, **booked: kinds.append(kind) or run(kind, **booked))
    for size, kind in ((None, Kind.SHORT), (2 * WIDTH, Kind.LONG)):
        scene = ask(endpoints, "open", photo=photograph(1), size=size)["id"]
        for name, arguments in SHORT.items():
            kinds.clear()
            ask(endpoints, name, scene=scene, **arguments)
            assert kinds == [kind], name


def test_long_computation_regains_pause_time_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would delay photographs in the second half of a lecture."""
    now, pauses = [1.0], []
    monkeypatch.setattr(scheduling, "time", SimpleNamespace(monotonic=lambda: now[0]))
    jobs = Jobs()
    monkeypatch.setattr(jobs, "urgent", lambda _: True)

    def pause(_: Kind, most: float) -> float:
        pauses.append(most)
        now[0] += most
        return most

    monkeypatch.setattr(jobs, "pause", pause)
    with scheduling._GiveWay(jobs, Kind.LONG):
        for _ in range(3):
            torch.zeros(1).sum()
            now[0] += 5  # the computation runs
    assert pauses[0] == scheduling.MAX_PAUSE[Kind.LONG]
    assert sum(pauses[1:]) == 10


def test_progress_reports_the_decoding_of_a_photograph(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, texts = module.decode_apart, []

    def decode_apart(*args: Any, **options: Any) -> Any:
        texts.append(current.get().progress["text"])
        return decode(*args, **options)

    monkeypatch.setattr(module, "decode_apart", decode_apart)
    with visiting("127.0.0.9"):
        for size in (None, 4 * WIDTH):
            ask(endpoints, "open", photo=photograph(7), size=size)
    assert texts == ["Opening the photograph"] * 2
