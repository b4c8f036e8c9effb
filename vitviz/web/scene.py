"""Describe a view for the page: the manifest for the browser, and one HTML file that needs no network."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from vitviz.attribution.attention import entered_count
from vitviz.attribution.registry import default_methods
from vitviz.formatting import describe_prediction
from vitviz.heatmap import Heatmap
from vitviz.images.bands import RGB
from vitviz.images.geometry import Geometry
from vitviz.language.captioner import captioner_folder
from vitviz.language.words import Words
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase, sentences, with_phrases
from vitviz.view import View
from vitviz.web import bundle
from vitviz.web.payload import block_bytes, caption_bytes, count_bytes, query_width, rollout_bytes
from vitviz.weights.captured import Captured

STAGE_SIDE = 1024  # longer side of the photograph on a page, in pixels
LEAST_SIDE = 512  # minimum in pixels: on a 32-pixel photograph, one-pixel grid lines would hide the patches
LISTED_CLASSES, LISTED_TEXTS = 5, 10  # predictions in the list
SEEN_SIDE = 640  # maximum side of the model's input on a page, in pixels
PICTURE_BYTES = 300_000  # approximate size of a page's two pictures
ROLLOUT_TOKENS = 600  # maximum for sending the whole rollout matrix, whose size grows with N² and cost with N³


@dataclass(eq=False)
class Scene:
    """View of a photograph, and what a page shows with it.

    Args:
        view: from `Explorer.open`.
        model: the model's source; title: its display name; by default those of its weights.
        image: the example's name; `None` for a user's photograph.
        own: the hash of a user's photograph; `None` for an example.
        size: the input size in pixels; `None` for the model's own.
        note: text below the predictions, unless the model needs another text.
        maps: additional maps of this photograph, such as attribution maps.
        sizes: available input sizes, the model's own first: "size", "factor", "patches", "seconds", and "ahead",
            whether the page may open it before the visitor asks for it.
    """

    view: View
    _: KW_ONLY
    model: str = ""
    title: str = ""
    image: str | None = None
    own: str | None = None
    size: int | None = None
    note: str = ""
    maps: Sequence[Heatmap] = ()
    sizes: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        if (about := self.view.model.pretrained) is not None:
            self.model, self.title = self.model or about.source, self.title or about.name

    @cached_property
    def predictions(self) -> list[tuple[str, float, int]]:
        """Return the best classes with probabilities and indices, in decreasing order; none without classes."""
        view, most = self.view, listed(self.view.model)
        if not view.names_classes:
            return []
        best = zip(view.predictions(most), view.best(most), strict=True)
        return [(label, probability, index) for (label, probability), index in best]

    @property
    def caveat(self) -> str:
        """Return the text below the predictions, or instead of them."""
        view = self.view
        return sentences(_caveat(view) or self.note, _range(view), _bands(view), _assumptions(view))

    @property
    def caption(self) -> Callable[[], Words] | None:
        """Return the function that captions the photograph; `None` for models without a captioner."""
        return self.view.caption if captioner_folder(self.view.model) else None

    @cached_property
    def picture(self) -> tuple[Image.Image, Geometry]:
        """Return the photograph, resized for the page, and its geometry."""
        return fitted(self.view.photo, self.view.geometry, STAGE_SIDE, LEAST_SIDE)

    @property
    def summary(self) -> str:
        """Return the prediction in one line, or an empty text if there is none."""
        view = self.view
        labels, probabilities = [label for label, *_ in self.predictions], [share for _, share, *_ in self.predictions]
        judged = view.sure_above, view.group(), view.known is not False
        return describe_prediction(labels, probabilities, len(view.labels), *judged, view.model.problem_type)

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the data of a scene that the page needs first, for JSON.

        Args:
            name: the scene's id, unique for photograph, model and input size.
        """
        view, trace, about = self.view, self.view.trace, self.view.model.pretrained
        small, geometry = self.picture
        seen = view.seen()
        seen.thumbnail((SEEN_SIDE, SEEN_SIDE))
        return {
            "id": name,
            "photo": _picture(small, 90),
            "frame": geometry.frame,
            "grid": trace.grid,
            "prefix": trace.prefix,
            "depth": trace.depth,
            "heads": trace.heads,
            "width": query_width(trace.block(0)),  # of a query in the block files
            **({"stages": _stages(trace)} if isinstance(trace, Captured) and trace.windowed else {}),
            **({"captured": True} if isinstance(trace, Captured) else {}),
            "blocks": trace.depth,
            "rollout": rolls_out(trace),
            "captioned": self.caption is not None,
            "image": self.image,
            "own": self.own,
            "model": self.model or None,
            "title": self.title,
            "size": self.size,
            "predictions": list(map(list, self.predictions)),
            "problemType": view.model.problem_type,
            "labels": list(view.labels) if self.predictions else [],
            "groups": list(map(list, about.groups)) if about and self.predictions else [],
            "texts": bool(view.model.text_source),
            "zeroShot": view.model.config.cosine,
            "sureAbove": view.sure_above,
            "group": view.group(),
            "known": view.known,
            "caveat": self.caveat,
            "methods": list(default_methods(view.model)),
            "maps": [_map(index, heatmap) for index, heatmap in enumerate(self.maps)],
            "badge": {"device": view.device, "seconds": view.seconds},
            "sizes": list(self.sizes),
            "seen": _picture(seen, 85),
        }


