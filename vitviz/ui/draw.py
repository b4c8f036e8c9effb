"""From a view and the page's knobs to what the page shows: pictures as data URLs, HTML as escaped text. No gradio."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from vitviz.explain.attention import Fusion
from vitviz.explorer import View
from vitviz.heatmap import Heatmap
from vitviz.image import decode
from vitviz.render.colors import Scale, lut
from vitviz.render.overlay import overlay
from vitviz.trace import Query
from vitviz.ui.menu import Offer
from vitviz.ui.sessions import Shown

FUSIONS: tuple[Fusion, ...] = ("mean", "max", "min")
PATCH = "patch"
MOST_ABREAST = 12  # thumbnails in a row of a wall
LEAST_ABREAST = 6  # fewer would each be as large as a picture


@dataclass(frozen=True)
class Knobs:
    """The state of the page's controls, in the order in which the page sends them. Blocks and heads count from 0."""

    method: str = "attention"
    block: int = -1
    head: int | Fusion = "mean"
    query: str = "cls"
    patch: tuple[int, int] = (0, 0)
    cmap: str = "viridis"
    alpha: float = 0.55
    smooth: bool = False
    grid: bool = False
    shared: bool = False
    fuse: Fusion = "mean"
    discard: float = 0.0
    residual: float = 0.5
    start: int = 0

    def asked(self, view: View) -> Query:
        """The query as the trace understands it, kept inside this photograph's grid."""
        if self.query == PATCH:
            rows, columns = view.trace.grid
            return min(self.patch[0], rows - 1), min(self.patch[1], columns - 1)
        return self.query if self.query in queries(view) else view.trace.default_query

    def heatmap(self, view: View) -> Heatmap:
        """The map that these knobs choose."""
        query = self.asked(view)
        if self.method == "rollout":
            start = min(self.start, view.trace.depth - 1)
            return view.rollout(query, fuse=self.fuse, discard=self.discard, residual=self.residual, start=start)
        return view.attention(self.fitting_block(view), self.fitting_head(view), query)

    def fitting_block(self, view: View) -> int:
        """The block, from 0; the last one where this model has fewer."""
        depth = view.trace.depth
        return self.block % depth if -depth <= self.block < depth else depth - 1

    def fitting_head(self, view: View) -> int | Fusion:
        """The head; the mean where this model has fewer."""
        return "mean" if isinstance(self.head, int) and self.head >= view.trace.heads else self.head


def queries(view: View) -> list[str]:
    """The queries that have a name: prefix tokens, and the mean over the patches."""
    return [name.lower() for name in view.trace.prefix] + ["mean"]


def stage(shown: Shown, knobs: Knobs) -> str:
    """The large picture as JSON for stage.js: the picture, the patch geometry, and the words around it."""
    view, heatmap = shown.view, knobs.heatmap(shown.view)
    photo, geometry = shown.stage
    scale = heatmap.scale("each")
    picture = overlay(
        photo,
        heatmap.values,
        geometry,
        cmap=knobs.cmap,
        alpha=knobs.alpha,
        smooth=knobs.smooth,
        grid=knobs.grid,
        query=heatmap.query,
        vmin=scale.vmin,
        vmax=scale.vmax,
    )
    (row, column), strongest = heatmap.top(1)[0]
    mass = "".join(f"{percent(value)} is on {name}, outside the picture. " for name, value in masses(heatmap).items())
    note = f"{mass}Strongest patch: row {row + 1}, column {column + 1} with {percent(strongest)}."
    return json.dumps(
        {
            "src": data_url(picture, 88),
            "size": photo.size,
            "frame": geometry.frame,
            "grid": view.trace.grid,
            "query": heatmap.query,
            "title": heatmap.title,
            "answer": answer(view),
            "note": note,
            "bar": {"low": percent(scale.vmin), "high": percent(scale.vmax), "colours": gradient(knobs.cmap)},
        }
    )


