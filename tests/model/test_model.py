"""Test the model and its variants against a reference in float64, its configuration, and errors.

tests/weights compares it with timm.
"""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
from tiny import close
from torch import Tensor, nn

from vitviz.attribution.alpha_beta import AlphaBeta
from vitviz.attribution.attn_lrp import AttnLRP
from vitviz.model import layers, ops
from vitviz.model.config import PRESETS, ModelError, ViTConfig, preset
from vitviz.model.edits import BlockEdit
from vitviz.model.layers import DropPath
from vitviz.model.ops import Explicit, Ops, ReadTokens, attention
from vitviz.model.summary import rows, summary, totals
from vitviz.model.tracing import Tracer
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
    "large epsilon": {"norms": {"eps": 0.1}},
    "rotary, slow": {"positions": "rotary", "head_width": 20, "rotary": {"base": 10.0}},
    "rotary, class token too": {
        "positions": "rotary",
        "head_width": 16,
        "rotary": {"class_token": True},
        "registers": 2,
    },
    "norm of queries and keys": {"norms": {"qk": True}},
    "gated": {"mlp": "swiglu"},
    "gated by gelu": {"mlp": "geglu", "activation": "gelu_tanh"},
    "quick gelu": {"activation": "quick_gelu", "norms": {"pre": True}, "patch_bias": False},
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
                model.classifier_logits(trace.tokens)
            continue
        close(trace.logits, expected.logits.tensor)
        if grad:
            gradients = torch.autograd.grad(trace.logits[:, 5].sum(), list(trace.attentions))
            for ours, written_out in zip(gradients, slopes, strict=True):
                close(ours / written_out.abs().max(), written_out / written_out.abs().max(), 1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("changes", [{}, {"table": {"grid": (3, 5)}}, {"table": {"antialias": False}}], ids=str)
@pytest.mark.parametrize("grid", [(7, 11), (11, 7), (2, 17), (1, 1), (3, 5)])
def test_other_image_sizes_match_reference_with_resized_positions(changes: dict, grid: tuple[int, int]) -> None:
    model, images = tiny.model(**changes), tiny.images(grid=grid)
    expected = reference.run(model, images)
    close(model(images), expected.logits.tensor)
    trace = model.trace(images)
    assert trace.grid == grid
    close(trace.attentions[0], expected.attentions[0].tensor)


@pytest.mark.parametrize("grad", [False, True])
def test_trace_keeps_chosen_blocks(grad: bool) -> None:
    model, images = tiny.model(), tiny.images()
    full_trace = model.trace(images)
    for chosen, blocks in (([1], (1,)), ([-1, 0], (0, 2)), ([2, 1, -1], (1, 2)), (range(3), (0, 1, 2))):
        trace = model.trace(images, blocks=chosen, grad=grad)
        assert (trace.blocks, len(trace.attentions)) == (blocks, len(blocks))
        close(trace.logits, full_trace.logits)
        for block in blocks:
            close(trace.attention(block), full_trace.attention(block))
    for wrong in ([3], [-4], [0, 7], []):
        with pytest.raises(ModelError, match=rf"0\.\.2.*{re.escape(str(wrong))}"):
            model.trace(images, blocks=wrong)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.03), (torch.bfloat16, 0.2), (torch.float64, 1e-4)])
@pytest.mark.parametrize("grad", [False, True])
def test_other_precisions_stay_close(dtype: torch.dtype, tolerance: float, grad: bool) -> None:
    expected, images = tiny.model().trace(tiny.images()), tiny.images()
    trace = tiny.model().to(dtype).trace(images.to(dtype), grad=grad)
    assert trace.logits.dtype == dtype
    close(trace.logits, expected.logits, tolerance)
    for block in range(tiny.DEPTH):
        attention = trace.attention(block)
        assert attention.dtype == torch.float32
        close(attention, expected.attention(block), tolerance)
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
def test_wrong_images_raise(images: Tensor, facts: list[str]) -> None:
    for run in (tiny.model(), tiny.model().trace):
        with pytest.raises(ModelError) as caught:
            run(images)
        assert all(fact in str(caught.value) for fact in facts)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "path_dropout"])