def rolls_out(trace: AttentionTrace) -> bool:
    """Return whether a rollout matrix is small enough for the browser."""
    return trace.count * entered_count(trace) <= ROLLOUT_TOKENS**2


def _stages(trace: Captured) -> list[dict[str, Any]]:
    """Return the number of blocks, heads and the grid of each stage of a windowed model."""
    stages: list[dict[str, Any]] = []
    for block, layout in enumerate(trace.layouts):
        if layout.stage == len(stages):
            stages.append({"depth": 0, "heads": trace.heads_in(block), "grid": layout.grid})
        stages[-1]["depth"] += 1
    return stages


def listed(model: ViT) -> int:
    """Return the number of predictions in a page's list; more if the classes are texts."""
    return LISTED_TEXTS if model.config.cosine else LISTED_CLASSES


def _caveat(view: View) -> str:
    """Return the note below the predictions, or instead of them."""
    if view.trace.logits is None:
        text = "This model has no classifier, so it makes no predictions. Its attention can be explored as usual."
        return Phrase("no-classifier", text)
    if not view.names_classes:
        count = view.trace.logits.shape[1]
        text = "This model returns {0} numbers without class names. Its attention can be explored as usual."
        return Phrase("no-class-names", text, count)
    return ""


def _range(view: View) -> str:
    """Return how a photograph with more than 8 bits per channel was converted to 8 bits; empty for others."""
    about: str = getattr(view.photo, "info", {}).get("range", "")
    return about


def _bands(view: View) -> str:
    """Return what a model with other channels than red, green and blue reads, and what the picture shows."""
    bands, shown = view.preprocess.bands, view.preprocess.shown
    if bands == RGB:
        return ""
    if len(bands) == 1:
        return f"This model reads one band, {bands[0]}: the brightness of a photograph, or an array."
    return f"This model reads arrays with the bands {', '.join(bands)}; the picture shows {', '.join(shown)}."


def _assumptions(view: View) -> str:
    """Return the settings that were assumed because neither the weights nor the configuration state them."""
    about = view.model.pretrained
    return f"Assumed for this model: {'; '.join(about.assumed)}." if about and about.assumed else ""


def _map(index: int, heatmap: Heatmap) -> dict[str, Any]:
    return {
        "id": f"map-{index + 1}",
        "title": heatmap.title,
        "values": [float(value) for value in heatmap.values.ravel()],  # (gh, gw), row by row
        "signed": heatmap.signed,
        "unit": heatmap.unit,
        "note": heatmap.note,
    }


