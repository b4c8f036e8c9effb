"""A view as a page: the manifest that the explorer reads, and one self-contained HTML file. No gradio, no network."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from PIL import Image

from vitviz.heatmap import Heatmap
from vitviz.preprocess import Geometry
from vitviz.trace import Trace
from vitviz.viewer import bundle
from vitviz.viewer.payload import block_bytes, rollout_bytes

STAGE_SIDE = 1024  # pixels; the longer side of the photograph on a page
LEAST_SIDE = 512  # marks are drawn on it: lines a pixel wide would hide the patches of a photograph of 32 pixels
MANY = 12  # classes that are named in full
ROLLOUT_TOKENS = 600  # up to here the whole rollout matrix goes along: it grows with N², its computing with N³


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a page shows of one photograph and model.

    Args:
        trace: of one image, with all blocks.
        photo: the upright original; geometry: which part of it the model saw.
        model: the model's source; title: its name for people.
        image: the example's name; `None` for a photograph of one's own.
        detail: side of the model's input in pixels, where it is not the model's own.
        predictions: the best classes and their probabilities, the best first; empty where the model has none.
        labels: all classes that the model knows; doubt: what to say below the predictions, or instead of them.
        maps: further maps over this photograph, such as those of attribution methods.
    """

    trace: Trace
    photo: Image.Image
    geometry: Geometry
    model: str = ""
    title: str = ""
    image: str | None = None
    detail: int | None = None
    predictions: Sequence[tuple[str, float]] = ()
    labels: Sequence[str] = ()
    doubt: str = ""
    maps: Sequence[Heatmap] = ()

    @cached_property
    def picture(self) -> tuple[Image.Image, Geometry]:
        """The photograph at the size of a page, and the geometry that fits it."""
        return fitted(self.photo, self.geometry, STAGE_SIDE, LEAST_SIDE)

    def photo_url(self) -> str:
        """The photograph at the size of a page, as an address that needs no server."""
        return f"data:image/jpeg;base64,{base64.b64encode(jpeg(self.picture[0])).decode()}"

    @property
    def answer(self) -> str:
        """The best class in a word or two; empty without one."""
        return f"{self.predictions[0][0]} {percent(self.predictions[0][1])}" if self.predictions else ""

    def _bars(self) -> str:
        """The predictions as HTML."""
        doubt = f"<p>{html.escape(self.doubt)}</p>" if self.doubt else ""
        heading = "<h2>What the model sees</h2>"
        if not self.predictions:
            return heading + doubt if doubt else ""
        rows = "".join(
            f'<li><span class="vv-name">{html.escape(label)}</span><i style="--share: {p:.4f}"></i>'
            f"<span>{percent(p)}</span></li>"
            for label, p in self.predictions
        )
        count, more = len(self.labels), len(self.labels) - MANY
        known = ", ".join(self.labels[:MANY]) + (f" and {more:,} more" if more > 0 else "")
        fold = f"<summary>It knows {count:,} classes and must choose one</summary>{html.escape(known)}"
        known_fold = f'<details class="vv-known">{fold}</details>' if count else ""
        return f"{heading}<ol>{rows}</ol>{doubt}{known_fold}"

    def manifest(self, name: str, photo: str, blocks: Sequence[str], rollout: str | None) -> dict[str, Any]:
        """What the explorer needs to know, as JSON; see `explorer.js`.

        Args:
            name: another one for every photograph and model.
            photo: the address of `picture`'s photograph; blocks, rollout: of the files.
        """
        small, geometry = self.picture
        trace = self.trace
        return {
            "id": name,
            "photo": {"url": photo, "width": small.width, "height": small.height},
            "frame": geometry.frame,
            "grid": trace.grid,
            "prefix": trace.prefix,
            "depth": trace.depth,
            "heads": trace.heads,
            "width": trace.head_width,
            "blocks": list(blocks),
            "rollout": rollout,
            "image": self.image,
            "model": self.model or None,
            "detail": self.detail,
            "answer": self.answer,
            "predictions": self._bars(),
            "maps": [_map(index, heatmap) for index, heatmap in enumerate(self.maps)],
        }


def percent(value: float) -> str:
    """A probability as a person reads it: never 0 % or 100 %, which no softmax says."""
    return "< 0.1 %" if value < 0.001 else "> 99.9 %" if value >= 0.9995 else f"{100 * value:.1f} %"


def _map(index: int, heatmap: Heatmap) -> dict[str, Any]:
    mass = heatmap.mass_words()
    return {
        "id": f"map-{index + 1}",
        "title": heatmap.title,
        "values": [float(value) for value in heatmap.values.ravel()],  # (gh, gw), row by row
        "signed": heatmap.signed,
        "unit": heatmap.unit,
        "note": f"Outside the picture: {mass}." if mass else "",
    }


def fitted(photo: Image.Image, geometry: Geometry, most: int, least: int = 0) -> tuple[Image.Image, Geometry]:
    """A copy whose longer side has `least` to `most` pixels, with the frame scaled along."""
    factor = max(min(1.0, most / max(photo.size)), least / max(photo.size))
    width, height = (max(1, round(length * factor)) for length in photo.size)
    small = photo if factor == 1.0 else photo.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    across, down = width / photo.width, height / photo.height
    left, top, right, bottom = geometry.frame
    frame = (left * across, top * down, right * across, bottom * down)
    return small, replace(geometry, image=(width, height), frame=frame)


def jpeg(picture: Image.Image, quality: int = 90) -> bytes:
    """A photograph for the screen."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def standalone(scene: Scene) -> str:
    """One HTML file with the photograph, queries and keys and the explorer: it opens from disk without a network.

    Up to 600 tokens rollout from every token is in it; above, the page shows attention only.
    """
    trace = scene.trace
    files = {f"block-{block}": block_bytes(trace, block) for block in range(trace.depth)}
    blocks = list(files)
    rollout = "rollout" if trace.tokens.shape[1] <= ROLLOUT_TOKENS else None
    if rollout:
        files[rollout] = rollout_bytes(trace)
    manifest = json.dumps(scene.manifest("page", scene.photo_url(), blocks, rollout)).replace("<", "\\u003c")
    parts = "".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(data).decode()}</script>\n'
        for name, data in files.items()
    )
    title = html.escape(" · ".join(part for part in (scene.answer, scene.title, "vitviz") if part))
    filling = {
        "title": title,
        "style": bundle.style(),
        "template": bundle.template(),
        "parts": parts,
        "script": bundle.script(),
        "colours": bundle.colours(),
        "manifest": manifest,
    }
    # One pass, so that nothing that was filled in is taken for a place to fill.
    return re.sub(r"@@(\w+)@@", lambda place: filling[place[1]], bundle.frame())
