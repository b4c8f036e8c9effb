"""Commands that analyse a model: heads, lens, circuit, evaluate, arena."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, LazyHelp, Names, Several
from vitviz.errors import VitvizError
from vitviz.formatting import counted, text_table
from vitviz.formatting import output as format_output
from vitviz.outputs import REGRESSION, SINGLE
from vitviz.writing import write, write_arrays

PLURALS = {"probability": "probabilities", "logit": "logits", "cosine": "cosines", "value": "values"}

if TYPE_CHECKING:
    from vitviz.analysis.head_statistics import HeadStatistics
    from vitviz.evaluation.standings import Standings
    from vitviz.evaluation.table import Evaluation
    from vitviz.explorer import Explorer


@click.command(cls=Command)
@click.argument("photo", type=PATH, metavar="FILE_OR_FOLDER")
@click.option(
    "--statistics",
    cls=Several,
    type=Names("vitviz.analysis.head_statistics", "STATISTICS", "all"),
    help="statistics to compute, or all (default: those that need only rows of attention)",
)
@click.option("--query", help="the query token (default: the mean over all patches)")
@shared.target
@click.option("--limit", type=int, help="for a folder: the maximum number of images, spread over its subfolders")
@shared.output("write a table, with layers and heads counted from 0", "FILE.csv")
@shared.size
@shared.model
def heads(args: Args) -> None:
    """Measure the attention heads, on a photograph or over a folder."""
    from vitviz.analysis.head_statistics import STATISTICS, folder_statistics

    output = shared.output_path(args.output, ".csv") if args.output else None
    names = tuple(STATISTICS) if "all" in args.statistics else args.statistics or None
    explorer = shared.open_explorer(args)
    size = shared.input_size(args, explorer)
    if Path(args.photo).is_dir():
        grid = None if explorer.preprocess.mode == "native" else explorer.model.config.grid_of(*size)
        query = shared.parse_query(args.query, grid)
        options = {"names": names, "query": query, "limit": args.limit, "size": args.size}
        options |= shared.target_of(args, explorer, None)
        statistics = folder_statistics(explorer.model, args.photo, **options, progress=not args.quiet)
        record = {"data": {"folder": args.photo, "images": statistics.images}, "heads": _heads(statistics)}
    else:
        view = explorer.open(shared.photograph(args.photo), size=args.size)
        query = shared.parse_query(args.query, view.trace.grid)
        statistics = view.heads(names, query=query, **shared.target_of(args, explorer, view))
        record = {"images": [shared.photo_record(args.photo, view, heads=_heads(statistics))]}
    if statistics.target:
        record |= {"target": statistics.target, "scale": statistics.scale}
    if output:
        statistics.save(output)
        sizes = {"head": len(statistics.rows()), "statistic": len(statistics.present), "image": statistics.images}
        shared.note(args, f"{', '.join(counted(size, noun) for noun, size in sizes.items())} -> {output}")
    if args.json:
        shared.print_json(args, size, **record)
    elif not output:
        print(statistics.table())


def _heads(statistics: HeadStatistics) -> list[dict[str, Any]]:
    """Return the JSON entries of all heads; layers and heads count from 1."""
    means = statistics.values
    return [
        {"layer": block + 1, "head": head + 1, **{name: means[name][row, head] for name in statistics.present}}
        for row, (block, count) in enumerate(zip(statistics.blocks, statistics.head_counts, strict=True))
        for head in range(count)
    ]


@click.command(cls=Command)
@click.option("-k", type=int, default=3, help="number of classes (default: 3)")
@shared.output("write the probabilities of the image and of each patch, and the patches' colours", "FILE.npz")
@shared.target
@shared.photo
def lens(args: Args) -> None:
    """Show the classifier's prediction, or a target, after each layer (logit lens)."""
    import numpy as np

    output = shared.output_path(args.output, ".npz") if args.output else None
    if args.k < 1:
        raise VitvizError(f"Expected -k of at least 1, got {args.k}. Ask for more classes.")
    explorer = shared.open_explorer(args)
    view = explorer.open(shared.photograph(args.photo), size=args.size)
    named = args.target is not None or args.rather_than is not None
    lens = view.lens(**shared.target_of(args, explorer, view)) if named else view.lens(view.best(args.k))
    readings, unit = lens.readings, PLURALS[lens.scale]  # (L, K)
    problem_type = SINGLE if lens.scale == "probability" else REGRESSION
    if args.json:
        layers = [
            {"layer": block + 1, unit: dict(zip(lens.names, row, strict=True))}
            for block, row in zip(lens.blocks, readings.tolist(), strict=True)
        ]
        shared.print_photo(args, view, layers=layers)
    else:
        numbered = zip(lens.blocks, readings, strict=True)
        rows = [[str(block + 1), *(format_output(value, problem_type) for value in row)] for block, row in numbered]
        about = "" if lens.scale == "probability" else f" ({lens.scale})"
        print(text_table([["layer", *(f"{name}{about}" for name in lens.names)], *rows], left=0))
    if output:
        colors = view.token_pca()
        arrays = {
            "layers": np.array(lens.blocks) + 1,
            "names": np.array(lens.names),
            unit: readings,  # (L, K)
            "patches": lens.patches,  # (L, gh, gw, K)
            "colors": colors.colors,  # (L, gh, gw, 3)
            "explained": colors.explained,  # (L, 3)
        }
        write_arrays(output, arrays)
        shared.note(args, f"-> {output}")


