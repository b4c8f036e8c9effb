"""Train a balanced head for the everyday model on cached features, and evaluate it on held-out sources.

    python scripts/checkpoints/everyday_head.py folds ARCHIVES FEATURES
    python scripts/checkpoints/everyday_head.py train ARCHIVES FEATURES --base dinov2-s14-everyday --output OUT

FEATURES contains the outputs of cache_features.py: everyday256.npz, everyday2.npz, imagenette.npz, unknown.npz,
and the same names with -1, -2, ... for augmented pictures; or the outputs of train_everyday.py, which trains a
backbone for each fold (fold0, fold1, ..., all). ARCHIVES contains the lists of images; the classes are in
everyday/.

The head is the sum of two heads: one trained by gradient descent, and one whose rows are the whitened means of the
classes, weighted by `--means`. Classes are sampled equally, and the sources of a class in proportion to the square root
of their sizes. Each step also has pictures without a class (`FIT`), whose target distribution is uniform (outlier
exposure, Hendrycks et al. 2019).

`folds` holds out each group of sources in turn (`FOLDS`) together with a tenth of the classes, which count as unknown,
and prints the results on these sources. `train` also fits a temperature and two thresholds (`sure_above`,
`known_above`) to these results, then trains on all sources, and writes a checkpoint: the backbone of --base with the
new head.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from make_answer_tables import LEFT_OUT, UNKNOWN
from torch import Tensor

import vitviz
from vitviz.formatting import UNKNOWN_BELOW
from vitviz.images.datasets import IMAGENETTE
from vitviz.weights.checkpoint import save

TABLES = Path(__file__).parent / "everyday"
SETS = {"everyday256": "1", "everyday2": "2", "imagenette": "I"}
FOLDS = (
    ("2C", "2D", "1A", "1H", "1J", "1Y", "1V", "1E", "1O", "1B", "1Q", "1D", "1S"),
    ("1C", "2Z", "1G", "1R", "1I", "1K", "1L", "1P", "1W", "1Z"),
    ("2W", "2R", "2K", "2H", "2X", "2G", "2J", "2B", "2a", "2b", "2O", "2L", "2F", "2V"),
)  # fmt: skip
"""Sources that are held out together: COCO and web photographs; Caltech-101 and others; the rest of everyday2."""
FIT = ("text", "screen", "noise", "shapes", "gradient")
"""Kinds of drawn pictures used for training; other kinds are only used in the report."""
HELD_OUT = 10  # a fold holds out one class in ten
RIDGE = 0.3  # share of the mean variance to add to the variance of each feature
LEAST = 12  # minimum training images of a class whose held-out photographs are scored
SHARP = 160  # minimum short side of the original in pixels
RIGHT = 0.9  # minimum accuracy of sure predictions, see `Pretrained.sure_above`
SURE_OF_UNKNOWN = 0.08  # maximum share of unknown pictures with sure predictions
CALLED_UNKNOWN = 0.05  # maximum share of known photographs of which the page says "perhaps none", see `Pretrained`


@dataclass(frozen=True, eq=False)
class Material:
    """Features for training: n pictures in V versions, R features, C classes.

    Args:
        features: (n, V, R); the first version is the original, the others are augmented.
        classes: (n,), class indices.
        sources: (n,), number of the collection and letter of the source.
        sharp: (n,), whether the original is large.
        labels: names of the C classes.
        outliers: (m, V, R), pictures without a class, for training.
        others: kind -> features (k, R) of pictures without a class, for the report.
    """

    features: Tensor
    classes: Tensor
    sources: np.ndarray[tuple[int], np.dtype[np.str_]]
    sharp: Tensor
    labels: tuple[str, ...]
    outliers: Tensor
    others: dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """Settings for training the head."""

    epochs: int = 10
    batch: int = 512
    rate: float = 2e-3
    decay: float = 1e-2
    smoothing: float = 0.1
    noise: float = 0.5
    exposure: float = 0.2
    means: float = 2.5
    changed: float = 0.5
    source_power: float = 0.5


def read_features(folder: Path, name: str) -> tuple[Tensor, list[str]]:
    """Return the features (n, V, R) of all versions of a collection, and the paths of its pictures."""
    versions, paths = [], []
    for path in [folder / f"{name}.npz", *sorted(folder.glob(f"{name}-*.npz"))]:
        file = np.load(path)
        if paths and paths != file["paths"].tolist():
            raise SystemExit(f"Expected the pictures of {name}.npz in {path}, got others. Compute its features again.")
        paths = file["paths"].tolist()
        versions.append(torch.from_numpy(file["features"]).float())
    return torch.stack(versions, 1), paths


def read_material(archives: Path, folder: Path) -> Material:
    """Read features, classes and sources."""
    return material(archives, {name: read_features(folder, name) for name in (*SETS, UNKNOWN)})


def material(archives: Path, collections: Mapping[str, tuple[Tensor, list[str]]]) -> Material:
    """Return the classes and sources of collections, given as features (n, V, R) and the pictures' paths."""
    with (TABLES / "classes.csv").open(encoding="utf-8", newline="") as file:
        trains = {row["folder"]: row["class"] for row in csv.DictReader(file)}
    with (TABLES / "wild_labels.csv").open(encoding="utf-8", newline="") as file:
        wild = {row["folder"] for row in csv.DictReader(file)}
    labels = tuple(sorted({*trains.values()} - {LEFT_OUT, UNKNOWN}))
    index_of = {label: index for index, label in enumerate(labels)}
    with gzip.open(archives / "everyday256-images.csv.gz", "rt", encoding="utf-8", newline="") as file:
        small = {row["file"] for row in csv.DictReader(file) if int(row["original_short_side"]) < SHARP}
    features, classes, sources, sharp = [], [], [], []
    outliers, others = [], {}
    least = 99
    for name, number in SETS.items():
        collection, paths = collections[name]
        least = min(least, collection.shape[1])
        folders = [IMAGENETTE.get(path.split("/")[-2], path.split("/")[-2]) for path in paths]
        files = [path.split("/")[-1] for path in paths]
        captcha = [number == "1" and file.startswith("X") for file in files]
        rows = [i for i, name in enumerate(folders) if trains[name] in index_of and not captcha[i]]
        features.append(collection[rows])
        classes += [index_of[trains[folders[i]]] for i in rows]
        sources += [number + (files[i][0] if number != "I" else "") for i in rows]
        sharp += [number != "1" or f"train/{folders[i]}/{files[i]}" not in small for i in rows]
        left_out = sorted({name for name in folders if trains[name] == LEFT_OUT} - wild)
        for index, name in enumerate(left_out):
            chosen = collection[[i for i, other in enumerate(folders) if other == name and not captcha[i]]]
            if index % 2:
                others.setdefault("classes left out", []).append(chosen[:, 0])
            else:
                outliers.append(chosen)
    collection, paths = collections[UNKNOWN]
    kinds = np.array([path.split("/")[-2] for path in paths])
    for kind in sorted({*kinds}):
        chosen = collection[torch.from_numpy(kinds == kind)]
        if kind in FIT:
            outliers.append(chosen.expand(-1, least, -1))
        else:
            others[kind] = [chosen[:, 0]]
    return Material(
        features=torch.cat([part[:, :least] for part in features]),
        classes=torch.tensor(classes),
        sources=np.array(sources),
        sharp=torch.tensor(sharp),
        labels=labels,
        outliers=torch.cat([part[:, :least] for part in outliers]),
        others={kind: torch.cat(parts) for kind, parts in others.items()},
    )


