"""Single files of weights, without the settings they were trained with.

A file says names and shapes and nothing else. `infer` tells the architecture from them; what they cannot say is taken
from the field's convention where there is one, and written down in `Pretrained.assumed`, or asked for.
"""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import checks
from vitviz.weights.checks import SUFFIXES, CheckpointError, checked_settings
from vitviz.weights.classifier import number_classes
from vitviz.weights.infer import Architecture

# Where training scripts put the weights, the ones to prefer first: a running mean, what a student learned from.
NESTS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model_state_dict", "model")
MAX_NESTS = 3

# Wrappers that name every tensor after themselves: parallel training, torch.compile, a model inside a model.
PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.")
# What self-supervised training keeps beside a backbone, to make its targets: neither a classifier nor attention.
PROJECTIONS = ("dino_head.", "ibot_head.", "head.mlp.", "head.last_layer.")


@checked_settings()
def load_file(path: str | os.PathLike[str], *, family: str | None = None, heads: int | None = None) -> ViT:
    """Load the model in one file: float32, on the CPU, in eval mode.

    Args:
        path: a `.safetensors` file, or one of `torch.save` with tensors by name (`.pt`, `.pth`, `.bin`), bare or under
            one of the usual keys (`NESTS`), with or without a wrapper's prefix.
        family: one of `infer.FAMILIES`, where names and shapes cannot tell.
        heads: attention heads in each block, where the width is none of the published ones.

    Returns:
        The model. `pretrained.assumed` says what was assumed; classes are numbered, because the file has no
        labels. The outputs of CLIP have none, because they may be features.

    Raises:
        CheckpointError: if the file is damaged, hostile, or holds something else than weights.
        ConvertError: if the model is none that can be shown, cannot be told from names and shapes, or lacks tensors.
    """
    path = Path(path)
    where = repr(str(path))
    _check_name(path)
    found, under = _find(checks.read_weights(path), where)
    tensors, left_out = _unwrap(found, where)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    inferred = Architecture(shapes, family=family, heads=heads)
    checks.check_tensors({name: tensor for name, tensor in tensors.items() if name not in inferred.unread}, path)
    nest = (f"the weights under {'.'.join(under)!r}",) if under else ()
    preprocess = inferred.preprocess()
    classes = 0 if inferred.config.norm_pre else inferred.config.classes  # CLIP's are features, if not fine-tuned
    labels, words = number_classes(classes)
    about = Pretrained(
        name=path.stem,
        preprocess=preprocess,
        labels=labels,
        source=f"file {path.name}, read as {inferred.describe((*nest, *left_out))}",
        assumed=(*inferred.assumed, *([words] if labels else []), f"preprocessing: {preprocess.describe()}"),
    )
    return checks.assemble(inferred.config, inferred.convert(tensors), about, where=where)


def _check_name(path: Path) -> None:
    """Refuse what is no file, or by its name none of weights."""
    if path.suffix.lower() not in SUFFIXES:
        raise CheckpointError(
            f"Expected a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}. Rename it if it is one of them."
        )
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"Expected a file of weights, got {str(path)!r}, which {found}. Check the path.")


def _find(found: Any, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Find the state dict in what a file holds, and the keys that lead to it."""
    under: tuple[str, ...] = ()
    for _ in range(MAX_NESTS):
        items = found.items() if isinstance(found, dict) else ()
        other = [f"{key!r:.40} ({type(one).__name__})" for key, one in items if not isinstance(one, Tensor)]
        other += [f"{key!r:.40}" for key, one in items if isinstance(one, Tensor) and not isinstance(key, str)]
        if items and not other:
            return {name: tensor.detach() for name, tensor in items}, under
        nest = next((key for key in NESTS if isinstance(dict(items).get(key), dict)), None)
        if nest is None:
            kind = (
                checks.some(other)
                if items
                else f"an empty {type(found).__name__}"
                if found == {}
                else type(found).__name__
            )
            below = f" under {'.'.join(under)!r}" if under else ""
            raise CheckpointError(
                f"Expected tensors by name, or a dict of them under {', '.join(NESTS)}, got {kind}{below} in {where}. "
                "Save the state dict alone."
            )
        found, under = found[nest], (*under, nest)
    raise CheckpointError(
        f"Expected weights at most {MAX_NESTS - 1} keys deep, got {' > '.join(under)} in {where}. Save the state dict."
    )


def _unwrap(tensors: dict[str, Tensor], where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors by names without what a wrapper put in front of all of them, and what was left out."""
    left_out: tuple[str, ...] = ()
    stripped = True
    while stripped and tensors:
        stripped = False
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
