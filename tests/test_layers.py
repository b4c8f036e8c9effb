"""The house has floors, and imports only go down. This reads every import, also those inside functions."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Numpy and Pillow only: the colour tables, one overlay, many side by side.
DRAWING = (
    "vitviz.render.colors",
    "vitviz.render.colorbar",
    "vitviz.render.overlay",
    "vitviz.render.sheet",
    "vitviz.render.answers",
    "vitviz.render.confusion",
)

# From the ground up. "room.*" is a whole package, everything else one module; a new file has to be placed here.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("vitviz.image",),
    ("vitviz.preprocess", "vitviz.trace", "vitviz.config", "vitviz.compat", "vitviz.devices"),
    ("vitviz.positions", "vitviz.edits", "vitviz.budget", "vitviz.render", *DRAWING),
    ("vitviz.layers",),
    ("vitviz.model",),
    ("vitviz.heatmap", "vitviz.weights.*", "vitviz.summary", "vitviz.folders"),
    ("vitviz.explain.*", "vitviz.training.*"),
    ("vitviz.probe.*", "vitviz.validate", "vitviz.viewer.*", "vitviz.card"),
    ("vitviz.view",),
    ("vitviz.explorer",),
    ("vitviz.render.figures.*", "vitviz.render.export"),
    ("vitviz",),  # vitviz/__init__.py, the names that a user imports
    ("vitviz.ui.*", "vitviz.outcome"),
    ("vitviz.commands.*",),
    ("vitviz.cli", "app"),
    ("vitviz.__main__",),
)
LENGTH = range(40, 401)  # a longer file is two rooms, a shorter one belongs next door
SHORT = {"vitviz.__main__", "app"}  # and every __init__.py

# Packages from outside: the rooms that may import them; "lazy" ones only inside the function that needs them.
FIGURES = ("vitviz.render.figures.*", "vitviz.training.*")
ONLY_IN = {
    "gradio": ("vitviz.ui.*", "app"),
    "gradio_client": ("vitviz.ui.*", "app"),
    "starlette": ("vitviz.ui.*",),  # gradio's server
    "fastapi": ("vitviz.ui.*",),
    "matplotlib": FIGURES,
    "torchvision": ("vitviz.compat", "vitviz.training.*", "vitviz.weights.*"),
}
# Colour tables and the font that comes with them, without the machinery that draws figures.
TABLES = {"matplotlib.colormaps", "matplotlib.colors", "matplotlib.get_data_path"}
TABLES_IN = ("vitviz.render.colors", "vitviz.render.overlay", "vitviz.render.sheet")
LAZY = {"timm", "transformers", "huggingface_hub", "captum", "torchvision", "onnx"}
NO_TORCH = ("vitviz.image", "vitviz.preprocess", *DRAWING, "vitviz.heatmap")
# What may be imported though requirements.txt does not name it: with gradio, or only by who has it already.
UNNAMED = {"starlette", "fastapi", "timm", "transformers", "onnx"}
CALLED = {"pillow": "PIL", "imageio-ffmpeg": "imageio_ffmpeg", "tensorboardx": "tensorboardX"}


@dataclass(frozen=True)
class Import:
    """`module` imports `name` (dotted, in full) on `line`; `inside` a function or when the module is loaded."""

    module: str
    name: str
    line: int
    inside: bool


def modules(root: Path) -> dict[str, Path]:
    """Every module of the application and its file."""
    found = {}
    for path in [*sorted((root / "vitviz").rglob("*.py")), root / "app.py"]:
        parts = path.relative_to(root).with_suffix("").parts
        if path.exists():
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path) -> Iterator[Import]:
    """All imports of a file: absolute, relative, inside functions, and by name through importlib."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while pending:
        node, inside = pending.pop()
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from (Import(module, name, node.lineno, inside) for name in names)
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]


def within(module: str, places: tuple[str, ...]) -> bool:
    """Whether `module` is one of `places`, or lies in one that ends with `.*`."""
    return any(module == place or (place[-1] == "*" and f"{module}.".startswith(place[:-1])) for place in places)


