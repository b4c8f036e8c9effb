"""Intervene in a model: silence heads, cut attention, remove or cover patches, patch activations, compare predictions.

`intervene` runs the model with and without the changes, so the effect is causal.

Shapes: B images, C classes, gh x gw patches, K remaining patches. Pixels are the model's input: (B, channels, H, W),
normalised.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.attribution.baselines import baseline_images, pixel_mask
from vitviz.attribution.target_specs import FEATURE_TARGETS, Contrast, TargetLike, reads_features, resolve_target
from vitviz.attribution.targets import Scale
from vitviz.fields import check_arguments
from vitviz.formatting import data_frame, short_repr
from vitviz.model.edits import BlockEdit, Cut, Edits, HeadMode, Replacement, index_in
from vitviz.model.ops import Ops, Record
from vitviz.model.trace import AttentionTrace, Query
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE, ProblemType, activate, rank

if TYPE_CHECKING:
    import pandas as pd

Drop = Literal["remove", "blur", "mean", "zero", "black"]
"""How to drop a patch: remove it from the sequence, or show a baseline (`vitviz.attribution.baselines`)."""

Order = Literal["probability", "change"]
"""Order of classes after an intervention: by probability, or by absolute change of the probability."""

Outputs = tuple[Tensor, Tensor]
"""Logits (B, C) and, on request, features (B, F) of a run, in float64 on the CPU; missing ones are (B, 0)."""


@dataclass(frozen=True)
class ClassChange:
    """Probability of one class before and after, with its index and label (empty without labels)."""

    index: int
    label: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """Return the change of the probability."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class Change:
    """Predictions before and after an intervention.

    Args:
        logits_before, logits_after: (B, C), float64.
        labels: labels of the classes; empty if the model has none.
        problem_type: meaning of the outputs; for regression, values replace probabilities.
        target: name of the target, or empty if none was given; `scale` is the scale of its readings.
        target_before, target_after: (B,), the target's readings; empty without a target.
    """

    logits_before: NDArray[np.float64]
    logits_after: NDArray[np.float64]
    labels: tuple[str, ...] = ()
    problem_type: ProblemType = SINGLE
    target: str = ""
    scale: Scale = "probability"
    target_before: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    target_after: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    __repr__ = short_repr

    @property
    def before(self) -> NDArray[np.float64]:
        """Return the probabilities without the intervention: (B, C)."""
        return np.asarray(activate(torch.from_numpy(self.logits_before), self.problem_type))

    @property
    def after(self) -> NDArray[np.float64]:
        """Return the probabilities with the intervention: (B, C)."""
        return np.asarray(activate(torch.from_numpy(self.logits_after), self.problem_type))

    @check_arguments(AnalysisError)
    def top(self, k: int = 5, image: int = 0, *, by: Order = "probability") -> tuple[ClassChange, ...]:
        """Return the first `k` classes of one image.

        Args:
            k: number of classes.
            image: index of the image in the batch.
            by: "probability" after the intervention, so that the first class is the model's answer (values keep the
                order of the outputs); or "change", the largest absolute changes first.

        Raises:
            AnalysisError: if the image does not exist.
        """
        if not 0 <= image < len(self.logits_before):
            raise AnalysisError(
                f"Expected one of the images 0..{len(self.logits_before) - 1}, got {image}. Count from 0."
            )
        before, after = self.before[image], self.after[image]  # (C,) each
        if by == "change":
            order = np.argsort(-np.abs(after - before), kind="stable")
        else:
            order = rank(torch.from_numpy(self.logits_after[image]), self.problem_type).numpy()
        return tuple(
            ClassChange(index, self.labels[index] if self.labels else "", float(before[index]), float(after[index]))
            for index in order[: max(0, k)].tolist()
        )

    def to_pandas(self, image: int = 0, *, by: Order = "probability") -> "pd.DataFrame":
        """Return all classes of one image as a table in the order of `top`: index, label, before, after, change.

        Raises:
            AnalysisError: if the image does not exist.
            MissingExtraError: if pandas is not installed.
        """
        ranked = self.top(self.logits_before.shape[1], image, by=by)
        names = ("index", "label", "before", "after", "change")
        return data_frame({name: [getattr(changed, name) for changed in ranked] for name in names})


