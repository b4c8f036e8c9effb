"""Define the options of `vitviz train`, build the recipe from them, and format the command that reproduces them."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from vitviz.cli.models import data_sets
from vitviz.cli.options import LIKE, PATH, Command, LazyHelp, Several
from vitviz.fields import field_types
from vitviz.model.config import CHOICES, PRESETS, ViTConfig
from vitviz.training import TrainingError
from vitviz.training.recipes import AUGMENTATION, RECIPES, Recipe
from vitviz.writing import write

Options = dict[str, Any]
"""Option values by name."""
SAVED_OPTIONS = "train.json"
"""File with the options in the training folder, which `--resume` reads."""
NOT_SAVED = ("resume", "out", "device", "quiet")
_STARTED = "started in"  # saved with the options: the folder that relative paths start from
_TEACHER = ("distill", "alpha", "temperature")
_START = ("extend", "freeze", "unfreeze_last", "keep_head", "feed_as_source", "like")
_FIELDS = {field.name: field for field in dataclasses.fields(Recipe) if field.name != "name"}
SIZES = {"preset", "qk_norm", *(field.name for field in dataclasses.fields(ViTConfig))} - set(_FIELDS)
"""Names of the options for a new model."""


def _count(about: str, *names: str) -> click.Option:
    return click.Option(names, type=int, metavar="N", help=about)


def _flag(name: str, about: str) -> click.Option:
    """Return an option that is absent from the parsed options unless the user gives it."""
    return click.Option([name], is_flag=True, default=None, help=about)


def _on_off(name: str, about: str) -> click.Option:
    return click.Option([f"--{name}/--no-{name}"], default=None, help=about)


def _choice(name: str, choices: Iterable[str], about: str) -> click.Option:
    return click.Option([name], type=click.Choice([*choices]), help=about)


def _settings(*names: str) -> list[click.Option]:
    """Return options for fields of `Recipe`, built from the fields' metadata."""
    return [_setting(name.replace("_", "-"), _FIELDS[name].metadata, field_types(Recipe)[name]) for name in names]


def _setting(name: str, about: Mapping[str, Any], kind: Any) -> click.Option:
    if "type" in about:
        metavar, count = "N" if about["type"] is int else "X", about["nargs"] or 1
        return click.Option(
            [f"--{name}"], type=about["type"], nargs=count, metavar=" ".join([metavar] * count), help=about["help"]
        )
    choices = get_args(kind)
    return _choice(f"--{name}", choices, about["help"]) if choices else _on_off(name, about["help"])


def _data() -> str:
    return f"{data_sets()}; or a folder with train/ and val/ (or test/), or of classes"


