"""Baselines by captum: against captum itself, against sums written out, and by what they promise."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import explain_cases as cases
import numpy as np
import pytest
import torch
from captum.attr import Occlusion, Saliency
from torch import Tensor

from vitviz.analysis.interventions import intervene
from vitviz.attribution import perturbation
from vitviz.attribution.baselines import baseline_images
from vitviz.attribution.inputs import Case
from vitviz.attribution.perturbation import (
    draw_subsets,
    input_gradient,
    integrated_gradients,
    kernel_shap,
    occlusion,
    superpixels,
)
from vitviz.attribution.scores import ExplainError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = {method.name: method for method in perturbation.METHODS}
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
models = pytest.mark.parametrize("changes", cases.MODELS.values(), ids=cases.MODELS.keys())
PATCH, ROWS, COLUMNS = 2, 3, 5
FEW: dict[str, dict[str, Any]] = {"kernel_shap": {"samples": 20}, "integrated_gradients": {"steps": 3}}


def run(method: Any, case: Case, **options: Any) -> Tensor:
    return method.function(case, **FEW.get(method.name, {}), **options)


def scored(model: ViT, images: Tensor, label: int, against: int | None = None) -> Tensor:
    with torch.no_grad():
        logits = model(images)
    return logits[:, label] - (0 if against is None else logits[:, against])


def by_patch(pixels: Tensor) -> Tensor:
    """(channels, H, W) -> sums over each patch, one after the other (gh * gw,)."""
    sums = [
        pixels[:, PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)].sum()
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    return torch.stack(sums)


# ---- each method


@models
def test_input_gradient_is_the_gradient_of_the_pixels(changes: dict) -> None:
    model, images = cases.model(changes), cases.images()
    ours = input_gradient(cases.case(model, images, cases.TARGETS))
    prefix = len(model.config.prefix)
    assert not ours[:, :prefix].any()
    theirs = Saliency(model).attribute(images.clone().requires_grad_(), torch.tensor(cases.TARGETS))
    for image, label in enumerate(cases.TARGETS):
        pixels = images[image, None].clone().requires_grad_()
        slope = torch.autograd.grad(model(pixels)[0, label], pixels)[0][0]
        cases.close(ours[image, prefix:], by_patch(slope.abs()))
        cases.close(ours[image, prefix:], by_patch(theirs[image]))


def test_input_gradient_of_a_contrast_is_that_of_the_difference() -> None:
    model, images = cases.model({}), cases.images(1)
    pixels = images.clone().requires_grad_()
    logits = model(pixels)[0]
    slope = torch.autograd.grad(logits[5] - logits[11], pixels)[0][0]
    cases.close(input_gradient(cases.case(model, images, contrast=(5, 11)))[0, 1:], by_patch(slope.abs()))


@pytest.mark.parametrize("baseline", ["zero", "mean", "blur"])
@models
def test_integrated_gradients_are_complete(changes: dict, baseline: str) -> None:
    """They sum to the score of the image less that of the baseline."""
    model, images = cases.model(changes), cases.images()
    made = cases.case(model, images, cases.TARGETS)
    scores = integrated_gradients(made, steps=128, baseline=baseline, batch=64)
    base = baseline_images(made.model, made.images, baseline)
    for image, label in enumerate(cases.TARGETS):
        one = slice(image, image + 1)
        expected = scored(model, images[one], label) - scored(model, base[one], label)
        assert float(scores[image].sum()) == pytest.approx(float(expected), rel=1e-3, abs=1e-3)


def test_integrated_gradients_are_the_integral() -> None:
    model, images = cases.model({"registers": 1}), cases.images()
    ours = integrated_gradients(cases.case(model, images, contrast=(5, 11)), steps=6, batch=4)
    for image in range(2):
        total = torch.zeros_like(images[image])
        for place, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
            pixels = ((place + 1) / 2 * images[image]).requires_grad_()
            logits = model(pixels[None])[0]
            total += weight / 2 * torch.autograd.grad(logits[5] - logits[11], pixels)[0]
        cases.close(ours[image, 2:], by_patch(total * images[image]))
        assert not ours[image, :2].any()


@models
def test_occlusion_is_how_far_the_score_falls(changes: dict) -> None:
    model, images = cases.model(changes), cases.images()
    ours = occlusion(cases.case(model, images, cases.TARGETS), batch=4)
    prefix = len(model.config.prefix)
    assert not ours[:, :prefix].any()
    for image, label in enumerate(cases.TARGETS):
        whole, expected = scored(model, images[image, None], label), []
        for row, column in itertools.product(range(ROWS), range(COLUMNS)):
            hidden = images[image].clone()
            hidden[:, PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)] = 0
            expected.append(whole - scored(model, hidden[None], label))
        cases.close(ours[image, prefix:], torch.cat(expected))


@pytest.mark.parametrize("baseline", ["zero", "mean", "black", "blur"])
@pytest.mark.parametrize(("window", "stride"), [(1, None), (2, 1), (2, 2), (3, 2)])
def test_occlusion_is_captums(baseline: str, window: int, stride: int | None) -> None:
    model, images = with_pixels(cases.model({})), cases.images()
    made = cases.case(model, images, cases.TARGETS)
    ours = occlusion(made, window=window, stride=stride, baseline=baseline)
    theirs = Occlusion(model).attribute(
        images,
        (3, window * PATCH, window * PATCH),
        (3, (stride or window) * PATCH, (stride or window) * PATCH),
        baseline_images(made.model, made.images, baseline),
        torch.tensor(cases.TARGETS),
    )
    for image in range(2):
        cases.close(ours[image, 1:], by_patch(theirs[image, :1]) / PATCH**2)


def shapley(model: ViT, image: Tensor, base: Tensor, squares: Tensor, label: int) -> list[float]:
    """By definition: what a square adds, averaged over all orders in which squares may come."""
    count = int(squares.max()) + 1
    where = squares.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    chosen = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)))  # every set of squares
    shown = chosen[:, where][:, None].double()  # (2^F, 1, H, W)
    values = scored(model, shown * image + (1 - shown) * base, label)
    value = {tuple(row): float(v) for row, v in zip(chosen.int().tolist(), values, strict=True)}
    found = [0.0] * count
    for order in itertools.permutations(range(count)):
        seen = [0] * count
        for square in order:
            before = value[tuple(seen)]
            seen[square] = 1
            found[square] += (value[tuple(seen)] - before) / math.factorial(count)
    return found


@pytest.mark.parametrize(("superpixel", "samples", "error"), [(3, 40, 1e-5), (2, 2000, 0.04)])
@pytest.mark.parametrize("name", ["class token", "mean, no prefix"])
def test_kernel_shap_finds_shapley_values(name: str, superpixel: int, samples: int, error: float) -> None:
    """Two squares: exact. Six: as near as so many draws come."""
    model, image = cases.model(cases.MODELS[name]), cases.images(1)
    made, prefix = cases.case(model, image, 3), len(model.config.prefix)
    ours = kernel_shap(made, superpixel=superpixel, samples=samples, batch=200)[0]
    squares, count = superpixels((ROWS, COLUMNS), superpixel)
    expected = shapley(model, image[0], torch.zeros_like(image[0]), squares, 3)
    assert count == len(expected)
    found = [float(ours[prefix:][squares.flatten() == square].sum()) for square in range(count)]
    cases.close(torch.tensor(found), torch.tensor(expected), error)
    assert not ours[:prefix].any()


@pytest.mark.parametrize("baseline", ["zero", "mean", "black", "blur"])
def test_kernel_shap_adds_up_to_the_difference(baseline: str) -> None:
    model, images = with_pixels(cases.model({"registers": 2})), cases.images()
    made = cases.case(model, images, cases.TARGETS)
    scores, base = kernel_shap(made, samples=30, baseline=baseline), baseline_images(made.model, made.images, baseline)
    for image, label in enumerate(cases.TARGETS):
        one = slice(image, image + 1)
        expected = scored(model, images[one], label) - scored(model, base[one], label)
        assert float(scores[image].sum()) == pytest.approx(float(expected), rel=1e-3, abs=1e-3)


def test_kernel_shap_says_how_well_it_is_known() -> None:
    """Maps of several seeds correlate about as the note of one says."""
    said, maps = [], []
    for seed in range(6):
        made = cases.case(cases.model({}), cases.images(1), 3)
        maps.append(kernel_shap(made, samples=300, seed=seed)[0])
        found = re.search(r"300 samples: two such maps correlate about ([\d.]+)\.", made.notes[0])
        assert found
        said.append(float(found[1]))
    pairs = torch.corrcoef(torch.stack(maps))[~torch.eye(6, dtype=torch.bool)]
    assert abs(float(pairs.mean()) - sum(said) / 6) < 0.15
    made = cases.case(cases.model({}), cases.images(1), 3)
    kernel_shap(made, samples=2000)
    assert float(made.notes[0].split()[-1][:-1]) > 0.9
    made.notes.clear()
    kernel_shap(made, samples=60)
    assert made.notes == []


def test_kernel_shap_draws_the_same_choices_for_the_same_seed() -> None:
    made = cases.case(cases.model({}), cases.images(), 3)
    first, again, other = (kernel_shap(made, samples=20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_squares_are_as_small_as_their_number_allows() -> None:
    for grid, side, count in (((3, 5), 1, 15), ((8, 8), 2, 16), ((9, 8), 2, 20), ((16, 16), 4, 16), ((37, 50), 10, 20)):
        squares, found = superpixels(grid)
        assert (found, squares.shape) == (count, grid)
        assert torch.equal(squares.flatten().unique(), torch.arange(count))
        for row, column in itertools.product(range(grid[0]), range(grid[1])):
            assert squares[row, column] == squares[row // side * side, column // side * side]


def test_subsets_come_with_their_complements_and_in_the_right_sizes() -> None:
    subsets = draw_subsets(6, 5002, 0)
    assert subsets[0].all()
    assert not subsets[1].any()
    assert torch.equal(subsets[2::2], ~subsets[3::2])
    sizes = subsets[2:].sum(1).bincount(minlength=7)[1:6] / 5000
    expected = torch.tensor([1 / (k * (6 - k)) for k in range(1, 6)])
    cases.close(sizes, expected / expected.sum(), 0.05)
    assert draw_subsets(6, 9, 0).shape == (9, 6)


# ---- baselines


def with_pixels(model: ViT) -> ViT:
    how = Preprocess(height=6, width=10, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    model.pretrained = Pretrained(name="tiny", preprocess=how)
    return model


def test_baselines_are_those_of_interventions() -> None:
    model, images = with_pixels(cases.model({})), cases.images()
    assert not baseline_images(model, images, "zero").any()
    own = images.mean((2, 3))  # (B, 3)
    cases.close(baseline_images(model, images, "mean")[:, :, 2, 3], own)
    black = baseline_images(model, images, "black")
    cases.close(
        black * torch.tensor([0.2, 0.25, 0.5])[:, None, None], -torch.tensor([0.5, 0.4, 0.3])[:, None, None] + 0 * black
    )
    hidden = intervene(model, images, drop=itertools.product(range(ROWS), range(COLUMNS)), mode="mean").logits_after
    occluded = occlusion(cases.case(model, images[:1], 5), window=3, stride=3, baseline="mean")
    left = itertools.product(range(ROWS), range(3))  # the first window
    change = intervene(model, images[:1], drop=left, mode="mean")
    cases.close(occluded[0, 1], torch.tensor(change.logits_before[0, 5] - change.logits_after[0, 5]), 1e-4)
    cases.close(torch.tensor(hidden), model(baseline_images(model, images, "mean")).detach().double(), 1e-4)


def test_black_is_refused_where_it_is_not_known() -> None:
    made = cases.case(cases.model({}), cases.images(), 3)
    with pytest.raises(ExplainError, match="mean"):
        occlusion(made, baseline="black")


# ---- every method


@each_method
def test_images_do_not_mix(method: Any) -> None:
    model, images, targets = cases.model({"distillation_token": True}), cases.images(3), [3, 7, 2]
    together = run(method, cases.case(model, images, targets))
    assert together.shape == (3, 17)
    assert not together[:, :2].any()
    for image in (2, 0, 1):
        alone = run(method, cases.case(model, images[image, None], targets[image]))
        cases.close(alone, together[image, None], 1e-6)
    turned = run(method, cases.case(model, images.flip(0), targets[::-1]))
    cases.close(turned.flip(0), together, 1e-6)


@each_method
def test_a_class_that_reads_nothing_gets_nothing(method: Any) -> None:
    for changes in cases.MODELS.values():
        model = cases.model(changes)
        with torch.no_grad():
            for head in (model.head, model.head_dist):
                if head is not None:
                    head.weight[5], head.bias[5] = 0, 0
        assert not run(method, cases.case(model, cases.images(1), 5)).any()


@each_method
def test_what_is_signed_speaks_for_one_class_as_against_the_other(method: Any) -> None:
    model, images = cases.model({}), cases.images()
    one, other = (run(method, cases.case(model, images, contrast=pair)) for pair in ((5, 11), (11, 5)))
    cases.close(one, -other if method.signed else other)
    if method.signed:
        apart = [run(method, cases.case(model, images, label)) for label in (5, 11)]
        cases.close(one, apart[0] - apart[1], 1e-5)
        assert float(one.min()) < 0 < float(one.max())
    else:
        assert float(one.min()) >= 0


@each_method
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trainable"])
def test_images_weights_and_single_precision(method: Any, frozen: bool) -> None:
    model = cases.model({}, torch.float32).requires_grad_(not frozen)
    images = cases.images(dtype=torch.float32)
    before = images.clone()
    with torch.no_grad():  # as a caller may have it
        ours = run(method, cases.case(model, images, cases.TARGETS))
    assert torch.equal(images, before)
    assert not images.requires_grad
    assert (ours.dtype, ours.requires_grad) == (torch.float32, False)
    assert all(parameter.grad is None for parameter in model.parameters())
    cases.close(ours, run(method, cases.case(cases.model({}), cases.images(), cases.TARGETS)), 1e-3)


@pytest.mark.parametrize("batch", [1, 4, 99])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "input_gradient"])
def test_how_many_go_through_the_model_at_once_changes_nothing(name: str, batch: int) -> None:
    made = cases.case(cases.model({}), cases.images(), cases.TARGETS)
    cases.close(run(METHODS[name], made, batch=batch), run(METHODS[name], made), 1e-6)


# ---- refusals


@pytest.mark.parametrize(
    ("method", "options", "facts"),
    [
        (integrated_gradients, {"steps": 0}, ["steps", "1", "0"]),
        (integrated_gradients, {"batch": 0}, ["batch"]),
        (integrated_gradients, {"baseline": "white"}, ["blur, mean, zero, black", "'white'"]),
        (occlusion, {"window": 4}, ["3 x 5", "4"]),
        (occlusion, {"window": 2, "stride": 3}, ["stride 3"]),
        (occlusion, {"window": 1.5}, ["window", "1.5"]),
        (kernel_shap, {"samples": 16}, ["17", "16"]),
        (kernel_shap, {"superpixel": 0}, ["superpixel"]),
        (kernel_shap, {"superpixel": 5}, ["two squares"]),
        (kernel_shap, {"batch": -1}, ["batch", "-1"]),
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
    with pytest.raises(ExplainError, match="value_attention"):
        run(method, cases.case(cases.model({"classes": 0}), cases.images()))
