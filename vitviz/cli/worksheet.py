"""Command that writes a worksheet: worksheet."""

from __future__ import annotations

from pathlib import Path

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, Names


@click.command(cls=Command)
@click.option("-o", "--output", type=PATH, default="worksheet.pdf", metavar="FILE", help="default: worksheet.pdf")
@click.option("--lang", type=Names("vitviz.web.languages", "LANGUAGES"), default="en", help="default: en")
@shared.photo
def worksheet(args: Args) -> None:
    """Write the lecture's exercises about a photograph as PDF, with room for answers, and solutions on the last pages.

    Chinese needs an installed font with Chinese characters.
    """
    from vitviz.export.worksheet import write_worksheet

    output = shared.output_path(args.output, ".pdf")
    view = shared.open_view(args)
    output.write_bytes(write_worksheet(view, args.lang, Path(args.photo).name))
    shared.note(args, f"{output.stat().st_size / 1e3:.0f} kB -> {output}")
    if args.json:
        shared.print_photo(args, view, output=str(output))