@dataclass(frozen=True, eq=False)
class Swap:
    """Region to copy from other images at the same position.

    Args:
        images: (B, channels, H, W) or (1, channels, H, W), normalised pixels of the same size.
        box: (left, top, right, bottom) in pixels of the model's input, aligned with patches.
    """

    images: Tensor
    box: tuple[int, int, int, int]


@check_arguments(AnalysisError)
def intervene(
    model: ViT,
    images: Tensor,
    *,
    heads: Mapping[tuple[int, int], HeadMode] | Iterable[tuple[int, int]] = (),
    cuts: Sequence[Cut] = (),
    drop: Iterable[tuple[int, int]] = (),
    mode: Drop = "remove",
    swap: Swap | None = None,
    order: Sequence[int] | None = None,
    positions: bool = True,
    before: Tensor | None = None,
    target: TargetLike = None,
    contrast: Contrast | None = None,
) -> Change:
    """Run the model with changes and compare with the unchanged run. Changes can be combined.

    Regions are swapped first, then patches are dropped (including swapped ones) and put into another order; heads and
    edges are changed in the run over the remaining patches.

    Args:
        model: model in eval mode with a classifier, or with a target of the features; not changed.
        images: (B, channels, H, W) normalised pixels.
        heads: (block, head) -> "zero" or "mean", see `Edits`; a plain list of (block, head) means "zero".
        cuts: edges of attention to cut, see `Cut`.
        drop: patches (row, column) to drop; of the last stage in windowed models.
        mode: "remove" removes them from the sequence; the other modes paint over them, see `baseline_images`.
        swap: region to copy from other images.
        order: for each position of the grid, row by row, the number of the patch to move there.
        positions: if false, all patches get the same position, so that the model cannot tell their order.
        before: (B, C), the unchanged logits of these images, if known.
        target, contrast: a target to read before and after the changes, see `resolve_target`.

    Raises:
        AnalysisError: with neither a classifier nor a target of the features, in training mode, or if a patch, mode,
            swap or order does not fit.
        EditError: if a head or cut does not fit, or no token remains.
        ExplainError: for "black" with a model without preprocessing, or a target that does not fit.
    """
    features = reads_features(model, target)
    check_runs(model, mode, features=features)
    images = images.to(next(model.parameters()).device)
    grid, side = hidden_grid(model, images)
    dropped, patch = _mask(drop, grid).to(images.device), model.config.patch_size  # (gh, gw)
    keep: Tensor | None = None
    with torch.no_grad():
        outputs_before = _outputs(model, images, None, features, before)
        changed = images if swap is None else _swapped(images, swap, patch)
        if mode == "remove":
            keep = (~dropped).flatten().nonzero().T if dropped.any() else None  # (1, K)
        elif dropped.any():
            behind = baseline_images(model, changed, mode, side)
            changed = torch.where(pixel_mask(dropped[None], side), behind, changed)
        if order is not None:
            changed = _reordered(changed, order, patch)
        modes: dict[Any, HeadMode]  # JSON has lists instead of tuples
        zero = (tuple(place) if isinstance(place, list) else place for place in heads)
        modes = dict(heads) if isinstance(heads, Mapping) else dict.fromkeys(zero, "zero")
        outputs = _outputs(model, changed, Edits(heads=modes, cuts=cuts, keep=keep), features, positions=positions)
    return _change(model, outputs_before, outputs, target, contrast)


@torch.no_grad()
def change_of(
    model: ViT, before: Tensor, after: Tensor, target: TargetLike = None, contrast: Contrast | None = None
) -> Change:
    """Return the change of predictions between two runs from their final tokens, (B, N, D) each; see `intervene`."""
    features = reads_features(model, target)
    return _change(model, _read(model, before, features), _read(model, after, features), target, contrast)


