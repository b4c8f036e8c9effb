"""List the input sizes that a photograph can be opened at, and estimate what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.view import View

MOST_PATCHES = 25_000  # 2,048 pixels in patches of 14 are 21,316; patches of 8 would be 65,536 and take an hour
ENOUGH = 0.75  # a step this near to the largest is left out


@dataclass(frozen=True)
class Pace:
    """Time that a model took: `seconds` for `tokens`.

    Carried over to other numbers of tokens by `work`. Measured with ViT-S/14 on two cores: what 261 tokens took says
    12.3 s for 4,057 of them, and they took 12.1 s.
    """

    tokens: int
    seconds: float

    def at(self, config: ViTConfig, tokens: int) -> float:
        """Return about how many seconds another number of tokens takes."""
        return self.seconds * work(config, tokens) / work(config, self.tokens)


@dataclass(frozen=True)
class Size:
    """Size of the input: `size` as `Explorer.open` takes it (`None`: the model's own), `seconds` `None` if unknown."""

    size: int | None
    factor: float
    patches: int
    seconds: float | None

    def describe(self) -> dict[str, Any]:
        """Return the size for the page, in words such as "2 x · 1,024 patches · about 3 s"."""
        if self.size is None:
            return {"size": None, "words": f"Own · {self.patches:,} patches"}
        cost = "" if self.seconds is None else f" · {about(self.seconds)}"
        return {"size": self.size, "words": f"{self.factor:.2g} x · {self.patches:,} patches{cost}"}


def work(config: ViTConfig, tokens: int) -> float:
    """Estimate the multiplications of a forward pass: linear in the tokens, and attention in their square.

    Of a block with tokens of width D, heads of H * d and a hidden width M: 4 D H d + 2 D M a token (3 D M with a
    gate), and 2 H d for each pair of tokens.
    """
    inner = config.heads * config.head_size
    layers = 4 * config.width * inner + (3 if config.mlp == "swiglu" else 2) * config.width * config.hidden
    return config.depth * (layers * tokens + 2 * inner * tokens**2)


def largest(config: ViTConfig, limit: int) -> int:
    """Return the largest input size of a model in pixels, where `limit` may be asked for."""
    patch = config.patch_size
    return min(limit, math.isqrt(MOST_PATCHES) * patch) // patch * patch


def sizes(config: ViTConfig, own: Preprocess, photo: tuple[int, int], pace: Pace | None, limit: int) -> list[Size]:
    """Return sizes to choose from for a photograph: the model's own, doubled again and again, and the largest.

    Args:
        config: of the model.
        own: the model's own preprocessing.
        photo: the photograph's (width, height) in pixels.
        pace: how fast the model ran, if it did.
        limit: size in pixels that may be asked for.
    """
    side = math.sqrt(own.height * own.width) if own.mode == "native" else max(own.height, own.width)
    top = largest(config, limit)
    found: list[int | None] = [None]
    step = 2 * side
    while step < ENOUGH * top:
        found.append(round(step))
        step *= 2
    if top > side:
        found.append(top)
    return [Size(one, (one or side) / side, *cost(config, own, photo, pace, one)) for one in found]


def cost(
    config: ViTConfig, own: Preprocess, photo: tuple[int, int], pace: Pace | None, size: int | None
) -> tuple[int, float | None]:
    """Return how many patches a photograph has at an input size, and about how many seconds the model takes."""
    patch = config.patch_size
    height, width = (own if size is None else own.at(size, patch)).input_size(*photo)
    patches = (height // patch) * (width // patch)
    return patches, None if pace is None else pace.at(config, patches + len(config.prefix))


def faster(view: View, before: Pace | None) -> Pace:
    """Return the pace of a view, or the one before if that was faster: a machine's other work only slows it down."""
    now = Pace(view.trace.tokens.shape[1], view.seconds)
    config = view.model.config
    return before if before and before.at(config, now.tokens) < now.seconds else now


def about(seconds: float) -> str:
    """Return an estimated time, no finer than it is: "about 40 s"."""
    if seconds < 1:
        return "under a second"
    if seconds < 10:
        return f"about {seconds:.0f} s"
    return f"about {round(seconds, -1):.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
