"""What `vitviz train` takes, and how it becomes a recipe, a model's sizes and a line that does the same again."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitviz.config import CHOICES, PRESETS
from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.recipes import RECIPES, Recipe
from vitviz.training.sources import NAMES

SETTINGS = "train.json"
"""What was asked for, in the folder of the training: `--resume` needs nothing else."""
NOT_KEPT = ("command", "run", "parser", "resume", "out", "device")

_Table = Sequence[tuple[str, Mapping[str, Any]]]
_ON_OFF: Mapping[str, Any] = {"action": argparse.BooleanOptionalAction}

DATA: _Table = (
    (
        "--data",
        {"metavar": "NAME_OR_FOLDER", "help": f"{', '.join(NAMES)}; or a folder with train/ and val/ (or test/)"},
    ),
    ("--root", {"metavar": "FOLDER", "help": "where a named data set lies or is downloaded to (default: the cache)"}),
    ("--fit", {"choices": ("squash", "crop"), "help": "how a picture becomes the model's size (default: squash)"}),
    ("--skip-broken", {"action": "store_true", "help": "leave out files that cannot be read (default: refuse them)"}),
)
MODEL: _Table = (
    ("--preset", {"choices": tuple(PRESETS), "help": "a published size"}),
    ("--dim", {"dest": "width", "type": int, "metavar": "N", "help": "width of a token"}),
    ("--depth", {"type": int, "metavar": "N", "help": "blocks"}),
    ("--heads", {"type": int, "metavar": "N", "help": "attention heads in each block"}),
    (
        "--head-dim",
        {"dest": "head_width", "type": int, "metavar": "N", "help": "width of a head (default: dim / heads)"},
    ),
    ("--mlp-dim", {"dest": "mlp_width", "type": int, "metavar": "N", "help": "width of the MLP (default: 4 x dim)"}),
    ("--patch", {"dest": "patch_size", "type": int, "metavar": "PIXELS", "help": "side of a patch"}),
    (
        "--image-size",
        {"type": int, "nargs": "+", "metavar": "PIXELS", "help": "side of the input, or height and width"},
    ),
    ("--positions", {"choices": CHOICES["positions"], "help": "position embeddings (default: learned)"}),
    ("--pooling", {"choices": CHOICES["pooling"], "help": "what the classifier reads (default: cls)"}),
    ("--registers", {"type": int, "metavar": "N", "help": "register tokens"}),
    ("--class-token", {**_ON_OFF, "help": "whether there is a class token (default: yes)"}),
    ("--distillation-token", {**_ON_OFF, "help": "whether there is a token that learns from a teacher"}),
    ("--layer-scale", {"type": float, "metavar": "X", "help": "start value of layer scale (default: none)"}),
    ("--qk-norm", {**_ON_OFF, "help": "layer norm on queries and keys"}),
    ("--mlp", {"choices": CHOICES["mlp"], "help": "two layers, or gated"}),
)
START: _Table = (
    (
        "--from",
        {"dest": "source", "metavar": "SOURCE", "help": "a model to start from, as --model elsewhere; new head"},
    ),
    ("--freeze", {"choices": ("backbone", "none"), "help": "what does not learn (default: the recipe's)"}),
    ("--unfreeze-last", {"type": int, "metavar": "K", "help": "only the last K blocks and the head learn"}),
    (
        "--feed-as-source",
        {"action": "store_true", "help": "photographs come to the input as in the source, not as here"},
    ),
    ("--family", {"help": "of a source file whose tensors do not tell (see vitviz predict --help)"}),
)
TEACHER: _Table = (
    ("--teacher", {"metavar": "SOURCE", "help": "a model that knows these classes"}),
    ("--distill", {"choices": ("soft", "hard"), "help": "learn its probabilities, or its best class (default: soft)"}),
    ("--alpha", {"type": float, "metavar": "X", "help": "its share of the loss (default: 0.1 soft, 0.5 hard)"}),
    ("--temperature", {"type": float, "metavar": "T", "help": "of soft targets (default: 3)"}),
)
RECIPE: _Table = (
    ("--recipe", {"choices": tuple(RECIPES), "help": "settings to start from; what is given below changes them"}),
    ("--epochs", {"type": int, "metavar": "N", "help": "passes over the data; warm-up keeps its share"}),
    ("--batch", {"type": int, "metavar": "N", "help": "images of a step, over all processes"}),
    ("--lr", {"type": float, "metavar": "X", "help": "learning rate after warm-up"}),
    ("--head-lr", {"type": float, "metavar": "X", "help": "that of the classifier (default: the same)"}),
    ("--layer-decay", {"type": float, "metavar": "X", "help": "each block's rate, as a share of the next one's"}),
    ("--weight-decay", {"type": float, "metavar": "X", "help": "of AdamW"}),
    ("--betas", {"type": float, "nargs": 2, "metavar": ("B1", "B2"), "help": "of AdamW"}),
    ("--warmup", {"type": float, "metavar": "EPOCHS", "help": "in which the rate grows"}),
    ("--final-lr", {"type": float, "metavar": "X", "help": "rate at the end of the cosine, as a share of --lr"}),
    ("--smoothing", {"type": float, "metavar": "X", "help": "label smoothing"}),
    ("--dropout", {"type": float, "metavar": "X", "help": "of tokens and branches"}),
    ("--path-dropout", {"type": float, "metavar": "X", "help": "stochastic depth of the last block"}),
    ("--patch-dropout", {"type": float, "metavar": "X", "help": "patches that an image goes without; none at the end"}),
    ("--ema", {"type": float, "metavar": "X", "help": "decay of the running mean of the weights; 0 for none"}),
    ("--clip", {"type": float, "metavar": "X", "help": "longest gradient; 0 for any"}),
    ("--accumulate", {"type": int, "metavar": "N", "help": "parts of a batch, for less memory"}),
    ("--precision", {"choices": ("float32", "bfloat16", "float16"), "help": "of matrix products"}),
    ("--compile", {**_ON_OFF, "help": "use torch.compile"}),
    ("--seed", {"type": int, "metavar": "N", "help": "what all randomness comes from (default: 0)"}),
)
AUGMENT: _Table = (
    ("--no-augment", {"action": "store_true", "help": "none of the recipe's; what is given below is added"}),
    ("--crop-padding", {"type": int, "metavar": "PIXELS", "help": "pad, then cut out a window"}),
    ("--flip", {**_ON_OFF, "help": "mirror half of the images"}),
    (
        "--resized-crop",
        {"type": float, "nargs": 2, "metavar": ("LEAST", "MOST"), "help": "cut out this share of the area"},
    ),
    ("--policy", {"choices": ("none", "trivial", "rand"), "help": "TrivialAugment or RandAugment"}),
    ("--erase", {"type": float, "metavar": "X", "help": "share of images with an erased rectangle"}),
    ("--mixup", {"type": float, "metavar": "ALPHA", "help": "mix pairs of images"}),
    ("--cutmix", {"type": float, "metavar": "ALPHA", "help": "paste a part of another image"}),
    ("--group", {"type": int, "metavar": "N", "help": "images that are mixed with one another"}),
)
RUN: _Table = (
    ("--out", {"required": True, "metavar": "FOLDER", "help": "where the model, its card and its pictures go"}),
    ("--resume", {"action": "store_true", "help": "go on where it was stopped; needs no other option than --out"}),
    ("--device", {"help": "cuda, mps or cpu (default: the best there is); with torchrun on several"}),
    ("--name", {"help": "of the model, for people (default: the folder's name)"}),
    ("--licence", {"help": "of the model (default: the source's, else unknown)"}),
    ("--save-every", {"type": float, "metavar": "MINUTES", "help": "how often the state is saved (default: 3)"}),
)
GROUPS: Mapping[str, _Table] = {
    "data": DATA,
    "a model from nothing (default: the recipe's)": MODEL,
    "or a model to start from": START,
    "a teacher": TEACHER,
    "recipe": RECIPE,
    "augmentation": AUGMENT,
    "run": RUN,
}


def add_options(command: argparse.ArgumentParser) -> None:
    """All options, in groups. One that is not given is not among the arguments: the recipe decides."""
    for title, table in GROUPS.items():
        group = command.add_argument_group(title)
        for option, settings in table:
            group.add_argument(option, default=argparse.SUPPRESS, **settings)


def given(args: argparse.Namespace, table: _Table) -> dict[str, Any]:
    """Those options of a group that were given, by the names of their values."""
    names = [settings.get("dest", option.removeprefix("--").replace("-", "_")) for option, settings in table]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def asked_recipe(args: argparse.Namespace) -> Recipe:
    """The recipe with what was given in place of its settings.

    Raises:
        TrainingError: for options that exclude one another, or values that make no sense.
    """
    changes = given(args, RECIPE) | given(args, TEACHER)
    start = RECIPES[changes.pop("recipe", _default(args))].recipe if _default(args) or "recipe" in changes else Recipe()
    teacher = changes.pop("teacher", None)
    if teacher is not None:
        changes.setdefault("distill", "soft")
    elif any(name in changes for name in ("distill", "alpha", "temperature")):
        raise TrainingError("--distill, --alpha and --temperature are about a teacher: name one with --teacher.")
    changes |= _frozen(args)
    if "epochs" in changes and "warmup" not in changes:
        changes["warmup"] = start.warmup * changes["epochs"] / start.epochs
    if "betas" in changes:
        changes["betas"] = tuple(changes["betas"])
    mixed = given(args, AUGMENT)
    augment = Augment() if mixed.pop("no_augment", False) else start.augment
    if "resized_crop" in mixed:
        mixed["resized_crop"] = tuple(mixed["resized_crop"])
    changes["augment"] = dataclasses.replace(augment, **mixed)
    asked = dataclasses.replace(start, **changes)
    if asked.unfreeze_last is not None and not hasattr(args, "source"):
        raise TrainingError(f"--recipe {start.name} keeps blocks of a model as they are: name the model with --from.")
    named = asked == start or start.name == Recipe.name
    return asked if named else dataclasses.replace(asked, name=f"{start.name}, changed")


def _default(args: argparse.Namespace) -> str | None:
    """The recipe where none is named: gentle with weights that were learnt elsewhere."""
    if not hasattr(args, "source"):
        return None
    return "head" if getattr(args, "freeze", "") == "backbone" else "finetune"


def _frozen(args: argparse.Namespace) -> dict[str, int | None]:
    start = given(args, START)
    if "freeze" in start and "unfreeze_last" in start:
        raise TrainingError("--freeze and --unfreeze-last both say what learns: give one of them.")
    if "source" not in start and start:
        raise TrainingError(
            f"--{next(iter(start)).replace('_', '-')} is about a model to start from: name it with --from."
        )
    if "freeze" in start:
        return {"unfreeze_last": 0 if start["freeze"] == "backbone" else None}
    return {"unfreeze_last": start["unfreeze_last"]} if "unfreeze_last" in start else {}


# --- the same again


def keep(args: argparse.Namespace, folder: Path) -> None:
    """Write what was asked for into the folder of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: value for name, value in vars(args).items() if name not in NOT_KEPT}
    beside = folder / f".{SETTINGS}.new"
    beside.write_text(json.dumps(asked, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, folder / SETTINGS)


def recalled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a training that goes on: what was kept, and what is given now in its place.

    Raises:
        TrainingError: if nothing was kept, or what was kept is not what this version takes.
    """
    path = Path(args.out) / SETTINGS
    if not path.is_file():
        raise TrainingError(f"--resume: expected {str(path)!r}, which a training leaves, and there is none.")
    known = {action.dest for action in args.parser._actions} - set(NOT_KEPT)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainingError(f"--resume: {str(path)!r} is not JSON ({error}). Give all options again.") from error
    if not isinstance(kept, dict) or not set(kept) <= known:
        raise TrainingError(f"--resume: {str(path)!r} is not what this version wrote. Give all options again.")
    return argparse.Namespace(**{**kept, **vars(args)})


def spelled(args: argparse.Namespace) -> str:
    """The command that asks for the same, on one line or several; where it runs and `--resume` are left out."""
    parts = ["vitviz train"]
    for action in args.parser._actions:
        value = getattr(args, action.dest, None)
        if not action.option_strings or value is None or action.dest in ("help", "resume", "device"):
            continue
        option = action.option_strings[0]
        if isinstance(value, bool):
            parts.append(option if value else action.option_strings[-1])
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            parts.append(shlex.join([option, *map(str, values)]))
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) > 96:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}"
    return "\n".join(lines)
