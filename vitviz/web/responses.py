"""Describe Python's results as plain data for the page: maps, tests of maps, and the logit lens of each layer."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

import numpy as np

from vitviz.analysis.decomposition import Decomposition
from vitviz.analysis.edges import Edge
from vitviz.analysis.interventions import Change
from vitviz.analysis.sinks import Sinks
from vitviz.analysis.tokens import PERCENTILES
from vitviz.attribution.target_specs import SPELLINGS
from vitviz.evaluation.evidence import BATCH_TOKENS, PatchSet
from vitviz.evaluation.faithfulness import (
    AT_CENTER,
    DOUBT,
    NEGLIGIBLE,
    NO_TEST,
    RANDOM,
    RESULT,
    SEED,
    STEPS,
    UNLIKELY,
    Curve,
    Faithfulness,
    random_orders,
    tie_order,
    verdict,
)
from vitviz.heatmap import Heatmap
from vitviz.model.registers import DEVIATIONS, RATIO
from vitviz.outputs import REGRESSION
from vitviz.phrases import with_phrases
from vitviz.view import View
from vitviz.web.scene import LEAST_SIDE, ROLLOUT_TOKENS, STAGE_SIDE

BEST = 5  # number of classes before and after a change
LENS = 4  # number of classes in the logit lens
VERDICTS = [[verdict(deletion, insertion, RANDOM) for insertion in (False, True)] for deletion in (False, True)]


def constants(patches: int) -> dict[str, Any]:
    """Return the constants that a static site's scripts share with Python: `Constants` of site/worker/endpoints.js.

    Args:
        patches: largest number of patches of a photograph, for the random orders.
    """
    return with_phrases({
        "random": random_orders(patches, RANDOM, SEED).tolist(), "ties": tie_order(patches, SEED).tolist(),
        "steps": STEPS, "unlikely": UNLIKELY,
        "result": {"key": "test-result", "text": RESULT},
        "doubt": {"key": "test-doubt", "text": DOUBT},
        "group": BATCH_TOKENS, "negligible": NEGLIGIBLE, "noTest": {"key": "no-test", "text": NO_TEST},
        "center": {"key": "test-center", "text": AT_CENTER}, "verdicts": VERDICTS,
        "lens": LENS, "ratio": RATIO, "deviations": DEVIATIONS, "percentiles": PERCENTILES,
        "sides": (LEAST_SIDE, STAGE_SIDE), "rollout": ROLLOUT_TOKENS, "targets": SPELLINGS,
    })  # fmt: skip


def describe_map(heatmap: Heatmap, seconds: float = 0.0) -> dict[str, Any]:
    """Describe an attribution method's map and its computation time.

    "target" is the spelling of a target other than a class, from which files of the map can be repeated.
    """
    target = heatmap.question.get("target")
    return {
        **({"target": target} if isinstance(target, str) else {}),
        "values": [rounded(value) for value in heatmap.values.ravel().tolist()],  # (gh, gw), row by row
        "signed": heatmap.signed,
        "unit": heatmap.unit,
        "title": heatmap.title,
        "note": heatmap.note,
        "seconds": seconds,
    }


def describe_test(test: Faithfulness) -> dict[str, Any]:
    """Describe the deletion and insertion test of a map."""
    return {
        "words": test.describe(),
        "scale": test.scale,
        "gain": test.gain,
        "better": test.verdict.better,
        "deletion": _curve(test.deletion),
        "insertion": _curve(test.insertion),
    }


def rounded(value: float) -> float | None:
    """Return a number with five significant digits; `None` if it is not finite."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def describe_layers(view: View, **aim: Any) -> dict[str, Any]:
    """Describe the logit lens after each layer, and three principal components as colors.

    `aim` is a target or a contrast to read instead of the most probable classes; a class is read before these.
    """
    colors = view.token_pca()
    answer: dict[str, Any] = {
        "layers": [block + 1 for block in colors.blocks],
        "colors": _bytes(colors.colors),  # (L, gh, gw, 3)
        "explained": [round(float(share), 4) for share in colors.explained.sum(1)],
        "names": [],
    }
    if view.names_classes or aim:
        own = [target] if isinstance(target := aim.get("target"), int) else []
        best = list(dict.fromkeys([*own, *view.best(LENS)]))[:LENS]
        lens = view.lens(**aim) if aim and not own else view.lens(best)
        low, high = (0.0, 1.0)
        if lens.scale != "probability":
            low, high = float(lens.patches.min()), float(lens.patches.max())
        answer |= {
            "names": list(lens.names),
            "scale": lens.scale,
            "read": [[float(f"{p:.5g}") for p in row] for row in lens.readings.tolist()],
            # (L, gh, gw, K) -> (L, K, gh, gw)
            "patches": _bytes((np.moveaxis(lens.patches, 3, 1) - low) / ((high - low) or 1.0)),
            "range": [rounded(low), rounded(high)],
            "readings": [block + 1 for block in lens.blocks],
        }
    return answer


