"""Train a model: from nothing, from another model, or from a teacher."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitviz.commands.options import Commands
from vitviz.commands.train_options import MODEL, add_options, asked_recipe, given, keep, recalled, spelled
from vitviz.config import ViTConfig, preset
from vitviz.devices import device_named, keep_freed_memory
from vitviz.model import Pretrained, ViT
from vitviz.outcome import CARD, leave
from vitviz.training import TrainingError
from vitviz.training.data import Data, open_data
from vitviz.training.engine import Outcome, Stopped, Trainer
from vitviz.training.recipes import RECIPES, Known, Recipe
from vitviz.training.state import STATE
from vitviz.training.transfer import resized, start_from
from vitviz.weights.checkpoint import CONFIG
from vitviz.weights.zoo import load

NATIVE = {"cifar10": 32, "cifar100": 32, "mnist": 28, "fashion-mnist": 28, "imagenette": 224}
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C has ended
DESCRIPTION = """\
Train a Vision Transformer.

  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny
  vitviz train --data photos --from dinov2-s14-imagenette --freeze backbone --out models/mine
  vitviz train --resume --out models/mine            go on where it was stopped
  torchrun --nproc-per-node 4 -m vitviz train ...    on four GPUs
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """The command `train`."""
    command = commands.add_parser(
        "train",
        help="train a model, or fine-tune one",
        description=DESCRIPTION,
        epilog="recipes:\n" + "\n".join(map(_about, RECIPES.values())),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32),
        usage="vitviz train --data NAME_OR_FOLDER --out FOLDER [options]",
    )
    add_options(command)
    command.set_defaults(run=_train, parser=command)


def _about(known: Known) -> str:
    """A recipe, and what it reached."""
    lines = [known.about, *(f"{one}, {one.machine}" for one in known.reached)]
    width = max(map(len, RECIPES)) + 4
    return f"  {known.recipe.name}".ljust(width) + f"\n{' ' * width}".join(lines)


