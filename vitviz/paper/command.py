"""Figures 6 and 7 of the ViT paper for the command `figures`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitviz.analysis.head_statistics import folder_statistics
from vitviz.cli import options as shared
from vitviz.cli.figures import single_path
from vitviz.cli.options import Args
from vitviz.cli.predict import unreadable
from vitviz.images.folders import find_images, spread
from vitviz.paper import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitviz.explorer import Explorer


def rollout_sheet(args: Args, explorer: Explorer) -> Figure:
    """Draw figure 6 of the ViT paper."""
    files = _files(args)
    opened = explorer.open_many(files, size=args.size, progress=not args.quiet)
    views = [*opened]
    if opened.errors:
        raise unreadable(opened.errors, len(files))
    return figures.rollout_sheet(views, dark=args.dark)


def inside(args: Args, explorer: Explorer) -> Figure:
    """Draw figure 7 of the ViT paper."""
    path = single_path(args)
    if Path(path).is_dir():
        options = {"names": ["distance"], "limit": args.limit, "size": args.size, "progress": not args.quiet}
        statistics = folder_statistics(explorer.model, path, **options)
    else:
        statistics = explorer.open(shared.photograph(path), size=args.size).heads(["distance"])
    return figures.inside(explorer.model, statistics, photo=Path(path).name, dark=args.dark)


FIGURES = {"rollout-sheet": rollout_sheet, "inside": inside}


def _files(args: Args) -> list[Path]:
    """Return the photographs, including those in folders."""
    paths = []
    for path in map(Path, args.photos):
        paths += [file for file, _ in spread(find_images(path), args.limit)] if path.is_dir() else [path]
    return paths
