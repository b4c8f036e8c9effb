"""Train a balanced head for the everyday model on cached features, and choose its settings by held-out sources.

    python scripts/everyday_head.py folds ARCHIVES FEATURES
    python scripts/everyday_head.py train ARCHIVES FEATURES --base dinov2-s14-everyday --output OUT

FEATURES holds what scripts/cache_features.py wrote: everyday256.npz, everyday2.npz, imagenette.npz, unknown.npz, and
the same names with -1, -2, ... for changed pictures. ARCHIVES holds the lists of images; scripts/everyday/ the classes.

The head is the sum of two: one trained by gradient descent, and one whose rows are the whitened means of the classes
(`--means`: its weight). Every class is drawn equally often, and of a class its sources by the root of their sizes. A
step adds pictures of
nothing that is a class (`FIT`), whose target is every class equally (outlier exposure, Hendrycks et al. 2019).

`folds` leaves each group of sources out in turn (`FOLDS`), and with it a tenth of the classes, which are then the
unknown; it prints what the heads make of the photographs of these sources. `train` does the same, fits on these
answers a temperature and the two thresholds that travel with the weights (`sure_above`, `known_above`), then trains
on all sources and writes a checkpoint: the backbone of --base with the new head.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import vitviz
from vitviz.images.datasets import IMAGENETTE
from vitviz.weights.checkpoint import save

TABLES = Path(__file__).parent / "everyday"
SETS = {"everyday256": "1", "everyday2": "2", "imagenette": "I"}
FOLDS = (
    ("2C", "2D"), ("1C", "2Z"), ("1A", "1H", "1J", "1Y", "1V", "1E", "1O", "1B", "1Q", "1D", "1S"),
    ("2W", "2R", "2K", "2H", "2X", "2G", "2J", "2B", "2a", "2b", "2O", "2L", "2F", "2V"),
    ("1G", "1R", "1I", "1K", "1L", "1P", "1W", "1Z"),
)  # fmt: skip
"""Sources that are left out together: COCO, Caltech-101, three groups of smaller collections."""
FIT = ("text", "screen", "noise", "shapes", "gradient")
"""Kinds of drawn pictures that the head is trained with; the others are for the report."""
RIDGE = 0.3  # of the mean variance, added to the variance of each feature
LEAST = 12  # images that a class must keep for a held-out photograph of it to be scored
SHARP = 160  # pixels of the original's short side
RIGHT = 0.9  # the share of images that are right where the model is sure, as `Pretrained.sure_above` defines it
SURE_OF_UNKNOWN = 0.08  # the most of the unknown that the model may be sure of
HEAD = "; head trained by us on everyday256, everyday2 and Imagenette"
LEFT_OUT, UNKNOWN = "left out", "unknown"


@dataclass(frozen=True, eq=False)
class Material:
    """Training material as features: n pictures in V versions, R features, C classes.

    Args:
        features: (n, V, R); the first version is the picture as it is, the others are changed.
        classes: (n,), the index of each class.
        sources: (n,), a letter and its collection's number.
        sharp: (n,), whether the original was large.
        labels: names of the C classes.
        outliers: (m, V, R) of pictures of no class to train with.
        others: features (k, R) of pictures of no class that are only reported, by kind.
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
    """Settings of a training of the head."""

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
    with (TABLES / "classes.csv").open(encoding="utf-8", newline="") as file:
        trains = {row["folder"]: row["class"] for row in csv.DictReader(file)}
    with (TABLES / "wild_labels.csv").open(encoding="utf-8", newline="") as file:
        wild = {row["folder"] for row in csv.DictReader(file)}
    labels = tuple(sorted({*trains.values()} - {LEFT_OUT, UNKNOWN}))
    place = {label: index for index, label in enumerate(labels)}
    with gzip.open(archives / "everyday256-images.csv.gz", "rt", encoding="utf-8", newline="") as file:
        small = {row["file"] for row in csv.DictReader(file) if int(row["original_short_side"]) < SHARP}
    features, classes, sources, sharp = [], [], [], []
    outliers, others = [], {}
    least = 99
    for name, number in SETS.items():
        some, paths = read_features(folder, name)
        least = min(least, some.shape[1])
        folders = [IMAGENETTE.get(path.split("/")[-2], path.split("/")[-2]) for path in paths]
        files = [path.split("/")[-1] for path in paths]
        captcha = [number == "1" and one.startswith("X") for one in files]
        rows = [i for i, one in enumerate(folders) if trains[one] in place and not captcha[i]]
        features.append(some[rows])
        classes += [place[trains[folders[i]]] for i in rows]
        sources += [number + (files[i][0] if number != "I" else "") for i in rows]
        sharp += [number != "1" or f"train/{folders[i]}/{files[i]}" not in small for i in rows]
        left = sorted({one for one in folders if trains[one] == LEFT_OUT} - wild)
        for index, one in enumerate(left):
            chosen = some[[i for i, other in enumerate(folders) if other == one and not captcha[i]]]
            if index % 2:
                others.setdefault("classes left out", []).append(chosen[:, 0])
            else:
                outliers.append(chosen)
    some, paths = read_features(folder, "unknown")
    kinds = np.array([path.split("/")[-2] for path in paths])
    for kind in sorted({*kinds}):
        chosen = some[torch.from_numpy(kinds == kind)]
        if kind in FIT:
            outliers.append(chosen.expand(-1, least, -1))
        else:
            others[kind] = [chosen[:, 0]]
    return Material(
        features=torch.cat([one[:, :least] for one in features]),
        classes=torch.tensor(classes),
        sources=np.array(sources),
        sharp=torch.tensor(sharp),
        labels=labels,
        outliers=torch.cat([one[:, :least] for one in outliers]),
        others={kind: torch.cat(parts) for kind, parts in others.items()},
    )


