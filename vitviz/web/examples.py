"""List the photographs included with the page."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitviz.images.decoding import decode
from vitviz.phrases import Phrase
from vitviz.resources import resource_folder
from vitviz.view import View

EXAMPLES = resource_folder("examples")
THUMBNAIL = 160  # pixels; twice the width on the page, for screens with two pixels per CSS pixel


@dataclass(frozen=True)
class Example:
    """An example photograph of the page.

    Args:
        path: path of its file.
        name: one word, used on its button and in links.
        label: a sentence, shown as its tooltip.
        classes: correct labels, whichever model uses them.
    """

    path: Path
    name: str
    label: str
    classes: tuple[str, ...] = ()

    def caveat(self, view: View) -> str:
        """Return a note if the model has no class for this example and does not say so, or is wrong, else ""."""
        if not view.names_classes:
            return ""
        right = {name.casefold() for name in self.classes}
        if not right & {name for label in view.labels for name in synonyms(label)}:
            if view.known is False:
                return ""
            return Phrase("no-class-fits", "None of this model's classes fits this example.")
        if not right & synonyms(view.predictions(1)[0][0]):
            return Phrase("example-wrong", "The model gets this example wrong. {0}.", self.label)
        return ""

    def describe(self) -> dict[str, Any]:
        """Return name, label and thumbnail for the page."""
        picture = decode(self.path)
        picture.thumbnail((THUMBNAIL, THUMBNAIL), reducing_gap=2.0)
        buffer = io.BytesIO()
        picture.save(buffer, "WEBP", quality=75)
        url = f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        return {"name": self.name, "label": self.label, "thumbnail": url}


def synonyms(label: str) -> set[str]:
    """Return the names in a label; ImageNet's labels contain several, such as "tabby, tabby cat"."""
    return {name.strip().casefold() for name in label.split(",")}


def examples(folder: Path = EXAMPLES) -> list[Example]:
    """Return the photographs that `index.json` lists, in its order."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return [Example(folder / row["file"], row["name"], row["label"], tuple(row["classes"])) for row in index]
