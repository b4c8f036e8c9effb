"""Importance of heads by gradient (Michel et al. 2019), and by ablation."""

import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch

import vitviz.analysis.importance
from vitviz.analysis import AnalysisError
from vitviz.analysis.heads import head_statistics
from vitviz.analysis.importance import head_ablations, head_gradients
from vitviz.attribution.inputs import Target
from vitviz.model.edits import Edits
from vitviz.model.trace import TraceError

pytestmark = pytest.mark.usefixtures("one_thread")
kinds = pytest.mark.parametrize("kind", tiny.KINDS)
TARGET = Target(torch.tensor([3, 11]))
CONTRAST = Target(torch.tensor([3, 11]), torch.tensor([7, 2]))


@kinds
def test_the_gradient_is_the_sum_of_attention_times_its_gradient(kind: str) -> None:
    """Michel et al. 2019, equation 2: |A . dL/dA|, here from probabilities that are in a graph."""
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images()
    run = reference.run(model, images)
    attentions = [attention.tensor for attention in run.attentions]
    for target in (TARGET, CONTRAST):
        slopes = torch.autograd.grad(target.score(run.logits.tensor).sum(), attentions, retain_graph=True)
        expected = [(a * slope).sum((2, 3)).abs() for a, slope in zip(attentions, slopes, strict=True)]
        gradients = head_gradients(model, model.trace(images), target)
        torch.testing.assert_close(gradients.double(), torch.stack(expected, dim=1).detach(), rtol=2e-3, atol=2e-5)
        assert gradients.min() > 0


@kinds
@torch.no_grad()
def test_an_ablation_is_the_answer_of_the_edited_model(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model, images = tiny.model(**tiny.SMALL, **tiny.KINDS[kind]), tiny.images(**tiny.SMALL)
    monkeypatch.setattr(vitviz.analysis.importance, "TOGETHER_BYTES", 100_000)  # a few heads at a time
    trace, whole = model.trace(images), model(images).double()
    places = [(block, head) for block in range(3) for head in range(5)]
    edited = [model(images, Edits(heads={place: "zero"})).double() for place in places]
    for target in (TARGET, CONTRAST):
        probability, logit = head_ablations(model, trace, target)
        for (block, head), without in zip(places, edited, strict=True):
            lost = target.score(whole.softmax(1)) - target.score(without.softmax(1))
            torch.testing.assert_close(probability[:, block, head], lost, rtol=1e-3, atol=2e-5)
            lost = target.score(whole) - target.score(without)
            torch.testing.assert_close(logit[:, block, head], lost, rtol=1e-3, atol=2e-5)
        assert logit.abs().mean() > 0.01  # there was something to compare


def test_statistics_carry_both_for_the_named_target() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images)
    names = ["gradient", "ablation_probability", "ablation_logit"]
    statistics = head_statistics(model, trace, names=names, target=[3, 11])
    expected = (head_gradients(model, trace, TARGET), *head_ablations(model, trace, TARGET))
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_allclose(statistics[name], values.mean(0).numpy())
        np.testing.assert_allclose(statistics.deviations[name], values.numpy().std(0))
    assert statistics.target == "class 3, class 11"
    predicted = head_statistics(model, trace, names=names)
    best = Target(model(images).argmax(1))
    np.testing.assert_allclose(predicted["gradient"], head_gradients(model, trace, best).mean(0).numpy())


def test_only_kept_blocks_are_weighed_and_gradients_need_all_after_the_first() -> None:
    model, images = tiny.model(), tiny.images()
    whole, late, gaps = (model.trace(images, blocks=blocks) for blocks in ([0, 1, 2], [1, 2], [0, 2]))
    gradients, expected = head_gradients(model, late, TARGET), head_gradients(model, whole, TARGET)[:, 1:]
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-6)
    ablations, expected = (head_ablations(model, trace, TARGET)[1] for trace in (gaps, whole))
    torch.testing.assert_close(ablations, expected[:, [0, 2]], rtol=1e-3, atol=1e-5)
    with pytest.raises(TraceError, match="got 1"):
        head_gradients(model, gaps, TARGET)


def test_model_trace_and_random_state_are_left_as_they_were() -> None:
    """Whether the trace has a graph or not, in inference mode and in half precision."""
    model, images = tiny.model(), tiny.images()
    trace, state = model.trace(images), torch.get_rng_state()
    tensors = [*model.parameters(), *(trace.stream(block) for block in range(3))]
    before = [tensor.clone() for tensor in tensors]
    plain = head_gradients(model, trace, TARGET)
    head_ablations(model, trace, TARGET)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, tensors, before))
    assert torch.equal(torch.get_rng_state(), state)
    for other in (model, tiny.model(positions="rotary", head_width=16)):
        expected = head_gradients(other, other.trace(images), TARGET)
        with torch.inference_mode():
            gradients = head_gradients(other, other.trace(images), TARGET)
        torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-6)
    half = tiny.model().bfloat16()
    gradients = head_gradients(half, half.trace(images.bfloat16()), TARGET)
    torch.testing.assert_close(gradients, plain, rtol=0.3, atol=0.03 * float(plain.max()))
    graph = model.trace(images, grad=True)
    torch.testing.assert_close(head_gradients(model, graph, TARGET), plain, rtol=1e-3, atol=1e-6)
    torch.autograd.grad(graph.logits.sum(), graph.block(0).probabilities)  # its own graph is not used up


def test_models_in_training_and_without_a_classifier_are_refused() -> None:
    model = tiny.model(dropout=0.1)
    trace = model.trace(tiny.images())
    with pytest.raises(AnalysisError, match="eval"):
        head_ablations(model.train(), trace, TARGET)
    bare = tiny.model(classes=0)
    with pytest.raises(AnalysisError, match="classifier, got one without"):
        head_gradients(bare, bare.trace(tiny.images()), TARGET)
