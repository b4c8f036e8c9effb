"""Audit a folder of photographs: do predictions rest on the object, or on the background (a spurious correlation)?

A mask splits the patches of each photograph into foreground and background. The model then sees the tokens of one part
alone; the other tokens are removed from the sequence. Random sets of patches with the size and outline of the
foreground, and their complements, are the control: they show how many predictions survive the loss of as many patches.

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
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis.pca_basis import fit_pca
from vitviz.attribution.registry import attribute, method_named
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.audit_table import Audit
from vitviz.evaluation.localization import Mask
from vitviz.evaluation.masking import MaskedModel
from vitviz.evaluation.runs import Maps, Measure, Stage, Subject, run
from vitviz.images.decoding import decode
from vitviz.images.folders import Labeled, batches, class_names, find_images, spread
from vitviz.images.geometry import Geometry
from vitviz.model.correlation import spearman
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import fingerprint

METHODS = ("attn_lrp", "gae")
"""Default methods; the report shows the maps of the first one."""
SETS = 3
"""Default number of random sets for each photograph."""
KIND = "audit 2"
"""Task of the records; its number counts their formats."""
PCA_PHOTOS = 24  # photographs to which the principal components of proposed masks are fitted
MIN_COVERED, MAX_COVERED = 0.05, 0.9  # a usable mask has a share of the patches between these

MaskOf = Callable[[Path, AttentionTrace, Geometry], Mask]
"""Return the mask (gh, gw) of a photograph from its file, its trace and its geometry."""


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
        "masks": "given" if masks is not None else _named(sample, root),
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
    names = tuple(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    if not names or sets < 0 or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected at least one method, sets of at least 0 and a limit of at least 1, got {names}, {sets} and "
            f"{limit}. Change them."
        )
    for name in names:
        method_named(name)
    if not model.removes_patches:
        raise EvaluationError(
            "Expected a model that can run without some patches, got one with windows or a captured module. To test a "
            "single map by painting over patches, call view.faithfulness(heatmap)."
        )
    return about, names


def _named(sample: Sequence[Labeled], root: Path) -> str:
    """Return the setting that identifies masks proposed from these photographs, with a checksum of their names."""
    names = " ".join(path.relative_to(root).as_posix() for path, _ in sample)
    return f"proposed from {len(sample)} photographs: {zlib.crc32(os.fsencode(names)):08x}"


def _proposed(model: ViT, sample: Sequence[Labeled]) -> MaskOf:
    """Fit principal components to the photographs of `sample`, and return a function that proposes masks (gh, gw)."""
    about = check_classifies(model)
    weight = next(model.parameters())
    loaded = batches(sample, about.preprocess, 1)
    basis = fit_pca(model, [model.trace(batch.images.to(weight.device, weight.dtype)) for batch in loaded])

    def propose(_path: Path, trace: AttentionTrace, _geometry: Geometry) -> Mask:
        return basis.foreground(model, trace)

    return propose


def _from_files(masks: Path, root: Path) -> MaskOf:
    """Return a function that reads the mask file of a photograph and returns the patches mostly inside, (gh, gw).

    Raises:
        ImageError: if a mask is missing or cannot be decoded.
        EvaluationError: if its size is not that of the photograph.
    """

    def read(path: Path, trace: AttentionTrace, geometry: Geometry) -> Mask:
        place = (masks / path.relative_to(root)).with_suffix(".png")
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


def same_outline(mask: Mask, count: int, generator: np.random.Generator) -> Mask:
    """Return copies of a mask that are randomly mirrored and shifted: (R, gh, gw).

    Shifts wrap around the borders, so that each copy has as many patches as the mask.
    """
    rows, columns = mask.shape
    copies = []
    for _ in range(count):
        mirrored = mask[:: generator.choice((1, -1)), :: generator.choice((1, -1))]
        shift = divmod(int(generator.integers(1, max(2, rows * columns))), columns)  # not (0, 0)
        copies.append(np.roll(mirrored, shift, axis=(0, 1)))
    return np.array(copies, bool).reshape(count, rows, columns)


@dataclass(eq=False, kw_only=True)
class _Photo(Subject):
    """A photograph whose predicted class is the target.

    Args:
        trace: trace of its pixels.
        mask: which patches are foreground, (gh, gw).
    """

    trace: AttentionTrace
    mask: Mask


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
        loaded = batches([(path, 0) for path in paths], check_classifies(self.model).preprocess, 1)
        for key, batch in zip(keys, loaded, strict=True):
            images = batch.images.to(weight.device, weight.dtype)
            with torch.no_grad():
                trace = self.model.trace(images)
            assert trace.logits is not None  # a classifier
            mask, target = mask_of(batch.paths[0], trace, batch.geometries[0]), int(trace.logits[0].argmax())
            yield _Photo(key=key, model=self.model, images=images, target=target, trace=trace, mask=mask)

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
        return [record | (self._parts(photo.images, answer, mask, key) if usable else {})]

    def _parts(self, images: Tensor, answer: int, mask: Mask, key: str) -> dict[str, Any]:
        """Return the prediction and the probability of `answer` for the foreground, the background and random sets."""
        generator = np.random.default_rng(zlib.crc32(f"{self.seed} {key}".encode(errors="surrogateescape")))
        chosen = np.concatenate([mask[None], same_outline(mask, self.sets, generator)])  # (1 + R, gh, gw)
        visible = torch.from_numpy(np.concatenate([chosen, ~chosen]).reshape(2 * len(chosen), -1))  # (2 + 2 R, n)
        outputs = MaskedModel(self.model, images).outputs(visible, torch.zeros(len(visible), dtype=torch.long))
        probabilities, answers = outputs.softmax(-1)[:, answer].tolist(), outputs.argmax(-1).tolist()
        parts: dict[str, Any] = {}
        for name, first in (("foreground", 0), ("background", len(chosen))):
            last = first + len(chosen)
            parts[name] = probabilities[first]
            parts[f"{name}_answer"] = answers[first]
            parts[f"random_{name}"] = probabilities[first + 1 : last]
            parts[f"random_{name}_answers"] = answers[first + 1 : last]
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