def test_trace_with_active_dropout_raises(rate: str) -> None:
    model, images = tiny.model(**{rate: 0.7}), tiny.images(13)
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="eval"):
        model.train().trace(images)
    if rate == "attention_dropout":
        with pytest.raises(ValueError, match="eval"):
            model.run(model.embed(images)[0], None, ops=Explicit())
    close(model.eval().trace(images).logits, tiny.model()(images))  # no dropout in eval mode
    assert not torch.equal(model.train()(images), model(images))  # dropout in training


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, x = DropPath(0.3), torch.randn(4001, 3, 2)
    assert drop.eval()(x) is x
    out = drop.train()(x)
    nonzero = (out != 0).all(dim=(1, 2))
    assert torch.equal(out[~nonzero], torch.zeros_like(out[~nonzero]))
    close(out[nonzero], x[nonzero] / 0.7)
    assert float(nonzero.float().mean()) == pytest.approx(0.7, abs=5 * (0.21 / 4001) ** 0.5)
    for depth, rates in ((5, [0, 0.05, 0.1, 0.15, 0.2]), (1, [0])):
        model = tiny.model(depth=depth, path_dropout=0.2)
        assert [block.drop_path.rate for block in model.blocks] == pytest.approx(rates)


def test_initialization_follows_the_paper() -> None:
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
    patches, fan_in = p["patch_embed.proj.weight"], 3 * 13 * 13  # LeCun: variance 1 / fan-in
    assert float(patches.std()) == pytest.approx(fan_in**-0.5, rel=0.02)
    assert float(patches.abs().max()) <= 2.28 * fan_in**-0.5
    assert not model(tiny.images(grid=(17, 19))).any()  # a zero head: all logits are 0


CHANGES = [
    *tiny.KINDS.values(),
    {"table": {"grid": (3, 5), "antialias": False}, "norms": {"eps": 1e-3}, "channels": 1, "classes": 0},
    {"width": 35, "head_width": None, "mlp_width": None, "path_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_config_round_trips_json_and_derives_sizes(changes: dict) -> None:
    config = tiny.config(**changes)
    back = ViTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert hash(back) == hash(config)
    assert config.grid == tiny.GRID
    assert config.learned_grid == changes.get("table", {}).get("grid", tiny.GRID)
    assert len(config.prefix) == config.class_token + config.distillation_token + config.registers
    assert config.head_size == (config.head_width or 7)
    assert config.hidden == (config.mlp_width or 140)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"image_size": (91, 140), "patch_size": 13}, ["91 x 140", "13 x 13", "91 x 143"]),
        ({"image_size": (10, 13), "patch_size": 13}, ["10 x 13", "13 x 13"]),
        ({"width": 19, "heads": 5, "head_width": None}, ["19", "5 heads", "15"]),
        *(
            ({name: value}, [name, range_text, str(value)])
            for name, value, range_text in (
                ("depth", 0, "at least 1"), ("registers", -1, "at least 0"), ("head_width", 0, "at least 1"),
                ("mlp_width", -23, "at least 1"), ("heads", 2.0, ""), ("classes", True, ""), ("image_size", 224, ""),
                ("dropout", 1.0, ""), ("path_dropout", -0.25, ""), ("attention_dropout", float("nan"), ""),
            )
        ),
        ({"image_size": (91.0, 143)}, ["image_size", "91.0"]),
        ({"norms": {"eps": 0.0}}, ["norms.eps", "0.0"]),
        ({"norms": {"epsilon": 0.1}}, ["final_eps", "['epsilon']"]),
        ({"table": {"grid": (0, 3)}}, ["table.grid", "at least 1", "0"]),
        ({"pooling": "max"}, ["pooling", "'cls'", "'mean'", "'cls+mean'", "'max'"]),
        ({"pooling": "cls", "class_token": False}, ["'cls'", "'mean'"]),
        ({"pooling": "cls+mean", "class_token": False}, ["'cls+mean'", "'mean'"]),
        ({"positions": "fourier"}, ["positions", "'learned'", "'sincos'", "'fourier'"]),
        ({"positions": "sincos", "width": 19}, ["4", "19"]),
        ({"positions": "sincos1d", "width": 19}, ["even", "19"]),
        ({"positions": "rotary", "head_width": 18}, ["divisible by 4", "18"]),
        ({"norms": {"final": "pooled"}, "pooling": "cls+mean"}, ["norms.final", "'cls+mean'"]),
        ({"pooling": "attention"}, ["5 heads", "19"]),
        ({"image_size": (13 * 2000, 13 * 2000)}, ["26000 x 26000", "smaller"]),
    ],
)  # fmt: skip
def test_invalid_configs_raise_with_the_value(changes: dict, facts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.config(**changes)
    assert all(fact in str(caught.value) for fact in facts)


def test_errors_name_unknown_settings_and_suggest_a_size_that_fits() -> None:
    config = tiny.config(class_token=True, distillation_token=True, registers=2)
    assert config.prefix == ("CLS", "distillation", "register 1", "register 2")
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
    # The published models add a position to the class token; here it is part of the token.
    assert sum(p.numel() for p in model.parameters()) == published - PRESETS[name]["width"]
    assert preset(name).patch_size == (14 if name == "huge" else 16)
    assert preset(name, patch_size=32, classes=10).grid == (7, 7)


@pytest.mark.parametrize("changes", [*tiny.KINDS.values(), {"classes": 0, "table": {"grid": (3, 5)}}], ids=str)
def test_summary_has_the_shapes_of_a_run_and_consistent_counts(changes: dict) -> None:
    model, shapes = tiny.model(**changes).train(), {}
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: shapes.update({name: tuple(output.shape)}))
        for name, module in model.named_modules()
    ]
    model(tiny.images(batch=2))
    for handle in handles:
        handle.remove()
    model.patch_embed.register_forward_hook(lambda *_: pytest.fail("the model ran"))
    listed, text = rows(model, batch=2), summary(model, batch=2)
    table, lines = {row.name: row for row in listed}, {line.split()[0]: line for line in text.splitlines() if line}
    assert len(table) == len(listed)  # each module once
    for name, row in table.items():
        assert row.shape == shapes[name]
        assert row.kind == type(model.get_submodule(name)).__name__
        assert row.parameters == sum(p.numel() for p in model.get_submodule(name).parameters())
        printed = [" x ".join(map(str, shape)) for shape in (row.shape, row.input)]
        assert all(text in lines[name] for text in (*printed, f" {row.parameters:,} "))
        assert not row.multiply_adds or lines[name].endswith(f" {row.multiply_adds:,}")
    if registers := model.config.registers:
        assert f"1 x {registers} x {model.config.width}" in lines["reg_token"]
    names = list(table)
    order = ["patch_embed", "blocks.0", "blocks.2", *["norm"] * (model.config.norms.final != "none")]
    assert [name for name in names if name in order] == order
    loose = sum(p.numel() for name, p in model.named_parameters() if "." not in name)
    parts = [name for name in table if name.count(".") == name.startswith("blocks")]
    total = sum(p.numel() for p in model.parameters())
    assert sum(table[name].parameters for name in parts) + loose == total
    sums, foot = totals(model, 2), {line.split("  ")[0]: line.split()[1] for line in text.splitlines()[-6:]}
    assert foot["parameters"] == foot["trainable"] == f"{total:,}"
    assert foot["multiply-adds"] == f"{sums['multiply_adds']:,}"
    assert sums["parameter_bytes"] == 4 * total
    assert model.training
    model.patch_embed.requires_grad_(False)
    assert totals(model)["trainable"] == total - table["patch_embed"].parameters
    frozen = [row.name for row in rows(model) if row.trainable < row.parameters]
    assert frozen == [name for name in table if name.startswith("patch_embed")]


