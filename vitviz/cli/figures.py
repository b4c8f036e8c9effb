"""Command that draws the path of a photograph through the model: figures."""

import argparse
from pathlib import Path

from vitviz.cli.options import add_photo, open_view
from vitviz.draw.colors import DrawError
from vitviz.draw.figures import FORMATS, NAMES, draw, save


def add_figures(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz figures`."""
    option = command.add_argument
    option("-o", "--output", default="figures", metavar="FOLDER", help="(default: %(default)s)")
    option("--only", nargs="+", default=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)} (default: all)")
    option("--format", choices=FORMATS, default="png", help="(default: png)")
    option("--dark", action="store_true", help="light text on a dark ground")
    option("--filters", type=int, default=24, help="how many feature maps are shown (default: 24)")
    add_photo(command)


def run_figures(args: argparse.Namespace) -> None:
    """Write the figures as files."""
    folder = Path(args.output)
    if unknown := [name for name in args.only if name not in NAMES]:
        raise DrawError(f"Expected --only among {', '.join(NAMES)}, got {', '.join(unknown):.100}. Choose some.")
    if folder.exists() and not folder.is_dir():
        raise DrawError(f"Expected -o as a folder or a new name, got the file {args.output!r}. Name another.")
    made = draw(open_view(args), args.only, photo=Path(args.photo).name, dark=args.dark, filters=args.filters)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in made.items():
        path = folder / f"{name}.{args.format}"
        save(figure, path)
        width, height = figure.get_size_inches()
        print(f"{width:.1f} × {height:.1f} inches -> {path}")