def head_wall(shown: Shown, knobs: Knobs) -> str:
    """Every head of the chosen layer, fused first, as HTML: buttons with thumbnails."""
    view, block, query = shown.view, knobs.fitting_block(shown.view), knobs.asked(shown.view)
    heads: list[int | Fusion] = [*FUSIONS, *range(view.trace.heads)]
    maps = [view.attention(block, head, query) for head in heads]
    chosen = knobs.fitting_head(view) if knobs.method == "attention" else None
    names = [head if isinstance(head, str) else f"head {head + 1}" for head in heads]
    buttons = _buttons(shown, knobs, "head", [str(head) for head in heads], names, maps, str(chosen))
    return _wall(f"Layer {block + 1}: its {view.trace.heads} heads", _scale_words(maps, knobs), buttons)


def layer_wall(shown: Shown, knobs: Knobs) -> str:
    """Every layer with its heads fused, as HTML: buttons with thumbnails."""
    view, query = shown.view, knobs.asked(shown.view)
    head = knobs.fitting_head(view)
    fusion: Fusion = "mean" if isinstance(head, int) else head
    maps = view.layers(fusion, query)
    chosen = knobs.fitting_block(view) if knobs.method == "attention" else None
    values = [str(block) for block in view.trace.blocks]
    names = [str(block + 1) for block in view.trace.blocks]
    buttons = _buttons(shown, knobs, "block", values, names, maps, str(chosen))
    return _wall(f"All {view.trace.depth} layers, {fusion} of heads", _scale_words(maps, knobs), buttons)


def _wall(title: str, words: str, buttons: str) -> str:
    count = buttons.count("<button")
    columns = max(LEAST_ABREAST, math.ceil(count / math.ceil(count / MOST_ABREAST)))
    wall = f'<div class="wall" style="--columns: {columns}">{buttons}</div>'
    return f"<h2>{escape(title)} <small>{escape(words)}</small></h2>{wall}"


def _scale_words(maps: list[Heatmap], knobs: Knobs) -> str:
    if not knobs.shared:
        return "each on its own scale: brightness cannot be compared"
    scale = Scale.over([m.values for m in maps])
    return f"one scale for all: {percent(scale.vmin)} to {percent(scale.vmax)} a patch"


def _buttons(
    shown: Shown, knobs: Knobs, kind: str, values: list[str], names: list[str], maps: list[Heatmap], chosen: str
) -> str:
    photo, geometry = shown.thumb
    common = Scale.over([m.values for m in maps]) if knobs.shared else None
    parts = []
    for value, name, heatmap in zip(values, names, maps, strict=True):
        scale = common or heatmap.scale("each")
        picture = overlay(
            photo,
            heatmap.values,
            geometry,
            cmap=knobs.cmap,
            alpha=0.75,
            smooth=knobs.smooth,
            query=heatmap.query,
            vmin=scale.vmin,
            vmax=scale.vmax,
            grey=True,
        )
        parted = (f"{name} {percent(value, 0)}".replace(" ", "\u00a0") for name, value in masses(heatmap).items())
        mass = " · ".join(parted)  # a line may break between two of them only
        pressed = "true" if value == chosen else "false"
        parts.append(
            f'<button type="button" data-kind="{kind}" data-value="{escape(value)}" aria-pressed="{pressed}" '
            f'title="{escape(heatmap.title)}"><img alt="" src="{data_url(picture, 80)}" '
            f'width="{photo.width}" height="{photo.height}">'
            f"<span>{escape(name)}</span><small>{escape(mass)}</small></button>"
        )
    return "".join(parts)


def masses(heatmap: Heatmap) -> dict[str, float]:
    """The share of attention on CLS, on the distillation token and on all registers together."""
    total: dict[str, float] = {}
    for name, value in heatmap.prefix_mass.items():
        kind = "registers" if name.startswith("register") else name
        total[kind] = total.get(kind, 0.0) + value
    return total


