"""Options of `vitviz train`, the recipe they ask for, and the command that asks for the same again."""

import argparse
import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any, get_args

from vitviz.fields import field_types
from vitviz.images.datasets import NAMES
from vitviz.model.config import CHOICES, PRESETS, ViTConfig
from vitviz.training import TrainingError
from vitviz.training.recipes import AUGMENTATION, RECIPES, Recipe

Options = dict[str, Any]
"""The options that were given, by the names of their values. Those that were not given are not in it."""
SETTINGS = "train.json"
"""The options, in the folder of the training: `--resume` needs nothing else."""
NOT_KEPT = ("command", "run", "parser", "resume", "out", "device")
_TEACHER = ("distill", "alpha", "temperature")
_START = ("freeze", "unfreeze_last", "keep_head", "feed_as_source", "family")
_FIELDS = {one.name: one for one in dataclasses.fields(Recipe) if one.name != "name"}
SIZES = {"preset", *(one.name for one in dataclasses.fields(ViTConfig))} - set(_FIELDS)
"""Names of the options for a model from nothing."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add all options, in groups. One that is not given is not among the arguments: the recipe decides."""
    command.argument_default = argparse.SUPPRESS
    on_off = argparse.BooleanOptionalAction

    option = command.add_argument_group("data").add_argument
    about = f"{', '.join(NAMES)}; or a folder with train/ and val/ (or test/)"
    option("--data", metavar="NAME_OR_FOLDER", help=about)
    option("--root", metavar="FOLDER", help="where a named data set lies or is downloaded to (default: the cache)")
    option("--fit", choices=("squash", "crop"), help="how a picture becomes the model's size (default: squash)")
    option("--skip-broken", action="store_true", help="leave out files that cannot be read (default: refuse them)")

    option = command.add_argument_group("a model from nothing (default: the recipe's)").add_argument
    option("--preset", choices=tuple(PRESETS), help="a published size")
    option("--dim", type=int, metavar="N", dest="width", help="width of a token")
    option("--depth", type=int, metavar="N", help="blocks")
    option("--heads", type=int, metavar="N", help="attention heads in each block")
    option("--head-dim", type=int, metavar="N", dest="head_width", help="width of a head (default: dim / heads)")
    option("--mlp-dim", type=int, metavar="N", dest="mlp_width", help="width of the MLP (default: 4 x dim)")
    option("--patch", type=int, metavar="PIXELS", dest="patch_size", help="side of a patch")
    option("--image-size", type=int, metavar="PIXELS", nargs="+", help="side of the input, or height and width")
    option("--positions", choices=CHOICES["positions"], help="position embeddings (default: learned)")
    option("--pooling", choices=CHOICES["pooling"], help="what the classifier reads (default: cls)")
    option("--registers", type=int, metavar="N", help="register tokens")
    option("--class-token", action=on_off, help="whether there is a class token (default: yes)")
    option("--distillation-token", action=on_off, help="whether there is a token that learns from a teacher")
    option("--layer-scale", type=float, metavar="X", help="start value of layer scale (default: none)")
    option("--qk-norm", action=on_off, help="layer norm on queries and keys")
    option("--mlp", choices=CHOICES["mlp"], help="two layers, or gated")

    group = command.add_argument_group("or a model to start from")
    option = group.add_argument
    option("--from", metavar="SOURCE", dest="source", help="a model to start from, as --model elsewhere; new head")
    option("--freeze", choices=("backbone", "none"), help="what does not learn (default: the recipe's)")
    _add_settings(group, "unfreeze_last")
    option("--keep-head", action="store_true", help="keep the source's classifier, which has the same classes")
    about = "photographs come to the input as in the source, not as here"
    option("--feed-as-source", action="store_true", help=about)
    option("--family", help="of a source file whose tensors do not tell (see vitviz predict --help)")

    group = command.add_argument_group("a teacher")
    group.add_argument("--teacher", metavar="SOURCE", help="a model that knows these classes")
    _add_settings(group, *_TEACHER)

    group = command.add_argument_group("recipe")
    about = "settings to start from; what is given below changes them"
    group.add_argument("--recipe", choices=tuple(RECIPES), help=about)
    _add_settings(group, *(one for one in _FIELDS if one not in (*_TEACHER, *AUGMENTATION, "unfreeze_last")))

    group = command.add_argument_group("augmentation")
    about = "none of the recipe's; what is given below is added"
    group.add_argument("--no-augment", action="store_true", help=about)
    _add_settings(group, *AUGMENTATION)

    option = command.add_argument_group("run").add_argument
    option("--out", metavar="FOLDER", required=True, help="where the model, its card and its pictures go")
    option("--resume", action="store_true", help="go on where it was stopped; needs no other option than --out")
    option("--device", help="cuda, mps or cpu (default: the best there is); with torchrun on several")
    option("--name", help="of the model, for people (default: the folder's name)")
    option("--licence", help="of the model (default: the source's, else unknown)")
    option("--save-every", type=float, metavar="MINUTES", help="how often the state is saved (default: 3)")


