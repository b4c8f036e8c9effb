"""Define the options that several commands share, and parse their values."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from vitviz.errors import VitvizError
from vitviz.outputs import ProblemType
from vitviz.resources import DEFAULT

if TYPE_CHECKING:
    from vitviz.attribution.attention import Fusion
    from vitviz.explorer import Explorer
    from vitviz.model.vit import ViT
    from vitviz.view import View

FUSIONS: tuple[Fusion, ...] = ("mean", "max", "min")
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
Args = SimpleNamespace  # values of a command's options by name
FILES_OF_TARGETS = ("direction", "similar")  # spellings of `attribution.target_specs` that accept a file
STANDARD_INPUT = "-"  # as a photograph's path
Function = TypeVar("Function", bound=Callable[..., Any])


class Command(click.Command):
    """Command whose function takes its options as one namespace.

    Args:
        serves: whether it runs until Ctrl-C, without lines of progress.
        settings: as for `click.Command`.
    """

    def __init__(self, *, serves: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.serves = serves

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. An option `Several` may have several values after its name: `--only patches shapes`."""
        several = {name for option in self.params if isinstance(option, Several) for name in option.opts}
        spread, option = [""], ""
        for word in args:
            if word.startswith("-"):
                option = word if word in several else ""
            elif option and spread[-1] != option:
                spread.append(option)
            spread.append(word)
        return super().parse_args(ctx, spread[1:])

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command's function, with lines of progress where there is no terminal."""
        from vitviz.progress import lines, silent

        assert self.callback is not None  # set by click's decorators
        with silent(bool(ctx.params.get("quiet"))), nullcontext() if self.serves else lines(ctx.command_path):
            return ctx.invoke(self.callback, Args(**ctx.params))


