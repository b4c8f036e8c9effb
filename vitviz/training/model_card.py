"""Write model cards: the model, its data, training and accuracy, and how to reproduce it.

Mitchell et al. 2019, "Model Cards for Model Reporting". Hugging Face reads the front matter.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

from vitviz import __version__
from vitviz.formatting import abbreviate, markdown_table, percent
from vitviz.model.vit import Pretrained
from vitviz.training.data import Data, count_range
from vitviz.training.loop import Outcome

LICENCES = {
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "unknown", "unlicense", "wtfpl"
}  # fmt: skip
"""Licence ids of Hugging Face; any other licence gets the id "other" and a name."""
END = (
    "## Use\n\n```sh\nvitviz predict photo.jpg --model FOLDER\nvitviz app --model FOLDER\n```\n\n"
    '```python\nimport vitviz\n\nview = vitviz.Explorer(vitviz.load("FOLDER")).open("photo.jpg")\n'
    "view.predictions()\n```\n\n`config.json` contains the sizes, the preprocessing and the labels, and "
    "`model.safetensors` the weights. Loading them runs no code from the files.\n\n"
    "## Limits\n\nThe model knows {} classes. For anything else it still returns one of them, sometimes with high "
    "confidence. The figures above apply to images like the training images; photographs from other cameras, places "
    "and times are harder.\n"
)
MANY = 30  # number of classes listed; further classes are only counted
TASK = "image-classification"


def model_card(
    outcome: Outcome, data: Data, *, command: str = "", base: str = "", size: int, pictures: Mapping[str, str]
) -> str:
    """Return the card as Markdown with YAML front matter.

    Args:
        outcome: the result of the training run; its model has `pretrained`.
        data: the training data.
        command: the command that trains the model again; empty if it was trained from Python.
        base: the base model, as `vitviz.load` takes it; empty if trained from scratch.
        size: bytes of the weights file.
        pictures: file names of the pictures next to the card, with a description of each.
    """
    about = outcome.model.pretrained
    assert about is not None  # the model was saved before its card
    parts = [
        _front_matter(outcome, about, data, base),
        f"# {about.name}\n",
        _model(outcome, about, base, size),
        _results(outcome, data),
        "".join(f"![{_cell(text)}]({name})\n\n" for name, text in pictures.items()),
        _data(data),
        _training(outcome, command),
        END.format(len(data.labels)),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _front_matter(outcome: Outcome, about: Pretrained, data: Data, base: str) -> str:
    """Return the YAML front matter for model registries."""
    from huggingface_hub import EvalResult, ModelCardData

    licence = about.licence.strip().lower()
    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=data.name,
            dataset_name=data.name,
            dataset_split="validation",
            metric_type="accuracy",
            metric_name=name,
            metric_value=round(value, 6),
        )
        for name, value in _accuracies(outcome)
    ]
    fields = ModelCardData(
        license=licence if licence in LICENCES else "other",
        license_name=None if licence in LICENCES else about.licence,
        base_model=base.removeprefix("hf:") or None,
        library_name="vitviz",
        pipeline_tag=TASK,
        tags=["vision-transformer"],
        datasets=[data.name],
        metrics=["accuracy"],
        model_name=about.name,
        eval_results=results,
    )
    return f"---\n{fields.to_yaml()}\n---\n"


def _accuracies(outcome: Outcome) -> list[tuple[str, float]]:
    """Return top-1 accuracy, and top-5 accuracy if there are more than five classes."""
    accuracy = outcome.accuracy
    return [("top-1", accuracy.top1), *([("top-5", accuracy.top5)] if len(accuracy.labels) > 5 else [])]


def _model(outcome: Outcome, about: Pretrained, base: str, size: int) -> str:
    config = outcome.model.config
    count = sum(parameter.numel() for parameter in outcome.model.parameters())
    megabytes = f"{size / 1e6:.0f}" if size >= 1e7 else f"{size / 1e6:.2g}"
    sizes = f"{config.depth} blocks, {config.heads} heads, width {config.width}, patches of {config.patch_size} × "
    sizes += f"{config.patch_size} pixels, {config.position_kind} positions"
    sizes += f", {config.registers} registers" * bool(config.registers)
    sizes += ", a distillation token" * config.distillation_token
    start = f"It started from `{base}`." if base else "It was trained from scratch."
    return (
        f"A Vision Transformer with {sizes}, {count:,} parameters, {megabytes} MB. {start} Its input is "
        f"{config.image_size[0]} × {config.image_size[1]} pixels.\n\n"
        f"It has {len(about.labels)} classes: {abbreviate(about.labels, MANY)}.\n\nLicence: {about.licence}.\n"
    )


def _results(outcome: Outcome, data: Data) -> str:
    shares = " and ".join(f"**{name} {percent(value, 4)}**" for name, value in _accuracies(outcome))
    weights = "the running mean of the weights" if outcome.recipe.ema else "the last weights"
    text = (
        f"## How good it is\n\n{shares} on {outcome.accuracy.images:,} validation images of {data.name} (cross entropy "
        f"{outcome.accuracy.loss:.4f}), with {weights} after the last epoch; no epoch was selected by its accuracy.\n"
    )
    rows = [(label, f"{count:,}", percent(top1, 4)) for label, count, top1, _ in outcome.accuracy.per_class]
    table = _table(("class", "images", "right"), rows)
    if len(rows) > MANY:
        table = f"<details><summary>Each class</summary>\n\n{table}\n\n</details>"
    return f"{text}\n{table}\n"


def _data(data: Data) -> str:
    train, val = (count_range(data.counts(split)) for split in (data.train, data.val))
    text = (
        f"## Data\n\n{data.name} ({data.source}): {len(data.train):,} training images ({train} per class), "
        f"{len(data.val):,} validation images ({val}). Licence of the images: {data.licence}.\n"
    )
    text += f"\n{len(data.left_out)} files could not be read and were left out.\n" * bool(data.left_out)
    if data.duplicates:
        text += (
            f"\n{len(data.duplicates)} photographs are in two classes or in both splits (`--allow-duplicates`), so the "
            "accuracy may be too high: a validation image that was also used for training tests nothing.\n"
        )
    return text


def _training(outcome: Outcome, command: str) -> str:
    script = f"```sh\n{command}\n```\n\n" if command else ""
    processes = f", {outcome.processes} processes" if outcome.processes > 1 else ""
    notes = "".join(f"\n- {note}" for note in outcome.notes) + "\n" * bool(outcome.notes)
    table = _table(("setting", "value"), ((name, _value(value)) for name, value in asdict(outcome.recipe).items()))
    versions = f"vitviz {__version__}, torch {torch.__version__}, numpy {np.__version__}, Pillow {PIL.__version__}"
    return (
        f"## How it was trained\n\n{script}{len(outcome.epochs)} epochs in {_duration(outcome.seconds)} on "
        f"{outcome.device}{processes} ({_machine()}); seed {outcome.recipe.seed}; {versions}, Python "
        f"{platform.python_version()}. Each epoch is a row of `curves.csv`.\n{notes}\n{table}\n"
    )


def _machine() -> str:
    """Describe the machine: processor, cores, system."""
    name, cores = platform.processor() or platform.machine(), os.cpu_count() or 1
    if (info := Path("/proc/cpuinfo")).is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {cores} cores, {platform.system()}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_value, value)) if isinstance(value, (tuple, list)) else str(value)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with the cells escaped."""
    return markdown_table([header, *([*map(_cell, row)] for row in rows)])


def _cell(text: str) -> str:
    """Escape a text for table cells and picture descriptions."""
    return re.sub(r"([\\|\[\]<`])", r"\\\1", " ".join(text.split()))
