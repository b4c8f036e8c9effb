"""Options that several commands share, and conversions from what a person types."""

import argparse
import json
from pathlib import Path
from typing import Any, cast, get_args

from vitviz.attribution.attention import Fusion
from vitviz.explorer import Explorer
from vitviz.model.devices import device_named
from vitviz.model.vit import ViT
from vitviz.view import View
from vitviz.weights.zoo import DEFAULT, load

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the options that name a model and where it runs."""
    command.add_argument(
        "--model",
        default=DEFAULT,
        metavar="SOURCE",
        help="a bundled name, a folder, a file, torchvision:NAME, timm:NAME or hf:NAME (default: %(default)s)",
    )
    command.add_argument("--family", help="of a file whose tensors do not tell: vit, dinov3, clip, siglip, ...")
    command.add_argument("--heads", type=int, help="of a file whose width does not tell: attention heads in each layer")
    command.add_argument("--device", help="cuda, mps or cpu (default: the best there is)")


def add_photo(command: argparse.ArgumentParser, *, many: bool = False) -> None:
    """Add a photograph or many, the input size, and the options of the model that opens them."""
    if many:
        command.add_argument("photos", nargs="+", metavar="FILE_OR_FOLDER", help="image files, and folders of them")
    else:
        command.add_argument("photo", help="an image file")
    command.add_argument("--size", type=int, metavar="PIXELS", help="side of the model's input (default: its own)")
    add_model(command)


def load_model(args: argparse.Namespace) -> ViT:
    """Load the model that `add_model` asks for."""
    return load(args.model, family=args.family, heads=args.heads)


def open_explorer(args: argparse.Namespace) -> Explorer:
    """Load the model that `add_model` asks for, on its device."""
    return Explorer(load_model(args), device=device_named(args.device))


def open_view(args: argparse.Namespace) -> View:
    """Open the photograph that `add_photo` asks for."""
    return open_explorer(args).open(args.photo, size=args.size)


def parse_query(text: str | None) -> str | tuple[int, int] | None:
    """Parse a query: "7,4" is the patch in row 7, column 4, counted from 1; names stay names."""
    if text is None or "," not in text:
        return text
    row, _, column = (part.strip() for part in text.partition(","))
    if not (row.isdecimal() and column.isdecimal() and int(row) and int(column)):
        raise ValueError(
            f"Expected --query as ROW,COLUMN, counted from 1, or as a token's name, got {text!r:.60}. Correct it."
        )
    return int(row) - 1, int(column) - 1


def parse_head(text: str) -> int | Fusion:
    """Parse a head, counted from 1, or the name of a fusion."""
    if text.isdecimal() and int(text):
        return int(text) - 1
    if text not in get_args(Fusion):
        raise ValueError(f"Expected --head as a number from 1, or mean, max or min, got {text!r:.60}. Correct it.")
    return cast(Fusion, text)


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE: numbers, true, false and null are what they are in JSON, all else is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"Expected --set NAME=VALUE, got {text!r:.60}. Write it as block=3.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def block_index(layer: int | None, view: View, option: str = "--layer") -> int:
    """Return the block of a layer that is counted from 1; the last one for `None`."""
    if layer is None:
        return view.trace.depth - 1
    if not 1 <= layer <= view.trace.depth:
        raise ValueError(f"Expected {option} from 1 to {view.trace.depth}, got {layer}. Count layers from 1.")
    return layer - 1


def output_path(text: str, *suffixes: str, option: str = "-o") -> Path:
    """Return a file to write, before any work: refuse other suffixes than these, and make its folder."""
    path = Path(text)
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"Expected {option} with a name ending in {', '.join(suffixes)}, got {text!r}. Rename it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
