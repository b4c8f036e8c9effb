"""Test modules that are opened without conversion: what they compute equals what the converted model computes."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm_models
import torch
from test_capture import pixels, registers, torchvision_vit, vit
from timm.models.swin_transformer import SwinTransformer
from tiny import close
from torch import Tensor, nn

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.tokens import token_norms, token_similarity
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


@pytest.mark.parametrize("name", MODELS)
def test_analyses_of_tokens_match_conversion(name: str) -> None:
    build, size = MODELS[name]
    module, photograph = build(), np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    hooks = [(module, dict(vars(module)), len(module._forward_hooks)) for module in module.modules()]
    ours, theirs = (vitviz.Explorer(model).open(photograph) for model in (opened(module), vitviz.load(module)))
    for block in range(theirs.trace.depth):
        close(ours.trace.stream(block), theirs.trace.stream(block))
    close(ours.trace.tokens, theirs.trace.tokens)
    close(ours.features, theirs.features)
    a, b = ours.lens([1, 3]), theirs.lens([1, 3])
    close(a.logits, b.logits, 3e-5)
    close(a.readings, b.readings)
    close(a.patches, b.patches)
    for target in ("unit:3", vitviz.Direction(np.linspace(-0.1, 0.1, ours.features.size))):
        close(ours.lens(target=target).patches, theirs.lens(target=target).patches, 2e-5)
        of_features = [vitviz.attribute(view.model, view.images, target, "legrad")[0].values for view in (ours, theirs)]
        close(*of_features)
    close(ours.token_pca().explained, theirs.token_pca().explained, 1e-4)
    close(*(token_norms(view.model, view.trace).norms for view in (ours, theirs)), 1e-4)
    close(*(token_similarity(view.model, view.trace, (0, 1)) for view in (ours, theirs)))
    close(*(view.compare(view, "tokens", -1).cosines for view in (ours, theirs)))
    close(ours.sinks().norms, theirs.sinks().norms, 1e-4)
    if name != "attention pooling":
        a, b = (view.decompose(contrast=(3, 1)) for view in (ours, theirs))
        for part in ("heads", "tokens", "mlps", "biases", "start", "constant", "total"):
            close(getattr(a, part), getattr(b, part))
    for part, attributes, count in hooks:  # undone
        assert (dict(vars(part)), len(part._forward_hooks)) == (attributes, count)


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
        lambda view: view.intervene(heads=[(0, 1)]),
        lambda view: view.intervene(drop=[(0, 1)]),
        lambda view: view.explain("attn_lrp"),
        lambda view: view.evidence(),
        lambda view: view.heads(["ablation_logit"]),
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


class Own(timm_models.VisionTransformer):
    """A subclass whose output is another function of the logits."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__(**timm_models.SIZES)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(super().forward(x))


@pytest.mark.parametrize(
    ("change", "words", "expected"),
    [
        (lambda logits: logits.softmax(-1), r"probabilities \(softmax\)", lambda logits: logits.log_softmax(-1)),
        (torch.sigmoid, r"probabilities \(sigmoid\)", lambda logits: logits),
        (lambda logits: (logits[:, :3], logits[:, 3:]), "the first of the 2", lambda logits: logits[:, :3]),
        (lambda logits: (2 * logits)[:, None].repeat(1, 4, 1), "mean over 4 tokens", lambda logits: 2 * logits),
    ],
)
def test_what_is_read_of_an_output_is_an_assumption(change: Any, words: str, expected: Any) -> None:
    module = timm_models.shaken(Own(change))
    images = pixels(15, 35)
    with torch.no_grad():
        logits = timm_models.VisionTransformer.forward(module, images)
    with pytest.warns(UserWarning, match="runs as it is"):
        model = vitviz.load(module)
    assert model.pretrained is not None
    assert re.search(f"output: .*{words}", "; ".join(model.pretrained.assumed))
    close(model(images), expected(logits), 1e-4)
    close(model.trace(images).logits, expected(logits), 1e-4)
    assert (model.problem_type == "multi_label_classification") == (change is torch.sigmoid)


def test_outputs_beside_the_logits_change_nothing_and_features_are_no_classes() -> None:
    module = timm_models.shaken(Own(lambda logits: (logits[:, :3], {"logits": logits}, logits)))
    images = pixels(15, 35)
    close(vitviz.load(module)(images), module(images)[2])
    module = odd()
    module.head = nn.Identity()
    for wrapped in (module, torch.compile(module), nn.DataParallel(module)):
        with pytest.warns(UserWarning, match="runs as it is"):
            model = vitviz.load(wrapped)
        assert model.config.classes == 0


@pytest.mark.parametrize("layers", [[nn.ReLU(), nn.Linear(29, 7)], [nn.Softmax(-1)]])
def test_scores_of_a_classifier_that_is_not_linear_are_not_decomposed(layers: list[nn.Module]) -> None:
    module = odd()
    module.head = nn.Sequential(module.head, *layers)
    view = vitviz.Explorer(opened(module)).open(vitviz.example("dog"))
    with pytest.raises(AnalysisError, match="linear in the last block's output"):
        view.decompose()


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda logits: logits * torch.nan, "NaN or infinity"), (lambda logits: logits.argmax(-1), "int64")],
)
def test_outputs_that_are_no_numbers_are_refused(change: Any, words: str) -> None:
    with pytest.raises(ConvertError, match=f"It does not run as it is either.*{words}"):
        vitviz.load(timm_models.shaken(Own(change)))


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
        lambda: captured.patch(captured, heads=[(0, 1)]),
        lambda: captured.model.with_registers(1, []),
        lambda: vitviz.circuit(captured.model, "photographs"),
    ):
        with pytest.raises(CaptureError, match="Expected a converted model"):
            refused()