@torch.no_grad()
def patch(
    model: ViT,
    trace: AttentionTrace,
    source: AttentionTrace,
    *,
    heads: Iterable[tuple[int, int]] = (),
    blocks: Iterable[int] = (),
    tokens: Iterable[tuple[int, Query]] = (),
    stream: int | None = None,
    target: TargetLike = None,
    contrast: Contrast | None = None,
) -> Change:
    """Run the model with some values from the run of another photograph, and compare with the run of its own.

    Activation patching: Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
    Analysis". The run starts at the first block with a change. Blocks count from 0, negative ones from the last.

    Args:
        model: the model of both traces.
        trace, source: traces of one image each with the same grid and all blocks, without edits.
        heads: (block, head), whose outputs come from the source.
        blocks: blocks whose attention and MLP add to the stream what they add in the source.
        tokens: (block, token), the tokens of the block's input that come from the source; a patch is (row, column).
        stream: a block whose whole input comes from the source, so the result is the source's.
        target, contrast: a target to read in both runs, see `resolve_target`.

    Raises:
        AnalysisError: without changes, for a windowed model, several images or other grids.
        EditError: if a block or head does not exist.
        TraceError: if a token does not exist, or a trace lacks a block.
    """
    model.check_converted()
    if trace.grid != source.grid or len(trace.tokens) != 1 or len(source.tokens) != 1:
        sizes = ", and ".join(f"{len(each.tokens)} of {each.grid[0]} x {each.grid[1]}" for each in (trace, source))
        raise AnalysisError(
            f"Expected two photographs with the same grid of patches, got {sizes}. Open both at one input size."
        )
    depth, angles = model.config.depth, model.angles(trace.grid)
    of_heads = [(index_in("block", block, depth, negative=True), head) for block, head in heads]
    of_blocks = {index_in("block", block, depth, negative=True) for block in blocks}
    of_tokens = [(index_in("block", block, depth, negative=True), trace.token(token)) for block, token in tokens]
    whole = [] if stream is None else [index_in("block", stream, depth, negative=True)]
    places = [*(block for block, _ in (*of_heads, *of_tokens)), *of_blocks, *whole]
    if not places:
        raise AnalysisError("Expected values to take from the other photograph, got none. Name a head or a block.")
    x = trace.stream(min(places))
    for block in range(min(places), depth):
        other, layer, edit = source.stream(block), model.blocks[block], BlockEdit()
        x = other if block in whole else x.clone()
        for token in (token for at, token in of_tokens if at == block):
            x[:, token] = other[:, token]
        if chosen := [index_in("head", head, model.config.heads) for at, head in of_heads if at == block]:
            layer(other, angles, record := Record())
            keep = torch.ones(model.config.heads, 1, 1, device=x.device, dtype=x.dtype)
            keep[chosen] = 0.0
            edit = BlockEdit(heads=Replacement(record.heads[0], keep))
        out = x + layer(other, angles) - other if block in of_blocks else layer(x, angles, Ops(edit))
        x = model.leave(block, out, angles)
    return change_of(model, trace.tokens, model.finish(x), target, contrast)


def _change(model: ViT, before: Outputs, after: Outputs, target: TargetLike, contrast: Contrast | None) -> Change:
    """Return the change between two results of `_read`."""
    labels = model.pretrained.labels if model.pretrained else ()
    change = Change(before[0].numpy(), after[0].numpy(), labels, model.problem_type)
    if target is None and contrast is None:
        return change
    resolved = resolve_target(model, before[0], target, contrast)
    assert resolved is not None  # a target is given
    readings = [resolved.reading(outputs[resolved.features]).numpy() for outputs in (before, after)]
    return replace(
        change,
        target=resolved.description,
        scale=resolved.reading_scale,
        target_before=readings[0],
        target_after=readings[1],
    )


def _outputs(
    model: ViT,
    images: Tensor,
    edits: Edits | None,
    features: bool,
    logits: Tensor | None = None,
    positions: bool = True,
) -> Outputs:
    """Run the model on images, and return its outputs; known `logits` of these images are not computed again."""
    if logits is not None and not features:
        return logits.detach().cpu().double(), torch.zeros(len(images), 0, dtype=torch.float64)
    if positions and not (edits or features) and model.head is not None:
        return model(images).detach().cpu().double(), torch.zeros(len(images), 0, dtype=torch.float64)
    embedded, grid = model.embed(images, positions=positions)
    return _read(model, model.encode(embedded, model.angles(grid) if positions else None, edits), features)


