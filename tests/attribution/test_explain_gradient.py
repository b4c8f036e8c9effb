"""Gradient methods against their formulas: dense matrices from a Vision Transformer written out in a graph of its own.

Faults are numbered as the project's list of what goes wrong elsewhere.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import explain_cases as cases
import pytest
import torch
import vit_torch
from torch import Tensor, nn

from vitviz.attribution import gradient
from vitviz.attribution.gradient import attention_gradcam, gae, gradient_rollout, legrad, token_gradcam
from vitviz.attribution.inputs import Case
from vitviz.attribution.scores import ExplainError
from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
models = pytest.mark.parametrize("changes", cases.MODELS.values(), ids=cases.MODELS.keys())
METHODS = {method.name: method for method in gradient.METHODS}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


class Graph:
    """One image's run written out, and the gradients of its score in everything."""

    def __init__(self, model: ViT, image: Tensor, target: int, against: int | None = None) -> None:
        self.model, self.target, self.against = model, target, against
        self.run = vit_torch.run(model, image)
        score = self.score(self.run.logits)
        self.gradients = self.of(score, self.run.attentions)
        self.slopes = self.of(score, self.run.leaving)
        self.pool = None if self.run.pooled is None else self.of(score, [self.run.pooled])[0]

    def score(self, logits: Tensor) -> Tensor:
        return logits[self.target] - (0 if self.against is None else logits[self.against])

    @staticmethod
    def of(score: Tensor, wanted: list[Tensor]) -> list[Tensor]:
        found = torch.autograd.grad(score, wanted, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(wanted, found, strict=True)]


@functools.cache
def graph(changes: str, at: int, target: int, against: int | None = None) -> Graph:
    """The graph of one image of the batch and a model, as JSON: made once for the tests of all formulas."""
    return Graph(cases.model(json.loads(changes)), cases.images()[at], target, against)


def check(method: Any, changes: dict[str, Any], formula: Any, target: Any = cases.TARGETS, **options: Any) -> None:
    """A method on a batch equals the formula on each image by itself; for the targets and for a contrast."""
    model, pixels, kind = cases.model(changes), cases.images(), json.dumps(changes)
    ours = method(cases.case(model, pixels, target), **options)
    cases.close(ours, torch.stack([formula(graph(kind, at, label)) for at, label in enumerate(target)]))
    assert float(ours.max()) > 0
    ours = method(cases.case(model, pixels, contrast=(5, 11)), **options)
    cases.close(ours, torch.stack([formula(graph(kind, at, 5, 11)) for at in range(len(pixels))]))


# ---- the formulas


def rollout_of(graph: Graph, discard: float = 0.0, residual: float = 0.5) -> Tensor:
    """Gildenblat's, with the rows rescaled along the right axis; less what the skip connections alone pass on."""
    model, run = graph.model, graph.run
    prefix, count = len(model.config.prefix), run.attentions[0].shape[1]
    product = alone = torch.eye(count).double()
    for attention, slope in zip(run.attentions, graph.gradients, strict=True):
        fused = torch.stack([a * g for a, g in zip(attention, slope, strict=True)]).mean(0).detach()
        fused[fused < 0] = 0
        if discard:
            least = sorted(fused.flatten().tolist())[int(discard * fused.numel())]
            for row in fused:
                strongest = int(row.argmax())
                for column in range(prefix, count):
                    if row[column] < least and column != strongest:
                        row[column] = 0
        mixed = (1 - residual) * fused + residual * torch.eye(count)
        total = mixed.sum(dim=1, keepdim=True)
        product = (mixed / total) @ product
        alone = (residual * torch.eye(count) / total) @ alone
    rows = cases.rows_read(model)
    if graph.pool is None:
        return rows @ (product - alone)
    pooled = (run.pooled * graph.pool).mean(0).clamp(min=0)
    return rows @ (product - alone) + (1 - rows.sum()) * pooled / pooled.sum() @ product


@pytest.mark.parametrize("options", [{}, {"discard": 0.4}, {"residual": 0.2, "discard": 0.8}], ids=str)
@models
def test_gradient_rollout_is_a_row_of_a_product_of_matrices(changes: dict, options: dict) -> None:
    check(gradient_rollout, changes, lambda graph: rollout_of(graph, **options), **options)