def describe_decomposition(decomposition: Decomposition) -> dict[str, Any]:
    """Describe a score as a sum of direct contributions; see `vitviz.server.endpoints.Endpoints.decompose`."""
    return {
        "name": decomposition.name, "scale": decomposition.scale,
        **{part: getattr(decomposition, part) for part in ("start", "constant", "total")},
        **{part: getattr(decomposition, part).tolist() for part in ("heads", "mlps", "biases")},
        "tokens": base64.b64encode(decomposition.tokens.astype("<f4").tobytes()).decode(),
    }  # fmt: skip


def describe_edge(edge: Edge) -> dict[str, Any]:
    """Describe one attention edge; see `vitviz.server.endpoints.Endpoints.edge`."""
    numbers = ("attention", "logit", "bias", "position", "writes", "cut")
    return {
        **{name: getattr(edge, name) for name in (*numbers, "parts", "target", "scale")},
        "terms": edge.terms.tolist(),
    }


def describe_sinks(view: View, found: Sinks) -> dict[str, Any]:
    """Describe the sinks of one photograph; see `vitviz.server.endpoints.Endpoints.sinks`."""
    return {
        "sinks": [
            {name: rounded(value) if isinstance(value, float) else value for name, value in asdict(sink).items()}
            for sink in found.sinks
        ],
        "neurons": [{**asdict(neuron), "share": rounded(neuron.share)} for neuron in found.neurons],
        "classes": [] if found.change is None else describe_change(view, found.change),
    }


def describe_evidence(found: PatchSet, columns: int) -> dict[str, Any]:
    """Describe a set of patches of a grid with so many columns; see `vitviz.server.endpoints.Endpoints.evidence`."""
    return {
        "patches": [row * columns + column for row, column in found.patches],
        "probability": found.probability, "minimal": found.minimal,
    }  # fmt: skip


def describe_change(view: View, change: Change, classes: Collection[int] = ()) -> list[list[Any]]:
    """Return [label, probability before, probability after] for the most probable classes and for `classes`."""
    before, after = change.before[0], change.after[0]  # (C,)
    order = np.argsort(-np.maximum(before, after), kind="stable")[:BEST].tolist()
    order.sort(key=lambda index: -before[index])
    if view.model.problem_type == REGRESSION:
        order = view.best(BEST)
    order = list(dict.fromkeys([*order, *classes]))
    return [[view.labels[index], float(before[index]), float(after[index])] for index in order]


def describe_target(change: Change) -> dict[str, Any]:
    """Return "target", [name, before, after], and the "scale" of these readings."""
    numbers = (*change.target_before.tolist(), *change.target_after.tolist())
    return {"target": [change.target, *map(rounded, numbers)], "scale": change.scale}


def describe_rearranged(
    view: View, shuffle: int, positions: bool, run: Callable[..., Change] | None = None
) -> dict[str, Any]:
    """Describe the prediction with shuffled patches or without positions.

    Args:
        view: an open photograph.
        shuffle: number of a random order of the patches, from 1; after `RANDOM`, they repeat. 0 keeps their order.
        positions: whether patches keep their positions; if false, all get the same position.
        run: replaces `view.intervene`.
    """
    count = view.trace.grid[0] * view.trace.grid[1]
    order = random_orders(count, RANDOM, SEED)[(shuffle - 1) % RANDOM].tolist() if shuffle else list(range(count))
    change = (run or view.intervene)(order=order, positions=positions)
    return {"order": order, "classes": describe_change(view, change)}


def _curve(curve: Curve) -> dict[str, Any]:
    def four_digits(numbers: Any) -> list[float]:
        return [float(f"{number:.4g}") for number in numbers.tolist()]

    low, high = curve.band
    return {
        "x": four_digits(curve.fractions),
        "y": four_digits(curve.probabilities),
        "low": four_digits(low),
        "high": four_digits(high),
        "random": four_digits(curve.random.mean(axis=0)),
        "center": four_digits(curve.center),
        "n": len(curve.random),
        "area": curve.area,
        "chance": curve.random_area,
    }


def _bytes(shares: Any) -> str:
    """Encode numbers from 0 to 1 as bytes in base64."""
    return base64.b64encode(np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8).tobytes()).decode()
