"""Write the report of a comparison of two models."""

from __future__ import annotations

import base64
import os
import shlex
from urllib.parse import urlencode

import numpy as np

from vitviz.evaluation.compare import FLIPS, MEANS, MEANS_NOT, Comparison, PhotoChange
from vitviz.export.report import PAGE, Report, Table, Tile, write_report
from vitviz.formatting import percent
from vitviz.images.preprocess import Preprocess

SHEET = (
    "Difference of the maps ({}), on one scale for all photographs. Amber: the second model puts a larger share of its "
    "relevance there; blue: a smaller share. Equal maps do not mean that the models compute the same. Click a "
    "photograph to open it in the explorer with both models in two panes; it must run at the address below. There, the "
    "second pane shows the difference."
)
SORTS = {
    "changed predictions first": ("flipped", -1),
    "difference of the maps, largest first": ("moved", -1),
    "confidence of the second model, lowest first": ("confidence", 1),
    "file name": ("place", 1),
}


def write_comparison(
    path: str | os.PathLike[str],
    comparison: Comparison,
    preprocess: Preprocess,
    *,
    models: tuple[str, str],
    page: str = PAGE,
) -> None:
    """Write the report of a comparison.

    Args:
        path: the HTML file.
        comparison: result of `vitviz.evaluation.compare.compare`.
        preprocess: preprocessing of the first model.
        models: names or paths with which the explorer opens the models.
        page: address of the explorer.
    """
    first, second = comparison.names
    rows = [[f"{before} → {after}", str(count)] for before, after, count in comparison.flips]
    tables = []
    if rows:
        header = ["predictions", "photographs"]
        tables.append(Table(title="Predictions that changed", texts=[FLIPS], rows=[header, *rows]))
    if not comparison.incomparable:
        tables.append(Table(title="Heads that changed", texts=[MEANS, MEANS_NOT], rows=comparison.cells()))
    query = f"?{urlencode({'tab': 'why', 'model': models[0], 'model2': models[1], 'pane': '1', 'difference': '1'})}"
    scale = comparison.scale
    report = Report(
        title="What changed between two models?",
        summary=comparison.describe(),
        settings=f"{first} ({models[0]}) and {second} ({models[1]}) · {comparison.folder} · {comparison.method}",
        tables=tables,
        sheet=SHEET.format(comparison.method),
        sorts=SORTS,
        tiles=[_tile(photo, place, scale, query) for place, photo in enumerate(comparison.photographs)],
        clusters=False,
        command=shlex.join(["vitviz", "app", *(part for model in models for part in ("--model", model))]),
    )
    write_report(path, report, comparison.folder, preprocess, page=page)


def _tile(photo: PhotoChange, place: int, scale: float, query: str) -> Tile:
    levels = (128 + 127 * np.clip(photo.difference / scale, -1.0, 1.0)).round().astype(np.uint8)
    shares = [f"{label} {percent(share, 2)}" for label, share in zip(photo.answers, photo.confidences, strict=True)]
    rows, columns = photo.difference.shape
    return Tile(
        image=photo.image, grid=(rows, columns), map=base64.b64encode(levels.tobytes()).decode(), signed=True,
        answer=photo.answers[1], lines=[shares[1], f"before: {shares[0]}"], flagged=1 if photo.flipped else None,
        query=query,
        numbers={
            "flipped": float(photo.flipped), "moved": float(np.abs(photo.difference).mean() / 2),
            "confidence": photo.confidences[1], "place": float(place),
        },
    )  # fmt: skip