def chances(classes: Tensor, sources: Iterable[str], power: float) -> Tensor:
    """Return the sampling weights of pictures (n,): equal per class, and a power of the size per source."""
    pairs = [f"{label} {source}" for label, source in zip(classes.tolist(), sources, strict=True)]
    _, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    weights = torch.from_numpy(counts.astype(np.float64) ** (power - 1))[torch.from_numpy(inverse)]
    totals = torch.zeros(int(classes.max()) + 1, dtype=torch.float64).index_add_(0, classes, weights)
    return weights / totals[classes]


def fit_head(data: Material, rows: Tensor, settings: Settings, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return weight (C, R) and bias (C,) of a head trained on rows; classes without rows have a bias of -1e4."""
    torch.manual_seed(seed)
    features, classes = data.features[rows], data.classes[rows]
    mean, std = features[:, 0].mean(0), features[:, 0].std(0) + 1e-6
    features, outliers = (features - mean) / std, (data.outliers - mean) / std
    weights = chances(classes, data.sources[rows.numpy()], settings.source_power)
    absent = torch.ones(len(data.labels), dtype=torch.bool)
    absent[classes] = False
    head = torch.nn.Linear(features.shape[2], len(data.labels))
    steps = settings.epochs * len(rows) // settings.batch
    optimizer = torch.optim.AdamW(head.parameters(), lr=settings.rate, weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sampled = torch.multinomial(weights, steps * settings.batch, replacement=True).view(steps, -1)
    present = (~absent).float() / (~absent).sum()

    def versions(pictures: Tensor, index: Tensor) -> Tensor:
        count = pictures.shape[1]
        changed = torch.rand(len(index)) < settings.changed
        version = torch.randint(1, count, (len(index),)) * changed if count > 1 else torch.zeros_like(index)
        chosen = pictures[index, version]
        return chosen + settings.noise * torch.randn_like(chosen)

    for index in sampled:
        logits = head(versions(features, index)).masked_fill(absent, -1e4)
        target = F.one_hot(classes[index], len(data.labels)) * (1 - settings.smoothing) + settings.smoothing * present
        loss = -(target * logits.log_softmax(1)).sum(1).mean()
        if settings.exposure:
            unknown = torch.randint(len(outliers), (settings.batch // 4,))
            logits = head(versions(outliers, unknown)).masked_fill(absent, -1e4)
            loss = loss - settings.exposure * (present * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        weight, bias = head.weight.clone(), head.bias.clone()
        if settings.means:
            plain, present_rows = features[:, 0], ~absent
            nearest = class_directions(plain, classes, weights.float(), len(data.labels))
            spread = (plain @ weight[present_rows].T).std(1).mean() / (plain @ nearest[present_rows].T).std(1).mean()
            weight += settings.means * spread * nearest
        weight /= std
        return weight, (bias - weight @ mean).masked_fill(absent, -1e4)


def class_directions(features: Tensor, classes: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return a direction for each class (C, R): its whitened mean, of unit length, or zeros if it has no pictures.

    Products with features (n, R) rank the classes by the cosine to their means after whitening the scatter within
    classes, as linear discriminant analysis with equal norms does.
    """
    means = torch.zeros(count, features.shape[1]).index_add_(0, classes, features * weights[:, None])
    scatter = features - means[classes]
    covariance = (scatter * weights[:, None]).T @ scatter / weights.sum()
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance))
    whiten = torch.linalg.cholesky(torch.linalg.inv(covariance + ridge))
    return F.normalize(means @ whiten, dim=1) @ whiten.T


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the probability that a known photograph has a higher score, with ties counting half: (n,), (m,)."""
    return float(((known[:, None] > unknown).float() + 0.5 * (known[:, None] == unknown).float()).mean())


def calibration_error(probability: Tensor, right: Tensor, bins: int = 15) -> float:
    """Return the expected calibration error, 0..1 (Naeini et al. 2015): (n,), (n,) bool."""
    place = (probability * bins).long().clamp_max(bins - 1)
    total = 0.0
    for index in range(bins):
        if (inside := place == index).any():
            total += abs(float(probability[inside].mean()) - float(right[inside].float().mean())) * int(inside.sum())
    return total / len(right)


@dataclass(frozen=True, eq=False)
class Answers:
    """Logits of held-out photographs: known photographs with their classes, and unknown ones by kind."""

    logits: Tensor
    classes: Tensor
    folds: Tensor
    unknown: dict[str, Tensor]

    @property
    def right(self) -> Tensor:
        """Return whether the most probable class is right: (n,) bool."""
        return self.logits.argmax(1) == self.classes


def held_out(data: Material, number: int) -> tuple[Tensor, Tensor]:
    """Return the photographs (n,) and the classes (C,) that a fold holds out, as masks."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(20261123))
    unknown_classes = torch.zeros(len(data.labels), dtype=torch.bool)
    unknown_classes[order[number::HELD_OUT]] = True
    return torch.from_numpy(np.isin(data.sources, FOLDS[number])), unknown_classes