def chances(classes: Tensor, sources: Iterable[str], power: float) -> Tensor:
    """Return how often to draw each picture (n,): classes equally, sources of a class by a power of their sizes."""
    pairs = [f"{one} {source}" for one, source in zip(classes.tolist(), sources, strict=True)]
    _, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    weights = torch.from_numpy(counts.astype(np.float64) ** (power - 1))[torch.from_numpy(inverse)]
    totals = torch.zeros(int(classes.max()) + 1, dtype=torch.float64).index_add_(0, classes, weights)
    return weights / totals[classes]


def fit_head(data: Material, rows: Tensor, settings: Settings, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return weight (C, R) and bias (C,) of a head trained on some rows; a class without rows has a bias of -1e4."""
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
    drawn = torch.multinomial(weights, steps * settings.batch, replacement=True).view(steps, -1)
    present = (~absent).float() / (~absent).sum()

    def versions(of: Tensor, index: Tensor) -> Tensor:
        changed = torch.rand(len(index)) < settings.changed
        which = torch.randint(1, of.shape[1], (len(index),)) * changed if of.shape[1] > 1 else torch.zeros_like(index)
        chosen = of[index, which]
        return chosen + settings.noise * torch.randn_like(chosen)

    for index in drawn:
        logits = head(versions(features, index)).masked_fill(absent, -1e4)
        target = F.one_hot(classes[index], len(data.labels)) * (1 - settings.smoothing) + settings.smoothing * present
        loss = -(target * logits.log_softmax(1)).sum(1).mean()
        if settings.exposure:
            some = torch.randint(len(outliers), (settings.batch // 4,))
            logits = head(versions(outliers, some)).masked_fill(absent, -1e4)
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
    """Return a direction for each class (C, R): its mean, of unit length where the scatter within classes is white.

    Features (n, R) times these rank the classes by the cosine to their means after whitening, as linear discriminant
    analysis with equal norms does; a class without pictures has zeros.
    """
    means = torch.zeros(count, features.shape[1]).index_add_(0, classes, features * weights[:, None])
    scatter = features - means[classes]
    covariance = (scatter * weights[:, None]).T @ scatter / weights.sum()
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance))
    whiten = torch.linalg.cholesky(torch.linalg.inv(covariance + ridge))
    return F.normalize(means @ whiten, dim=1) @ whiten.T


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return how often a known picture has a higher score than an unknown one: (n,), (m,)."""
    order = torch.cat([unknown, known]).argsort(stable=True)
    ranks = torch.empty(len(order), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=torch.float64)
    high = ranks[len(unknown) :].sum().item()
    return (high - len(known) * (len(known) + 1) / 2) / (len(known) * len(unknown))


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
    """Logits of held-out photographs: known ones with their classes, and unknown ones by kind."""

    logits: Tensor
    classes: Tensor
    folds: Tensor
    unknown: dict[str, Tensor]

    @property
    def right(self) -> Tensor:
        """Return whether the first class is right: (n,) bool."""
        return self.logits.argmax(1) == self.classes


def run_folds(data: Material, settings: Settings) -> Answers:
    """Leave each group of sources out in turn, with a tenth of the classes, and return what the heads say of them."""
    logits, classes, folds, unknown = [], [], [], {kind: [] for kind in ("held-out classes", *data.others)}
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(20261123))
    for number, fold in enumerate(FOLDS):
        held = torch.from_numpy(np.isin(data.sources, fold))
        strange = torch.zeros(len(data.labels), dtype=torch.bool)
        strange[order[number :: 2 * len(FOLDS)]] = True
        rows = (~held & ~strange[data.classes]).nonzero()[:, 0]
        weight, bias = fit_head(data, rows, settings, seed=number)
        enough = torch.bincount(data.classes[rows], minlength=len(data.labels)) >= LEAST
        scored = held & data.sharp & enough[data.classes]
        logits.append(data.features[scored, 0] @ weight.T + bias)
        classes.append(data.classes[scored])
        folds.append(torch.full((int(scored.sum()),), number))
        away = data.features[strange[data.classes] & data.sharp, 0]
        unknown["held-out classes"].append(away @ weight.T + bias)
        for kind, features in data.others.items():
            unknown[kind].append(features @ weight.T + bias)
    joined = {kind: torch.cat(parts) for kind, parts in unknown.items()}
    return Answers(torch.cat(logits), torch.cat(classes), torch.cat(folds), joined)