def predictions(view: View, k: int = 5) -> str:
    """The best classes with bars, as HTML, and a word of doubt where it is due."""
    if not view.names_classes:
        return f'<h2>What the model sees</h2><p class="doubt">{nameless(view)}</p>'
    best = view.predictions(k)
    rows = "".join(
        f'<li><span class="name">{escape(label)}</span><span class="bar"><i style="width:{p:.1%}"></i></span>'
        f'<span class="number">{probability(p)}</span></li>'
        for label, p in best
    )
    known = ", ".join(view.labels[:12]) + (f" and {len(view.labels) - 12} more" if len(view.labels) > 12 else "")
    doubt = (
        '<p class="doubt">Not sure: the best is under a half. It may be none of the classes this model knows.</p>'
        if best[0][1] < 0.5
        else ""
    )
    return (
        f'<h2>What the model sees</h2><ol class="predictions">{rows}</ol>{doubt}'
        f'<details class="known"><summary>It knows {len(view.labels)} classes and must choose one</summary>'
        f"{escape(known)}</details>"
    )


def nameless(view: View) -> str:
    """Why a model predicts nothing, in a sentence."""
    if view.trace.logits is None:
        return "This model has no classifier and names nothing; where it looks is here as ever."
    count = view.trace.logits.shape[1]
    return (
        f"The {count} numbers that this model returns have no names, so none are shown; where it looks is here as ever."
    )


def answer(view: View) -> str:
    """The best class in a word, for the picture's caption; empty where classes have no names."""
    if not view.names_classes:
        return ""
    label, best = view.predictions(1)[0]
    return f"{label} {percent(best)}"


def badge(view: View) -> str:
    """Where the model ran and how long it took, as HTML."""
    rows, columns = view.trace.grid
    return (
        f'<span class="badge" title="Where the model ran, the time of one forward pass, and the patches it cut the '
        f'photograph into">{view.device} · {duration(view.seconds)} · {rows} x {columns} patches</span>'
    )


def duration(seconds: float) -> str:
    """A time that was measured: "96 ms", "61.2 s"."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def percent(value: float, digits: int = 1) -> str:
    """A share as a person reads it: 0.032 is "3.2 %"; small values keep two figures."""
    if 0 < abs(value) < 0.001 and digits:
        return f"{100 * value:.2g} %"
    return f"{100 * value:.{digits}f} %"


def probability(value: float) -> str:
    """A class probability as a person reads it: what is next to nothing is said to be so."""
    return percent(value) if value >= 0.001 else "< 0.1 %"


def gradient(cmap: str) -> str:
    """A colour map as a CSS gradient."""
    table = lut(cmap)[np.linspace(0, 255, 17).round().astype(int)]  # (17, 3)
    return f"linear-gradient(to right, {', '.join('#{:02x}{:02x}{:02x}'.format(*rgb) for rgb in table.tolist())})"


def data_url(picture: Image.Image, quality: int) -> str:
    """A picture for an <img>: JPEG, because it is encoded in a tenth of PNG's time and only the screen sees it."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def thumbnail(path: Path, side: int = 200) -> Image.Image:
    """A small copy of an example for its button."""
    photo = decode(path)
    photo.thumbnail((side, side), reducing_gap=2.0)
    return photo


def problem(words: str, what: str = "This picture could not be opened.") -> str:
    """What went wrong, as HTML that a screen reader says at once."""
    return f'<p class="problem" role="alert"><strong>{escape(what)}</strong> {escape(words)}</p>'


def working(words: str = "Working", seconds: float | None = None) -> str:
    """What the server is doing, as HTML with a bar that moves; the page shows it after half a second of waiting.

    Args:
        words: said to the visitor.
        seconds: how long it may take. The bar fills in that time; without, it moves to and fro.
    """
    bar = "<i></i>" if seconds is None else f'<i class="known" style="animation-duration: {seconds:.1f}s"></i>'
    return f'<p class="working" role="status">{escape(words)}</p><div class="track" aria-hidden="true">{bar}</div>'


def menu(groups: Sequence[tuple[str, Sequence[Offer]]], chosen: str, more: bool, turn: int) -> str:
    """The menu of models as JSON for menu.js.

    Args:
        groups: titles, and the models under them.
        chosen: the source of the model that the page shows.
        more: whether visitors may bring models of their own.
        turn: another number at each answer, so that the menu is set back to `chosen` even if that stayed the same.
    """
    listed = [
        {"title": title, "offers": [{"source": one.source, "words": one.words, "tip": one.known_for} for one in offers]}
        for title, offers in groups
        if offers
    ]
    return json.dumps({"groups": listed, "chosen": chosen, "more": more, "turn": turn})