@models
def test_gae_is_a_row_of_the_relevance_matrix(changes: dict) -> None:
    def formula(graph: Graph) -> Tensor:
        start = relevance = torch.eye(graph.run.attentions[0].shape[1]).double()
        for attention, slope in zip(graph.run.attentions, graph.gradients, strict=True):
            relevance = relevance + (attention * slope).clamp(min=0).mean(0) @ relevance
        row = cases.rows_read(graph.model) @ (relevance - start)
        if graph.pool is None:
            return row
        return row + (graph.run.pooled * graph.pool).clamp(min=0).mean(0) @ relevance

    check(gae, changes, formula)


@pytest.mark.parametrize("block", [-1, 1, 0])
@models
def test_attention_gradcam_is_attention_weighted_by_the_mean_gradient(changes: dict, block: int) -> None:
    def formula(graph: Graph) -> Tensor:
        rows, prefix = cases.rows_read(graph.model), len(graph.model.config.prefix)
        if graph.run.pooled is not None:
            rows = rows + (1 - rows.sum()) * graph.run.pooled.mean(0)
        total = torch.zeros_like(rows)
        for attention, slope in zip(graph.run.attentions[block], graph.gradients[block], strict=True):
            weight = (rows @ slope)[prefix:].mean()
            total = total + weight * (rows @ attention)
        return (total / graph.model.config.heads).clamp(min=0)

    check(attention_gradcam, changes, formula, block=block)


@pytest.mark.parametrize("block", [-1, 1, 0, None])
@models
def test_token_gradcam_weights_channels_by_their_mean_gradient(changes: dict, block: int | None) -> None:
    if block == -1 and changes.get("pooling", "cls") == "cls":
        model, pixels = cases.model(changes), cases.images()
        nothing = token_gradcam(cases.case(model, pixels, cases.TARGETS), block=-1)
        assert not nothing.any()  # the answer does not depend on the patches that leave the last block
        return

    def formula(graph: Graph) -> Tensor:
        last = 1 if graph.model.config.pooling == "cls" else 2
        index, prefix = last if block is None else block, len(graph.model.config.prefix)
        weights = graph.slopes[index][prefix:].mean(0)
        return (graph.run.leaving[index] * weights).sum(1).clamp(min=0)

    check(token_gradcam, changes, formula, block=block)


@pytest.mark.parametrize("start", [0, -2])
@models
def test_legrad_adds_the_gradient_of_the_answer_after_each_block(changes: dict, start: int) -> None:
    def formula(graph: Graph) -> Tensor:
        total = 0
        for attention, leaving in list(zip(graph.run.attentions, graph.run.leaving, strict=True))[start:]:
            pooled, logits = vit_torch.answer(graph.model, leaving)
            slope = Graph.of(graph.score(logits), [attention if pooled is None else pooled])[0].clamp(min=0)
            total = total + (slope.mean((0, 1)) if pooled is None else slope.mean(0))
        return total

    check(legrad, changes, formula, start=start)


def test_legrad_of_all_tokens_scores_their_mean() -> None:
    def formula(graph: Graph) -> Tensor:
        total = 0
        for attention, leaving in zip(graph.run.attentions, graph.run.leaving, strict=True):
            logits = graph.model.head(graph.model.norm(leaving).mean(0))
            total = total + Graph.of(graph.score(logits), [attention])[0].clamp(min=0).mean((0, 1))
        return total

    check(legrad, {}, formula, pooling="tokens")


@models
def test_the_written_out_model_is_the_model(changes: dict) -> None:
    model, pixels = cases.model(changes), cases.images()
    trace = model.trace(pixels)
    for image in range(2):
        run = vit_torch.run(model, pixels[image])
        cases.close(trace.logits[image], run.logits)
        cases.close(trace.stream(2)[image], run.leaving[1])
        cases.close(trace.attentions[2][image], run.attentions[2], 1e-5)  # in single precision


# ---- models that the written-out one does not cover: against the graph of a trace


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "rotary", "head_width": 12, "qk_norm": True, "mlp": "swiglu"},
        {"norm_pre": True, "positions": "none", "layer_scale": 0.5, "activation": "quick_gelu"},
    ],
    ids=["rotary", "none"],
)
def test_other_kinds_of_models_against_the_graph_of_a_trace(changes: dict) -> None:
    made = cases.case(cases.model(changes), cases.images(), cases.TARGETS)
    trace = made.model.trace(made.images, grad=True)
    score = made.target.score(trace.logits)
    probabilities = [trace.block(block).probabilities for block in range(3)]
    gradients = torch.autograd.grad(score.sum(), probabilities)
    row = torch.eye(16).double()[0]
    expected = []
    for image in range(2):
        relevance = torch.eye(16).double()
        for attention, slope in zip(probabilities, gradients, strict=True):
            relevance = relevance + (attention[image] * slope[image]).clamp(min=0).mean(0) @ relevance
        expected.append(row @ (relevance - torch.eye(16)))
    cases.close(gae(made), torch.stack(expected))


