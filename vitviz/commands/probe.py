"""Ask a model about itself: its heads, its layers, and which explanations of it are true."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.commands.options import (
    Commands,
    add_model,
    add_size,
    open_explorer,
    parse_query,
    parse_setting,
    room_for,
)
from vitviz.probe.evaluate import evaluate
from vitviz.probe.folder import folder_statistics
from vitviz.probe.heads import CHEAP, STATISTICS
from vitviz.probe.records import processes


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """heads, lens, evaluate."""
    _add_heads(commands)
    _add_lens(commands)
    _add_evaluate(commands)


def _add_heads(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("heads", help="what tells the heads apart, for a photograph or a folder of them")
    command.add_argument("photos", help="an image file, or a folder of images: then the mean over them")
    command.add_argument(
        "--statistics",
        nargs="+",
        choices=[*STATISTICS, "all"],
        default=list(CHEAP),
        metavar="NAME",
        help=f"which: {', '.join(STATISTICS)}, or all (default: those that read rows of attention)",
    )
    command.add_argument("--query", help="the token whose row is measured (default: the mean over all patches)")
    command.add_argument("--target", metavar="CLASS", help="the class that importances are about (default: the best)")
    command.add_argument("--limit", type=int, help="of a folder: at most so many images, spread over its subfolders")
    command.add_argument("-o", "--output", metavar="FILE.csv", help="write a table; layers and heads from 0 in it")
    add_model(command)
    command.set_defaults(run=_heads)


def _add_lens(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("lens", help="what the classifier would answer after each layer")
    command.add_argument("photo", help="an image file")
    command.add_argument("-k", type=int, default=3, help="how many classes (default: 3)")
    command.add_argument(
        "-o", "--output", metavar="FILE.npz", help="write probabilities, those of each patch, and the patches' colours"
    )
    add_size(command)
    add_model(command)
    command.set_defaults(run=_lens)


def _add_evaluate(commands: Commands[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("evaluate", help="faithfulness of attribution methods over a folder of photographs")
    command.add_argument("--data", required=True, help="the folder, one subfolder a class")
    command.add_argument("--methods", nargs="+", default=["all"], metavar="NAME", help="names, or all (default: all)")
    command.add_argument("--limit", type=int, help="at most so many images, spread over the classes")
    command.add_argument("--aim", choices=("true", "predicted"), default="true", help="which class is explained")
    command.add_argument("--seed", type=int, default=0, help="of the random orders (default: 0)")
    command.add_argument(
        "--out", metavar="FILE.jsonl", help="write results as they come, and go on from those that are there"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="METHOD.NAME=VALUE", help="an option of a method; may be repeated"
    )
    command.add_argument("--table", metavar="FILE", help="write the table: .md or .csv")
    add_model(command)
    command.set_defaults(run=_evaluate)


def _heads(args: argparse.Namespace) -> None:
    if args.output:
        room_for(Path(args.output), ".csv")
    names = list(STATISTICS) if "all" in args.statistics else args.statistics
    explorer = open_explorer(args)
    query = parse_query(args.query)
    if Path(args.photos).is_dir():
        options = {"names": names, "query": query, "target": args.target, "limit": args.limit}
        found = folder_statistics(explorer.model, args.photos, **options)
    else:
        found = explorer.open(args.photos).heads(names, query=query, target=args.target)
    if args.output:
        found.save(args.output)
        print(f"{len(found.rows())} heads, {len(found.present)} statistics, {found.images} images -> {args.output}")
    else:
        print(found.table())


def _lens(args: argparse.Namespace) -> None:
    if args.output:
        room_for(Path(args.output), ".npz")
    if args.k < 1:
        raise ValueError(f"-k: expected at least one class, got {args.k}.")
    view = open_explorer(args).open(args.photo, size=args.size)
    read = view.lens(view.best(args.k))
    width = max(12, *map(len, read.names))
    print("  ".join([f"{'layer':>5}", *(f"{name:>{width}}" for name in read.names)]))
    for place, block in enumerate(read.blocks):
        cells = (f"{read.probabilities[place, index]:{width}.1%}" for index in read.classes)
        print("  ".join([f"{block + 1:>5}", *cells]))
    if args.output:
        colours = view.colours()
        with Path(args.output).open("wb") as file:  # to a name, NumPy adds an ending of its own
            np.savez(
                file,
                layers=np.array(read.blocks) + 1,
                names=np.array(read.names),
                probabilities=read.probabilities[:, list(read.classes)],  # (L, K)
                patches=read.patches,  # (L, gh, gw, K)
                colours=colours.colours,  # (L, gh, gw, 3)
                explained=colours.explained,  # (L, 3)
            )
        print(f"-> {args.output}")


def _evaluate(args: argparse.Namespace) -> None:
    if args.table:
        room_for(Path(args.table), ".md", ".csv", option="--table")
    explorer = open_explorer(args)
    methods = "all" if args.methods == ["all"] else args.methods
    settings: dict[str, dict[str, Any]] = {}
    for text in args.set:
        name, value = parse_setting(text)
        method, dot, option = name.partition(".")
        if not (method and dot and option):
            raise ValueError(f"--set: expected METHOD.NAME=VALUE, such as rollout.fuse=max; got {text!r}.")
        if methods != "all" and method not in methods:
            raise ValueError(f"--set: expected one of the methods that are asked for, got {text!r}.")
        settings.setdefault(method, {})[option] = value
    options = {"limit": args.limit, "seed": args.seed, "out": args.out, "target": args.aim, "options": settings}
    found = evaluate(explorer.model, args.data, methods, **options)
    if processes()[0] > 0:
        return  # under torchrun every process has the table: the first one shows it
    print(found.table())
    print(f"\n{found.words()}")
    if args.table:
        text = found.csv() if Path(args.table).suffix.lower() == ".csv" else found.markdown()
        Path(args.table).write_text(text + "\n", encoding="utf-8")
