"""Compare the attention of two models: how much lies on the object, and a sheet of the example photographs.

    python scripts/compare_attention.py BEFORE AFTER PHOTOS --sheet checkpoints/dinov2-s14-everyday/before-after.webp

The map is the attention of the class token in the last block, averaged over heads. On photographs of PHOTOS with a
white background (at most `MOST`), a threshold finds the object, and the script prints the share of the attention inside
it and the average precision.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitviz.draw.predictions import Prediction, draw_map, prediction_sheet
from vitviz.draw.sheet import fit_photo
from vitviz.evaluation.localization import segmentation
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.images.decoding import decode
from vitviz.images.folders import list_images
from vitviz.resources import resource_folder
from vitviz.view import View

EXAMPLES = resource_folder("examples")
WHITE, BORDER = 235, 0.97  # minimum level of every channel of a white pixel; minimum share of white border pixels
MOST = 200


def white_background(photo: Image.Image) -> npt.NDArray[np.bool_] | None:
    """Return the mask (H, W) of the object in a photograph with a white background; `None` for other photographs."""
    white = (np.asarray(photo) > WHITE).all(axis=2)
    border = np.concatenate([white[0], white[-1], white[:, 0], white[:, -1]])
    share = 1.0 - float(white.mean())
    return ~white if border.mean() >= BORDER and 0.08 <= share <= 0.6 else None


def attention(view: View) -> Heatmap:
    """Return the attention of the class token in the last block, averaged over heads."""
    return view.attention(-1, "mean", "cls")


def on_object(explorer: Explorer, photos: list[Image.Image]) -> tuple[float, float, float]:
    """Return three means over photographs: share of the attention on the object, average precision, object's area."""
    sums = np.zeros(3)
    for photo in photos:
        mask = white_background(photo)
        assert mask is not None
        heatmap = attention(explorer.open(photo))
        gh, gw = heatmap.values.shape
        values = np.kron(heatmap.values, np.ones((14, 14)))
        fine = np.asarray(Image.fromarray(mask).resize((14 * gw, 14 * gh), Image.Resampling.NEAREST))
        result = segmentation(heatmap.values, heatmap.geometry, mask)
        sums += (float(values[fine].sum() / values.sum()), result.average_precision, result.share)
    mass, precision, area = (sums / len(photos)).tolist()
    return mass, precision, area


def before_after(before: Explorer, after: Explorer, name: str) -> Image.Image:
    """Return a sheet of the example photographs with the attention and the predictions of two models."""
    predictions = []
    for entry in json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8")):
        views = [explorer.open(EXAMPLES / entry["file"]) for explorer in (before, after)]
        maps = [attention(view) for view in views]
        ((label, probability),) = views[1].predictions(1)
        pictures = (fit_photo(maps[0].photo, 160), *(draw_map(heatmap, 160) for heatmap in maps))
        predictions.append(Prediction(pictures, label, probability, entry["name"].lower(), label in entry["classes"]))
    note = (
        "Each example photograph, then the attention of the last layer from CLS (mean of the heads) before and after "
        "fine-tuning. Each map has its own scale."
    )
    return prediction_sheet(predictions, title=f"{name}: before and after", note=note, columns=2, side=160)


def main() -> None:
    """Print the figures of both models, and draw the sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="a model's name or folder")
    parser.add_argument("after", metavar="AFTER", help="a model's name or folder")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="CLASS/image")
    parser.add_argument("--sheet", type=Path, help="picture to write")
    args = parser.parse_args()
    before, after = Explorer(args.before), Explorer(args.after)
    photos = [photo for path in list_images(args.photos) if white_background(photo := decode(path)) is not None]
    photos = photos[:MOST]
    print(f"{len(photos)} photographs with a white background")
    for name, explorer in ((args.before, before), (args.after, after)):
        mass, precision, area = on_object(explorer, photos)
        print(f"{name}: {mass:.2%} inside the object ({area:.2%} of the area), average precision {precision:.3f}")
    if args.sheet:
        assert after.model.pretrained is not None
        before_after(before, after, after.model.pretrained.name).save(args.sheet, quality=80, method=6)


if __name__ == "__main__":
    main()
