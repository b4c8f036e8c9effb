"""Look at a photograph: attention and attribution over it, sheets, the explorer as a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from vitviz.commands.options import (
    PICTURES,
    Commands,
    add_model,
    add_size,
    block_of,
    check_suffix,
    open_explorer,
    parse_head,
    parse_query,
    parse_setting,
)
from vitviz.explain.attention import Fusion
from vitviz.explain.methods import METHODS, check_options
from vitviz.heatmap import Heatmap
from vitviz.view import View


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """explain, sheet, export."""
    _add_explain(commands)
    _add_sheet(commands)
    _add_export(commands)


def _add_explain(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("explain", help="lay a map over a photograph: where it looks, or why")
    command.add_argument("photo", help="an image file")
    command.add_argument("-o", "--output", default="explained.png", help=".png or .jpg for a picture, .npz for numbers")
    command.add_argument("--method", choices=list(METHODS), default="rollout", help="(default: rollout)")
    command.add_argument(
        "--target", metavar="CLASS", help="the class to explain, a label or its number from 0 (default: the best)"
    )
    command.add_argument("--rather-than", metavar="CLASS", help="why the target and not this class")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method, as in Python: blocks and heads from 0; may be repeated",
    )
    command.add_argument("--test", action="store_true", help="say whether the map is to be believed (takes seconds)")
    command.add_argument(
        "--layer",
        type=int,
        help=f"layer, counted from 1 (default: the last that reaches the answer); {_takers('block')}",
    )
    command.add_argument(
        "--head", help=f"head, counted from 1, or mean (attention: or max, min; default: mean); {_takers('head')}"
    )
    command.add_argument(
        "--query", help=f"cls, mean, a register's name, or a patch ROW,COLUMN from 1; {_takers('query')}"
    )
    command.add_argument(
        "--fuse", choices=get_args(Fusion), help=f"how heads become one (default: mean); {_takers('fuse')}"
    )
    command.add_argument(
        "--discard", type=float, help=f"share of the weakest entries to drop (default: 0); {_takers('discard')}"
    )
    command.add_argument(
        "--residual", type=float, help=f"weight of the skip connection (default: 0.5); {_takers('residual')}"
    )
    command.add_argument("--start", type=int, help=f"first layer, counted from 1 (default: 1); {_takers('start')}")
    command.add_argument("--cmap", help="any matplotlib colour map (default: viridis; RdBu_r for maps of two signs)")
    command.add_argument("--alpha", type=float, default=0.5, help="opacity of the map, 0..1 (default: 0.5)")
    command.add_argument("--grid", action="store_true", help="draw the patch grid")
    command.add_argument("--smooth", action="store_true", help="interpolate between patches")
    add_size(command)
    add_model(command)
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
    add_size(command)
    add_model(command)
    command.set_defaults(run=_sheet)


def _add_export(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("export", help="the explorer with a photograph as one self-contained HTML file")
    command.add_argument("photo", help="an image file")
    command.add_argument(
        "--html", default="vitviz.html", metavar="FILE", help="the page to write (default: vitviz.html)"
    )
    add_size(command)
    add_model(command)
    command.set_defaults(run=_export)


def _explain(args: argparse.Namespace) -> None:
    output = Path(args.output)
    check_suffix(output, *PICTURES, ".npz")
    view = open_explorer(args).open(args.photo, size=args.size)
    heatmap = _map(view, args)
    if output.suffix.lower() == ".npz":
        heatmap.save(output)
    else:
        heatmap.overlay(alpha=args.alpha, cmap=args.cmap, grid=args.grid, smooth=args.smooth).save(output)
    mass = heatmap.mass_words()
    print(f"{heatmap.title}{f' (outside the picture: {mass})' if mass else ''} -> {output}")
    if args.test:
        print(view.faithfulness(heatmap, **_asked(view, args))[0].words())


def _map(view: View, args: argparse.Namespace) -> Heatmap:
    method, options = METHODS[args.method], _options(view, args)
    if not (method.class_specific or args.test) and (args.target or args.rather_than):
        raise ValueError(f"--target, --rather-than: {method.name} is the same for every class. Choose another method.")
    if method.name in ("attention", "rollout"):
        if args.set:
            raise ValueError(f"--set: {method.name} has options of its own, see --help; got {args.set[0]!r}.")
        return view.attention(**options) if method.name == "attention" else view.rollout(**options)
    settings = dict(parse_setting(text) for text in args.set)
    check_options(method.name, settings)
    if twice := sorted(set(settings) & set(options)):
        raise ValueError(f"--set {twice[0]}: this is given by an option of its own, too. Leave one of them out.")
    asked = _asked(view, args) if method.class_specific else {}
    return view.explain(method.name, **asked, **options, **settings)


def _options(view: View, args: argparse.Namespace) -> dict[str, Any]:
    """What was asked of the method, by the names of its options.

    Raises:
        ValueError: for what this method does not know: a map that is not what was asked for is worse than none.
    """
    # By the method's names: the option as it is typed, and as the method takes it.
    asked: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "block": ("layer", lambda layer: block_of(layer, view)),
        "head": ("head", parse_head),
        "query": ("query", parse_query),
        "start": ("start", lambda layer: block_of(layer, view, "--start")),
        **{name: (name, lambda value: value) for name in ("fuse", "discard", "residual")},
    }
    options: dict[str, Any] = {}
    for name, (option, taken) in asked.items():
        if (value := getattr(args, option)) is None:
            continue
        if name not in METHODS[args.method].options:
            raise ValueError(f"--{option} is {_takers(name)}; got --method {args.method}.")
        options[name] = taken(value)
    return options


def _takers(name: str) -> str:
    """The methods that an option is for, as people read it."""
    return f"for --method {', '.join(one for one, method in METHODS.items() if name in method.options)}"


def _asked(view: View, args: argparse.Namespace) -> dict[str, Any]:
    """The class, or two, as `View.explain` takes them."""
    if args.rather_than is None:
        return {"target": args.target}
    return {"contrast": (view.best(1)[0] if args.target is None else args.target, args.rather_than)}


def _sheet(args: argparse.Namespace) -> None:
    output = Path(args.output)
    check_suffix(output, *PICTURES)
    view = open_explorer(args).open(args.photo, size=args.size)
    options = {"query": parse_query(args.query), "scale": args.scale, "cmap": args.cmap, "dark": args.dark}
    sheet = (
        view.layer_sheet(**options) if args.layer is None else view.head_sheet(block_of(args.layer, view), **options)
    )
    sheet.save(output)
    print(f"{sheet.width} x {sheet.height} pixels -> {output}")


def _export(args: argparse.Namespace) -> None:
    output = Path(args.html)
    check_suffix(output, ".html", ".htm", option="--html")
    page = open_explorer(args).open(args.photo, size=args.size).html()
    output.write_text(page, encoding="utf-8")
    print(f"{output.stat().st_size / 1e6:.1f} MB -> {output}")