def floor(module: str) -> int | None:
    """The floor that a module is on, counted from 1, or None where the table does not place it."""
    return next((number for number, places in enumerate(FLOORS, 1) if within(module, places)), None)


def target(name: str, known: dict[str, Path]) -> str:
    """The module that an imported name of ours lies in: `vitviz.image.decode` -> `vitviz.image`."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def broken(root: Path) -> list[str]:
    """Every rule that a source tree breaks, in words; an empty list for a sound house."""
    known = modules(root)
    found = [one for module, path in known.items() for one in imports(module, path)]
    inner = [(one, target(one.name, known)) for one in found if one.name.split(".")[0] in {"vitviz", "app"}]
    outer = [one for one in found if one.name.split(".")[0] not in {"vitviz", "app"}]
    problems = [f"{module} is on no floor: place it in FLOORS" for module in known if floor(module) is None]
    problems += [problem for one, to in inner for problem in check_floor(one, to)]
    problems += circle([(one.module, to) for one, to in inner])
    problems += [problem for one in outer for problem in check_outer(one, declared(root))]
    for module, path in known.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        small = path.name == "__init__.py" or module in SHORT
        if lines > LENGTH[-1] or (lines < LENGTH[0] and not small):
            problems.append(f"{module} has {lines} lines, not {LENGTH[0]} to {LENGTH[-1]}")
    return problems


def check_floor(one: Import, to: str) -> Iterator[str]:
    """Down is allowed; on one floor only inside one package (`vitviz.ui.pages` may import `vitviz.ui.draw`)."""
    here, there = floor(one.module), floor(to)
    package, other = ".".join(one.module.split(".")[:2]), ".".join(to.split(".")[:2])
    inside_a_package = package == other and one.module != to and "." in one.module
    if here is None or there is None:
        return
    if there > here:
        yield f"{one.module}:{one.line} (floor {here}) imports {to} (floor {there}): that is up"
    elif there == here and not inside_a_package:
        yield f"{one.module}:{one.line} imports {to} on the same floor {here}, in another room"


def circle(arrows: list[tuple[str, str]]) -> list[str]:
    """A circle of imports, if there is one."""
    graph: dict[str, set[str]] = {}
    for module, to in arrows:
        graph.setdefault(module, set()).add(to)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["a circle: " + " <- ".join(error.args[1])]
    return []


def declared(root: Path) -> set[str]:
    """The names under which the packages of requirements.txt are imported."""
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [re.split(r"[^\w-]", line)[0].lower() for line in lines if line and line[0] not in "#-"]
    return {CALLED.get(name, name) for name in names}


def check_outer(one: Import, named: set[str]) -> Iterator[str]:
    """What may be imported from outside, where, and when."""
    top = one.name.split(".")[0]
    where = f"{one.module}:{one.line} imports {one.name}"
    if top in sys.stdlib_module_names:
        return
    if top not in named | UNNAMED:
        yield f"{where}, which requirements.txt does not name"
    table = within(one.module, TABLES_IN) and any(f"{one.name}.".startswith(f"{name}.") for name in TABLES)
    if top in ONLY_IN and not within(one.module, ONLY_IN[top]) and not table:
        yield f"{where}: only for {', '.join(ONLY_IN[top])}"
    if top in LAZY and not one.inside:
        yield f"{where} when it is loaded: only inside the function that needs it"
    if top == "torch" and one.module in NO_TORCH and not one.inside:
        yield f"{where}: this room is numpy and Pillow only"


def test_the_house_is_sound() -> None:
    assert broken(ROOT) == []


def test_every_room_of_the_table_is_read() -> None:
    known = modules(ROOT)
    assert {"vitviz", "vitviz.image", "vitviz.model", "vitviz.ui.pages", "app"} <= set(known)
    seen = {(one.module, target(one.name, known)) for one in imports("vitviz.explorer", known["vitviz.explorer"])}
    assert ("vitviz.explorer", "vitviz.model") in seen


FILL = "\n" * 45


@pytest.mark.parametrize(
    ("path", "code", "problem"),
    [
        ("image", "from vitviz.model import ViT", "vitviz.image:1 (floor 1) imports vitviz.model (floor 5)"),
        ("image", "from .model import ViT", "vitviz.image:1 (floor 1) imports vitviz.model (floor 5): that is up"),
        ("image", "from . import model", "vitviz.image:1 (floor 1) imports vitviz.model (floor 5): that is up"),
        ("image", "def f():\n    import vitviz.model as m", "vitviz.image:2 (floor 1) imports vitviz.model (floor 5)"),
        ("image", "import importlib\nimportlib.import_module('vitviz.model')", "imports vitviz.model (floor 5)"),
        ("image", "from vitviz import __version__", "vitviz.image:1 (floor 1) imports vitviz (floor 12): that is up"),
        ("compat", "from vitviz.trace import Trace", "imports vitviz.trace on the same floor 2, in another room"),
        ("explain/a", "from ..training import t", "imports vitviz.training.t on the same floor 7, in another room"),
        ("ui/pages", "from .viewer import x", "a circle: vitviz.ui.pages <- vitviz.ui.viewer <- vitviz.ui.pages"),
        ("ui/deep/pages", "from ..viewer import x\nfrom vitviz import cli", "imports vitviz.cli (floor 15)"),
        ("newroom", "", "vitviz.newroom is on no floor"),
        ("cli", "import gradio as gr", "only for vitviz.ui.*, app"),
        ("render/export", "from matplotlib.figure import Figure", "imports matplotlib.figure.Figure: only for"),
        ("render/overlay", "from matplotlib import pyplot", "imports matplotlib.pyplot: only for"),
        ("heatmap", "from matplotlib import colormaps", "imports matplotlib.colormaps: only for"),
        ("weights/zoo", "import timm", "imports timm when it is loaded"),
        ("weights/zoo", "class A:\n    from captum.attr import x", "imports captum.attr.x when it is loaded"),
        ("model", "def f():\n    import torchvision", "imports torchvision: only for vitviz.compat"),
        ("training/data", "from torchvision import datasets", "imports torchvision.datasets when it is loaded"),
        ("model", "import skimage", "imports skimage, which requirements.txt does not name"),
        ("heatmap", "import torch", "this room is numpy and Pillow only"),
        ("trace", "\n" * 400, "vitviz.trace has 445 lines"),
        ("trace", None, "vitviz.trace has 1 lines"),
    ],
)
def test_a_broken_house_is_seen(tmp_path: Path, path: str, code: str | None, problem: str) -> None:
    house(tmp_path)
    (tmp_path / "vitviz" / f"{path}.py").parent.mkdir(exist_ok=True)
    (tmp_path / "vitviz" / f"{path}.py").write_text('"""Short."""' if code is None else code + FILL)
    problems = broken(tmp_path)
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("ui/pages", "import gradio\nfrom . import parts\nfrom .parts import y\nfrom .. import explorer, __version__"),
        ("render/figures", "from matplotlib.figure import Figure\nfrom vitviz.render.overlay import lut"),
        ("render/overlay", "def f():\n    from matplotlib import colormaps\nfrom PIL import Image\nimport numpy as np"),
        ("weights/zoo", "def f():\n    import timm\n    from vitviz.compat import import_torchvision"),
        ("cli", "from vitviz import Trace\nfrom vitviz.ui.pages import build"),
        ("__main__", "from vitviz.cli import main"),
    ],
)
def test_a_sound_house_passes(tmp_path: Path, path: str, code: str) -> None:
    house(tmp_path)
    (tmp_path / "vitviz" / f"{path}.py").write_text(code + FILL)
    assert broken(tmp_path) == []


def house(root: Path) -> None:
    """A small sound house: every room that the cases above need."""
    rooms = "image trace compat model heatmap explorer cli ui/parts ui/viewer ui/pages training/t explain/a weights/w"
    for room in [*rooms.split(), "render/overlay"]:
        file = root / "vitviz" / f"{room}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from vitviz.ui import pages" + FILL if room == "ui/viewer" else FILL)
    (root / "vitviz" / "__init__.py").write_text("from vitviz.explorer import Explorer")
    (root / "app.py").write_text("from vitviz.ui.pages import build")
    (root / "requirements.txt").write_text((ROOT / "requirements.txt").read_text(encoding="utf-8"))