def fold_rows(data: Material, number: int) -> Tensor:
    """Return the rows of a fold's training photographs."""
    held, unknown_classes = held_out(data, number)
    return (~held & ~unknown_classes[data.classes]).nonzero()[:, 0]


def run_folds(materials: Sequence[Material], settings: Settings) -> Answers:
    """Return the logits of the photographs that each fold holds out, with the fold's own features."""
    logits, classes, folds, unknown = [], [], [], {kind: [] for kind in ("held-out classes", *materials[0].others)}
    for number, data in enumerate(materials):
        held, unknown_classes = held_out(data, number)
        rows = fold_rows(data, number)
        weight, bias = fit_head(data, rows, settings, seed=number)
        enough = torch.bincount(data.classes[rows], minlength=len(data.labels)) >= LEAST
        scored = held & data.sharp & enough[data.classes]
        logits.append(data.features[scored, 0] @ weight.T + bias)
        classes.append(data.classes[scored])
        folds.append(torch.full((int(scored.sum()),), number))
        features = data.features[unknown_classes[data.classes] & data.sharp, 0]
        unknown["held-out classes"].append(features @ weight.T + bias)
        for kind, features in data.others.items():
            unknown[kind].append(features @ weight.T + bias)
    joined = {kind: torch.cat(parts) for kind, parts in unknown.items()}
    return Answers(torch.cat(logits), torch.cat(classes), torch.cat(folds), joined)


