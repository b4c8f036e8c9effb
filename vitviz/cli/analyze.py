"""Commands that analyse a model: heads, lens, evaluate."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.heads import CHEAP, STATISTICS, folder_statistics
from vitviz.cli import options as shared
from vitviz.evaluation.evaluate import evaluate
from vitviz.evaluation.records import processes
from vitviz.formatting import percent, text_table


def add_heads(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz heads`."""
    option = command.add_argument
    option("photos", help="an image file, or a folder of images: then the mean over them")
    about = f"which: {', '.join(STATISTICS)}, or all (default: those that read rows of attention)"
    choices = [*STATISTICS, "all"]
    option("--statistics", nargs="+", choices=choices, default=list(CHEAP), metavar="NAME", help=about)
    option("--query", help="the token whose row is measured (default: the mean over all patches)")
    option("--target", metavar="CLASS", help="the class that importances are about (default: the best)")
    option("--limit", type=int, help="of a folder: at most so many images, spread over its subfolders")
    option("-o", "--output", metavar="FILE.csv", help="write a table; layers and heads from 0 in it")
    shared.add_model(command)


def add_lens(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz lens`."""
    option = command.add_argument
    option("-k", type=int, default=3, help="number of classes (default: 3)")
    about = "write probabilities, those of each patch, and the patches' colors"
    option("-o", "--output", metavar="FILE.npz", help=about)
    shared.add_photo(command)


def add_evaluate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz evaluate`."""
    option = command.add_argument
    option("--data", required=True, help="the folder, one subfolder a class")
    option("--methods", nargs="+", default=["all"], metavar="NAME", help="names, or all (default: all)")
    option("--limit", type=int, help="at most so many images, spread over the classes")
    option("--aim", choices=("true", "predicted"), default="true", help="which class is explained")
    option("--seed", type=int, default=0, help="of the random orders (default: 0)")
    option("--out", metavar="FILE.jsonl", help="append results at once, and continue from those that are there")
    about = "an option of a method; may be repeated"
    option("--set", action="append", default=[], metavar="METHOD.NAME=VALUE", help=about)
    option("--table", metavar="FILE", help="write the table: .md or .csv")
    shared.add_model(command)


def run_heads(args: argparse.Namespace) -> None:
    """Print or write the statistics of the heads."""
    output = shared.output_path(args.output, ".csv") if args.output else None
    names = list(STATISTICS) if "all" in args.statistics else args.statistics
    explorer = shared.open_explorer(args)
    query = shared.parse_query(args.query)
    if Path(args.photos).is_dir():
        options = {"names": names, "query": query, "target": args.target, "limit": args.limit}
        found = folder_statistics(explorer.model, args.photos, **options)
    else:
        found = explorer.open(args.photos).heads(names, query=query, target=args.target)
    if output:
        found.save(output)
        print(f"{len(found.rows())} heads, {len(found.present)} statistics, {found.images} images -> {output}")
    else:
        print(found.table())


def run_lens(args: argparse.Namespace) -> None:
    """Print the prediction after each layer; write it for every patch."""
    output = shared.output_path(args.output, ".npz") if args.output else None
    if args.k < 1:
        raise ValueError(f"Expected -k of at least 1, got {args.k}. Ask for more classes.")
    view = shared.open_view(args)
    found = view.lens(view.best(args.k))
    readings = found.probabilities[:, list(found.classes)]  # (L, K)
    rows = [[str(block + 1), *map(percent, row)] for block, row in zip(found.blocks, readings, strict=True)]
    print(text_table([["layer", *found.names], *rows], left=0))
    if output:
        colors = view.token_pca()
        with output.open("wb") as file:  # to a name, NumPy adds an ending of its own
            np.savez(
                file,
                layers=np.array(found.blocks) + 1,
                names=np.array(found.names),
                probabilities=readings,  # (L, K)
                patches=found.patches,  # (L, gh, gw, K)
                colors=colors.colors,  # (L, gh, gw, 3)
                explained=colors.explained,  # (L, 3)
            )
        print(f"-> {output}")


def run_evaluate(args: argparse.Namespace) -> None:
    """Print and write the faithfulness of methods over a folder."""
    table = shared.output_path(args.table, ".md", ".csv", option="--table") if args.table else None
    explorer = shared.open_explorer(args)
    methods = "all" if args.methods == ["all"] else args.methods
    options: dict[str, dict[str, Any]] = {}
    for text in args.set:
        name, value = shared.parse_setting(text)
        method, dot, option = name.partition(".")
        if not (method and dot and option):
            raise ValueError(f"Expected --set METHOD.NAME=VALUE, got {text!r}. Write it as rollout.fuse=max.")
        if methods != "all" and method not in methods:
            raise ValueError(f"Expected --set of one of the --methods, got {text!r}. Add the method or leave it out.")
        options.setdefault(method, {})[option] = value
    settings = {"limit": args.limit, "seed": args.seed, "out": args.out, "target": args.aim, "options": options}
    found = evaluate(explorer.model, args.data, methods, **settings)
    if processes()[0] > 0:
        return  # under torchrun every process has the table: the first one prints it
    print(found.table())
    if table:
        text = found.csv() if table.suffix.lower() == ".csv" else found.markdown()
        table.write_text(text + "\n", encoding="utf-8")
