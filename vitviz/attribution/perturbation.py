"""Attribute from outside the model: gradients of pixels and hidden patches, by captum, and Kernel SHAP.

Prefix tokens have no pixels, so their scores are zero. A baseline is what a hidden patch looks like: "mean" is the mean
color that pixels are normalised with (zero in normalised pixels), "black" is black, "blur" is the image itself, blurred
with a standard deviation of one patch. The choice changes the scores, so it is recorded with them.

Shapes: B images, C channels, N tokens = P prefix tokens followed by gh x gw patches of p x p pixels.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.attribution.baselines import Baseline, baseline_images, pixel_mask
from vitviz.attribution.inputs import Case, Method, Target
from vitviz.attribution.scores import ExplainError
from vitviz.model.vit import ViT

Score = Callable[[Tensor], Tensor]


def input_gradient(case: Case) -> Tensor:
    """Sum the absolute gradient of the score in the pixels over each patch (Simonyan et al. 2014).

    Color channels are summed, too; that paper takes the largest of the three.
    """
    from captum.attr import Saliency

    target, model = case.target, case.model
    pixels = case.images.detach().clone().requires_grad_()
    gradient = Saliency(lambda images: target.score(model(images))).attribute(pixels, abs=True)
    return _to_tokens(case, gradient)


def integrated_gradients(case: Case, *, steps: int = 32, baseline: str = "mean", batch: int = 8) -> Tensor:
    """Sum integrated gradients (Sundararajan et al. 2017) from a baseline to the image over each patch.

    The scores sum to score(image) - score(baseline), up to the error of numerical integration.

    Args:
        case: images, model and target.
        steps: points of the integration (Gauss-Legendre).
        baseline: start of the path: "mean", "black" or "blur".
        batch: how many points go through the model at once.
    """
    from captum.attr import IntegratedGradients

    _at_least(1, steps=steps, batch=batch)
    found = []
    for image, base, score in _one_by_one(case, baseline):
        method = IntegratedGradients(score)
        found.append(method.attribute(image, base, n_steps=steps, internal_batch_size=batch))
    return _to_tokens(case, torch.cat(found))


def occlusion(
    case: Case, *, window: int = 1, stride: int | None = None, baseline: str = "mean", batch: int = 16
) -> Tensor:
    """Return how far the score falls when a window of patches is hidden (Zeiler and Fergus 2014).

    Args:
        case: images, model and target.
        window: side of the window in patches. A patch gets its window's score; where windows overlap, their mean.
        stride: patches from one window to the next, by default the window's side; not more.
        baseline: what hidden patches show: "mean", "black" or "blur".
        batch: how many hidden windows go through the model at once.
    """
    from captum.attr import Occlusion

    stride = window if stride is None else stride
    _at_least(1, window=window, stride=stride, batch=batch)
    if window > min(case.trace.grid) or stride > window:
        rows, columns = case.trace.grid
        raise ExplainError(
            f"Expected a window inside the {rows} x {columns} grid and a stride of at most the window, "
            f"got window {window} and stride {stride}. Choose smaller ones."
        )
    side, channels = case.model.config.patch_size, case.images.shape[1]
    found = []
    for image, base, score in _one_by_one(case, baseline):
        shift = (channels, stride * side, stride * side)
        shape = (channels, window * side, window * side)
        pixels = Occlusion(score).attribute(image, shape, shift, base, perturbations_per_eval=batch)  # (1, C, H, W)
        found.append(pixels[:, :1])
    return _to_tokens(case, torch.cat(found)) / side**2  # every pixel has its window's score


def kernel_shap(
    case: Case,
    *,
    samples: int = 512,
    superpixel: int | None = None,
    baseline: str = "mean",
    batch: int = 16,
    seed: int = 0,
) -> Tensor:
    """Estimate Shapley values of squares of patches by Kernel SHAP (Lundberg and Lee 2017).

    A square's value is divided equally among its patches: the scores sum to score(image) - score(baseline). Samples are
    paired with their complements, which needs far fewer of them (Covert and Lee 2021).

    Args:
        case: images, model and target.
        samples: how many random subsets of squares are run, with the full and the empty one; more than there are
            squares.
        superpixel: side of a square in patches; squares at the right and lower edge may be smaller. By default the
            smallest side that makes no more than 64 of them.
        baseline: what hidden squares show: "mean", "black" or "blur".
        batch: how many samples go through the model at once.
        seed: of the samples, the same for each image.
    """
    squares, count = superpixels(case.trace.grid, superpixel)
    _at_least(1, batch=batch)
    _at_least(count + 2, samples=samples)
    if count < 2:
        raise ExplainError(
            "Expected at least two squares of patches to sample from, got one. Set a smaller superpixel."
        )
    subsets = draw_subsets(count, samples, seed)  # (S, F)
    root = torch.ones(samples, 1).double()
    root[:2] = 1e3  # the full and the empty set count for all others together: the values sum to their difference
    inputs = torch.cat([subsets.double(), torch.ones_like(root)], dim=1)  # (S, F + 1): the last is the intercept
    solution = torch.linalg.pinv(root * inputs)[:-1] * root.T  # (F, S), weighted least squares
    shown = pixel_mask(subsets[:, squares], case.model.config.patch_size).to(case.images.device)  # (S, 1, H, W)
    found = []
    for image, base, score in _one_by_one(case, baseline):
        with torch.no_grad():
            scores = torch.cat([score(torch.where(some, image, base)) for some in shown.split(batch)])  # (S,)
        found.append(solution @ scores.cpu().double())
    each = torch.stack(found).to(case.images) / squares.flatten().bincount().to(case.images)  # (B, count)
    patches = each[:, squares.flatten().to(each.device)]  # (B, count) -> (B, gh * gw)
    return F.pad(patches, (len(case.trace.prefix), 0))


def superpixels(grid: tuple[int, int], side: int | None = None, most: int = 64) -> tuple[Tensor, int]:
    """Return the square that each patch of a grid belongs to, (gh, gw) long, and the number of squares.

    `side` is that of a square, in patches; `None` for the smallest that makes no more than `most` of them.
    """
    if side is None:
        side = next(n for n in range(1, max(grid) + 1) if math.ceil(grid[0] / n) * math.ceil(grid[1] / n) <= most)
    _at_least(1, superpixel=side)
    rows, columns = (torch.arange(count) // side for count in grid)
    across = int(columns[-1]) + 1
    return rows[:, None] * across + columns, across * (int(rows[-1]) + 1)


def draw_subsets(count: int, samples: int, seed: int) -> Tensor:
    """Draw subsets of F things as Kernel SHAP weighs them, each followed by its complement: (S, F) bools.

    The first two are the full and the empty set. A size k is drawn in proportion to 1 / (k (F - k)).
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.arange(1.0, count)
    pairs = (samples - 1) // 2
    chosen = 1 + torch.multinomial(1 / (sizes * (count - sizes)), pairs, replacement=True, generator=generator)
    some = torch.rand(pairs, count, generator=generator).argsort(1) < chosen[:, None]  # (S / 2, F)
    full = torch.ones(1, count, dtype=torch.bool)
    return torch.cat([full, ~full, torch.stack([some, ~some], 1).flatten(0, 1)])[:samples]


def hidden_images(case: Case, baseline: str) -> Tensor:
    """Return images with everything hidden: of the shape of `case.images`, normalised pixels.

    Raises:
        ExplainError: if there is no such baseline, or the value of black is unknown.
    """
    kinds: dict[str, Baseline] = {"mean": "zero", "black": "black", "blur": "blur"}
    if baseline not in kinds:
        raise ExplainError(f"Expected one of the baselines {', '.join(kinds)}, got {baseline!r}. Choose one.")
    return baseline_images(case.model, case.images, kinds[baseline])


def _one_by_one(case: Case, baseline: str) -> Iterator[tuple[Tensor, Tensor, Score]]:
    """Yield each image and its baseline, (1, C, H, W) each, and its score function: (n, C, H, W) -> (n,)."""
    target, bases = case.target, hidden_images(case, baseline)
    for index in range(len(case.images)):
        one = slice(index, index + 1)
        yield case.images[one].detach(), bases[one], partial(_score, case.model, target.image(index))


def _score(model: ViT, target: Target, pixels: Tensor) -> Tensor:
    return target.repeat(len(pixels)).score(model(pixels))


def _to_tokens(case: Case, pixels: Tensor) -> Tensor:
    """Sum scores of pixels (B, C, H, W) over each patch, zero for prefix tokens: (B, N)."""
    rows, columns = case.trace.grid
    patches = pixels.detach().unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).sum((1, 3, 5))  # (B, gh, gw)
    return F.pad(patches.flatten(1), (len(case.trace.prefix), 0))  # (B, gh * gw) -> (B, N)


def _at_least(least: int, **options: int) -> None:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ExplainError(f"Expected {name} to be a whole number of at least {least}, got {value!r}. Raise it.")


METHODS = (
    Method(
        function=input_gradient,
        title="Gradient of the pixels",
        paper="Simonyan, Vedaldi and Zisserman 2014, Deep Inside Convolutional Networks, ICLR workshop",
        about="How strongly the class reacts to small changes of a patch's pixels, in either direction.",
        cost=3.3,
    ),
    Method(
        function=integrated_gradients,
        title="Integrated gradients",
        paper="Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, ICML",
        about="What each patch adds to the class on the way from a blank picture to this one.",
        signed=True,
        cost=65.0,
    ),
    Method(
        function=occlusion,
        title="Occlusion",
        paper="Zeiler and Fergus 2014, Visualizing and Understanding Convolutional Networks, ECCV",
        about="How far the class falls when a patch is hidden.",
        signed=True,
        cost=257.0,
    ),
    Method(
        function=kernel_shap,
        title="Kernel SHAP",
        paper="Lundberg and Lee 2017, A Unified Approach to Interpreting Model Predictions, NeurIPS",
        about="What each square of patches adds to the class, averaged over random choices of the others.",
        signed=True,
        cost=512.0,
    ),
)
