"""A model card: what a trained model is, what it was trained on and how, how good it is, and how to do it again.

Mitchell et al. 2019, "Model Cards for Model Reporting". The front matter is what Hugging Face reads, as YAML; every
value in it is JSON, which is YAML too, so that no name of a class or a folder can break it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

from vitviz.config import ViTConfig
from vitviz.model import Pretrained
from vitviz.training.data import Data
from vitviz.training.engine import Outcome

LICENCES = {
    "apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "unknown", "unlicense", "wtfpl"
}  # fmt: skip
"""Those that Hugging Face knows by these names; all others are "other" there, with a name of their own."""
MANY = 30  # classes; more are folded away


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a card says beside what training found.

    Args:
        version: of vitviz.
        command: what trains the model again; empty where it was trained from Python.
        size: of the file of weights, in bytes.
        base: what it started from, as `vitviz.load` takes it; empty for a model from scratch.
        pictures: names of the pictures beside the card, and what each shows.
    """

    version: str
    command: str = ""
    size: int = 0
    base: str = ""
    pictures: Mapping[str, str]


def card(outcome: Outcome, data: Data, facts: Facts) -> str:
    """The model card as Markdown with YAML front matter."""
    about = outcome.model.pretrained
    assert about is not None  # a model is saved before it has a card
    parts = [
        front_matter(outcome, data, facts),
        f"# {about.name}\n",
        _what(outcome, about, facts),
        _results(outcome, data),
        "".join(f"![{_cell(words)}]({name})\n\n" for name, words in facts.pictures.items()),
        _data(data),
        _how(outcome, facts),
        _use(facts),
        _limits(data),
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def front_matter(outcome: Outcome, data: Data, facts: Facts) -> str:
    """What registries of models read, between two lines of dashes."""
    about = outcome.model.pretrained
    assert about is not None
    licence = about.licence.strip().lower()
    fields: dict[str, Any] = {"license": licence if licence in LICENCES else "other"}
    if fields["license"] == "other":
        fields["license_name"] = about.licence
    if facts.base:
        fields["base_model"] = facts.base.removeprefix("hf:")
    fields |= {"library_name": "vitviz", "pipeline_tag": "image-classification", "tags": ["vision-transformer"]}
    fields |= {"datasets": [data.name], "metrics": ["accuracy"]}
    metrics = [{"type": "accuracy", "name": f"top-{k}", "value": round(v, 6)} for k, v in _tops(outcome)]
    named = {"name": data.name, "type": data.name, "split": "validation"}
    result = {"task": {"type": "image-classification"}, "dataset": named, "metrics": metrics}
    fields["model-index"] = [{"name": about.name, "results": [result]}]
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _tops(outcome: Outcome) -> list[tuple[int, float]]:
    """Top-1, and top-5 where there are more than five classes."""
    return [(1, outcome.top1), *([(5, outcome.top5)] if len(outcome.confusion) > 5 else [])]


def _what(outcome: Outcome, about: Pretrained, facts: Facts) -> str:
    model, config = outcome.model, outcome.model.config
    count = sum(parameter.numel() for parameter in model.parameters())
    begins = f"It started from `{facts.base}`. " if facts.base else "It was trained from scratch. "
    classes = ", ".join(about.labels[:MANY]) + (f" and {len(about.labels) - MANY} more" * (len(about.labels) > MANY))
    return (
        f"A Vision Transformer: {config_words(config)}; {count:,} parameters, {size_words(facts.size)}. {begins}"
        f"It reads images of {config.image_size[0]} x {config.image_size[1]} pixels.\n\n"
        f"It tells apart {len(about.labels)} classes: {classes}.\n\nLicence: {about.licence}.\n"
    )


def config_words(config: ViTConfig) -> str:
    """A model's sizes as a person says them."""
    words = f"{config.depth} blocks, {config.heads} heads, width {config.width}, patches of {config.patch_size} x "
    words += f"{config.patch_size} pixels, {config.positions} positions"
    words += f", {config.registers} registers" if config.registers else ""
    return words + (", a distillation token" if config.distillation_token else "")


def size_words(size: int) -> str:
    """Bytes as megabytes, with the digits that matter."""
    megabytes = size / 1e6
    return f"{megabytes:.0f} MB" if megabytes >= 10 else f"{megabytes:.2g} MB"


def _results(outcome: Outcome, data: Data) -> str:
    confusion = outcome.confusion
    counts, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    share = [f"**top-{k} {100 * value:.2f} %**" for k, value in _tops(outcome)]
    weights = "the running mean of the weights" if outcome.recipe.ema else "the last weights"
    words = (
        f"## How good it is\n\n{' and '.join(share)} on {sum(counts):,} validation images of {data.name} (cross "
        f"entropy {outcome.val_loss:.4f}), with {weights} after the last epoch: no epoch was chosen by its accuracy.\n"
    )
    rows = [
        f"| {_cell(label)} | {count:,} | {f'{100 * good / count:.2f} %' if count else '-'} |"
        for label, count, good in zip(data.labels, counts, right, strict=True)
    ]
    table = "\n".join(["| class | images | right |", "|---|---|---|", *rows])
    if len(rows) > MANY:
        table = f"<details><summary>Each class</summary>\n\n{table}\n\n</details>"
    return f"{words}\n{table}\n"


def _data(data: Data) -> str:
    train, val = data.counts(data.train), data.counts(data.val)
    words = (
        f"## Data\n\n{data.name} ({data.source}): {len(data.train):,} images to train on ({_range(train)} of a "
        f"class), {len(data.val):,} to validate on ({_range(val)}). Licence of the images: {data.licence}.\n"
    )
    if data.left_out:
        words += f"\n{len(data.left_out)} files could not be read and were left out.\n"
    return words


def _how(outcome: Outcome, facts: Facts) -> str:
    recipe = outcome.recipe
    command = f"```sh\n{facts.command}\n```\n\n" if facts.command else ""
    processes = f", {outcome.processes} processes" if outcome.processes > 1 else ""
    where = f"{outcome.device}{processes} ({machine()})"
    notes = "".join(f"\n- {note}" for note in outcome.notes) + "\n" * bool(outcome.notes)
    rows = "\n".join(f"| {name} | {_cell(_shown(value))} |" for name, value in _flat(asdict(recipe)))
    return (
        f"## How it was trained\n\n{command}{len(outcome.epochs)} epochs in {time_words(outcome.seconds)} on {where}; "
        f"seed {recipe.seed}; {versions(facts.version)}. Each epoch is a row of `curves.csv`.\n{notes}\n"
        f"| setting | value |\n|---|---|\n{rows}\n"
    )


def _use(facts: Facts) -> str:
    return (
        "## Use\n\n```sh\nvitviz predict photo.jpg --model FOLDER\nvitviz app --model FOLDER\n```\n\n"
        '```python\nimport vitviz\n\nview = vitviz.Explorer(vitviz.load("FOLDER")).open("photo.jpg")\n'
        f"view.predictions()\n```\n\nThe weights take {size_words(facts.size)}: `config.json` holds the sizes, the "
        "preprocessing and the labels, `model.safetensors` the numbers. Nothing in them is run when they are loaded.\n"
    )


def _limits(data: Data) -> str:
    return (
        f"## Limits\n\nIt knows {len(data.labels)} classes. Shown anything else it names one of them all the same, "
        "sometimes with confidence. The figures above are of images like those it was trained on; photographs of "
        "other cameras, places and times are harder.\n"
    )


def machine() -> str:
    """The machine in words: processor, cores, system."""
    name, cores = platform.processor() or platform.machine(), os.cpu_count() or 1
    if (info := Path("/proc/cpuinfo")).is_file():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {cores} cores, {platform.system()}"


def versions(own: str) -> str:
    """What the numbers depend on."""
    python = platform.python_version()
    return f"vitviz {own}, torch {torch.__version__}, numpy {np.__version__}, Pillow {PIL.__version__}, Python {python}"


def time_words(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings within settings, in one list."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_shown, value)) if isinstance(value, (tuple, list)) else str(value)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _cell(text: str) -> str:
    """A text that breaks neither a table nor a picture's words."""
    plain = " ".join(text.split())
    for mark in ("\\", "|", "[", "]", "<", "`"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain
