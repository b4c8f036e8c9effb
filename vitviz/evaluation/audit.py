"""Audit a folder of photographs: do predictions rest on the object, or on the background (a spurious correlation)?

A mask splits the patches of each photograph into foreground and background. The model then sees the tokens of one part
alone; the other tokens are removed from the sequence. In a third run, it sees all but the most relevant patches of the
background. Random sets of patches of the same size and similar outline are the control: they show how many predictions
survive the loss of as many patches. A shortcut of colors lies on all patches; for it, the model sees the photograph in
shades of gray.

Shapes: n = gh x gw patches, R random sets, M methods, H x W pixels of the upright photograph.
"""

import base64
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis.pca_basis import fit_pca
from vitviz.attribution.baselines import gaussian
from vitviz.attribution.registry import attribute, methods_named
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.audit_table import GRAY, MAX_COVERED, MIN_COVERED, PARTS, Audit
from vitviz.evaluation.localization import Mask
from vitviz.evaluation.masking import MaskedModel
from vitviz.evaluation.runs import Maps, Measure, Stage, Subject, run
from vitviz.fields import check_arguments
from vitviz.images.decoding import decode
from vitviz.images.folders import Batch, Labeled, batches, class_names, find_images, spread
from vitviz.images.geometry import Geometry
from vitviz.model.correlation import spearman
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import fingerprint

METHODS = ("attn_lrp", "gae")
"""Default methods; the report shows the maps of the first one."""
SETS = 3
"""Default number of random sets for each photograph."""
KIND = "audit 3"
"""Task of the records; its number counts their formats."""
PCA_PHOTOS = 24  # photographs to which the principal components of proposed masks are fitted
HIDDEN = 0.2  # share of the patches to hide in the background, the most relevant ones first

SAME = 0.1  # patches count as copies up to this mean difference of normalised pixels (about 6 of 255 gray levels)

MaskOf = Callable[[Batch, AttentionTrace], Mask]
"""Return the mask (gh, gw) of a photograph from a batch of this photograph and its trace."""


@check_arguments(EvaluationError)
def audit(
    model: ViT,
    folder: str | os.PathLike[str],
    methods: str | Sequence[str] = METHODS,
    *,
    masks: str | os.PathLike[str] | None = None,
    sets: int = SETS,
    limit: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Audit:
    """Test whether a model's predictions for a folder of photographs rest on the object or on the background.

    Each photograph runs separately, and its random sets depend only on its name and the seed, so an interrupted run can
    continue from its file of records. Under torchrun (RANK, WORLD_SIZE), process i % world runs photograph i, and every
    process returns the same result.

    Args:
        model: a converted classifier with `pretrained`; runs on its device in eval mode.
        folder: folder of photographs, searched recursively. A subfolder named after a class gives the true class of
            its photographs.
        methods: names of attribution methods. With several, the disagreement of their maps is measured.
        masks: folder of masks, whose pixels above 0 are the object. The mask of cat/1.jpg is cat/1.png. By default,
            masks are proposed from the first principal component of the tokens, fitted to some of the photographs.
            Patches that are repeated in one of these, such as a tag, do not belong to the object.
        sets: R, number of random sets for each photograph; 0 for none.
        limit: maximum number of photographs, spread evenly over the subfolders.
        seed: seed of the random sets.
        out: JSON lines file with one line per photograph, appended immediately. Existing records are reused.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if the model has no classes or cannot run without some patches, or if `out` has other settings.
        DataError: for a folder without images or with broken images.
        ExplainError: if a method does not exist, or does not support this model.
        ImageError: if a mask cannot be read.
    """
    about, names = _checked(model, methods, sets, limit)
    root = Path(folder)
    photos, sample = spread(find_images(root), limit), spread(find_images(root), PCA_PHOTOS)
    keys = [path.relative_to(root).as_posix() for path, _ in photos]
    settings = {
        "kind": KIND, "model": about.name, "weights": fingerprint(model), "preprocess": about.preprocess.to_dict(),
        "methods": list(names), "sets": sets, "seed": seed,
        "masks": _named(sample, root) if masks is None else _given(Path(masks), root),
    }  # fmt: skip
    auditor = _Auditor(model, names, sets, seed, class_names(about.labels, about.class_ids))

    def subjects(todo: Sequence[str]) -> Iterator[Subject]:
        mask_of = _proposed(model, sample) if masks is None else _from_files(Path(masks), root)
        yield from auditor.subjects(todo, [root / key for key in todo], mask_of)

    measure = Measure(task=KIND, rows=auditor.rows, others=names[:1], of_methods=False)
    stage = Stage(keys=keys, subjects=subjects, measures=[measure])
    found = run(model, [stage], (), settings, out=out, strict=True, progress=progress)
    records = tuple(found[KIND, key, names[0]] for key in keys)
    return Audit(records=records, labels=about.labels, settings=settings, folder=str(root))


def _checked(
    model: ViT, methods: str | Sequence[str], sets: int, limit: int | None
) -> tuple[Pretrained, tuple[str, ...]]:
    """Check the arguments of `audit`, and return the metadata of the model and the names of the methods."""
    about = check_classifies(model)
    names = tuple(methods_named(methods))
    if not names or sets < 0 or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected at least one method, sets of at least 0 and a limit of at least 1, got {names}, {sets} and "
            f"{limit}. Change them."
        )
    if not model.removes_patches:
        raise EvaluationError(
            "Expected a model that can run without some patches, got one with windows or a captured module. To test a "
            "single map by painting over patches, call view.faithfulness(heatmap)."
        )
    return about, names


