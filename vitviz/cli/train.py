"""Train a model: from nothing, from another model, or from a teacher."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import torch

from vitviz.cli.train_options import SIZES, Options, add_options, asked_recipe, keep, recalled, spelled
from vitviz.draw.figures.curves import save_curves
from vitviz.export.training_folder import CARD, CURVES, save_training
from vitviz.formatting import percent
from vitviz.model.config import ViTConfig, preset
from vitviz.model.devices import device_named, keep_freed_memory
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.data import Data, open_data
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.recipes import RECIPES, Recipe
from vitviz.training.state import find_state
from vitviz.training.transfer import resized, start_from
from vitviz.weights.checks import CONFIG
from vitviz.weights.zoo import load

NATIVE = {"cifar10": 32, "cifar100": 32, "mnist": 28, "fashion-mnist": 28, "imagenette": 224}
DESCRIPTION = """\
Train a Vision Transformer.

  vitviz train --data cifar10 --recipe tiny-cifar10 --out models/tiny
  vitviz train --data photos --from dinov2-s14-everyday --freeze backbone --out models/mine
  vitviz train --resume --out models/mine            go on where it was stopped
  torchrun --nproc-per-node 4 -m vitviz train ...    on four GPUs
"""


def add_train(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `vitviz train`."""
    command.description = DESCRIPTION
    indent = "\n" + " " * (max(map(len, RECIPES)) + 4)
    lines = (
        f"  {name}".ljust(len(indent) - 1) + indent.join(filter(None, [known.about, known.reached]))
        for name, known in RECIPES.items()
    )
    command.epilog = "\n".join(["recipes:", *lines])
    command.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32)
    command.usage = "vitviz train --data NAME_OR_FOLDER --out FOLDER [options]"
    add_options(command)


def run_train(args: argparse.Namespace) -> None:
    """Train a model, and write it with its card and pictures."""
    options: Options = vars(args)
    out, first = Path(args.out), os.environ.get("RANK", "0") == "0"  # of several processes under torchrun
    resume = options.get("resume", False)
    _check_folder(out, resume=resume, first=first)
    if "data" not in options:
        if not resume:
            raise TrainingError("Expected --data, a folder with train/ and val/ or a data set, got none. Give it.")
        options = recalled(options)
    recipe = asked_recipe(options)
    model, data = (_continued if "source" in options else _from_scratch)(options, recipe)
    trainer = Trainer(
        model,
        data,
        recipe,
        out,
        device=device_named(options.get("device")),
        teacher=load(options["teacher"]) if "teacher" in options else None,
        resume=resume,
        save_every=60 * options.get("save_every", 3.0),
        on_epoch=lambda rows: save_curves(rows, out / CURVES),
    )
    if trainer.device.type == "cpu":
        keep_freed_memory()  # here, not in the loop: a program that calls that has an allocator of its own to mind
    if first:
        print(data.describe(), flush=True)
        if not find_state(out):
            keep(options, out)
    outcome = trainer.run()
    if first:
        _save(options, outcome, data, out)


def _check_folder(out: Path, *, resume: bool, first: bool) -> None:
    """Refuse a folder whose model or card would be replaced."""
    if resume and (out / CONFIG).exists() and not find_state(out):
        raise TrainingError(
            f"Expected the state of a training in {str(out)!r} for --resume, got a finished model without one. "
            f"Train on from it in another folder: --from {out}."
        )
    if first and not resume and (there := [name for name in (CONFIG, CARD) if (out / name).exists()]):
        raise TrainingError(
            f"Expected a new folder for the model, got {str(out)!r} with a {there[0]}, which would be replaced. Name "
            "another, or --resume its training."
        )


# ---- before


def _from_scratch(options: Options, recipe: Recipe) -> tuple[ViT, Data]:
    """Return a new model of the sizes that the recipe or the options give, and the data at its size."""
    config = _config(options)  # checks the sizes before the data, which may take minutes to read
    data = _open(options, config.image_size)
    about = Pretrained(
        name=_name(options),
        preprocess=data.preprocess(*data.mean_std()),
        labels=data.labels,
        class_ids=data.class_ids,
        licence=options.get("licence", "unknown"),
        source=f"trained from scratch on {data.name}",
    )
    with torch.random.fork_rng(devices=[]):  # the same start for the same seed, whatever ran before
        torch.manual_seed(recipe.seed)
        return ViT(replace(config, classes=len(data.labels)), about), data


