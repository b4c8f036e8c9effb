"""What tells heads apart: where they look, how sharply, at what, and how much the answer rests on them.

Shapes: B images, L blocks, H heads, N tokens = P prefix tokens followed by gh x gw patches.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.explain.case import Named, resolve_target
from vitviz.model import ViT
from vitviz.preprocess import Geometry
from vitviz.probe import ProbeError
from vitviz.probe.importance import Of, head_ablations, head_gradients
from vitviz.probe.measures import Layout, effective_rank, measure
from vitviz.trace import Query, Trace

Array = NDArray[np.float64]

RANK_TOKENS = 600
"""Up to so many tokens the effective rank is computed: the singular values of every head take O(N³)."""


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number for each head, as the page, the command line and the documents describe it.

    Args:
        name: in code and in tables.
        title: for people.
        unit: what it is counted in; empty for pure numbers.
        about: what it is, in a sentence or two.
        low, high: its bounds, or `None` where it has none: for the ends of a colour scale.
        reads: what it is computed from. "rows" of attention are cheap, the whole "matrix" is O(N³), the "model" is
            run again.
    """

    name: str
    title: str
    unit: str
    about: str
    low: float | None
    high: float | None
    reads: Literal["rows", "matrix", "model"]

    @property
    def heading(self) -> str:
        """Name and unit, as over a column."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def _rows(name: str, title: str, unit: str, about: str, low: float | None, high: float | None) -> Statistic:
    return Statistic(name=name, title=title, unit=unit, about=about, low=low, high=high, reads="rows")


_ALL = (
    _rows(
        "distance", "Attention distance", "patches",
        "How far a patch looks: the distance to the patches it attends to, weighted by attention. Prefix tokens are "
        "left out as queries and as keys and the rest of the row is rescaled to 1 (Dosovitskiy et al. 2021, figure 7).",
        0.0, None,
    ),
    _rows(
        "distance_pixels", "Attention distance", "px",
        "The same in pixels of the photograph, where patches need not be square.", 0.0, None,
    ),
    _rows(
        "entropy", "Attention entropy", "nats",
        "How widely attention is spread over all tokens: 0 on a single one, ln N evenly over N.", 0.0, None,
    ),
    _rows(
        "entropy_share", "Attention entropy, relative", "",
        "The entropy divided by ln N: 1 for attention spread evenly over all tokens.", 0.0, 1.0,
    ),
    _rows("mass_cls", "On the class token", "", "Share of the attention that goes to the class token.", 0.0, 1.0),
    _rows(
        "mass_registers", "On registers", "",
        "Share that goes to all other prefix tokens: registers and the distillation token.", 0.0, 1.0,
    ),
    _rows("mass_self", "On itself", "", "Share that a token keeps for itself.", 0.0, 1.0),
    _rows(
        "mass_neighbours", "On neighbours", "",
        "Share that goes to the 8 patches around the asking patch; to fewer at the border.", 0.0, 1.0,
    ),
    _rows(
        "mass_elsewhere", "On other patches", "",
        "Share that goes to the patches that are neither the asking one nor around it. From a patch the shares on the "
        "class token, registers, itself, neighbours and others sum to 1; from a prefix token its share on itself is "
        "also counted on the class token or registers.",
        0.0, 1.0,
    ),
    Statistic(
        name="effective_rank", title="Effective rank", unit="",
        about="How many directions the N x N attention matrix has: the exponential of the entropy of its singular "
        "values (Roy and Vetterli 2007). 1 where all tokens attend alike, N where each attends to another. It is of "
        "all tokens, whatever the query.",
        low=1.0, high=None, reads="matrix",
    ),
    Statistic(
        name="gradient", title="Importance by gradient", unit="",
        about="How fast the logit (or the loss, where that was asked for) of the target class changes when the head's "
        "output is scaled, without its sign (Michel et al. 2019).",
        low=0.0, high=None, reads="model",
    ),
    Statistic(
        name="ablation_probability", title="Probability lost without it", unit="",
        about="How much the probability of the target class falls when the head's output is set to zero. Exact; "
        "negative where the class gains.",
        low=-1.0, high=1.0, reads="model",
    ),
    Statistic(
        name="ablation_logit", title="Logit lost without it", unit="",
        about="How much the logit of the target class falls when the head's output is set to zero. Exact.",
        low=None, high=None, reads="model",
    ),
)  # fmt: skip
STATISTICS: dict[str, Statistic] = {one.name: one for one in _ALL}
"""Every statistic by its name."""

CHEAP = tuple(one.name for one in _ALL if one.reads == "rows")


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadStatistics:
    """Numbers for every head.

    Args:
        values: name -> (L, H), the mean over the images. NaN where a statistic is not there.
        deviations: name -> (L, H), the standard deviation over the images; all 0 for one image.
        missing: name -> why its values are NaN.
        blocks: the L blocks, counted from 0.
        images: how many images these are the mean of.
        query: which tokens asked: "patches", or the one token, e.g. "cls" or "(3, 4)".
        target: what the importances are about, in words; empty where none was asked for.
    """

    values: Mapping[str, Array]
    deviations: Mapping[str, Array]
    blocks: tuple[int, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    images: int = 1
    query: str = "patches"
    target: str = ""

    def __getitem__(self, name: str) -> Array:
        """One statistic, (L, H).

        Raises:
            ProbeError: if it was not computed.
        """
        if name not in self.values:
            raise ProbeError(f"Expected one of the statistics {', '.join(self.values)}; got {name!r}.")
        return self.values[name]

    @property
    def present(self) -> tuple[str, ...]:
        """The statistics that there are numbers for."""
        return tuple(name for name in self.values if name not in self.missing)

    @property
    def header(self) -> list[str]:
        """Headings of the columns of `rows`, with units."""
        names = ["block (from 0)", "head (from 0)"]
        for name in self.present:
            names.append(STATISTICS[name].heading)
            names += [f"{name} deviation" + STATISTICS[name].heading.removeprefix(name)] if self.images > 1 else []
        return names

    def rows(self) -> list[list[float]]:
        """One row for each head, in the order of `header`; statistics that are missing have no column."""
        return [list(self._row(place, head)) for place in range(len(self.blocks)) for head in range(self._heads)]

    def _row(self, place: int, head: int) -> Iterator[float]:
        yield from (self.blocks[place], head)
        for name in self.present:
            yield float(self.values[name][place, head])
            if self.images > 1:
                yield float(self.deviations[name][place, head])

    @property
    def _heads(self) -> int:
        heads: int = next(iter(self.values.values())).shape[1]
        return heads

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `header` and `rows` as CSV."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.header)
            writer.writerows(self.rows())

    def table(self) -> str:
        """The means as lines for a terminal; layers and heads are counted from 1 there."""
        titles = ["layer", "head", *(STATISTICS[name].heading for name in self.present)]
        widths = [max(8, len(title)) for title in titles]
        lines = ["  ".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))]
        for place, block in enumerate(self.blocks):
            for head in range(self._heads):
                cells = [str(block + 1), str(head + 1)]
                cells += [f"{self.values[name][place, head]:.4g}" for name in self.present]
                lines.append("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
        return "\n".join([*lines, *(f"no {name}: {why}" for name, why in self.missing.items())])


def head_statistics(
    model: ViT,
    trace: Trace,
    geometry: Geometry | Sequence[Geometry] | None = None,
    *,
    names: Collection[str] = CHEAP,
    query: Query | None = None,
    target: Named | Sequence[Named] | Tensor | None = None,
    contrast: tuple[Named, Named] | None = None,
    of: Of = "logit",
    rank_tokens: int = RANK_TOKENS,
) -> HeadStatistics:
    """Statistics of every head of the blocks that a trace kept.

    Args:
        model: that made the trace, in eval mode.
        trace: of one image or several. What reads the model ("gradient" and "ablation_...") needs one without edits.
        geometry: where the patches lie in the photograph, for `distance_pixels`: one, or one for each image.
        names: which of `STATISTICS`; by default those that read rows of attention. `list(STATISTICS)` for all.
        query: the token whose row is measured; by default the mean over the rows of all patches.
        target, contrast: the class that importances are about; by default the predicted one.
        of: what "gradient" is the gradient of, "logit" or "loss"; see `head_gradients`.
        rank_tokens: with more tokens than this `effective_rank` is left out, and `missing` says so.

    Raises:
        ProbeError: if there is no such statistic, the geometries do not fit, or the query is a mean.
        TraceError: if the trace lacks the token or a block.
        ExplainError: if there is no such class.
    """
    each, missing, words = per_image(model, trace, geometry, names, query, target, contrast, of, rank_tokens)
    running = Running(len(trace.blocks), trace.heads)
    running.add(each, missing, len(trace.tokens))
    return running.result(trace.blocks, query, words)


def per_image(
    model: ViT,
    trace: Trace,
    geometry: Geometry | Sequence[Geometry] | None,
    names: Collection[str],
    query: Query | None,
    target: Named | Sequence[Named] | Tensor | None,
    contrast: tuple[Named, Named] | None,
    of: Of,
    rank_tokens: int,
) -> tuple[dict[str, Array], dict[str, str], str]:
    """As `head_statistics`: name -> (B, L, H), name -> why it is missing, and the target in words."""
    unknown = sorted(set(names) - set(STATISTICS))
    if unknown or not names:
        raise ProbeError(f"Expected some of the statistics {', '.join(STATISTICS)}; got {unknown or 'none'}.")
    layout = Layout.of(trace, geometry, query)
    count = trace.tokens.shape[1]
    ranked = "effective_rank" in names and count <= rank_tokens
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for block in trace.blocks:
            kept = trace.block(block)
            of_block = measure(kept, layout) if set(names) & set(CHEAP) else {}
            if ranked:
                of_block["effective_rank"] = effective_rank(kept)
            for name, values in of_block.items():
                found.setdefault(name, []).append(values)
    arrays = {name: torch.stack(values, dim=1) for name, values in found.items()}  # L x (B, H) -> (B, L, H)
    words = ""
    asked = resolve_target(model, trace.logits, target, contrast)
    if asked is not None and any(STATISTICS[name].reads == "model" for name in names):
        words = asked.words
        if "gradient" in names:
            arrays["gradient"] = head_gradients(model, trace, asked, of)
        if {"ablation_probability", "ablation_logit"} & set(names):
            arrays["ablation_probability"], arrays["ablation_logit"] = head_ablations(model, trace, asked)
    wanted = [name for name in STATISTICS if name in names]  # in one order, whatever was asked
    missing = {name: _reason(name, layout, count, rank_tokens) for name in wanted if name not in arrays}
    return {name: arrays[name].numpy() for name in wanted if name in arrays}, missing, words


def _reason(name: str, layout: Layout, tokens: int, rank_tokens: int) -> str:
    """Why a statistic could not be computed."""
    if name == "effective_rank":
        return f"{tokens:,} tokens are more than rank_tokens={rank_tokens:,}, and it takes O(N³)"
    if name == "mass_cls":
        return "this model has no class token"
    if name == "mass_registers":
        return "this model has no registers"
    if STATISTICS[name].reads == "model":
        return "this model has no classifier"
    if not layout.placed:
        return f"{layout.prefix[layout.first]} lies nowhere in the image"
    return "no geometry was given, so the photograph's pixels are not known"


class Running:
    """Mean and deviation over images that come a batch at a time (Chan, Golub and LeVeque 1979)."""

    def __init__(self, blocks: int, heads: int) -> None:
        self.images = 0
        self._shape = blocks, heads
        self._means: dict[str, Array] = {}
        self._squares: dict[str, Array] = {}  # sums of squared distances from the mean
        self._missing: dict[str, str] = {}

    def add(self, each: Mapping[str, Array], missing: Mapping[str, str], more: int) -> None:
        """Take in n more images: name -> (n, L, H). What one image lacks, all lack: their mean would be another's."""
        for name, values in each.items():
            mean, square = values.mean(0), ((values - values.mean(0)) ** 2).sum(0)  # (L, H) each
            gap = mean - self._means.get(name, mean)
            weight = self.images / (self.images + more)
            self._squares[name] = self._squares.get(name, 0.0) + square + gap**2 * more * weight
            self._means[name] = mean - gap * weight
        self._missing.update({name: why for name, why in missing.items() if name not in self._missing})
        self.images += more

    def result(self, blocks: tuple[int, ...], query: Query | None, target: str) -> HeadStatistics:
        """What all images say together."""
        blank = np.full(self._shape, math.nan)
        names = [name for name in STATISTICS if name in self._means or name in self._missing]
        there = {name for name in names if name not in self._missing}
        values = {name: self._means[name] if name in there else blank for name in names}
        deviations = {name: np.sqrt(self._squares[name] / self.images) if name in there else blank for name in names}
        details: dict[str, Any] = {"blocks": blocks, "images": self.images, "missing": dict(self._missing)}
        words = "patches" if query is None else str(query)
        return HeadStatistics(values=values, deviations=deviations, query=words, target=target, **details)
