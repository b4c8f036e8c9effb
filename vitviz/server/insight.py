"""The panels beside the explorer as components of the page: why, heads, layers. They ask; here are the answers."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gradio as gr
import numpy as np

from vitviz.analysis.heads import STATISTICS
from vitviz.attribution.registry import METHODS, method_named
from vitviz.evaluation.faithfulness import Curve
from vitviz.server.parts import Answer, answered, asking
from vitviz.server.scheduler import Kind, Scheduler
from vitviz.server.sessions import Shown
from vitviz.view import View
from vitviz.web import bundle

SLOW = 20.0  # forward passes; methods that take more run only when they are chosen
BEST = 5  # classes
SHOWN = 4  # classes of the lens

Find = Callable[[str], Shown | None]


class Panel(gr.HTML):
    """A panel beside the explorer, about the photograph that the explorer shows.

    Args:
        name: of its files in `vitviz/web/`: "why", "heads" or "layers".
        find: the open photograph of a name; `None` for one that was forgotten. Names are secrets of their visitor.
        scheduler: of the computations.
    """

    def __init__(self, name: str, find: Find, scheduler: Scheduler, **options: Any) -> None:
        script = bundle.script(f"views/{name}.js") + asking("insight.js")
        super().__init__(
            "",
            html_template=bundle.template(f"views/{name}.html"),
            js_on_load=script.replace("PANEL", json.dumps(name)),
            apply_default_css=False,
            server_functions=answers(find, scheduler),
            **options,
        )

    def get_block_name(self) -> str:
        """The front end shows it as gradio's HTML component."""
        return "html"


def answers(find: Find, scheduler: Scheduler) -> list[Callable[[Any], Answer]]:
    """What a panel may ask the server. Arguments come from the visitor: nothing in them is believed."""

    def said(work: Callable[..., Any], asked: Any, count: int, kind: Kind | None = None) -> Answer:

        def alone(shown: Shown, rest: list[Any]) -> str:
            with nullcontext() if kind is None else scheduler.run(kind):
                return json.dumps(work(shown.view, *rest))

        return answered(find, alone, asked, count)

    def waiting(asked: Any) -> Answer:
        """[id] -> how many computations a long question waits for now, and about how many seconds."""

        def ahead(*_: Any) -> str:
            return json.dumps({"ahead": scheduler.ahead(Kind.LONG), "seconds": scheduler.seconds(Kind.LONG)})

        return answered(find, ahead, asked, 1)

    def outline(asked: Any) -> Answer:
        """[id] -> what can be asked of this photograph and model."""
        return said(_outline, asked, 1)  # nothing is computed: it waits for nobody's question

    def explain(asked: Any) -> Answer:
        """[id, method, class, class it is held against] -> a map."""
        name = asked[1] if isinstance(asked, list) and len(asked) > 1 and isinstance(asked[1], str) else ""
        slow = name in METHODS and METHODS[name].cost > SLOW
        return said(_explain, asked, 4, Kind.LONG if slow else Kind.SHORT)

    def judge(asked: Any) -> Answer:
        """[id, methods, class, class it is held against] -> how each map stands its test."""
        return said(_judge, asked, 4, Kind.LONG)

    def without(asked: Any) -> Answer:
        """[id, patches, heads] -> probabilities with and without them."""
        return said(_without, asked, 3, Kind.SHORT)

    def statistics(asked: Any) -> Answer:
        """[id, names] -> numbers for every head."""
        return said(_statistics, asked, 2, Kind.LONG)

    def lens(asked: Any) -> Answer:
        """[id] -> what the classifier reads after each layer, and the patches' colours."""
        return said(_lens, asked, 1, Kind.SHORT)

    return [outline, waiting, explain, judge, without, statistics, lens]


def _outline(view: View) -> dict[str, Any]:
    labels = list(view.labels) if view.names_classes else []
    best = zip(view.best(BEST), view.predictions(BEST), strict=True) if labels else ()
    methods = [
        {
            "name": method.name,
            "title": method.title,
            "paper": method.paper,
            "about": method.about,
            "specific": method.class_specific,
            "signed": method.signed,
            "slow": method.cost > SLOW,
        }
        for method in METHODS.values()
    ]
    known = [
        {"name": one.name, "title": one.title, "unit": one.unit, "about": one.about, "low": one.low, "high": one.high,
         "slow": one.reads != "rows"}
        for one in STATISTICS.values()
    ]  # fmt: skip
    return {
        "methods": methods,
        "statistics": known,
        "labels": labels,
        "best": [[index, label, p] for index, (label, p) in best],
        "classifies": bool(labels),
    }


