"""Attribute by pixels: gradients and hidden patches with captum, and Kernel SHAP.

Prefix tokens have no pixels, so their scores are zero. Hidden patches show a baseline of `baselines.baseline_images`,
by default "zero", the mean color of the training data. The choice changes the scores, so it is recorded with them.

Shapes: B images, C channels, N tokens = P prefix tokens followed by gh x gw patches of p x p pixels.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.attribution.baselines import Baseline, baseline_images, pixel_mask
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError, Target
from vitviz.extras import extra
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase

Score = Callable[[Tensor], Tensor]


def input_gradient(case: Case) -> Tensor:
    """Sum the absolute gradient of the score over each patch's pixels (Simonyan et al. 2014).

    Color channels are summed; the paper takes their maximum.
    """
    with extra("explain"):
        from captum.attr import Saliency

    target, model = case.target, case.model
    pixels = case.images.detach().clone().requires_grad_()
    gradient = Saliency(lambda images: target.score(target.outputs(model, images))).attribute(pixels, abs=True)
    return _to_tokens(case, gradient)


def integrated_gradients(case: Case, *, steps: int = 32, baseline: Baseline = "zero", batch: int = 8) -> Tensor:
    """Sum integrated gradients (Sundararajan et al. 2017) from a baseline to the image over each patch.

    The scores sum to score(image) - score(baseline), up to the error of numerical integration.

    Args:
        case: images, model and target.
        steps: number of integration points (Gauss-Legendre).
        baseline: start of the path: "zero", "mean", "black" or "blur".
        batch: number of points per forward pass.
    """
    with extra("explain"):
        from captum.attr import IntegratedGradients

    _at_least(1, steps=steps, batch=batch)
    attributions = []
    for image, base, score in _one_by_one(case, baseline):
        method = IntegratedGradients(score)
        attributions.append(method.attribute(image, base, n_steps=steps, internal_batch_size=batch))
    return _to_tokens(case, torch.cat(attributions))


def occlusion(
    case: Case, *, window: int = 1, stride: int | None = None, baseline: Baseline = "zero", batch: int = 16
) -> Tensor:
    """Return the drop of the score when a window of patches is hidden (Zeiler and Fergus 2014).

    Args:
        case: images, model and target.
        window: side length in patches. Each patch gets its window's score, or the mean of overlapping windows.
        stride: step between windows in patches; at most, and by default, the window's side.
        baseline: pixels of hidden patches: "zero", "mean", "black" or "blur".
        batch: number of windows per forward pass.
    """
    with extra("explain"):
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
    attributions = []
    for image, base, score in _one_by_one(case, baseline):
        shift = (channels, stride * side, stride * side)
        shape = (channels, window * side, window * side)
        pixels = Occlusion(score).attribute(image, shape, shift, base, perturbations_per_eval=batch)  # (1, C, H, W)
        attributions.append(pixels[:, :1])
    return _to_tokens(case, torch.cat(attributions)) / side**2  # every pixel has the score of its window


def kernel_shap(
    case: Case,
    *,
    samples: int = 512,
    superpixel: int | None = None,
    baseline: Baseline = "zero",
    batch: int = 16,
    seed: int = 0,
) -> Tensor:
    """Estimate Shapley values of squares of patches by Kernel SHAP (Lundberg and Lee 2017).

    A square's value is divided equally among its patches; the scores sum to score(image) - score(baseline). Pairing
    samples with their complements reduces their number (Covert and Lee 2021). A note estimates the agreement between
    seeds from two halves of the samples.

    Args:
        case: images, model and target.
        samples: number of random subsets of squares, including the full and the empty one; more than the number of
            squares.
        superpixel: side length of a square in patches; squares at the right and lower edge may be smaller. By default,
            the smallest side with at most 20 squares: maps of two seeds then correlate 0.96 or more on both bundled
            models, compared with 0.55 to 0.71 for 64 squares and the same number of samples.
        baseline: pixels of hidden squares: "zero", "mean", "black" or "blur".
        batch: number of samples per forward pass.
        seed: seed of the samples, the same for each image.
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
    root[:2] = 1e3  # large weight of the full and the empty set: the values sum to their difference
    inputs = torch.cat([subsets.double(), torch.ones_like(root)], dim=1)  # (S, F + 1): the last is the intercept
    half = torch.arange(samples) // 2 % 2  # alternate pairs
    parts = [(half == part).index_fill(0, torch.arange(2), True) for part in (0, 1)]  # (S,) each
    solution, *halves = (_least_squares(inputs[rows], root[rows]) for rows in (half >= 0, *parts))  # (F, S) or (F, S')
    agreement = []
    shown = pixel_mask(subsets[:, squares], case.model.config.patch_size).to(case.images.device)  # (S, 1, H, W)
    values = []
    for image, base, score in _one_by_one(case, baseline):
        with torch.no_grad():
            scores = torch.cat([score(torch.where(masks, image, base)) for masks in shown.split(batch)])  # (S,)
        scores = scores.cpu().double()
        values.append(solution @ scores)
        first, second = (part @ scores[rows] for part, rows in zip(halves, parts, strict=True))
        agreement.append(float(torch.corrcoef(torch.stack([first, second]))[0, 1]))
    if samples >= 16 * count:  # with fewer samples, halves are unreliable
        case.notes.append(_describe_agreement(samples, agreement))
    per_patch = torch.stack(values).to(case.images) / squares.flatten().bincount().to(case.images)  # (B, count)
    patches = per_patch[:, squares.flatten().to(per_patch.device)]  # (B, count) -> (B, gh * gw)
    return F.pad(patches, (len(case.trace.prefix), 0))


