"""List the input sizes at which a photograph can be opened, and estimate their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import METHODS
from vitviz.errors import VitvizError
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.memory import forward_bytes, kept_bytes
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase
from vitviz.settings import GIGABYTE, Settings
from vitviz.view import View

MAX_PATCHES = 25_000  # 2,048 pixels give 21,316 patches of 14 × 14; 65,536 patches of 8 × 8 would take an hour
LARGE = 12  # multiple of the work at the model's own size; longer forward passes pause for other photographs
MAX_WORK = 4  # limit of one question, in forward passes at the largest input size
ENOUGH = 0.75  # doublings above this fraction of the largest size are not offered
SHARE_OF_SCENE = 0.8  # fraction of the scene memory for one trace; the rest is for its photograph and answers
# Numbers that questions hold at their memory peak; see benchmarks/memory.py.
LENS_NUMBERS = 3  # logit lens: per patch and class
COMPONENT_NUMBERS = 4  # principal components: per patch and channel, in double precision
BLOCK_GRAPH = 24  # one block and its gradients: per token and channel, in addition to a forward pass
DOUBLE = 2  # time of a matrix product in double precision, relative to single precision
DOUBLE_BYTES = torch.float64.itemsize
LAST_BLOCK_RUNS = 2  # the lens computes the last block again, because the trace does not hold its output
USUAL = (4, 3)  # assumed aspect ratio of a photograph before it is decoded


class TooLargeError(VitvizError):
    """Raised for a photograph or question that is too large; `size` is the largest input size that fits, if any."""

    def __init__(self, text: str, size: int | None = None) -> None:
        super().__init__(text)
        self.size = size


@dataclass(frozen=True)
class Pace:
    """Measured time of a forward pass: `seconds` for `tokens`, scaled to other numbers of tokens by `work`.

    With ViT-S/14 on two cores, a measurement with 261 tokens predicts 12.3 s for 4,057 tokens, which took 12.1 s.
    """

    tokens: int
    seconds: float

    def at(self, config: ViTConfig, tokens: int) -> float:
        """Estimate the seconds of a forward pass with another number of tokens."""
        return self.seconds * work(config, tokens) / work(config, self.tokens)


@dataclass(frozen=True)
class Size:
    """Input size that a visitor can choose.

    Args:
        size: argument of `Explorer.open`; `None` for the model's own size.
        factor: size relative to the model's own size.
        patches: number of patches.
        seconds: estimated time of the forward pass; `None` if unknown.
    """

    size: int | None
    factor: float
    patches: int
    seconds: float | None


def work(config: ViTConfig, tokens: int) -> float:
    """Estimate the multiplications of a forward pass.

    A block with width D, H heads of width d and hidden width M takes 4 D H d + 2 D M per token (3 D M with a gate), and
    2 H d per pair of a query and a key.
    """
    keys = config.heads * (config.head_size + config.query_width(tokens))
    return config.depth * (block_weights(config) * tokens + keys * config.pairs(tokens))


def block_weights(config: ViTConfig) -> int:
    """Return the number of weights of a block's linear layers, without biases."""
    inner = config.heads * config.head_size
    return 4 * config.width * inner + (3 if config.gated else 2) * config.width * config.hidden


def largest(config: ViTConfig, limit: int) -> int:
    """Return the largest input size of a model in pixels, up to `limit`."""
    multiple = config.size_multiple
    return min(limit, math.isqrt(MAX_PATCHES) * config.patch_size) // multiple * multiple


def sizes(
    config: ViTConfig,
    own: Preprocess,
    photo: tuple[int, int],
    pace: Pace | None,
    limit: int,
    fits: Callable[[int], bool] = lambda patches: patches <= MAX_PATCHES,
) -> list[Size]:
    """Return the sizes to choose from for a photograph: the model's own, its doublings, and the largest.

    Args:
        config: the model's configuration.
        own: the model's own preprocessing.
        photo: the photograph's (width, height) in pixels.
        pace: the model's measured pace, if it has run.
        limit: largest size in pixels.
        fits: whether a number of patches fits; larger sizes are not offered.
    """
    side = own.side
    top = largest_that_fits(config, own, photo, limit, fits) or 0
    choices: list[int | None] = [None]
    step = 2 * side
    while step < ENOUGH * top:
        choices.append(round(step))
        step *= 2
    if top > side:
        choices.append(top)
    return [Size(size, (size or side) / side, *cost(config, own, photo, pace, size)) for size in choices]