GROUPS: dict[str, list[click.Option]] = {
    "Data": [
        LazyHelp(["--data"], type=PATH, metavar="NAME_OR_FOLDER", compute_help=_data),
        click.Option(["--root"], type=PATH, metavar="FOLDER", help="folder of a named data set (default: the cache)"),
        _choice("--fit", ("squash", "crop"), "how pictures are resized to the model's input (default: squash)"),
        _flag("--skip-broken", "skip files that cannot be read (default: stop with an error)"),
        click.Option(
            ["--val-share"], type=float, metavar="X", help="validation share of a folder of classes, drawn with --seed"
        ),
        _flag("--allow-duplicates", "allow photographs in two classes or in both splits (default: stop with an error)"),
    ],
    "A new model (default: the recipe's)": [
        _choice("--preset", PRESETS, "a published size"),
        _count("width of a token", "--dim", "width"),
        _count("blocks", "--depth"),
        _count("attention heads in each block", "--heads"),
        _count("width of a head (default: dim / heads)", "--head-dim", "head_width"),
        _count("width of the MLP (default: 4 × dim)", "--mlp-dim", "mlp_width"),
        click.Option(["--patch", "patch_size"], type=int, metavar="PIXELS", help="side of a patch"),
        Several(["--image-size"], type=int, metavar="PIXELS", help="side of the input, or height and width"),
        _choice("--positions", CHOICES["positions"], "position embeddings (default: learned)"),
        _choice("--pooling", CHOICES["pooling"], "input of the classifier (default: cls)"),
        _count("register tokens", "--registers"),
        _on_off("class-token", "use a class token (default: yes)"),
        _on_off("distillation-token", "use a token that learns from a teacher"),
        click.Option(["--layer-scale"], type=float, metavar="X", help="initial value of layer scale (default: none)"),
        _on_off("qk-norm", "layer norm on queries and keys"),
        _choice("--mlp", CHOICES["mlp"], "MLP with two layers, or gated"),
        _choice("--activation", CHOICES["activation"], "GELU, or its tanh or sigmoid approximation"),
    ],
    "Or a model to start from": [
        click.Option(["--from", "source"], type=PATH, metavar="SOURCE", help="source model; gets a new head"),
        _choice("--freeze", ("backbone", "none"), "what to freeze (default: the recipe's)"),
        *_settings("unfreeze_last"),
        click.Option(
            ["--extend"], type=int, metavar="EPOCHS",
            help="train the finished model in --from for EPOCHS more, with its head, data and recipe",
        ),
        _flag("--keep-head", "keep the source's classifier (same classes)"),
        _flag("--feed-as-source", "preprocess photographs like the source"),
        click.Option(["--like"], type=PATH, metavar="SOURCE", help=f"{LIKE}; only with --from"),
    ],
    "A teacher": [
        click.Option(
            ["--teacher"], type=PATH, metavar="SOURCE",
            help="a model with these classes, or any classifier as torchvision:NAME or timm:NAME",
        ),
        *_settings(*_TEACHER),
    ],
    "Recipe": [
        _choice("--recipe", RECIPES, "base settings; the options below override them"),
        *_settings(*(name for name in _FIELDS if name not in (*_TEACHER, *AUGMENTATION, "unfreeze_last"))),
    ],
    "Augmentation": [
        _flag("--no-augment", "leave out the recipe's augmentation; the options below add their own"),
        *_settings(*AUGMENTATION),
    ],
    "Run": [
        click.Option(["--out"], type=PATH, metavar="FOLDER", required=True, help="folder for model, card and pictures"),
        _flag("--resume", "continue an interrupted training run; needs only --out"),
        click.Option(["--device"], help="cuda, mps or cpu (default: the best available); torchrun uses several"),
        click.Option(["--name"], help="display name of the model (default: the folder's name)"),
        click.Option(["--licence"], help="licence of the model (default: the source's, else unknown)"),
        click.Option(["--save-every"], type=float, metavar="MINUTES", help="minutes between saved states (default: 3)"),
        _flag("--quiet", "hide progress and notes"),
    ],
}  # fmt: skip
ALL = [option for group in GROUPS.values() for option in group]


class TrainCommand(Command):
    """Command whose options are listed in groups, with the recipes after them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, and the recipes."""
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([record for option in group if (record := option.get_help_record(ctx))])
        with formatter.section("Recipes"):
            texts = ((name, (known.about, known.reached)) for name, known in RECIPES.items())
            formatter.write_dl([(name, " ".join(filter(None, parts))) for name, parts in texts])


def given_options(options: Options) -> Options:
    """Return the options without unset values."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def build_recipe(options: Options) -> Recipe:
    """Return the recipe of `--recipe`, or the default one, with its settings overridden by options.

    Raises:
        TrainingError: for options that exclude one another, or values out of range.
    """
    if "source" not in options and (names := [name for name in _START if name in options]):
        option = f"--{names[0].replace('_', '-')}"
        raise TrainingError(f"Expected a model to start from for {option}, got none. Name it with --from.")
    if "teacher" not in options and any(name in options for name in _TEACHER):
        raise TrainingError(
            "Expected a teacher for --distill, --alpha and --temperature, got none. Name it: --teacher."
        )
    if "freeze" in options and "unfreeze_last" in options:
        raise TrainingError("Expected --freeze or --unfreeze-last, got both. Leave one out.")
    name = options.get("recipe", _default_recipe(options))
    start = RECIPES[name].recipe if name in RECIPES else Recipe()
    changes = {field: options[field] for field in _FIELDS if field in options}
    if "teacher" in options:
        changes.setdefault("distill", "soft")
    if "freeze" in options:
        changes["unfreeze_last"] = 0 if options["freeze"] == "backbone" else None
    if "epochs" in changes:
        changes.setdefault("warmup", start.warmup * changes["epochs"] / start.epochs)
    if "no_augment" in options:
        changes = {field: getattr(Recipe, field) for field in AUGMENTATION} | changes
    recipe = dataclasses.replace(start, **changes)
    if recipe.unfreeze_last is not None and "source" not in options:
        raise TrainingError(f"Expected a model to start from for recipe {start.name!r}, got none. Name it with --from.")
    unchanged = recipe == start or start.name == Recipe.name
    return recipe if unchanged else dataclasses.replace(recipe, name=f"{start.name}, changed")


def _default_recipe(options: Options) -> str:
    """Return the name of the default recipe; for pretrained weights, one with smaller updates."""
    if "source" not in options:
        return Recipe.name
    return "head" if options.get("freeze") == "backbone" else "finetune"


# ---- saved options


def save_options(options: Options, folder: Path) -> None:
    """Write the options into the training folder."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: value for name, value in options.items() if name not in NOT_SAVED}
    saved[_STARTED] = os.getcwd()
    write(folder / SAVED_OPTIONS, json.dumps(saved, indent=2, ensure_ascii=False) + "\n")


