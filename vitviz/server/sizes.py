"""How finely a photograph can be cut: larger inputs for the same model, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.view import View

OWN = "own"
MOST_PATCHES = 25_000  # 2,048 pixels in patches of 14 are 21,316; patches of 8 would be 65,536 and take an hour
ENOUGH = 0.75  # a step this near to the largest is left out


@dataclass(frozen=True)
class Pace:
    """How fast a model ran: `seconds` for `tokens` of them.

    Carried over to other numbers of tokens by `work`. Measured with ViT-S/14 on two cores: what 261 tokens took says
    12.3 s for 4,057 of them, and they took 12.1 s.
    """

    tokens: int
    seconds: float

    def at(self, config: ViTConfig, tokens: int) -> float:
        """About how many seconds another number of tokens takes."""
        return self.seconds * work(config, tokens) / work(config, self.tokens)


@dataclass(frozen=True)
class Choice:
    """A size of input. `side` as `Explorer.open` takes it (`None`: the model's own), `seconds` `None` if unknown."""

    side: int | None
    finer: float
    patches: int
    seconds: float | None

    @property
    def value(self) -> str:
        """Its name in the page's control."""
        return OWN if self.side is None else str(self.side)

    @property
    def words(self) -> str:
        """As a person reads it: "2 x · 1,024 patches · about 3 s"."""
        if self.side is None:
            return f"Own · {self.patches:,} patches"
        cost = "" if self.seconds is None else f" · {about(self.seconds)}"
        return f"{self.finer:.2g} x · {self.patches:,} patches{cost}"


def work(config: ViTConfig, tokens: int) -> float:
    """Multiplications of one forward pass, in units of no meaning: linear in the tokens, and attention in their square.

    Of a block with tokens of width D, heads of H * d and a hidden width M: 4 D H d + 2 D M a token (3 D M with a
    gate), and 2 H d for each pair of tokens.
    """
    inner = config.heads * config.head_size
    layers = 4 * config.width * inner + (3 if config.mlp == "swiglu" else 2) * config.width * config.hidden
    return config.depth * (layers * tokens + 2 * inner * tokens**2)


def most_pixels(config: ViTConfig, largest: int) -> int:
    """The largest side in pixels that a model's input may have where `largest` may be asked for."""
    patch = config.patch_size
    return min(largest, math.isqrt(MOST_PATCHES) * patch) // patch * patch


def choices(
    config: ViTConfig, own: Preprocess, photo: tuple[int, int], pace: Pace | None, largest: int
) -> list[Choice]:
    """Sizes to choose from for a photograph: the model's own, doubled again and again, and the largest.

    Args:
        config: of the model.
        own: the model's own preprocessing.
        photo: the photograph's (width, height) in pixels.
        pace: how fast the model ran, if it did.
        largest: side in pixels that may be asked for.
    """
    patch = config.patch_size
    side = math.sqrt(own.height * own.width) if own.mode == "native" else max(own.height, own.width)
    top = most_pixels(config, largest)
    sides: list[int | None] = [None]
    step = 2 * side
    while step < ENOUGH * top:
        sides.append(round(step))
        step *= 2
    if top > side:
        sides.append(top)
    found = []
    for one in sides:
        height, width = (own if one is None else own.at(one, patch)).input_size(*photo)
        patches = (height // patch) * (width // patch)
        seconds = None if pace is None else pace.at(config, patches + len(config.prefix))
        found.append(Choice(one, (one or side) / side, patches, seconds))
    return found


def faster(view: View, before: Pace | None) -> Pace:
    """How fast the model ran for a view, or before if that was faster: a machine's other work only slows it down."""
    now = Pace(view.trace.tokens.shape[1], view.seconds)
    config = view.model.config
    return before if before and before.at(config, now.tokens) < now.seconds else now


def about(seconds: float) -> str:
    """A guess at a time, no finer than it is: "about 40 s"."""
    if seconds < 1:
        return "under a second"
    if seconds < 10:
        return f"about {seconds:.0f} s"
    return f"about {round(seconds, -1):.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
