"""Load single weights files, which come without settings.

A file contains only names, shapes and values. `infer` determines the architecture from the names and shapes, or from a
model that the caller names.
"""

import os
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import checks
from vitviz.weights.checks import SUFFIXES, CheckpointError, checked_settings
from vitviz.weights.classifier import number_classes
from vitviz.weights.infer import Architecture, Reference

# Keys of the weights in published checkpoints, in order of preference: averaged weights and teachers come first.
NESTS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model_state_dict", "model")
MAX_NESTS = 3

# Prefixes that wrappers add to all names: parallel training, torch.compile, a model inside a model.
PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.")
# Projection heads that self-supervised training adds to a backbone; they are not classifiers and have no attention.
PROJECTIONS = ("dino_head.", "ibot_head.", "head.mlp.", "head.last_layer.")
# Prefixes of the vision tower in files of OpenAI and OpenCLIP, and names of their other tensors.
TOWERS = ("visual.trunk.", "visual.")
TEXTS = re.compile(
    r"(text|transformer|ln_final|token_embedding|positional_embedding|logit_scale|logit_bias|text_projection"
    r"|visual\.head|input_resolution|context_length|vocab_size)\b"
)


@checked_settings()
def load_file(path: str | os.PathLike[str], *, heads: int | None = None, like: Reference | None = None) -> ViT:
    """Load the model in one file: float32, on the CPU, in eval mode.

    Args:
        path: a `.safetensors` file, or a `torch.save` file (`.pt`, `.pth`, `.bin`) with tensors by name, directly or
            under one of the usual keys (`NESTS`), with or without a wrapper's prefix.
        heads: attention heads in each block, needed if no published model has this width.
        like: a model with the same settings, needed if names and shapes do not determine them.

    Returns:
        The model. `pretrained.assumed` lists assumptions. Classes have the labels of `like` if it has the same number
        of classes, else numbers. Outputs that may be features, such as CLIP's, have no labels.

    Raises:
        CheckpointError: if the file is damaged or hostile, or does not hold weights.
        ConvertError: if the model is not supported, its settings are not determined, or tensors do not fit them.
    """
    path = Path(path)
    where = repr(str(path))
    _check_name(path)
    state, keys = _find_state(checks.read_weights(path), where)
    tensors, left_out = _unwrap(state, where)
    model = Architecture({name: tuple(tensor.shape) for name, tensor in tensors.items()}, heads=heads, like=like)
    checks.check_tensors({name: tensor for name, tensor in tensors.items() if name not in model.unread}, path)
    labels, assumed = _labels(model, like)
    nest = (f"the weights under {'.'.join(keys)!r}",) if keys else ()
    about = Pretrained(
        name=path.stem,
        preprocess=model.preprocess,
        labels=labels,
        source=f"file {path.name} {model.describe((*nest, *left_out))}",
        assumed=(*model.assumed, *assumed, *(() if like else (f"preprocessing: {model.preprocess.describe()}",))),
        problem_type=like.about.problem_type if like and model.config.classes == like.config.classes else None,
    )
    where += f" (like {like.name})" if like else ""
    return checks.assemble(model.config, model.convert(tensors), about, where=where)


def _labels(model: Architecture, like: Reference | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return labels for the classes of a file, and a description of this assumption."""
    classes = model.config.classes
    if model.embeds:  # the outputs are an image embedding
        return (), ()
    if like is not None and classes == like.config.classes:  # empty if the reference's outputs are features
        labels = like.about.labels
        return labels, (f"labels: the {len(labels):,} of {like.name}",) if labels else ()
    labels, words = number_classes(classes)
    return labels, (words,) if labels else ()


def _check_name(path: Path) -> None:
    """Refuse a path that is not a file, or does not have the suffix of a weights file."""
    if path.suffix.lower() not in SUFFIXES:
        raise CheckpointError(
            f"Expected a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}. Rename it if it is one of them."
        )
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"Expected a weights file, got {str(path)!r}, which {problem}. Check the path.")


def _find_state(content: Any, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the state dict in the content of a file, and the keys that lead to it."""
    keys: tuple[str, ...] = ()
    for _ in range(MAX_NESTS):
        items = content.items() if isinstance(content, dict) else ()
        others = [f"{key!r:.40} ({type(value).__name__})" for key, value in items if not isinstance(value, Tensor)]
        others += [f"{key!r:.40}" for key, value in items if isinstance(value, Tensor) and not isinstance(key, str)]
        if items and not others:
            return {name: tensor.detach() for name, tensor in items}, keys
        nest = next((key for key in NESTS if isinstance(dict(items).get(key), dict)), None)
        if nest is None:
            kind = type(content).__name__
            kind = checks.abbreviate(others) if items else f"an empty {kind}" if content == {} else kind
            below = f" under {'.'.join(keys)!r}" if keys else ""
            raise CheckpointError(
                f"Expected tensors by name, or a dict of them under {', '.join(NESTS)}, got {kind}{below} in {where}. "
                "Save the state dict alone."
            )
        content, keys = content[nest], (*keys, nest)
    raise CheckpointError(
        f"Expected weights at most {MAX_NESTS - 1} keys deep, got {' > '.join(keys)} in {where}. Save the state dict."
    )


def _unwrap(tensors: dict[str, Tensor], where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors without wrappers' prefixes, which all names share, and a note about tensors left out."""
    left_out: tuple[str, ...] = ()
    stripped = True
    while stripped and tensors:
        stripped = False
        tower = next((tower for tower in TOWERS if any(name.startswith(tower) for name in tensors)), None)
        if tower and all(name.startswith(tower) or TEXTS.match(name) for name in tensors):
            left_out = ("without the text tower",) if any(not name.startswith("visual.") for name in tensors) else ()
            tensors = {name.removeprefix(tower): own for name, own in tensors.items() if name.startswith(tower)}
            stripped = True
        if any(name.startswith("backbone.") for name in tensors):
            rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(PROJECTIONS)}
            if len(rest) < len(tensors) and all(name.startswith("backbone.") for name in rest):
                tensors, left_out = rest, ("without the projection head of its training",)
        for prefix in PREFIXES:
            if all(name.startswith(prefix) for name in tensors):
                tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
                stripped = True
    if not tensors or "" in tensors:
        raise CheckpointError(f"Expected tensors by name, got none in {where}. Save the state dict.")
    return tensors, left_out
