"""Read labels and preprocessing that a caller passes as lists, files, or objects of other libraries."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.outputs import ProblemType
from vitviz.weights import from_transformers
from vitviz.weights.checks import MAX_JSON_BYTES, CheckpointError, attach, checked_settings, read_json
from vitviz.weights.from_timm import preprocess_timm
from vitviz.weights.from_torchvision import preprocess_torchvision
from vitviz.weights.naming import CONVENTIONS
from vitviz.weights.transformers_folder import preprocess_transformers

Labels = Iterable[str] | Mapping[int, str] | str | os.PathLike[str]


def describe_model(model: ViT, labels: Labels | None, preprocess: Any, problem_type: ProblemType | None = None) -> ViT:
    """Replace a model's labels, preprocessing and problem type, and return the model.

    Assumptions about the replaced values are removed. New preprocessing also removes `sure_above` and `known_above`,
    which were measured with the old preprocessing; new labels also remove class ids and groups.

    Args:
        model: changed in place.
        labels: see `read_labels`; `None` keeps them.
        preprocess: see `read_preprocess`; `None` keeps it.
        problem_type: see `vitviz.outputs`; `None` keeps it.

    Raises:
        CheckpointError: if an argument has an unknown form, or does not fit the model.
    """
    if labels is None and preprocess is None and problem_type is None:
        return model
    about = model.pretrained
    if preprocess is not None:
        preprocess = read_preprocess(preprocess, model.config)
        base = about or Pretrained(name="model", preprocess=preprocess)
        assumed = _without(base, "preprocessing")
        about = replace(base, preprocess=preprocess, sure_above=None, known_above=None, assumed=assumed)
    if about is None:
        raise CheckpointError(
            "Expected preprocessing along with the labels or the problem type of this model, got none. "
            "Give preprocess=vitviz.Preprocess(...)."
        )
    if labels is not None:
        about = replace(about, labels=read_labels(labels), class_ids=(), groups=(), assumed=_without(about, "labels"))
    if problem_type is not None:
        if problem_type not in get_args(ProblemType):
            kinds = ", ".join(get_args(ProblemType))
            raise CheckpointError(f"Expected problem_type as one of {kinds}, got {problem_type!r:.80}. Choose one.")
        about = replace(about, problem_type=problem_type)
    return attach(model, about)


def _without(about: Pretrained, topic: str) -> tuple[str, ...]:
    return tuple(assumption for assumption in about.assumed if not assumption.startswith(f"{topic}:"))


def read_labels(labels: Labels) -> tuple[str, ...]:
    """Return labels in the order of a classifier's outputs.

    Args:
        labels: names; a mapping from class numbers to names, such as transformers' `id2label`; or the path of a text
            file with one name per line, or of a JSON file with names, such a mapping, or an `id2label`.

    Raises:
        CheckpointError: for labels in any other form.
    """
    content: Any = _read_file(Path(labels)) if isinstance(labels, str | os.PathLike) else labels
    if isinstance(content, Mapping):
        return from_transformers.labels({"id2label": content.get("id2label", content)})
    names = tuple(content) if isinstance(content, Iterable) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise CheckpointError(
            f"Expected the names of the classes in the order of the outputs, got {labels!r:.80}. Give a list of words."
        )
    return names


def _read_file(path: Path) -> Any:
    """Return the content of a labels file: the parsed JSON, or a list of lines."""
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(
            f"Expected a file with one label per line, got {str(path)!r}, which is missing or too long. Check the path."
        )
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix.lower() == ".json" else text.splitlines()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"Expected labels in {str(path)!r}, got another kind of file: {error}.") from error


@checked_settings()
def read_preprocess(preprocess: Any, config: ViTConfig) -> Preprocess:
    """Return preprocessing for a model of this config.

    Args:
        preprocess: a `Preprocess`; a transformers image processor, or its settings; the transforms of torchvision
            weights; timm's data config (`timm.data.resolve_model_data_config(model)`); the path of a JSON file with
            such settings, for example `preprocessor_config.json` or vitviz's `config.json`; or one of "imagenet",
            "clip" and "half" (mean and standard deviation of 0.5) for the usual preprocessing at the model's size.
        config: config of the model.

    Raises:
        CheckpointError: for preprocessing in any other form.
    """
    if isinstance(preprocess, str) and preprocess in CONVENTIONS:
        return CONVENTIONS[preprocess].shaped(*config.image_size).with_channels(config.channels)
    settings = read_json(Path(preprocess)) if isinstance(preprocess, str | os.PathLike) else preprocess
    if isinstance(settings, Preprocess):
        return settings
    if hasattr(settings, "crop_size") and hasattr(settings, "resize_size"):
        return preprocess_torchvision(settings)
    settings = settings.to_dict() if hasattr(settings, "to_dict") else settings
    if not isinstance(settings, Mapping):
        raise CheckpointError(
            f"Expected preprocessing as vitviz.Preprocess, a file, or one of {', '.join(CONVENTIONS)}, got "
            f"{type(preprocess).__name__}. Give one of these."
        )
    if "preprocess" in settings:
        return Preprocess.from_dict(settings["preprocess"])
    if "crop_pct" in settings:
        return preprocess_timm(settings, config)
    return preprocess_transformers({"patch_size": config.patch_size}, settings)