def temperature(answers: Answers) -> float:
    """Return the temperature with the lowest negative log-likelihood, each fold counting equally (Guo et al. 2017)."""
    losses = []
    candidates = torch.exp(torch.linspace(-2.0, 1.5, 141)).tolist()
    for candidate in candidates:
        entropies = F.cross_entropy(answers.logits / candidate, answers.classes, reduction="none")
        losses.append(sum(float(entropies[answers.folds == fold].mean()) for fold in range(len(FOLDS))))
    return candidates[int(np.argmin(losses))]


def unknown(logits: Tensor, known_above: float) -> Tensor:
    """Return which photographs count as showing none of the classes (n,), as `vitviz.View.known` decides."""
    return (logits.softmax(1).amax(1) < UNKNOWN_BELOW) & (logits.logsumexp(1) < known_above)


def thresholds(answers: Answers) -> tuple[float, float]:
    """Return `sure_above` and `known_above` for calibrated logits.

    `sure_above` is the lowest percentage at and above which at least `RIGHT` of the predictions are right and at most
    `SURE_OF_UNKNOWN` of the held-out classes have one. `known_above` is the highest score for which at most
    `CALLED_UNKNOWN` of each fold's known photographs count as unknown.
    """
    probability, others = answers.logits.softmax(1).amax(1), answers.unknown["held-out classes"].softmax(1).amax(1)

    def enough(least: float) -> bool:
        sure = probability >= least
        right = bool(sure.any()) and float(answers.right[sure].float().mean()) >= RIGHT
        return right and float((others >= least).float().mean()) <= SURE_OF_UNKNOWN

    sure_above = next((percents / 100 for percents in range(30, 100) if enough(percents / 100)), 1.0)
    known_above = math.inf
    for fold in range(len(FOLDS)):
        logits = answers.logits[answers.folds == fold]
        score = logits.logsumexp(1).sort().values
        allowed = int(CALLED_UNKNOWN * len(logits))
        doubtful = logits[logits.softmax(1).amax(1) < UNKNOWN_BELOW].logsumexp(1).sort().values
        known_above = min(known_above, float(doubtful[allowed] if len(doubtful) > allowed else score[-1]))
    return sure_above, known_above