def _add_settings(group: argparse._ArgumentGroup, *names: str) -> None:
    """Add options for fields of `Recipe`, as the fields describe themselves."""
    for name in names:
        about = {key: value for key, value in _FIELDS[name].metadata.items() if key != "range"}
        if "type" in about:
            about["metavar"] = "N" if about["type"] is int else "X"
        elif words := get_args(field_types(Recipe)[name]):
            about["choices"] = words
        else:
            about["action"] = argparse.BooleanOptionalAction
        group.add_argument(f"--{name.replace('_', '-')}", **about)


def asked_recipe(options: Options) -> Recipe:
    """Return the recipe with the given options in place of its settings.

    Raises:
        TrainingError: for options that exclude one another, or values out of range.
    """
    if "source" not in options and (given := [name for name in _START if name in options]):
        option = f"--{given[0].replace('_', '-')}"
        raise TrainingError(f"Expected a model to start from for {option}, got none. Name it with --from.")
    if "teacher" not in options and any(name in options for name in _TEACHER):
        raise TrainingError(
            "Expected a teacher for --distill, --alpha and --temperature, got none. Name it: --teacher."
        )
    if "freeze" in options and "unfreeze_last" in options:
        raise TrainingError("Expected --freeze or --unfreeze-last, got both. Leave one out.")
    gentle = ("head" if options.get("freeze") == "backbone" else "finetune") if "source" in options else None
    name = options.get("recipe", gentle)  # weights that were learnt elsewhere are not to be spoilt
    start = Recipe() if name is None else RECIPES[name].recipe
    changes = {field: options[field] for field in _FIELDS if field in options}
    if "teacher" in options:
        changes.setdefault("distill", "soft")
    if "freeze" in options:
        changes["unfreeze_last"] = 0 if options["freeze"] == "backbone" else None
    if "epochs" in changes:
        changes.setdefault("warmup", start.warmup * changes["epochs"] / start.epochs)
    if "no_augment" in options:
        changes = {one: getattr(Recipe, one) for one in AUGMENTATION} | changes
    recipe = dataclasses.replace(start, **changes)
    if recipe.unfreeze_last is not None and "source" not in options:
        raise TrainingError(f"Expected a model to start from for recipe {start.name!r}, got none. Name it with --from.")
    unchanged = recipe == start or start.name == Recipe.name
    return recipe if unchanged else dataclasses.replace(recipe, name=f"{start.name}, changed")


# ---- the same again


def keep(options: Options, folder: Path) -> None:
    """Write the options into the folder of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in options.items() if name not in NOT_KEPT}
    beside = folder / f".{SETTINGS}.new"
    beside.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, folder / SETTINGS)


def recalled(options: Options) -> Options:
    """Return the options of a training that goes on: those that were kept, and what is given now in their place.

    Raises:
        TrainingError: if none were kept, or this version does not take them.
    """
    path = Path(options["out"]) / SETTINGS
    try:
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"Expected options in {str(path)!r} for --resume, got: {error}. Give them all.") from error
    known = {action.dest for action in options["parser"]._actions} - set(NOT_KEPT)
    if unknown := sorted(set(kept) - known):
        raise TrainingError(f"Expected options of this version in {str(path)!r}, got {unknown[0]}. Give all again.")
    return kept | options


def spelled(options: Options) -> str:
    """Return the command that asks for the same, on several lines, without `--device` and `--resume`."""
    lines = ["vitviz train"]
    for action in options["parser"]._actions:
        value = options.get(action.dest)
        if value is None or action.dest in ("resume", "device"):
            continue
        if isinstance(value, bool):
            part = action.option_strings[0 if value else -1]
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            part = shlex.join([action.option_strings[0], *map(str, values)])
        if len(lines[-1]) + len(part) > 96:
            lines.append(f" {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n ".join(lines)
