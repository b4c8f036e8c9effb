"""Measure sums, edges, sinks and repair beside one forward pass, and test the sums against mean ablation.

    python benchmarks/sums.py                        # CPU time, relative to one forward pass
    python benchmarks/sums.py heads FOLDER           # do the ten heads with the largest terms matter?
    python benchmarks/sums.py accuracy FOLDER        # with outliers, and with a register
    python benchmarks/sums.py mosaics FOLDER         # outliers and attention, with outliers and with a register
    python benchmarks/sums.py faithfulness FOLDER    # deletion and insertion, with outliers and with a register

FOLDER has a folder of photographs for each class. `heads` replaces the outputs of ten heads by their means over the
photographs, at each token's position. For each photograph, it compares the drop of the predicted class's logit with the
drops for random sets of ten heads. The others plant two neurons that write outlying norms, because the bundled models
have none. A mosaic shows one photograph in a quarter and another three times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import vitviz
from vitviz.analysis.circuits import masked_scores, mean_outputs
from vitviz.analysis.decomposition import decompose
from vitviz.analysis.tokens import token_norms
from vitviz.attribution.target_specs import resolve_target
from vitviz.evaluation.accuracy import validate
from vitviz.evaluation.evaluate import evaluate
from vitviz.evaluation.tasks import compose
from vitviz.explorer import Explorer
from vitviz.images.decoding import decode
from vitviz.images.folders import batches, class_names, find_classes, find_images, spread
from vitviz.images.preprocess import Preprocess
from vitviz.model.registers import plant_neurons
from vitviz.model.vit import ViT
from vitviz.progress import bar

PLANTED = 4  # number of photographs that choose the patches at which planted neurons fire
LARGEST, SETS = 10, 10  # heads in a set, and random sets for each photograph
RESAMPLES = 2000
METHODS = ("attention", "rollout", "gae", "attn_lrp")


def squash(model: ViT) -> Preprocess:
    """Return preprocessing that stretches all photographs to the model's own input size."""
    assert model.pretrained is not None
    height, width = model.config.image_size
    return replace(model.pretrained.preprocess, mode="squash", height=height, width=width, resize=None)


def seconds(function: Callable[[], object], runs: int = 9) -> float:
    """Return the median CPU time of a function after one run."""
    function()
    times = []
    for _ in range(runs):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return statistics.median(times)


@torch.no_grad()
def costs(name: str) -> None:
    """Print the CPU time of each analysis, relative to one forward pass."""
    explorer = Explorer(vitviz.load(name))
    view = explorer.open(vitviz.example("cat"))
    model = view.model
    block = model.config.depth // 3
    planted, _ = plant_neurons(model, view.images, block, [3, 7])
    of_planted = Explorer(planted).open(vitviz.example("cat"))
    repaired = planted.with_registers(1, [(block, 3), (block, 7)])
    forward = seconds(lambda: model(view.images))
    rows = {
        "sums: `view.decompose()`": lambda: view.decompose(),
        "an edge: `view.edge()`": lambda: view.edge(block, 0, (4, 4), (7, 7)),
        "an edge and its cut in the first layer": lambda: view.edge(0, 0, (4, 4), (7, 7), cut=True),
        "sinks, none found: `view.sinks()`": lambda: view.sinks(),
        "sinks and the run without their neurons": lambda: of_planted.sinks(),
        "repair: the trace with a register": lambda: repaired.trace(view.images),
        "one head patched in the first layer": lambda: view.patch(view, heads=[(0, 0)]),
    }
    print(f"{name}, {view.trace.tokens.shape[1]} tokens; forward pass {1000 * forward:.0f} ms of CPU time")
    for title, function in rows.items():
        print(f"| {title} | {seconds(function) / forward:.2f} |", flush=True)


@torch.no_grad()
def ablation(name: str, folder: str, limit: int, batch_size: int = 8) -> None:
    """Print how often the ten heads with the largest terms matter more than the median of random sets of ten."""
    model, random = vitviz.load(name), np.random.default_rng(0)
    preprocess = squash(model)
    files = spread(find_images(Path(folder)), limit)
    images = [batch.images for batch in batches(files, preprocess, batch_size)]
    means, more, drops = mean_outputs(model, images), [], []
    with bar(len(files)) as done:
        for photograph in torch.cat(images):
            largest, others = _drops(model, photograph[None], means, random)
            more.append(largest > np.median(others))
            drops.append((largest, float(np.median(others))))
            done.update(1)
    shares = np.array(more)[random.integers(len(more), size=(RESAMPLES, len(more)))].mean(1)
    low, high = np.percentile(shares, (2.5, 97.5))
    of_largest, of_random = np.mean(drops, axis=0)
    print(
        f"{name}, {len(more)} photographs: in {100 * np.mean(more):.1f} % ({100 * low:.1f} to {100 * high:.1f} %), the "
        f"ten heads with the largest terms lower the logit more than the median of {SETS} random sets. Mean drop "
        f"{of_largest:.2f}, median of random sets {of_random:.2f}."
    )


