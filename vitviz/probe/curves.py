"""Answers of a model to parts of a picture, orders of patches, and the curves that come of them.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models" (insertion and deletion).

Shapes: B images, N tokens = P prefix tokens followed by n = gh x gw patches, D width, C classes, M maps, S steps, R
parts of images (rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitviz.edits import Angles
from vitviz.explain.case import Target
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.intervene import Drop, backdrop

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

# Tokens that run at once. On a CPU they should fit its cache; a GPU wants more to do.
CPU_TOKENS, TOKENS = 4096, 65_536


class Parts:
    """A model's answers to images of which some patches are shown and the others are gone.

    With the baseline "remove" they are gone from the sequence: the images are embedded once, the tokens of the shown
    patches gathered, and the blocks run over the short sequence. The other baselines paint over the pixels (`backdrop`)
    and run the whole image.

    Args:
        model: in eval mode, with a classifier. It stays as it is.
        images: (B, channels, H, W) normalised pixels.
        baseline: "remove", "blur", "mean", "zero" or "black".

    Attributes:
        grid: (gh, gw).
        least: how many patches have to be shown: 1 where the answer is read from patches that would all be removed.

    Raises:
        ProbeError: if the model has no classifier or is training, or there is no such baseline.
        InterveneError: for black, if the model does not know its preprocessing.
    """

    def __init__(self, model: ViT, images: Tensor, baseline: Drop = "remove") -> None:
        if model.head is None:
            raise ProbeError("Expected a model with a classifier: an explanation is tested by what becomes of a class.")
        if model.training:
            raise ProbeError("Expected a model that predicts, not one in training: call model.eval() first.")
        if baseline not in get_args(Drop):
            raise ProbeError(f"Expected one of the baselines {', '.join(get_args(Drop))}; got {baseline!r}.")
        self.model, self.baseline = model, baseline
        self.images = images.to(next(model.parameters()).device)
        self.grid = model.check(self.images)
        self.patches = self.grid[0] * self.grid[1]
        self.least = int(baseline == "remove" and (not model.config.prefix or "mean" in model.config.pooling))
        self._tokens: Tensor | None = None
        self._angles: Angles | None = None
        self._behind: Tensor | None = None
        with torch.no_grad():
            if baseline == "remove":
                self._tokens, _ = model.embed(self.images)  # (B, N, D)
                self._angles = model.angles(self.grid)  # 2 x (n, d), or none
            else:
                about = model.pretrained.preprocess if model.pretrained else None
                colours = {"mean": about.mean, "std": about.std} if about else {}
                self._behind = backdrop(self.images, model.config.patch_size, baseline, **colours)

    def whole(self) -> Tensor:
        """The answers to the whole images: logits (B, C), float64, on the CPU."""
        shown = torch.ones(len(self.images), self.patches, dtype=torch.bool)
        return self.logits(shown, torch.arange(len(self.images)))

    def logits(self, shown: Tensor, image: Tensor, progress: Progress | None = None) -> Tensor:
        """The answers to parts of the images. Equal parts run once, parts with as many patches together.

        Args:
            shown: (R, n) bools, true where a patch is shown.
            image: (R,), the image that each is a part of, counted from 0.
            progress: called with (parts that are done, all parts).

        Returns:
            Logits (R, C), float64, on the CPU.

        Raises:
            ProbeError: if fewer than `least` patches are shown, or the model answers with NaN or infinity.
        """
        if shown.dtype != torch.bool or shown.ndim != 2 or shown.shape[1] != self.patches:
            raise ProbeError(f"Expected bools (parts, {self.patches}), got {shown.dtype} {tuple(shown.shape)}.")
        shown, image = shown.cpu(), image.cpu()
        if int(shown.sum(1).min()) < self.least:
            raise ProbeError(
                "Expected at least one patch to be shown: this model reads its answer from the patches, and they were "
                "all removed. Choose another baseline, such as blur, or show one."
            )
        packed = np.packbits(shown.numpy(), axis=1)  # (R, n / 8)
        rows = np.concatenate([image.numpy()[:, None].astype(">u4").view(np.uint8).reshape(-1, 4), packed], axis=1)
        _, first, back = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        shown, image = shown[first], image[first]
        out: Tensor | None = None
        done = 0
        for some in self._together(shown.sum(1)):
            with torch.no_grad():
                logits = self._run(shown[some], image[some]).cpu().double()  # (r, C)
            out = logits.new_empty(len(shown), logits.shape[1]) if out is None else out
            out[some] = logits
            done += len(some)
            if progress is not None:
                progress(done, len(shown))
        assert out is not None  # there is at least one part
        if not bool(out.isfinite().all()):
            raise ProbeError("The model answers with NaN or infinity: its weights or its precision are at fault.")
        return out[torch.from_numpy(back.reshape(-1))]

    def _together(self, counts: Tensor) -> list[Tensor]:
        """Which parts run together: of as many patches where the others are removed, and not too many tokens."""
        most = CPU_TOKENS if self.images.device.type == "cpu" else TOKENS
        prefix = len(self.model.config.prefix)
        if self.baseline != "remove":
            return list(torch.arange(len(counts)).split(max(1, most // (prefix + self.patches))))
        together: list[Tensor] = []
        for count in counts.unique().tolist():
            same = (counts == count).nonzero().flatten()
            together += same.split(max(1, most // max(1, prefix + count)))
        return together

    def _run(self, shown: Tensor, image: Tensor) -> Tensor:
        """Logits (r, C) of parts that fit together: shown (r, n), image (r,)."""
        image, shown = image.to(self.images.device), shown.to(self.images.device)
        if self._tokens is None:
            side = self.model.config.patch_size
            mask = shown.unflatten(1, self.grid)  # (r, gh, gw)
            mask = mask.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None]  # (r, 1, H, W)
            assert self._behind is not None  # one of the two is there
            out: Tensor = self.model(torch.where(mask, self.images[image], self._behind[image]))
            return out
        keep = shown.nonzero()[:, 1].unflatten(0, (len(shown), -1)) if shown.any() else shown.long()[:, :0]  # (r, K)
        prefix = torch.arange(len(self.model.config.prefix), device=keep.device).expand(len(keep), -1)  # (r, P)
        tokens = self._tokens[image[:, None], torch.cat([prefix, keep + prefix.shape[1]], dim=1)]  # (r, P + K, D)
        angles = self._angles
        if angles is not None:
            cos, sin = (angle[keep][:, None] for angle in angles)  # (n, d) -> (r, K, d) -> (r, 1, K, d)
            angles = cos, sin
        return self.model.run(tokens, angles)


def probabilities(target: Target, logits: Tensor) -> Tensor:
    """How probable the target is: (R, C) -> (R,). Why A and not B: the probability of A among the two."""
    if target.against is not None:
        return target.score(logits).sigmoid()
    return target.score(logits.log_softmax(dim=1)).exp()


def is_right(target: Target, logits: Tensor) -> Tensor:
    """Whether the target is the answer: (R, C) -> (R,) bools. Why A and not B: whether A comes before B."""
    if target.against is not None:
        return target.score(logits) > 0
    return logits.argmax(1) == target.classes.to(logits.device)


def ranked(scores: Tensor, seed: int = 0) -> Tensor:
    """The patches, highest score first: (M, n) -> (M, n) indices. Signed maps go from evidence for to evidence against.

    Equal scores come in a shuffled order that depends on `seed` alone: a map that is the same everywhere is then as
    good as chance. In reading order it would begin with the sky.
    """
    ties = shuffled(scores.shape[1], 1, seed, salt=1)[0]  # (n,)
    order = scores[:, ties].argsort(dim=1, descending=True, stable=True)  # (M, n)
    return ties[order]


def shuffled(patches: int, count: int, seed: int, salt: int = 0) -> Tensor:
    """Random orders of the patches: (count, n), the same for the same seed on every machine."""
    generator = torch.Generator().manual_seed((2 * seed + salt) % 2**63)
    return torch.stack([torch.randperm(patches, generator=generator) for _ in range(count)])


def counts_of(patches: int, steps: int | Sequence[float], least: int) -> list[int]:
    """How many patches are shown at each step, all first: from n down to `least`.

    Args:
        patches: n.
        steps: a number of equal steps, or the shares of the patches that are shown, 0..1. Both ends are always there.
        least: the smallest number.

    Raises:
        ProbeError: if there is no step, or a share is outside 0..1.
    """
    if isinstance(steps, int):
        if steps < 1:
            raise ProbeError(f"steps: expected a number of at least 1, or shares of the patches; got {steps}.")
        shares = [index / steps for index in range(steps + 1)]
    else:
        shares = [float(share) for share in steps]
        if not shares or not all(0.0 <= share <= 1.0 for share in shares):  # so written that NaN is refused
            raise ProbeError(f"steps: expected shares of the patches from 0 to 1, or a number; got {steps!r}.")
    counts = {max(least, round(share * patches)) for share in [0.0, 1.0, *shares]}
    return sorted(counts, reverse=True)


def firsts(orders: Tensor, counts: Sequence[int]) -> Tensor:
    """For each order and count, the patches that come first: (O, n), S counts -> (O, S, n) bools."""
    place = orders.argsort(dim=1)  # (O, n): where each patch stands in the order
    return place[:, None] < torch.tensor(counts)[None, :, None]  # (O, 1, n) < (1, S, 1)


def area(fractions: Floats, values: npt.ArrayLike) -> Floats:
    """The area under curves by the trapezoid rule, divided by the range of x: their mean height. (..., S) -> (...)."""
    y = np.asarray(values, np.float64)
    width = fractions[-1] - fractions[0]
    if width == 0:  # one patch that cannot be taken away: the curve is a point
        return np.asarray(y[..., 0])
    return np.asarray(((y[..., 1:] + y[..., :-1]) / 2 * np.diff(fractions)).sum(-1) / width)


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """What becomes of the target while patches are removed or shown in the order of a map.

    Args:
        kind: "deletion": from the whole image, the patches that the map names first are removed first. "insertion":
            from nothing, they are shown first.
        fractions: (S,), rising, the share of the patches that was removed (deletion) or is shown (insertion).
        probabilities: (S,), of the target.
        logits: (S,), the target's score: its logit, or the difference of two.
        right: (S,) bools, whether the target was the answer.
        random: (R, S), the probabilities for R random orders.
        random_right: (R, S) bools.
    """

    kind: Literal["deletion", "insertion"]
    fractions: Floats
    probabilities: Floats
    logits: Floats
    right: npt.NDArray[np.bool_]
    random: Floats
    random_right: npt.NDArray[np.bool_]

    @property
    def area(self) -> float:
        """Area under the probabilities, 0..1: the mean over the range. Low is good for deletion, high for insertion."""
        return float(area(self.fractions, self.probabilities))

    @property
    def accuracy(self) -> float:
        """Area under `right`, 0..1."""
        return float(area(self.fractions, self.right))

    @property
    def random_areas(self) -> Floats:
        """(R,), the areas of the random orders."""
        return area(self.fractions, self.random)

    @property
    def random_area(self) -> float:
        """Their mean: what an order that knows nothing gets."""
        return float(self.random_areas.mean())

    @property
    def random_accuracy(self) -> float:
        """The mean area under `random_right`."""
        return float(area(self.fractions, self.random_right).mean())

    @property
    def band(self) -> tuple[Floats, Floats]:
        """The lowest and the highest probability of the random orders at each step: 2 x (S,)."""
        return self.random.min(axis=0), self.random.max(axis=0)

    @property
    def over_random(self) -> float:
        """How much better than random orders, as area: above zero is better, whatever the kind."""
        better = self.random_area - self.area
        return better if self.kind == "deletion" else -better

    @property
    def beaten(self) -> int:
        """How many of the random orders are worse."""
        worse = self.random_areas > self.area if self.kind == "deletion" else self.random_areas < self.area
        return int(worse.sum())

    def compared(self) -> str:
        """The numbers as people read them: "area 0.31 against 0.52 (0.47-0.58)"."""
        low, high = self.random_areas.min(), self.random_areas.max()
        return f"area {self.area:.2f} against {self.random_area:.2f} ({low:.2f}-{high:.2f})"
