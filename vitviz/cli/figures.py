"""Command that draws figures for print: those of one photograph, and figures 6 and 7 of the ViT paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitviz import rooms
from vitviz.cli import options as shared
from vitviz.cli.options import METHOD, PATH, Args, Command, Names, Several
from vitviz.errors import VitvizError

if TYPE_CHECKING:
    from vitviz.explorer import Explorer


@click.command(cls=Command)
@click.option("-o", "--output", type=PATH, default="figures", metavar="FOLDER", help="output folder (default: figures)")
@click.option(
    "--kind",
    cls=Several,
    type=Names("vitviz.draw.figures", "ALL_KINDS"),
    help="figures to draw, see above (default: path)",
)
@click.option("--only", cls=Several, type=Names("vitviz.draw.figures", "NAMES"), help="for path: only these figures")
@shared.place
@click.option("--method", type=METHOD, help="method for overlay and curves")
@click.option("--target", metavar="CLASS", help="a label, or its index from 0 (default: the most probable)")
@click.option(
    "--format", type=Names("vitviz.draw.figures", "FORMATS"), default="png", help="file format (default: png)"
)
@click.option("--dark", is_flag=True, help="light text on a dark background")
@click.option("--filters", type=int, default=24, help="for path: number of feature maps (default: 24)")
@click.option(
    "--filter", "chosen", cls=Several, type=int, metavar="N", help="for path: draw these feature maps, counted from 1"
)
@click.option("--width", default="page", metavar="WIDTH", help="page, column or inches (default: page, 6.3 inches)")
@click.option("--bare", is_flag=True, help="print title and caption to the terminal, not in the figure")
@click.option("--limit", type=int, help="for folders: the maximum number of photographs")
@shared.photos
def figures(args: Args) -> None:
    """Draw figures of a model for print.

    \b
    path            the path of a photograph through the model (--only: some of its figures)
    overlay         one map
    heads           every head of every layer
    layers          each layer
    components      the patches of each layer, colored by principal components
    matrix          the full attention matrix of one head
    methods         attribution methods side by side, with their tests
    prediction      the photograph with its prediction
    curves          insertion and deletion
    lens            the prediction after each layer
    decomposition   contribution of each head and MLP to the logit
    statistics      attention distance, entropy and share on CLS of every head
    rollout-sheet   several photographs and their rollout maps: figure 6 of the ViT paper
    inside          filters, positions, attention distance by depth, for a photograph or a folder: figure 7
    """  # noqa: D301 - click keeps the lines after a backspace as they are
    from vitviz.draw.figures import NAMES, PAPER, save
    from vitviz.draw.figures.layouts import layout

    folder = shared.output_path(args.output, folder=True)
    kinds = args.kind or ("path",)
    if args.only and "path" not in kinds:
        raise VitvizError(f"Expected --only with --kind path, got {', '.join(kinds)}. Leave out one of them.")
    names = (*((args.only or NAMES) if "path" in kinds else ()), *kinds)
    if {*kinds} - {"rollout-sheet"}:
        single_path(args)  # refuses several photographs before any work
    paper = {name: rooms.load("paper", "command").FIGURES[name] for name in kinds if name in PAPER}
    explorer = shared.open_explorer(args)
    size = shared.input_size(args, explorer)
    with layout(args.width, bare=args.bare):
        drawn = _photo_figures(args, explorer, names)
        drawn |= {name: figure(args, explorer) for name, figure in paper.items()}
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.{args.format}" for name in drawn}
    for name, figure in drawn.items():
        save(figure, paths[name])
        width, height = figure.get_size_inches()
        caption = f"{figure.get_label()}\n" if args.bare else ""
        shared.note(args, f"{caption}{width:.2f} × {height:.2f} inches -> {paths[name]}")
    if args.json:
        outputs = {name: str(path) for name, path in paths.items()}
        images = [{"photo": photo, "input_size": size, "outputs": outputs} for photo in args.photos]
        shared.print_json(args, size, images=images)


def _photo_figures(args: Args, explorer: Explorer, names: tuple[str, ...]) -> dict[str, Any]:
    """Draw the figures of one photograph."""
    from vitviz.draw.figures import KINDS, NAMES, draw

    only = [name for name in names if name in (*NAMES, *KINDS)]
    if not only:
        return {}
    view = explorer.open(shared.photograph(single_path(args)), size=args.size)
    map_options = shared.place_of(args, view.trace.depth, view.trace.heads, view.trace.grid)
    map_options |= {"target": shared.parse_target(args.target, explorer, args.size)}
    if args.method is not None:
        map_options["method"] = args.method
    filters = [number - 1 for number in args.chosen] if args.chosen else args.filters
    options = {"photo": Path(single_path(args)).name, "dark": args.dark, "filters": filters}
    return draw(view, only, width=args.width, bare=args.bare, **options, **map_options)


def single_path(args: Args) -> str:
    """Return the single photograph or folder."""
    if len(args.photos) != 1:
        raise VitvizError(
            f"Expected one photograph or folder, got {len(args.photos)}. Only rollout-sheet takes several."
        )
    return str(args.photos[0])
