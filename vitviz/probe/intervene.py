"""What if? Silence heads, cut attention, take patches away, swap a region, and see how the answer moves.

`intervene` runs the model twice, as it is and with the changes: an effect that it shows has been caused. `backdrop` and
`cover` make pixels without what patches showed; tests of faithfulness use them too.

Shapes: B images, C classes, gh x gw patches, K patches that stay. Pixels are the model's input: (B, channels, H, W),
normalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitviz.edits import Cut, Edits, HeadMode
from vitviz.model import ViT

Cover = Literal["blur", "mean", "zero", "black"]
Drop = Literal["remove", "blur", "mean", "zero", "black"]

BLUR = 1.0
"""Standard deviation of the blur, in patches: nothing finer than a patch is left, the colours around it are."""


class InterveneError(ValueError):
    """An intervention that cannot be made; the text says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Moved:
    """How the probability of one class moved: its index, its label (empty without labels), and the numbers."""

    index: int
    label: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """What the probability gained; below zero if it lost."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class Change:
    """How an intervention moved the answer.

    Args:
        logits_before, logits_after: (B, C), float64.
        labels: of the classes; empty where the model has none.
    """

    logits_before: npt.NDArray[np.float64]
    logits_after: npt.NDArray[np.float64]
    labels: tuple[str, ...] = ()

    @property
    def before(self) -> npt.NDArray[np.float64]:
        """Probabilities without the intervention: (B, C)."""
        return _softmax(self.logits_before)

    @property
    def after(self) -> npt.NDArray[np.float64]:
        """Probabilities with it: (B, C)."""
        return _softmax(self.logits_after)

    def top(self, k: int = 5, image: int = 0) -> tuple[Moved, ...]:
        """The `k` classes of one image whose probabilities moved most, up or down, the largest first.

        Raises:
            InterveneError: if the batch has no such image.
        """
        if not 0 <= image < len(self.logits_before):
            raise InterveneError(f"Expected one of the images 0..{len(self.logits_before) - 1}, got {image}.")
        before, after = self.before[image], self.after[image]  # (C,) each
        order = np.argsort(-np.abs(after - before), kind="stable")[: max(0, k)].tolist()
        return tuple(
            Moved(index, self.labels[index] if self.labels else "", float(before[index]), float(after[index]))
            for index in order
        )


@dataclass(frozen=True, eq=False)
class Swap:
    """A region to be taken from other images, at the same place.

    Args:
        images: (B, channels, H, W) or (1, channels, H, W), normalised pixels of the same size.
        box: (left, top, right, bottom) in pixels of the model's input; its edges are those of patches.
    """

    images: Tensor
    box: tuple[int, int, int, int]


def intervene(
    model: ViT,
    images: Tensor,
    *,
    heads: Mapping[tuple[int, int], HeadMode] | Iterable[tuple[int, int]] = (),
    cuts: Sequence[Cut] = (),
    drop: Iterable[tuple[int, int]] | Tensor = (),
    mode: Drop = "remove",
    swap: Swap | None = None,
    before: Tensor | None = None,
) -> Change:
    """Run with changes and compare with the run without. All of them may be given at once.

    A region is swapped first; then patches are dropped, also those that came with it; heads and edges are changed in
    the run over what is left.

    Args:
        model: in eval mode, with a classifier. It stays as it is.
        images: (B, channels, H, W) normalised pixels.
        heads: (block, head) -> "zero" or "mean", see `Edits`; a plain list of (block, head) means "zero".
        cuts: edges of attention, see `Cut`.
        drop: patches to be dropped: (row, column) for all images, or a mask (B, gh, gw) of bools, true where dropped.
        mode: "remove" takes them out of the sequence; the others paint over them, see `backdrop`.
        swap: a region to be taken from other images.
        before: (B, C), the logits of these images without changes, if they are known.

    Raises:
        InterveneError: if the model has no classifier or is training, or a patch, mode or swap does not fit.
        EditError: if a head or a cut does not fit, or nothing would be left to read the answer from.
    """
    if model.head is None:
        raise InterveneError("Expected a model with a classifier: an intervention is seen in what happens to classes.")
    if model.training:
        raise InterveneError("Expected a model that predicts, not one in training: call model.eval() first.")
    if mode not in get_args(Drop):
        raise InterveneError(f"Expected one of the modes {', '.join(get_args(Drop))}; got {mode!r}.")
    images = images.to(next(model.parameters()).device)
    grid = model.check(images)
    dropped = _mask(drop, len(images), grid).to(images.device)  # (B, gh, gw)
    keep = None
    with torch.no_grad():
        plain = model(images) if before is None else before
        changed = images if swap is None else _swapped(images, swap, model.config.patch_size)
        if dropped.any():
            if mode == "remove":
                keep = staying(dropped)
            else:
                changed = cover(changed, dropped, model.config.patch_size, mode, **_colours(model, mode))
        modes: dict[tuple[int, int], HeadMode]
        modes = dict(heads) if isinstance(heads, Mapping) else dict.fromkeys(heads, "zero")
        logits = model(changed, Edits(heads=modes, cuts=cuts, keep=keep))
    if plain.shape != logits.shape:
        raise InterveneError(f"Expected logits of shape {tuple(logits.shape)} in before, got {tuple(plain.shape)}.")
    labels = model.pretrained.labels if model.pretrained else ()
    return Change(plain.detach().cpu().double().numpy(), logits.cpu().double().numpy(), labels)


def staying(dropped: Tensor) -> Tensor:
    """The patches that are not dropped, as `Edits.keep` wants them: (B, gh, gw) bools -> (B, K) in reading order.

    Raises:
        InterveneError: if not the same number is left in every image.
    """
    stay = ~dropped.flatten(1)  # (B, gh * gw)
    counts = stay.sum(dim=1)
    if bool((counts != counts[:1]).any()):
        raise InterveneError(
            f"Expected the same number of patches to be left in every image of a batch, got {counts.tolist()}. "
            "Run these images one by one."
        )
    return stay.nonzero()[:, 1].unflatten(0, (len(stay), -1)) if stay.any() else stay.new_empty(len(stay), 0).long()


def pixels_of(mask: Tensor, patch_size: int) -> Tensor:
    """A mask over patches as one over pixels: (B, gh, gw) -> (B, 1, gh * patch, gw * patch)."""
    return mask.repeat_interleave(patch_size, 1).repeat_interleave(patch_size, 2)[:, None]


def cover(
    images: Tensor,
    mask: Tensor,
    patch_size: int,
    mode: Cover = "blur",
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """Images with some patches painted over.

    Args:
        images: (B, channels, H, W) normalised pixels, or (1, channels, H, W) for all masks.
        mask: (B, gh, gw) bools, true where a patch is covered; or (1, gh, gw) for all images.
        patch_size: side of a patch in pixels.
        mode, mean, std: as for `backdrop`.

    Returns:
        (B, channels, H, W), new.

    Raises:
        InterveneError: if the mask does not fit the images, or for what `backdrop` refuses.
    """
    size = (mask.shape[-2] * patch_size, mask.shape[-1] * patch_size)
    batches = {len(images), len(mask)} - {1}
    if mask.ndim != 3 or mask.dtype != torch.bool or size != tuple(images.shape[2:]) or len(batches) > 1:
        rows, columns = (side // patch_size for side in images.shape[2:])
        raise InterveneError(
            f"Expected a mask of bools ({len(images)}, {rows}, {columns}), one for each patch, got "
            f"{mask.dtype} {tuple(mask.shape)}."
        )
    behind = backdrop(images, patch_size, mode, mean=mean, std=std)
    return torch.where(pixels_of(mask.to(images.device), patch_size), behind, images)


def backdrop(
    images: Tensor,
    patch_size: int,
    mode: Cover = "blur",
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """What is shown where patches are covered, for the whole image.

    Args:
        images: (B, channels, H, W) normalised pixels.
        patch_size: side of a patch in pixels.
        mode: "blur", the image after a Gaussian of `BLUR` patches (at the rim its weights are those inside, rescaled);
            "mean", the image's own mean colour; "zero", zero in normalised pixels, which is the mean colour of the
            training data; "black".
        mean, std: of the preprocessing, one for each channel; "black" needs them.

    Returns:
        (B, channels, H, W).

    Raises:
        InterveneError: for an unknown mode, or "black" without the preprocessing's numbers.
    """
    if mode == "blur":
        down, across = (_gaussian(side, BLUR * patch_size).to(images) for side in images.shape[2:])
        return down @ images @ across.T  # (H, H) @ (B, channels, H, W) @ (W, W)
    if mode == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    if mode == "zero":
        return torch.zeros_like(images)
    if mode != "black":
        raise InterveneError(f"Expected one of the modes {', '.join(get_args(Cover))}; got {mode!r}.")
    channels = images.shape[1]
    if mean is None or std is None or len(mean) != channels or len(std) != channels:
        raise InterveneError(
            f"Black is a colour of photographs, not of normalised pixels: expected mean and std of the preprocessing, "
            f"{channels} numbers each, got {mean} and {std}. Give them, or choose blur, mean or zero."
        )
    colour = [-centre / spread for centre, spread in zip(mean, std, strict=True)]  # (0 - mean) / std
    return images.new_tensor(colour)[:, None, None].expand_as(images)


def _gaussian(side: int, sigma: float) -> Tensor:
    """A Gaussian blur of one axis as a matrix, every row of which sums to 1: (side, side), float64."""
    at = torch.arange(side, dtype=torch.float64)
    weights = (-0.5 * ((at[:, None] - at) / sigma) ** 2).exp()
    return weights / weights.sum(dim=1, keepdim=True)


def _mask(drop: Iterable[tuple[int, int]] | Tensor, batch: int, grid: tuple[int, int]) -> Tensor:
    """The dropped patches as bools (B, gh, gw)."""
    if isinstance(drop, Tensor):
        if drop.dtype != torch.bool or drop.ndim != 3 or len(drop) not in (1, batch) or drop.shape[1:] != grid:
            raise InterveneError(
                f"Expected drop as bools of shape {(batch, *grid)}, got {drop.dtype} {tuple(drop.shape)}. "
                "A list of patches (row, column) works too."
            )
        return drop.expand(batch, -1, -1)
    mask = torch.zeros(batch, *grid, dtype=torch.bool)
    for patch in drop:
        if len(patch) != 2 or not (0 <= patch[0] < grid[0] and 0 <= patch[1] < grid[1]):
            raise InterveneError(f"Expected patches (row, column) inside the {grid[0]} x {grid[1]} grid, got {patch}.")
        mask[:, patch[0], patch[1]] = True
    return mask


def _swapped(images: Tensor, swap: Swap, patch: int) -> Tensor:
    """The images with a region from others."""
    height, width = images.shape[2:]
    if swap.images.shape[1:] != images.shape[1:] or len(swap.images) not in (1, len(images)):
        raise InterveneError(
            f"Expected other images of shape {tuple(images.shape)} to take a region from, got "
            f"{tuple(swap.images.shape)}. Prepare them as these were."
        )
    left, top, right, bottom = swap.box
    if not (0 <= left < right <= width and 0 <= top < bottom <= height) or any(edge % patch for edge in swap.box):
        near = _near(left, right, width, patch), _near(top, bottom, height, patch)
        raise InterveneError(
            f"Expected a box (left, top, right, bottom) inside {width} x {height} pixels with edges at multiples of "
            f"{patch}, got {tuple(swap.box)}. Take {(near[0][0], near[1][0], near[0][1], near[1][1])}, for instance."
        )
    region = (..., slice(top, bottom), slice(left, right))
    out = images.clone()
    out[region] = swap.images[region].to(images)
    return out


def _near(start: int, stop: int, side: int, patch: int) -> tuple[int, int]:
    """The nearest edges of patches, at least one patch apart."""
    first = min(max(0, round(start / patch) * patch), side - patch)
    return first, min(max(first + patch, round(stop / patch) * patch), side)


def _colours(model: ViT, mode: Drop) -> dict[str, tuple[float, ...]]:
    """What `backdrop` needs to know of the preprocessing."""
    if mode != "black":
        return {}
    if model.pretrained is None:
        raise InterveneError(
            "Black needs the preprocessing's mean and std, and this model was made without. Choose blur, mean or zero, "
            "or paint the images yourself with cover(..., mean=, std=)."
        )
    return {"mean": model.pretrained.preprocess.mean, "std": model.pretrained.preprocess.std}


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(B, C) -> (B, C), each row sums to 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