# ---- against captum


class FeatureMaps(nn.Module):
    """The tokens that leave a block as (B, D, gh, gw), for captum to see; then the rest of the model."""

    def __init__(self, model: ViT, block: int) -> None:
        super().__init__()
        self.model, self.block, self.maps = model, block, nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        tokens, grid = self.model.embed(images)
        prefix = len(self.model.config.prefix)
        for index, block in enumerate(self.model.blocks):
            tokens = block(tokens)
            if index == self.block:
                maps = self.maps(tokens[:, prefix:].transpose(1, 2).unflatten(2, grid))
                tokens = torch.cat([tokens[:, :prefix], maps.flatten(2).transpose(1, 2)], dim=1)
        return self.model.classify(self.model.finish(tokens))


@models
def test_token_gradcam_is_captums_layer_gradcam(changes: dict) -> None:
    from captum.attr import LayerGradCam

    model, pixels = cases.model(changes), cases.images()
    wrapped = FeatureMaps(model, 1)
    theirs = LayerGradCam(wrapped, wrapped.maps).attribute(pixels, torch.tensor(cases.TARGETS), relu_attributions=True)
    ours = token_gradcam(cases.case(model, pixels, cases.TARGETS), block=1)
    cases.close(ours[:, len(model.config.prefix) :], theirs.flatten(1))


# ---- the known faults


def test_fault_1_rows_are_rescaled_not_columns() -> None:
    """Every row of the rollout, with what the skip connections pass on, sums to 1: for a mean over patches as well."""
    model, pixels = cases.model(cases.MODELS["mean, no prefix"]), cases.images()
    made = cases.case(model, pixels, cases.TARGETS)
    alone = torch.full((2, 15), 1 / 15).double()
    for seen in gradient.backward(made):
        alone = alone / (1 + (seen.attention * seen.gradient).mean(1).clamp_min(0).sum(-1))
    cases.close(gradient_rollout(made).sum(1) + alone.sum(1), torch.ones(2))


def test_fault_2_discard_treats_every_image_alike_and_spares_prefix_tokens() -> None:
    model, one = cases.model({"registers": 3}), cases.images(1)
    made = cases.case(model, one.repeat(3, 1, 1, 1), 4)
    scores = gradient_rollout(made, discard=0.95)
    cases.close(scores, gradient_rollout(cases.case(model, one, 4), discard=0.95).expand(3, -1))
    plain = gradient_rollout(made)
    assert ((scores[:, 1:4] > 0) == (plain[:, 1:4] > 0)).all()
    assert (scores[:, 4:] == 0).sum() > (plain[:, 4:] == 0).sum()


@each_method
def test_fault_3_each_gradient_meets_the_attention_of_its_own_block(method: Any) -> None:
    """A block that adds nothing counts for nothing, wherever it stands."""
    for nothing in range(3):
        model, pixels = cases.model({}), cases.images()
        with torch.no_grad():
            model.blocks[nothing].attn.proj.weight.zero_()
        kinds = [seen.gradient.any() for seen in gradient.backward(cases.case(model, pixels, cases.TARGETS))]
        assert [bool(kind) for kind in kinds] == [block != nothing for block in (2, 1, 0)]
        if method.name == "attention_gradcam":
            several = [
                cases.case(model, pixels, target) for target in range(6)
            ]  # where all is negative, nothing is left
            found = [any(method.function(made, block=block).any() for made in several) for block in range(3)]
            assert found == [block != nothing for block in range(3)]


@each_method
@models
def test_faults_4_to_6_images_do_not_mix_and_a_long_image_keeps_its_shape(changes: dict, method: Any) -> None:
    """Batch equals one by one in any order, before and after others; the grid is 3 x 5, with any prefix."""
    model, pixels, targets = cases.model(changes), cases.images(3), [3, 7, 2]
    run = method.function
    together = run(cases.case(model, pixels, targets))
    assert together.shape == (3, len(model.config.prefix) + 15)
    for image in (2, 0, 1):
        alone = run(cases.case(model, pixels[image, None], targets[image]))
        cases.close(alone, together[image, None], 1e-9)
    turned = run(cases.case(model, pixels.flip(0), targets[::-1]))
    cases.close(turned.flip(0), together, 1e-9)


