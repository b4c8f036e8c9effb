"""Command that finds small sets of patches on which a prediction rests: evidence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, LazyHelp
from vitviz.writing import write

if TYPE_CHECKING:
    from vitviz.evaluation.evidence import Evidence, PatchSet
    from vitviz.view import View

OUTPUT = "write the photograph with only the first set visible; NAME-2, ... for further sets, NAME-without for the last"


def _sets_help() -> str:
    from vitviz.evaluation.evidence import SETS

    return f"maximum number of sets without a common patch (default: {SETS})"


@click.command(cls=Command)
@click.option("-o", "--output", type=PATH, metavar="FILE", help=OUTPUT)
@click.option("--keep", type=float, help="keep at least this probability (default: stay the predicted class)")
@click.option("--sets", cls=LazyHelp, type=int, compute_help=_sets_help)
@click.option("--seconds", type=float, help="stop after this time, with sets that are not yet minimal")
@shared.target
@shared.photo
def evidence(args: Args) -> None:
    """Find a few patches that alone keep the prediction, and a few whose removal changes it."""
    output = shared.output_path(args.output, *shared.PICTURES) if args.output else None
    explorer = shared.open_explorer(args)
    view = explorer.open(shared.photograph(args.photo), size=args.size)
    options = {name: value for name in ("keep", "sets", "seconds") if (value := getattr(args, name)) is not None}
    found = view.evidence(**shared.target_of(args, explorer, view), **options)
    if output:
        _write(view, found, output)
        shared.note(args, f"-> {output}")
    if args.json:
        about = {name: getattr(found, name) for name in ("target", "keep", "probability", "finished")}
        about |= {"summary": found.describe(), "sets": [_record(each) for each in found.sets]}
        about["change"] = None if found.change is None else _record(found.change)
        shared.print_photo(args, view, **about)
    else:
        print(found.describe())


def _write(view: View, found: Evidence, output: Path) -> None:
    """Write a picture of each set, and one without the patches of `change`."""
    for number, each in enumerate(found.sets, 1):
        path = output if number == 1 else output.with_stem(f"{output.stem}-{number}")
        write(path, view.show_patches(each.patches).save)
    if found.change is not None:
        path = output.with_stem(f"{output.stem}-without")
        write(path, view.show_patches(found.change.patches, without=True).save)


def _record(found: PatchSet) -> dict[str, Any]:
    """Return the JSON entry of a set; rows and columns count from 1."""
    certificate = found.certificate
    return {
        "patches": [[row + 1, column + 1] for row, column in found.patches],
        "probability": found.probability,
        "answer": found.answer,
        "minimal": found.minimal,
        "certificate": None if certificate is None else vars(certificate),
    }
