"""What families of Vision Transformers share and their weights do not show, and how far shapes tell the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.preprocess import Preprocess
from vitviz.weights.parts import State
from vitviz.weights.source import ConvertError

Shapes = Mapping[str, tuple[int, ...]]
Convert = Callable[[Mapping[str, Tensor]], tuple[ViTConfig, State]]

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class Family:
    """What models of one family share and their weights do not show.

    Args:
        who: its models, for people.
        norm_eps: epsilon of the norms, in timm's form of the family.
        activation: of the MLP.
        colours: what mean and standard deviation are called, and what they are.
        mode: whether photographs are cut or squashed to the model's square.
        resize: length of the shorter side before the cut, over that of the cut.
    """

    who: str
    norm_eps: float = 1e-6
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    colours: tuple[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = ("ImageNet", _IMAGENET)
    mode: Literal["crop", "squash"] = "crop"
    resize: float = 1 / 0.875


FAMILIES: dict[str, Family] = {
    "vit": Family(who="ViT, DeiT, DeiT III, DINO, MAE, DINOv2 with and without registers"),
    "dinov3": Family(who="DINOv3", norm_eps=1e-5),
    "clip": Family(who="CLIP with exact GELU (OpenCLIP)", norm_eps=1e-5, colours=("CLIP", _CLIP), resize=1.0),
    "clip-quickgelu": Family(
        who="CLIP with QuickGELU (OpenAI)",
        norm_eps=1e-5,
        activation="quick_gelu",
        colours=("CLIP", _CLIP),
        resize=1.0,
    ),
    "siglip": Family(who="SigLIP", colours=("0.5 for", _HALF), mode="squash"),
    "siglip-tanh": Family(
        who="SigLIP 2 and SO400M/16 in timm's form", activation="gelu_tanh", colours=("0.5 for", _HALF), mode="squash"
    ),
    "torchvision": Family(who="torchvision's VisionTransformer"),
}
"""What `--family` can be."""

# Published widths with heads that are not 64 wide: SigLIP SO400M, ViT-H, ViT-g, ViT-G.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
_WIDTHS = range(192, 1025, 64)  # up to ViT-L, published ones have heads of width 64, but for MoCo v3's ViT-S
DINOV2_HEADS, DINOV3_HEADS = {1536: 24}, {1280: 20, 4096: 32}


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """A family with everything that its converter needs.

    Args:
        family: one of `FAMILIES`.
        names: whose names the tensors have.
        convert: tensors -> (config, state in our names), strict.
        assumed: what was taken from convention, in words.
        left_out: parts of the training that the model has no use for, in words.
        unread: the tensors of these parts.
    """

    family: str
    names: str
    convert: Convert
    assumed: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()

    def preprocess(self, config: ViTConfig) -> Preprocess:
        """How photographs are assumed to be prepared."""
        family, (height, width) = FAMILIES[self.family], config.image_size
        if config.channels != 3:
            raise ConvertError(f"Photographs have 3 channels, this model reads {config.channels}.")
        mean, std = family.colours[1]
        resize = round(min(height, width) * family.resize) if family.mode == "crop" else None
        return Preprocess(
            height=height, width=width, mode=family.mode, resize=resize, interpolation="bicubic", mean=mean, std=std
        )

    def words(self, config: ViTConfig, more: Iterable[str] = ()) -> str:
        """What was recognised, and everything that was assumed."""
        prepared = self.preprocess(config)
        how = f"cut from a shorter side of {prepared.resize}" if prepared.mode == "crop" else "squashed"
        pixels = (
            f"preprocessing assumed: {FAMILIES[self.family].colours[0]} mean and standard deviation, "
            f"{prepared.height} x {prepared.width} pixels, {how} (bicubic)"
        )
        left_out = (f"without the {part}" for part in self.left_out)
        read = ", ".join((f"{self.family} in {self.names} names", *more, *left_out))
        return f"{read}; {'; '.join(f'{one} assumed' for one in self.assumed)}; {pixels}"


def choose(family: str | None, among: tuple[str, ...], why: str = "", *, ask: bool = False) -> str:
    """The family: the only one there can be, or the one that was named.

    Args:
        family: what the caller named.
        among: those that have these names and shapes.
        why: what they differ in.
        ask: whether even a single one has to be named, because others could look the same.

    Raises:
        ConvertError: if it has to be named, or is none of `among`.
    """
    choices = " or ".join(f"{name} ({FAMILIES[name].who})" for name in among)
    if family is None and (len(among) > 1 or ask):
        raise ConvertError(f"Names and shapes do not tell {why}. Say --family (family=...): {choices}.")
    if family is not None and family not in among:
        raise ConvertError(
            f"The names and shapes of these weights are not those of family {family}: expected {choices}."
        )
    return family or among[0]


def heads_of(
    width: int,
    inner: int,
    asked: int | None,
    *,
    told: int | None = None,
    published: Mapping[int, int] | None = None,
    sure: bool = True,
) -> tuple[int, str]:
    """The number of heads, and in words what was assumed ("" where the weights or the caller say it).

    Args:
        width: D of the model.
        inner: heads times the width of a head.
        asked: what the caller said.
        told: width of a head, where the weights have something of that length.
        published: heads by width of models that only this family has.
        sure: whether published models of this form keep to the convention.

    Raises:
        ConvertError: if it has to be said, or what was said cannot be.
    """
    if told and inner % told == 0 and asked in (None, inner // told):
        return inner // told, ""
    if asked is not None:
        if told or inner % asked:
            fit = f"{inner // told} heads of width {told}" if told else f"a divisor of {inner}"
            raise ConvertError(f"heads: expected {fit}, got {asked}.")
        return asked, ""
    known = {each: each // 64 for each in _WIDTHS} | _HEADS | dict(published or {})
    if width not in known or inner != width or not sure:
        raise ConvertError(
            f"The number of heads cannot be told from these weights (width {width}, {inner} in all heads together). "
            "Say --heads (heads=...)."
        )
    return known[width], f"{known[width]} heads of width {width // known[width]}"


def side_of(rows: int, front: Iterable[int]) -> tuple[int, int]:
    """The side of the square grid of a position table, and how many of its rows belong to prefix tokens.

    Args:
        rows: of the table.
        front: how many of them may belong to prefix tokens.

    Raises:
        ConvertError: if there is no such square, or more than one.
    """
    squares = [
        (math.isqrt(rows - n), n) for n in sorted(set(front)) if rows > n and math.isqrt(rows - n) ** 2 == rows - n
    ]
    if len(squares) != 1:
        raise ConvertError(
            f"A position table of {rows} rows is {'no square of patches' if not squares else 'a square in two ways'}: "
            "the image size cannot be told. Load the folder with its settings, or the model by its library's name."
        )
    return squares[0]


def count_blocks(shapes: Shapes, pattern: str) -> int:
    """The number of blocks; `pattern` has their index as its group.

    Raises:
        ConvertError: if they are not counted from 0 without a gap.
    """
    found = {int(match[1]) for name in shapes if (match := re.match(pattern, name)) and len(match[1]) < 6}
    if found != set(range(len(found))) or not found:
        missing = next((index for index in range(len(found)) if index not in found), 0)
        raise ConvertError(f"Expected blocks counted from 0 without a gap, but there is no block {missing}.")
    return len(found)


def shape_of(shapes: Shapes, name: str, sides: int) -> tuple[int, ...]:
    """The shape of a tensor with so many axes.

    Raises:
        ConvertError: if it is missing or has another number of axes.
    """
    shape = shapes.get(name)
    if shape is None or len(shape) != sides or 0 in shape:
        raise ConvertError(f"Expected a tensor {name!r} with {sides} axes, got {shape or 'none'}.")
    return shape


def patch_of(shapes: Shapes, name: str) -> tuple[int, int, int]:
    """(width, channels, side of a patch) from the patch embedding, (D, channels, p, p).

    Raises:
        ConvertError: if patches are no squares.
    """
    width, channels, height, across = shape_of(shapes, name, 4)
    if height != across:
        raise ConvertError(f"Expected square patches, got {height} x {across} in {name!r}.")
    return width, channels, height
