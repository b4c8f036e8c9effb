"""Every variant of the forward pass against the plain one, on every kind of model."""

from collections.abc import Callable

import pytest
import tiny
import torch
from tiny import close
from torch import Tensor, nn

from vitviz.attribution.alpha_beta import AlphaBeta
from vitviz.attribution.attn_lrp import AttnLRP
from vitviz.model import layers, ops
from vitviz.model.edits import BlockEdit
from vitviz.model.ops import Explicit, Ops, ReadTokens, attention
from vitviz.model.tracing import Tracer
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
MODELS = {**tiny.KINDS, "gated, normed queries": {"mlp": "swiglu", "qk_norm": True, "layer_scale": 0.3}}
models = pytest.mark.parametrize("kind", MODELS)
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
def test_every_variant_computes_what_the_plain_pass_computes(kind: str) -> None:
    """Its gradients too, also in the graph of alpha-beta: until relevance is asked for, its backward pass is theirs."""
    model, images = tiny.model(**tiny.SMALL, **MODELS[kind]).double(), tiny.images(**tiny.SMALL).double()
    tokens, grid = model.embed(images)
    tokens, angles = tokens.detach().requires_grad_(), model.angles(grid)
    plain = model.encode(tokens, angles)
    logits = model.classify(plain)
    close(logits, model(images), 1e-9)
    (slope,) = torch.autograd.grad(logits[:, 3].sum(), tokens, retain_graph=True)
    for variant, make in VARIANTS.items():
        with torch.set_grad_enabled(variant != "trace"):
            variant_ops = make(model)
            encoded = model.encode(tokens, angles, ops=variant_ops)
            answer = model.classify(encoded, variant_ops)
        close(encoded, plain[:, : encoded.shape[1]])
        close(answer, logits)
        assert encoded.shape[1] == plain.shape[1] or variant == "tokens that are read"
        if variant in ("explicit", "alpha-beta", "tokens that are read"):
            close(torch.autograd.grad(answer[:, 3].sum(), tokens)[0], slope, 1e-9)


@models
def test_the_last_mlp_runs_only_on_tokens_that_are_read(kind: str) -> None:
    model, seen = tiny.model(**tiny.SMALL, **MODELS[kind]), []
    model.blocks[-1].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    tokens, grid = model.embed(tiny.images(**tiny.SMALL))
    model.run(tokens, model.angles(grid), ops=ReadTokens(model.config))
    reads_prefix = model.config.pooling == "cls"
    assert seen == [1 + model.config.distillation_token if reads_prefix else tokens.shape[1]]


def test_a_new_norm_and_a_new_activation_are_written_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root-mean-square norm and another activation reach every variant but AttnLRP, which says what it lacks."""
    monkeypatch.setattr(layers, "make_norm", lambda config, width: nn.RMSNorm(width, eps=config.norm_eps))
    monkeypatch.setitem(layers.ACTIVATIONS, "gelu", nn.functional.mish)
    model, images = tiny.model(**tiny.SMALL, qk_norm=True, norm_pooled=True, pooling="mean"), tiny.images(**tiny.SMALL)
    tokens, _ = model.embed(images)
    plain = model.encode(tokens, None)
    for variant, make in VARIANTS.items():
        if variant != "AttnLRP":
            close(model.encode(tokens, None, ops=make(model)), plain)
    with pytest.raises(TypeError, match="RMSNorm"):
        model.encode(tokens, None, ops=attn_lrp(model))


def test_dropout_in_explicit_attention_is_refused() -> None:
    model = tiny.model(**tiny.SMALL, attention_dropout=0.2).train()
    tokens, grid = model.embed(tiny.images(**tiny.SMALL))
    with pytest.raises(ValueError, match="eval"):
        model.run(tokens, model.angles(grid), ops=Explicit())


# ---- attention in training: the fused kernel or plain products, the same formula in each precision

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def parts(queries: int, keys: int, batch: int = 3, heads: int = 2) -> list[Tensor]:
    """q, k, v in float64 that every precision holds exactly."""
    generator = torch.Generator().manual_seed(1)
    exact = (torch.randn(batch, heads, n, 8, generator=generator) for n in (queries, keys, keys))
    return [part.to(torch.bfloat16).to(torch.float16).double().requires_grad_() for part in exact]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("queries", "cut"), [(1, False), (1, True), (9, False), (9, True)])
def test_attention_and_its_gradients_are_the_formula(dtype: torch.dtype, queries: int, cut: bool) -> None:
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
    for mine, right in [(result, expected), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]:
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dropout_leaves_out_probabilities_and_keeps_their_mean(dtype: torch.dtype) -> None:
    q, k, _ = (part.detach().to(dtype).requires_grad_() for part in parts(8, 8, batch=200))
    eye = torch.eye(8, dtype=dtype).expand(200, 2, 8, 8).clone().requires_grad_()  # so that the mixture is the weights
    whole = attention(q, k, eye, 0.3).detach()
    torch.manual_seed(0)
    thin = attention(q, k, eye, 0.3, dropout=0.25).detach()
    kept = thin != 0
    assert float(kept.double().mean()) == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(thin[kept].double(), whole[kept].double() / 0.75, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tokens", [64, ops.EXPLICIT_TOKENS + 1])
def test_the_matrix_of_a_long_sequence_is_not_kept_for_the_backward_pass(tokens: int) -> None:
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    q, k, v = (part.detach().bfloat16().requires_grad_() for part in parts(tokens, tokens, batch=1, heads=1))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(q, k, v, 1.0)
    if tokens == 64:
        assert max(sizes) == 64**2  # by plain products, which are faster
    else:
        assert max(sizes) < tokens**2
