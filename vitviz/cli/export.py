"""Write pages: one photograph as a file, or a site whose models run in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from vitviz.cli import options as shared
from vitviz.export.static import BROWSER_METHODS, write_site
from vitviz.weights.zoo import DEFAULT


def add_export(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz export`."""
    option = command.add_argument
    option("photo", nargs="?", help="an image file; none with --static")
    option("--html", metavar="FILE", help="the page to write (default: vitviz.html)")
    option("--static", metavar="DIR", help="write a site for any file server: visitors' photographs stay with them")
    option("--space", action="store_true", help="with --static: also what a static Hugging Face Space needs")
    option(
        "--model", action="append", metavar="SOURCE",
        help=f"as for other commands; with --static any number of times (default: {DEFAULT})",
    )  # fmt: skip
    option("--methods", nargs="+", metavar="NAME", help=f"with --static (default: {', '.join(BROWSER_METHODS)})")
    option("--size", type=int, metavar="PIXELS", help="with a photograph: side of the model's input")
    option("--family", help="of a file whose tensors do not tell: vit, dinov3, clip, siglip, ...")
    option("--heads", type=int, help="of a file whose width does not tell: attention heads in each layer")
    option("--device", help="with a photograph: cuda, mps or cpu (default: the best there is)")


def run_export(args: argparse.Namespace) -> None:
    """Write a page or a site."""
    models = args.model or []
    if args.static is not None:
        if args.photo or args.html:
            raise ValueError(f"Expected --static alone, got {args.photo or '--html'} too. Write them one by one.")
        site = write_site(Path(args.static), models, methods=args.methods or BROWSER_METHODS, space=args.space)
        size = sum(path.stat().st_size for path in site.folder.rglob("*") if path.is_file())
        print(f"{size / 1e6:.1f} MB -> {site.folder} (try it: python -m http.server --directory {site.folder})")
        return
    if args.photo is None or args.space or args.methods or len(models) > 1:
        raise ValueError("Expected one photograph and one model, or --static DIR, got neither. Name one of them.")
    output = shared.output_path(args.html or "vitviz.html", ".html", ".htm", option="--html")
    args.model = models[0] if models else DEFAULT
    output.write_text(shared.open_view(args).html(), encoding="utf-8")
    print(f"{output.stat().st_size / 1e6:.1f} MB -> {output}")
