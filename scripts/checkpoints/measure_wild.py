"""Evaluate a model on photographs from other sources, and record every evaluation in its model card.

    python scripts/checkpoints/measure_wild.py MODEL WILD --card checkpoints/dinov2-s14-everyday/README.md
    python scripts/checkpoints/measure_wild.py MODEL OWN --table scripts/checkpoints/everyday/own_labels.csv

WILD contains FOLDER/image, as in everyday2-wild.tar. The table has the correct answers for each folder, or "unknown";
the folder's name is correct too, for models with other classes. Folders of Imagenette may have WordNet ids as names.
--card adds a row with date, commit and results below the heading "Evaluations on wild/", so that the card shows every
evaluation. --classes writes the accuracy of each class into a table that everyday_head.py began. --sheet draws
`SHOWN` photographs, spread evenly over the folders, with predictions; the photographs may not be redistributed.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import math
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from everyday_head import TABLES, auroc, calibration_error, unknown
from torch import Tensor

import vitviz
from vitviz.draw.predictions import Prediction, prediction_sheet
from vitviz.draw.sheet import fit_photo
from vitviz.images.datasets import IMAGENETTE
from vitviz.images.decoding import decode
from vitviz.images.folders import batches, list_images
from vitviz.model.vit import ViT

HEADING = "## Evaluations on wild/"
COLUMNS = (
    "date", "commit", "model", "known", "top-1", "top-5", "group", "ECE", "sure", "right when sure", "sure of unknown",
    "called unknown", "AUROC", "Imagenette's ten",
)  # fmt: skip
SHOWN = 60


@dataclass(frozen=True, eq=False)
class Run:
    """Outputs for n photographs: logits (n, C), file and folder of each."""

    logits: Tensor
    paths: tuple[Path, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders' names; Imagenette's WordNet ids are replaced."""
        return tuple(IMAGENETTE.get(path.parent.name, path.parent.name) for path in self.paths)


@torch.inference_mode()
def run(model: ViT, folder: Path, bfloat16: bool) -> Run:
    """Run a model on FOLDER/CLASS/image, preprocessed like photographs in the app."""
    assert model.pretrained is not None
    paths = list_images(folder)
    logits, indices = [], []
    for batch in batches([*zip(paths, range(len(paths)), strict=True)], model.pretrained.preprocess, 16):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits.append(model(batch.images).float())
        indices.append(batch.classes)
    order = torch.cat(indices).argsort()
    return Run(torch.cat(logits)[order], tuple(paths))


def right_classes(labels: tuple[str, ...], folders: tuple[str, ...], table: dict[str, str]) -> Tensor:
    """Return whether each class (C,) is right for each photograph: (n, C) bool."""
    right = torch.zeros(len(folders), len(labels), dtype=torch.bool)
    for row, folder in enumerate(folders):
        for name in (folder, *table[folder].split("|")):
            if name in labels and table[folder] != "unknown":
                right[row, labels.index(name)] = True
    return right


def certain(model: ViT, logits: Tensor) -> Tensor:
    """Return for which photographs (n,) the model is sure, as the app does."""
    about = model.pretrained
    assert about is not None
    return logits.softmax(1).amax(1) >= (about.sure_above or 0.0)


def measure(model: ViT, answers: Run, table: dict[str, str]) -> dict[str, str]:
    """Return column -> result."""
    about = model.pretrained
    assert about is not None
    labels = about.labels
    right = right_classes(labels, answers.folders, table)
    known = torch.tensor([table[folder] != "unknown" for folder in answers.folders])
    probabilities, scores = answers.logits.softmax(1), answers.logits.logsumexp(1)
    best, first = probabilities.max(1)
    hit = right.gather(1, first[:, None])[:, 0]
    in_top5 = right.gather(1, probabilities.topk(5).indices).any(1)
    sure = certain(model, answers.logits)
    flagged = unknown(answers.logits, -math.inf if about.known_above is None else about.known_above)
    error = calibration_error(best[known], hit[known])
    grouped = hit.clone()
    members = [[labels.index(label) for label in group[1:]] for group in about.groups]
    for columns in sorted(members, key=len, reverse=True):  # the smallest group with a sufficient probability counts
        enough = ~hit & (probabilities[:, columns].sum(1) >= (about.sure_above or 0.5))
        grouped = torch.where(enough, right[:, columns].any(1), grouped)
    of_imagenette = torch.tensor([label in IMAGENETTE.values() for label in labels])
    other = torch.tensor([folder not in IMAGENETTE.values() for folder in answers.folders])

    def percent(values: Tensor) -> str:
        return f"{100 * float(values.float().mean()):.1f} %" if len(values) else "none"

    return {
        "known": f"{int(known.sum()):,} of {len(known):,}",
        "top-1": percent(hit[known]),
        "top-5": percent(in_top5[known]),
        "group": percent(grouped[known]),
        "ECE": f"{100 * error:.1f} %",
        "sure": percent(sure[known]),
        "right when sure": percent(hit[known & sure]),
        "sure of unknown": percent(sure[~known]),
        "called unknown": f"{percent(flagged[known])}, {percent(flagged[~known])} of unknown",
        "AUROC": f"{auroc(scores[known], scores[~known]):.3f}" if (~known).any() else "none",
        "Imagenette's ten": percent(of_imagenette[first[other]]),
    }


