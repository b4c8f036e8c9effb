"""Baselines that look at the model from outside, by captum: gradients of pixels, and patches that are hidden.

Prefix tokens have no pixels, so their scores are zero. A baseline says what a hidden patch looks like: "mean" is the
mean colour that pixels are normalised with (zero in normalised pixels), "black" is black, "blur" is the image itself,
blurred with a standard deviation of one patch. All three are seen by the model as pictures of something; which one is
chosen changes the scores, so it is recorded with them.

Shapes: B images, C channels, N tokens = P prefix tokens followed by gh x gw patches of p x p pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.devices import double
from vitviz.explain.case import Case, Method, Target
from vitviz.explain.scores import ExplainError

BASELINES = ("mean", "black", "blur")

Score = Callable[[Tensor], Tensor]


def input_gradient(case: Case) -> Tensor:
    """The gradient of the score in the pixels (Simonyan et al. 2014): absolute values, added up over each patch.

    Colour channels are added up, too; that paper takes the largest of the three.
    """
    from captum.attr import Saliency

    target, model = case.target, case.model
    pixels = case.images.detach().clone().requires_grad_()
    gradient = Saliency(lambda images: target.score(model(images))).attribute(pixels, abs=True)
    return _to_tokens(case, gradient)


def integrated_gradients(case: Case, *, steps: int = 32, baseline: str = "mean", batch: int = 8) -> Tensor:
    """Integrated gradients (Sundararajan et al. 2017) from a baseline to the image, added up over each patch.

    The scores sum to score(image) - score(baseline), but for the error of the sum that stands for the integral.

    Args:
        case: images, model and target.
        steps: points on the straight line (Gauss and Legendre's).
        baseline: where the line begins: "mean", "black" or "blur".
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
    """How far the score falls when a window of patches is hidden (Zeiler and Fergus 2014).

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
            f"Expected a window inside the {rows} x {columns} grid and a stride of no more than the window; "
            f"got window {window}, stride {stride}."
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
    """Shapley values of squares of patches by Kernel SHAP (Lundberg and Lee 2017).

    A square's value is divided equally among its patches: the scores sum to score(image) - score(baseline). Choices
    come in pairs, each with its opposite, which needs far fewer of them (Covert and Lee 2021).

    Args:
        case: images, model and target.
        samples: how many random choices of squares are shown to the model; more than there are squares. Those with
            everything and with nothing are among them.
        superpixel: side of a square in patches; squares at the right and lower edge may be smaller. By default the
            smallest side that makes no more than 64 of them.
        baseline: what hidden squares show: "mean", "black" or "blur".
        batch: how many choices go through the model at once.
        seed: of the choices, the same for each image.
    """
    from captum.attr import KernelShap

    squares, count = superpixels(case.trace.grid, superpixel)
    _at_least(1, batch=batch)
    _at_least(count + 2, samples=samples)
    if count < 2:
        raise ExplainError(
            "Expected at least two squares of patches to choose from, got one. Set a smaller superpixel."
        )
    side = case.model.config.patch_size
    mask = squares.repeat_interleave(side, 0).repeat_interleave(side, 1)[None, None].to(case.images.device)
    found = []
    for image, base, score in _one_by_one(case, baseline):
        method = KernelShap(score)
        method.interpretable_model = LeastSquares()  # captum's own needs scikit-learn
        method.perturb_func = _in_pairs(method.perturb_func)
        with torch.random.fork_rng(devices=[]):  # captum draws on the CPU
            torch.default_generator.manual_seed(seed)
            value = method.attribute(
                image,
                base,
                feature_mask=mask,
                n_samples=samples,
                perturbations_per_eval=batch,
                return_input_shape=False,
            )
        found.append(value.reshape(1, count))
    each = torch.cat(found).to(case.images) / squares.flatten().bincount().to(case.images)  # (B, count)
    patches = each[:, squares.flatten().to(each.device)]  # (B, count) -> (B, gh * gw)
    return F.pad(patches, (len(case.trace.prefix), 0))


def superpixels(grid: tuple[int, int], side: int | None = None, most: int = 64) -> tuple[Tensor, int]:
    """Which square each patch belongs to, (gh, gw) long, and how many squares there are.

    Args:
        grid: (gh, gw).
        side: of a square, in patches; `None` for the smallest that makes no more than `most` of them.
        most: see `side`.
    """
    if side is None:
        side = next(n for n in range(1, max(grid) + 1) if math.ceil(grid[0] / n) * math.ceil(grid[1] / n) <= most)
    _at_least(1, superpixel=side)
    rows, columns = (torch.arange(count) // side for count in grid)
    across = int(columns[-1]) + 1
    return rows[:, None] * across + columns, across * (int(rows[-1]) + 1)


def _in_pairs(draw: Callable[..., Iterator[Tensor]]) -> Callable[..., Iterator[Tensor]]:
    """Captum's random choices (1, F) of zeros and ones, each followed by its opposite, which is as likely.

    The first two are everything and nothing, and stay as they are.
    """

    def pairs(original: Tensor, **known: Any) -> Iterator[Tensor]:
        choices = draw(original, **known)
        yield next(choices)
        yield next(choices)
        for choice in choices:
            yield choice
            yield 1 - choice

    return pairs


class LeastSquares:
    """Weighted least squares in double precision, in the form that captum asks of an interpretable model."""

    def fit(self, batches: Any) -> None:
        """Fit to the one batch there is: choices (S, F), scores (S,), weights (S,)."""
        ((choices, scores, weights),) = batches
        root = double(weights).sqrt()[:, None]
        inputs = torch.cat([double(choices), torch.ones_like(root)], dim=1)  # (S, F + 1): the last is the intercept
        found: Tensor = torch.linalg.pinv(root * inputs) @ (root[:, 0] * double(scores))  # (F + 1,)
        self._found = found

    def representation(self) -> Tensor:
        """The coefficients: (1, F)."""
        return self._found[None, :-1]


def baseline_images(case: Case, baseline: str) -> Tensor:
    """What the images look like where everything is hidden: like `case.images`, normalised pixels.

    Raises:
        ExplainError: if there is no such baseline, or black cannot be known because nothing is known of the mean.
    """
    if baseline == "mean":
        return torch.zeros_like(case.images)
    if baseline == "blur":
        return blur(case.images, float(case.model.config.patch_size))
    if baseline != "black":
        raise ExplainError(f"Expected one of the baselines {', '.join(BASELINES)}; got {baseline!r}.")
    if case.model.pretrained is None:
        raise ExplainError("Black is not known: this model does not say how its pixels are normalised. Use 'mean'.")
    how = case.model.pretrained.preprocess
    black = [-mean / std for mean, std in zip(how.mean, how.std, strict=True)]
    return case.images.new_tensor(black)[:, None, None].expand_as(case.images)


def blur(images: Tensor, deviation: float) -> Tensor:
    """Gaussian blur with a standard deviation in pixels, edges repeated: (B, C, H, W) -> the same."""
    reach = math.ceil(3 * deviation)
    places = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = (-0.5 * (places / deviation) ** 2).exp()
    weights = (weights / weights.sum()).expand(images.shape[1], 1, 1, -1)  # (C, 1, 1, 2 * reach + 1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    across = F.conv2d(padded, weights, groups=images.shape[1])
    blurred: Tensor = F.conv2d(across, weights.mT, groups=images.shape[1])
    return blurred


def _one_by_one(case: Case, baseline: str) -> Iterator[tuple[Tensor, Tensor, Score]]:
    """Each image and its baseline (1, C, H, W), and what scores pictures of it: (n, C, H, W) -> (n,)."""
    target, bases = case.target, baseline_images(case, baseline)
    for index in range(len(case.images)):
        one = slice(index, index + 1)
        against = None if target.against is None else target.against[one]
        yield case.images[one].detach(), bases[one], _score(case, Target(target.classes[one], against))


def _score(case: Case, target: Target) -> Score:
    return lambda pixels: target.repeat(len(pixels)).score(case.model(pixels))


def _to_tokens(case: Case, pixels: Tensor) -> Tensor:
    """Scores of pixels (B, C, H, W) added up over each patch, zero for prefix tokens: (B, N)."""
    rows, columns = case.trace.grid
    patches = pixels.detach().unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).sum((1, 3, 5))  # (B, gh, gw)
    return F.pad(patches.flatten(1), (len(case.trace.prefix), 0))  # (B, gh * gw) -> (B, N)


def _at_least(least: int, **options: int) -> None:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ExplainError(f"Expected {name} to be a whole number of at least {least}, got {value!r}.")


METHODS = (
    Method(
        name="input_gradient",
        title="Gradient of the pixels",
        paper="Simonyan, Vedaldi and Zisserman 2014, Deep Inside Convolutional Networks, ICLR workshop",
        family="perturbation",
        function=input_gradient,
        about="How strongly the class reacts to small changes of a patch's pixels, in either direction.",
        class_specific=True,
        signed=False,
        cost=3.3,
    ),
    Method(
        name="integrated_gradients",
        title="Integrated gradients",
        paper="Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, ICML",
        family="perturbation",
        function=integrated_gradients,
        about="What each patch adds to the class on the way from a blank picture to this one.",
        class_specific=True,
        signed=True,
        cost=65.0,
        options={"steps": 32, "baseline": "mean", "batch": 8},
    ),
    Method(
        name="occlusion",
        title="Occlusion",
        paper="Zeiler and Fergus 2014, Visualizing and Understanding Convolutional Networks, ECCV",
        family="perturbation",
        function=occlusion,
        about="How far the class falls when a patch is hidden.",
        class_specific=True,
        signed=True,
        cost=257.0,
        options={"window": 1, "stride": None, "baseline": "mean", "batch": 16},
    ),
    Method(
        name="kernel_shap",
        title="Kernel SHAP",
        paper="Lundberg and Lee 2017, A Unified Approach to Interpreting Model Predictions, NeurIPS",
        family="perturbation",
        function=kernel_shap,
        about="What each square of patches adds to the class, averaged over random choices of the others.",
        class_specific=True,
        signed=True,
        cost=512.0,
        options={"samples": 512, "superpixel": None, "baseline": "mean", "batch": 16, "seed": 0},
    ),
)