@click.command(cls=Command)
@click.argument("folder", type=PATH, metavar="FOLDER")
@shared.target
@click.option("--keep", type=float, default=0.8, help="share of the score to keep (default: 0.8)")
@click.option("--limit", type=int, default=40, help="the maximum number of images, spread over its subfolders")
@click.option("--seed", type=int, default=0, help="seed of the random sets (default: 0)")
@shared.output("write the circuit as a table", "FILE.csv")
@shared.model
def circuit(args: Args) -> None:
    """Find a small set of heads and MLPs that keeps most of a score, over a folder."""
    from vitviz.analysis.circuits import circuit as find

    output = shared.output_path(args.output, ".csv") if args.output else None
    explorer = shared.open_explorer(args)
    options = {"keep": args.keep, "limit": args.limit, "seed": args.seed, "progress": not args.quiet}
    own_size = Args(**vars(args), size=None)
    found = find(explorer.model, args.folder, **options, **shared.target_of(own_size, explorer, None))
    names = ("faithfulness", "completeness", "random_faithfulness", "random_completeness")
    if args.json:
        parts = [{"layer": block + 1, "head": head + 1} for block, head in found.heads]
        parts += [{"layer": block + 1, "mlp": True} for block in found.mlps]
        about = {name: vars(getattr(found, name)) for name in names} | {"target": found.target, "parts": parts}
        data = {"folder": args.folder, "images": found.found + found.measured}
        shared.print_json(args, explorer.model.config.image_size, data=data, circuit=about)
    else:
        rows = [[str(block + 1), str(head + 1)] for block, head in found.heads]
        print(text_table([["layer", "part"], *rows, *([str(block + 1), "MLP"] for block in found.mlps)], left=0))
        print(found.describe())
    if output:
        found.save(output)
        shared.note(args, f"{counted(found.size, 'part')} -> {output}")


AIM = "class to explain: that of the subfolder, or the predicted one (default: true if there are subfolders)"
measured = shared.together(
    click.option("--data", type=PATH, required=True, help="the folder, with one subfolder per class, or no labels"),
    click.option("--aim", type=click.Choice(["true", "predicted"]), help=AIM),
    click.option("--seed", type=int, default=0, help="seed of all random choices (default: 0)"),
    click.option("--set", multiple=True, metavar="METHOD.NAME=VALUE", help="an option of a method; can be repeated"),
    shared.model,
)
"""Options that evaluate and arena share."""


