"""A view as a page: the manifest that the explorer reads, and one self-contained HTML file. No gradio, no network."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from vitviz.draw.sheet import rescale
from vitviz.formatting import describe_prediction
from vitviz.heatmap import Heatmap
from vitviz.images.geometry import Geometry
from vitviz.model.trace import Trace
from vitviz.view import View
from vitviz.web import bundle
from vitviz.web.payload import block_bytes, rollout_bytes

STAGE_SIDE = 1024  # pixels; the longer side of the photograph on a page
LEAST_SIDE = 512  # marks are drawn on it: lines a pixel wide would hide the patches of a photograph of 32 pixels
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
        labels: all classes that the model knows.
        sure_above: probability from which on the model is sure of its first class; `None` where nobody measured it.
        caveat: what to say below the predictions, or instead of them.
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
    sure_above: float | None = None
    caveat: str = ""
    maps: Sequence[Heatmap] = ()

    @classmethod
    def of(
        cls, view: View, *, title: str = "", image: str | None = None, caveat: str = "", maps: Sequence[Heatmap] = ()
    ) -> Scene:
        """Return the scene of a view.

        Args:
            view: of `Explorer.open`.
            title: the model's name for people; by default the one that came with its weights.
            image: the name by which a link finds the photograph again, if it has one.
            caveat: what else to say below the predictions.
            maps: further maps over this photograph, such as those of attribution methods.
        """
        about = view.model.pretrained
        return cls(
            trace=view.trace,
            photo=view.photo,
            geometry=view.geometry,
            model=about.source if about else "",
            title=title or (about.name if about else ""),
            image=image,
            predictions=view.predictions() if view.names_classes else (),
            labels=view.labels,
            sure_above=view.sure_above,
            caveat=_caveat(view) or caveat,
            maps=maps,
        )

    @cached_property
    def picture(self) -> tuple[Image.Image, Geometry]:
        """The photograph at the size of a page, and the geometry that fits it."""
        return fitted(self.photo, self.geometry, STAGE_SIDE, LEAST_SIDE)

    def photo_url(self) -> str:
        """The photograph at the size of a page, as an address that needs no server."""
        return f"data:image/jpeg;base64,{base64.b64encode(jpeg(self.picture[0])).decode()}"

    @property
    def summary(self) -> str:
        """The prediction in one line; empty without one."""
        labels, probabilities = [label for label, _ in self.predictions], [p for _, p in self.predictions]
        return describe_prediction(labels, probabilities, len(self.labels), self.sure_above)

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
            "predictions": [list(one) for one in self.predictions],
            "labels": list(self.labels) if self.predictions else [],
            "sureAbove": self.sure_above,
            "caveat": self.caveat,
            "maps": [_map(index, heatmap) for index, heatmap in enumerate(self.maps)],
        }


def _caveat(view: View) -> str:
    """Return what to say below the predictions, or instead of them."""
    if view.trace.logits is None:
        return "This model has no classifier and names nothing; where it looks is here as ever."
    if not view.names_classes:
        count = view.trace.logits.shape[1]
        return f"The {count} numbers that this model returns have no names; where it looks is here as ever."
    return ""


def _map(index: int, heatmap: Heatmap) -> dict[str, Any]:
    mass = heatmap.describe_prefix_mass()
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
    return small, rescale(geometry, (width, height))


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
    title = html.escape(" · ".join(part for part in (scene.summary, scene.title, "vitviz") if part))
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
