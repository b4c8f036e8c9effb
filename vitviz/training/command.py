"""Train a model from scratch, from another model, or with a teacher."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitviz.cli import options as shared
from vitviz.cli.options import Args
from vitviz.formatting import percent
from vitviz.training import TrainingError
from vitviz.training.options import (
    ALL,
    SIZES,
    Options,
    TrainCommand,
    build_recipe,
    extended_options,
    format_command,
    given_options,
    resumed_options,
    save_options,
)
from vitviz.training.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from vitviz.model.config import ViTConfig
    from vitviz.model.vit import ViT
    from vitviz.training.data import Data
    from vitviz.training.loop import Outcome

NATIVE = {"cifar10": 32, "cifar100": 32, "mnist": 28, "fashion-mnist": 28, "imagenette": 224}
HELP = """Train a model, or fine-tune one.

\b
  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny
  vitviz train --data photos --from dinov2-s14-everyday --freeze backbone --out models/mine
  vitviz train --resume --out models/mine            continue after an interruption
  vitviz train --extend 5 --from models/mine --out models/longer    train a finished model for five more epochs
  torchrun --nproc-per-node 4 -m vitviz train ...    on four GPUs
"""


@click.command(
    cls=TrainCommand, params=[*ALL], help=HELP, options_metavar="--data NAME_OR_FOLDER --out FOLDER [OPTIONS]"
)
def train(args: Args) -> None:
    """Train a model, and write it with its card and pictures."""
    from vitviz.model.devices import device_named, keep_freed_memory
    from vitviz.training.curves import save_curves
    from vitviz.training.folder import CURVES
    from vitviz.training.loop import Trainer
    from vitviz.training.state import find_state, resumable
    from vitviz.training.teachers import load_teacher

    options = given_options(vars(args))
    out, first = Path(args.out), os.environ.get("RANK", "0") == "0"  # the first of several processes under torchrun
    resume = options.get("resume", False)
    _check_folder(out, resume=resume, first=first)
    if "data" not in options and not ("extend" in options and "source" in options):
        if not resume:
            raise TrainingError("Expected --data, a folder with train/ and val/ or a data set, got none. Give it.")
        options = resumed_options(options)
    command = options
    if "extend" in options and "source" in options:  # `build_recipe` refuses --extend without --from
        options = extended_options(options)
    recipe = build_recipe(options)
    model, data = (_continued if "source" in options else _from_scratch)(options, recipe)
    trainer = Trainer(
        model,
        data,
        recipe,
        out,
        device=device_named(options.get("device")),
        teacher=load_teacher(options["teacher"]) if "teacher" in options else None,
        resume=resume,
        save_every=60 * options.get("save_every", 3.0),
        on_epoch=lambda rows: save_curves(rows, out / CURVES),
        progress=not args.quiet,
    )
    if trainer.device.type == "cpu":
        keep_freed_memory()  # not in `Trainer`, because this setting affects the whole process
    if first:
        shared.note(args, data.describe())
        if not find_state(out):
            save_options(command, out)
    outcome = trainer.run()
    if first:
        with resumable(out):
            shared.note(args, _save(options, outcome, data, out, command=format_command(command)))


def _check_folder(out: Path, *, resume: bool, first: bool) -> None:
    """Raise an error if a model or card would be overwritten, or the folder cannot be written."""
    from vitviz.training.folder import CARD
    from vitviz.training.state import find_state
    from vitviz.weights.checks import CONFIG

    shared.output_path(str(out), option="--out", folder=True)
    if resume and not find_state(out):
        finished = (out / CONFIG).exists()
        raise TrainingError(
            f"Expected the state of a training run in {str(out)!r} for --resume, got "
            + ("a finished model without one. " if finished else "none: no state was saved yet. ")
            + (f"Continue from it in another folder: --from {out}." if finished else "Start it without --resume.")
        )
    if first and not resume and (existing := [name for name in (CONFIG, CARD) if (out / name).exists()]):
        raise TrainingError(
            f"Expected a new folder for the model, got {str(out)!r} with a {existing[0]}, which would be overwritten. "
            "Name another, or continue its training with --resume."
        )


# ---- model and data


def _from_scratch(options: Options, recipe: Recipe) -> tuple[ViT, Data]:
    """Return a new model with the sizes of the recipe or the options, and the data at its input size."""
    import torch

    from vitviz.model.vit import ViT

    config = _config(options)  # checks the sizes first, because reading the data may take minutes
    data = _open(options, config.image_size, recipe.seed)
    about = data.record(_name(options), options.get("licence", "unknown"))
    with torch.random.fork_rng(devices=[]):  # the initial weights depend on the seed only
        torch.manual_seed(recipe.seed)
        return ViT(replace(config, classes=len(data.labels)), about), data


def _config(options: Options) -> ViTConfig:
    """Return the sizes of the recipe or the preset, overridden by options, with two classes as a placeholder."""
    from vitviz.model.config import Norms, ViTConfig, preset

    sizes, name = _sizes(options), options.get("preset")
    known = {} if name or "recipe" not in options else RECIPES[options["recipe"]].model
    if not known and name is None and not {"width", "depth", "heads"} <= set(sizes):
        raise TrainingError(
            "Expected a model, got none. Give --preset, or --dim, --depth and --heads, a --recipe that has one, or "
            "--from."
        )
    native = {"image_size": (NATIVE[options["data"]],) * 2} if options["data"] in NATIVE else {}
    settings = {**known, **native, **sizes, "classes": 2}
    if "qk_norm" in settings:
        settings["norms"] = Norms(qk=settings.pop("qk_norm"))
    if not settings.get("class_token", True):
        settings.setdefault("pooling", "mean")
    return preset(name, **settings) if name else ViTConfig(**settings)


def _continued(options: Options, recipe: Recipe) -> tuple[ViT, Data]:
    """Return the source model with a new head, and the data at its input size."""
    from vitviz.training.transfer import start_on

    sizes = _sizes(options)
    fixed = SIZES & set(options) - {"image_size", "pooling", "heads"}  # heads may belong to a weights file
    if fixed:
        names = ", ".join(option.opts[0] for option in ALL if option.name in fixed)
        raise TrainingError(f"Expected the sizes of the model that --from names, got {names}. Leave out one of them.")
    source = _source(options)
    data = _open(options, sizes.get("image_size", source.config.image_size), recipe.seed)
    if source.pretrained is None and "feed_as_source" in options:
        raise TrainingError("Expected a source with preprocessing for --feed-as-source, got one without. Leave it out.")
    model = start_on(
        source, data, name=_name(options), pooling=options.get("pooling"), image_size=sizes.get("image_size"),
        keep_head="keep_head" in options, licence=options.get("licence"), seed=recipe.seed,
    )  # fmt: skip
    return model, data


def _sizes(options: Options) -> Options:
    """Return the fields of `ViTConfig` set by options."""
    sizes = {name: options[name] for name in SIZES - {"preset"} if name in options}
    if pixels := sizes.get("image_size"):
        if len(pixels) > 2:
            raise TrainingError(
                f"Expected one or two numbers for --image-size, got {len(pixels)}. Give height and width."
            )
        sizes["image_size"] = (pixels[0], pixels[-1])
    return sizes


def _source(options: Options) -> ViT:
    """Load the model to start from."""
    from vitviz.weights.zoo import load

    return load(options["source"], like=options.get("like"), heads=options.get("heads"))


def _open(options: Options, size: tuple[int, int], seed: int) -> Data:
    """Open the data at the model's input size."""
    from vitviz.training.data import open_data

    names = ("root", "fit", "skip_broken", "allow_duplicates", "val_share")
    settings = {name: options[name] for name in names if name in options}
    return open_data(options["data"], size=size, seed=seed, **settings)


