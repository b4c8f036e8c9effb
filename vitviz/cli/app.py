"""Command that serves the page: app."""

from __future__ import annotations

from pathlib import Path

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command
from vitviz.extras import extra

DEFAULT = (
    "the page's first model: one of its menu, or as in `vitviz predict --model` (default: the first --model, else the "
    "bundled one); if it cannot be loaded, the page says so and opens with the bundled one"
)
MODEL = "add a model to the menu: a folder, a file, or as in `vitviz predict --model`; can be repeated"
LECTURE = "your own texts for the lecture: Markdown files such as en/1-pixels.md, which replace the bundled ones"
TYPED = "let visitors enter any model of torchvision, timm and Hugging Face (default: on localhost only)"


@click.command(cls=Command)
@click.option("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else localhost)")
@click.option("--port", type=int, help="port to listen on (default: GRADIO_SERVER_PORT or PORT, else 7860)")
@click.option("--model", multiple=True, type=PATH, metavar="SOURCE", help=MODEL)
@click.option("--default", type=PATH, metavar="MODEL", help=DEFAULT)
@click.option("--allow-typed/--no-allow-typed", default=None, help=TYPED)
@click.option("--allow-upload/--no-allow-upload", default=None, help="let visitors upload checkpoints (default: no)")
@click.option("--model-memory", type=float, metavar="GB", help="memory for loaded models (default: 4)")
@click.option(
    "--mcp/--no-mcp", default=None, help="serve the endpoints as tools of a Model Context Protocol server (default: no)"
)
@click.option("--max-side", type=int, metavar="PIXELS", help="maximum input size of a model (default: 2048)")
@click.option("--lecture", type=PATH, metavar="FOLDER", help=LECTURE)
@shared.quiet
def app(args: Args) -> None:
    """Serve the page on this machine, until Ctrl-C."""
    with extra("app"):
        from vitviz.server.pages import build
        from vitviz.server.server import launch
        from vitviz.server.settings import settings

    allowed = settings(
        host=args.host,
        models=args.model or None,
        default=args.default or next(iter(args.model), None),
        typed=args.allow_typed,
        upload=args.allow_upload,
        memory=args.model_memory,
        side=args.max_side,
        mcp=args.mcp,
        port=args.port,
    )
    texts = None if args.lecture is None else Path(args.lecture)
    launch(build(allowed, texts), allowed, host=args.host, port=allowed.port, quiet=args.quiet)
