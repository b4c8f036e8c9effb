"""Command that serves the page: app."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from vitviz import rooms
from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command
from vitviz.extras import extra, without
from vitviz.settings import SETTINGS, Setting, settings

LECTURE = "your own texts for the lecture: Markdown files such as en/pixels.md, which replace the bundled ones"
OPTIONS = {name: setting for name, setting in SETTINGS.items() if setting.option}


def _option(name: str, setting: Setting) -> Callable[[Any], Any]:
    """Return the option of a setting; `settings` checks its value."""
    option, words = setting.option, setting.words
    if isinstance(setting.default, bool):
        words = re.sub("[01]", lambda digit: ("no", "yes")[int(digit[0])], words)
        return click.option(
            f"{option}/--no-{option[2:]}", name, default=None, help=f"{setting.about} (default: {words})"
        )
    several = isinstance(setting.default, tuple)
    about = f"{setting.about}{'; may be repeated' if several else ''} (default: {words})"
    kind = PATH if setting.metavar in ("SOURCE", "MODEL") else str
    return click.option(option, name, type=kind, metavar=setting.metavar, multiple=several, help=about)


@click.command(cls=Command, serves=True)
@click.option("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else localhost)")
@shared.together(*(_option(name, setting) for name, setting in OPTIONS.items()))
@click.option("--lecture", type=PATH, metavar="FOLDER", help=LECTURE)
@shared.quiet
def app(args: Args) -> None:
    """Serve the page on this machine, until Ctrl-C."""
    values = {name: getattr(args, name) for name in OPTIONS}
    values |= {"models": args.models or None, "default": args.default or next(iter(args.models), None)}
    allowed = settings(host=args.host, **values)
    lecture = None
    if args.lecture is not None:  # checked before gradio is imported and a model is loaded
        lecture = rooms.load("lecture", "texts").lecture_given(folder=Path(args.lecture))
    shared.note(args, "Importing PyTorch and Gradio")
    # Gradio imports mcp if it is installed, which can take a quarter of the start.
    with extra("app"), nullcontext() if allowed.mcp else without("mcp"):
        from vitviz.page import build, serve

    shared.note(args, "Loading the model, and opening the first example with it")
    page = build(allowed, lecture)
    shared.note(args, "Starting the server")
    serve(page, allowed, host=args.host, port=allowed.port, quiet=args.quiet)