def _named(sample: Sequence[Labeled], root: Path) -> str:
    """Return a checksum of the names of the photographs from which masks are proposed."""
    names = " ".join(path.relative_to(root).as_posix() for path, _ in sample)
    return f"proposed from {len(sample)} photographs: {zlib.crc32(os.fsencode(names)):08x}"


def _given(masks: Path, root: Path) -> str:
    """Return a checksum of the mask files, by which records show whether they were made with these masks."""
    places = [_mask_file(masks, root, path) for path, _ in spread(find_images(root), None)]
    checksum = 0
    for place in places:
        checksum = zlib.crc32(place.read_bytes() if place.is_file() else b"", checksum)
    return f"given: {checksum:08x}"


def _mask_file(masks: Path, root: Path, path: Path) -> Path:
    """Return the file of a photograph's mask."""
    return (masks / path.relative_to(root)).with_suffix(".png")


def _proposed(model: ViT, sample: Sequence[Labeled]) -> MaskOf:
    """Fit principal components to the photographs of `sample`, and return a function that proposes masks (gh, gw)."""
    about = check_classifies(model)
    weight = next(model.parameters())
    loaded = [*batches(sample, about.preprocess, 1)]
    basis = fit_pca(model, [model.trace(batch.images.to(weight.device, weight.dtype)) for batch in loaded])

    def propose(photo: Batch, trace: AttentionTrace) -> Mask:
        others = [other.images for other in loaded if other.paths != photo.paths]
        return basis.foreground(model, trace) & ~repeated(photo.images, others, trace.grid)

    return propose


def repeated(images: Tensor, others: Sequence[Tensor], grid: tuple[int, int]) -> Mask:
    """Return which patches have almost the same pixels at the same place in another photograph: (gh, gw).

    Their neighbors count, too, because a tag or a border rarely ends at the edge of a patch.

    Args:
        images: (1, channels, H, W) normalised pixels.
        others: other photographs; those of another size and copies of the same photograph are ignored.
        grid: (gh, gw).
    """
    found = torch.zeros(1, *grid)
    for other in others:
        if other.shape == images.shape:
            difference = (images - other).abs().mean(1)  # (1, H, W)
            same = F.adaptive_avg_pool2d(difference, grid) < SAME
            found += same if same.float().mean() <= MAX_COVERED else 0  # not of a copy of the photograph
    return np.asarray(F.max_pool2d(found, 3, stride=1, padding=1)[0] > 0)


def _from_files(masks: Path, root: Path) -> MaskOf:
    """Return a function that reads the mask file of a photograph and returns the patches mostly inside, (gh, gw).

    Raises:
        ImageError: if a mask is missing or cannot be decoded.
        EvaluationError: if its size is not that of the photograph.
    """

    def read(photo: Batch, trace: AttentionTrace) -> Mask:
        (path,), (geometry,) = photo.paths, photo.geometries
        place = _mask_file(masks, root, path)
        pixels = np.asarray(decode(place).convert("L")) > 0
        if pixels.shape != geometry.image[::-1]:
            raise EvaluationError(
                f"Expected a mask of the upright photograph's size, {geometry.image[0]} x {geometry.image[1]} pixels, "
                f"got {pixels.shape[1]} x {pixels.shape[0]} in {str(place)!r}. Resize it."
            )
        return patch_mask(pixels, geometry, trace.grid)

    return read