@each_method
def test_fault_5_a_grid_that_the_model_was_not_made_for(method: Any) -> None:
    model, pixels = cases.model({"registers": 1}), torch.randn(1, 3, 14, 4, generator=torch.Generator().manual_seed(3))
    scores = torch.cat([method.function(cases.case(model, pixels.double(), target)) for target in range(6)])
    assert scores.shape == (6, 2 + 14)
    assert bool(scores[:, 2:].any())


@each_method
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trainable"])
def test_fault_7_frozen_and_trainable_weights_give_the_same(method: Any, frozen: bool) -> None:
    """The attention that answered is the one whose gradient is taken: no hook that may collect nothing."""
    for name in ("class token", "mean, no prefix", "attention"):
        model, pixels = cases.model(cases.MODELS[name]), cases.images()
        expected = method.function(cases.case(model, pixels, cases.TARGETS))
        model.requires_grad_(not frozen)
        with torch.no_grad():  # as a caller may have it
            ours = method.function(cases.case(model, pixels, cases.TARGETS))
        cases.close(ours, expected, 1e-12)
        assert not ours.requires_grad
        assert all(parameter.grad is None for parameter in model.parameters())


# ---- invariants


@each_method
@models
def test_a_class_that_reads_nothing_gets_nothing(changes: dict, method: Any) -> None:
    model = cases.model(changes)
    with torch.no_grad():
        for head in (model.head, model.head_dist):
            if head is not None:
                head.weight[5], head.bias[5] = 0, 0
    assert not method.function(cases.case(model, cases.images(), 5)).any()


@each_method
def test_single_precision_is_close_to_double(method: Any) -> None:
    for changes in cases.MODELS.values():
        exact = method.function(cases.case(cases.model(changes), cases.images(), cases.TARGETS))
        model, pixels = cases.model(changes, torch.float32), cases.images(dtype=torch.float32)
        ours = method.function(cases.case(model, pixels, cases.TARGETS))
        assert ours.dtype == torch.float32
        cases.close(ours, exact, 1e-3)


@each_method
def test_the_trace_is_read_and_left_as_it_was(method: Any) -> None:
    """The model does not run again from the pixels, and what is kept of its run has no gradient afterwards."""
    made = cases.case(cases.model({}), cases.images(), cases.TARGETS)
    expected = method.function(made)
    blank = Case(made.model, torch.zeros_like(made.images), made.resolved, made.trace)
    cases.close(method.function(blank), expected, 1e-12)
    for block in range(3):
        assert not made.trace.stream(block).requires_grad
    assert not made.trace.tokens.requires_grad


def test_one_block_of_attention_is_in_memory_at_a_time() -> None:
    made = cases.case(cases.model({"depth": 7}), cases.images(), cases.TARGETS)
    seen = 0
    for one in gradient.backward(made):
        assert one.attention.shape == one.gradient.shape == (2, 5, 16, 16)
        assert not one.attention.requires_grad
        seen += 1
    assert seen == 7


def test_a_model_of_one_block() -> None:
    """Where the class token alone is read, Grad-CAM of tokens falls back to those that enter the only block."""
    made = cases.case(cases.model({"depth": 1}), cases.images(), cases.TARGETS)
    for method in METHODS.values():
        assert method.function(made).any()


# ---- refusals


@pytest.mark.parametrize(
    ("method", "options", "facts"),
    [
        (gradient_rollout, {"discard": 1.0}, ["discard", "1.0"]),
        (gradient_rollout, {"residual": -0.1}, ["residual", "-0.1"]),
        (attention_gradcam, {"block": 3}, ["0..2", "3"]),
        (token_gradcam, {"block": -4}, ["-3", "-4"]),
        (token_gradcam, {"block": 1.0}, ["1.0"]),
        (legrad, {"start": "first"}, ["'first'"]),
        (legrad, {"pooling": "all"}, ["tokens", "'all'"]),
    ],
)
def test_options_that_make_no_sense_are_refused(method: Any, options: dict, facts: list[str]) -> None:
    made = cases.case(cases.model({}), cases.images(), 3)
    with pytest.raises(ExplainError) as caught:
        method(made, **options)
    for fact in facts:
        assert fact in str(caught.value)


@each_method
def test_a_model_without_classifier_is_refused(method: Any) -> None:
    made = cases.case(cases.model({"classes": 0}), cases.images())
    assert isinstance(made.model.config, ViTConfig)
    with pytest.raises(ExplainError, match="value_attention"):
        method.function(made)
