"""Commands about a model as a whole: validate, summary, models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vitviz import rooms
from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, LazyHelp, Names, Several
from vitviz.errors import VitvizError
from vitviz.formatting import percent, text_table
from vitviz.writing import write_table

if TYPE_CHECKING:
    from vitviz.model.vit import ViT


def data_sets() -> str:
    """Return the names of the data sets."""
    from vitviz.images.datasets import NAMES

    return ", ".join(NAMES)


def _data() -> str:
    return f"the folder, with one subfolder per class or with train/ and val/; or {data_sets()}"


@click.command(cls=Command)
@click.option("--data", cls=LazyHelp, type=PATH, required=True, compute_help=_data)
@click.option("--root", type=PATH, metavar="FOLDER", help="folder of a named data set (default: the user's cache)")
@click.option("--limit", type=int, help="the maximum number of images, spread over the classes")
@click.option("--batch", type=int, default=32, help="batch size (default: 32)")
@click.option(
    "--size",
    "sizes",
    cls=Several,
    type=int,
    metavar="PIXELS",
    help="side of the model's input (default: its own); several give a table",
)
@click.option("--figure", type=PATH, metavar="FILE", help="plot accuracy against size as .png, .svg or .pdf")
@click.option(
    "--confusion",
    type=PATH,
    metavar="FILE",
    help="list the most frequent confusions, and write the matrix as .png or .csv",
)
@click.option(
    "--width",
    metavar="WIDTH",
    help="width of the figure: page, column or inches (default: page; for --confusion, set by its size)",
)
@shared.model
def validate(args: Args) -> None:
    """Measure accuracy on a folder of images or a named data set."""
    from vitviz.evaluation.accuracy import validate as measure

    if len(set(args.sizes)) > 1 or args.figure:
        _validate_sizes(args)
        return
    output = shared.output_path(args.confusion, ".png", ".csv", option="--confusion") if args.confusion else None
    explorer = shared.open_explorer(args)
    args.size = args.sizes[0] if args.sizes else None
    accuracy = measure(explorer.model, args.data, size=args.size, **_settings(args))
    mistakes = accuracy.mistakes() if output else []
    if args.json:
        classes = [
            {"label": label, "images": images, "top1": top1, "top5": top5}
            for label, images, top1, top5 in accuracy.per_class
        ]
        shared.print_json(
            args,
            shared.input_size(args, explorer),
            data={"folder": args.data, "images": accuracy.images},
            top1=accuracy.top1,
            top5=accuracy.top5,
            loss=accuracy.loss,
            classes=classes,
        )
    else:
        print(accuracy.table())
    if output is None:
        return
    labels, counts = accuracy.confusion()
    if output.suffix.lower() == ".csv":
        rows = ([label, *row] for label, row in zip(labels, counts.tolist(), strict=True))
        write_table(output, [["true / predicted", *labels], *rows])
    else:
        from vitviz.draw.figures import save
        from vitviz.draw.figures.confusion import confusion
        from vitviz.draw.figures.layouts import layout

        with layout(args.width or "page"):
            save(confusion(counts, labels, title=accuracy.model, fit=args.width is not None), output)
    lines = [f"{count:>7,}  {true} predicted as {predicted}" for true, predicted, count in mistakes]
    shared.note(args, "\n".join(["", *lines, f"-> {output}"]))


def _settings(args: Args) -> dict[str, Any]:
    return {"root": args.root, "batch_size": args.batch, "limit": args.limit, "progress": not args.quiet}


def _validate_sizes(args: Args) -> None:
    """Measure accuracy at several sizes, print one table, and draw it."""
    from vitviz.evaluation.accuracy import validate as measure

    if args.confusion or len(set(args.sizes)) < 2:
        got = "--confusion" if args.confusion else "one or none"
        raise VitvizError(f"Expected several sizes, for --figure and without --confusion, got {got}. Change --size.")
    output = shared.output_path(args.figure, ".png", ".svg", ".pdf", option="--figure") if args.figure else None
    explorer = shared.open_explorer(args)
    patch, own = explorer.model.config.patch_size, explorer.preprocess
    multiple = explorer.model.config.size_multiple
    # Checks all sizes before any work; several may be rounded to the same input.
    inputs = list(dict.fromkeys(own.at(size, multiple) for size in sorted({*args.sizes})))
    results = {}
    for preprocess in inputs:
        side = max(preprocess.height, preprocess.width)
        results[side] = measure(explorer.model, args.data, size=side, **_settings(args))
    rows = [
        {
            "input_size": [preprocess.height, preprocess.width],
            "patches": preprocess.height // patch * (preprocess.width // patch),
            "top1": result.top1, "top5": result.top5, "loss": result.loss, "seconds": result.seconds,
        }
        for preprocess, result in zip(inputs, results.values(), strict=True)
    ]  # fmt: skip
    first = next(iter(results.values()))
    if args.json:
        data = {"folder": args.data, "images": first.images}
        shared.print_json(args, (own.height, own.width), data=data, sizes=rows)
    else:
        print(f"{first.model}: {first.images:,} images; trained at {own.height} × {own.width} pixels", end="\n\n")
        print(sizes_table(rows))
    if output is not None:
        from vitviz.draw.figures import save
        from vitviz.draw.figures.layouts import layout
        from vitviz.draw.figures.sizes import accuracy_by_size

        with layout(args.width or "page"):
            save(accuracy_by_size(results, own=max(own.height, own.width)), output)
        shared.note(args, f"-> {output}")


def sizes_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the accuracy at each size as a table for a terminal."""
    cells = [
        (
            " x ".join(map(str, row["input_size"])), f"{row['patches']:,}", percent(row["top1"], 4),
            percent(row["top5"], 4), f"{row['loss']:.4f}", f"{row['seconds']:.1f} s",
        )
        for row in rows
    ]  # fmt: skip
    return text_table([("input", "patches", "top-1", "top-5", "loss", "time"), *cells])


