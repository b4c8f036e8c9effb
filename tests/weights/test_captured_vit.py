"""Test modules that are opened without conversion: what they compute equals what the converted model computes."""

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import timm_models
import torch
from test_capture import pixels, registers, torchvision_vit, vit
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from tiny import close
from torch import Tensor, nn

import vitviz
from vitviz.attribution.registry import METHODS
from vitviz.weights.captured import CaptureError
from vitviz.weights.captured_vit import CapturedViT, NotConvertedError, open_captured
from vitviz.weights.checks import ConvertError

REFUSAL = ConvertError("Expected another model, got this one. Choose another.")


def opened(module: nn.Module) -> CapturedViT:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_captured(module, REFUSAL)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "class token": (timm_models.vit, (15, 35)),
    "registers, mean": (lambda: timm_models.vit(reg_tokens=3, class_token=False, global_pool="avg"), (15, 35)),
    "distilled": (timm_models.distilled, (15, 35)),
    "attention pooling": (lambda: timm_models.vit(class_token=False, global_pool="map"), (15, 35)),
    "relative bias": (timm_models.beit, (15, 35)),
    "torchvision": (torchvision_vit, (44, 44)),
}
CAPTURED = [name for name, method in METHODS.items() if not method.not_captured]
FAST = [name for name in CAPTURED if not METHODS[name].slow]


@pytest.mark.parametrize("name", MODELS)
def test_methods_match_conversion(name: str) -> None:
    build, size = MODELS[name]
    module, images = build(), pixels(*size)
    captured, converted = opened(module), vitviz.load(module)
    trace = captured.trace(images)
    assert trace.logits is not None
    close(trace.logits, converted(images))
    for method in FAST:
        ours, theirs = (vitviz.attribute(model, images, 3, method) for model in (captured, converted))
        for a, b in zip(ours, theirs, strict=True):
            scale = max(1e-9, float(np.abs(b.values).max()))
            close(a.values / scale, b.values / scale, 1e-4 if METHODS[method].signed else 2e-5)
            assert a.prefix_mass.keys() == b.prefix_mass.keys()
    assert all(parameter.grad is None for parameter in module.parameters())


class Odd(timm_models.VisionTransformer):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def odd() -> nn.Module:
    return timm_models.shaken(Odd(**timm_models.SIZES))


def test_load_and_explorer_capture_what_is_not_converted() -> None:
    with pytest.warns(UserWarning, match="runs as it is") as warned:
        model = vitviz.load(odd(), preprocess=vitviz.Preprocess(height=15, width=35, mode="squash"))
    assert len(warned) == 1
    assert isinstance(model, CapturedViT)
    assert model.pretrained is not None
    assert model.pretrained.assumed[-1].startswith("captured: the model runs as it is. Expected a model that")
    module = odd()
    with pytest.warns(UserWarning, match="runs as it is"):
        explorer = vitviz.Explorer(module)
    view = explorer.open(vitviz.example("dog"))
    close(view.trace.logits, module(view.images))
    for method in FAST:
        assert view.explain(method).values.shape == view.trace.grid
    assert view.faithfulness(view.explain("gae"))[0].baseline == "blur"
    assert view.heads().values["entropy"].shape == (3, 5)
    assert len(view.intervene(drop=[(0, 1)], mode="blur").top(2)) == 2
    assert "runs as it is" in view.html()


@pytest.mark.parametrize(
    "ask",
    [
        lambda view: view.lens(),
        lambda view: view.features,
        lambda view: view.intervene(heads=[(0, 1)]),
        lambda view: view.intervene(drop=[(0, 1)]),
        lambda view: view.explain("legrad"),
        lambda view: view.explain("attn_lrp"),
        lambda view: view.evidence(),
        lambda view: view.heads(["ablation_logit"]),
        lambda view: vitviz.attribute(view.model, view.images, "unit:3", "gae"),
    ],
)
def test_the_rest_says_what_it_needs(ask: Callable[[vitviz.View], object]) -> None:
    view = vitviz.Explorer(opened(odd())).open(vitviz.example("dog"))
    with pytest.raises(vitviz.VitvizError, match=r"runs? as (it is|they are)|a captured module"):
        ask(view)


def test_models_of_unknown_classes_keep_their_refusal() -> None:
    with pytest.raises(ConvertError, match="TransformerEncoderLayer"):
        vitviz.load(nn.TransformerEncoderLayer(12, 3).eval())
    with pytest.raises(ConvertError, match="differs in its output"):  # a module in training mode is not run
        vitviz.load(odd().train())
    assert issubclass(NotConvertedError, AttributeError)


