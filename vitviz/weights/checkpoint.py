"""Save and load checkpoint folders: `config.json` (sizes, preprocessing, labels) and `model.safetensors`.

Nothing is unpickled. A folder may be untrusted, so the types in the config and then the names and shapes of the weights
are checked before memory is allocated.
"""

import hashlib
import json
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.fields import check_names
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import checks
from vitviz.weights.checks import CONFIG, WEIGHTS, CheckpointError
from vitviz.writing import replacing, write

FORMAT = 2
MEANS = "positions.safetensors"
"""File with `ViT.position_means`, if the model has them."""
ARENA = "arena.json"
"""File beside the weights in which `vitviz arena` names the best attribution method for them."""
_FACTS = ("name", "licence", "source", "labels", "class_ids")  # fields of `Pretrained`
_OPTIONAL = ("sure_above", "known_above", "groups", "assumed", "problem_type")  # written unless empty


def save(model: ViT, folder: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> None:
    """Write a model with its preprocessing and labels to a folder that `load_folder` reads.

    The means of its positions (`vitviz.analysis.edges.position_means`) are written too, if it has them. A result of
    `vitviz arena` in this folder is deleted, because it belongs to the previous weights.

    Args:
        model: a model with `pretrained` set.
        folder: created if missing; files with the same names are replaced.
        dtype: precision on disk. Half precision halves the file size and rounds the weights.

    Raises:
        CheckpointError: if `pretrained` is missing or does not fit the model, or a weight is not finite in `dtype`.
    """
    model.check_converted()
    about = model.pretrained
    if about is None:
        raise CheckpointError(
            "Expected a model with preprocessing and labels, got one without. "
            "Set model.pretrained = Pretrained(name=..., preprocess=..., labels=...) first."
        )
    _check_about(model.config, about)
    checks.check_input(model.config, about.preprocess)
    state = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    checks.check_finite(state, str(dtype))
    config = {
        "format": FORMAT,
        "model": model.config.to_dict(),
        "preprocess": about.preprocess.to_dict(),
        **{name: getattr(about, name) for name in _FACTS},
    }
    config |= {name: value for name in _OPTIONAL if (value := getattr(about, name)) not in (None, ())}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    needed = sum(tensor.nbytes for tensor in state.values())
    with replacing(folder / WEIGHTS, needed=needed) as beside:
        save_file(state, beside, metadata={"format": "pt"})
    save_means(model, folder)
    (folder / ARENA).unlink(missing_ok=True)
    write(folder / CONFIG, text)


def save_means(model: ViT, folder: str | os.PathLike[str]) -> None:
    """Write the means of a model's positions to a folder in half precision, if it has them."""
    if model.position_means is not None:
        with replacing(Path(folder) / MEANS) as beside:
            save_file({"means": model.position_means.half().contiguous()}, beside, metadata={"format": "pt"})


def load_folder(folder: str | os.PathLike[str]) -> ViT:
    """Load the model that `save` wrote to a folder: float32, on the CPU, in eval mode.

    Raises:
        CheckpointError: if files are missing or damaged, or do not fit together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"Expected a checkpoint folder, got {str(folder)!r}. Check the path.")
    config, about = read_config(folder / CONFIG)
    path = checks.need_file(folder / WEIGHTS)
    tensors = checks.read_weights(path)
    checks.check_tensors(tensors, path)
    model = checks.assemble(config, tensors, about, where=repr(str(path)))
    if (folder / MEANS).is_file():
        model.position_means = _read_means(folder / MEANS, config)
    return model


def _read_means(path: Path, config: ViTConfig) -> Tensor:
    """Read the means of the tokens at each position, in half precision."""
    tensors = checks.read_weights(path)
    expected = (config.depth, len(config.prefix) + config.grid[0] * config.grid[1], config.width)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {"means": expected}:
        raise CheckpointError(
            f"Expected means of shape {expected} in {str(path)!r}, got {shapes}. Compute them for this model."
        )
    means: Tensor = tensors["means"]
    return means


def read_method(folder: Path) -> str:
    """Return the attribution method that `vitviz arena` ranked first for the weights in a folder; empty if none.

    Raises:
        CheckpointError: if the file is damaged.
    """
    if not (folder / ARENA).is_file():
        return ""
    method = checks.read_json(folder / ARENA).get("method")
    if not isinstance(method, str):
        raise CheckpointError(
            f"Expected the name of a method in {str(folder / ARENA)!r}, got {method!r:.80}. Delete the file."
        )
    return method


def fingerprint(model: ViT, names: Container[str] | None = None) -> str:
    """Return a hash of a model's config and weights, or only of the weights with these names."""
    digest = hashlib.blake2b(digest_size=12)
    if names is None:
        digest.update(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    add_weights(
        digest, {name: weights for name, weights in model.state_dict().items() if names is None or name in names}
    )
    return digest.hexdigest()


def add_weights(digest: "hashlib.blake2b", weights: Mapping[str, Tensor]) -> None:
    """Update a hash with the names, data types and bytes of tensors."""
    for name, tensor in weights.items():
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def read_config(path: Path) -> tuple[ViTConfig, Pretrained]:
    """Read `config.json` and check everything in it."""
    data = checks.read_json(path)
    if data.get("format") not in (1, FORMAT):
        raise CheckpointError(
            f"Expected a checkpoint of vitviz in format 1 or {FORMAT}, got {data.get('format')!r} in {str(path)!r}. "
            "Use a folder that vitviz saved; convert a folder of another library first."
        )
    facts = (*_FACTS, *(name for name in _OPTIONAL if name in data))
    try:
        check_names(data, ("format", "model", "preprocess", *facts), CheckpointError, complete=True)
        config = ViTConfig.from_dict(read_format_1(data["model"]) if data["format"] == 1 else data["model"])
        about = Pretrained(preprocess=Preprocess.from_dict(data["preprocess"]), **{name: data[name] for name in facts})
        _check_about(config, about)
    except VitvizError as error:
        raise CheckpointError(f"Expected consistent settings, got invalid ones in {str(path)!r}: {error}") from error
    return config, about


def read_format_1(model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a model in format 1, which had no parts, as `ViTConfig.from_dict` reads them.

    Raises:
        CheckpointError: for a model with windows, which is no longer converted.
    """
    if not isinstance(model, dict) or model.get("windows") is not None:
        raise CheckpointError(
            "Expected the settings of a converted model, got others, or one with windows (Swin, SAM), which runs as it "
            "is now. Load the original: the library's name, or its model in memory."
        )
    parts = {"norm": "norms", "pool": "pool", "position": "table", "rotary": "rotary"}
    renamed = {"norm": "norm_kind", "qk_norm": "norm_qk", "positions_between": "position_between"}
    renamed |= {"rotary_class": "rotary_class_token"}
    settings: dict[str, Any] = {part: {} for part in parts.values()}
    for name, value in model.items():
        prefix, _, rest = renamed.get(name, name).partition("_")
        if name == "windows":
            continue
        if prefix in parts:
            settings[parts[prefix]][rest] = value
        else:
            settings[name] = value
    norms = settings["norms"]
    final, pooled = norms.pop("final", True), norms.pop("pooled", False)
    norms["final"] = "pooled" if pooled else "tokens" if final else "none"
    return settings


def _check_about(config: ViTConfig, about: Pretrained) -> None:
    """Check the numbers of labels and class ids, the groups, and the range of `sure_above`."""
    for name, count, allowed in (
        ("labels", len(about.labels), (config.classes,)),
        ("class_ids", len(about.class_ids), (0, config.classes)),
    ):
        if count not in allowed:
            raise CheckpointError(
                f"Expected {name} for each of {config.classes} classes, got {count}. "
                "They name the outputs of the classifier, in order."
            )
    if about.sure_above is not None and not 0.0 <= about.sure_above <= 1.0:
        raise CheckpointError(
            f"Expected sure_above as a probability, got {about.sure_above}. Give a number from 0 to 1."
        )
    for group in about.groups:
        if len(group) < 3 or not {*group[1:]} <= {*about.labels}:
            raise CheckpointError(
                f"Expected a group as its name and at least two labels, got {group!r:.80}. Correct the group."
            )
