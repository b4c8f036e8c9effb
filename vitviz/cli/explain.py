"""Commands that look at a photograph: explain, sheet."""

import argparse
from typing import Any, get_args

from vitviz.attribution.attention import Fusion
from vitviz.attribution.registry import METHODS, check_options
from vitviz.cli import options as shared
from vitviz.heatmap import Heatmap
from vitviz.view import View

# Option of a method in Python -> option of the command, its type, and help.
OPTIONS: dict[str, tuple[str, type, str]] = {
    "block": ("layer", int, "layer, counted from 1 (default: the method's own)"),
    "head": ("head", str, "head, counted from 1, or mean (attention: or max, min; default: mean)"),
    "query": ("query", str, "cls, mean, a register's name, or a patch ROW,COLUMN from 1"),
    "fuse": ("fuse", str, "how heads become one (default: mean)"),
    "discard": ("discard", float, "share of the weakest entries to drop (default: 0)"),
    "residual": ("residual", float, "weight of the skip connection (default: 0.5)"),
    "start": ("start", int, "first layer, counted from 1 (default: 1)"),
}


def add_explain(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz explain`."""
    option = command.add_argument
    option("-o", "--output", default="explained.png", help=".png or .jpg for a picture, .npz for numbers")
    option("--method", choices=list(METHODS), default="rollout", help="(default: rollout)")
    option("--target", metavar="CLASS", help="the class to explain, a label or its number from 0 (default: the best)")
    option("--rather-than", metavar="CLASS", help="why the target and not this class")
    about = "an option of the method, as in Python: blocks and heads from 0; may be repeated"
    option("--set", action="append", default=[], metavar="NAME=VALUE", help=about)
    option("--test", action="store_true", help="measure the faithfulness of the map (takes seconds)")
    for name, (here, kind, about) in OPTIONS.items():
        choices = get_args(Fusion) if name == "fuse" else None
        option(f"--{here}", type=kind, choices=choices, help=f"{about}; for --method {', '.join(_methods_with(name))}")
    option("--cmap", help="any matplotlib color map (default: viridis; RdBu_r for maps of two signs)")
    option("--alpha", type=float, default=0.5, help="opacity of the map, 0..1 (default: 0.5)")
    option("--grid", action="store_true", help="draw the patch grid")
    option("--smooth", action="store_true", help="interpolate between patches")
    shared.add_photo(command)


def add_sheet(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz sheet`."""
    option = command.add_argument
    option("-o", "--output", default="sheet.png", help="the picture to write")
    option("--layer", type=int, help="show the heads of this layer, counted from 1 (default: all layers)")
    option("--query", default=None, help="cls, mean, a register's name, or a patch ROW,COLUMN from 1")
    option("--scale", choices=("shared", "each"), default="shared", help="one for all, or each its own")
    option("--cmap", default="viridis", help="any matplotlib color map (default: viridis)")
    option("--dark", action="store_true", help="light text on a dark ground")
    shared.add_photo(command)


def run_explain(args: argparse.Namespace) -> None:
    """Write an attribution map as a picture or as numbers."""
    output = shared.output_path(args.output, *shared.PICTURES, ".npz")
    view = shared.open_view(args)
    heatmap = _heatmap(view, args)
    if output.suffix.lower() == ".npz":
        heatmap.save(output)
    else:
        heatmap.overlay(alpha=args.alpha, cmap=args.cmap, grid=args.grid, smooth=args.smooth).save(output)
    mass = heatmap.describe_prefix_mass()
    print(f"{heatmap.title}{f' (outside the picture: {mass})' if mass else ''} -> {output}")
    if args.test:
        print(view.faithfulness(heatmap, **_target(view, args))[0].describe())


def _heatmap(view: View, args: argparse.Namespace) -> Heatmap:
    method, options = METHODS[args.method], _method_options(view, args)
    if not (method.class_specific or args.test) and (args.target or args.rather_than):
        raise ValueError(
            f"Expected a method for classes with --target or --rather-than, got {method.name}, which is the same for "
            "every class. Choose another method."
        )
    if method.name in ("attention", "rollout"):
        if args.set:
            got = f"--set {args.set[0]!r:.60}"
            raise ValueError(f"Expected options of {method.name} by their own names, got {got}. See --help.")
        return view.attention(**options) if method.name == "attention" else view.rollout(**options)
    settings = dict(map(shared.parse_setting, args.set))
    check_options(method.name, settings)
    if twice := sorted(set(settings) & set(options)):
        raise ValueError(
            f"Expected one value for {twice[0]}, got --{OPTIONS[twice[0]][0]} and --set {twice[0]}. Leave out one."
        )
    target = _target(view, args) if method.class_specific else {}
    return view.explain(method.name, **target, **options, **settings)


def _method_options(view: View, args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, by their names in Python.

    Raises:
        ValueError: for an option that this method does not have: a map of something else is worse than none.
    """
    options: dict[str, Any] = {}
    for name, (option, _, _) in OPTIONS.items():
        if (value := getattr(args, option)) is None:
            continue
        if name not in METHODS[args.method].options:
            methods = ", ".join(_methods_with(name))
            raise ValueError(f"Expected --{option} with --method {methods}, got {args.method}. Leave out one or other.")
        if name in ("block", "start"):
            value = shared.block_index(value, view, f"--{option}")
        elif name in ("head", "query"):
            value = shared.parse_head(value) if name == "head" else shared.parse_query(value)
        options[name] = value
    return options


def _methods_with(option: str) -> list[str]:
    """Return the names of the methods that have an option."""
    return [name for name, method in METHODS.items() if option in method.options]


def _target(view: View, args: argparse.Namespace) -> dict[str, Any]:
    """Return the class, or two to tell apart, as arguments of `View.explain`."""
    if args.rather_than is None:
        return {"target": args.target}
    return {"contrast": (view.best(1)[0] if args.target is None else args.target, args.rather_than)}


def run_sheet(args: argparse.Namespace) -> None:
    """Write a contact sheet of heads or layers."""
    output = shared.output_path(args.output, *shared.PICTURES)
    view = shared.open_view(args)
    options = {"query": shared.parse_query(args.query), "scale": args.scale, "cmap": args.cmap, "dark": args.dark}
    block = None if args.layer is None else shared.block_index(args.layer, view)
    picture = view.layer_sheet(**options) if block is None else view.head_sheet(block, **options)
    picture.save(output)
    print(f"{picture.width} x {picture.height} pixels -> {output}")
