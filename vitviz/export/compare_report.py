"""Write the report of a comparison of two models."""

from __future__ import annotations

import base64
import os
from urllib.parse import urlencode

import numpy as np

from vitviz.evaluation.compare import MEANS, MEANS_NOT, Compared, Comparison
from vitviz.export.report import PAGE, Report, Table, Tile, write_report
from vitviz.formatting import percent
from vitviz.images.preprocess import Preprocess

FLIPS = (
    "Answers of the first model that the second one changed. The table does not say which answer is right, nor why it "
    "changed: open the photographs."
)
SHEET = (
    "Difference of the maps ({}), on one scale for all photographs. Amber: the second model puts a larger share of its "
    "relevance there; blue: a smaller one. Equal maps do not mean equal reasons. A click opens the photograph in the "
    "explorer with both models in two panes, if that runs at the address below."
)
SORTS = {
    "answer changed first": ("flipped", -1),
    "map changed, most first": ("moved", -1),
    "confidence of the second model, least first": ("confidence", 1),
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
        preprocess: of the first model.
        models: the models' sources, by which the explorer opens them.
        page: address of the explorer.
    """
    first, second = comparison.names
    rows = [[f"{before} → {after}", str(count)] for before, after, count in comparison.flips]
    tables = [Table(title="Answers that changed", texts=[FLIPS], rows=[["answers", "photographs"], *rows])]
    if not comparison.apart:
        tables.append(Table(title="Heads that changed", texts=[MEANS, MEANS_NOT], rows=comparison.cells()))
    query = f"?{urlencode({'tab': 'why', 'model': models[0], 'model2': models[1], 'pane': '1'})}"
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
        command=f"vitviz app --model {models[0]} --model {models[1]}",
    )
    write_report(path, report, comparison.folder, preprocess, page=page)


def _tile(photo: Compared, place: int, scale: float, query: str) -> Tile:
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
