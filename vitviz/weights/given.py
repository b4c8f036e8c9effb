"""Read the labels and the preprocessing that a caller gives for a model: lists, files, objects of other libraries."""

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
from vitviz.weights.infer import CONVENTIONS
from vitviz.weights.transformers_folder import preprocess_transformers

Labels = Iterable[str] | Mapping[int, str] | str | os.PathLike[str]


def describe_model(model: ViT, labels: Labels | None, preprocess: Any, problem_type: ProblemType | None = None) -> ViT:
    """Set the labels and the preprocessing of a model in place of those that it came with; return the model.

    What was assumed of them is forgotten. So are `sure_above` and `known_above`, which were measured with the old
    preprocessing, and the groups of the old labels.

    Args:
        model: changed in place.
        labels: see `read_labels`; `None` leaves them.
        preprocess: see `read_preprocess`; `None` leaves it.
        problem_type: see `vitviz.outputs`; `None` leaves it.

    Raises:
        CheckpointError: if they are of no known form, or do not fit the model.
    """
    if labels is None and preprocess is None and problem_type is None:
        return model
    about = model.pretrained
    if preprocess is not None:
        read = read_preprocess(preprocess, model.config)
        base = about or Pretrained(name="model", preprocess=read)
        assumed = _without(base, "preprocessing")
        about = replace(base, preprocess=read, sure_above=None, known_above=None, assumed=assumed)
    if about is None:
        raise CheckpointError(
            "Expected preprocessing beside the labels or the problem type of this model, got none. "
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


def _without(about: Pretrained, what: str) -> tuple[str, ...]:
    return tuple(one for one in about.assumed if not one.startswith(f"{what}:"))


def read_labels(given: Labels) -> tuple[str, ...]:
    """Return labels in the order of a classifier's outputs.

    Args:
        given: names; a mapping from class numbers to names, such as `id2label` of transformers; or the path of a text
            file with a name a line, or of a JSON file with either of these or an `id2label`.

    Raises:
        CheckpointError: for anything else.
    """
    found: Any = given
    if isinstance(given, str | os.PathLike):
        found = _read_file(Path(given))
    if isinstance(found, Mapping):
        return from_transformers.labels({"id2label": found.get("id2label", found)})
    named = tuple(found) if isinstance(found, Iterable) else ()
    if not named or not all(isinstance(name, str) and name for name in named):
        raise CheckpointError(
            f"Expected the names of the classes in the order of the outputs, got {given!r:.80}. Give a list of words."
        )
    return named


def _read_file(path: Path) -> Any:
    """Return what a file of labels holds: JSON, or else a name a line."""
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(
            f"Expected a file with a label a line, got {str(path)!r}, which is none or too long. Check the path."
        )
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix.lower() == ".json" else text.splitlines()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"Expected labels in {str(path)!r}, got another kind of file: {error}.") from error


@checked_settings()
def read_preprocess(given: Any, config: ViTConfig) -> Preprocess:
    """Return preprocessing for a model of this config.

    Args:
        given: a `Preprocess`; an image processor of transformers, or its settings; the transforms of torchvision's
            weights; timm's data config (`timm.data.resolve_model_data_config(model)`); the path of a JSON file with
            such settings, as `preprocessor_config.json` or the `config.json` of vitviz; or one of "imagenet", "clip"
            and "half" (mean and standard deviation of 0.5), the usual preparation at the model's size.
        config: of the model.

    Raises:
        CheckpointError: for anything else.
    """
    if isinstance(given, str) and given in CONVENTIONS:
        return CONVENTIONS[given].shaped(*config.image_size)
    found = read_json(Path(given)) if isinstance(given, str | os.PathLike) else given
    if isinstance(found, Preprocess):
        return found
    if hasattr(found, "crop_size") and hasattr(found, "resize_size"):
        return preprocess_torchvision(found)
    found = found.to_dict() if hasattr(found, "to_dict") else found
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"Expected preprocessing as vitviz.Preprocess, a file, or one of {', '.join(CONVENTIONS)}, got "
            f"{type(given).__name__}. Give one of these."
        )
    if "preprocess" in found:
        return Preprocess.from_dict(found["preprocess"])
    if "crop_pct" in found:
        return preprocess_timm(found, config)
    return preprocess_transformers({"patch_size": config.patch_size}, found)
