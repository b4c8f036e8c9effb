"""The model against a forward pass written out in NumPy and against timm's, and what it refuses."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from vit_numpy import forward, parameters

from vitviz.model.config import ModelError
from vitviz.model.layers import DropPath
from vitviz.model.positions import resize_positions, sincos_positions
from vitviz.model.trace import TraceError
from vitviz.model.vit import ViT

VARIANTS = {
    "plain": {},
    "mean": {"pooling": "mean"},
    "cls+mean": {"pooling": "cls+mean"},
    "no class token": {"pooling": "mean", "class_token": False},
    "only registers": {"pooling": "mean", "class_token": False, "registers": 2},
    "all prefix tokens": {"pooling": "cls+mean", "distillation_token": True, "registers": 3},
    "layer scale, no qkv bias": {"layer_scale": 0.1, "qkv_bias": False},
    "heads that divide the width": {"width": 35, "head_width": None, "mlp_width": None},
    "sincos": {"width": 20, "positions": "sincos"},
    "sincos1d": {"width": 20, "positions": "sincos1d"},
    "no positions": {"positions": "none"},
    "no classifier": {"classes": 0},
    "large epsilon": {"norm_eps": 0.1},
    "distilled": {"distillation_token": True},
    "distilled without a class token": {"pooling": "mean", "class_token": False, "distillation_token": True},
    "rotary": {"positions": "rotary", "head_width": 12, "registers": 2},
    "rotary, slow": {"positions": "rotary", "head_width": 20, "rotary_base": 10.0, "registers": 0},
    "norm of queries and keys": {"qk_norm": True},
    "gated": {"mlp": "swiglu"},
    "gelu by tanh": {"activation": "gelu_tanh"},
    "quick gelu": {"activation": "quick_gelu", "norm_pre": True, "patch_bias": False},
    "no biases": {"mlp_bias": False, "patch_bias": False, "qkv_bias": False},
    "norm after pooling": {"norm_pooled": True, "pooling": "mean"},
    "norm after attention pooling": {"norm_pooled": True, "pooling": "attention", "class_token": False, "width": 35},
    "attention pooling": {"pooling": "attention", "class_token": False, "width": 35, "activation": "gelu_tanh"},
}


def close(a: Tensor | NDArray, b: Tensor | NDArray, tolerance: float = 1e-5) -> None:
    a, b = (x.detach().numpy() if isinstance(x, Tensor) else x for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_each_classifier_by_itself() -> None:
    """A distilled model without one of its classifiers is a plain one that reads that token; the answer is the mean."""
    model, images = tiny.model(distillation_token=True), tiny.images()
    p, numbers = parameters(model), forward(parameters(model), model.config, images.double().numpy())
    tokens, grid = model.embed(images)
    tokens = model.encode(tokens, model.angles(grid))
    close(tokens, numbers.tokens)
    logits = model.heads_logits(tokens)
    for token, head in enumerate(("head", "head_dist")):
        close(logits[token], numbers.tokens[:, token] @ p[f"{head}.weight"].T + p[f"{head}.bias"])
    assert len(logits) == 2
    close((logits[0] + logits[1]) / 2, model(images), 1e-7)


def test_one_classifier_gives_what_the_model_answers() -> None:
    model, images = tiny.model(pooling="cls+mean", registers=2), tiny.images()
    tokens, grid = model.embed(images)
    (logits,) = model.heads_logits(model.encode(tokens, model.angles(grid)))
    assert logits.equal(model(images))
    with pytest.raises(ModelError):
        tiny.model(classes=0).heads_logits(tokens)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_forward_is_the_papers_formula(changes: dict) -> None:
    model, images = tiny.model(**changes), tiny.images()
    expected = forward(parameters(model), model.config, images.double().numpy())
    close(model(images), expected.logits)
    for grad in (False, True):
        trace = model.trace(images, grad=grad)
        if model.head is None:
            assert trace.logits is None
        else:
            close(trace.logits, expected.logits)
        close(trace.tokens, expected.tokens)
        assert len(trace.attentions) == model.config.depth
        for seen, written_out in zip(trace.attentions, expected.attentions, strict=True):
            close(seen, written_out)
            assert seen.requires_grad == grad


# ---- timm

TIMM = {
    "cls": ({}, {}),
    "registers": ({"reg_tokens": 2}, {"registers": 2}),
    "registers without position": ({"reg_tokens": 2, "no_embed_class": True}, {"registers": 2}),
    "mean": ({"global_pool": "avg", "fc_norm": False}, {"pooling": "mean"}),
    "no class token": (
        {"global_pool": "avg", "fc_norm": False, "class_token": False},
        {"pooling": "mean", "class_token": False},
    ),
    "layer scale": ({"init_values": 0.1}, {"layer_scale": 0.1}),
    "no qkv bias": ({"qkv_bias": False}, {"qkv_bias": False}),
}


def fold(weights: dict[str, Tensor], config: object) -> dict[str, Tensor]:
    """Timm adds positions to prefix tokens; here they are part of the tokens. All other names are the same."""
    patches = weights["pos_embed"].shape[1] - config.grid[0] * config.grid[1]
    prefix, weights["pos_embed"] = weights["pos_embed"][:, :patches], weights["pos_embed"][:, patches:]
    at = 0
    for name in ("cls_token", "reg_token"):
        if name in weights and at < patches:
            count = weights[name].shape[1]
            weights[name] = weights[name] + prefix[:, at : at + count]
            at += count
    assert at == patches
    return weights


@pytest.mark.parametrize(("theirs", "ours"), TIMM.values(), ids=TIMM.keys())
def test_logits_are_timms(theirs: dict, ours: dict) -> None:
    size, heads = tiny.config().image_size, tiny.HEADS
    width, hidden = 7 * heads, 11 * heads
    other = VisionTransformer(
        img_size=size, patch_size=tiny.PATCH, num_classes=tiny.CLASSES, embed_dim=width, depth=tiny.DEPTH,
        num_heads=heads, mlp_ratio=hidden / width, norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
        dynamic_img_size=True, **theirs,
    ).eval()  # fmt: skip
    tiny.randomise(other, 3)
    model = ViT(tiny.config(width=width, head_width=None, mlp_width=hidden, **ours)).eval()
    model.load_state_dict(fold(other.state_dict(), model.config), strict=True)
    close(model(tiny.images()), other(tiny.images()), 1e-4)
    elsewhere = tiny.images(grid=(5, 17))  # another shape: positions are interpolated on both sides
    close(model(elsewhere), other(elsewhere), 1e-4)
    close(model.trace(elsewhere).logits, other(elsewhere), 1e-4)


# ---- positions


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("new", [(5, 3), (13, 17), (7, 12), (6, 22)])
def test_positions_are_interpolated_channel_by_channel(new: tuple[int, int], antialias: bool) -> None:
    old = tiny.GRID
    table = torch.randn(1, old[0] * old[1], tiny.WIDTH)
    resized = resize_positions(table, old, new, antialias)
    for channel in range(tiny.WIDTH):
        image = table[0, :, channel].reshape(1, 1, *old)
        expected = F.interpolate(image, new, mode="bicubic", antialias=antialias)[0, 0]
        close(resized[0, :, channel].reshape(new), expected)
    if antialias:
        close(resized, resample_abs_pos_embed(table, list(new), list(old), num_prefix_tokens=0))


def test_interpolation_keeps_rows_and_columns_apart() -> None:
    """What depends on the row alone does so afterwards, in the same order; the same for columns."""
    row, column = (axis.flatten().float() for axis in torch.meshgrid(torch.arange(7), torch.arange(11), indexing="ij"))
    rows, columns = resize_positions(torch.stack([row, column], dim=1)[None], (7, 11), (13, 17), True)[0].unbind(dim=1)
    close(rows.reshape(13, 17), rows.reshape(13, 17)[:, :1].expand(-1, 17))
    close(columns.reshape(13, 17), columns.reshape(13, 17)[:1].expand(13, -1))
    assert (rows.reshape(13, 17)[:, 0].diff() > 0).all()
    assert (columns.reshape(13, 17)[0].diff() > 0).all()


@pytest.mark.parametrize("changes", [{}, {"position_grid": (3, 5)}, {"position_antialias": False}])
@pytest.mark.parametrize("grid", [(7, 11), (11, 7), (2, 17), (1, 1), (3, 5)])
def test_any_size_of_image_is_the_native_model_with_resized_positions(changes: dict, grid: tuple[int, int]) -> None:
    model, images = tiny.model(**changes), tiny.images(grid=grid)
    p = parameters(model)
    rows, columns = model.config.learned_grid
    table = torch.from_numpy(p["pos_embed"]).reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    if (rows, columns) != grid:
        table = F.interpolate(table, grid, mode="bicubic", antialias=model.config.position_antialias)
    p["pos_embed"] = table.permute(0, 2, 3, 1).reshape(1, grid[0] * grid[1], -1).numpy()
    expected = forward(p, model.config, images.double().numpy())
    close(model(images), expected.logits)
    trace = model.trace(images)
    assert trace.grid == grid
    close(trace.logits, expected.logits)
    close(trace.attentions[0], expected.attentions[0])


def test_sincos_positions_are_the_formula() -> None:
    width, (rows, columns) = 20, (3, 7)
    made = sincos_positions((rows, columns), width)
    assert made.shape == (1, rows * columns, width)
    for row in range(rows):
        for column in range(columns):
            token = made[0, row * columns + column]
            for i in range(5):
                frequency = 1.0 / 10_000 ** (i / 4)
                written_out = [np.sin(column * frequency), np.cos(column * frequency)]
                written_out += [np.sin(row * frequency), np.cos(row * frequency)]
                close(token[i::5], np.array(written_out, np.float32))


# ---- traced and plain


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
    for block in kept:
        close(part.attention(block), whole.attention(block))
    for block in set(range(tiny.DEPTH)) - set(kept):
        with pytest.raises(TraceError, match=str(block)):
            part.attention(block)


def test_gradients_of_probabilities_are_finite_differences() -> None:
    model, images, target = tiny.model(), tiny.images(), 5
    trace = model.trace(images, grad=True)
    gradients = torch.autograd.grad(trace.logits[:, target].sum(), list(trace.attentions))
    assert all(p.grad is None for p in model.parameters())
    p, step = parameters(model), 1e-4
    for block, gradient in enumerate(gradients):
        assert gradient.shape == (tiny.BATCH, tiny.HEADS, 78, 78)
        direction = np.random.default_rng(block).standard_normal(gradient.shape)
        up, down = (
            forward(p, model.config, images.double().numpy(), {block: sign * step * direction}).logits[:, target]
            for sign in (1, -1)
        )
        for image in range(tiny.BATCH):
            along = float((gradient[image].double().numpy() * direction[image]).sum())
            assert abs(along) > 1e-3
            assert along == pytest.approx((up[image] - down[image]) / (2 * step), rel=1e-3)


def test_gradients_flow_when_the_weights_are_frozen() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images, grad=True)
    expected = torch.autograd.grad(trace.logits[:, 3].sum(), list(trace.attentions))
    model.requires_grad_(False)
    trace = model.trace(images, grad=True)
    for one, other in zip(torch.autograd.grad(trace.logits[:, 3].sum(), list(trace.attentions)), expected, strict=True):
        close(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.03), (torch.bfloat16, 0.2), (torch.float64, 1e-4)])
@pytest.mark.parametrize("grad", [False, True])
def test_other_precisions_stay_close(dtype: torch.dtype, tolerance: float, grad: bool) -> None:
    full, images = tiny.model().trace(tiny.images()), tiny.images()
    other = tiny.model().to(dtype).trace(images.to(dtype), grad=grad)
    assert other.logits.dtype == dtype
    close(other.logits.double(), full.logits.double(), tolerance)
    for block in range(tiny.DEPTH):
        attention = other.attention(block)
        assert attention.dtype == torch.float32
        close(attention, full.attention(block), tolerance)
        close(attention.sum(-1), np.ones(attention.shape[:-1], np.float32), 5e-3 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize("shape", [(3, 91, 143), (2, 5, 91, 143), (91, 143), (2, 91, 143, 3)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    for run in (tiny.model(), tiny.model().trace):
        with pytest.raises(ModelError) as caught:
            run(torch.zeros(shape))
        assert "(batch, 3, height, width)" in str(caught.value)
        assert str(shape) in str(caught.value)


def test_other_images_that_do_not_fit_are_refused() -> None:
    for run in (tiny.model(), tiny.model().trace):
        with pytest.raises(ModelError, match=r"13 x 13, got 90 x 143 pixels"):
            run(torch.zeros(1, 3, 90, 143))
        with pytest.raises(ModelError, match="uint8"):
            run(torch.zeros(1, 3, 91, 143, dtype=torch.uint8))


@pytest.mark.parametrize("blocks", [[3], [-4], [0, 7], []])
def test_blocks_that_do_not_exist_are_refused(blocks: list[int]) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.model().trace(tiny.images(), blocks=blocks)
    assert "0..2" in str(caught.value)
    assert str(blocks) in str(caught.value)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "path_dropout"])
def test_a_trace_with_active_dropout_is_refused(rate: str) -> None:
    model, images = tiny.model(**{rate: 0.7}), tiny.images(13)
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="eval"):
        model.train().trace(images)
    close(model.eval().trace(images).logits, tiny.model()(images))  # in eval mode it does nothing
    one, other = model.train()(images), model(images)
    changed = bool((one != other).any())
    assert changed  # in training it does


# ---- stochastic depth and the start


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, x = DropPath(0.3), torch.randn(4001, 3, 2)
    assert drop.eval()(x) is x
    out = drop.train()(x)
    kept = (out != 0).all(dim=(1, 2))
    assert torch.equal(out[~kept], torch.zeros_like(out[~kept]))
    close(out[kept], x[kept] / 0.7)
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=5 * (0.21 / 4001) ** 0.5)


def test_stochastic_depth_grows_with_depth() -> None:
    assert [b.drop_path.rate for b in tiny.model(depth=5, path_dropout=0.2).blocks] == pytest.approx(
        [0, 0.05, 0.1, 0.15, 0.2]
    )
    assert [b.drop_path.rate for b in tiny.model(depth=1, path_dropout=0.2).blocks] == [0]


def test_the_start_is_the_papers() -> None:
    torch.manual_seed(0)
    changes = {"width": 97, "head_width": 29, "mlp_width": 211, "registers": 5, "distillation_token": True}
    model = ViT(tiny.config(**changes, grid=(17, 19)))
    p = dict(model.named_parameters())
    assert not model.head.weight.any()
    assert not p["cls_token"].any()
    assert all(not v.any() for k, v in p.items() if k.endswith("bias") and ".mlp." not in k)
    assert all((v == 1).all() for k, v in p.items() if "norm" in k and k.endswith("weight"))
    for name in ("pos_embed", "reg_token", "dist_token"):
        assert float(p[name].detach().std()) == pytest.approx(0.02, rel=0.3)
    inner = 5 * 29
    for name, fans in {
        "attn.qkv": 97 + inner,
        "attn.proj": 97 + inner,
        "mlp.fc1": 97 + 211,
        "mlp.fc2": 97 + 211,
    }.items():
        weight, bound = p[f"blocks.1.{name}.weight"], (6 / fans) ** 0.5  # Xavier: uniform within the bound
        assert bound * 0.99 < float(weight.detach().abs().max()) <= bound
        assert float(weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.03)
    assert 0 < float(p["blocks.0.mlp.fc1.bias"].detach().abs().max()) < 1e-5
    patches, fan_in = p["patch_embed.proj.weight"].detach(), 3 * 13 * 13  # LeCun: the variance is one over the fan-in
    assert float(patches.std()) == pytest.approx(fan_in**-0.5, rel=0.02)
    assert float(patches.abs().max()) <= 2.28 * fan_in**-0.5
    assert not model(tiny.images(grid=(17, 19))).any()  # a zero head: all classes are equal at the start