def patch_mask(pixels: Mask, geometry: Geometry, grid: tuple[int, int]) -> Mask:
    """Return which patches have more than half of their pixels inside a mask (H, W): (gh, gw).

    Pixels of a patch that lie outside the photograph, in the padding, do not count.
    """
    height, width = pixels.shape
    mask = np.zeros(grid, bool)
    for row in range(grid[0]):
        for column in range(grid[1]):
            left, top, right, bottom = geometry.patch_box(row, column, grid)
            across = slice(max(0, round(left)), min(width, max(round(left) + 1, round(right))))
            down = slice(max(0, round(top)), min(height, max(round(top) + 1, round(bottom))))
            inside = pixels[down, across]
            mask[row, column] = inside.size > 0 and inside.mean() > 0.5
    return mask


def same_outline(
    mask: Mask, count: int, generator: np.random.Generator, allowed: Mask | None = None
) -> NDArray[np.bool_]:
    """Return random sets of as many patches as a mask, with a similar outline: (R, gh, gw).

    The mask continues behind the borders of the grid as in a mirror, and each set is what a shifted grid shows of it.
    Then patches at its edges are added or removed until its size is that of the mask.

    Args:
        mask: a mask (gh, gw).
        count: R.
        generator: random number generator.
        allowed: patches that the sets may contain, (gh, gw), at least as many as the mask has; by default all.
    """
    (rows, columns), size = mask.shape, int(mask.sum())
    plane = np.pad(mask.astype(float), ((rows, rows), (columns, columns)), mode="symmetric")
    down, across = (gaussian(extent, 1.0).numpy() for extent in plane.shape)
    plane += down @ plane @ across.T  # above 1 inside the mask; outside, it falls with the distance
    sets = np.zeros((count, rows * columns), bool)
    for chosen in sets:
        top, left = (int(generator.integers(2 * extent + 1)) for extent in mask.shape)
        seen = plane[top : top + rows, left : left + columns]
        order = np.argsort(-(seen if allowed is None else np.where(allowed, seen, -1.0)), axis=None, kind="stable")
        chosen[order[:size]] = True
    return sets.reshape(count, rows, columns)


def most_relevant(scores: NDArray[np.floating[Any]], allowed: Mask) -> Mask:
    """Return the allowed patches with the highest scores, at most `HIDDEN` of all patches: (gh, gw)."""
    size = min(max(1, round(HIDDEN * scores.size)), int(allowed.sum()))
    order = np.argsort(-np.where(allowed, scores, -np.inf), axis=None, kind="stable")
    chosen = np.zeros(scores.size, bool)
    chosen[order[:size]] = True
    return chosen.reshape(scores.shape)


@dataclass(eq=False, kw_only=True)
class _Photo(Subject):
    """A photograph whose predicted class is the target.

    Args:
        trace: trace of its pixels.
        mask: which patches are foreground, (gh, gw).
        gray: (1, channels, H, W) normalised pixels of the photograph in shades of gray.
    """

    trace: AttentionTrace
    mask: Mask
    gray: Tensor


