"""Compute statistics of attention heads: distance, entropy, targets, and importance for the prediction.

Shapes: B images, L blocks, H heads, N tokens = P prefix tokens followed by gh x gw patches.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.attention_statistics import QueryRange, row_statistics
from vitviz.analysis.importance import Importance
from vitviz.analysis.statistic import Reads, Statistic
from vitviz.attribution.target_specs import Contrast, TargetLike, TargetOf, resolve_target
from vitviz.formatting import data_frame, short_repr, text_table
from vitviz.images.folders import batches, find_images, spread
from vitviz.images.geometry import Geometry
from vitviz.model.trace import AttentionTrace, Query
from vitviz.model.vit import ViT, eval_mode
from vitviz.plugins import Registry
from vitviz.progress import bar
from vitviz.weights.captured import Captured
from vitviz.writing import write_table

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
_NO_TARGET = "this model has no classifier, and no target is given"
_PARTED = "models with attention in windows have no matrix over all tokens and no edits"


STATISTICS = Registry(
    Statistic,
    "vitviz.analysis",
    "STATISTICS",
    "vitviz.statistics",
    lambda statistics: get_args(Reads).index(statistics[0].reads),
)
"""All statistics by name, cheap modules first, plug-ins last."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadStatistics:
    """Statistics of every head over one or several images.

    Args:
        samples: name -> (B, L, H), per image; NaN if missing.
        missing: name -> reason for NaN values.
        blocks: the L block indices, from 0.
        query: the query: "patches", or a token such as "cls" or "(3, 4)".
        target: display name of the target of the importances; empty without importances.
        scale: scale of the target's score: logit, value or cosine; empty without importances.
        heads: heads of each block if blocks differ; numbers of other heads are NaN.
        stages: stage of each block, from 1, in models with stages.
    """

    samples: Mapping[str, Array]
    blocks: tuple[int, ...]
    missing: Mapping[str, str]
    query: str
    target: str
    scale: str = ""
    heads: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()

    __repr__ = short_repr

    @property
    def images(self) -> int:
        """Return B, the number of images."""
        return len(next(iter(self.samples.values())))

    @property
    def values(self) -> dict[str, Array]:
        """Return the mean of each statistic over the images: name -> (L, H)."""
        return {name: values.mean(0) for name, values in self.samples.items()}

    @property
    def deviations(self) -> dict[str, Array]:
        """Return the standard deviation of each statistic over the images, 0 for one image: name -> (L, H)."""
        return {name: values.std(0) for name, values in self.samples.items()}

    def __getitem__(self, name: str) -> Array:
        """Return the mean of one statistic over the images, (L, H).

        Raises:
            AnalysisError: if the statistic was not computed.
        """
        if name not in self.samples:
            names = ", ".join(self.samples)
            raise AnalysisError(f"Expected one of the statistics {names}, got {name!r}. Compute it with names=[...].")
        mean: Array = self.samples[name].mean(0)
        return mean

    @property
    def present(self) -> tuple[str, ...]:
        """Return the names of the statistics that have values."""
        return tuple(name for name in self.samples if name not in self.missing)

    @property
    def header(self) -> list[str]:
        """Return the column headings of `rows`, with units."""
        names = ["block (from 0)", *(["stage (from 1)"] if self.stages else []), "head (from 0)"]
        for name in self.present:
            heading = STATISTICS[name].heading
            names.append(heading)
            if self.images > 1:
                names.append(heading.replace(name, f"{name} deviation"))
        return names

    def rows(self) -> list[list[float]]:
        """Return one row per head; missing statistics have no column."""
        kinds = [self.values, self.deviations] if self.images > 1 else [self.values]
        columns = [self._per_head(kind[name]) for name in self.present for kind in kinds]  # each has L * H numbers
        return [[*place, *numbers] for place, *numbers in zip(self._places(), *columns, strict=True)]

    def to_pandas(self) -> "pd.DataFrame":
        """Return `rows` as a table with columns named block, head, distance, ...

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        names = [heading.partition(" [")[0].partition(" (")[0].replace(" ", "_") for heading in self.header]
        return data_frame(dict(zip(names, zip(*self.rows(), strict=True), strict=True)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `header` and `rows` as CSV."""
        write_table(path, [self.header, *self.rows()])

    def table(self) -> str:
        """Return the means as text for a terminal, with layers and heads from 1."""
        means = [[f"{mean:.4g}" for mean in self._per_head(self[name])] for name in self.present]
        rows = [
            [str(block + 1), *map(str, stage), str(head + 1), *row]
            for (block, *stage, head), *row in zip(self._places(), *means, strict=True)
        ]
        heading = [
            "layer",
            *(["stage"] if self.stages else []),
            "head",
            *(STATISTICS[name].heading for name in self.present),
        ]
        missing = [f"no {name}: {why}" for name, why in self.missing.items()]
        target = [f"target: {self.target} ({self.scale})"] if self.target else []
        return "\n".join([text_table([heading, *rows], left=0), *target, *missing])

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Return the number of heads of each block."""
        return self.heads or (next(iter(self.samples.values())).shape[2],) * len(self.blocks)

    def _per_head(self, values: Array) -> list[float]:
        """Return the numbers of existing heads, block by block: (L, H)."""
        return [number for row, count in zip(values.tolist(), self.head_counts, strict=True) for number in row[:count]]

    def _places(self) -> list[tuple[int, ...]]:
        """Return block, stage (if any) and head of each row."""
        stages: list[tuple[int, ...]] = [(stage,) for stage in self.stages] or [()] * len(self.blocks)
        blocks = zip(self.blocks, stages, self.head_counts, strict=True)
        return [(block, *stage, head) for block, stage, count in blocks for head in range(count)]


def head_statistics(
    model: ViT,
    trace: AttentionTrace,
    geometry: Geometry | Sequence[Geometry] | None = None,
    *,
    names: Collection[str] | None = None,
    query: Query | None = None,
    target: TargetLike = None,
    contrast: Contrast | None = None,
) -> HeadStatistics:
    """Compute statistics of every head of a trace.

    Args:
        model: the model of the trace, in eval mode.
        trace: trace of one or several images; "gradient" and the ablations need one without edits.
        geometry: geometry for `distance_pixels`, one for all images or one for each.
        names: names of `STATISTICS`; by default the statistics that read rows of attention.
        query: the query token; by default the mean over all patches. In windowed models, a patch of every block's
            stage; statistics are means over windows without padding, and distances count patches of the stage.
        target, contrast: the target of the importances, see `resolve_target`; by default the predicted class.

    Raises:
        AnalysisError: if a statistic does not exist, the geometries do not fit, or the query is a mean.
        TraceError: if the trace lacks the token or a block.
        ExplainError: if the target does not exist.
    """
    if names is None:
        names = [name for name, statistic in STATISTICS.items() if statistic.reads == "rows"]
    unknown = sorted(set(names) - set(STATISTICS))
    if unknown or not names:
        raise AnalysisError(f"Expected names among {', '.join(STATISTICS)}, got {unknown or 'none'}. Choose some.")
    chosen = [statistic for name, statistic in STATISTICS.items() if name in names]  # in the order of STATISTICS
    heads = tuple(map(trace.heads_in, trace.blocks))
    parted = _PARTED if trace.windowed else ""
    of_rows, of_matrices, of_model = (
        {statistic.name: statistic.function for statistic in chosen if statistic.reads == reads}
        for reads in ("rows", "matrix", "model")
    )
    blocks: dict[str, list[Tensor | str]] = {}
    with torch.no_grad():
        for block in trace.blocks:
            block_trace, queries = trace.block(block), QueryRange.of(trace, geometry, query, block)
            token = None if query is None else trace.token(query, block)
            of_block = row_statistics(block_trace, queries, of_rows)
            of_block |= {name: parted or function(block_trace) for name, function in of_matrices.items()}
            for name, values in of_block.items():
                per_image = trace.per_image(block, values, token) if isinstance(values, Tensor) else values
                blocks.setdefault(name, []).append(per_image)
    resolved = resolve_target(model, trace.logits, target, contrast, trace.batch)
    importances = None if resolved is None else Importance(model, trace, resolved)
    results: dict[str, Tensor | str] = {
        name: parted or (_NO_TARGET if importances is None else function(importances))
        for name, function in of_model.items()
    }
    for name, per_block in blocks.items():
        arrays = [values for values in per_block if not isinstance(values, str)]
        padded = [F.pad(values, (0, max(heads) - values.shape[1]), value=torch.nan) for values in arrays]
        results[name] = torch.stack(padded, dim=1) if arrays else per_block[0]  # L x (B, H) -> (B, L, H)
    blank = torch.full((trace.batch, len(trace.blocks), max(heads)), torch.nan).numpy()
    results = {statistic.name: results[statistic.name] for statistic in chosen}
    return HeadStatistics(
        samples={name: blank if isinstance(values, str) else values.numpy() for name, values in results.items()},
        missing={name: reason for name, reason in results.items() if isinstance(reason, str)},
        blocks=trace.blocks,
        query="patches" if query is None else str(query),
        target=importances.target.description if importances and of_model else "",
        scale=importances.target.score_scale if importances and of_model else "",
        heads=heads if parted else (),
        stages=stages_of(trace),
    )


def stages_of(trace: AttentionTrace) -> tuple[int, ...]:
    """Return the stage number of each block, from 1; empty for models with one stage."""
    layouts = trace.layouts if isinstance(trace, Captured) else ()
    return tuple(layouts[block].stage + 1 for block in trace.blocks if trace.stage_name(block))


def folder_statistics(
    model: ViT,
    folder: str | os.PathLike[str],
    *,
    names: Collection[str] | None = None,
    query: Query | None = None,
    target: TargetOf | None = None,
    contrast: Contrast | None = None,
    batch_size: int = 8,
    limit: int | None = None,
    size: int | None = None,
    progress: bool = True,
) -> HeadStatistics:
    """Compute statistics of every head over the images of a folder.

    Each image goes through `decode` and the model's `Preprocess`; pixel distances refer to its own photograph.

    Args:
        model: model with `pretrained`; runs on its device in eval mode.
        folder: folder of images, searched recursively.
        names, query: as for `head_statistics`.
        target, contrast: the target of the importances; by default each image's predicted class.
        batch_size: images per batch; only images of equal size run together.
        limit: maximum number of images, spread evenly over the subfolders.
        size: input size in pixels, see `Preprocess.at`; the model's own by default.
        progress: show progress on standard error.

    Raises:
        AnalysisError: if the model has no preprocessing, a number is below 1, or a statistic does not exist.
        DataError: without images, or if files cannot be decoded.
    """
    if (about := model.pretrained) is None:
        raise AnalysisError("Expected a model with preprocessing (`pretrained`), got one without. Load it by name.")
    if min(batch_size, 1 if limit is None else limit) < 1:
        raise AnalysisError(f"Expected batch_size and limit of at least 1, got {batch_size} and {limit}. Raise them.")
    preprocess = about.preprocess if size is None else about.preprocess.at(size, model.config.size_multiple)
    files = spread(find_images(Path(folder)), limit)
    weight = next(model.parameters())
    parts: list[HeadStatistics] = []
    with eval_mode(model), bar(len(files), show=progress) as counted:
        for batch in batches(files, preprocess, batch_size):
            trace = model.trace(batch.images.to(weight.device, weight.dtype))
            parts.append(
                head_statistics(
                    model, trace, batch.geometries, names=names, query=query, target=target, contrast=contrast
                )
            )
            counted.update(len(batch.images))
    first = parts[0]  # the folder has images
    return replace(
        first,
        samples={name: np.concatenate([part.samples[name] for part in parts]) for name in first.samples},
        missing={name: why for part in parts for name, why in part.missing.items()},
        target="each image's predicted class" if first.target and target is None and contrast is None else first.target,
    )
