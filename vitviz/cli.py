"""The command line: the same questions as on the page, from a shell.

People count layers, heads, rows and columns from 1 here, as on the page; the Python API counts from 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from vitviz import __version__
from vitviz.explain.attention import Fusion
from vitviz.explorer import Explorer, View, device_named
from vitviz.model import ViT
from vitviz.summary import summary
from vitviz.validate import validate
from vitviz.weights.famous import FAMOUS
from vitviz.weights.zoo import bundled, load

DEFAULT_MODEL = "dinov2-s14-imagenette"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")

DESCRIPTION = """\
Look inside a Vision Transformer.

  vitviz predict photo.jpg                          what the model sees, with probabilities
  vitviz explain photo.jpg -o why.png               attention rollout over the photograph
  vitviz explain photo.jpg --method attention --layer 12 --head 3 --query 7,4 -o look.png
  vitviz sheet photo.jpg --layer 12 -o heads.png    every head of a layer on one sheet
  vitviz export photo.jpg --html page.html          the explorer as one file that opens without a network
  vitviz validate --data imagenette/val             top-1 and top-5 on a folder of images
  vitviz app                                        the page in a browser
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="vitviz", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"vitviz {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_predict(commands)
    _add_explain(commands)
    _add_sheet(commands)
    _add_export(commands)
    _add_validate(commands)
    _add_summary(commands)
    _add_app(commands)
    commands.add_parser("models", help="list the bundled models and famous ones").set_defaults(run=_models)
    return parser


Commands = argparse._SubParsersAction


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="SOURCE",
        help="a bundled name, a folder, a file, torchvision:NAME, timm:NAME or hf:NAME (default: %(default)s)",
    )
    command.add_argument("--family", help="of a file whose tensors do not tell: vit, dinov3, clip, siglip, ...")
    command.add_argument("--heads", type=int, help="of a file whose width does not tell: attention heads in each layer")
    command.add_argument("--device", help="cuda, mps or cpu (default: the best there is)")


def _size(command: argparse.ArgumentParser) -> None:
    command.add_argument("--size", type=int, metavar="PIXELS", help="side of the model's input (default: its own)")