def _read(model: ViT, tokens: Tensor, features: bool) -> Outputs:
    """Return the outputs from final tokens (B, N, D)."""
    missing = tokens.new_zeros(len(tokens), 0)
    logits = missing if model.head is None else model.classify(tokens)
    pooled = model.read_out(tokens) if features else missing
    return logits.detach().cpu().double(), pooled.detach().cpu().double()


def hidden_grid(model: ViT, images: Tensor) -> tuple[tuple[int, int], int]:
    """Return rows and columns of the patches that can be hidden, and their side in pixels.

    They are the model's patches; in windowed models those of the last stage, because the first has very small ones.
    """
    grid = model.check(images)
    hidden = model.last_grid(grid)
    return hidden, model.config.patch_size * (grid[0] // hidden[0])


def check_runs(model: ViT, mode: Drop, *, features: bool = False) -> None:
    """Raise `AnalysisError` in training mode, for an unknown mode, or without a classifier unless features are read."""
    if model.head is None and not features:
        raise AnalysisError(
            "Expected a model with a classifier, got one without. Load one that predicts classes, or choose a target "
            f"of the features: {FEATURE_TARGETS}."
        )
    if model.training:
        raise AnalysisError("Expected a model in eval mode, got one in training mode. Call model.eval() first.")
    if mode not in get_args(Drop):
        raise AnalysisError(f"Expected one of {', '.join(get_args(Drop))}, got {mode!r}. Choose one of these.")
    if mode == "remove" and not model.removes_patches:
        model.check_converted()


def _mask(drop: Iterable[tuple[int, int]], grid: tuple[int, int]) -> Tensor:
    """Return the mask of dropped patches, bools (gh, gw)."""
    mask = torch.zeros(grid, dtype=torch.bool)
    for patch in drop:
        if len(patch) != 2 or not (0 <= patch[0] < grid[0] and 0 <= patch[1] < grid[1]):
            raise AnalysisError(
                f"Expected patches (row, column) inside the {grid[0]} x {grid[1]} grid, got {patch}. Count from 0."
            )
        row, column = patch
        mask[row, column] = True
    return mask


def _reordered(images: Tensor, order: Sequence[int], patch: int) -> Tensor:
    """Return the images with their patches in another order; see `intervene`."""
    rows, columns = (side // patch for side in images.shape[2:])
    if sorted(order) != list(range(rows * columns)):
        raise AnalysisError(
            f"Expected each patch from 0 to {rows * columns - 1} once in the order, got {len(order)} numbers. "
            "List every patch."
        )
    tiles = images.unflatten(3, (columns, patch)).unflatten(2, (rows, patch))  # (B, channels, gh, p, gw, p)
    listed = tiles.transpose(3, 4).flatten(2, 3)[:, :, list(order)]  # (B, channels, gh * gw, p, p)
    out: Tensor = listed.unflatten(2, (rows, columns)).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return out


def _swapped(images: Tensor, swap: Swap, patch: int) -> Tensor:
    """Return the images with a region copied from other images."""
    height, width = images.shape[2:]
    if swap.images.shape[1:] != images.shape[1:] or len(swap.images) not in (1, len(images)):
        raise AnalysisError(
            f"Expected swap images of shape {tuple(images.shape)}, got {tuple(swap.images.shape)}. "
            "Preprocess them alike."
        )
    left, top, right, bottom = swap.box
    if not (0 <= left < right <= width and 0 <= top < bottom <= height) or any(edge % patch for edge in swap.box):
        raise AnalysisError(
            f"Expected a box (left, top, right, bottom) inside {width} x {height} pixels with edges at multiples of "
            f"{patch}, got {tuple(swap.box)}. Move its edges."
        )
    region = (..., slice(top, bottom), slice(left, right))
    out = images.clone()
    out[region] = swap.images[region].to(images)
    return out
