"""The model against one written out in float64, and what it refuses. tests/weights holds it against timm's."""

import re

import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
from tiny import close
from torch import Tensor

from vitviz.model.config import ModelError
from vitviz.model.layers import DropPath
from vitviz.model.trace import TraceError
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
VARIANTS = {
    **tiny.KINDS,
    "mean": {"pooling": "mean"},
    "all prefix tokens": {"pooling": "cls+mean", "distillation_token": True, "registers": 3},
    "layer scale, no qkv bias": {"layer_scale": 0.1, "qkv_bias": False},
    "heads that divide the width": {"width": 35, "head_width": None, "mlp_width": None},
    "sincos1d": {"width": 20, "positions": "sincos1d"},
    "no classifier": {"classes": 0},
    "large epsilon": {"norm_eps": 0.1},
    "rotary, slow": {"positions": "rotary", "head_width": 20, "rotary_base": 10.0},
    "norm of queries and keys": {"qk_norm": True},
    "gated": {"mlp": "swiglu"},
    "quick gelu": {"activation": "quick_gelu", "norm_pre": True, "patch_bias": False},
    "no biases": {"mlp_bias": False, "patch_bias": False, "qkv_bias": False},
    "attention pooling": {"pooling": "attention", "class_token": False, "width": 35, "activation": "gelu_tanh"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_forward_and_traces_match_the_reference(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    expected = reference.run(model, images)
    attentions = [attention.tensor for attention in expected.attentions]
    slopes = torch.autograd.grad(expected.logits.tensor[:, 5].sum(), attentions)
    close(model(images), expected.logits.tensor)
    for grad, frozen in ((False, False), (True, False), (True, True)):
        model.requires_grad_(not frozen)
        trace = model.trace(images, grad=grad)
        close(trace.tokens, expected.final.tensor)
        assert len(trace.attentions) == model.config.depth
        for block, entering in enumerate([expected.tokens.tensor, *expected.leaving[:-1]]):
            close(trace.stream(block), entering, 1e-4)
        assert torch.equal(trace.stream(-1), trace.stream(tiny.DEPTH - 1))
        for ours, written_out in zip(trace.attentions, attentions, strict=True):
            close(ours, written_out)
            assert ours.requires_grad == grad
        if model.head is None:
            assert trace.logits is None
            continue
        close(trace.logits, expected.logits.tensor)
        if grad:
            gradients = torch.autograd.grad(trace.logits[:, 5].sum(), list(trace.attentions))
            for ours, written_out in zip(gradients, slopes, strict=True):
                close(ours / written_out.abs().max(), written_out / written_out.abs().max(), 1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_logits_of_each_classifier() -> None:
    """A distilled model has the mean of two; other models one, which is the answer; features have none."""
    model, images = tiny.model(distillation_token=True), tiny.images()
    p, final = reference.parameters(model), reference.run(model, images).final.tensor
    tokens, grid = model.embed(images)
    logits = model.heads_logits(model.encode(tokens, model.angles(grid)))
    assert len(logits) == 2
    for token, head in enumerate(("head", "head_dist")):
        close(logits[token], final[:, token] @ p[f"{head}.weight"].T + p[f"{head}.bias"])
    close((logits[0] + logits[1]) / 2, model(images), 1e-7)
    model = tiny.model(pooling="cls+mean", registers=2)
    tokens, grid = model.embed(images)
    (logits,) = model.heads_logits(model.encode(tokens, model.angles(grid)))
    assert logits.equal(model(images))
    with pytest.raises(ModelError):
        tiny.model(classes=0).heads_logits(tokens)


@pytest.mark.parametrize("changes", [{}, {"position_grid": (3, 5)}, {"position_antialias": False}], ids=str)
@pytest.mark.parametrize("grid", [(7, 11), (11, 7), (2, 17), (1, 1), (3, 5)])
def test_any_size_of_image_is_the_native_model_with_resized_positions(changes: dict, grid: tuple[int, int]) -> None:
    model, images = tiny.model(**changes), tiny.images(grid=grid)
    expected = reference.run(model, images)
    close(model(images), expected.logits.tensor)
    trace = model.trace(images)
    assert trace.grid == grid
    close(trace.attentions[0], expected.attentions[0].tensor)


@pytest.mark.parametrize(
    ("asked", "kept"), [([1], (1,)), ([-1, 0], (0, 2)), ([2, 1, -1], (1, 2)), (range(3), (0, 1, 2))]
)
@pytest.mark.parametrize("grad", [False, True])
def test_chosen_blocks_only(asked: list[int], kept: tuple[int, ...], grad: bool) -> None:
    model, images = tiny.model(), tiny.images()
    whole, part = model.trace(images), model.trace(images, blocks=asked, grad=grad)
    assert part.blocks == kept
    assert len(part.attentions) == len(kept)
    close(part.logits, whole.logits)
    for block in range(tiny.DEPTH):
        if block in kept:
            close(part.attention(block), whole.attention(block))
            continue
        with pytest.raises(TraceError, match=str(block)):
            part.attention(block)
    for blocks in ([3], [-4], [0, 7], []):
        with pytest.raises(ModelError, match=rf"0\.\.2.*{re.escape(str(blocks))}"):
            model.trace(images, blocks=blocks)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.03), (torch.bfloat16, 0.2), (torch.float64, 1e-4)])
@pytest.mark.parametrize("grad", [False, True])
def test_other_precisions_stay_close(dtype: torch.dtype, tolerance: float, grad: bool) -> None:
    full, images = tiny.model().trace(tiny.images()), tiny.images()
    other = tiny.model().to(dtype).trace(images.to(dtype), grad=grad)
    assert other.logits.dtype == dtype
    close(other.logits, full.logits, tolerance)
    for block in range(tiny.DEPTH):
        attention = other.attention(block)
        assert attention.dtype == torch.float32
        close(attention, full.attention(block), tolerance)
        close(attention.sum(-1), np.ones(attention.shape[:-1]), 5e-3 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize(
    ("images", "facts"),
    [
        *((torch.zeros(shape), ["(batch, 3, height, width)", str(shape)])
          for shape in [(3, 91, 143), (2, 5, 91, 143), (91, 143), (2, 91, 143, 3)]),
        (torch.zeros(1, 3, 90, 143), ["13 x 13, got 90 x 143 pixels"]),
        (torch.zeros(1, 3, 91, 143, dtype=torch.uint8), ["uint8"]),
    ],
)  # fmt: skip
def test_images_that_do_not_fit_are_refused(images: Tensor, facts: list[str]) -> None:
    for run in (tiny.model(), tiny.model().trace):
        with pytest.raises(ModelError) as caught:
            run(images)
        assert all(fact in str(caught.value) for fact in facts)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "path_dropout"])