def cost(
    config: ViTConfig, own: Preprocess, photo: tuple[int, int], pace: Pace | None, size: int | None
) -> tuple[int, float | None]:
    """Return the number of patches of a photograph at an input size, and the model's estimated seconds."""
    patch = config.patch_size
    height, width = (own if size is None else own.at(size, config.size_multiple)).input_size(*photo)
    patches = (height // patch) * (width // patch)
    return patches, None if pace is None else pace.at(config, patches + len(config.prefix))


def faster(view: View, before: Pace | None) -> Pace:
    """Return the faster of a view's pace and the previous one, because other load can only slow the machine down."""
    now = Pace(view.trace.count, view.seconds)
    config = view.model.config
    return before if before and before.at(config, now.tokens) < now.seconds else now


def is_large(config: ViTConfig, own: Preprocess, patches: int) -> bool:
    """Return whether a forward pass of `patches` takes many times as long as at the model's own input size."""
    usual, _ = cost(config, own, USUAL, None, None)
    prefix = len(config.prefix)
    return work(config, patches + prefix) > LARGE * work(config, usual + prefix)


class Need(NamedTuple):
    """What a computation needs: peak memory in bytes, work in forward passes, and bytes of the scene that it keeps."""

    memory: int
    passes: float = 1.0
    kept: int = 0


Estimate = Callable[..., Need]
"""Function of a model's configuration, the bytes per number, the number of patches, and facts about the question."""


def open_need(config: ViTConfig, itemsize: int, patches: int) -> Need:
    """Return the `Need` of opening a photograph: a forward pass, whose trace is kept."""
    tokens = patches + len(config.prefix)
    kept = kept_bytes(config, tokens, itemsize=itemsize) + patches * config.channels * config.patch_size**2 * itemsize
    return Need(forward_bytes(config, tokens, itemsize=itemsize), kept=kept)


def passes_need(config: ViTConfig, itemsize: int, patches: int, passes: float = 1.0) -> Need:
    """Return the `Need` of a question that runs the model `passes` times in sequence."""
    return Need(forward_bytes(config, patches + len(config.prefix), itemsize=itemsize), passes)


def method_need(config: ViTConfig, itemsize: int, patches: int, method: Method, more: float = 0.0) -> Need:
    """Return the `Need` of an attribution method followed by `more` forward passes."""
    memory = question_bytes(config, method, patches + len(config.prefix), itemsize)
    return Need(memory, method.passes(patches) + more)


def heads_need(config: ViTConfig, itemsize: int, patches: int, names: Collection[str]) -> Need:
    """Return the `Need` of head statistics; for each head, ablations run the model from that head's block on."""
    ablates = any(STATISTICS[name].reads == "model" for name in names if name != "gradient")
    tokens, has_gradient = patches + len(config.prefix), "gradient" in names
    graph = BLOCK_GRAPH * tokens * config.width * itemsize * has_gradient
    passes = config.depth * config.heads / 2 * ablates + 3.0 * has_gradient
    return Need(forward_bytes(config, tokens, itemsize=itemsize) + graph, passes)


def layers_need(config: ViTConfig, itemsize: int, patches: int) -> Need:
    """Return the `Need` of principal components and of the logit lens, which classifies each patch after each block."""
    tokens, width, pools = patches + len(config.prefix), config.width, config.pooling == "attention"
    memory = forward_bytes(replace(config, depth=1), tokens, itemsize=itemsize)
    memory += patches * max(4 * LENS_NUMBERS * config.classes, 8 * COMPONENT_NUMBERS * width)
    each = patches * width * (config.classes + DOUBLE * width)  # multiplications after one block
    return Need(memory, LAST_BLOCK_RUNS / config.depth + pools + config.depth * each / work(config, tokens))


def question_bytes(config: ViTConfig, method: Method, tokens: int, itemsize: int) -> int:
    """Estimate the memory of an attribution method in bytes, see `Method`; within 20 % of measurements.

    `itemsize` is the bytes per number in the model's precision.
    """
    copied = 0
    if method.double:  # a copy of one block in the model's precision, then in double precision
        copied, itemsize = (itemsize + DOUBLE_BYTES) * block_weights(config), DOUBLE_BYTES
    forward = copied + forward_bytes(config, tokens, itemsize=itemsize)
    alike = METHODS.values() if method.cost is None else (method,)  # without a measurement, assume the largest
    matrices = max(each.matrices for each in alike) * config.heads * config.pairs(tokens)
    activations = max(each.activations for each in alike) * config.depth * tokens * config.width
    return forward + int((matrices + activations) * itemsize)


def limit_of(model: ViT, allowed: Settings, estimate: Estimate, *facts: Any) -> Callable[[int], bool]:
    """Return a function that checks whether a computation on a number of patches fits into memory and time.

    Args:
        model: the model that computes.
        allowed: the operator's settings.
        estimate: one of the estimates above.
        facts: further arguments of the estimate.
    """
    config, itemsize, prefix = model.config, itemsize_of(model), len(model.config.prefix)
    most = MAX_WORK * work(config, prefix + MAX_PATCHES)

    def fits(patches: int) -> bool:
        memory, passes, kept = estimate(config, itemsize, patches, *facts)
        return (
            patches <= MAX_PATCHES
            and memory <= allowed.question_memory
            and kept <= SHARE_OF_SCENE * allowed.scene_memory
            and passes * work(config, patches + prefix) <= most
        )

    return fits


def check_fits(
    model: ViT,
    own: Preprocess,
    title: str,
    photo: tuple[int, int],
    patches: int,
    allowed: Settings,
    estimate: Estimate,
    *facts: Any,
) -> None:
    """Check that a computation fits, see `limit_of`.

    Args:
        model: the model that computes.
        own: the model's own preprocessing.
        title: the computation's title.
        photo: the photograph's (width, height) in any unit.
        patches: number of patches.
        allowed: the operator's settings.
        estimate: one of the estimates above.
        facts: further arguments of the estimate.

    Raises:
        TooLargeError: if it does not; the message and `size` give the largest possible input size.
    """
    fits = limit_of(model, allowed, estimate, *facts)
    if fits(patches):
        return
    best = largest_that_fits(model.config, own, photo, allowed.side, fits)
    memory, passes, _ = estimate(model.config, itemsize_of(model), patches, *facts)
    text = (
        "Expected a computation that fits into memory and time, got {0} on {1} patches, which takes about {2} GB "
        "(forward passes: {3}). "
    )
    values = (title, f"{patches:,}", f"{memory / GIGABYTE:.1f}", f"{passes:,.0f}")
    if best is None:
        raise TooLargeError(Phrase("question-too-large", text + "Choose another model or method.", *values), best)
    smaller = "Open the photograph at {4} pixels or fewer."
    raise TooLargeError(Phrase("question-too-large-at", text + smaller, *values, best), best)


def itemsize_of(model: ViT) -> int:
    """Return the bytes per number in a model's precision."""
    return next(model.parameters()).dtype.itemsize


def largest_that_fits(
    config: ViTConfig, own: Preprocess, photo: tuple[int, int], limit: int, fits: Callable[[int], bool]
) -> int | None:
    """Return the largest input size of a photograph whose number of patches fits; `None` if there is none."""
    low, high = 0, largest(config, limit) // config.size_multiple
    while low < high:
        middle = (low + high + 1) // 2
        patches = most_patches(config, own, photo, middle * config.size_multiple)
        low, high = (middle, high) if fits(patches) else (low, middle - 1)
    return low * config.size_multiple or None


def most_patches(config: ViTConfig, own: Preprocess, photo: tuple[int, int], size: int | None) -> int:
    """Return the number of patches of a photograph, or of one with the usual shape if that has more.

    Before decoding, the shape is unknown, and a photograph is checked with the usual shape: both shapes must fit.
    """
    return max(cost(config, own, shape, None, size)[0] for shape in (photo, USUAL))
