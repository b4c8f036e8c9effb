"""Every variant of the forward pass against the plain one, on every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from edit_cases import KINDS, close
from torch import Tensor, nn

from vitviz.attribution.alpha_beta import AlphaBeta
from vitviz.attribution.attn_lrp import AttnLRP
from vitviz.model import layers
from vitviz.model.edits import BlockEdit
from vitviz.model.ops import Explicit, Ops, ReadTokens
from vitviz.model.summary import run_on_meta
from vitviz.model.tracing import Tracer
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"grid": (2, 3), "patch": 5}
MODELS = {**KINDS, "gated, normed queries": {"mlp": "swiglu", "qk_norm": True, "mlp_bias": False, "layer_scale": 0.3}}
models = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
BLOCKS = tuple(range(tiny.DEPTH))


def attn_lrp(model: ViT) -> Ops:
    gammas = dict.fromkeys(("qkv", "proj", "mlp", "head"), 0.2)
    return AttnLRP(model, torch.zeros(tiny.BATCH, 1), gammas, epsilon=0.1, softmax="taylor")


VARIANTS: dict[str, Callable[[ViT], Ops]] = {
    "explicit": lambda _: Explicit(),
    "trace": lambda _: Tracer(BLOCKS, grad=False),
    "trace with gradients": lambda _: Tracer(BLOCKS, grad=True),
    "alpha-beta": lambda _: AlphaBeta(),
    "AttnLRP": attn_lrp,
    "tokens that are read": lambda model: ReadTokens(model.config),
    "heads scaled by 1": lambda _: Ops(BlockEdit(scale=torch.ones(tiny.BATCH, tiny.HEADS, 1, 1))),
}


@models
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_computes_what_the_plain_pass_computes(changes: dict[str, Any], variant: str) -> None:
    model, images = tiny.model(**SMALL, **changes), tiny.images(**SMALL)
    tokens, grid = model.embed(images)
    angles = model.angles(grid)
    with torch.set_grad_enabled(variant != "trace"):
        plain, logits = model.encode(tokens, angles), model(images)
        ops = VARIANTS[variant](model)
        found = model.encode(tokens, angles, ops=ops)
        close(found, plain[:, : found.shape[1]])
        close(model.classify(found, ops), logits)
        assert found.shape[1] == plain.shape[1] or variant == "tokens that are read"


@models
def test_gradients_are_those_of_the_plain_pass(changes: dict[str, Any]) -> None:
    """Also in the graph of alpha-beta: until relevance is asked for, its backward pass is the gradient."""
    model, images = tiny.model(**SMALL, **changes).double(), tiny.images(**SMALL).double()
    tokens, grid = model.embed(images)
    slopes = []
    for ops in (Ops(), Explicit(), AlphaBeta(), ReadTokens(model.config)):
        entering = tokens.detach().requires_grad_()
        logits = model.run(entering, model.angles(grid), ops=ops)
        slopes.append(torch.autograd.grad(logits[:, 3].sum(), entering)[0])
    for slope in slopes[1:]:
        close(slope, slopes[0], 1e-9)


@models
def test_the_last_mlp_runs_on_tokens_that_are_read_alone(changes: dict[str, Any]) -> None:
    model, seen = tiny.model(**SMALL, **changes), []
    model.blocks[-1].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    tokens, grid = model.embed(tiny.images(**SMALL))
    model.run(tokens, model.angles(grid), ops=ReadTokens(model.config))
    reads_prefix = model.config.pooling == "cls"
    assert seen == [1 + model.config.distillation_token if reads_prefix else tokens.shape[1]]


@models
def test_shapes_on_the_meta_device_are_those_of_a_run(changes: dict[str, Any]) -> None:
    model, images = tiny.model(**SMALL, **changes), tiny.images(**SMALL)
    ops, seen = Explicit(), Explicit()
    rows = run_on_meta(model.config, images.shape[2:], tiny.BATCH, ops)
    tokens, grid = model.embed(images)
    logits = model.run(tokens, model.angles(grid), ops=seen)
    assert rows[-1].shape == tuple(logits.shape)
    assert [one.logits.shape for one in ops.seen] == [one.logits.shape for one in seen.seen]


def test_a_new_norm_and_a_new_gate_are_written_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root-mean-square norm and another activation reach every variant but AttnLRP, which says what it lacks."""
    monkeypatch.setattr(layers, "make_norm", lambda config, width: nn.RMSNorm(width, eps=config.norm_eps))
    monkeypatch.setitem(layers.ACTIVATIONS, "gelu", nn.functional.mish)
    changes = {"qk_norm": True, "norm_pooled": True, "pooling": "mean"}
    model, images = tiny.model(**SMALL, **changes), tiny.images(**SMALL)
    tokens, _ = model.embed(images)

    def rms(x: Tensor, norm: nn.Module) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight

    x = tokens
    for block in model.blocks:
        q, k, v = block.attn.qkv(rms(x, block.norm1)).unflatten(-1, (3, tiny.HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = rms(q, block.attn.q_norm), rms(k, block.attn.k_norm)
        mixed = (q @ k.mT * tiny.HEAD_WIDTH**-0.5).softmax(-1) @ v
        x = x + block.attn.proj(mixed.transpose(1, 2).flatten(2))
        hidden = block.mlp.fc1(rms(x, block.norm2))
        x = x + block.mlp.fc2(hidden * hidden.exp().log1p().tanh())
    for variant, make in VARIANTS.items():
        if variant != "AttnLRP":
            close(model.encode(tokens, None, ops=make(model)), x)
    with pytest.raises(TypeError, match="RMSNorm"):
        model.encode(tokens, None, ops=attn_lrp(model))


def test_dropout_in_explicit_attention_is_refused() -> None:
    model = tiny.model(**SMALL, attention_dropout=0.2).train()
    tokens, grid = model.embed(tiny.images(**SMALL))
    with pytest.raises(ValueError, match="eval"):
        model.run(tokens, model.angles(grid), ops=Explicit())