def temperature(answers: Answers) -> float:
    """Return the temperature with the lowest negative log-likelihood, each fold counting equally (Guo et al. 2017)."""
    losses = []
    candidates = torch.exp(torch.linspace(-2.0, 1.5, 141)).tolist()
    for candidate in candidates:
        each = F.cross_entropy(answers.logits / candidate, answers.classes, reduction="none")
        losses.append(sum(float(each[answers.folds == fold].mean()) for fold in range(len(FOLDS))))
    return candidates[int(np.argmin(losses))]


def thresholds(answers: Answers) -> tuple[float, float]:
    """Return `sure_above` and `known_above` for calibrated logits: the pair that is sure most often.

    At least `RIGHT` of what is sure is right, and at most `SURE_OF_UNKNOWN` of the held-out classes are sure.
    """
    probability, energy = answers.logits.softmax(1).amax(1), answers.logits.logsumexp(1)
    strange = answers.unknown["held-out classes"]
    strange_probability, strange_energy = strange.softmax(1).amax(1), strange.logsumexp(1)
    best = (0.0, 1.0, float(energy.max()))
    for least in energy.quantile(torch.linspace(0, 0.6, 61)).tolist():
        for percents in range(30, 99):
            sure = (probability >= percents / 100) & (energy >= least)
            wrong = (strange_probability >= percents / 100) & (strange_energy >= least)
            if not sure.any() or float(answers.right[sure].float().mean()) < RIGHT:
                continue
            if float(wrong.float().mean()) <= SURE_OF_UNKNOWN:
                best = max(best, (float(sure.float().mean()), percents / 100, least))
                break
    return best[1], best[2]


