"""Write the report of an audit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from urllib.parse import urlencode

from vitviz.evaluation.audit_table import BACKGROUND, COLORS, GRAY, PARTS, TEXTS, Audit, keeps
from vitviz.evaluation.records import Record
from vitviz.export.report import PAGE, Report, Table, Tile, write_report
from vitviz.formatting import counted, percent
from vitviz.images.preprocess import Preprocess

SHEET = (
    "The part of each photograph that the model saw. Bright patches support the prediction ({}); a white line is the "
    "outline of the foreground. Below are probabilities of the predicted class, also if the model sees only a part; "
    "highlighted if the background alone keeps the prediction. "
    "Click a photograph to open it in the explorer, which must run at the address below."
)
TITLES = dict(zip(PARTS, ("foreground alone", "background alone", "background trimmed", "in gray"), strict=True))
SORTS: Mapping[str, tuple[str, int]] = {
    "background alone, highest probability first": ("background", -1),
    "foreground alone, lowest probability first": ("foreground", 1),
    "gray, lowest probability first": (GRAY, 1),
    "relevance inside the mask, lowest first": ("inside", 1),
    "disagreement of methods, highest first": ("disagreement", -1),
    "confidence, lowest first": ("confidence", 1),
    "file name": ("place", 1),
}


def write_audit(
    path: str | os.PathLike[str], audit: Audit, preprocess: Preprocess, *, model: str, page: str = PAGE
) -> None:
    """Write the report of an audit.

    Args:
        path: the HTML file.
        audit: result of `vitviz.audit`.
        preprocess: preprocessing of the model.
        model: name or path with which the explorer opens the model.
        page: address of the explorer.
    """
    first = audit.settings["methods"][0]
    answers = audit.answers
    table = Table(
        title="Predictions",
        texts=TEXTS,
        rows=audit.cells(),
        marked=[index for index, row in enumerate(answers) if row.verdict in (BACKGROUND, COLORS)],
    )
    query = f"?{urlencode({'tab': 'why', 'model': model})}"
    command = shlex.join(["vitviz", "app", "--model", model])
    tiles = [_tile(record, audit, f"inside_{first}", place, query) for place, record in enumerate(audit.records)]
    masks, methods = audit.settings["masks"].partition(":")[0], " and ".join(audit.settings["methods"])
    sets = counted(audit.settings["sets"], "random set")
    settings = f"{audit.settings['model']} · {audit.folder} · masks {masks} · {methods} · {sets}"
    report = Report(
        title="Do predictions rest on the object or on the background?", summary=audit.describe(), settings=settings,
        tables=[table], sheet=SHEET.format(first), sorts=SORTS, tiles=tiles, command=command,
    )  # fmt: skip
    write_report(path, report, audit.folder, preprocess, page=page)


def _tile(record: Record, audit: Audit, inside: str, place: int, query: str) -> Tile:
    label = audit.labels[record["target"]]
    lines = [f"{label} {percent(record['confidence'], 2)}"]
    flagged = None
    if record["label"] is not None and record["label"] != record["target"]:
        lines.append(f"folder: {audit.labels[record['label']]}")
    if record["known"] is False:
        lines.append("perhaps none of the classes")
    if "foreground" in record:
        for part, title in TITLES.items():
            is_same = keeps(record, part)
            other = "" if is_same else f", {audit.labels[record[f'{part}_answer']]} instead"
            if is_same and part == "background":
                flagged = len(lines)
            lines.append(f"{title}: {percent(record[part], 2)}{other}")
    else:
        lines.append("no usable mask")
    numbers = {name: record.get(name) for name in ("foreground", "background", GRAY, "disagreement", "confidence")}
    return Tile(
        image=record["image"], grid=(record["grid"][0], record["grid"][1]), map=record["map"], mask=record["mask"],
        answer=label, lines=lines, flagged=flagged, query=query,
        numbers={**numbers, "inside": record[inside], "place": float(place)},
    )  # fmt: skip
