"""Test class-specific methods against their formulas on the reference model, captum, and definitions."""

import copy
import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import explain_cases as cases
import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
import torch.nn.functional as F
from captum.attr import Occlusion
from pairwise import pairs
from scipy.stats import spearmanr
from torch import Tensor

from vitviz.attribution import gradient, perturbation
from vitviz.attribution.baselines import baseline_images
from vitviz.attribution.gradient import attention_gradcam, gae, gradient_rollout, legrad, token_gradcam
from vitviz.attribution.inputs import Method
from vitviz.attribution.perturbation import input_gradient, integrated_gradients, kernel_shap, occlusion, superpixels
from vitviz.attribution.registry import METHODS, score_patches
from vitviz.attribution.relevance import attn_lrp, transformer_lrp
from vitviz.attribution.targets import ExplainError
from vitviz.explorer import Explorer
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")


class Graph:
    """Reference run of one image, with the gradients of its score."""

    def __init__(self, model: ViT, image: Tensor, target: int, against: int | None = None) -> None:
        self.model, self.image, self.target, self.against = model, image[None], target, against
        run = reference.run(model, self.image)
        score = self.score(run.logits.tensor)
        self.attentions = [attention.tensor for attention in run.attentions]  # L x (1, H, N, N)
        self.leaving = run.leaving  # L x (1, N, D)
        pools = [pool.tensor for pool in run.pools]
        gradients, self.slopes = self.of(score, [*self.attentions, *pools]), self.of(score, self.leaving)
        depth = len(self.attentions)
        self.gradients = gradients[:depth]
        self.pools = [(a[0, :, 0].detach(), g[0, :, 0]) for a, g in zip(pools, gradients[depth:], strict=True)]

    def score(self, logits: Tensor) -> Tensor:
        return logits[0, self.target] - (0 if self.against is None else logits[0, self.against])

    @staticmethod
    def of(score: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        gradients = torch.autograd.grad(score, tensors, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(tensors, gradients, strict=True)]

    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        return [(a[0].detach(), g[0]) for a, g in zip(self.attentions, self.gradients, strict=True)]


def through_pooling(rows: Tensor, pools: list[Tensor], residual: float | None = None) -> Tensor:
    """Return how strongly attention pooling reads each token: the product of its attention matrices."""
    start = torch.cat([1 - rows.sum(0, keepdim=True), 0 * rows])  # the query, then the tokens
    flow = start
    for row in reversed(pools):
        matrix = torch.eye(len(start)).double()
        row = F.pad(row, (len(start) - len(row), 0))
        if residual is None:
            matrix[0] += row
        else:
            matrix[0] = residual * matrix[0] + (1 - residual) * row
            matrix[0] /= matrix[0].sum()
        flow = flow @ matrix
    return flow[1:] * (1.0 if residual is None or not pools else start[0] / flow[1:].sum())


@functools.cache
def graph(kind: str, image: int, target: int, against: int | None = None) -> Graph:
    return Graph(cases.model(kind), cases.images()[image], target, against)


def check(method: Any, kind: str, formula: Callable[..., Tensor], tolerance: float = 1e-5, **options: Any) -> None:
    """Assert that a method on a batch equals the formula on each image, for targets and for a contrast."""
    model, pixels = cases.model(kind), cases.images()
    for target, contrast in ((cases.TARGETS, None), (None, (5, 11))):
        ours = method(cases.case(model, pixels, target, contrast), **options)
        labels = [contrast] * 2 if contrast else [(label,) for label in cases.TARGETS]
        expected = [formula(graph(kind, image, *goal)) for image, goal in enumerate(labels)]
        cases.close(ours, torch.stack(expected), tolerance)
        assert contrast or float(ours.max()) > 0


@pytest.mark.parametrize("options", [{}, {"discard": 0.4}, {"residual": 0.2, "discard": 0.8}], ids=str)
@cases.kinds
def test_gradient_rollout_matches_product_of_matrices(kind: str, options: dict[str, float]) -> None:
    """Check that rows are rescaled along the last axis, per image, without the path through skip connections only."""
    discard, residual = options.get("discard", 0.0), options.get("residual", 0.5)

    def formula(graph: Graph) -> Tensor:
        prefix, count = len(graph.model.config.prefix), graph.attentions[0].shape[-1]
        product = skipped = torch.eye(count).double()
        for attention, slope in graph.blocks():
            fused = (attention * slope).mean(0).clamp(min=0).numpy()
            threshold = np.sort(fused, axis=None)[int(discard * fused.size)] if discard else 0
            for row in fused:
                strongest = int(row.argmax())
                for column in range(prefix, count):
                    if row[column] < threshold and column != strongest:
                        row[column] = 0
            mixed = (1 - residual) * torch.from_numpy(fused) + residual * torch.eye(count)
            total = mixed.sum(dim=1, keepdim=True)
            product = (mixed / total) @ product
            skipped = (residual * torch.eye(count) / total) @ skipped
        rows = cases.rows_read(graph.model)
        pools = [(pool * slope).mean(0).clamp(min=0) for pool, slope in graph.pools]
        return rows @ (product - skipped) + through_pooling(rows, pools, residual) @ product

    check(gradient_rollout, kind, formula, **options)


@cases.kinds
def test_gae_matches_relevance_matrix(kind: str) -> None:
    def formula(graph: Graph) -> Tensor:
        start = relevance = torch.eye(graph.attentions[0].shape[-1]).double()
        for attention, slope in graph.blocks():
            relevance = relevance + (attention * slope).clamp(min=0).mean(0) @ relevance
        rows, pools = cases.rows_read(graph.model), [(a * slope).clamp(min=0).mean(0) for a, slope in graph.pools]
        return rows @ (relevance - start) + through_pooling(rows, pools) @ relevance

    check(gae, kind, formula)


@cases.kinds
def test_attention_gradcam_is_attention_weighted_by_the_mean_gradient(kind: str) -> None:
    def formula(graph: Graph, block: int) -> Tensor:
        rows, prefix = cases.rows_read(graph.model), len(graph.model.config.prefix)
        rows = rows + through_pooling(rows, [pool.mean(0) for pool, _ in graph.pools], 0.5)
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
            # The score does not depend on the last block's patches.
            assert not token_gradcam(cases.case(cases.model(kind), cases.images(), 3), block=-1).any()
            continue
        check(token_gradcam, kind, functools.partial(formula, block=block), block=block)


@cases.kinds
def test_legrad_sums_gradients_of_the_score_after_each_block(kind: str) -> None:
    def formula(graph: Graph, start: int = 0, pooling: str = "model") -> Tensor:
        total = 0
        for attention, leaving in list(zip(graph.attentions, graph.leaving, strict=True))[start:]:
            if pooling == "tokens":  # pooled by the mean over all tokens
                pools, logits = [], graph.model.head(graph.model.norm(leaving).mean(1))
            else:
                _, pools, value = reference.read(reference.Tape(), graph.model, reference.Value(leaving))
                logits = value.tensor
            for slope in Graph.of(graph.score(logits), [pool.tensor for pool in pools] or [attention]):
                rows = slope[0, :, :1] if pools else slope[0]
                total = total + rows[..., -leaving.shape[1] :].clamp(min=0).mean((0, 1))
        return total

    for start in (0, -2):
        check(legrad, kind, functools.partial(formula, start=start), start=start)
    if "attention" in kind:
        with pytest.raises(ExplainError, match="attention pooling, got 'tokens'"):
            legrad(cases.case(cases.model(kind), cases.images(), 3), pooling="tokens")
    if kind == "class token":
        check(legrad, kind, functools.partial(formula, pooling="tokens"), pooling="tokens")


def test_gradient_methods_work_with_one_block() -> None:
    """Grad-CAM of tokens then uses the input of the only block."""
    case = cases.case(cases.model(depth=1), cases.images(), cases.TARGETS)
    for method in gradient.METHODS:
        assert method.function(case).any(), method.name


# ---- relevance, by the rules of the authors' programs


@cases.kinds
def test_transformer_lrp_matches_the_authors_rules(kind: str) -> None:
    """Compare the rows that the classifier reads, without the identity. Fixed positions have single precision."""

    def formula(graph: Graph, start: int) -> Tensor:
        tape, config = reference.CheferTape(), graph.model.config
        run = reference.run(graph.model, graph.image, tape)
        attentions = [*run.attentions, *run.pools]
        slopes = Graph.of(graph.score(run.logits.tensor), [attention.tensor for attention in attentions])
        tape.rewind(run.logits, torch.eye(config.classes)[graph.target][None].double())
        steps = [
            (slope * attention.relevance).clamp(min=0)[0].mean(0)
            for attention, slope in zip(attentions, slopes, strict=True)
        ]
        start_matrix = joint = torch.eye(run.tokens.tensor.shape[1]).double()
        for step in steps[start : config.depth]:
            joint = joint + step @ joint
        rows, pools = cases.rows_read(graph.model), [step[0] for step in steps[config.depth :]]
        return rows @ (joint - start_matrix) + through_pooling(rows, pools) @ joint

    for start in (0, 2):
        check(transformer_lrp, kind, functools.partial(formula, start=start), 5e-5, start=start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [method for method in METHODS.values() if method.double], ids=lambda each: each.name)
@cases.kinds
def test_methods_in_double_precision_do_not_depend_on_the_models_precision(
    kind: str, method: Method, dtype: torch.dtype
) -> None:
    """Compare the maps of a model in single or half precision with those of the same weights in double precision."""
    model, pixels = cases.model(kind, dtype), cases.images(dtype=dtype)
    before = [parameter.clone() for parameter in model.parameters()]
    expected = method.function(cases.case(copy.deepcopy(model).double(), pixels.double(), cases.TARGETS))
    scores = method.function(cases.case(model, pixels, cases.TARGETS))
    cases.close(scores, expected, 1e-6)
    assert scores.dtype == torch.float32
    assert all(
        parameter.dtype == dtype and torch.equal(parameter, weights) and parameter.grad is None
        for parameter, weights in zip(model.parameters(), before, strict=True)
    )


def test_single_precision_orders_patches_as_double_precision_does() -> None:
    """Compare all fast methods with trained weights, whose residual sums nearly cancel."""
    view = Explorer("vit-cifar10", device="cpu").open("examples/koala.jpg")
    exact, correlations = copy.deepcopy(view.model).double(), {}
    for name in (name for name, method in METHODS.items() if not method.slow):
        target = view.best(1)[0] if METHODS[name].class_specific else None
        single, double = (
            score_patches(model, view.images.to(dtype), target, name).flatten()
            for model, dtype in ((view.model, torch.float32), (exact, torch.float64))
        )
        correlations[name] = spearmanr(single, double).statistic
    assert min(correlations.values()) > 0.9999, correlations


GAMMAS = {"qkv": 0.1, "proj": 0.2, "mlp": 0.3, "head": 0.4}


@pytest.mark.parametrize("gammas", [{}, GAMMAS], ids=["epsilon", "gamma"])
@cases.kinds
def test_attn_lrp_matches_the_papers_rules(kind: str, gammas: dict[str, float]) -> None:
    model, images = cases.model(kind), cases.images()
    case, options = cases.case(model, images, cases.TARGETS), {f"gamma_{name}": gamma for name, gamma in gammas.items()}
    paper = attn_lrp(case, conserve=False, **options)
    conserved = attn_lrp(case, **options)
    constant = attn_lrp(case, conserve=False, softmax="constant", **options)
    prefix = len(model.config.prefix)
    for index, label in enumerate(cases.TARGETS):

        def propagate(index: int = index, label: int = label, **rules: Any) -> tuple[Tensor, float, float]:
            """Return the relevance of the first block's input tokens (N,), the absorbed relevance, and the logit."""
            tape = reference.AttnTape(**rules, gammas=gammas)
            run = reference.run(model, images[index, None], tape)
            logit = run.logits.tensor[0, label]
            tape.rewind(run.logits, torch.zeros_like(run.logits.tensor).index_fill(1, torch.tensor(label), logit))
            return run.tokens.relevance[0].sum(-1).detach(), tape.booked, float(logit)

        cases.close(paper[index], propagate(passing=False)[0], 2e-5)
        cases.close(constant[index], propagate(constant=True)[0], 2e-5)
        expected, booked, logit = propagate(passing=True)  # the classifier's bias reaches the tokens
        assert float(expected.sum()) + booked == pytest.approx(logit, rel=1e-5)
        expected[: prefix or None] += booked / (prefix or len(expected))  # to prefix tokens, else to all patches
        cases.close(conserved[index], expected, 2e-5)


def test_epsilon_absorbs_relevance() -> None:
    case = cases.case(cases.model(), cases.images(), cases.TARGETS)
    without_epsilon, small, large = (attn_lrp(case, conserve=False, epsilon=epsilon) for epsilon in (0.0, 1e-12, 0.1))
    assert not torch.allclose(without_epsilon, large)
    torch.testing.assert_close(without_epsilon, small)


# ---- perturbation

BASELINES = ["zero", "mean", "black", "blur"]


def by_patch(pixels: Tensor) -> Tensor:
    """Sum over each patch: (B, channels, H, W) -> (B, gh * gw)."""
    return F.avg_pool2d(pixels, cases.PATCH, divisor_override=1).sum(1).flatten(1)


@cases.kinds
def test_input_gradient_sums_pixel_gradients(kind: str) -> None:
    model, images = cases.model(kind), cases.images()
    for target, contrast in ((cases.TARGETS, None), (None, (5, 11))):
        case = cases.case(model, images, target, contrast)
        pixels = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(case.target.score(model(pixels)).sum(), pixels)
        cases.close(input_gradient(case)[:, len(model.config.prefix) :], by_patch(slope.abs()))


@pytest.mark.parametrize(("kind", "baseline"), list(zip(tiny.KINDS, itertools.cycle(BASELINES))))
def test_integrated_gradients_match_the_integral(kind: str, baseline: str) -> None:
    model, images = cases.known(kind), cases.images()
    case, base = cases.case(model, images, contrast=(5, 11)), baseline_images(model, images, baseline)
    ours, total = integrated_gradients(case, steps=6, batch=4, baseline=baseline), torch.zeros_like(images)
    for place, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        pixels = (base + (place + 1) / 2 * (images - base)).requires_grad_()
        total += weight / 2 * torch.autograd.grad(case.target.score(model(pixels)).sum(), pixels)[0]
    cases.close(ours[:, len(model.config.prefix) :], by_patch(total * (images - base)))


@pytest.mark.parametrize(
    ("kind", "baseline", "size"), pairs(list(tiny.KINDS), BASELINES, [(1, None), (2, 1), (2, 2), (3, 2)])
)
def test_occlusion_matches_captum(kind: str, baseline: str, size: tuple[int, int | None]) -> None:
    (window, stride), model, images = size, cases.known(kind), cases.images()
    ours = occlusion(cases.case(model, images, cases.TARGETS), window=window, stride=stride, baseline=baseline)
    base, side, step = baseline_images(model, images, baseline), window * cases.PATCH, (stride or window) * cases.PATCH
    expected = Occlusion(model).attribute(images, (3, side, side), (3, step, step), base, torch.tensor(cases.TARGETS))
    cases.close(ours[:, len(model.config.prefix) :], by_patch(expected[:, :1]) / cases.PATCH**2)


def shapley(model: ViT, image: Tensor, base: Tensor, squares: Tensor, label: int) -> Tensor:
    """Compute Shapley values by definition: mean contribution of a square over all orders."""
    count = int(squares.max()) + 1
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count))).double()  # every set of squares
    masks = sets[:, squares.repeat_interleave(cases.PATCH, 0).repeat_interleave(cases.PATCH, 1)][:, None]
    values = model(masks * image + (1 - masks) * base)[:, label]  # (2^F,)
    shares = torch.tensor([1 / (count * math.comb(count - 1, int(size))) for size in range(count)]).double()
    contributions = []
    for square in range(count):
        has = sets[:, square] == 1
        contributions.append(shares[sets[~has].sum(1).long()] @ (values[has] - values[~has]))
    return torch.stack(contributions)


