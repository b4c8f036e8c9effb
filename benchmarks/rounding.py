"""Measure what changes if a static site's weights have 8 bits instead of 16: classes, and the maps of its methods.

    python benchmarks/rounding.py photos --jobs 8 --device cuda --out rounding.jsonl
    python benchmarks/rounding.py photos --limit 20

For each way of rounding, it prints the size of the weights, how often both models predict the same class, whether they
differ where the exact model is sure, and for each method the rank correlation between the maps of the rounded and the
exact weights for the same class (median and minimum). `--out` keeps the numbers of each photograph, and the same
command continues an interrupted run.

Linear layers and the patch projection are rounded, in groups of 32 weights of a row: to multiples of a step (even), to
levels between minimum and maximum (uneven), or to multiples of a step whose errors the next columns compensate (GPTQ,
Frantar et al. 2023; the inputs are those of the example photographs).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import multiprocessing
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.attribution.registry import METHODS
from vitviz.evaluation.sensitivity import spearman
from vitviz.formatting import percent, text_table
from vitviz.images.folders import find_images, spread
from vitviz.model.vit import ViT
from vitviz.resources import DEFAULT
from vitviz.view import View
from vitviz.web.choices import in_browser

WAYS = {"even": 2, "uneven": 4, "compensated": 2}  # bytes per group in addition to a byte per weight
GROUP = 32
DAMPING = 0.01  # share of the mean second moment of the inputs


def even(weights: Tensor, top: Tensor) -> Tensor:
    """Round weights (..., GROUP) to multiples of top / 127."""
    step = (top / 127).half().float().clamp_min(1e-7)
    return (weights / step).round().clamp(-127, 127) * step


def uneven(weights: Tensor) -> Tensor:
    """Round weights (..., GROUP) to 256 evenly spaced levels between their minimum and maximum."""
    low, high = weights.amin(-1, keepdim=True).half().float(), weights.amax(-1, keepdim=True)
    step = ((high - low) / 255).half().float().clamp_min(1e-7)
    return ((weights - low) / step).round().clamp(0, 255) * step + low


def compensated(matrix: Tensor, moments: Tensor) -> Tensor:
    """Round a matrix (out, in) by columns; later columns compensate the error for inputs with `moments` (in, in)."""
    rest, rounded = matrix.double(), torch.empty_like(matrix)
    damped = moments.double() + DAMPING * moments.diagonal().mean() * torch.eye(len(moments), device=moments.device)
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    for column in range(matrix.shape[1]):
        if column % GROUP == 0:
            top = rest[:, column : column + GROUP].abs().amax(1).float()
        rounded[:, column] = even(rest[:, column].float(), top)
        error = (rest[:, column] - rounded[:, column]) / upper[column, column]
        rest[:, column + 1 :] -= error[:, None] * upper[column, None, column + 1 :]
    return rounded


def second_moments(model: ViT) -> dict[str, Tensor]:
    """Return the second moments (in, in) of the inputs of each linear layer, over all tokens of the examples."""
    sums: dict[str, Tensor] = {}

    def add(name: str, inputs: Tensor) -> None:
        tokens = inputs.detach().flatten(0, -2)
        sums[name] = sums.get(name, 0) + tokens.T @ tokens

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    hooks = [
        layer.register_forward_pre_hook(lambda _layer, inputs, name=name: add(name, inputs[0]))
        for name, layer in layers
    ]
    for name in vitviz.EXAMPLES:
        vitviz.Explorer(model).open(vitviz.example(name))
    for hook in hooks:
        hook.remove()
    return sums


def rounded(model: ViT, way: str, moments: dict[str, Tensor]) -> tuple[ViT, float]:
    """Return a copy with rounded matrices, and the megabytes of its weights."""
    model = copy.deepcopy(model)
    size = 2 * sum(weights.numel() for weights in model.parameters())
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d) or layer.weight[0].numel() % GROUP:
            continue
        matrix = layer.weight.data.flatten(1)  # (out, in)
        if way == "compensated" and name in moments:
            matrix = compensated(matrix, moments[name])
        else:
            groups = matrix.unflatten(1, (-1, GROUP))  # (out, in / GROUP, GROUP)
            new = uneven(groups) if way == "uneven" else even(groups, groups.abs().amax(-1, keepdim=True))
            matrix = new.flatten(1)
        size -= matrix.numel() - matrix.numel() // GROUP * WAYS[way]
        layer.weight.data.copy_(matrix.reshape(layer.weight.shape))
    return model, size / 1e6


def probabilities(view: View) -> Tensor:
    return view.trace.logits.softmax(-1)[0].float().cpu()


def maps(view: View, target: int) -> dict[str, Tensor]:
    """Return the map of each of the site's methods: (n,)."""
    return {name: torch.tensor(view.explain(name, target=target).values).flatten() for name in in_browser(METHODS)}


def measure(args: argparse.Namespace, photos: list[str], out: Path) -> None:
    """Measure the photographs that have no line in `out` yet, and append one line for each."""
    torch.set_num_threads(1)
    exact = vitviz.load(args.model).half().float().to(args.device)
    moments = second_moments(exact)
    models = {way: rounded(exact, way, moments) for way in WAYS}
    done = len(out.read_text(encoding="utf-8").splitlines()) if out.exists() else 0
    for photo in photos[done:]:
        view = vitviz.Explorer(exact).open(photo)
        before = probabilities(view)
        target = int(before.argmax())
        sure = view.sure_above is not None and float(before.max()) >= view.sure_above
        row: dict[str, Any] = {"sure": sure}
        originals = maps(view, target)
        for way, (model, megabytes) in models.items():
            view = vitviz.Explorer(model).open(photo)
            after = probabilities(view)
            row[way] = {
                "MB": megabytes,
                "same": int(after.argmax()) == target,
                "change": float((after - before).abs().max()),
            }
            for name, changed in maps(view, target).items():
                row[way][name] = float(spearman(originals[name][None], changed[None])[0])
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table of all photographs."""

    def line(name: str, tell: Any) -> list[str]:
        return [name, *(tell([row[way] for row in rows]) for way in WAYS)]

    def correlations(name: str) -> Any:
        def tell(results: list[dict[str, Any]]) -> str:
            values = [result[name] for result in results if not math.isnan(result[name])]  # NaN: a constant map
            below = sum(value < 0.99 for value in values)
            return f"{median(values):.5f}, {min(values):.3f}, {below} of {len(values)}"

        return tell

    sure = [row for row in rows if row["sure"]]
    table = [
        ["", *WAYS],
        line("MB", lambda results: f"{results[0]['MB']:.1f}"),
        line("same class", lambda results: percent(sum(result["same"] for result in results) / len(results), 2)),
        ["other class where sure", *(f"{sum(not row[way]['same'] for row in sure)} of {len(sure)}" for way in WAYS)],
        line("largest change in probability", lambda results: f"{max(result['change'] for result in results):.4f}"),
        *(line(name, correlations(name)) for name in in_browser(METHODS)),
    ]
    return f"{len(rows)} photographs; rank correlation: median, minimum, below 0.99\n{text_table(table)}"


def main() -> None:
    """Measure in several processes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder of photographs")
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--limit", type=int, default=500, help="number of photographs")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("rounding.jsonl"), help="start of the names of the results")
    args = parser.parse_args()
    photos = [str(path) for path, _ in spread(find_images(args.photos), args.limit)]
    outs = [Path(f"{args.out}.{number}") for number in range(args.jobs)]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=measure, args=(args, photos[number :: args.jobs], out))
        for number, out in enumerate(outs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(report([json.loads(row) for out in outs for row in out.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    main()
