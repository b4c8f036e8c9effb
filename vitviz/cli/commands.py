"""The commands of `vitviz`. Commands import torch when they run, because showing the help does not need it."""

import click

from vitviz import __version__, rooms
from vitviz.cli.analyze import arena, circuit, evaluate, heads, lens
from vitviz.cli.app import app
from vitviz.cli.audit import audit, compare
from vitviz.cli.components import components
from vitviz.cli.evidence import evidence
from vitviz.cli.explain import explain, sheet
from vitviz.cli.export import export
from vitviz.cli.figures import figures
from vitviz.cli.models import models, summary, validate
from vitviz.cli.predict import predict
from vitviz.cli.replay import replay

HELP = """Look inside a Vision Transformer.

\b
  vitviz predict photo.jpg                          the most probable classes
  vitviz explain photo.jpg -o why.png               which patches support the prediction
  vitviz explain photo.jpg --method gae --target church --test    which patches support "church", with a test
  vitviz explain photo.jpg --method attention --layer 12 --head 3 --query 7,4 -o look.png
  vitviz sheet photo.jpg --layer 12 -o heads.png    every head of a layer on one sheet
  vitviz figures photo.jpg -o figures --format pdf  figures for print: the photograph's path through the model
  vitviz film photo.jpg --over layers -o film.mp4   attention as GIF, WebP or MP4; also for a video clip
  vitviz lecture texts                              the lecture's texts to change, for vitviz app --lecture texts
  vitviz export photo.jpg -o page.html              the explorer as one file that opens offline
  vitviz export photos -o exported                  page, pictures and numbers of each photograph
  vitviz export --static site                       a static site; models run in the browser
  vitviz circuit photos --target church             a few heads and MLPs that keep most of a score
  vitviz evidence photo.jpg -o evidence.png         a few patches that alone keep the prediction
  vitviz audit photos -o audited                    do predictions rest on the object or on the background? a report
  vitviz compare before after photos -o compared    predictions, heads and maps that differ between two models
  vitviz explain photo.jpg -o why.csv               the numbers, with everything needed to reproduce them
  vitviz replay why.csv                             reproduce and compare them
  vitviz heads photo.jpg                            statistics of the attention heads
  vitviz lens photo.jpg                             the prediction after each layer
  vitviz components a.jpg b.jpg -o colors           one basis of principal components, and masks of the foreground
  vitviz evaluate --data imagenette/val --limit 200 faithfulness of the attribution methods
  vitviz arena --data imagenette/val -o arena       rank the attribution methods for a model
  vitviz validate --data imagenette/val             top-1 and top-5 on a folder of images
  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny      from scratch, or --from another model
  vitviz app                                        the page in a browser

A photograph is a file, or - for standard input. Layers, heads, rows and columns count from 1.
"""
EPILOG = """\b
With --json, for one photograph and for several:
  {"model": SOURCE, "input_size": [HEIGHT, WIDTH], "images": [{"photo": PATH, "input_size": [...], ...}, ...]}
  and for a folder used as one data set: "data": {"folder": PATH, "images": COUNT} instead of "images".

\b
Completion: add this to the start-up file of bash, zsh or fish:
  eval "$(_VITVIZ_COMPLETE=bash_source vitviz)"     zsh_source; fish: _VITVIZ_COMPLETE=fish_source vitviz | source
"""


class Group(click.Group):
    """Group that lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands."""
        return [*self.commands]


def of_room(room: str, name: str) -> click.Command:
    """Return a command of a room; if the folder of the room was deleted, a command that says so."""
    if rooms.has(room):
        command: click.Command = getattr(rooms.load(room, "command"), name)
        return command
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    return click.Command(
        name, settings, lambda words: rooms.load(room, "command"), [words], add_help_option=False,  # noqa: ARG005
        help=f"Not in this copy, which lacks the folder vitviz/{room}.",
    )  # fmt: skip


@click.group(
    cls=Group,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    commands=[
        *(predict, explain, sheet, export, heads, lens, evaluate, validate, summary, models, app),
        *(of_room("training", "train"), figures, of_room("film", "film"), of_room("lecture", "lecture")),
        *(replay, components, circuit, evidence, arena, audit, compare),
    ],
)
@click.version_option(__version__, message="vitviz %(version)s")
def vitviz() -> None:
    """Run a command."""