@pytest.mark.parametrize(
    ("kind", "baseline", "superpixel", "samples", "error"),
    [
        *(("registers, rotary", baseline, 3, 40, 1e-5) for baseline in BASELINES),
        ("class token", "zero", 2, 2000, 0.04),
        ("mean, no prefix, root-mean-square norms", "mean", 2, 2000, 0.04),
    ],
)
def test_kernel_shap_finds_shapley_values(
    kind: str, baseline: str, superpixel: int, samples: int, error: float
) -> None:
    """Check that with two squares the values are exact, with six they are approximate."""
    model, image = cases.known(kind), cases.images(1)
    case, prefix = cases.case(model, image, 3), len(model.config.prefix)
    ours = kernel_shap(case, superpixel=superpixel, samples=samples, batch=200, baseline=baseline)[0]
    squares, count = superpixels(cases.GRID, superpixel)
    expected = shapley(model, image[0], baseline_images(model, image, baseline)[0], squares, 3)
    values = torch.zeros(count).double().index_add(0, squares.flatten(), ours[prefix:])
    cases.close(values, expected, error)


def test_kernel_shap_estimates_agreement_between_seeds() -> None:
    """Check that the correlation of maps of several seeds is close to the estimate in the note."""
    estimates, maps, case = [], [], cases.case(cases.model(), cases.images(1), 3)
    for seed in range(6):
        case.notes.clear()
        maps.append(kernel_shap(case, samples=300, seed=seed)[0])
        estimates.append(
            float(
                re.search(r"300 samples; the correlation between two such maps is about ([\d.]+)\.", case.notes[0])[1]
            )
        )
    correlations = torch.corrcoef(torch.stack(maps))[~torch.eye(6, dtype=torch.bool)]
    assert abs(float(correlations.mean()) - sum(estimates) / 6) < 0.15
    case.notes.clear()
    kernel_shap(case, samples=2000)
    assert float(case.notes.pop().split()[-1][:-1]) > 0.9
    first, again, other = (kernel_shap(case, samples=60, seed=seed) for seed in (0, 0, 1))
    assert case.notes == []
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_superpixels_are_as_small_as_allowed() -> None:
    for grid, side, count in (((3, 5), 1, 15), ((8, 8), 2, 16), ((9, 8), 2, 20), ((16, 16), 4, 16), ((37, 50), 10, 20)):
        squares, number = superpixels(grid)
        assert (number, squares.shape) == (count, grid)
        assert torch.equal(squares.flatten().unique(), torch.arange(count))
        for row, column in itertools.product(range(grid[0]), range(grid[1])):
            assert squares[row, column] == squares[row // side * side, column // side * side]


def test_subsets_are_paired_and_follow_the_size_distribution() -> None:
    subsets = perturbation.draw_subsets(6, 5002, 0)
    assert subsets[0].all()
    assert not subsets[1].any()
    assert torch.equal(subsets[2::2], ~subsets[3::2])
    sizes = subsets[2:].sum(1).bincount(minlength=7)[1:6] / 5000
    expected = torch.tensor([1 / (k * (6 - k)) for k in range(1, 6)])
    cases.close(sizes, expected / expected.sum(), 0.05)
    assert perturbation.draw_subsets(6, 9, 0).shape == (9, 6)


@pytest.mark.parametrize("method", [method for method in perturbation.METHODS if "batch" in method.options])
def test_batch_size_does_not_change_scores(method: Method) -> None:
    case, options = cases.case(cases.model(), cases.images(), cases.TARGETS), cases.FEW.get(method.name, {})
    expected = method.function(case, **options)
    for batch in (1, 4, 99):
        cases.close(method.function(case, **options, batch=batch), expected, 1e-6)