def test_a_trace_with_active_dropout_is_refused(rate: str) -> None:
    model, images = tiny.model(**{rate: 0.7}), tiny.images(13)
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="eval"):
        model.train().trace(images)
    close(model.eval().trace(images).logits, tiny.model()(images))  # in eval mode it does nothing
    assert not torch.equal(model.train()(images), model(images))  # in training it does


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, x = DropPath(0.3), torch.randn(4001, 3, 2)
    assert drop.eval()(x) is x
    out = drop.train()(x)
    kept = (out != 0).all(dim=(1, 2))
    assert torch.equal(out[~kept], torch.zeros_like(out[~kept]))
    close(out[kept], x[kept] / 0.7)
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=5 * (0.21 / 4001) ** 0.5)
    for depth, rates in ((5, [0, 0.05, 0.1, 0.15, 0.2]), (1, [0])):
        made = tiny.model(depth=depth, path_dropout=0.2)
        assert [block.drop_path.rate for block in made.blocks] == pytest.approx(rates)


def test_initialization_is_the_papers() -> None:
    torch.manual_seed(0)
    changes = {"width": 97, "head_width": 29, "mlp_width": 211, "registers": 5, "distillation_token": True}
    model = ViT(tiny.config(**changes, grid=(17, 19)))
    p = {name: value.detach() for name, value in model.named_parameters()}
    assert not model.head.weight.any()
    assert not p["cls_token"].any()
    assert all(not v.any() for k, v in p.items() if k.endswith("bias") and ".mlp." not in k)
    assert all((v == 1).all() for k, v in p.items() if "norm" in k and k.endswith("weight"))
    for name in ("pos_embed", "reg_token", "dist_token"):
        assert float(p[name].std()) == pytest.approx(0.02, rel=0.3)
    for name, fans in {"attn.qkv": 97 + 145, "attn.proj": 97 + 145, "mlp.fc1": 97 + 211, "mlp.fc2": 97 + 211}.items():
        weight, bound = p[f"blocks.1.{name}.weight"], (6 / fans) ** 0.5  # Xavier: uniform within the bound
        assert bound * 0.99 < float(weight.abs().max()) <= bound
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.03)
    assert 0 < float(p["blocks.0.mlp.fc1.bias"].abs().max()) < 1e-5
    patches, fan_in = p["patch_embed.proj.weight"], 3 * 13 * 13  # LeCun: the variance is one over the fan-in
    assert float(patches.std()) == pytest.approx(fan_in**-0.5, rel=0.02)
    assert float(patches.abs().max()) <= 2.28 * fan_in**-0.5
    assert not model(tiny.images(grid=(17, 19))).any()  # a zero head: all classes are equal at the start
