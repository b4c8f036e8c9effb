"""Gradient methods against their formulas: dense matrices from a model written out in a graph of its own."""

import functools
from collections.abc import Callable
from typing import Any

import explain_cases as cases
import pytest
import reference_vit as reference
import torch
from torch import Tensor

from vitviz.attribution import gradient
from vitviz.attribution.gradient import attention_gradcam, gae, gradient_rollout, legrad, token_gradcam
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")


class Graph:
    """One image's run written out, and the gradients of its score in everything; tensors without their batch axis."""

    def __init__(self, model: ViT, image: Tensor, target: int, against: int | None = None) -> None:
        self.model, self.target, self.against = model, target, against
        run = reference.run(model, image[None])
        score = self.score(run.logits.tensor)
        self.attentions = [attention.tensor for attention in run.attentions]  # L x (1, H, N, N)
        self.leaving = run.leaving  # L x (1, N, D)
        self.gradients, self.slopes = self.of(score, self.attentions), self.of(score, self.leaving)
        self.pool = None if run.pool is None else run.pool.tensor[0, :, 0].detach()  # (H, N)
        self.pool_gradient = None if run.pool is None else self.of(score, [run.pool.tensor])[0][0, :, 0]

    def score(self, logits: Tensor) -> Tensor:
        return logits[0, self.target] - (0 if self.against is None else logits[0, self.against])

    @staticmethod
    def of(score: Tensor, wanted: list[Tensor]) -> list[Tensor]:
        gradients = torch.autograd.grad(score, wanted, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(wanted, gradients, strict=True)]

    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Attention and its gradient in each block, (H, N, N)."""
        return [(a[0].detach(), g[0]) for a, g in zip(self.attentions, self.gradients, strict=True)]


@functools.cache
def graph(kind: str, image: int, target: int, against: int | None = None) -> Graph:
    """The graph of one image of the batch: made once for the tests of all formulas."""
    return Graph(cases.model(kind), cases.images()[image], target, against)


def check(method: Any, kind: str, formula: Callable[[Graph], Tensor], **options: Any) -> None:
    """Assert that a method on a batch equals the formula on each image by itself, for targets and for a contrast."""
    model, pixels = cases.model(kind), cases.images()
    ours = method(cases.case(model, pixels, cases.TARGETS), **options)
    cases.close(ours, torch.stack([formula(graph(kind, at, label)) for at, label in enumerate(cases.TARGETS)]), 1e-5)
    assert float(ours.max()) > 0
    ours = method(cases.case(model, pixels, contrast=(5, 11)), **options)
    cases.close(ours, torch.stack([formula(graph(kind, at, 5, 11)) for at in range(len(pixels))]), 1e-5)


# ---- the formulas


@pytest.mark.parametrize("options", [{}, {"discard": 0.4}, {"residual": 0.2, "discard": 0.8}], ids=str)
@cases.kinds
def test_gradient_rollout_is_a_row_of_a_product_of_matrices(kind: str, options: dict[str, float]) -> None:
    """Gildenblat's, with the rows rescaled along the right axis and each image by itself (faults 1 to 3).

    Less what the skip connections alone pass on.
    """
    discard, residual = options.get("discard", 0.0), options.get("residual", 0.5)

    def formula(graph: Graph) -> Tensor:
        prefix, count = len(graph.model.config.prefix), graph.attentions[0].shape[-1]
        product = alone = torch.eye(count).double()
        for attention, slope in graph.blocks():
            fused = torch.stack([a * g for a, g in zip(attention, slope, strict=True)]).mean(0)
            fused[fused < 0] = 0
            least = sorted(fused.flatten().tolist())[int(discard * fused.numel())] if discard else 0
            for row in fused:
                strongest = int(row.argmax())
                for column in range(prefix, count):
                    if row[column] < least and column != strongest:
                        row[column] = 0
            mixed = (1 - residual) * fused + residual * torch.eye(count)
            total = mixed.sum(dim=1, keepdim=True)
            product = (mixed / total) @ product
            alone = (residual * torch.eye(count) / total) @ alone
        rows = cases.rows_read(graph.model)
        if graph.pool is None:
            return rows @ (product - alone)
        pooled = (graph.pool * graph.pool_gradient).mean(0).clamp(min=0)
        return rows @ (product - alone) + (1 - rows.sum()) * pooled / pooled.sum() @ product

    check(gradient_rollout, kind, formula, **options)


@cases.kinds
def test_gae_is_a_row_of_the_relevance_matrix(kind: str) -> None:
    def formula(graph: Graph) -> Tensor:
        start = relevance = torch.eye(graph.attentions[0].shape[-1]).double()
        for attention, slope in graph.blocks():
            relevance = relevance + (attention * slope).clamp(min=0).mean(0) @ relevance
        row = cases.rows_read(graph.model) @ (relevance - start)
        if graph.pool is None:
            return row
        return row + (graph.pool * graph.pool_gradient).clamp(min=0).mean(0) @ relevance

    check(gae, kind, formula)


@cases.kinds
def test_attention_gradcam_is_attention_weighted_by_the_mean_gradient(kind: str) -> None:
    def formula(graph: Graph, block: int) -> Tensor:
        rows, prefix = cases.rows_read(graph.model), len(graph.model.config.prefix)
        if graph.pool is not None:
            rows = rows + (1 - rows.sum()) * graph.pool.mean(0)
        total = torch.zeros_like(rows)
        for attention, slope in zip(*graph.blocks()[block], strict=True):
            weight = (rows @ slope)[prefix:].mean()
            total = total + weight * (rows @ attention)
        return (total / graph.model.config.heads).clamp(min=0)

    for block in (-1, 1, 0):
        check(attention_gradcam, kind, functools.partial(formula, block=block), block=block)


@cases.kinds
def test_token_gradcam_weights_channels_by_their_mean_gradient(kind: str) -> None:
    def formula(graph: Graph, block: int | None) -> Tensor:
        last = 1 if graph.model.config.pooling == "cls" else 2
        index, prefix = last if block is None else block, len(graph.model.config.prefix)
        weights = graph.slopes[index][0, prefix:].mean(0)
        return (graph.leaving[index][0] * weights).sum(1).clamp(min=0)

    for block in (-1, 1, 0, None):
        if block == -1 and cases.model(kind).config.pooling == "cls":
            # The answer does not depend on the patches that leave the last block.
            assert not token_gradcam(cases.case(cases.model(kind), cases.images(), 3), block=-1).any()
            continue
        check(token_gradcam, kind, functools.partial(formula, block=block), block=block)


@cases.kinds
def test_legrad_adds_the_gradient_of_the_answer_after_each_block(kind: str) -> None:
    def formula(graph: Graph, start: int = 0, pooling: str = "model") -> Tensor:
        total = 0
        for attention, leaving in list(zip(graph.attentions, graph.leaving, strict=True))[start:]:
            if pooling == "tokens":  # the answer as the mean over all tokens
                pool, logits = None, graph.model.head(graph.model.norm(leaving).mean(1))
            else:
                _, pool, value = reference.read(reference.Tape(), graph.model, reference.Value(leaving))
                logits = value.tensor
            wanted = attention if pool is None else pool.tensor
            total = total + Graph.of(graph.score(logits), [wanted])[0][0].clamp(min=0).mean((0, 1))
        return total

    for start in (0, -2):
        check(legrad, kind, functools.partial(formula, start=start), start=start)
    if kind == "class token":
        check(legrad, kind, functools.partial(formula, pooling="tokens"), pooling="tokens")


def test_a_model_of_one_block() -> None:
    """Where the class token alone is read, Grad-CAM of tokens falls back to those that enter the only block."""
    made = cases.case(cases.model(depth=1), cases.images(), cases.TARGETS)
    for method in gradient.METHODS:
        assert method.function(made).any(), method.name