def report(answers: Answers, sure_above: float, known_above: float) -> list[str]:
    """Return the results of calibrated logits as lines of Markdown."""
    probability, energy = answers.logits.softmax(1).amax(1), answers.logits.logsumexp(1)
    sure, flagged = probability >= sure_above, unknown(answers.logits, known_above)
    top5 = (answers.logits.topk(5).indices == answers.classes[:, None]).any(1)

    def line(name: str, rows: Tensor) -> str:
        right = answers.right[rows]
        cells = (
            right.float().mean(), top5[rows].float().mean(), calibration_error(probability[rows], right),
            sure[rows].float().mean(), right[sure[rows]].float().mean(), flagged[rows].float().mean(),
        )  # fmt: skip
        return f"| {name} | {int(rows.sum()):,} | " + " | ".join(f"{100 * float(cell):.1f} %" for cell in cells) + " |"

    lines = ["| held out | images | top-1 | top-5 | ECE | sure | right when sure | called unknown |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    lines += [line(", ".join(fold), answers.folds == number) for number, fold in enumerate(FOLDS)]
    lines += [
        line("all", torch.ones_like(sure)),
        "",
        "| unknown | images | AUROC energy | max logit | probability | sure | called unknown |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for kind, logits in answers.unknown.items():
        confidence, unknown_energy = logits.softmax(1).amax(1), logits.logsumexp(1)
        shares = (confidence >= sure_above).float().mean(), unknown(logits, known_above).float().mean()
        maxima = answers.logits.amax(1), logits.amax(1)
        scores = auroc(energy, unknown_energy), auroc(*maxima), auroc(probability, confidence)
        cells = " | ".join(f"{score:.3f}" for score in scores)
        last = " | ".join(f"{100 * float(share):.1f} %" for share in shares)
        lines.append(f"| {kind} | {len(logits):,} | {cells} | {last} |")
    return lines


def groups(labels: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of everyday/groups.csv as (name, label, label, ...), smallest first."""
    with (TABLES / "groups.csv").open(encoding="utf-8", newline="") as file:
        members = {row["group"]: row["members"].split("|") for row in csv.DictReader(file)}

    def flat(name: str) -> list[str]:
        return [label for item in members[name] for label in (flat(item[1:-1]) if item.startswith("[") else [item])]

    listed = [(name, *flat(name)) for name in members]
    if unknown := sorted({label for group in listed for label in group[1:]} - {*labels}):
        raise SystemExit(f"Expected classes in groups.csv, got {', '.join(unknown)}. Correct the table.")
    return tuple(sorted(listed, key=len))


def main() -> None:
    """Run `folds` or `train`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("folds", "train"))
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="folder with the lists of images")
    parser.add_argument("features", type=Path, metavar="FEATURES", help="folder with cached features")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--base", default="dinov2-s14-everyday", help="model whose backbone computed the features")
    parser.add_argument("--output", type=Path, help="folder for the finished model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of PyTorch's threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = Settings(**{name: getattr(args, name) for name in vars(Settings())})
    trained = args.features / "all"
    data = read_material(args.archives, trained if trained.exists() else args.features)
    counts = data.classes.bincount()
    size = f"{len(data.labels)} classes, {len(data.classes):,} pictures in {data.features.shape[1]} versions"
    per_class = f"{counts.min()} to {counts.max()} per class, {len(data.outliers)} without a class"
    lines = [f"{size}, {per_class}; {settings}", ""]
    folders = [args.features / f"fold{number}" for number in range(len(FOLDS))]
    materials = [read_material(args.archives, folder) if folder.exists() else data for folder in folders]
    answers = run_folds(materials, settings)
    degree = temperature(answers)
    unknown = {kind: logits / degree for kind, logits in answers.unknown.items()}
    answers = replace(answers, logits=answers.logits / degree, unknown=unknown)
    sure_above, known_above = thresholds(answers)
    lines += [f"Temperature {degree:.4f}, sure_above {sure_above:.2f}, known_above {known_above:.3f}.", ""]
    lines += report(answers, sure_above, known_above)
    print("\n".join(lines), flush=True)
    if args.step == "folds" or args.output is None:
        return
    weight, bias = fit_head(data, torch.arange(len(data.classes)), settings)
    model = vitviz.load(args.base)
    about = model.pretrained
    assert about is not None
    model.config = replace(model.config, classes=len(data.labels))
    model.head = torch.nn.Linear(weight.shape[1], len(data.labels))
    with torch.no_grad():
        model.head.weight.copy_(weight / degree)
        model.head.bias.copy_(bias / degree)
    with (args.archives / "everyday256-classes.csv").open(encoding="utf-8", newline="") as file:
        synsets = {row["class"]: row["imagenet_1k_synsets"] for row in csv.DictReader(file)}
    with (args.archives / "everyday2-classes.csv").open(encoding="utf-8", newline="") as file:
        synsets = {row["class"]: row["imagenet_1k_synsets"] for row in csv.DictReader(file)} | synsets
    synsets |= {label: wnid for wnid, label in IMAGENETTE.items()}
    model.pretrained = replace(
        about,
        labels=data.labels,
        class_ids=tuple((synsets.get(label, "").split() or [label])[0] for label in data.labels),
        sure_above=sure_above,
        known_above=round(known_above, 3),
        groups=groups(data.labels),
    )
    save(model, args.output, dtype=torch.float16)
    with (args.output / "classes.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("class", "synsets", "train"))
        writer.writerows(
            zip(data.labels, (synsets.get(label, "") for label in data.labels), counts.tolist(), strict=True)
        )
    (args.output / "figures.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.output / "settings.json").write_text(json.dumps(vars(settings), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