def report(answers: Answers, sure_above: float, known_above: float) -> list[str]:
    """Return the figures of calibrated answers as lines of Markdown."""
    probability, energy = answers.logits.softmax(1).amax(1), answers.logits.logsumexp(1)
    sure = (probability >= sure_above) & (energy >= known_above)
    top5 = (answers.logits.topk(5).indices == answers.classes[:, None]).any(1)

    def line(name: str, rows: Tensor) -> str:
        right = answers.right[rows]
        cells = (
            right.float().mean(), top5[rows].float().mean(), calibration_error(probability[rows], right),
            sure[rows].float().mean(), right[sure[rows]].float().mean(),
        )  # fmt: skip
        return f"| {name} | {int(rows.sum()):,} | " + " | ".join(f"{100 * float(cell):.1f} %" for cell in cells) + " |"

    lines = ["| held out | images | top-1 | top-5 | ECE | sure | right when sure |", "|---|---|---|---|---|---|---|"]
    lines += [line(", ".join(fold), answers.folds == number) for number, fold in enumerate(FOLDS)]
    lines += [
        line("all", torch.ones_like(sure)),
        "",
        "| unknown | images | AUROC energy | max logit | probability | sure |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for kind, logits in answers.unknown.items():
        said, strange = logits.softmax(1).amax(1), logits.logsumexp(1)
        wrong = ((said >= sure_above) & (strange >= known_above)).float().mean()
        scores = auroc(energy, strange), auroc(answers.logits.amax(1), logits.amax(1)), auroc(probability, said)
        cells = " | ".join(f"{score:.3f}" for score in scores)
        lines.append(f"| {kind} | {len(logits):,} | {cells} | {100 * float(wrong):.1f} % |")
    return lines


def groups(labels: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of scripts/everyday/groups.csv as (name, label, label, ...), small ones before large ones."""
    with (TABLES / "groups.csv").open(encoding="utf-8", newline="") as file:
        members = {row["group"]: row["members"].split("|") for row in csv.DictReader(file)}

    def flat(name: str) -> list[str]:
        return [label for one in members[name] for label in (flat(one[1:-1]) if one.startswith("[") else [one])]

    found = [(name, *flat(name)) for name in members]
    if strangers := sorted({label for group in found for label in group[1:]} - {*labels}):
        raise SystemExit(f"Expected classes in groups.csv, got {', '.join(strangers)}. Correct the table.")
    return tuple(sorted(found, key=len))


def main() -> None:
    """Run one of the two steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("folds", "train"))
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="the folder that holds the lists of images")
    parser.add_argument("features", type=Path, metavar="FEATURES", help="the folder of cached features")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--base", default="dinov2-s14-everyday", help="the model whose backbone made the features")
    parser.add_argument("--output", type=Path, help="the folder of the finished model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = Settings(**{name: getattr(args, name) for name in vars(Settings())})
    data = read_material(args.archives, args.features)
    counts = data.classes.bincount()
    size = f"{len(data.labels)} classes, {len(data.classes):,} pictures in {data.features.shape[1]} versions"
    lines = [f"{size}, {counts.min()} to {counts.max()} a class, {len(data.outliers)} of no class; {settings}", ""]
    answers = run_folds(data, settings)
    degree = temperature(answers)
    answers = replace(
        answers, logits=answers.logits / degree, unknown={kind: one / degree for kind, one in answers.unknown.items()}
    )
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
        source=about.source.removesuffix(HEAD) + HEAD,
        class_ids=tuple((synsets.get(label, "").split() or [label])[0] for label in data.labels),
        sure_above=sure_above,
        known_above=round(known_above, 3),
        groups=groups(data.labels),
    )
    save(model, args.output, dtype=torch.float16)
    (args.output / "figures.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.output / "settings.json").write_text(json.dumps(vars(settings), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