def _least_squares(inputs: Tensor, root: Tensor) -> Tensor:
    """Return the least-squares solution that maps S scores to the values of F squares, weights root²: (F, S)."""
    solution: Tensor = torch.linalg.pinv(root * inputs)[:-1] * root.T
    return solution


def _describe_agreement(samples: int, halves: list[float]) -> str:
    """Estimate the correlation of maps with other samples, from the correlation r of two halves of these samples.

    With twice the samples, the correlation is 2 r / (1 + r) (Spearman 1910 and Brown 1910).
    """
    known = [2 * r / (1 + r) if r > 0 else 0.0 for r in halves if math.isfinite(r)]
    if not known:
        return ""
    correlation = sum(known) / len(known)
    return Phrase(
        "estimated-from-samples",
        "Estimated from {0} samples; the correlation between two such maps is about {1}.",
        *(f"{samples:,}", f"{correlation:.2f}"),
    )


def superpixels(grid: tuple[int, int], side: int | None = None, maximum: int = 20) -> tuple[Tensor, int]:
    """Return the index of each patch's square, (gh, gw) long, and the number of squares.

    `side` is the side length of a square in patches; `None` for the smallest side with at most `maximum` squares.
    """
    if side is None:
        side = next(n for n in range(1, max(grid) + 1) if math.ceil(grid[0] / n) * math.ceil(grid[1] / n) <= maximum)
    _at_least(1, superpixel=side)
    rows, columns = (torch.arange(count) // side for count in grid)
    across = int(columns[-1]) + 1
    return rows[:, None] * across + columns, across * (int(rows[-1]) + 1)


def draw_subsets(count: int, samples: int, seed: int) -> Tensor:
    """Draw subsets of F items with Kernel SHAP's weights, each followed by its complement: (S, F) bools.

    The first two are the full and the empty set. The probability of size k is proportional to 1 / (k (F - k)).
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.arange(1.0, count)
    pairs = (samples - 1) // 2
    drawn_sizes = 1 + torch.multinomial(1 / (sizes * (count - sizes)), pairs, replacement=True, generator=generator)
    subsets = torch.rand(pairs, count, generator=generator).argsort(1) < drawn_sizes[:, None]  # (S / 2, F)
    full = torch.ones(1, count, dtype=torch.bool)
    return torch.cat([full, ~full, torch.stack([subsets, ~subsets], 1).flatten(0, 1)])[:samples]


def _one_by_one(case: Case, baseline: Baseline) -> Iterator[tuple[Tensor, Tensor, Score]]:
    """Yield each image with its baseline, (1, C, H, W) each, and its score function, (n, C, H, W) -> (n,)."""
    target, bases = case.target, baseline_images(case.model, case.images, baseline)
    for index in range(len(case.images)):
        single = slice(index, index + 1)
        yield case.images[single].detach(), bases[single], partial(_score, case.model, target.image(index))


def _score(model: ViT, target: Target, pixels: Tensor) -> Tensor:
    return target.repeat(len(pixels)).score(target.outputs(model, pixels))


def _to_tokens(case: Case, pixels: Tensor) -> Tensor:
    """Sum pixel scores (B, C, H, W) over each patch; prefix tokens get zero: (B, N)."""
    rows, columns = case.trace.grid
    patches = pixels.detach().unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).sum((1, 3, 5))  # (B, gh, gw)
    return F.pad(patches.flatten(1), (len(case.trace.prefix), 0))  # (B, gh * gw) -> (B, N)


def _at_least(minimum: int, **options: int) -> None:
    for name, value in options.items():
        if value < minimum:
            raise ExplainError(f"Expected {name} to be at least {minimum}, got {value}. Raise it.")


METHODS = (
    Method(
        function=input_gradient,
        not_in_browser="it needs gradients of pixels, but the graphs compute those of tokens",
        title="Gradient of the pixels",
        paper="Simonyan, Vedaldi and Zisserman 2014, Deep Inside Convolutional Networks, ICLR workshop",
        about="How strongly the class score reacts to small changes of a patch's pixels.",
        cost=3.3,
        activations=16.0,
    ),
    Method(
        function=integrated_gradients,
        not_in_browser="it needs gradients of pixels, but the graphs compute those of tokens",
        title="Integrated gradients",
        paper="Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, ICML",
        about="How much each patch adds to the class score along a path from a blank picture to this one.",
        signed=True,
        cost=65.0,
        activations=150.0,
    ),
    Method(
        function=occlusion,
        title="Occlusion",
        paper="Zeiler and Fergus 2014, Visualizing and Understanding Convolutional Networks, ECCV",
        about="How much the class score falls when a patch is hidden.",
        signed=True,
        cost=257.0,
        activations=50.0,
        per_patch=True,
    ),
    Method(
        function=kernel_shap,
        not_in_browser="it runs the model 512 times, which takes minutes in a browser",
        title="Kernel SHAP",
        paper="Lundberg and Lee 2017, A Unified Approach to Interpreting Model Predictions, NeurIPS",
        about="How much each square of patches adds to the class score, averaged over subsets of other squares.",
        signed=True,
        cost=512.0,
        activations=60.0,
    ),
)
