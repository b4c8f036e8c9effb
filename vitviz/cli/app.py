"""Command that serves the page: app."""

import argparse


def add_app(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz app`."""
    option, on_off = command.add_argument, argparse.BooleanOptionalAction
    option("--host", help="address to listen on (default: GRADIO_SERVER_NAME, else this machine only)")
    option("--port", type=int, help="port to listen on (default: GRADIO_SERVER_PORT, else 7860)")
    about = "one more model for the menu: a folder, a file, or as in `vitviz predict --model`; may be repeated"
    option("--model", action="append", metavar="SOURCE", help=about)
    about = "the model that the page opens with: one of its menu, or as in `vitviz predict --model`; "
    about += "where it cannot be had, the page says so and opens with the bundled one"
    option("--default", metavar="MODEL", help=about)
    about = "let visitors name any model of torchvision, timm and Hugging Face (default: on this machine only)"
    option("--allow-typed", action=on_off, help=about)
    option("--allow-upload", action=on_off, help="let visitors upload checkpoints (default: no)")
    option("--model-memory", type=float, metavar="GB", help="memory for loaded models (default: 4)")
    about = "serve the endpoints as tools of a Model Context Protocol server too (default: no)"
    option("--mcp", action=on_off, help=about)
    option("--max-side", type=int, metavar="PIXELS", help="largest input of a model (default: 2048)")


def run_app(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    from vitviz.server.pages import build
    from vitviz.server.server import launch
    from vitviz.server.settings import settings

    allowed = settings(
        host=args.host,
        models=args.model,
        default=args.default,
        typed=args.allow_typed,
        upload=args.allow_upload,
        memory=args.model_memory,
        side=args.max_side,
        mcp=args.mcp,
    )
    launch(build(allowed), allowed, host=args.host, port=args.port)
