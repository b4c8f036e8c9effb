"""Figures of the path that a picture takes, as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from vitviz.commands.options import Commands, add_model, add_size, open_explorer
from vitviz.render.figures import FORMATS, NAMES, draw, encode
from vitviz.render.figures.about import FigureError


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Figures."""
    command = commands.add_parser("figures", help="draw the path a photograph takes through the model, for print")
    command.add_argument("photo", help="an image file")
    command.add_argument("-o", "--output", default="figures", metavar="FOLDER", help="(default: %(default)s)")
    command.add_argument(
        "--only", nargs="+", default=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)} (default: all)"
    )
    command.add_argument("--format", choices=FORMATS, default="png", help="(default: png)")
    command.add_argument("--dark", action="store_true", help="light words on a dark ground")
    command.add_argument("--filters", type=int, default=24, help="how many feature maps are shown (default: 24)")
    add_size(command)
    add_model(command)
    command.set_defaults(run=_figures)


def _figures(args: argparse.Namespace) -> None:
    folder = Path(args.output)
    if unknown := [name for name in args.only if name not in NAMES]:
        raise FigureError(f"--only: expected names among {', '.join(NAMES)}; got {', '.join(unknown)}.")
    if folder.exists() and not folder.is_dir():
        raise FigureError(f"-o: expected a folder, or a name that is free; {args.output!r} is a file.")
    view = open_explorer(args).open(args.photo, size=args.size)
    made = draw(view, args.only, photo=Path(args.photo).name, dark=args.dark, filters=args.filters)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in made.items():
        path = folder / f"{name}.{args.format}"
        path.write_bytes(encode(figure, args.format))
        wide, high = figure.get_size_inches()
        print(f"{wide:.1f} × {high:.1f} inches -> {path}")