@click.command(cls=Command)
@click.option(
    "--preset",
    type=Names("vitviz.model.config", "PRESETS"),
    help="a published size without weights instead of a model, at 224 pixels and with 1,000 classes",
)
@click.option("--batch", type=click.IntRange(1), default=1, help="batch size for shapes and totals (default: 1)")
@click.option(
    "--unfreeze-last",
    type=int,
    metavar="N",
    help="count as trainable only the parameters that vitviz train --unfreeze-last N trains",
)
@shared.model
def summary(args: Args) -> None:
    """List the modules of a model: shapes, parameters, trainable parameters, multiply-adds, sizes in MB."""
    from vitviz.model.summary import rows, summary, totals

    model = _without_weights(args.preset) if args.preset else shared.load_model(args)
    if args.unfreeze_last is not None:
        rooms.load("training", "network").freeze(model, args.unfreeze_last)
    if not args.json:
        print(summary(model, args.batch))
        return
    modules = [
        {
            "name": row.name,
            "kind": row.kind,
            "input": row.input,
            "output": row.shape,
            "parameters": row.parameters,
            "trainable": row.trainable,
            "multiply_adds": row.multiply_adds,
        }
        for row in rows(model, args.batch)
    ]
    args.model = args.preset or args.model
    shared.print_json(args, model.config.image_size, **totals(model, args.batch), modules=modules)


def _without_weights(name: str) -> ViT:
    """Return a model of a published size on the meta device."""
    import torch

    from vitviz.model.config import preset
    from vitviz.model.vit import ViT

    with torch.device("meta"):
        return ViT(preset(name))


@click.command(cls=Command)
@shared.printed
def models(args: Args) -> None:
    """List the bundled models and the catalog."""
    from vitviz.weights.catalog import CATALOG
    from vitviz.weights.zoo import bundled

    if args.json:
        names = {"model": "source", "bytes": "size", "licence": "licence", "title": "title"}
        published = [{key: getattr(entry, name) for key, name in names.items()} for entry in CATALOG]
        print(json.dumps({"bundled": bundled(), "published": published}, indent=2, ensure_ascii=False))
        return
    print("\n".join(bundled()))
    print("\nPublished models, downloaded when first used:")
    width = max(len(entry.source) for entry in CATALOG)
    for entry in CATALOG:
        facts = f"{entry.size / 1e6:4.0f} MB  {entry.licence:<18}  {entry.title}: {entry.known_for}"
        print(f"{entry.source:<{width}}  {facts}")