@click.command(cls=Command)
@click.option("--methods", cls=Several, metavar="NAME", default=["all"], help="names, or all (default: all)")
@click.option("--limit", type=int, help="the maximum number of images, spread over the classes")
@click.option("--out", type=PATH, metavar="FILE.jsonl", help="append each result, and continue from existing ones")
@click.option("--table", type=PATH, metavar="FILE", help="write the table as .md or .csv")
@measured
def evaluate(args: Args) -> None:
    """Measure the faithfulness of attribution methods over a folder."""
    from vitviz.evaluation.evaluate import evaluate as measure
    from vitviz.evaluation.records import processes

    output = shared.output_path(args.table, ".md", ".csv", option="--table") if args.table else None
    out = shared.output_path(args.out, option="--out") if args.out else None
    methods = "all" if args.methods == ("all",) else args.methods
    explorer, settings = _measuring(args, methods)
    evaluation = measure(explorer.model, args.data, methods, limit=args.limit, out=out, **settings)
    if processes()[0] > 0:
        return  # under torchrun all processes have the table, and only the first prints it
    rows = [{"method": row.method, **row.means, "errors": dict(row.errors)} for row in evaluation.rows]
    _print_ranking(args, explorer, evaluation, evaluation.images, rows)
    if output:
        text = evaluation.csv() if output.suffix.lower() == ".csv" else evaluation.markdown()
        write(output, text + "\n")


def _limit_help() -> str:
    from vitviz.evaluation.arena import LIMIT

    return f"the number of photographs, spread over the classes (default: {LIMIT})"


@click.command(cls=Command)
@click.option("--methods", cls=Several, metavar="NAME", help="names (default: all that are not slow)")
@click.option("--limit", cls=LazyHelp, type=int, compute_help=_limit_help)
@shared.output("write arena.jsonl, .json, .md, .csv and .png, and continue arena.jsonl", "FOLDER")
@measured
def arena(args: Args) -> None:
    """Rank attribution methods for a model, by localization of known evidence and by deletion and insertion.

    Prints a table; takes about 450 forward passes for each photograph. With the model's folder as -o, the best method
    becomes the default for this model.
    """
    from vitviz.evaluation.arena import LIMIT
    from vitviz.evaluation.arena import arena as measure
    from vitviz.evaluation.records import processes
    from vitviz.weights.checkpoint import ARENA

    folder = shared.output_path(args.output, folder=True) if args.output else None
    explorer, settings = _measuring(args, args.methods or "all")
    rows = folder and folder / Path(ARENA).with_suffix(".jsonl")
    limit = LIMIT if args.limit is None else args.limit
    result = measure(explorer.model, args.data, args.methods or None, limit=limit, out=rows, **settings)
    if processes()[0] > 0:
        return
    if folder:
        from vitviz.draw.figures import save
        from vitviz.draw.figures.standings import draw

        path = folder / ARENA
        result.save(path)
        write(path.with_suffix(".md"), result.markdown() + "\n")
        write(path.with_suffix(".csv"), result.csv() + "\n")
        save(draw(result), path.with_suffix(".png"))
        shared.note(args, f"{path.stem}.jsonl, .json, .md, .csv, .png -> {folder}")
    methods = [{"method": row.method, "low": row.low, "high": row.high, **row.numbers} for row in result.rows]
    _print_ranking(args, explorer, result, result.photographs, methods)


def _measuring(args: Args, methods: str | Sequence[str]) -> tuple[Explorer, dict[str, Any]]:
    """Return the explorer, and the values of the options that `measured` adds."""
    options = _method_settings(args.set, methods)
    settings = {"seed": args.seed, "target": args.aim, "options": options, "progress": not args.quiet}
    return shared.open_explorer(args), settings


def _method_settings(texts: tuple[str, ...], methods: str | Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse the method options of `--set`."""
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, value = shared.parse_setting(text)
        method, dot, option = name.partition(".")
        if not (method and dot and option):
            raise VitvizError(f"Expected --set METHOD.NAME=VALUE, got {text!r}. Write it as rollout.fuse=max.")
        if methods != "all" and method not in methods:
            raise VitvizError(f"Expected --set of one of the --methods, got {text!r}. Add the method or leave it out.")
        options.setdefault(method, {})[option] = value
    return options


def _print_ranking(
    args: Args, explorer: Explorer, result: Evaluation | Standings, images: int, methods: list[dict[str, Any]]
) -> None:
    """Print a ranking of methods as a table, or as JSON with these entries of the methods, best first."""
    if not args.json:
        print(result.table())
        return
    record = {"summary": result.describe(), "methods": methods, "left_out": dict(result.left_out)}
    size = explorer.preprocess.height, explorer.preprocess.width
    shared.print_json(args, size, data={"folder": args.data, "images": images}, **record)