def resumed_options(options: Options) -> Options:
    """Return the saved options of the training run that `--resume` continues, overridden by `options`.

    Raises:
        TrainingError: if no options were saved, or this version does not have one of them.
    """
    return _load_options(Path(options["out"]), "--resume", "source", "teacher") | options


def extended_options(options: Options) -> Options:
    """Return the saved options of the training run that `--extend` continues, except its model's, and `options`.

    Raises:
        TrainingError: if that training run has no saved options, or `options` would change its data.
    """
    if "epochs" in options:
        raise TrainingError("Expected --extend or --epochs, got both. --extend is the number of further epochs.")
    before = _load_options(Path(options["source"]), "--extend")
    if "extend" in before:
        before = extended_options(before)
    if "val_share" in before and options.get("seed", before.get("seed", 0)) != before.get("seed", 0):
        raise TrainingError(
            "Expected the --seed that split the images, got another, which would validate on training images. Leave "
            "--seed out."
        )
    if changed := [
        name for name in ("data", "root", "val_share") if options.get(name, before.get(name)) != before.get(name)
    ]:
        raise TrainingError(
            f"Expected the data of the training run in {options['source']!r} for --extend, got another "
            f"--{changed[0].replace('_', '-')}. "
            "Leave it out, or train on other data with --from alone."
        )
    new = {"epochs": options["extend"], "keep_head": True}
    from_scratch = SIZES | {"source", "like", "epochs", "warmup", "name", "licence"}
    inherited = {name: value for name, value in before.items() if name not in from_scratch}
    if "recipe" not in before:  # the default depends on the options of that training run
        inherited["recipe"] = _default_recipe(before)
    return inherited | options | new


def _load_options(folder: Path, purpose: str, *more: str) -> Options:
    """Return the saved options of a training run, after a check of its data's paths, and of `more` paths of models."""
    from vitviz.images.datasets import NAMES

    path = folder / SAVED_OPTIONS
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"Expected options in {str(path)!r} for {purpose}, got: {error}. Pass them all.") from error
    started = Path(saved.pop(_STARTED, ""))
    for name in ("data", "root", *more):
        path = Path(saved.get(name, "."))
        is_path = (started / path).exists() or (name not in more and str(path) not in NAMES)  # else a model's name
        if is_path and not path.exists() and not path.is_absolute() and started.is_absolute():
            raise TrainingError(
                f"Expected {str(path)!r} in the current folder, got none: this path of the training run is relative to "
                f"{str(started)!r}, the folder where it was started. Repeat the command there."
            )
    known = {option.name for option in ALL} - set(NOT_SAVED)
    if unknown := sorted(set(saved) - known):
        raise TrainingError(f"Expected options of this version in {str(path)!r}, got {unknown[0]}. Pass all again.")
    return saved


def format_command(options: Options) -> str:
    """Format the command with these options, on several lines, without `--device`, `--resume` and `--quiet`."""
    lines = ["vitviz train"]
    for option in ALL:
        value = options.get(str(option.name))
        if value is None or option.name in ("resume", "device", "quiet"):
            continue
        if isinstance(value, bool):
            part = (option.opts if value else option.secondary_opts)[0]
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            part = shlex.join([option.opts[0], *map(str, values)])
        if len(lines[-1]) + len(part) > 96:
            lines.append(f" {part}")
        else:
            lines[-1] += f" {part}"
    return " \\\n ".join(lines)
