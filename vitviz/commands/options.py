"""What several commands take, and how a person's words become the library's."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast, get_args

from vitviz.devices import device_named
from vitviz.explain.attention import Fusion
from vitviz.explorer import Explorer
from vitviz.model import ViT
from vitviz.view import View
from vitviz.weights.zoo import load

DEFAULT_MODEL = "dinov2-s14-imagenette"
PICTURES = (".png", ".jpg", ".jpeg", ".webp")

Commands = argparse._SubParsersAction


def add_model(command: argparse.ArgumentParser) -> None:
    """The options that name a model and where it runs."""
    command.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="SOURCE",
        help="a bundled name, a folder, a file, torchvision:NAME, timm:NAME or hf:NAME (default: %(default)s)",
    )
    command.add_argument("--family", help="of a file whose tensors do not tell: vit, dinov3, clip, siglip, ...")
    command.add_argument("--heads", type=int, help="of a file whose width does not tell: attention heads in each layer")
    command.add_argument("--device", help="cuda, mps or cpu (default: the best there is)")


def add_size(command: argparse.ArgumentParser) -> None:
    """The option that sets the size of the model's input."""
    command.add_argument("--size", type=int, metavar="PIXELS", help="side of the model's input (default: its own)")


def load_model(args: argparse.Namespace) -> ViT:
    """The model that was named."""
    return load(args.model, family=args.family, heads=args.heads)


def open_explorer(args: argparse.Namespace) -> Explorer:
    """The model that was named, ready to look at photographs."""
    return Explorer(load_model(args), device=device_named(args.device))


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


def check_suffix(output: Path, *allowed: str, option: str = "-o") -> None:
    """Refuse a file's name with another ending than these."""
    if output.suffix.lower() not in allowed:
        raise ValueError(f"{option}: expected a name ending in {', '.join(allowed)}; got {str(output)!r}.")


def room_for(output: Path, *allowed: str, option: str = "-o") -> None:
    """Before the work: refuse a file's name with another ending than these, and make the folder that it lies in."""
    check_suffix(output, *allowed, option=option)
    output.parent.mkdir(parents=True, exist_ok=True)


def block_of(layer: int | None, view: View, option: str = "--layer") -> int:
    """The block of a layer that a person counted from 1; the last one for `None`."""
    if layer is None:
        return view.trace.depth - 1
    if not 1 <= layer <= view.trace.depth:
        raise ValueError(f"{option}: expected 1..{view.trace.depth}, got {layer}.")
    return layer - 1


def parse_setting(text: str) -> tuple[str, Any]:
    """`block=3` is ("block", 3): numbers, true, false and null are what they are in JSON, all else is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--set: expected NAME=VALUE, got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
