"""Write the report of an audit or a comparison: one HTML file with tables and a contact sheet, which works offline.

Each photograph adds about 12 kB to the file. Photographs are read and written one by one, so memory does not grow.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitviz.evaluation.audit import as_levels
from vitviz.formatting import counted, unbroken
from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.web import bundle
from vitviz.writing import ESCAPED, replacing

PAGE = "http://127.0.0.1:7860"
"""Default address of the explorer that a click on a photograph opens."""
PICTURE_BYTES = 24_000  # maximum of a photograph; links take no more (`web/effects/photo_link.js`)
SIDE = 224  # maximum width and height of a photograph, in pixels
QUALITIES = (80, 65, 50, 35, 20)  # of WebP, tried in this order until a photograph is small enough
TEMPLATE = Path(__file__).with_name("report.html")
CLUSTER_SIDE = 8  # maps are resized to this number of rows and columns before clustering
MAX_CLUSTERS = 8
MIN_PER_CLUSTER = 6  # photographs per cluster, on average
STEPS = 50  # maximum number of iterations of k-means


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with explanations above it.

    Args:
        title: heading.
        texts: paragraphs of the explanation.
        rows: cells, header first; the first cell of a row is its header.
        marked: indices of highlighted rows; the first row below the header is 0.
    """

    title: str
    texts: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A photograph on the contact sheet.

    Args:
        image: path below the folder.
        grid: (gh, gw).
        map: one byte for each patch, in base64.
        mask: one bit for each patch, in base64; empty for no mask.
        signed: whether `map` is a difference, with 128 for no difference; otherwise 0 is no relevance.
        answer: predicted class, by which photographs are filtered.
        lines: lines of text; the first is in large type.
        flagged: index of the highlighted line, if any.
        numbers: values to sort by; `None` comes last.
        query: query string of the link to the explorer.
    """

    image: str
    grid: tuple[int, int]
    map: str
    mask: str = ""
    signed: bool = False
    answer: str
    lines: Sequence[str]
    flagged: int | None = None
    numbers: Mapping[str, float | None]
    query: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Content of a report.

    Args:
        title, summary, settings: texts at the top.
        tables: tables.
        sheet: explanation of the contact sheet.
        sorts: for each order, its title, and (name in `Tile.numbers`, 1 for lowest first or -1 for highest first).
        tiles: the photographs.
        clusters: whether similar maps are grouped.
        command: command that starts the explorer with these models.
    """

    title: str
    summary: str
    settings: str
    tables: Sequence[Table]
    sheet: str
    sorts: Mapping[str, tuple[str, int]]
    tiles: Sequence[Tile]
    clusters: bool = True
    command: str = "vitviz app"


def write_report(
    path: str | os.PathLike[str],
    report: Report,
    folder: str | os.PathLike[str],
    preprocess: Preprocess,
    *,
    page: str = PAGE,
) -> None:
    """Write a report.

    Args:
        path: the HTML file.
        report: its content.
        folder: folder of the photographs.
        preprocess: preprocessing of the model; the sheet shows the part of each photograph that it keeps.
        page: address of the explorer that a click on a photograph opens.

    Raises:
        ImageError: if a photograph cannot be read.
        WritingError: if the disk is full.
    """
    groups = _cluster([_levels(tile) for tile in report.tiles]) if report.clusters else []
    answers = sorted({tile.answer for tile in report.tiles})
    texts = ("title", "summary", "settings", "sheet", "command")
    filling = {name: html.escape(getattr(report, name)) for name in texts} | {
        "style": bundle.style(), "script": bundle.script("export/report.js"), "page": html.escape(page),
        "tables": "\n".join(map(_table, report.tables)),
        "clusters": _clusters(groups, report.tiles),
        "sorts": "".join(
            f'<option value="{name} {way}">{html.escape(title)}</option>' for title, (name, way) in report.sorts.items()
        ),
        "answers": "".join(f"<option>{html.escape(answer)}</option>" for answer in answers),
    }  # fmt: skip
    start, _, end = bundle.fill(TEMPLATE.read_text(encoding="utf-8"), filling).rpartition("@@tiles@@")
    cluster_of = {index: number for number, group in enumerate(groups) for index in group}
    with replacing(path) as beside, beside.open("w", encoding="utf-8", errors=ESCAPED) as file:
        file.write(start)
        for index, tile in enumerate(report.tiles):
            file.write(_tile(tile, Path(folder), preprocess, cluster_of.get(index)))
        file.write(end)


def _cell(text: str) -> str:
    """Return the HTML of a cell; an interval or random share goes below its number."""
    number, *rest = html.escape(unbroken(text)).split(" (", 1)
    return f"<td>{number}{''.join(f'<small>({part}</small>' for part in rest)}</td>"


