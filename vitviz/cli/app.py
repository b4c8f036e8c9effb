"""Command that serves the page: app."""

from __future__ import annotations

from pathlib import Path

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command
from vitviz.extras import extra

DEFAULT = (
    "the model that the page opens with: one of its menu, or as in `vitviz predict --model` (default: the first "
    "--model, else the bundled one); where it cannot be had, the page says so and opens with the bundled one"
)
MODEL = "one more model for the menu: a folder, a file, or as in `vitviz predict --model`; may be repeated"
LECTURE = "your own texts for the lecture: Markdown files such as en/1-pixels.md, which take the place of those here"
TYPED = "let visitors name any model of torchvision, timm and Hugging Face (default: on this machine only)"


@click.command(cls=Command)
@click.option("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else this machine only)")
@click.option("--port", type=int, help="port to listen on (default: GRADIO_SERVER_PORT or PORT, else 7860)")
@click.option("--model", multiple=True, type=PATH, metavar="SOURCE", help=MODEL)
@click.option("--default", type=PATH, metavar="MODEL", help=DEFAULT)
@click.option("--allow-typed/--no-allow-typed", default=None, help=TYPED)
@click.option("--allow-upload/--no-allow-upload", default=None, help="let visitors upload checkpoints (default: no)")
@click.option("--model-memory", type=float, metavar="GB", help="memory for loaded models (default: 4)")
@click.option(
    "--mcp/--no-mcp", default=None, help="serve the endpoints as tools of a Model Context Protocol server (default: no)"
)
@click.option("--max-side", type=int, metavar="PIXELS", help="largest input of a model (default: 2048)")
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
