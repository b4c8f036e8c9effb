"""The command line: the same questions as on the page, from a shell.

People count layers, heads, rows and columns from 1 here, as on the page; the Python API counts from 0.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from vitviz import __version__
from vitviz.commands import figures, look, predict, probe, serve, train

DESCRIPTION = """\
Look inside a Vision Transformer.

  vitviz predict photo.jpg                          what the model sees, with probabilities
  vitviz explain photo.jpg -o why.png               attention rollout over the photograph
  vitviz explain photo.jpg --method gae --target church --test    why "church", and whether that is true
  vitviz explain photo.jpg --method attention --layer 12 --head 3 --query 7,4 -o look.png
  vitviz sheet photo.jpg --layer 12 -o heads.png    every head of a layer on one sheet
  vitviz figures photo.jpg -o figures --format pdf  the path it takes through the model, for print
  vitviz export photo.jpg --html page.html          the explorer as one file that opens without a network
  vitviz heads photo.jpg                            what tells the heads apart
  vitviz lens photo.jpg                             what it would answer after each layer
  vitviz evaluate --data imagenette/val --limit 200 which method tells the truth
  vitviz validate --data imagenette/val             top-1 and top-5 on a folder of images
  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny      from nothing, or --from another model
  vitviz app                                        the page in a browser
"""


class Command(argparse.ArgumentParser):
    """The parser of one command. It refuses what it does not know itself, with its own usage and not the program's."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, without leftovers."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; `{self.prog} --help` lists what there is")
        return known, unknown


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="vitviz", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"vitviz {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    for room in (predict, look, probe, serve, train, figures):
        room.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 with a sentence on standard error when the input was not right."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that this terminal or file has no letters for ends no work
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