def test_multiply_adds_match_formula_and_deit() -> None:
    """A linear layer from width a to b takes n a b multiply-adds for n tokens; attention takes 2 N² d per head."""
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
    assert base["parameters"] == 86_566_888  # torchvision has 768 more, for the class token's position
    assert round(base["multiply_adds"] / 1e9, 1) == 17.6  # DeiT-B, from the paper's table


# ---- every variant of the forward pass against the plain one

MODELS = {**tiny.KINDS, "gated, normed queries": {"mlp": "swiglu", "norms": {"qk": True}, "layer_scale": 0.3}}
models = pytest.mark.parametrize("kind", MODELS)
BLOCKS = tuple(range(tiny.DEPTH))


def attn_lrp(model: ViT) -> Ops:
    gammas = dict.fromkeys(("qkv", "proj", "mlp", "head"), 0.2)
    return AttnLRP(model, gammas, epsilon=0.1, softmax="taylor")


PASSES: dict[str, Callable[[ViT], Ops]] = {
    "explicit": lambda _: Explicit(),
    "trace": lambda _: Tracer(BLOCKS, grad=False),
    "trace with gradients": lambda _: Tracer(BLOCKS, grad=True),
    "alpha-beta": lambda model: AlphaBeta(model.config),
    "AttnLRP": attn_lrp,
    "only tokens read": lambda model: ReadTokens(model.config),
    "heads scaled by 1": lambda _: Ops(BlockEdit(scale=torch.ones(tiny.BATCH, tiny.HEADS, 1, 1))),
}


