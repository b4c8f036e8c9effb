"""Commands about a model as a whole: validate, summary, models."""

import argparse
import csv

from vitviz.cli.options import add_model, load_model, open_explorer, output_path
from vitviz.draw.figures import save
from vitviz.evaluation.accuracy import validate
from vitviz.images.datasets import NAMES
from vitviz.model.summary import summary
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled

add_summary = add_model


def add_validate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz validate`."""
    option = command.add_argument
    data = f"the folder, one subfolder a class, or one with train/ and val/; or {', '.join(NAMES)}"
    option("--data", required=True, help=data)
    option("--root", metavar="FOLDER", help="where a named data set lies (default: the user's cache)")
    option("--limit", type=int, help="at most so many images, spread over the classes")
    option("--batch", type=int, default=32, help="images at once (default: 32)")
    option("--confusion", metavar="FILE", help="list the most frequent confusions, and write all: .png or .csv")
    add_model(command)


def run_summary(args: argparse.Namespace) -> None:
    """Print the modules of a model."""
    print(summary(load_model(args)))


def run_validate(args: argparse.Namespace) -> None:
    """Print the accuracy of a model; write its confusion matrix."""
    output = output_path(args.confusion, ".png", ".csv", option="--confusion") if args.confusion else None
    model = open_explorer(args).model
    accuracy = validate(model, args.data, root=args.root, batch_size=args.batch, limit=args.limit)
    print(accuracy.table())
    if output is None:
        return
    labels, counts = accuracy.confusion()
    if output.suffix.lower() == ".csv":
        with output.open("w", encoding="utf-8", newline="") as file:
            rows = ([label, *row] for label, row in zip(labels, counts.tolist(), strict=True))
            csv.writer(file).writerows([["true / predicted", *labels], *rows])
    else:
        from vitviz.draw.figures.confusion import confusion  # imports matplotlib

        save(confusion(counts, labels, title=accuracy.model), output)
    print()
    for true, predicted, count in accuracy.mistakes():
        print(f"{count:>7,}  {true} predicted as {predicted}")
    print(f"-> {output}")


def run_models(_: argparse.Namespace) -> None:
    """Print the bundled models and those of the catalog."""
    print("\n".join(bundled()))
    print("\nPublished ones, downloaded when first used:")
    width = max(len(one.source) for one in CATALOG)
    for one in CATALOG:
        print(f"{one.source:<{width}}  {one.size / 1e6:4.0f} MB  {one.licence:<18}  {one.title}: {one.known_for}")
