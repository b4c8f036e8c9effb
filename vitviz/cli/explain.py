"""Commands that draw maps over a photograph: explain, sheet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from vitviz.cli import options as shared
from vitviz.cli.options import METHOD, Args, Command, LazyHelp
from vitviz.errors import VitvizError
from vitviz.writing import write

if TYPE_CHECKING:
    from PIL import Image

    from vitviz.attribution.inputs import Method
    from vitviz.heatmap import Heatmap
    from vitviz.view import View

# Option of a method in Python -> option of the command, its type, and help.
OPTIONS: dict[str, tuple[str, click.ParamType[Any], str]] = {
    "block": ("layer", click.INT, "layer, counted from 1 (default: the method's own)"),
    "head": ("head", click.STRING, "head, counted from 1, or mean (attention: or max, min; default: mean)"),
    "query": ("query", click.STRING, "cls, mean, a register's name, or a patch as ROW,COLUMN from 1"),
    "fuse": ("fuse", click.Choice(shared.FUSIONS), "how to combine the heads (default: mean)"),
    "discard": ("discard", click.FLOAT, "share of the weakest entries to discard (default: 0)"),
    "residual": ("residual", click.FLOAT, "weight of the skip connection (default: 0.5)"),
    "start": ("start", click.INT, "first layer, counted from 1 (default: 1)"),
}


def methods() -> Mapping[str, Method]:
    """Return the attribution methods by name."""
    from vitviz.attribution.registry import METHODS

    return METHODS


def _methods_with(option: str) -> str:
    """Return the names of the methods that have an option."""
    return ", ".join(name for name, method in methods().items() if option in method.options)


def _method_help(name: str, about: str) -> str:
    return f"{about}; for --method {_methods_with(name)}"


@click.command(cls=Command)
@shared.output(".png or .jpg: a picture; .npz or .csv: numbers", default="explained.png")
@click.option("--method", type=METHOD, help="default: gae, as on the page; rollout for a model without classes")
@shared.target
@click.option(
    "--set",
    multiple=True,
    metavar="NAME=VALUE",
    help="a method's option as in Python, with blocks and heads counted from 0; can be repeated",
)
@click.option("--test", is_flag=True, help="measure the faithfulness of the map (takes seconds)")
@shared.together(
    *(
        click.option(f"--{option}", cls=LazyHelp, type=kind, compute_help=partial(_method_help, name, about))
        for name, (option, kind, about) in OPTIONS.items()
    )
)
@click.option("--cmap", help="any matplotlib colour map (default: viridis; RdBu_r for signed maps)")
@click.option("--alpha", type=float, default=0.5, help="opacity of the map, 0..1 (default: 0.5)")
@click.option("--spotlight", is_flag=True, help="make the map more opaque where its value is higher")
@click.option(
    "--scale",
    type=click.Choice(["each", "full"]),
    default="each",
    help="each: outliers are clipped and marked; full: minimum to maximum (default: each)",
)
@click.option("--caption", is_flag=True, help="add a title, the share outside the picture, and a colour bar")
@click.option("--grid", is_flag=True, help="draw the patch grid")
@click.option("--smooth", is_flag=True, help="interpolate between patches")
@shared.photo
def explain(args: Args) -> None:
    """Draw a map over a photograph: attention, or evidence for a class or another target."""
    from vitviz.attribution.registry import default_methods
    from vitviz.draw.colorbar import describe_clipped
    from vitviz.export import numbers

    output = shared.output_path(args.output, *shared.PICTURES, *numbers.SUFFIXES)
    explorer = shared.open_explorer(args)
    view = explorer.open(shared.photograph(args.photo), size=args.size)
    args.method = args.method or default_methods(view.model)[0 if view.names_classes or args.target else -1]
    target = shared.target_of(args, explorer, view)
    heatmap = _heatmap(view, args, target)
    if output.suffix.lower() in numbers.SUFFIXES:
        numbers.save(view, heatmap, output, model=args.model, photo=args.photo)
    else:
        write(output, _picture(heatmap, args).save)
    mass, scale = heatmap.describe_prefix_mass(), heatmap.scale(args.scale)
    shared.note(args, f"{heatmap.title}{f' (outside the picture: {mass})' if mass else ''} -> {output}")
    if output.suffix.lower() not in numbers.SUFFIXES and scale.clipped:
        shared.note(args, describe_clipped(scale, heatmap.unit, float(abs(heatmap.values).max())))
    if heatmap.estimate:
        shared.note(args, heatmap.estimate)
    test = view.faithfulness(heatmap, **target)[0] if args.test else None
    if args.json:
        about = {"method": args.method, "title": heatmap.title, "output": str(output)}
        if test:
            areas = {"deletion": test.deletion.area, "insertion": test.insertion.area, "gain": test.gain}
            about["faithfulness"] = {"summary": test.describe(), "scale": test.scale, **areas}
        shared.print_photo(args, view, **about, values=heatmap.values, outside=dict(heatmap.prefix_mass))
    elif test:
        print(test.describe())


def _picture(heatmap: Heatmap, args: Args) -> Image.Image:
    names = ("alpha", "cmap", "scale", "spotlight", "grid", "smooth")
    options = {name: getattr(args, name) for name in names}
    if not args.caption:
        return heatmap.overlay(**options)
    from vitviz.draw.sheet import card

    return card(heatmap, side=max(heatmap.photo.size), gray=False, **options)


def _heatmap(view: View, args: Args, target: dict[str, Any]) -> Heatmap:
    from vitviz.attribution.registry import check_options

    method, options = methods()[args.method], _method_options(view, args)
    if not (method.class_specific or args.test) and (args.target or args.rather_than):
        raise VitvizError(
            f"Expected a class-specific method with --target or --rather-than, got {method.name}, whose map is the "
            "same for every target. Choose another method."
        )
    settings = dict(map(shared.parse_setting, args.set))
    check_options(method.name, settings)
    if repeated := sorted(set(settings) & set(options)):
        raise VitvizError(
            f"Expected one value for {repeated[0]}, got --{OPTIONS[repeated[0]][0]} and --set {repeated[0]}. Choose."
        )
    return view.explain(method.name, **(target if method.class_specific else {}), **options, **settings)


def _method_options(view: View, args: Args) -> dict[str, Any]:
    """Return the method's options from the command line, by their names in Python.

    Raises:
        VitvizError: for an option that this method does not have.
    """
    options: dict[str, Any] = {}
    for name, (option, _, _) in OPTIONS.items():
        if (value := getattr(args, option)) is None:
            continue
        if name not in methods()[args.method].options:
            names = _methods_with(name)
            raise VitvizError(f"Expected --{option} with --method {names}, got {args.method}. Leave out one of them.")
        if name in ("block", "start"):
            value = shared.parse_layer(value, view.trace.depth, f"--{option}")
        elif name == "head":
            value = shared.parse_head(value, view.trace.heads)
        elif name == "query":
            value = shared.parse_query(value, view.trace.grid)
        options[name] = value
    return options


@click.command(cls=Command)
@shared.output("the picture to write (default: sheet.png)", default="sheet.png")
@click.option("--layer", type=int, help="show the heads of this layer, counted from 1 (default: all layers)")
@click.option("--query", help="cls, mean, a register's name, or a patch as ROW,COLUMN from 1")
@click.option(
    "--scale",
    type=click.Choice(["shared", "each", "both"]),
    default="shared",
    help="shared by all maps, one for each, or both side by side (default: shared)",
)
@click.option("--width", type=int, metavar="PIXELS", help="width of the whole sheet, such as 1920 for a slide")
@click.option("--cmap", default="viridis", help="any matplotlib colour map (default: viridis)")
@click.option("--dark", is_flag=True, help="light text on a dark background")
@shared.photo
def sheet(args: Args) -> None:
    """Draw a contact sheet: every head of a layer, or every layer."""
    output = shared.output_path(args.output, *shared.PICTURES)
    view = shared.open_view(args)
    query = shared.parse_query(args.query, view.trace.grid)
    options = {"query": query, "scale": args.scale, "cmap": args.cmap, "dark": args.dark, "width": args.width}
    if args.layer is None:
        picture = view.layer_sheet(**options)
    else:
        picture = view.head_sheet(shared.parse_layer(args.layer, view.trace.depth), **options)
    write(output, picture.save)
    shared.note(args, f"{picture.width} × {picture.height} pixels -> {output}")
    if args.json:
        shared.print_photo(args, view, output=str(output))