@dataclass(frozen=True)
class _Auditor:
    """Compute the records of photographs.

    Args:
        model, methods, sets, seed: as for `audit`.
        classes: index of each class by the name of its folder.
    """

    model: ViT
    methods: tuple[str, ...]
    sets: int
    seed: int
    classes: Mapping[str, int]

    def subjects(self, keys: Sequence[str], paths: Sequence[Path], mask_of: MaskOf) -> Iterator[_Photo]:
        """Yield photographs, given their paths below the folder and their files."""
        weight = next(self.model.parameters())
        preprocess = check_classifies(self.model).preprocess
        loaded = batches([(path, 0) for path in paths], preprocess, 1)
        for key, batch in zip(keys, loaded, strict=True):
            images = batch.images.to(weight.device, weight.dtype)
            with torch.no_grad():
                trace = self.model.trace(images)
            assert trace.logits is not None  # a classifier
            mask, target = mask_of(batch, trace), int(trace.logits[0].argmax())
            gray = torch.from_numpy(preprocess(decode(batch.paths[0]).convert("L").convert("RGB")).pixels)[None]
            yield _Photo(key=key, model=self.model, images=images, target=target, trace=trace, mask=mask, gray=gray)

    def rows(self, photo: Subject, _maps: Maps, _others: Sequence[str]) -> list[dict[str, Any]]:
        """Return the record of one photograph."""
        assert isinstance(photo, _Photo)
        assert photo.trace.logits is not None  # a classifier
        key, mask, answer, logits = photo.key, photo.mask, photo.target, photo.trace.logits[0].float()
        heatmaps = [attribute(self.model, photo.images, answer, name, trace=photo.trace)[0] for name in self.methods]
        maps = [heatmap.values for heatmap in heatmaps]  # (gh, gw) each
        record: dict[str, Any] = {
            "method": self.methods[0], "confidence": float(logits.softmax(-1)[answer]),
            "known": check_classifies(self.model).knows(logits),
            "label": next((self.classes[part] for part in key.split("/")[-2::-1] if part in self.classes), None),
            "covered": float(mask.mean()), "mask": _packed(mask), "grid": list(mask.shape),
            "map": as_levels(maps[0]), "disagreement": _disagreement(maps),
            **{f"inside_{name}": _inside(scores, mask) for name, scores in zip(self.methods, maps, strict=True)},
        }  # fmt: skip
        usable = MIN_COVERED <= float(mask.mean()) <= MAX_COVERED
        return [record | (self._parts(photo, maps[0]) if usable else {})]

    def _parts(self, photo: "_Photo", scores: NDArray[np.floating[Any]]) -> dict[str, Any]:
        """Return the prediction and the probability of the target for each part, for random sets, and without colors.

        Args:
            photo: a photograph with a usable mask.
            scores: map of the first method, (gh, gw).
        """
        seed = f"{self.seed} {photo.key}".encode(errors="surrogateescape")
        mask, generator = photo.mask, np.random.default_rng(zlib.crc32(seed))
        hidden = most_relevant(scores, ~mask)
        shifted = np.stack([mask, *same_outline(mask, self.sets, generator)])  # (1 + R, gh, gw)
        others = np.stack([hidden, *same_outline(hidden, self.sets, generator, ~mask)])
        visible = np.stack([shifted, ~shifted, ~others])  # (3, 1 + R, gh, gw)
        rows = torch.from_numpy(visible.reshape(-1, mask.size))  # (3 + 3 R, n)
        outputs = MaskedModel(self.model, photo.images).outputs(rows, torch.zeros(len(rows), dtype=torch.long))
        with torch.no_grad():
            gray = self.model(photo.gray.to(photo.images))[0].cpu().double()
        parts: dict[str, Any] = {}
        for name, logits in zip(PARTS, [*outputs.split(1 + self.sets), gray[None]], strict=True):
            probability, *random = logits.softmax(-1)[:, photo.target].tolist()
            answer, *answers = logits.argmax(-1).tolist()
            parts |= {name: probability, f"{name}_answer": answer}
            parts |= {f"random_{name}": random, f"random_{name}_answers": answers} if name != GRAY else {}
        return parts


def _inside(scores: NDArray[np.float32], mask: Mask) -> float | None:
    """Return the share of a map's positive relevance inside a mask; `None` for a map without positive relevance."""
    positive = np.clip(scores, 0.0, None).astype(np.float64)
    total = float(positive.sum())
    return float(positive[mask].sum()) / total if total > 0 else None


def _disagreement(maps: Sequence[NDArray[np.float32]]) -> float | None:
    """Return 1 minus the mean rank correlation over all pairs of maps; `None` for a single map or a constant one."""
    rows = torch.from_numpy(np.stack(maps).reshape(len(maps), -1))  # (M, n)
    pairs = torch.combinations(torch.arange(len(maps)))  # (M (M - 1) / 2, 2)
    if not len(pairs):
        return None
    mean = float(spearman(rows[pairs[:, 0]], rows[pairs[:, 1]]).mean())
    return None if np.isnan(mean) else 1.0 - mean


def as_levels(scores: NDArray[np.floating[Any]]) -> str:
    """Return the positive part of a map in base64, one byte for each patch; 255 is the maximum."""
    positive = np.clip(scores, 0.0, None)
    levels = (255 * positive / max(float(positive.max()), 1e-30)).round().astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode()


def _packed(mask: Mask) -> str:
    """Return a mask as one bit for each patch, row by row, in base64."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode()
