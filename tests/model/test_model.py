"""The model against one written out in float64, its sizes, and what it refuses. tests/weights has it against timm's."""

import json
import re

import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
from tiny import close
from torch import Tensor

from vitviz.model.config import PRESETS, ModelError, ViTConfig, preset
from vitviz.model.layers import DropPath
from vitviz.model.summary import rows, summary, totals
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
        close(trace.tokens, expected.final.tensor, 1e-4)
        assert len(trace.attentions) == model.config.depth
        for block, entering in enumerate([expected.tokens.tensor, *expected.leaving[:-1]]):
            close(trace.stream(block), entering, 1e-4)
        assert torch.equal(trace.stream(-1), trace.stream(tiny.DEPTH - 1))
        for ours, written_out in zip(trace.attentions, attentions, strict=True):
            close(ours, written_out)
            assert ours.requires_grad == grad
        if model.head is None:
            assert trace.logits is None
            with pytest.raises(ModelError, match="classifier"):
                model.heads_logits(trace.tokens)
            continue
        close(trace.logits, expected.logits.tensor)
        if grad:
            gradients = torch.autograd.grad(trace.logits[:, 5].sum(), list(trace.attentions))
            for ours, written_out in zip(gradients, slopes, strict=True):
                close(ours / written_out.abs().max(), written_out / written_out.abs().max(), 1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


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
    for block in kept:
        close(part.attention(block), whole.attention(block))
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


# ---- sizes


CHANGES = [
    *tiny.KINDS.values(),
    {"position_grid": (3, 5), "position_antialias": False, "norm_eps": 1e-3, "channels": 1, "classes": 0},
    {"width": 35, "head_width": None, "mlp_width": None, "path_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_config_survives_json_and_derives_its_sizes(changes: dict) -> None:
    config = tiny.config(**changes)
    back = ViTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert hash(back) == hash(config)
    assert config.grid == tiny.GRID
    assert config.learned_grid == changes.get("position_grid", tiny.GRID)
    assert len(config.prefix) == config.class_token + config.distillation_token + config.registers
    assert config.head_size == (config.head_width or 7)
    assert config.hidden == (config.mlp_width or 140)


def test_a_config_names_its_prefix_tokens() -> None:
    config = tiny.config(class_token=True, distillation_token=True, registers=2)
    assert config.prefix == ("CLS", "distillation", "register 1", "register 2")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"image_size": (91, 140), "patch_size": 13}, ["91 x 140", "13 x 13", "91 x 143"]),
        ({"image_size": (10, 13), "patch_size": 13}, ["10 x 13", "13 x 13"]),
        ({"width": 19, "heads": 5, "head_width": None}, ["19", "5 heads", "15"]),
        ({"depth": 0}, ["depth", "at least 1", "0"]),
        ({"heads": 2.0}, ["heads", "2.0"]),
        ({"registers": -1}, ["registers", "at least 0", "-1"]),
        ({"classes": True}, ["classes", "True"]),
        ({"head_width": 0}, ["head_width", "at least 1", "0"]),
        ({"mlp_width": -23}, ["mlp_width", "at least 1", "-23"]),
        ({"image_size": 224}, ["image_size", "224"]),
        ({"image_size": (91.0, 143)}, ["image_size", "91.0"]),
        ({"position_grid": (0, 3)}, ["position_grid", "at least 1", "0"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"path_dropout": -0.25}, ["path_dropout", "-0.25"]),
        ({"attention_dropout": float("nan")}, ["attention_dropout", "nan"]),
        ({"pooling": "max"}, ["pooling", "'cls'", "'mean'", "'cls+mean'", "'max'"]),
        ({"pooling": "cls", "class_token": False}, ["'cls'", "'mean'"]),
        ({"pooling": "cls+mean", "class_token": False}, ["'cls+mean'", "'mean'"]),
        ({"positions": "fourier"}, ["positions", "'learned'", "'sincos'", "'fourier'"]),
        ({"norm_eps": 0.0}, ["norm_eps", "0.0"]),
        ({"positions": "sincos", "width": 19}, ["4", "19"]),
        ({"positions": "sincos1d", "width": 19}, ["even", "19"]),
        ({"positions": "rotary", "head_width": 18}, ["divisible by 4", "18"]),
        ({"norm_pooled": True, "pooling": "cls+mean"}, ["norm_pooled", "'cls+mean'"]),
        ({"pooling": "attention"}, ["5 heads", "19"]),
        ({"image_size": (13 * 2000, 13 * 2000)}, ["26000 x 26000", "smaller"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_value_given(changes: dict, facts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.config(**changes)
    for fact in facts:
        assert fact in str(caught.value)


def test_errors_name_unknown_settings_and_suggest_a_size_that_fits() -> None:
    with pytest.raises(ModelError) as caught:
        ViTConfig.from_dict({**tiny.config().to_dict(), "patchsize": 16, "stride": 8})
    assert all(name in str(caught.value) for name in ("patchsize", "stride", "patch_size"))
    with pytest.raises(ModelError, match="tiny, small, base, large, huge"):
        preset("enormous")
    with pytest.raises(ModelError, match="96 x 144"):
        ViTConfig(image_size=(90, 150), patch_size=48)
    assert ViTConfig(image_size=(96, 144), patch_size=48).grid == (2, 3)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("tiny", 5_717_416),  # DeiT, table 1
        ("small", 22_050_664),
        ("base", 86_567_656),  # ViT, table 1, with 1,000 classes at 224 pixels
        ("large", 304_326_632),
        ("huge", 632_045_800),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, published: int) -> None:
    with torch.device("meta"):
        model = ViT(preset(name))
    # The published models add a position to the class token; here it is part of the token itself.
    assert sum(p.numel() for p in model.parameters()) == published - PRESETS[name]["width"]
    assert preset(name).patch_size == (14 if name == "huge" else 16)
    assert preset(name, patch_size=32, classes=10).grid == (7, 7)


# ---- the table of modules


@pytest.mark.parametrize("changes", [*tiny.KINDS.values(), {"classes": 0, "position_grid": (3, 5)}], ids=str)
def test_shapes_are_those_of_a_real_run_and_counts_add_up(changes: dict) -> None:
    model, seen = tiny.model(**changes), {}
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: seen.update({name: tuple(output.shape)}))
        for name, module in model.named_modules()
    ]
    model(tiny.images(batch=2))
    for handle in handles:
        handle.remove()
    table = {row.name: row for row in rows(model, batch=2)}
    assert len(table) == len(rows(model, batch=2))  # each module once
    for name, row in table.items():
        assert row.shape == seen[name]
        assert row.kind == type(model.get_submodule(name)).__name__
        assert row.parameters == sum(p.numel() for p in model.get_submodule(name).parameters())
    names = list(table)
    assert names.index("patch_embed") < names.index("blocks.0") < names.index("blocks.2") < names.index("norm")
    free = sum(p.numel() for name, p in model.named_parameters() if "." not in name)
    parts = [name for name in table if name.count(".") == name.startswith("blocks")]
    total = sum(p.numel() for p in model.parameters())
    assert sum(table[name].parameters for name in parts) + free == total
    sums, foot = totals(model), {line.split("  ")[0]: line.split()[1] for line in summary(model).splitlines()[-6:]}
    assert foot["parameters"] == foot["trainable"] == f"{total:,}"
    assert foot["multiply-adds"] == f"{sums['multiply_adds']:,}"
    assert sums["parameter_bytes"] == 4 * total
    model.patch_embed.requires_grad_(False)
    assert totals(model)["trainable"] == total - table["patch_embed"].parameters
    assert [row.name for row in rows(model) if row.trainable < row.parameters] == ["patch_embed.proj", "patch_embed"]


def test_every_number_is_printed_and_the_model_is_not_run() -> None:
    model = tiny.model(registers=2).train()
    model.patch_embed.register_forward_hook(lambda *_: pytest.fail("it ran"))
    text = summary(model, batch=3)
    for row in rows(model, batch=3):
        line = next(line for line in text.splitlines() if line.split()[:1] == [row.name])
        assert " x ".join(map(str, row.shape)) in line
        assert " x ".join(map(str, row.input)) in line
        assert f" {row.parameters:,} " in line
        if row.multiply_adds:
            assert line.endswith(f" {row.multiply_adds:,}")
    assert any(line.split()[0] == "reg_token" and "1 x 2 x 19" in line for line in text.splitlines())
    assert model.training


def test_multiply_adds_are_those_of_the_formula_and_of_a_published_model() -> None:
    """A linear layer from a to b over n tokens takes n a b; attention N² d twice for each head."""
    model, batch = tiny.model(registers=2), 3
    config = model.config
    table = {row.name: row for row in rows(model, batch)}
    patches = config.grid[0] * config.grid[1]
    tokens, width, inner = len(config.prefix) + patches, config.width, config.heads * config.head_size
    block = tokens * (4 * width * inner + 2 * width * config.mlp_width) + 2 * tokens**2 * inner
    embed = patches * config.channels * config.patch_size**2 * width
    assert table["blocks.1"].multiply_adds == batch * block
    assert table["patch_embed"].multiply_adds == batch * embed
    everything = batch * (config.depth * block + embed + width * config.classes)
    assert totals(model, batch)["multiply_adds"] == everything
    with torch.device("meta"):
        base = totals(ViT(preset("base")))
    assert base["parameters"] == 86_566_888  # torchvision: 768 more, a position of the class token
    assert round(base["multiply_adds"] / 1e9, 1) == 17.6  # DeiT-B in its paper's table