@models
def test_every_ops_variant_matches_the_plain_pass(kind: str) -> None:
    """Compare gradients too; without `relevance`, the backward pass of alpha-beta is the ordinary one."""
    model, images = tiny.model(**tiny.SMALL, **MODELS[kind]).double(), tiny.images(**tiny.SMALL).double()
    tokens, grid = model.embed(images)
    tokens, angles = tokens.detach().requires_grad_(), model.angles(grid)
    expected = model.encode(tokens, angles)
    logits = model.classify(expected)
    close(logits, model(images), 1e-9)
    (slope,) = torch.autograd.grad(logits[:, 3].sum(), tokens, retain_graph=True)
    widths: list[int] = []
    model.blocks[-1].mlp.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    for variant, make in PASSES.items():
        with torch.set_grad_enabled(variant != "trace"):
            variant_ops = make(model)
            encoded = model.encode(tokens, angles, ops=variant_ops)
            variant_logits = model.classify(encoded, variant_ops)
        close(encoded, expected[:, : encoded.shape[1]])
        close(variant_logits, logits)
        if variant in ("explicit", "alpha-beta", "only tokens read"):
            close(torch.autograd.grad(variant_logits[:, 3].sum(), tokens)[0], slope, 1e-9)
        if isinstance(variant_ops, ReadTokens):  # the last MLP runs only on these tokens
            reads_prefix = model.config.pooling == "cls"
            assert widths[-1] == (1 + model.config.distillation_token if reads_prefix else tokens.shape[1])
        else:
            assert encoded.shape[1] == expected.shape[1]


def test_new_norm_and_activation_reach_every_ops_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another norm and activation work in every variant except AttnLRP, which has no rule and raises an error."""
    monkeypatch.setattr(layers, "make_norm", lambda config, width: nn.Softmax(-1))
    monkeypatch.setitem(layers.ACTIVATIONS, "gelu", nn.functional.mish)
    norms = {"qk": True, "final": "pooled"}
    model, images = tiny.model(**tiny.SMALL, norms=norms, pooling="mean"), tiny.images(**tiny.SMALL)
    tokens, _ = model.embed(images)
    expected = model.encode(tokens, None)
    for variant, make in PASSES.items():
        if variant != "AttnLRP":
            close(model.encode(tokens, None, ops=make(model)), expected)
    with pytest.raises(TypeError, match="Softmax"):
        model.encode(tokens, None, ops=attn_lrp(model))


# ---- attention in training, by the fused kernel or by matrix products, in each precision

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def parts(queries: int, keys: int, batch: int = 3, heads: int = 2) -> list[Tensor]:
    """Return q, k, v in float64, with values that every precision represents exactly."""
    generator = torch.Generator().manual_seed(1)
    exact = (torch.randn(batch, heads, n, 8, generator=generator) for n in (queries, keys, keys))
    return [part.to(torch.bfloat16).to(torch.float16).double().requires_grad_() for part in exact]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("queries", "cut"), [(1, False), (1, True), (9, False), (9, True)])
def test_attention_and_gradients_match_formula(dtype: torch.dtype, queries: int, cut: bool) -> None:
    mask = torch.rand(1, 2, queries, 9, generator=torch.Generator().manual_seed(2)) < 0.7 if cut else None
    q, k, v = exact = parts(queries, 9)
    weights = torch.exp(0.3 * torch.einsum("bhnd,bhmd->bhnm", q, k)) * (1 if mask is None else mask)
    expected = torch.einsum("bhnm,bhmd->bhnd", weights / weights.sum(-1, keepdim=True), v)
    slope = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    expected.backward(slope)
    ours = [part.detach().to(dtype).requires_grad_() for part in exact]
    result = attention(*ours, 0.3, mask=mask)
    assert result.dtype == dtype
    result.backward(slope.to(dtype))
    for actual, reference_value in [(result, expected), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]:
        torch.testing.assert_close(actual.double(), reference_value, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_dropout_keeps_the_mean(dtype: torch.dtype) -> None:
    q, k, _ = (part.detach().to(dtype).requires_grad_() for part in parts(8, 8, batch=200))
    # As values, it makes the output equal to the probabilities.
    eye = torch.eye(8, dtype=dtype).expand(200, 2, 8, 8).clone().requires_grad_()
    without_dropout = attention(q, k, eye, 0.3).detach()
    torch.manual_seed(0)
    with_dropout = attention(q, k, eye, 0.3, dropout=0.25).detach()
    nonzero = with_dropout != 0
    assert float(nonzero.double().mean()) == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(
        with_dropout[nonzero].double(), without_dropout[nonzero].double() / 0.75, rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("tokens", [64, ops.EXPLICIT_TOKENS + 1])
def test_long_sequences_save_no_square_matrix_for_backward(tokens: int) -> None:
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    q, k, v = (part.detach().bfloat16().requires_grad_() for part in parts(tokens, tokens, batch=1, heads=1))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(q, k, v, 1.0)
    if tokens == 64:
        assert max(sizes) == 64**2  # by matrix products, which are faster here
    else:
        assert max(sizes) < tokens**2
