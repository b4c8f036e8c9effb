"""Entry point of the command line.

People count layers, heads, rows and columns from 1 here, as on the page; the Python API counts from 0.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from vitviz import __version__

DESCRIPTION = """\
Look inside a Vision Transformer.

  vitviz predict photo.jpg                          the most probable classes
  vitviz explain photo.jpg -o why.png               attention rollout over the photograph
  vitviz explain photo.jpg --method gae --target church --test    why "church", and whether that is true
  vitviz explain photo.jpg --method attention --layer 12 --head 3 --query 7,4 -o look.png
  vitviz sheet photo.jpg --layer 12 -o heads.png    every head of a layer on one sheet
  vitviz figures photo.jpg -o figures --format pdf  the path it takes through the model, for print
  vitviz export photo.jpg --html page.html          the explorer as one file that opens without a network
  vitviz export --static site                       the page for any file server; models run in the browser
  vitviz heads photo.jpg                            statistics of the attention heads
  vitviz lens photo.jpg                             the prediction after each layer
  vitviz evaluate --data imagenette/val --limit 200 faithfulness of the attribution methods
  vitviz validate --data imagenette/val             top-1 and top-5 on a folder of images
  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny      from nothing, or --from another model
  vitviz app                                        the page in a browser
"""

# Name -> module in vitviz.cli with `run_NAME(args)` and, if it has arguments, `add_NAME(command)`; and help.
COMMANDS = {
    "predict": ("predict", "the most probable classes of photographs"),
    "explain": ("explain", "lay an attribution map over a photograph: attention, or evidence for a class"),
    "sheet": ("explain", "a contact sheet: every head of a layer, or every layer"),
    "export": ("export", "the explorer with a photograph as one HTML file, or a site without a server"),
    "heads": ("analyze", "statistics of the attention heads, for a photograph or a folder"),
    "lens": ("analyze", "logit lens: the classifier's prediction after each layer"),
    "evaluate": ("analyze", "faithfulness of attribution methods over a folder of photographs"),
    "validate": ("models", "accuracy on a folder of images, one subfolder a class, or a data set"),
    "summary": ("models", "modules, output shapes and parameter counts of a model"),
    "models": ("models", "list the bundled models and those of the catalog"),
    "app": ("app", "serve the page on this machine"),
    "train": ("train", "train a model, or fine-tune one"),
    "figures": ("figures", "draw the path a photograph takes through the model, for print"),
}
INTERRUPTED = 130  # a shell's exit code for a program that Ctrl-C has ended


class Command(argparse.ArgumentParser):
    """Parser of one command, which adds its arguments when it is used: `vitviz --help` does not wait for torch."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments, and refuse unknown ones with the usage of the command, not of the program."""
        name = self.prog.rpartition(" ")[2]
        module = import_module(f"vitviz.cli.{COMMANDS[name][0]}")
        if add_arguments := getattr(module, f"add_{name}", None):
            add_arguments(self)
        self.set_defaults(run=getattr(module, f"run_{name}"), parser=self)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; `{self.prog} --help` lists what there is")
        return known, unknown


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="vitviz", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"vitviz {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    for name, (_, about) in COMMANDS.items():
        commands.add_parser(name, help=about)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for an error that is said on standard error, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that this terminal or file cannot encode is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"\nvitviz: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