def _table(table: Table) -> str:
    header, *rows = table.rows
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = (
        f"<tr{' class=rp-marked' if index in table.marked else ''}><th>{html.escape(name)}</th>"
        + "".join(map(_cell, cells))
        + "</tr>"
        for index, (name, *cells) in enumerate(rows)
    )
    return (
        f"<h2>{html.escape(table.title)}</h2>"
        + "".join(f'<p class="rp-meaning">{html.escape(text)}</p>' for text in table.texts)
        + f'<div class="rp-scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _tile(tile: Tile, folder: Path, preprocess: Preprocess, cluster: int | None) -> str:
    """Return the HTML of a photograph, cropped to the part that the model saw."""
    picture = preprocess.restore(preprocess(decode(folder / tile.image)).pixels)
    picture.thumbnail((SIDE, SIDE))
    numbers = {name: value for name, value in tile.numbers.items() if value is not None}
    data = {**numbers, "answer": tile.answer, "query": tile.query, **({} if cluster is None else {"cluster": cluster})}
    attributes = "".join(f' data-{name}="{html.escape(str(value))}"' for name, value in data.items())
    wide = picture.width >= picture.height
    size = f"{'width' if wide else 'height'}: 100%; aspect-ratio: {picture.width} / {picture.height}"
    first, *lines = tile.lines
    name = html.escape(tile.image)
    return (
        f'<a class="rp-tile" target="_blank" rel="noopener" href="#" title="{name}"{attributes}>'
        f'<div><span style="{size}"><img alt="{name}" src="data:image/webp;base64,{_webp(picture)}">'
        f'<canvas data-grid="{tile.grid[0]},{tile.grid[1]}" data-map="{tile.map}" data-mask="{tile.mask}"'
        f"{' data-signed' if tile.signed else ''}></canvas></span></div>"
        f'<p class="rp-says">{html.escape(unbroken(first))}</p>'
        + "".join(
            f"<p{' class=rp-flag' if index == tile.flagged else ''}>{html.escape(unbroken(line))}</p>"
            for index, line in enumerate(lines, 1)
        )
        + f"<p>{name}</p></a>\n"
    )


def _webp(picture: Image.Image) -> str:
    """Return a picture as WebP in base64, in the best quality that fits in `PICTURE_BYTES`."""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "WEBP", quality=quality)
        if buffer.tell() <= PICTURE_BYTES:
            break
    return base64.b64encode(buffer.getvalue()).decode()


def _levels(tile: Tile) -> NDArray[np.float64]:
    """Resize a map to `CLUSTER_SIDE` rows and columns, and divide it by its sum: (CLUSTER_SIDE²,)."""
    levels = np.frombuffer(base64.b64decode(tile.map), np.uint8).reshape(tile.grid).astype(np.float32)
    small = np.asarray(Image.fromarray(levels).resize((CLUSTER_SIDE, CLUSTER_SIDE), Image.Resampling.BOX), np.float64)
    return small.ravel() / max(float(small.sum()), 1e-9)


def _cluster(maps: Sequence[NDArray[np.float64]]) -> list[list[int]]:
    """Cluster maps, (n,) each, by k-means with a fixed seed; return the indices in each cluster, largest cluster first.

    Lapuschkin et al. 2019, "Unmasking Clever Hans predictors", cluster maps to find unusual strategies of a model.
    """
    count = min(MAX_CLUSTERS, len(maps) // MIN_PER_CLUSTER)
    if count < 2:
        return []
    points, random = np.stack(maps), np.random.default_rng(0)
    centers = points[[int(random.integers(len(points)))]]
    while len(centers) < count:  # k-means++
        distance = ((points[:, None] - centers) ** 2).sum(-1).min(1)
        share = distance / distance.sum() if distance.sum() > 0 else np.full(len(points), 1 / len(points))
        centers = np.concatenate([centers, points[[int(random.choice(len(points), p=share))]]])
    for _ in range(STEPS):
        nearest = ((points[:, None] - centers) ** 2).sum(-1).argmin(1)
        moved = np.stack([points[nearest == k].mean(0) if (nearest == k).any() else centers[k] for k in range(count)])
        if np.allclose(moved, centers):
            break
        centers = moved
    groups = [np.flatnonzero(nearest == k).tolist() for k in range(count)]
    return sorted((group for group in groups if group), key=len, reverse=True)


def _clusters(groups: Sequence[Sequence[int]], tiles: Sequence[Tile]) -> str:
    """Return the HTML of the clusters, with their mean maps and most frequent predictions."""
    if not groups:
        return ""
    buttons = []
    for number, group in enumerate(groups):
        mean = np.mean([_levels(tiles[index]) for index in group], axis=0)
        names = [tiles[index].answer for index in group]
        common = sorted(set(names), key=lambda name: (-names.count(name), name))[:2]
        listed = ", ".join(f"{name} ({names.count(name)})" for name in common)
        buttons.append(
            f'<button type="button" data-cluster="{number}" aria-pressed="false">'
            f'<canvas data-grid="{CLUSTER_SIDE},{CLUSTER_SIDE}" data-map="{as_levels(mean)}"></canvas>'
            f"<strong>{counted(len(group), 'photograph')}</strong><small>{html.escape(listed)}</small></button>"
        )
    return (
        '<h2>Similar maps</h2><p class="rp-meaning">Clusters of photographs whose relevance lies at similar places, '
        "with the mean map of each cluster. If this map has a bright corner or border, and most photographs of the "
        "cluster have the same prediction, look for a shortcut. Click a cluster to see only its photographs.</p>"
        f'<div class="rp-clusters">{"".join(buttons)}</div>'
    )
