"""Command that reproduces saved numbers: replay."""

from __future__ import annotations

import json

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command

DIFFERENT = 1  # exit code


@click.command(cls=Command)
@click.argument("file", type=PATH)
@click.option("--photo", type=PATH, help="path of the photograph (default: from the file, or beside it)")
@click.option("--model", type=PATH, metavar="SOURCE", help="path of the model (default: from the file)")
@shared.kind
@shared.printed
def replay(args: Args) -> None:
    """Reproduce the map of a .npz or .csv file and compare it (exit code 1 if it differs)."""
    from vitviz.export import numbers
    from vitviz.model.devices import device_named

    record, _ = numbers.read(args.file)
    args.model = args.model or record["model"]["source"]
    model = shared.load_model(args)
    result = numbers.replay(args.file, photo=args.photo, model=model, device=device_named(args.device))
    if args.json:
        answer = {"equal": result.equal, "identical": result.identical, "difference": result.difference}
        print(json.dumps({"file": args.file, "title": result.heatmap.title, **answer}, indent=2, ensure_ascii=False))
    else:
        shared.note(args, f"{result.heatmap.title}, {args.model}, {record['photo']['source']}")
        print(result.describe())
    if not result.equal:
        raise click.exceptions.Exit(DIFFERENT)
