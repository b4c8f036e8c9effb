"""Test that decompositions sum to the score in every family, and that each term is a gradient of the direct path."""

import numpy as np
import pytest
import timm_models
import tiny
import torch
from hf_cases import Case, each_case
from torch import Tensor, nn

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.decomposition import Decomposition, Direct, decompose, factors, target_reading
from vitviz.attribution.target_specs import Direction, Group, Output, Similarity, Unit, resolve_target
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT
from vitviz.weights.from_timm import convert_timm
from vitviz.weights.zoo import load

pytestmark = pytest.mark.usefixtures("one_thread")


def traced(model: ViT, seed: int = 5) -> tuple[ViT, Trace]:
    height, width = model.config.image_size
    pixels = torch.randn(1, model.config.channels, height, width, generator=torch.Generator().manual_seed(seed))
    return model, model.trace(pixels)


def check_sum(parts: Decomposition, expected: float) -> None:
    """Assert that the terms sum to the score, within 1e-4 of the largest, and the tokens to their heads."""
    terms = [parts.start, parts.constant, *parts.heads.flat, *parts.mlps, *parts.biases]
    assert abs(sum(terms) - expected) <= 1e-4 * max(map(abs, terms))
    assert parts.total == pytest.approx(sum(terms), abs=1e-9)
    np.testing.assert_allclose(parts.tokens.sum(2), parts.heads, atol=1e-9)


@torch.no_grad()
def check_family(model: ViT) -> None:
    model, trace = traced(model)
    vector = np.random.default_rng(0).normal(size=model.config.feature_width).tolist()
    features = model.read_out(trace.tokens)
    for target in (Direction(vector), Similarity(vector)):
        resolved = resolve_target(model, None, target)
        check_sum(decompose(model, trace, target), float(resolved.score(features)))
    if trace.logits is not None:
        logits = trace.logits[0]
        centering = float(logits.mean()) if model.problem_type == "single_label_classification" else 0.0
        check_sum(decompose(model, trace, 1), float(logits[1]) - centering)


@pytest.mark.parametrize("family", timm_models.FAMILIES)
def test_terms_sum_to_the_score_in_timm_families(family: str) -> None:
    check_family(convert_timm(timm_models.FAMILIES[family]()))


@each_case
def test_terms_sum_to_the_score_in_transformers_families(case: Case) -> None:
    check_family(load(case.build()))


class Gated(Direct):
    """Operations that multiply the values of one block by factors, (W, H, M)."""

    def __init__(self, model: ViT, qkv: nn.Linear, heads: int) -> None:
        super().__init__(model)
        self.qkv, self.heads = qkv, heads

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        y = super().linear(layer, x)
        if layer is not self.qkv:
            return y
        query, key, value = y.unflatten(-1, (3, self.heads, -1)).unbind(-3)  # (W, M, H, d) each
        self.gate = torch.ones(*value.shape[:2], self.heads, requires_grad=True)
        return torch.stack([query, key, value * self.gate[..., None]], dim=-3).flatten(-3)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_each_token_is_the_gradient_of_a_factor_on_its_value(kind: str) -> None:
    model, trace = traced(tiny.model(**tiny.KINDS[kind]))
    angles, parts = model.angles(trace.grid), decompose(model, trace, contrast=(3, 1))
    target = resolve_target(model, trace.logits, None, (3, 1))
    assert (parts.target, parts.scale) == (-1, "logit")
    check_sum(parts, float(target.score(trace.logits)))
    slope = target_reading(model, trace, contrast=(3, 1)).slope
    for index in range(trace.depth - 1, -1, -1):
        ops = Gated(model, model.blocks[index].attn.qkv, trace.heads_in(index))
        out = model.blocks[index](trace.stream(index), angles, ops)
        (gradient,) = torch.autograd.grad((out * slope).sum(), ops.gate)  # (1, N, H)
        expected = gradient[0].T  # (H, N)
        heads, tokens = expected.shape
        tiny.close(parts.tokens[index, :heads, :tokens], expected)
        assert not parts.tokens[index, heads:].any()


def test_constant_is_the_effect_of_the_final_biases() -> None:
    model, trace = traced(tiny.model())
    row = (model.head.weight[3] - model.head.weight[5]).detach()
    expected = row @ model.norm.bias.detach() + model.head.bias[3].item() - model.head.bias[5].item()
    assert decompose(model, trace, contrast=(3, 5)).constant == pytest.approx(float(expected), abs=1e-5)


@torch.no_grad()
def test_decomposition_of_last_block_matches_the_head_output() -> None:
    """No layer follows the last block, so its head's output is added to the stream before the norm."""
    model = tiny.model()
    trace = model.trace(tiny.images(1))
    parts, last = decompose(model, trace, 3), model.blocks[-1]
    stream, start = trace.stream(-1)[0], slice(2 * tiny.HEAD_WIDTH, 3 * tiny.HEAD_WIDTH)
    values = last.attn.qkv(last.norm1(stream)).unflatten(-1, (3, tiny.HEADS, -1))[:, 2, 2]  # (N, d) of head 2
    added = trace.attention(-1)[0, 2, 0] @ values @ last.attn.proj.weight[:, start].T  # (D,), to CLS
    before = last(trace.stream(-1), None)[0, 0]
    deviation = (before.var(unbiased=False) + model.norm.eps).sqrt()
    aim = (model.head.weight[3] - model.head.weight.mean(0)) * model.norm.weight
    expected = (added - added.mean()) @ aim / deviation
    assert parts.heads[-1, 2] == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    part = trace.attention(-1)[0, 2, 0, 9] * values[9] @ last.attn.proj.weight[:, start].T  # from one patch
    assert parts.tokens[-1, 2, 9] == pytest.approx(float((part - part.mean()) @ aim / deviation), rel=1e-4, abs=1e-6)


def test_factors_have_the_rank_of_the_direct_effect() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*shape, dtype=torch.double, generator=generator) for shape in ((2, 11), (2, 7)))
    weights, directions = factors(left.T @ right)
    assert weights.shape == (2, 11)
    tiny.close(weights.T @ directions, left.T @ right, 1e-9)
    assert factors(torch.zeros(11, 7).double())[0].shape == (0, 11)


def test_view_decomposes_outputs_and_refuses_groups() -> None:
    view = vitviz.Explorer(tiny.known()).open(np.zeros((91, 143, 3), np.uint8))
    assert view.decompose(Output(4)).total == pytest.approx(float(view.trace.logits[0, 4]), abs=1e-5)
    assert view.decompose().target == view.best(1)[0]
    with pytest.raises(AnalysisError, match="a group"):
        view.decompose(Group([1, 2]))
    bare = vitviz.Explorer(tiny.model(classes=0)).open(np.zeros((91, 143, 3), np.uint8))
    assert bare.decompose(Unit(3)).total == pytest.approx(float(bare.features[3]), abs=1e-5)
    with pytest.raises(AnalysisError, match="got none"):
        bare.decompose()
    with pytest.raises(AnalysisError, match="all blocks"):
        decompose(view.model, view.model.trace(view.images, blocks=[1]))