def test_the_module_stays_in_its_mode() -> None:
    module = odd()
    module.blocks[1].train()
    vitviz.Explorer(opened(module)).open(vitviz.example("dog"))
    assert module.blocks[1].training


@pytest.mark.parametrize("build", [vit, registers])
def test_transformers_models_open_captured(build: Callable[[str], nn.Module]) -> None:
    model = opened(build("eager"))
    trace = vitviz.load(build("eager")).trace(pixels())
    captured = model.trace(pixels())
    for block in range(3):
        close(captured.row(block, "cls"), trace.row(block, "cls"), 2e-5)
    close(vitviz.rollout(captured)[1].values, vitviz.rollout(trace)[1].values, 2e-5)


class Shuffled(timm_models.VisionTransformer):
    """A subclass that reverses the order of its patches."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        return super()._pos_embed(x.flip(1, 2))


class Pruned(timm_models.VisionTransformer):
    """A subclass whose last block has fewer tokens."""

    def forward_features(self, x: Tensor, **_options: object) -> Tensor:
        tokens = self._pos_embed(self.patch_embed(x))
        return self.blocks[2](self.blocks[1](self.blocks[0](tokens))[:, :9])


@pytest.mark.parametrize("kind", [Shuffled, Pruned])
def test_tokens_in_other_places_than_the_class_says_are_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ConvertError, match="computes what its class and parameters say"):
        vitviz.load(timm_models.shaken(kind(**timm_models.SIZES)))


def swin(kind: type[nn.Module] = SwinTransformer, **changes: Any) -> nn.Module:
    sizes = {"patch_size": 2, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 3), "window_size": 6}
    torch.manual_seed(9)
    return timm_models.shaken(kind(img_size=48, num_classes=7, **sizes, **changes))


@pytest.mark.parametrize("kind", [SwinTransformer, SwinTransformerV2])
def test_windowed_models_match_conversion(kind: type[nn.Module]) -> None:
    module, images = swin(kind), pixels(48, 48)
    captured, converted = opened(module), vitviz.load(module)
    ours, theirs = captured.trace(images), converted.trace(images)
    assert (ours.grid, ours.depth, ours.count) == (theirs.grid, theirs.depth, theirs.count)
    for block, query in product(range(4), ("mean", (2, 3))):
        close(ours.row(block, query), theirs.row(block, query))
        close(ours.column(block, query), theirs.column(block, query), 2e-5)
    close(ours.image(1).row(2, (2, 3)), theirs.image(1).row(2, (2, 3)))
    for method in FAST:
        a, b = (vitviz.attribute(model, images, 3, method)[1].values for model in (captured, converted))
        close(a / max(1e-9, np.abs(b).max()), b / max(1e-9, np.abs(b).max()), 1e-4)


def test_a_swin_of_another_mlp_ratio_opens_captured() -> None:
    module = swin(mlp_ratio=2.3)
    with pytest.warns(UserWarning, match="runs as it is"):
        view = vitviz.Explorer(module).open(vitviz.example("dog"))
    close(view.trace.logits, module(view.images))
    assert view.attention(3, 1, (2, 3)).values.shape == (12, 12)
    assert len(view.intervene(drop=[(0, 1)], mode="blur").top(2)) == 2
    assert '"stages"' in view.html()


@pytest.mark.parametrize("name", ["class token", "registers, mean", "relative bias"])
def test_edges_and_sinks_match_conversion(name: str) -> None:
    build, size = MODELS[name]
    module, photograph = build(), np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    captured, converted = (vitviz.Explorer(model).open(photograph) for model in (opened(module), vitviz.load(module)))
    ours, theirs = (view.edge(1, 2, (0, 1), (2, 4)) for view in (captured, converted))
    assert ours.logit == pytest.approx(theirs.logit, abs=1e-4)
    assert ours.attention == pytest.approx(theirs.attention, abs=1e-5)
    assert ours.terms.sum() + ours.bias == pytest.approx(ours.logit, abs=1e-6)
    assert (ours.parts, ours.writes, ours.cut) == ("channels", None, None)
    close(captured.sinks().attention, converted.sinks().attention)
    assert np.isnan(captured.sinks().written).all()
    for refused in (
        lambda: captured.edge(1, 2, 0, 3, cut=True),
        captured.decompose,
        lambda: captured.patch(captured, heads=[(0, 1)]),
        lambda: captured.model.with_registers(1, []),
        lambda: vitviz.circuit(captured.model, "photographs"),
    ):
        with pytest.raises(CaptureError, match="Expected a converted model"):
            refused()
