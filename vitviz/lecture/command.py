"""Command that writes the lecture's texts for lecturers to change: lecture."""

from __future__ import annotations

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, Names, Several


@click.command(cls=Command)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--lang", cls=Several, type=Names("vitviz.web.languages", "LANGUAGES"), default=("en",), help="default: en"
)
@click.option("--steps", cls=Several, type=Names("vitviz.lecture.texts", "STEPS"), help="default: all")
@shared.quiet
def lecture(args: Args) -> None:
    """Write the texts of the lecture to a folder, one Markdown file for each step, for you to change.

    `vitviz app --lecture DIR` and `vitviz export --texts DIR` show them instead of the bundled ones. Existing files are
    never overwritten.
    """
    from vitviz.lecture.texts import STEPS, copy_texts

    folder = shared.output_path(args.folder, option="DIR", folder=True)
    count = len(copy_texts(folder, args.lang, args.steps or STEPS))
    shared.note(args, f"{count} texts -> {folder} (try them: vitviz app --lecture {folder})")
