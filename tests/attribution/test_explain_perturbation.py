"""Perturbation methods, against captum, integrals and Shapley values by definition."""

import itertools
import math
import re

import explain_cases as cases
import numpy as np
import pytest
import tiny
import torch
from captum.attr import Occlusion
from pairwise import pairs
from torch import Tensor

from vitviz.attribution import perturbation
from vitviz.attribution.baselines import baseline_images
from vitviz.attribution.inputs import Method
from vitviz.attribution.perturbation import input_gradient, integrated_gradients, kernel_shap, occlusion, superpixels
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
PATCH, ROWS, COLUMNS = 2, 3, 5
PLACES = list(itertools.product(range(ROWS), range(COLUMNS)))
BASELINES = ["zero", "mean", "black", "blur"]


def area(row: int, column: int) -> tuple[slice, slice, slice]:
    """The pixels of a patch in (channels, H, W)."""
    return np.s_[:, PATCH * row : PATCH * (row + 1), PATCH * column : PATCH * (column + 1)]


def by_patch(pixels: Tensor) -> Tensor:
    """(channels, H, W) -> sums over each patch, one after the other (gh * gw,)."""
    return torch.stack([pixels[area(row, column)].sum() for row, column in PLACES])


# ---- each method


@cases.kinds
def test_input_gradient_is_the_gradient_of_the_pixels(kind: str) -> None:
    model, images = cases.model(kind), cases.images()
    prefix = len(model.config.prefix)
    for target, against in ((cases.TARGETS, None), (None, (5, 11))):
        ours = input_gradient(cases.case(model, images, target, against))
        for image, label in enumerate(target or [5, 5]):
            pixels = images[image, None].clone().requires_grad_()
            logits = model(pixels)[0]
            slope = torch.autograd.grad(logits[label] - (logits[11] if against else 0), pixels)[0][0]
            cases.close(ours[image, prefix:], by_patch(slope.abs()))


@pytest.mark.parametrize(("kind", "baseline"), list(zip(tiny.KINDS, itertools.cycle(BASELINES))))
def test_integrated_gradients_are_the_integral(kind: str, baseline: str) -> None:
    model, images = cases.known(kind), cases.images()
    base, prefix = baseline_images(model, images, baseline), len(model.config.prefix)
    ours = integrated_gradients(cases.case(model, images, contrast=(5, 11)), steps=6, batch=4, baseline=baseline)
    for image in range(2):
        total, way = torch.zeros_like(images[image]), images[image] - base[image]
        for place, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
            pixels = (base[image] + (place + 1) / 2 * way).requires_grad_()
            logits = model(pixels[None])[0]
            total += weight / 2 * torch.autograd.grad(logits[5] - logits[11], pixels)[0]
        cases.close(ours[image, prefix:], by_patch(total * way))
        assert not ours[image, :prefix].any()


@pytest.mark.parametrize(
    ("kind", "baseline", "size"), pairs(list(tiny.KINDS), BASELINES, [(1, None), (2, 1), (2, 2), (3, 2)])
)
def test_occlusion_is_captums(kind: str, baseline: str, size: tuple[int, int | None]) -> None:
    (window, stride), model, images = size, cases.known(kind), cases.images()
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
        cases.close(ours[image, len(model.config.prefix) :], by_patch(theirs[image, :1]) / PATCH**2)


def shapley(model: ViT, image: Tensor, base: Tensor, squares: Tensor, label: int) -> list[float]:
    """By definition: what a square adds, averaged over all orders in which squares may come."""
    count = int(squares.max()) + 1
    where = squares.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    chosen = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)))  # every set of squares
    shown = chosen[:, where][:, None].double()  # (2^F, 1, H, W)
    values = model(shown * image + (1 - shown) * base)[:, label]
    value = dict(zip(map(tuple, chosen.int().tolist()), values.tolist(), strict=True))
    added = [0.0] * count
    for order in itertools.permutations(range(count)):
        seen = [0] * count
        for square in order:
            before = value[tuple(seen)]
            seen[square] = 1
            added[square] += (value[tuple(seen)] - before) / math.factorial(count)
    return added