def fitted(photo: Image.Image, geometry: Geometry, most: int, least: int = 0) -> tuple[Image.Image, Geometry]:
    """Return a copy whose longer side has `least` to `most` pixels, and the copy's geometry."""
    factor = max(min(1.0, most / max(photo.size)), least / max(photo.size))
    width, height = (max(1, round(length * factor)) for length in photo.size)
    small = photo if factor == 1.0 else photo.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return small, geometry.rescaled((width, height))


def _picture(picture: Image.Image, quality: int) -> dict[str, Any]:
    """Return a picture's data URL and size."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)  # encoding takes a tenth of PNG's time
    url = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"url": url, "width": picture.width, "height": picture.height}


def picture_of(url: str) -> tuple[str, bytes]:
    """Return the suffix and the content of the file that the data URL of a picture contains."""
    kind, _, data = url.partition(";base64,")
    return kind.rpartition("/")[2], base64.b64decode(data)


def saved_page(
    scene: Scene,
    search: str = "",
    *,
    lecture: Mapping[str, bytes] | None = None,
    texts: Mapping[str, Any] | None = None,
) -> str:
    """Return one HTML file with the page, the photograph, queries and keys, which opens from disk without a network.

    Up to 600 tokens, it contains rollout from every token; above, the page shows only attention.

    Args:
        scene: of one photograph and model.
        search: the query string of the initial view, as in the page's address.
        lecture: numbers of the lecture (`vitviz.lecture.numbers.lecture_parts`), to include it.
        texts: texts of the lecture (`vitviz.lecture.texts.lecture_given`).
    """
    trace = scene.view.trace
    files = {f"block-{block}": block_bytes(trace, block) for block in range(trace.depth)}
    if rolls_out(trace):
        files["rollout"] = rollout_bytes(trace)
    if scene.caption:
        files["caption"] = caption_bytes(scene.caption())
    files |= lecture or {}
    parts = "".join(
        f'<script type="text/plain" id="{name}">{base64.b64encode(data).decode()}</script>\n'
        for name, data in files.items()
    )
    return saved_frame(
        title=html.escape(" · ".join(part for part in (scene.summary, scene.title, "vitviz") if part)),
        parts=parts,
        manifest=_script({**scene.manifest("page"), "badge": None}),  # no times, so that equal views give equal files
        search=_script(search),
        lecture=_script(texts) if lecture is not None else "null",
        rooms=lecture is not None,
    )


def saved_frame(*, rooms: bool = False, **filling: str) -> str:
    """Return the HTML of a saved page; parts that `filling` lacks stay as placeholders `@@name@@`.

    Args:
        rooms: whether rooms such as the lecture add scripts and styles.
        filling: title, parts, manifest, search and lecture, as HTML.
    """
    first = [module for module in bundle.part_modules().values() if rooms or module not in bundle.of_rooms("room.js")]
    scripts = {"script": bundle.script("web/saved.js", tuple(first)), "colors": bundle.colors()}
    style = bundle.whole_style() if rooms else bundle.style()
    filling |= {"style": style, "template": bundle.template(), **scripts}
    return bundle.fill(bundle.frame(), filling)


def saved_bytes(trace: AttentionTrace, maps: Sequence[Heatmap] = ()) -> int:
    """Estimate the size of `saved_page` in bytes without writing it."""
    files = count_bytes(trace, rollout=rolls_out(trace))
    shell = sum(map(len, (bundle.style(), bundle.template(), bundle.script("web/saved.js"), bundle.colors())))
    numbers = sum(22 * heatmap.values.size for heatmap in maps)  # characters of a map's values
    return files * 4 // 3 + shell + numbers + PICTURE_BYTES  # base64 takes four bytes for three


def _script(value: Any) -> str:
    """Return a value as JSON that cannot end its script element."""
    data = with_phrases(value) if isinstance(value, dict) else value
    return json.dumps(data).replace("<", "\\u003c")