def _name(options: Options) -> str:
    return str(options.get("name") or Path(options["out"]).resolve().name)


# ---- results


def _save(options: Options, outcome: Outcome, data: Data, out: Path, command: str) -> str:
    """Write the model, its card and pictures, and return a line with the accuracy."""
    from vitviz.training.folder import save_training

    before = _source(options).to(next(outcome.model.parameters()).device) if "source" in options else None
    if before is not None and "feed_as_source" in options:
        outcome = _with_preprocessing_of(before, outcome)
    if outcome.recipe.unfreeze_last == 0:
        before = None  # a new head does not change attention
    files = save_training(outcome, data, out, command=command, base=options.get("source", ""), before=before)
    top5 = f", top-5 {percent(outcome.accuracy.top5, 4)}" if len(data.labels) > 5 else ""
    return (
        f"top-1 {percent(outcome.accuracy.top1, 4)}{top5} of {len(data.val):,} validation images; "
        f"{', '.join(files)} -> {out}"
    )


def _with_preprocessing_of(source: ViT, outcome: Outcome) -> Outcome:
    """Return the outcome with the source's preprocessing, and a note about it."""
    own, theirs = outcome.model.pretrained, source.pretrained
    assert own is not None  # training requires it
    assert theirs is not None  # `_continued` requires it
    size = outcome.model.config.image_size
    outcome.model.pretrained = replace(own, preprocess=theirs.preprocess.shaped(*size))
    note = (
        f"Photographs are preprocessed like the source's ({theirs.preprocess.mode}). Accuracy was measured "
        f"on images resized to {size[0]} x {size[1]} pixels as in training ({own.preprocess.mode})."
    )
    return replace(outcome, notes=(*outcome.notes, note))
