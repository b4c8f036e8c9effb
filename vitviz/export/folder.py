"""Export each photograph into its own folder: page, pictures and numbers. An interrupted run can be continued.

| file | content |
|---|---|
| `page.html` | the explorer with the photograph, which opens offline |
| `attention.png`, `rollout.png`, `gae.png` | maps with caption and color bar; `gae` if the model has class names |
| `attention.npz`, ... | these maps' numbers with everything needed to reproduce them, see `vitviz.export.numbers` |
| `predictions.csv` | the most probable classes |

A photograph's folder appears only when all its files are written, so existing folders are complete. `export.json`
next to these folders records the model and the options.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitviz.attribution.registry import default_methods
from vitviz.draw.sheet import card
from vitviz.errors import VitvizError
from vitviz.export import numbers
from vitviz.heatmap import Heatmap
from vitviz.outputs import REGRESSION
from vitviz.view import View
from vitviz.writing import replacing, write, write_table

SETTINGS = "export.json"
CLASSES = 10


class ExportError(VitvizError):
    """Raised if the folder was started with different options."""


def begin(folder: Path, settings: dict[str, Any]) -> None:
    """Create the folder, and write the settings of this run.

    Raises:
        ExportError: if the folder has different settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ExportError(
            f"Expected a folder of the same model and options to continue, got another {str(path)!r}. Name a new one."
        )
    write(path, text)


def maps_of(view: View) -> dict[str, Heatmap]:
    """Return the exported maps by name."""
    name = default_methods(view.model)[0]
    maps = {"attention": view.attention(), "rollout": view.rollout()}
    return maps | ({name: view.explain(name)} if view.best(1) else {})


def export_photo(view: View, folder: Path, parts: Collection[str], *, model: str, photo: str) -> list[str]:
    """Write the files of one photograph into a new folder; return their names.

    Args:
        view: view of the photograph.
        folder: new folder, which appears when all files are written.
        parts: a subset of `vitviz.export.PARTS`.
        model, photo: sources of model and photograph, for the record stored with the numbers.
    """
    maps = maps_of(view) if {"pictures", "numbers"} & set(parts) else {}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder, folder=True) as beside:
        for name, heatmap in maps.items():
            if "pictures" in parts:
                card(heatmap, title=view.describe(), side=960).save(beside / f"{name}.png")
            if "numbers" in parts:
                numbers.save(view, heatmap, beside / f"{name}.npz", model=model, photo=photo)
        kind = "value" if view.model.problem_type == REGRESSION else "probability"
        if "numbers" in parts and view.names_classes:
            write_table(beside / "predictions.csv", [("label", kind), *view.predictions(CLASSES)])
        if "page" in parts:
            view.save_html(beside / "page.html")
    return sorted(path.name for path in folder.iterdir())