@pytest.mark.parametrize(
    ("kind", "baseline", "superpixel", "samples", "error"),
    [
        *(("registers, rotary", baseline, 3, 40, 1e-5) for baseline in BASELINES),
        ("class token", "zero", 2, 2000, 0.04),
        ("mean, no prefix", "mean", 2, 2000, 0.04),
    ],
)
def test_kernel_shap_finds_shapley_values(
    kind: str, baseline: str, superpixel: int, samples: int, error: float
) -> None:
    """Two squares: exact. Six: as near as so many draws come. Their sum is what the score loses."""
    model, image = cases.known(kind), cases.images(1)
    made, prefix = cases.case(model, image, 3), len(model.config.prefix)
    ours = kernel_shap(made, superpixel=superpixel, samples=samples, batch=200, baseline=baseline)[0]
    squares, count = superpixels((ROWS, COLUMNS), superpixel)
    expected = shapley(model, image[0], baseline_images(model, image, baseline)[0], squares, 3)
    assert count == len(expected)
    values = [float(ours[prefix:][squares.flatten() == square].sum()) for square in range(count)]
    cases.close(torch.tensor(values), torch.tensor(expected), error)


def test_kernel_shap_says_how_well_it_is_known() -> None:
    """Maps of several seeds correlate about as the note of one says."""
    said, maps, made = [], [], cases.case(cases.model(), cases.images(1), 3)
    for seed in range(6):
        made.notes.clear()
        maps.append(kernel_shap(made, samples=300, seed=seed)[0])
        said.append(float(re.search(r"300 samples: two such maps correlate about ([\d.]+)\.", made.notes[0])[1]))
    correlations = torch.corrcoef(torch.stack(maps))[~torch.eye(6, dtype=torch.bool)]
    assert abs(float(correlations.mean()) - sum(said) / 6) < 0.15
    made.notes.clear()
    kernel_shap(made, samples=2000)
    assert float(made.notes.pop().split()[-1][:-1]) > 0.9
    first, again, other = (kernel_shap(made, samples=60, seed=seed) for seed in (0, 0, 1))
    assert made.notes == []
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_squares_are_as_small_as_their_number_allows() -> None:
    for grid, side, count in (((3, 5), 1, 15), ((8, 8), 2, 16), ((9, 8), 2, 20), ((16, 16), 4, 16), ((37, 50), 10, 20)):
        squares, number = superpixels(grid)
        assert (number, squares.shape) == (count, grid)
        assert torch.equal(squares.flatten().unique(), torch.arange(count))
        for row, column in itertools.product(range(grid[0]), range(grid[1])):
            assert squares[row, column] == squares[row // side * side, column // side * side]


def test_subsets_come_with_their_complements_and_in_the_right_sizes() -> None:
    subsets = perturbation.draw_subsets(6, 5002, 0)
    assert subsets[0].all()
    assert not subsets[1].any()
    assert torch.equal(subsets[2::2], ~subsets[3::2])
    sizes = subsets[2:].sum(1).bincount(minlength=7)[1:6] / 5000
    expected = torch.tensor([1 / (k * (6 - k)) for k in range(1, 6)])
    cases.close(sizes, expected / expected.sum(), 0.05)
    assert perturbation.draw_subsets(6, 9, 0).shape == (9, 6)


@pytest.mark.parametrize("method", [method for method in perturbation.METHODS if "batch" in method.options])
def test_the_size_of_batches_changes_nothing(method: Method) -> None:
    made, options = cases.case(cases.model(), cases.images(), cases.TARGETS), cases.FEW.get(method.name, {})
    expected = method.function(made, **options)
    for batch in (1, 4, 99):
        cases.close(method.function(made, **options, batch=batch), expected, 1e-6)