def _drops(
    model: ViT, image: torch.Tensor, means: list[tuple[torch.Tensor, torch.Tensor]], random: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Return how much the score drops when the largest heads, and when each random set, are replaced by their means."""
    trace = model.trace(image)
    heads = decompose(model, trace).heads  # (L, H)
    chosen = [np.argsort(-heads.ravel())[:LARGEST]]
    chosen += [random.choice(heads.size, LARGEST, replace=False) for _ in range(SETS)]
    mask = torch.ones(1 + len(chosen), *heads.shape)  # the first keeps all heads
    for row, places in zip(mask[1:], chosen, strict=True):
        row.view(-1)[torch.from_numpy(places)] = 0.0
    mask = torch.cat([mask, torch.ones(*mask.shape[:2], 1)], dim=2)  # all MLPs stay
    target = resolve_target(model, trace.logits)
    assert target is not None
    embedded, grid = model.embed(image)
    copies = embedded.expand(len(mask), -1, -1)
    scores = masked_scores(model, copies, model.angles(grid), target.repeat(len(mask)), means, mask).double().numpy()
    return float(scores[0] - scores[1]), scores[0] - scores[2:]


@torch.no_grad()
def repaired_models(name: str, folder: str) -> dict[str, ViT]:
    """Return a model as it is and with planted neurons, each without and with a register."""
    model = vitviz.load(name)
    block, preprocess = model.config.depth // 3, squash(model)
    files = known_files(model, folder, 200)
    chosen = [path for path, _ in files[:: len(files) // PLANTED][:PLANTED]]
    pixels = [torch.from_numpy(preprocess(decode(path)).pixels) for path in chosen]
    planted, _ = plant_neurons(model, torch.stack(pixels), block, [3, 7], directions=1)
    return {
        "as it is": model,
        "with an empty register": model.with_registers(1, []),
        "with planted neurons": planted,
        "and their activations in a register": planted.with_registers(1, [(block, 3), (block, 7)]),
    }


def known_files(model: ViT, folder: str, limit: int) -> list[tuple[Path, int]]:
    """Return photographs and their classes, spread evenly over the classes."""
    about = model.pretrained
    assert about is not None
    return spread(find_classes(Path(folder), class_names(about.labels, about.class_ids)), limit)


def accuracy(name: str, folder: str, limit: int) -> None:
    """Print the accuracy of each model."""
    for title, each in repaired_models(name, folder).items():
        found = validate(each, folder, limit=limit, batch_size=8)
        print(f"| {title} | {100 * found.top1:.1f} % of {found.images} |", flush=True)


@torch.no_grad()
def mosaics(name: str, folder: str, limit: int) -> None:
    """Print outliers and attention on the right quarter of mosaics for each model."""
    models, random = repaired_models(name, folder), np.random.default_rng(0)
    preprocess, files = squash(models["as it is"]), known_files(models["as it is"], folder, limit)
    pixels = [torch.from_numpy(preprocess(decode(path)).pixels)[None] for path, _ in files]
    others = [random.choice([place for place, (_, of) in enumerate(files) if of != own]) for _, own in files]
    pairs = [(pixels[place], pixels[other], int(random.integers(4))) for place, other in enumerate(others)]
    for title, each in models.items():
        outlying, masses = np.mean([_quarter_share(each, *pair) for pair in pairs], axis=0)
        print(f"| {title} | {outlying:.2f} | {100 * masses:.1f} % of {len(pairs)} mosaics |", flush=True)


def measure_faithfulness(name: str, folder: str, limit: int, out: str | None) -> None:
    """Print deletion and insertion of some methods for the model with planted neurons, without and with a register."""
    for number, (title, each) in enumerate(list(repaired_models(name, folder).items())[2:]):
        rows = None if out is None else f"{out}-{number}.jsonl"
        print(f"{title}\n\n{evaluate(each, folder, METHODS, limit=limit, out=rows).markdown()}\n", flush=True)


def _quarter_share(model: ViT, first: torch.Tensor, second: torch.Tensor, quarter: int) -> tuple[int, float]:
    """Return how many patches of a mosaic have an outlying norm, and the share of attention on the first photograph.

    It is the last layer's attention from the class token to patches, the mean over heads.
    """
    images, shown = compose(model, first, second, quarter)
    trace, side = model.trace(images), model.config.patch_size
    row = trace.block(-1).rows(0, 1)[0, :, 0, len(trace.prefix) :].mean(0)  # (n,)
    inside = torch.from_numpy(shown[side // 2 :: side, side // 2 :: side]).flatten()
    return int(token_norms(model, trace).outliers.any(0).sum()), float(row[inside].sum() / row.sum())


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["costs", "heads", "accuracy", "mosaics", "faithfulness"])
    parser.add_argument("folder", nargs="?", help="folder of photographs in a folder for each class")
    parser.add_argument("--model", default="dinov2-s14-everyday")
    parser.add_argument("--limit", type=int, help="photographs; by default 200, and 500 for accuracies")
    parser.add_argument("--out", help="faithfulness: files that a later run continues, OUT-0.jsonl and OUT-1.jsonl")
    arguments = parser.parse_args()
    name, folder, limit = arguments.model, arguments.folder, arguments.limit or 200
    torch.set_num_threads(1)
    if arguments.what in (None, "costs"):
        costs(name)
    elif folder is None:
        parser.error("Expected a folder of photographs, got none. Name one.")
    elif arguments.what == "heads":
        ablation(name, folder, limit)
    elif arguments.what == "accuracy":
        accuracy(name, folder, arguments.limit or 500)
    elif arguments.what == "mosaics":
        mosaics(name, folder, limit)
    else:
        measure_faithfulness(name, folder, limit, arguments.out)


if __name__ == "__main__":
    main()