def _classes(view: View, target: Any, against: Any) -> dict[str, Any]:
    """A class, or two, as `View.explain` takes them."""
    for given in (target, against):
        known = isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(view.labels)
        if given is not None and not known:
            raise ValueError(f"Expected a class's number from 0 to {len(view.labels) - 1}, got {given!r:.40}.")
    if against is None:
        return {"target": target}
    return {"contrast": (view.best(1)[0] if target is None else target, against)}


def _explain(view: View, method: Any, target: Any, against: Any) -> dict[str, Any]:
    began = time.perf_counter()
    name = method_named(str(method)[:40]).name
    found = view.explain(name, **_classes(view, target, against))
    mass = found.describe_prefix_mass()
    return {
        "values": [float(f"{value:.5g}") for value in found.values.ravel().tolist()],  # (gh, gw), row by row
        "signed": found.signed,
        "unit": found.unit,
        "title": found.title,
        "note": f"Outside the picture: {mass}" if mass else "",
        "seconds": time.perf_counter() - began,
    }


def _judge(view: View, methods: Any, target: Any, against: Any) -> list[dict[str, Any]]:
    if not isinstance(methods, list) or not 0 < len(methods) <= len(METHODS):
        raise ValueError(f"Expected the names of some methods, got {methods!r:.40}.")
    asked, chosen = _classes(view, target, against), [method_named(str(name)[:40]) for name in methods]
    maps = [view.explain(one.name, **(asked if one.class_specific else {})) for one in chosen]
    return [
        {
            "words": test.describe(),
            "gain": test.gain,
            "deletion": _curve(test.deletion),
            "insertion": _curve(test.insertion),
        }
        for test in view.faithfulness(maps, **asked)
    ]


def _curve(curve: Curve) -> dict[str, Any]:
    def short(numbers: Any) -> list[float]:
        return [float(f"{number:.4g}") for number in numbers.tolist()]

    low, high = curve.band
    return {
        "x": short(curve.fractions),
        "y": short(curve.probabilities),
        "low": short(low),
        "high": short(high),
        "random": short(curve.random.mean(axis=0)),
        "n": len(curve.random),
        "area": curve.area,
        "chance": curve.random_area,
    }


def _without(view: View, patches: Any, heads: Any) -> dict[str, Any]:
    rows, columns = view.trace.grid
    if not _whole(patches) or any(not 0 <= one < rows * columns for one in patches):
        raise ValueError(f"Expected numbers of patches from 0 to {rows * columns - 1}, got {patches!r:.40}.")
    if not isinstance(heads, list) or not all(_whole(pair) and len(pair) == 2 for pair in heads):
        raise ValueError(f"Expected heads as [layer, head], both counted from 0; got {heads!r:.40}.")
    left = sorted(set(range(rows * columns)) - set(patches))
    if not left and not view.trace.prefix:
        raise ValueError("Without any patch there is nothing to read an answer from: leave one.")
    change = view.intervene(drop=[divmod(one, columns) for one in set(patches)], heads=[tuple(pair) for pair in heads])
    before, after = change.before[0], change.after[0]  # (C,)
    order = np.argsort(-np.maximum(before, after), kind="stable")[:BEST].tolist()
    order.sort(key=lambda index: -before[index])
    return {"classes": [[view.labels[index], float(before[index]), float(after[index])] for index in order]}


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)


def _statistics(view: View, names: Any) -> dict[str, Any]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"Expected names of statistics, got {names!r:.40}.")
    found = view.heads(names)
    values = {name: [[_number(one) for one in row] for row in found[name].tolist()] for name in found.present}
    return {"values": values, "missing": dict(found.missing)}


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _lens(view: View) -> dict[str, Any]:
    colors = view.token_pca()
    told: dict[str, Any] = {
        "layers": [block + 1 for block in colors.blocks],
        "colours": _bytes(colors.colors),  # (L, gh, gw, 3)
        "explained": [round(float(share), 4) for share in colors.explained.sum(1)],
        "names": [],
    }
    if view.names_classes:
        read = view.lens(view.best(SHOWN))
        told |= {
            "names": list(read.names),
            "read": [[float(f"{p:.5g}") for p in row] for row in read.probabilities[:, list(read.classes)].tolist()],
            "patches": _bytes(np.moveaxis(read.patches, 3, 1)),  # (L, gh, gw, K) -> (L, K, gh, gw)
            "readings": [block + 1 for block in read.blocks],
        }
    return told


def _bytes(shares: Any) -> str:
    """Numbers of 0..1 as bytes in base64."""
    return base64.b64encode(np.rint(255 * np.clip(shares, 0, 1)).astype(np.uint8).tobytes()).decode()