class LazyHelp(click.Option):
    """Option whose help is computed on display, because computing it imports torch."""

    def __init__(self, *names: Any, compute_help: Callable[[], str], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.compute_help = compute_help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help."""
        self.help = self.compute_help()
        return super().get_help_record(ctx)


class Several(click.Option):
    """Option with one or more values."""

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **{**settings, "multiple": True})

    def make_metavar(self, ctx: click.Context) -> str:
        """Return the placeholder of the values in the help."""
        return f"{super().make_metavar(ctx)}..."


class Names(click.Choice[str]):
    """Choices that are imported on use, so that a mistyped option is reported without importing torch.

    Args:
        module: module that holds the collection of names.
        name: name of the collection.
        more: further names.
    """

    def __init__(self, module: str, name: str, *more: str) -> None:
        self.case_sensitive = True  # `click.Choice.__init__` would set `choices`, a property here
        self._module, self._name, self._more = module, name, more

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names."""
        return (*getattr(import_module(self._module), self._name), *self._more)


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that adds several options, in their order."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


PATH = click.Path()  # shells complete such values
METHOD = Names("vitviz.attribution.registry", "METHODS")


def output(help: str, metavar: str | None = None, default: str | None = None) -> Callable[[Function], Function]:
    """Return the option -o of a command that writes a file or a folder."""
    return click.option("-o", "--output", type=PATH, metavar=metavar, default=default, help=help)


LIKE = "for a weights file: a model with the same settings, such as timm:vit_small_patch16_224 (not downloaded)"
quiet = click.option("--quiet", is_flag=True, help="print only results and errors, no progress or notes")
printed = together(
    quiet, click.option("--json", is_flag=True, help="print JSON, with layers, heads, rows and columns counted from 1")
)
kind = together(
    click.option("--like", type=PATH, metavar="SOURCE", help=LIKE),
    click.option(
        "--heads", type=int, help="attention heads per layer, if the width of a weights file does not determine them"
    ),
    click.option(
        "--labels", type=PATH, metavar="FILE", help="class names: one per line, a JSON list, or a file with id2label"
    ),
    click.option(
        "--preprocess", type=PATH, metavar="FILE", help="a preprocessor_config.json; or imagenet, clip or half"
    ),
    click.option(
        "--problem-type",
        type=click.Choice(get_args(ProblemType)),
        metavar="TYPE",
        help=f"meaning of the outputs, if the model does not state it: {', '.join(get_args(ProblemType))}",
    ),
    click.option("--device", help="cuda, mps or cpu (default: the best available)"),
)
model = together(
    click.option(
        "--model",
        type=PATH,
        default=DEFAULT,
        metavar="SOURCE",
        help=f"a bundled name, a folder, a file, torchvision:NAME, timm:NAME or hf:NAME (default: {DEFAULT})",
    ),
    kind,
    printed,
)
text = click.option(
    "--text",
    cls=Several,
    metavar="TEXT",
    help="use texts as the classes (CLIP and SigLIP, with their text tower); @FILE stands for its lines",
)
size = click.option("--size", type=int, metavar="PIXELS", help="side of the model's input (default: its own)")
bands = click.option(
    "--bands", metavar="NAME[,NAME,NAME]", help="bands to show in grey, or as red, green and blue, for other inputs"
)
photo = together(click.argument("photo", type=PATH), size, bands, text, model)
photos = together(
    click.argument("photos", type=PATH, nargs=-1, required=True, metavar="FILE_OR_FOLDER..."), size, bands, text, model
)


place = together(
    click.option("--layer", type=int, help="layer of the map, counted from 1 (default: the last)"),
    click.option("--head", default="mean", help="head of the map, counted from 1, or mean, max, min (default: mean)"),
    click.option("--query", help="query token of the map: cls, mean, a register's name, or a patch ROW,COLUMN from 1"),
)


TARGET = (
    "what to explain: a class as label or index from 0, group:CLASS,CLASS,..., output:CLASS, unit:NUMBER, "
    "direction:FILE, similar:PHOTO or text:WORDS (default: the most probable class)"
)
target = together(
    click.option("--target", metavar="TARGET", help=TARGET),
    click.option("--rather-than", metavar="CLASS", help="the difference between the target's and this class's logit"),
)


def load_model(args: Args) -> ViT:
    """Load the model of `--model`, and print assumptions to standard error."""
    from vitviz.weights.zoo import load

    options = {name: getattr(args, name) for name in ("like", "heads", "labels", "preprocess", "problem_type")}
    model = load(args.model, **options)
    if model.pretrained is not None and not args.quiet:
        for assumption in model.pretrained.assumed:
            print(f"Assumed: {assumption}", file=sys.stderr)
    return model


def open_explorer(args: Args) -> Explorer:
    """Load the model of `--model` onto `--device`."""
    from vitviz.explorer import Explorer
    from vitviz.model.devices import device_named

    explorer = Explorer(load_model(args), device=device_named(args.device))
    if names := getattr(args, "bands", None):
        explorer.preprocess = replace(explorer.preprocess, shown=tuple(names.split(",")))
    texts = texts_of(args)
    return explorer.texts(texts) if texts else explorer


def texts_of(args: Args) -> list[str]:
    """Return the texts of `--text`, with the lines of a file in place of @FILE."""
    texts: list[str] = []
    for text in getattr(args, "text", ()):
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines() if text.startswith("@") else [text]
        except (OSError, ValueError) as error:
            raise VitvizError(f"Expected --text @FILE with one text a line, got {error}. Correct it.") from error
        texts += [line.strip() for line in lines if line.strip() or len(lines) == 1]
    return texts


def photograph(path: str | Path) -> str | Path | bytes:
    """Return the path of a photograph, or the bytes of standard input for "-"."""
    return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path


def open_view(args: Args) -> View:
    """Open the photograph."""
    return open_explorer(args).open(photograph(args.photo), size=args.size)


def target_of(args: Args, explorer: Explorer, view: View | None) -> dict[str, Any]:
    """Return --target and --rather-than as arguments of `View.explain`.

    With --rather-than alone, the other class is the most probable one of the view.
    """
    if args.rather_than is None:
        return {"target": parse_target(args.target, explorer, args.size)}
    if args.target is None and view is None:
        raise VitvizError("Expected --target with --rather-than over a folder, got only --rather-than. Name a class.")
    return {"contrast": (view.best(1)[0] if args.target is None and view else args.target, args.rather_than)}


def parse_query(text: str | None, grid: tuple[int, int] | None) -> str | tuple[int, int] | None:
    """Parse a query: "7,4" is the patch in row 7, column 4, counted from 1; names stay names.

    Args:
        text: typed by the user.
        grid: rows and columns of patches; `None` if they differ between photographs.
    """
    if text is None or "," not in text:
        return text
    row, _, column = (part.strip() for part in text.partition(","))
    limits = zip((row, column), grid or (math.inf, math.inf), strict=True)
    if not all(part.isdecimal() and 1 <= int(part) <= most for part, most in limits):
        bounds = f"from 1,1{f' to {grid[0]},{grid[1]}' if grid else ''}"
        raise VitvizError(f"Expected --query as a token's name or ROW,COLUMN {bounds}, got {text!r:.60}. Correct it.")
    return int(row) - 1, int(column) - 1


def parse_target(text: str | None, explorer: Explorer, size: int | None) -> Any:
    """Parse a target: a class, or a text in which a photograph or a file of numbers may stand for a vector.

    Args:
        text: typed by the user.
        explorer: opens the photograph of `similar:PHOTO`.
        size: of the model's input.
    """
    word, colon, path = (text or "").partition(":")
    if not colon or word not in FILES_OF_TARGETS or _is_vector(path):
        return text
    from vitviz.attribution.target_specs import Direction, Similarity

    if word == "similar":
        return Similarity(explorer.open(photograph(path), size=size))
    return Direction(_read_vector(Path(path)), Path(path).stem)


def _is_vector(text: str) -> bool:
    """Return whether a text is a list of numbers, with or without a name after a semicolon."""
    try:
        return len([float(number) for number in text.partition(";")[0].split(",")]) > 1
    except ValueError:
        return False


def _read_vector(path: Path) -> Any:
    """Read a vector from a .npy file, or from text with numbers separated by white space or commas."""
    import numpy as np

    try:
        if path.suffix.lower() == ".npy":
            return np.load(path, allow_pickle=False)
        return np.array([float(number) for number in path.read_text(encoding="utf-8").replace(",", " ").split()])
    except (OSError, ValueError) as error:
        raise VitvizError(
            f"Expected direction: followed by numbers, or by a .npy or text file of numbers, got {str(path)!r:.60}: "
            f"{error}. Correct it."
        ) from error


def parse_head(text: str, heads: int) -> int | str:
    """Parse a head, counted from 1, or the name of a fusion."""
    if text in FUSIONS:
        return text
    if not (text.isdecimal() and 1 <= int(text) <= heads):
        raise VitvizError(f"Expected --head from 1 to {heads}, or {', '.join(FUSIONS)}, got {text:.60}. Choose one.")
    return int(text) - 1


def place_of(args: Args, depth: int, heads: int, grid: tuple[int, int] | None) -> dict[str, Any]:
    """Return block, head and query, counted from 0, of --layer, --head and --query."""
    block = -1 if args.layer is None else parse_layer(args.layer, depth)
    return {"block": block, "head": parse_head(args.head, heads), "query": parse_query(args.query, grid)}


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON if it parses, else text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise VitvizError(f"Expected --set NAME=VALUE, got {text!r:.60}. Write it as block=3.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def parse_layer(layer: int, depth: int, option: str = "--layer") -> int:
    """Return the block index (from 0) of a layer (from 1)."""
    if not 1 <= layer <= depth:
        raise VitvizError(f"Expected {option} from 1 to {depth}, got {layer}. Count layers from 1.")
    return layer - 1


def output_path(text: str, *suffixes: str, option: str = "-o", folder: bool = False) -> Path:
    """Return the path of a file or folder to write, checked before any work; create the folder of a file.

    Raises:
        VitvizError: for an unsupported suffix, or a path that cannot be written.
    """
    path = Path(text)
    if suffixes and path.suffix.lower() not in suffixes:
        raise VitvizError(f"Expected {option} with a name ending in {', '.join(suffixes)}, got {text!r}. Rename it.")
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    touched = {existing, existing if existing.is_dir() else existing.parent}  # files are written beside existing ones
    if existing.is_dir() != (folder or existing != path) or not all(os.access(place, os.W_OK) for place in touched):
        kind = "folder" if folder else "file"
        raise VitvizError(f"Expected {option} as a {kind} that can be written, got {text!r}. Name another.")
    if not folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def note(args: Args, text: str) -> None:
    """Print a line about a written file, unless `--quiet` or `--json`."""
    if not (args.quiet or getattr(args, "json", False)):
        print(text, flush=True)  # into a file or a pipe, too


def input_size(args: Args, explorer: Explorer) -> tuple[int, int]:
    """Return height and width of the model's input at `--size`; in mode "native" each photograph has its own size."""
    preprocess = explorer.preprocess
    if args.size is not None:
        preprocess = preprocess.at(args.size, explorer.model.config.size_multiple)
    return preprocess.height, preprocess.width


def print_json(args: Args, size: Sequence[int], **more: Any) -> None:
    """Print a result as JSON: the model's source, (height, width) of its input, and `more`."""
    document = {"model": args.model, "input_size": size, **more}
    print(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def print_photo(args: Args, view: View, **more: Any) -> None:
    """Print a result about one photograph as JSON."""
    print_json(args, (view.preprocess.height, view.preprocess.width), images=[photo_record(args.photo, view, **more)])


def photo_record(path: str | Path, view: View, **more: Any) -> dict[str, Any]:
    """Return the JSON entry of a photograph."""
    return {"photo": str(path), "input_size": view.size, **more}


def _plain(value: Any) -> Any:
    """Convert a value for JSON; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