def _train(args: argparse.Namespace) -> None:
    out = Path(args.out)
    resume, first = getattr(args, "resume", False), os.environ.get("RANK", "0") == "0"
    if not hasattr(args, "data"):
        if not resume:
            raise TrainingError("Expected --data: a folder with train/ and val/, or the name of a data set.")
        args = recalled(args)
    elif not resume and first and (out / CONFIG).exists():
        raise TrainingError(f"{str(out)!r} holds a model already: name another folder, or --resume its training.")
    elif not resume and first and (out / CARD).exists():
        raise TrainingError(f"{str(out)!r} has a {CARD}, which the model's card would replace: name another folder.")
    if resume and (out / CONFIG).exists() and not (out / STATE).exists():
        raise TrainingError(
            f"--resume: {str(out)!r} holds a finished model, and not the state of its training ({STATE}). Train on "
            f"from it in another folder: --from {out}."
        )
    recipe = asked_recipe(args)
    model, data = _model_and_data(args, recipe)
    teacher = load(args.teacher) if hasattr(args, "teacher") else None
    device = device_named(getattr(args, "device", None))
    minutes = getattr(args, "save_every", 3.0)
    trainer = Trainer(model, data, recipe, out, device=device, teacher=teacher, resume=resume, save_every=60 * minutes)
    if trainer.device.type == "cpu":
        keep_freed_memory()  # here, not in the engine: a program that calls that has an allocator of its own to mind
    if first:  # of several processes under torchrun
        print(data.words(), flush=True)
        if not (out / STATE).exists():
            keep(args, out)
    try:
        outcome = trainer.run()
    except Stopped as stopped:
        print(f"\nvitviz: {stopped}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from stopped
    if first:
        _leave(args, outcome, data, out)


def _leave(args: argparse.Namespace, outcome: Outcome, data: Data, out: Path) -> None:
    """Write what is left behind, and say how good it is."""
    source = getattr(args, "source", "")
    before = _source(args).to(next(outcome.model.parameters()).device) if source else None
    if before is not None and getattr(args, "feed_as_source", False):
        outcome = _fed_as(before, outcome)
    if outcome.recipe.unfreeze_last == 0:
        before = None  # a new head alone looks where the old one did
    files = leave(outcome, data, out, command=spelled(args), base=source, before=before)
    five = f", top-5 {outcome.top5:.2%}" if len(data.labels) > 5 else ""
    print(f"top-1 {outcome.top1:.2%}{five} of {len(data.val):,} validation images; {', '.join(files)} -> {out}")


def _fed_as(source: ViT, outcome: Outcome) -> Outcome:
    """The outcome with a model that is fed in the source's way, and a note that it was measured in another."""
    own, theirs = outcome.model.pretrained, source.pretrained
    if own is None or theirs is None:
        raise TrainingError("--feed-as-source: the model of --from does not know how it is fed; leave this out.")
    trained, size = own.preprocess, outcome.model.config.image_size
    outcome.model.pretrained = replace(own, preprocess=resized(theirs.preprocess, size))
    note = (
        f"Photographs are fed in the source's way ({theirs.preprocess.mode}); the figures here are of images that were "
        f"brought to {size[0]} x {size[1]} pixels as in training ({trained.mode})."
    )
    return replace(outcome, notes=(*outcome.notes, note))


def _source(args: argparse.Namespace) -> ViT:
    """The model to start from."""
    return load(args.source, family=getattr(args, "family", None), heads=getattr(args, "heads", None))


def _model_and_data(args: argparse.Namespace, recipe: Recipe) -> tuple[ViT, Data]:
    """The model before its first step, and the data at its size."""
    if hasattr(args, "source"):
        return _continued(args, recipe)
    settings = _sizes(args)
    config = _config(settings, classes=2)  # checks the sizes before the data, which may take minutes to read
    data = _open(args, config.image_size)
    mean, std = data.mean_std()
    about = Pretrained(
        name=_name(args),
        preprocess=data.preprocess(mean, std),
        labels=data.labels,
        class_ids=data.class_ids,
        licence=getattr(args, "licence", "unknown"),
        source=f"trained from scratch on {data.name}",
    )
    config = replace(config, classes=len(data.labels), dropout=recipe.dropout, path_dropout=recipe.path_dropout)
    with torch.random.fork_rng(devices=[]):  # the same start for the same seed, whatever ran before
        torch.manual_seed(recipe.seed)
        return ViT(config, about), data


def _continued(args: argparse.Namespace, recipe: Recipe) -> tuple[ViT, Data]:
    """Another model with a new head."""
    asked = given(args, MODEL)
    size, pooling = asked.pop("image_size", None), asked.pop("pooling", None)
    asked.pop("heads", None)  # of a file that does not tell
    if asked:
        wrong = ", ".join(
            option for option, settings in MODEL if settings.get("dest", option[2:].replace("-", "_")) in asked
        )
        raise TrainingError(f"{wrong}: the model that --from names has its own sizes; leave this out, or --from.")
    source = _source(args)
    pixels = source.config.image_size if size is None else _pair(size)
    data = _open(args, pixels)
    fed = source.pretrained.preprocess if source.pretrained else None
    model = start_from(
        source,
        data.labels,
        name=_name(args),
        class_ids=data.class_ids,
        pooling=pooling,
        image_size=None if size is None else pixels,
        preprocess=data.preprocess(fed.mean, fed.std) if fed else data.preprocess(*data.mean_std()),
        dropout=recipe.dropout,
        path_dropout=recipe.path_dropout,
        licence=getattr(args, "licence", None),
        data=data.name,
        seed=recipe.seed,
    )
    return model, data


def _open(args: argparse.Namespace, size: tuple[int, int]) -> Data:
    skip = getattr(args, "skip_broken", False)
    return open_data(
        args.data,
        root=getattr(args, "root", None),
        size=size,
        fit=getattr(args, "fit", "squash"),
        broken="skip" if skip else "refuse",
    )


def _sizes(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `ViTConfig`: those of the recipe, of the preset, and what was given, the last one first."""
    asked = given(args, MODEL)
    name = asked.pop("preset", None)
    known = RECIPES[args.recipe].model if hasattr(args, "recipe") else {}
    if not known and name is None and not {"width", "depth", "heads"} <= set(asked):
        raise TrainingError(
            "Expected a model: --preset, or --dim, --depth and --heads, a --recipe that has one, or --from a model."
        )
    settings: dict[str, Any] = {} if name else dict(known)
    settings |= {"image_size": (NATIVE[args.data],) * 2} if args.data in NATIVE else {}
    settings |= asked
    if "image_size" in asked:
        settings["image_size"] = _pair(asked["image_size"])
    if not settings.get("class_token", True):
        settings.setdefault("pooling", "mean")
    return settings | ({"preset": name} if name else {})


def _config(settings: dict[str, Any], classes: int) -> ViTConfig:
    settings = dict(settings)
    name = settings.pop("preset", None)
    return preset(name, **settings, classes=classes) if name else ViTConfig(**settings, classes=classes)


def _pair(sides: list[int]) -> tuple[int, int]:
    if len(sides) > 2:
        raise TrainingError(f"--image-size: expected one side, or height and width; got {len(sides)} numbers.")
    return sides[0], sides[-1]


def _name(args: argparse.Namespace) -> str:
    return str(getattr(args, "name", None) or Path(args.out).resolve().name)
