"""A model as a whole: how often it is right, what it is made of, which there are, and the page."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from vitviz.commands.options import Commands, add_model, load_model, open_explorer, room_for
from vitviz.render.confusion import confusion_picture
from vitviz.summary import summary
from vitviz.training.sources import NAMES
from vitviz.validate import Validation, validate
from vitviz.weights.famous import FAMOUS
from vitviz.weights.zoo import bundled


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """validate, summary, app, models."""
    _add_validate(commands)
    _add_summary(commands)
    _add_app(commands)
    commands.add_parser("models", help="list the bundled models and famous ones").set_defaults(run=_models)


def _add_validate(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "validate", help="accuracy on a folder of images, one subfolder a class, or a data set"
    )
    command.add_argument(
        "--data",
        required=True,
        help=f"the folder, one subfolder a class, or one with train/ and val/; or {', '.join(NAMES)}",
    )
    command.add_argument("--root", metavar="FOLDER", help="where a named data set lies (default: the user's cache)")
    command.add_argument("--limit", type=int, help="at most so many images, spread over the classes")
    command.add_argument("--batch", type=int, default=32, help="images at once (default: 32)")
    command.add_argument(
        "--confusion", metavar="FILE", help="say what is taken for what, and write all of it: .png or .csv"
    )
    add_model(command)
    command.set_defaults(run=_validate)


def _add_summary(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("summary", help="modules, output shapes and parameter counts of a model")
    add_model(command)
    command.set_defaults(run=_summary)


def _add_app(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("app", help="serve the page on this machine")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    command.add_argument("--port", type=int, default=7860, help="port to listen on (default: 7860)")
    command.add_argument(
        "--model",
        action="append",
        metavar="SOURCE",
        help="one more model for the menu: a folder, a file, or as in `vitviz predict --model`; may be repeated",
    )
    command.add_argument(
        "--allow-typed",
        action=argparse.BooleanOptionalAction,
        help="let visitors name any model of torchvision, timm and Hugging Face (default: on this machine only)",
    )
    command.add_argument(
        "--allow-upload",
        action=argparse.BooleanOptionalAction,
        help="let visitors upload checkpoints (default: no)",
    )
    command.add_argument("--model-memory", type=float, metavar="GB", help="memory for loaded models (default: 4)")
    command.add_argument("--max-side", type=int, metavar="PIXELS", help="largest input of a model (default: 2048)")
    command.set_defaults(run=_app)


def _validate(args: argparse.Namespace) -> None:
    out = Path(args.confusion) if args.confusion else None
    if out:
        room_for(out, ".png", ".csv", option="--confusion")
    explorer = open_explorer(args)
    found = validate(explorer.model, args.data, root=args.root, batch_size=args.batch, limit=args.limit)
    print(found.table())
    if out:
        _write_confusion(found, out)


def _write_confusion(found: Validation, out: Path) -> None:
    """The commonest mistakes on the terminal, all of them in a file."""
    labels, counts = found.confusion()
    if out.suffix.lower() == ".csv":
        with out.open("w", encoding="utf-8", newline="") as file:
            rows = ([label, *row] for label, row in zip(labels, counts.tolist(), strict=True))
            csv.writer(file).writerows([["true / predicted", *labels], *rows])
    else:
        confusion_picture(counts, labels, title=found.model).save(out)
    print()
    for true, said, count in found.mistakes():
        print(f"{count:>7,}  {true} taken for {said}")
    print(f"-> {out}")


def _summary(args: argparse.Namespace) -> None:
    print(summary(load_model(args)))


def _models(_args: argparse.Namespace) -> None:
    print("\n".join(bundled()))
    print("\nFamous ones, downloaded when first used:")
    width = max(len(one.source) for one in FAMOUS)
    for one in FAMOUS:
        print(f"{one.source:<{width}}  {one.size / 1e6:4.0f} MB  {one.licence:<18}  {one.title}: {one.known_for}")


def _app(args: argparse.Namespace) -> None:
    # gradio takes seconds to import: only the page needs it.
    from vitviz.ui.pages import build
    from vitviz.ui.server import launch
    from vitviz.ui.settings import settings

    allowed = settings(
        host=args.host,
        models=args.model,
        typed=args.allow_typed,
        upload=args.allow_upload,
        memory=args.model_memory,
        side=args.max_side,
    )
    launch(build(allowed), host=args.host, port=args.port, upload=allowed.upload)
