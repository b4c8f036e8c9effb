"""Command that makes films: film."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, Several
from vitviz.errors import VitvizError

if TYPE_CHECKING:
    from vitviz.film.film import Film


@click.command(cls=Command)
@click.option("-o", "--output", type=PATH, default="film.gif", help=".gif, .webp or .mp4 (default: film.gif)")
@click.option(
    "--over",
    type=click.Choice(["layers", "heads", "query"]),
    default="layers",
    help="what changes: layers, the heads of --layer, or a moving patch (default: layers)",
)
@click.option(
    "--models",
    cls=Several,
    type=PATH,
    metavar="SOURCE",
    help="run over these models, such as the checkpoints of a training run",
)
@shared.place
@click.option(
    "--show",
    type=click.Choice(["attention", "similarity"]),
    default="attention",
    help="for a clip: attention, or similarity to the patch --query of the first frame (default: attention)",
)
@click.option(
    "--frames",
    type=int,
    default=48,
    help="for a clip: the maximum number of frames, spread over the clip (default: 48)",
)
@click.option("--seconds", type=float, default=0.5, help="duration of a frame (default: 0.5)")
@click.option("--dark", is_flag=True, help="light text on a dark background")
@shared.photo
def film(args: Args) -> None:
    """Make a film of attention: over layers, heads, a moving patch, models, or the frames of a clip."""
    from vitviz.film.film import SUFFIXES
    from vitviz.images.video import is_clip

    output = shared.output_path(args.output, *SUFFIXES)
    clip = is_clip(args.photo)
    if not clip and args.show != "attention":
        raise VitvizError(f"Expected a video clip with --show {args.show}, got {args.photo!r}. Give a clip.")
    if clip and args.models:
        raise VitvizError(f"Expected a photograph with --models, got the clip {args.photo!r}. Leave out one of them.")
    result = _film_clip(args) if clip else _film_models(args) if args.models else _film_photo(args)
    result.save(output, seconds=args.seconds, dark=args.dark)
    size = f"{output.stat().st_size / 1e6:.1f} MB"
    shared.note(args, f"{result.title}: {len(result.maps)} frames, {size} -> {output}")
    if args.json:
        about = {"title": result.title, "labels": result.labels, "scale": [result.scale.vmin, result.scale.vmax]}
        about |= {"photo": args.photo, "output": str(output), "values": [heatmap.values for heatmap in result.maps]}
        shared.print_json(args, result.maps[0].geometry.input, images=[about])


def _film_photo(args: Args) -> Film:
    from vitviz.film.film import film_of

    view = shared.open_view(args)
    return film_of(view, args.over, **shared.place_of(args, view.trace.depth, view.trace.heads, view.trace.grid))


def _film_clip(args: Args) -> Film:
    from vitviz.film.film import film_of_clip
    from vitviz.images.video import count_frames
    from vitviz.progress import bar

    total = min(args.frames, count_frames(args.photo))  # refuses other files before loading a model
    explorer = shared.open_explorer(args)
    config = explorer.model.config
    grid = None if explorer.preprocess.mode == "native" else config.grid_of(*shared.input_size(args, explorer))
    options = {"show": args.show, "frames": args.frames, "size": args.size}
    with bar(total, unit=" frames", leave=False, show=not args.quiet) as counted:
        position = shared.place_of(args, config.depth, config.heads, grid)
        return film_of_clip(explorer, args.photo, **options, **position, opened=counted.update)


def _film_models(args: Args) -> Film:
    from vitviz.film.film import film_over_models
    from vitviz.progress import bar
    from vitviz.weights.zoo import load

    first = load(args.models[0]).config
    names = _labels(args.models)
    with bar(len(args.models), unit=" models", leave=False, show=not args.quiet) as counted:
        position = shared.place_of(args, first.depth, first.heads, None)
        photo = shared.photograph(args.photo)
        return film_over_models(args.models, photo, size=args.size, names=names, **position, opened=counted.update)


def _labels(models: tuple[str, ...]) -> list[str]:
    """Return the last part of each path, with its folder if names repeat."""
    names = [Path(path).name for path in models]
    return [
        name if names.count(name) == 1 else "/".join(Path(path).parts[-2:])
        for path, name in zip(models, names, strict=True)
    ]