def write_classes(path: Path, labels: tuple[str, ...], answers: Run, table: dict[str, str]) -> None:
    """Add the accuracy of each class, and its most frequent mistake, to a table with one row per class."""
    first, right = answers.logits.argmax(1), right_classes(labels, answers.folders, table)
    in_top5 = right.gather(1, answers.logits.topk(5).indices).any(1)
    hit = right.gather(1, first[:, None])[:, 0]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    own = [table[folder].split("|")[0] for folder in answers.folders]
    for row in rows:
        of_class = torch.tensor([name == row["class"] for name in own])
        wrong = Counter(first[of_class & ~hit].tolist()).most_common(1)
        row["val"] = str(int(of_class.sum()))
        for name, values in (("top1", hit), ("top5", in_top5)):
            row[name] = f"{float(values[of_class].double().mean()):.3f}" if of_class.any() else ""
        row["most often taken for"] = f"{labels[wrong[0][0]]} ({wrong[0][1]})" if wrong else ""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw_sheet(path: Path, model: ViT, answers: Run, table: dict[str, str]) -> None:
    """Draw photographs with the most probable class, and a question mark if the model is not sure."""
    assert model.pretrained is not None
    labels, right = model.pretrained.labels, right_classes(model.pretrained.labels, answers.folders, table)
    sure, predictions = certain(model, answers.logits), []
    probability, best = answers.logits.softmax(1).max(1)
    for index in torch.linspace(0, len(answers.paths) - 1, SHOWN).long().tolist():
        folder, label = answers.folders[index], labels[int(best[index])]
        name = label if sure[index] else f"{label}?"
        picture = fit_photo(decode(answers.paths[index]), 128)
        hit = bool(right[index, best[index]])
        predictions.append(Prediction((picture,), name, float(probability[index]), folder, hit))
    prediction_sheet(predictions, title=f"{model.pretrained.name}: new photographs", columns=10).save(path)


def main() -> None:
    """Measure, print, and write what the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("folder", type=Path, metavar="WILD", help="FOLDER/image for each folder of the table")
    parser.add_argument("--table", type=Path, default=TABLES / "wild_labels.csv", help="table of correct answers")
    parser.add_argument("--card", type=Path, help="model card (README.md) to add a row to")
    parser.add_argument("--classes", type=Path, metavar="CSV", help="table of classes to add accuracies to")
    parser.add_argument("--sheet", type=Path, metavar="PNG", help="picture of photographs with predictions to write")
    parser.add_argument("--bfloat16", action="store_true", help="measure in bfloat16, in half the time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of PyTorch's threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = vitviz.load(args.model).eval().float()
    with args.table.open(encoding="utf-8", newline="") as file:
        table = {row["folder"]: row["answers"] for row in csv.DictReader(file)}
    answers = run(model, args.folder, args.bfloat16)
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    day = dt.datetime.now(dt.UTC).date().isoformat()
    figures = {"date": day, "commit": commit, "model": Path(args.model).name, **measure(model, answers, table)}
    for name in COLUMNS:
        print(f"{name:>16}  {figures[name]}")
    assert model.pretrained is not None
    if args.classes:
        write_classes(args.classes, model.pretrained.labels, answers, table)
    if args.sheet:
        draw_sheet(args.sheet, model, answers, table)
    if args.card:
        text = args.card.read_text(encoding="utf-8").rstrip("\n")
        if HEADING not in text:
            text += f"\n\n{HEADING}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
        row = "| " + " | ".join(figures[name] for name in COLUMNS) + " |"
        before, after = text.split(HEADING, 1)
        lines = after.split("\n")
        last = max(index for index, line in enumerate(lines) if line.startswith("|"))
        lines.insert(last + 1, row)
        args.card.write_text(before + HEADING + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
