"""Test that wrong arguments of the public API raise a `VitvizError`."""

import ast
import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import tiny
import torch
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

import vitviz
from vitviz import VitvizError
from vitviz.attribution.registry import METHODS
from vitviz.fields import matches_type

PACKAGE = Path(vitviz.__file__).parent
VALID_SOMEWHERE = (None, True, -1, 10**9, 1.5, float("nan"), np.float32(3))
OTHERS = (
    *(complex(1), "", "nonsense", b"x", object(), ["a", "b"], ("a", "b"), [], (), {}, {"a": 1}, [[1]]),
    *((0,), (0, 99), (0, 1, 2), ("cls", 1), (0, "b"), np.array([1, 2]), torch.zeros(2)),
)
EXPLORER = vitviz.Explorer(tiny.model(**tiny.SMALL))
PHOTO = np.zeros((12, 20, 3), np.uint8)
VIEW = EXPLORER.open(PHOTO)
REQUIRED: dict[str, dict[str, Any]] = {
    "compare": {"other": VIEW},
    "edge": {"block": 0, "head": 1, "query": 0, "key": 3},
    "show_patches": {"patches": [(0, 0)]},
    "texts": {"texts": ["a cat"]},
}
FUNCTIONS = (vitviz.load, vitviz.preset, vitviz.example, vitviz.summary, vitviz.Explorer)


def questions() -> dict[str, Callable[[Any], object]]:
    """Return calls of the public API, by the name of the argument that they take."""
    calls: dict[str, Callable[[Any], object]] = {}

    def add(function: Callable[..., Any], title: str, names: Iterable[str], *fixed: Any) -> None:
        for name in names:
            calls[f"{title}({name})"] = lambda value, name=name: function(*fixed, **{name: value})

    for function in FUNCTIONS:
        add(function, function.__name__, [next(iter(inspect.signature(function).parameters))])
    add(vitviz.Explorer, "Explorer", ["device"], EXPLORER.model)
    add(EXPLORER.open, "open", ["image"])
    add(EXPLORER.open, "open", ["size"], PHOTO)
    add(lambda **options: list(EXPLORER.open_many(**options)), "open_many", ["images"])
    add(lambda **options: list(EXPLORER.open_many([PHOTO], **options)), "open_many", ["batch_size", "size"])
    for name, method in inspect.getmembers(VIEW, inspect.ismethod):
        parameters = inspect.signature(method).parameters.values()
        if not name.startswith("_") and name not in ("save_html", "faithfulness", "of_words"):
            given = partial(method, **REQUIRED.get(name, {}))
            add(given, name, [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD])
    add(VIEW.faithfulness, "faithfulness", ["maps"])
    add(VIEW.of_words, "of_words", ["words"])
    quick = partial(VIEW.faithfulness, VIEW.attention(), steps=2, random=1)
    add(quick, "faithfulness", ["target", "contrast"])
    add(VIEW.intervene, "intervene", ["heads", "cuts", "drop", "mode", "swap"])
    add(VIEW.attention().overlay, "overlay", ["alpha", "scale", "cmap", "gamma"])
    for method in METHODS.values():
        add(partial(VIEW.explain, method.name), method.name, method.options)
    return calls


QUESTIONS = questions()


@pytest.mark.parametrize("question", QUESTIONS)
def test_wrong_arguments_raise_only_vitviz_errors(question: str) -> None:
    name, _, argument = question.rstrip(")").partition("(")
    slow = name in (*METHODS, "html", "faithfulness") or argument == "images"  # accepted values take long
    refused = 0
    for value in OTHERS if slow else (*VALID_SOMEWHERE, *OTHERS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                QUESTIONS[question](value)
            except VitvizError:
                refused += 1
    assert refused > 3


def test_every_error_of_the_package_derives_from_vitviz_error() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    nodes = [(path.name, node) for path, tree in trees.items() for node in ast.walk(tree)]
    direct = {
        name for name, node in nodes if isinstance(node, ast.ClassDef) and "ValueError" in map(ast.unparse, node.bases)
    }
    raised = {
        name
        for name, node in nodes
        if isinstance(node, ast.Raise) and node.exc and ast.unparse(node.exc).startswith("ValueError")
    }
    assert (direct, raised) == ({"errors.py"}, set())


def test_hints_that_are_type_aliases_are_checked() -> None:
    """`NDArray` and `ArrayLike` are such aliases from numpy 2.5 on."""
    item = TypeVar("item")
    parametrized = TypeAliasType("parametrized", list[item] | tuple[item, ...], type_params=(item,))
    plain = TypeAliasType("plain", int | str)
    for hint, right, wrong in ((plain, "3", 1.5), (parametrized[int], [1, 2], {1}), (NDArray[np.int64], np.ones(2), 3)):
        assert matches_type(right, hint)
        assert not matches_type(wrong, hint)
