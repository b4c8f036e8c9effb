"""Make films: maps of one model over layers, heads, a moving query, several models, or the frames of a clip.

All frames share one scale, so equal colors mean equal numbers in every frame.

>>> import numpy as np, vitviz
>>> from vitviz.film.film import film_of
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), depth=2, classes=10))
>>> film = film_of(vitviz.Explorer(model).open(np.zeros((48, 64, 3), np.uint8)), "layers")
>>> film.labels, film.scale.kind
(('layer 1', 'layer 2'), 'shared')
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from PIL import Image

from vitviz.attribution.attention import Fusion
from vitviz.draw.colorbar import colorbar, describe_scale
from vitviz.draw.colors import DrawError, Theme
from vitviz.draw.overlay import OVER_GRAY
from vitviz.draw.sheet import Cell, arrange, fit_photo, fit_size
from vitviz.draw.text import font, shorten
from vitviz.explorer import Explorer
from vitviz.extras import extra
from vitviz.formatting import percent
from vitviz.heatmap import Heatmap, Scale
from vitviz.images.video import MAX_FRAMES, read_clip
from vitviz.model.trace import Query, describe_query
from vitviz.view import View
from vitviz.writing import replacing

SUFFIXES = (".gif", ".webp", ".mp4")
STEPS = 36  # positions of a moving query
BEYOND = 0.002  # share of the numbers that is clipped, because one outlier would otherwise darken the whole film
KEPT = 480  # longer side of the stored clip frames, in pixels
LONGEST = 64  # characters in a label


@dataclass(frozen=True, eq=False)
class Film:
    """Maps in frame order, with one label per map and a common title and note.

    Args:
        maps: one per frame, drawn over the photograph or over a frame of a clip.
        labels: one per frame, for example "layer 3".
        title: text shown on every frame.
        note: text that names the model and the photograph.
    """

    maps: tuple[Heatmap, ...]
    labels: tuple[str, ...]
    title: str
    note: str = ""

    def __post_init__(self) -> None:
        if not 2 <= len(self.maps) <= MAX_FRAMES or len(self.labels) != len(self.maps):
            raise DrawError(
                f"Expected 2 to {MAX_FRAMES} maps with a label each, got {len(self.maps)} with {len(self.labels)}. "
                "Choose what changes over more than one frame."
            )

    @property
    def scale(self) -> Scale:
        """Return the shared scale, which clips the fraction `BEYOND` of all numbers."""
        values = np.concatenate([heatmap.values.ravel() for heatmap in self.maps])
        low, high = (float(np.quantile(values, share)) for share in (0.0, 1 - BEYOND))
        return Scale(low, max(low, high), "shared")

    def frames(self, *, side: int = 560, dark: bool = False, **options: Any) -> Iterator[Image.Image]:
        """Yield frames of equal, even size: title, map over the photograph, label, color bar.

        Args:
            side: the longer side of the photograph in pixels.
            dark: draw light text on a dark background.
            options: options of `vitviz.draw.overlay.overlay`: cmap, alpha, spotlight, smooth, grid, gamma, gray.
        """
        scale, size, theme = self.scale, max(11, round(side / 32)), Theme.of(dark)
        unit, cmap = self.maps[0].unit, options.get("cmap")
        slot = max(max(fit_size(heatmap.photo, side)[0] for heatmap in self.maps), 20 * size)
        measure, style = font(size).getlength, OVER_GRAY | options

        @cache
        def bar(width: int) -> Image.Image:
            return colorbar(scale, cmap, unit, size=(min(width, 30 * size), 3 * size), dark=dark)

        note = " ".join(filter(None, [self.note, describe_scale(scale, unit, clipped=True)]))
        photos: dict[int, Image.Image] = {}
        for heatmap, label in zip(self.maps, self.labels, strict=True):
            photo = photos.get(id(heatmap.photo)) or fit_photo(heatmap.photo, side)
            photos = {id(heatmap.photo): photo}
            picture = heatmap.over(photo).overlay(scale=scale, **style)
            mass = (
                f"outside: {percent(sum(heatmap.prefix_mass.values()), 2)}"
                if heatmap.prefix_mass and heatmap.in_shares
                else ""
            )
            words = ((label, theme.text, True), (mass, theme.muted, False))
            lines = tuple(((shorten(text, slot, measure), color, bold),) for text, color, bold in words)
            yield _even(
                arrange([Cell((picture,), lines)], slot, size, title=self.title, note=note, dark=dark, footer=bar)
            )

    def save(self, path: str | os.PathLike[str], *, seconds: float = 0.5, **options: Any) -> Path:
        """Write the film as GIF, WebP or MP4, according to the file name.

        Args:
            path: path of the file.
            seconds: duration of a frame, 0.02 to 10.
            options: options of `frames`.

        Raises:
            DrawError: if the file type or the duration is not supported.
            MissingExtraError: for MP4 without PyAV.
        """
        target = Path(path)
        if target.suffix.lower() not in SUFFIXES:
            raise DrawError(f"Expected a name ending in {', '.join(SUFFIXES)}, got {target.name!r}. Rename it.")
        if not 0.02 <= seconds <= 10:
            raise DrawError(f"Expected 0.02 to 10 seconds for a frame, got {seconds:g}. Try 0.5.")
        encode = {".gif": _write_gif, ".webp": _write_webp, ".mp4": _write_mp4}[target.suffix.lower()]
        with replacing(target) as beside:
            encode(self.frames(**options), beside, seconds)
        return target


def film_of(
    view: View, over: str = "layers", *, block: int = -1, head: int | Fusion = "mean", query: Query | None = None
) -> Film:
    """Make a film of one photograph's attention over "layers", "heads" of a block, or a moving "query".

    Args:
        view: the photograph and its trace.
        over: which of these varies between frames.
        block, head, query: values of the other two, see `View.attention`. A moving query circles the middle.

    Raises:
        DrawError: if `over` is none of these.
    """
    if view.trace.windowed:
        view.model.check_converted()
    start, depth, heads = view._query(query), view.trace.depth, view.trace.heads
    where, which = f"from {describe_query(start)}", f"head {head + 1}" if isinstance(head, int) else f"{head} of heads"
    if over == "layers":
        maps = [view.attention(index, head, start) for index in view.trace.blocks]
        labels = [f"layer {index + 1}" for index in view.trace.blocks]
        title = f"Attention over layers, {which}, {where}"
    elif over == "heads":
        maps = view.head_maps(block, start)
        labels = [f"head {index + 1}" for index in range(heads)]
        title = f"Heads of layer {block % depth + 1}, {where}"
    elif over == "query":
        queries = circle(view.trace.grid)
        maps = [view.attention(block, head, patch) for patch in queries]
        labels = [f"from {describe_query(patch)}" for patch in queries]
        title = f"Attention of layer {block % depth + 1}, {which}, from a moving patch"
    else:
        raise DrawError(f"Expected a film over layers, heads or query, got {over!r}. Choose one of these.")
    return Film(tuple(maps), tuple(labels), title, _about(view))


def film_over_models(
    models: Sequence[Any],
    photo: Any,
    *,
    size: int | None = None,
    names: Sequence[str] = (),
    block: int = -1,
    head: int | Fusion = "mean",
    query: Query | None = None,
    opened: Callable[[], object] = lambda: None,
) -> Film:
    """Make a film of several models' attention on one photograph, such as the checkpoints of a training run.

    Args:
        models: sources for `vitviz.load`; only one model is in memory at a time.
        photo, size: as for `Explorer.open`. All models must have the same grid at this size.
        names: labels; by default the models' names.
        block, head, query: see `View.attention`.
        opened: called after each model.

    Raises:
        DrawError: if the grids differ, or if there is only one model.
    """
    maps, labels, about = [], [], ""
    for index, model in enumerate(models):
        view = Explorer(model).open(photo, size=size)
        maps.append(view.attention(block, head, query))
        labels.append(names[index] if names else Path(str(model)).name)
        about = about or f"{view.name}." * bool(view.name)
        opened()
    if len({heatmap.grid for heatmap in maps}) > 1:
        raise DrawError("Expected models with one grid of patches, got several. Pass models of one shape, or a size.")
    return Film(tuple(maps), tuple(label[:LONGEST] for label in labels), maps[0].title if maps else "", about)


def film_of_clip(
    explorer: Explorer,
    path: str | os.PathLike[str],
    *,
    show: str = "attention",
    frames: int = 48,
    size: int | None = None,
    block: int = -1,
    head: int | Fusion = "mean",
    query: Query | None = None,
    opened: Callable[[], object] = lambda: None,
) -> Film:
    """Make a film of a clip: attention, or the similarity of all patches to one patch of the first frame.

    Frames are processed one by one; only the map and a small picture of each are kept.

    Args:
        explorer: the model.
        path: path of the clip, see `vitviz.images.video.read_clip`.
        show: "attention" of a query, or "similarity": the cosine similarity of each patch's final token to the
            query's final token in the first frame.
        frames: number of frames, spread evenly over the clip.
        size: input size of the model.
        block, head: block and head of the attention.
        query: as for `View.attention`; for similarity a patch, by default the middle one.
        opened: called after each frame.

    Raises:
        ImageError: if the file is not a clip or cannot be decoded.
        DrawError: if `show` is neither of these.
    """
    if show not in ("attention", "similarity"):
        raise DrawError(f"Expected 'attention' or 'similarity' of a clip, got {show!r}. Choose one of them.")
    maps, labels, view, aim = [], [], None, None
    for frame in read_clip(path, frames):
        view = explorer.open(frame.picture, size=size)
        small = frame.picture.resize(fit_size(frame.picture, KEPT))
        if show == "attention":
            heatmap = view.attention(block, head, query)
        else:
            rows, columns = view.trace.grid
            query = (rows // 2, columns // 2) if query is None else query
            tokens = F.normalize(view.trace.tokens[0].float(), dim=-1)  # (N, D)
            first, aim = aim is None, tokens[view.trace.token(query)] if aim is None else aim
            cosines = (tokens @ aim)[len(view.trace.prefix) :].unflatten(0, (rows, columns))
            title = f"Similarity to {describe_query(query)} of the first frame"
            shown = query if first and isinstance(query, tuple) else None
            heatmap = Heatmap(cosines.cpu().numpy(), view.geometry, view.photo, title, "cosine", query=shown)
        maps.append(heatmap.over(small))
        labels.append(f"{frame.time:.2f} s")
        opened()
    name = f"{os.path.basename(os.fspath(path))}." if maps else ""
    model = explorer.model.pretrained.name if explorer.model.pretrained else "A Vision Transformer"
    return Film(tuple(maps), tuple(labels), maps[0].title if maps else "", f"{model}. {name}")


def circle(grid: tuple[int, int], steps: int = STEPS) -> list[tuple[int, int]]:
    """Return patches (row, column) on an ellipse around the middle of a grid, without repetitions."""
    gh, gw = grid
    patches: list[tuple[int, int]] = []
    for step in range(steps):
        angle = 2 * math.pi * step / steps
        row, col = gh * (0.5 - 0.33 * math.cos(angle)), gw * (0.5 + 0.33 * math.sin(angle))
        place = (min(gh - 1, int(row)), min(gw - 1, int(col)))
        if not patches or patches[-1] != place:
            patches.append(place)
    return patches


def _about(view: View) -> str:
    """Return a text that names the model and the photograph."""
    name = view.model.pretrained.name if view.model.pretrained else "A Vision Transformer"
    return f"{name}. {view.name}." if view.name else f"{name}."


def _even(picture: Image.Image) -> Image.Image:
    """Pad the picture to even sides, as H.264 requires."""
    width, height = (length + length % 2 for length in picture.size)
    if (width, height) == picture.size:
        return picture
    out = Image.new("RGB", (width, height), picture.getpixel((0, 0)))
    out.paste(picture, (0, 0))
    return out


def _write_gif(frames: Iterable[Image.Image], path: Path, seconds: float) -> None:
    """Write a GIF with a shared palette, which avoids flicker."""
    pictures = list(frames)
    sample = np.concatenate([np.asarray(picture) for picture in pictures[:: max(1, len(pictures) // 6)]])
    palette = Image.fromarray(sample).quantize(256, method=Image.Quantize.MAXCOVERAGE)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    # Write every frame with its duration, even if it equals the previous one.
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * seconds), loop=0, disposal=1)


def _write_webp(frames: Iterable[Image.Image], path: Path, seconds: float) -> None:
    first, *rest = frames
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * seconds), loop=0, quality=88, method=3)


def _write_mp4(frames: Iterable[Image.Image], path: Path, seconds: float) -> None:
    """Write H.264 if the installed FFmpeg supports it, else MPEG-4, in a widely supported pixel format."""
    with extra("video"):
        import av
    codec, options = ("libx264", {"crf": "18"}) if "libx264" in av.codecs_available else ("mpeg4", {"qscale": "2"})
    rate = Fraction(1 / seconds).limit_denominator(1000)
    frame_of: Callable[[Image.Image], Any] = av.VideoFrame.from_image
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream: Any = None
        for picture in frames:
            if stream is None:
                stream = container.add_stream(codec, rate=rate, options=options)
                stream.width, stream.height = picture.size
                stream.pix_fmt = "yuv420p"
            container.mux(stream.encode(frame_of(picture)))
        container.mux(stream.encode(None))
