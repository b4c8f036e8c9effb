"""Look at a photograph: attention and attribution over it, sheets, the explorer as a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vitviz.commands.options import (
    PICTURES,
    Commands,
    add_model,
    add_size,
    block_of,
    check_suffix,
    open_explorer,
    parse_class,
    parse_head,
    parse_query,
    parse_setting,
)
from vitviz.explain.methods import METHODS
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
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the method; may be repeated"
    )
    command.add_argument("--test", action="store_true", help="say whether the map is to be believed (takes seconds)")
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
    query = parse_query(args.query)
    if args.method in ("attention", "rollout"):
        if args.set:
            raise ValueError(f"--set: {args.method} has options of its own, see --help; got {args.set[0]!r}.")
        if args.method == "attention":
            return view.attention(block_of(args.layer, view), parse_head(args.head), query)
        options = {"fuse": args.fuse, "discard": args.discard, "residual": args.residual, "start": args.start - 1}
        return view.rollout(query, **options)
    asked = _asked(view, args) if METHODS[args.method].class_specific else {}
    return view.explain(args.method, **asked, **dict(parse_setting(text) for text in args.set))


def _asked(view: View, args: argparse.Namespace) -> dict[str, Any]:
    """The class, or two, as `View.explain` takes them."""
    target, against = parse_class(args.target), parse_class(args.rather_than)
    if against is None:
        return {"target": target}
    return {"contrast": (view.best(1)[0] if target is None else target, against)}


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