def _add_predict(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("predict", help="the most probable classes of photographs")
    command.add_argument("photos", nargs="+", help="image files")
    command.add_argument("-k", type=int, default=5, help="how many classes (default: 5)")
    command.add_argument("--json", action="store_true", help="print JSON")
    _size(command)
    _common(command)
    command.set_defaults(run=_predict)


def _add_explain(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("explain", help="lay attention or rollout over a photograph")
    command.add_argument("photo", help="an image file")
    command.add_argument("-o", "--output", default="explained.png", help=".png or .jpg for a picture, .npz for numbers")
    command.add_argument("--method", choices=("attention", "rollout"), default="rollout")
    command.add_argument("--layer", type=int, help="attention: layer, counted from 1 (default: the last)")
    command.add_argument("--head", default="mean", help="attention: head, counted from 1, or mean, max, min")
    command.add_argument("--query", default=None, help="cls, mean, a register's name, or a patch ROW,COLUMN from 1")
    command.add_argument("--fuse", choices=("mean", "max", "min"), default="mean", help="rollout: how heads become one")
    command.add_argument("--discard", type=float, default=0.0, help="rollout: share of the weakest entries to drop")
    command.add_argument("--residual", type=float, default=0.5, help="rollout: weight of the skip connection")
    command.add_argument("--start", type=int, default=1, help="rollout: first layer, counted from 1")
    command.add_argument("--cmap", default="viridis", help="any matplotlib colour map (default: viridis)")
    command.add_argument("--alpha", type=float, default=0.5, help="opacity of the map, 0..1 (default: 0.5)")
    command.add_argument("--grid", action="store_true", help="draw the patch grid")
    command.add_argument("--smooth", action="store_true", help="interpolate between patches")
    _size(command)
    _common(command)
    command.set_defaults(run=_explain)


def _add_sheet(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("sheet", help="a contact sheet: every head of a layer, or every layer")
    command.add_argument("photo", help="an image file")
    command.add_argument("-o", "--output", default="sheet.png", help="the picture to write")
    command.add_argument("--layer", type=int, help="show the heads of this layer, counted from 1 (default: all layers)")
    command.add_argument("--query", default=None, help="cls, mean, a register's name, or a patch ROW,COLUMN from 1")
    command.add_argument("--scale", choices=("shared", "each"), default="shared", help="one for all, or each its own")
    command.add_argument("--cmap", default="viridis", help="any matplotlib colour map (default: viridis)")
    command.add_argument("--dark", action="store_true", help="light words on a dark ground")
    _size(command)
    _common(command)
    command.set_defaults(run=_sheet)


def _add_export(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("export", help="the explorer with a photograph as one self-contained HTML file")
    command.add_argument("photo", help="an image file")
    command.add_argument(
        "--html", default="vitviz.html", metavar="FILE", help="the page to write (default: vitviz.html)"
    )
    _size(command)
    _common(command)
    command.set_defaults(run=_export)


def _add_validate(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("validate", help="accuracy on a folder of images, one subfolder a class")
    command.add_argument("--data", required=True, help="the folder")
    command.add_argument("--limit", type=int, help="at most so many images, spread over the classes")
    command.add_argument("--batch", type=int, default=32, help="images at once (default: 32)")
    _common(command)
    command.set_defaults(run=_validate)


def _add_summary(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("summary", help="modules, output shapes and parameter counts of a model")
    _common(command)
    command.set_defaults(run=_summary)


def _load(args: argparse.Namespace) -> ViT:
    return load(args.model, family=args.family, heads=args.heads)


def _add_app(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("app", help="serve the page on this machine")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    command.add_argument("--port", type=int, default=7860, help="port to listen on (default: 7860)")
    command.add_argument(
        "--model",
        action="append",
        metavar="SOURCE",
        help="one more model for the menu: a folder, a file, or as in `vitviz predict --model`; may be repeated",
    )
    command.add_argument(
        "--allow-typed",
        action=argparse.BooleanOptionalAction,
        help="let visitors name any model of torchvision, timm and Hugging Face (default: on this machine only)",
    )
    command.add_argument(
        "--allow-upload",
        action=argparse.BooleanOptionalAction,
        help="let visitors upload checkpoints (default: no)",
    )
    command.add_argument("--model-memory", type=float, metavar="GB", help="memory for loaded models (default: 4)")
    command.add_argument("--max-side", type=int, metavar="PIXELS", help="largest input of a model (default: 2048)")
    command.set_defaults(run=_app)


def _explorer(args: argparse.Namespace) -> Explorer:
    return Explorer(_load(args), device=device_named(args.device))


def _predict(args: argparse.Namespace) -> None:
    explorer = _explorer(args)
    answers = [(photo, explorer.open(photo, size=args.size).predictions(args.k)) for photo in args.photos]
    if args.json:
        plain = [
            {"photo": photo, "predictions": [{"label": label, "probability": p} for label, p in predictions]}
            for photo, predictions in answers
        ]
        print(json.dumps(plain[0] if len(plain) == 1 else plain, indent=2))
        return
    for photo, predictions in answers:
        print(photo)
        for label, p in predictions:
            print(f"  {p:7.2%}  {label}")


def parse_query(text: str | None) -> str | tuple[int, int] | None:
    """A query typed by a person: "7,4" is the patch in row 7, column 4, counted from 1; names stay names."""
    if text is None or "," not in text:
        return text
    try:
        row, column = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--query: expected ROW,COLUMN (two numbers), cls or mean; got {text!r}.") from error
    if row < 1 or column < 1:
        raise ValueError(f"--query: rows and columns are counted from 1; got {text!r}.")
    return row - 1, column - 1


def parse_head(text: str) -> int | Fusion:
    """A head typed by a person, counted from 1, or the name of a fusion."""
    if text.isdigit():
        if int(text) < 1:
            raise ValueError("--head: heads are counted from 1; got 0.")
        return int(text) - 1
    if text not in get_args(Fusion):
        raise ValueError(f"--head: expected a number from 1, or mean, max, min; got {text!r}.")
    return cast(Fusion, text)


def _explain(args: argparse.Namespace) -> None:
    output = Path(args.output)
    _check_suffix(output, *PICTURES, ".npz")
    view = _explorer(args).open(args.photo, size=args.size)
    query = parse_query(args.query)
    if args.method == "rollout":
        options = {"fuse": args.fuse, "discard": args.discard, "residual": args.residual, "start": args.start - 1}
        heatmap = view.rollout(query, **options)
    else:
        heatmap = view.attention(_block(args.layer, view), parse_head(args.head), query)
    if output.suffix.lower() == ".npz":
        heatmap.save(output)
    else:
        heatmap.overlay(alpha=args.alpha, cmap=args.cmap, grid=args.grid, smooth=args.smooth).save(output)
    mass = ", ".join(f"{value:.1%} on {name}" for name, value in heatmap.prefix_mass.items())
    print(f"{heatmap.title}{f' ({mass})' if mass else ''} -> {output}")


def _sheet(args: argparse.Namespace) -> None:
    output = Path(args.output)
    _check_suffix(output, *PICTURES)
    view = _explorer(args).open(args.photo, size=args.size)
    options = {"query": parse_query(args.query), "scale": args.scale, "cmap": args.cmap, "dark": args.dark}
    sheet = view.layer_sheet(**options) if args.layer is None else view.head_sheet(_block(args.layer, view), **options)
    sheet.save(output)
    print(f"{sheet.width} x {sheet.height} pixels -> {output}")


def _export(args: argparse.Namespace) -> None:
    output = Path(args.html)
    _check_suffix(output, ".html", ".htm", option="--html")
    page = _explorer(args).open(args.photo, size=args.size).html()
    output.write_text(page, encoding="utf-8")
    print(f"{output.stat().st_size / 1e6:.1f} MB -> {output}")


def _check_suffix(output: Path, *allowed: str, option: str = "-o") -> None:
    if output.suffix.lower() not in allowed:
        raise ValueError(f"{option}: expected a name ending in {', '.join(allowed)}; got {str(output)!r}.")


def _block(layer: int | None, view: View) -> int:
    """The block of a layer that a person counted from 1; the last one for `None`."""
    if layer is None:
        return view.trace.depth - 1
    if not 1 <= layer <= view.trace.depth:
        raise ValueError(f"--layer: expected 1..{view.trace.depth}, got {layer}.")
    return layer - 1


def _validate(args: argparse.Namespace) -> None:
    explorer = _explorer(args)
    print(validate(explorer.model, args.data, batch_size=args.batch, limit=args.limit).table())


def _summary(args: argparse.Namespace) -> None:
    print(summary(_load(args)))


def _models(_args: argparse.Namespace) -> None:
    print("\n".join(bundled()))
    print("\nFamous ones, downloaded when first used:")
    width = max(len(one.source) for one in FAMOUS)
    for one in FAMOUS:
        print(f"{one.source:<{width}}  {one.size / 1e6:4.0f} MB  {one.licence:<18}  {one.title}: {one.known_for}")


def _app(args: argparse.Namespace) -> None:
    # gradio takes seconds to import: only the page needs it.
    from vitviz.ui.pages import build
    from vitviz.ui.server import launch
    from vitviz.ui.settings import settings

    allowed = settings(
        host=args.host,
        models=args.model,
        typed=args.allow_typed,
        upload=args.allow_upload,
        memory=args.model_memory,
        side=args.max_side,
    )
    launch(build(allowed), host=args.host, port=args.port, upload=allowed.upload)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 with a sentence on standard error when the input was not right."""
    args = build_parser().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
