"""How much the answer rests on each head: the gradient is Michel's, the ablation is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import vitviz.analysis.importance
from vitviz.analysis import AnalysisError
from vitviz.analysis.heads import head_statistics
from vitviz.analysis.importance import head_ablations, head_gradients
from vitviz.attribution.inputs import Target
from vitviz.model.edits import Edits
from vitviz.model.trace import TraceError

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"registers": 2, "mlp": "swiglu", "layer_scale": 0.7, "qk_norm": True},
    {"class_token": False, "pooling": "mean", "positions": "none"},
    {"pooling": "cls+mean", "distillation_token": True, "positions": "rotary", "head_width": 16},
    {"pooling": "attention", "class_token": False, "width": 20},
    {"pooling": "mean", "norm_pooled": True, "norm_pre": True},
)
TARGET = Target(torch.tensor([3, 11]))
CONTRAST = Target(torch.tensor([3, 11]), torch.tensor([7, 2]))


def score(logits: Tensor, target: Target) -> Tensor:
    """The number whose gradient is taken, (B,), written out class by class."""
    rows = torch.arange(len(logits))
    mine = logits[rows, target.classes]
    return mine if target.against is None else mine - logits[rows, target.against]


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.parametrize("target", [TARGET, CONTRAST], ids=["class", "contrast"])
def test_the_gradient_is_the_sum_of_attention_times_its_gradient(changes: dict[str, Any], target: Target) -> None:
    """Michel et al. 2019, equation 2: |A . dL/dA|, here from probabilities that are in a graph."""
    model, images = tiny.model(**changes), tiny.images()
    model.requires_grad_(False)
    graph = model.trace(images, grad=True)
    probabilities = [graph.block(block).probabilities for block in range(3)]
    slopes = torch.autograd.grad(score(graph.logits, target).sum(), probabilities)
    expected = [(a * slope).sum((2, 3)).abs() for a, slope in zip(probabilities, slopes, strict=True)]
    found = head_gradients(model, model.trace(images), target)
    torch.testing.assert_close(found.float(), torch.stack(expected, dim=1).detach(), rtol=2e-3, atol=2e-5)
    assert found.min() > 0


def test_the_gradient_is_the_slope_of_a_mask() -> None:
    """By a difference: the head's part of the output projection is made a little stronger, in float64."""
    model, images = tiny.model().double(), tiny.images().double()
    found = head_gradients(model, model.trace(images), TARGET)
    step = 1e-4
    for block, head in ((0, 4), (1, 0), (2, 3)):
        weight = model.blocks[block].attn.proj.weight
        mine, kept = slice(head * tiny.HEAD_WIDTH, (head + 1) * tiny.HEAD_WIDTH), weight.detach().clone()
        answers = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.copy_(kept)
                weight[:, mine] *= 1 + sign * step
                answers.append(score(model(images), TARGET))
        with torch.no_grad():
            weight.copy_(kept)
        slope = ((answers[0] - answers[1]) / (2 * step)).abs()
        torch.testing.assert_close(found[:, block, head], slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_an_ablation_is_the_answer_of_the_edited_model(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    model, images = tiny.model(**changes), tiny.images()
    monkeypatch.setattr(vitviz.analysis.importance, "TOGETHER_BYTES", 400_000)  # two heads at a time
    trace, whole = model.trace(images), model(images).double()
    places = [(block, head) for block in range(3) for head in range(5)]
    edited = [model(images, Edits(heads={place: "zero"})).double() for place in places]
    for target in (TARGET, CONTRAST):
        probability, logit = head_ablations(model, trace, target)
        for (block, head), without in zip(places, edited, strict=True):
            lost = score(whole.softmax(1), target) - score(without.softmax(1), target)
            torch.testing.assert_close(probability[:, block, head], lost, rtol=1e-3, atol=2e-5)
            lost = score(whole, target) - score(without, target)
            torch.testing.assert_close(logit[:, block, head], lost, rtol=1e-3, atol=2e-5)
        assert logit.abs().mean() > 0.01  # there was something to compare


def test_a_head_whose_output_nobody_reads_is_worth_nothing() -> None:
    model = tiny.model()
    mine = slice(2 * tiny.HEAD_WIDTH, 3 * tiny.HEAD_WIDTH)
    with torch.no_grad():
        model.blocks[1].attn.proj.weight[:, mine] = 0.0
    trace = model.trace(tiny.images())
    found = (head_gradients(model, trace, TARGET), *head_ablations(model, trace, TARGET))
    for values in found:
        assert values[:, 1, 2].abs().max() < 1e-6
        assert values.abs().sum(0).flatten().sort().values[1] > 1e-6  # the only one


def test_statistics_carry_both_for_the_target_that_was_named() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images)
    names = ["gradient", "ablation_probability", "ablation_logit"]
    found = head_statistics(model, trace, names=names, target=[3, 11])
    expected = (head_gradients(model, trace, TARGET), *head_ablations(model, trace, TARGET))
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], values.mean(0).numpy())
        np.testing.assert_allclose(found.deviations[name], values.numpy().std(0))
    assert found.target == "class 3, class 11"
    predicted = head_statistics(model, trace, names=names)
    best = Target(model(images).argmax(1))
    np.testing.assert_allclose(predicted["gradient"], head_gradients(model, trace, best).mean(0).numpy())


def test_kept_blocks_are_weighed_and_gradients_need_all_after_the_first() -> None:
    model, images = tiny.model(), tiny.images()
    whole, late = model.trace(images), model.trace(images, blocks=[1, 2])
    found, expected = head_gradients(model, late, TARGET), head_gradients(model, whole, TARGET)[:, 1:]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    gaps = model.trace(images, blocks=[0, 2])
    found, expected = (head_ablations(model, of, TARGET)[1] for of in (gaps, whole))
    torch.testing.assert_close(found, expected[:, [0, 2]], rtol=1e-3, atol=1e-5)
    with pytest.raises(TraceError, match="got 1"):
        head_gradients(model, gaps, TARGET)


def test_nothing_is_left_behind() -> None:
    model, images = tiny.model(), tiny.images()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace = model.trace(images)
    streams = [trace.stream(block).clone() for block in range(3)]
    plain = head_gradients(model, trace, TARGET)
    head_ablations(model, trace, TARGET)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(trace.stream(block), stream) for block, stream in enumerate(streams))
    assert torch.equal(torch.get_rng_state(), state)
    for one in (model, tiny.model(positions="rotary", head_width=16)):
        expected = head_gradients(one, one.trace(images), TARGET)
        with torch.inference_mode():
            found = head_gradients(one, one.trace(images), TARGET)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    half = tiny.model().bfloat16()
    found = head_gradients(half, half.trace(images.bfloat16()), TARGET)
    torch.testing.assert_close(found, plain, rtol=0.3, atol=0.03 * float(plain.max()))
    graph = model.trace(images, grad=True)
    torch.testing.assert_close(head_gradients(model, graph, TARGET), plain, rtol=1e-3, atol=1e-6)
    assert graph.logits.grad_fn is not None  # its own graph is not used up
    torch.autograd.grad(graph.logits.sum(), graph.block(0).probabilities)


def test_what_cannot_be_weighed_is_refused() -> None:
    model = tiny.model(dropout=0.1)
    trace = model.trace(tiny.images())
    with pytest.raises(AnalysisError, match="eval"):
        head_ablations(model.train(), trace, TARGET)
    bare = tiny.model(classes=0)
    with pytest.raises(AnalysisError, match="classifier, got one without"):
        head_gradients(bare, bare.trace(tiny.images()), TARGET)