def _config(options: Options) -> ViTConfig:
    """Return the sizes of the recipe or the preset, with what was given in their place, for two classes."""
    sizes, name = _sizes(options), options.get("preset")
    known = {} if name or "recipe" not in options else RECIPES[options["recipe"]].model
    if not known and name is None and not {"width", "depth", "heads"} <= set(sizes):
        raise TrainingError(
            "Expected a model, got none. Give --preset, or --dim, --depth and --heads, a --recipe that has one, or "
            "--from."
        )
    native = {"image_size": (NATIVE[options["data"]],) * 2} if options["data"] in NATIVE else {}
    settings = {**known, **native, **sizes, "classes": 2}
    if not settings.get("class_token", True):
        settings.setdefault("pooling", "mean")
    return preset(name, **settings) if name else ViTConfig(**settings)


def _continued(options: Options, recipe: Recipe) -> tuple[ViT, Data]:
    """Return another model with a new head, and the data at its size."""
    sizes = _sizes(options)
    fixed = SIZES & set(options) - {"image_size", "pooling", "heads"}  # heads: of a file that does not tell
    if fixed:
        wrong = ", ".join(one.option_strings[0] for one in options["parser"]._actions if one.dest in fixed)
        raise TrainingError(f"Expected the sizes of the model that --from names, got {wrong}. Leave out one or other.")
    source = _source(options)
    data = _open(options, sizes.get("image_size", source.config.image_size))
    about = source.pretrained
    if about is None and "feed_as_source" in options:
        raise TrainingError("Expected a source with preprocessing for --feed-as-source, got one without. Leave it out.")
    model = start_from(
        source,
        data.labels,
        name=_name(options),
        class_ids=data.class_ids,
        pooling=options.get("pooling"),
        image_size=sizes.get("image_size"),
        keep_head="keep_head" in options,
        preprocess=data.preprocess(*((about.preprocess.mean, about.preprocess.std) if about else data.mean_std())),
        licence=options.get("licence"),
        data=data.name,
        seed=recipe.seed,
    )
    return model, data


def _sizes(options: Options) -> Options:
    """Return the fields of `ViTConfig` that were given."""
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
    return load(options["source"], family=options.get("family"), heads=options.get("heads"))


def _open(options: Options, size: tuple[int, int]) -> Data:
    """Open the data at the model's size."""
    given = {name: options[name] for name in ("root", "fit", "skip_broken") if name in options}
    return open_data(options["data"], size=size, **given)


def _name(options: Options) -> str:
    return str(options.get("name") or Path(options["out"]).resolve().name)


# ---- after


def _save(options: Options, outcome: Outcome, data: Data, out: Path) -> None:
    """Write the model, its card and pictures, and say how good it is."""
    before = _source(options).to(next(outcome.model.parameters()).device) if "source" in options else None
    if before is not None and "feed_as_source" in options:
        outcome = _with_preprocessing_of(before, outcome)
    if outcome.recipe.unfreeze_last == 0:
        before = None  # a new head alone looks where the old one did
    files = save_training(outcome, data, out, command=spelled(options), base=options.get("source", ""), before=before)
    five = f", top-5 {percent(outcome.accuracy.top5, 4)}" if len(data.labels) > 5 else ""
    print(
        f"top-1 {percent(outcome.accuracy.top1, 4)}{five} of {len(data.val):,} validation images; "
        f"{', '.join(files)} -> {out}"
    )


def _with_preprocessing_of(source: ViT, outcome: Outcome) -> Outcome:
    """Return the outcome with its model preprocessing as the source does, and a note on that."""
    own, theirs = outcome.model.pretrained, source.pretrained
    assert own is not None  # or it could not be trained
    assert theirs is not None  # or `_continued` had refused it
    size = outcome.model.config.image_size
    outcome.model.pretrained = replace(own, preprocess=resized(theirs.preprocess, size))
    note = (
        f"Photographs are preprocessed in the source's way ({theirs.preprocess.mode}); the figures here are of images "
        f"that were brought to {size[0]} x {size[1]} pixels as in training ({own.preprocess.mode})."
    )
    return replace(outcome, notes=(*outcome.notes, note))
