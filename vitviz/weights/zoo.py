"""Load models by name: bundled checkpoints, folders, files, and models that other libraries publish."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitviz.fields import check_arguments
from vitviz.formatting import abbreviate
from vitviz.model.vit import ViT
from vitviz.outputs import ProblemType
from vitviz.resources import DEFAULT as DEFAULT  # imported from here by other modules
from vitviz.resources import resource_folder
from vitviz.settings import read
from vitviz.weights import adapters
from vitviz.weights.captured_vit import load_transformers, open_captured
from vitviz.weights.checkpoint import load_folder, read_config, read_method
from vitviz.weights.checks import CONFIG, OLD_WEIGHTS, SUFFIXES, WEIGHTS, CheckpointError, read_json
from vitviz.weights.files import load_file
from vitviz.weights.given import Labels, describe_model
from vitviz.weights.infer import Reference
from vitviz.weights.objects import convert_object
from vitviz.weights.remote import LIBRARIES, load_remote, read_remote_reference
from vitviz.weights.timm_folder import is_timm, load_timm_folder
from vitviz.weights.transformers_folder import read_reference_folder

CHECKPOINTS = resource_folder("checkpoints")
"""Folder of the bundled checkpoints, unless a setting of `vitviz.settings` names another."""
_TRAINER = ("optimizer", "scheduler", "training_args", "rng_state", "random_states")  # files beside the weights
_NAMES = ", ".join(f"{library}:NAME" for library in LIBRARIES)


def bundled() -> list[str]:
    """Return the names of the models that come with vitviz, sorted: the folders in `CHECKPOINTS` that hold a config."""
    root = _root()
    return sorted(path.parent.name for path in root.glob(f"*/{CONFIG}")) if root.is_dir() else []


def folder_of(name: str) -> Path:
    """Return the path of a bundled model's folder, which need not exist."""
    return _root() / name


@check_arguments(CheckpointError)
def load(
    source: str | os.PathLike[str] | nn.Module,
    *,
    like: str | os.PathLike[str] | None = None,
    heads: int | None = None,
    labels: Labels | None = None,
    preprocess: Any = None,
    problem_type: ProblemType | None = None,
    registers: int = 0,
) -> ViT:
    """Load a model with its weights, or convert a model in memory. The result is in eval mode.

    | source | examples |
    |---|---|
    | a bundled model | `dinov2-s14-everyday` |
    | a folder | one that vitviz saved, or one in Hugging Face's format (`config.json` and safetensors) |
    | a training folder | `out/checkpoint-500` of a `Trainer`; peft adapters (`adapter_config.json`), merged |
    | a file | `x.safetensors`; `x.pt`, `x.pth`, `x.bin`, `x.ckpt`, `x.pth.tar` of `torch.save`, tensors by name |
    | torchvision | `torchvision:vit_b_16`, `torchvision:vit_b_16.IMAGENET1K_SWAG_E2E_V1` |
    | timm | `timm:vit_small_patch16_224.dino` (needs the package timm) |
    | Hugging Face | `hf:facebook/dinov2-small` |
    | a model in memory | a timm, torchvision or transformers model, also with peft adapters; it is copied |

    A bundled name has priority over a folder of the same name in the working directory; write `./name` for the folder.
    A folder's `model.safetensors` or `pytorch_model.bin` is loaded with the settings beside it. The architecture of any
    other file is read from the names and shapes of its tensors, or from `like`. `pretrained.assumed` lists assumed
    values, such as the preprocessing of a folder without an image processor; `labels` and `preprocess` replace them.

    Args:
        source: see above.
        like: for a file: a model with the same settings, except that the number of classes and the input size may
            differ, such as "timm:vit_small_patch16_224", "hf:google/vit-base-patch16-224", "torchvision:vit_b_16", a
            bundled name or a folder. Its weights are not read or downloaded.
        heads: for a file without `like`: attention heads per block, needed if no published model has this width.
        labels: names of the classes in place of the model's own: a list in the order of its outputs, an `id2label`, or
            the path of a file with one name per line.
        preprocess: preprocessing in place of the model's own: a `vitviz.Preprocess`, a transformers image processor,
            torchvision's `weights.transforms()`, timm's data config, the path of a `preprocessor_config.json`, or
            "imagenet", "clip" or "half".
        problem_type: meaning of the outputs in place of the model's own, in transformers' terms:
            "single_label_classification" (softmax), "multi_label_classification" (a sigmoid for each label) or
            "regression" (values; `labels` names them with their unit). By default, a single output is a value.
        registers: number of test-time registers, which take the activations that give a few patches an outlying norm:
            see `ViT.with_registers`.

    Raises:
        CheckpointError: if there is no such model, or its files are damaged.
        ConvertError: if the model's attention cannot be shown, it has unknown parts, or tensors do not fit `like`.
        RemoteError: if a library does not have the model, or it is neither cached nor reachable.
        ModelError: for registers, if the model has no outliers.
    """
    if isinstance(source, nn.Module) and (like is not None or heads is not None):
        raise CheckpointError("Expected neither like nor heads for a model in memory, got one. Leave it out.")
    with torch.inference_mode(False):  # gradient methods need the weights
        if isinstance(source, nn.Module):
            try:
                model = convert_object(source, preprocess)
            except CheckpointError as refusal:
                model = open_captured(source, refusal, preprocess)
        else:
            name = os.fspath(source)
            model = _load(name, None if like is None else os.fspath(like), heads)
            place = folder_of(name) if name in bundled() else Path(name)
            if model.pretrained and (method := read_method(place if place.is_dir() else place.parent)):
                model.pretrained = replace(model.pretrained, method=method)
        model = describe_model(model, labels, preprocess, problem_type)
    return model.with_registers(registers) if registers else model


def _load(name: str, like: str | None, heads: int | None) -> ViT:
    """Load a model by its name or path."""
    is_bundled, has_options = name in bundled(), like is not None or heads is not None
    if not is_bundled and _is_file(name) and (has_options or not _has_settings(Path(name))):
        if like is not None and heads is not None:
            raise CheckpointError("Expected like or heads, got both. Leave heads out, because like determines them.")
        return load_file(name, heads=heads, like=None if like is None else _read_reference(like))
    if has_options:
        raise CheckpointError(
            f"Expected a weights file for like and heads, got {name!r}, which has its own settings. Leave them out."
        )
    if is_bundled:
        return load_folder(folder_of(name))
    if _is_file(name):
        name = os.fspath(Path(name).parent)
    if name and Path(name).is_dir():  # Path("") would be the working directory
        return _load_folder(Path(name))
    library, colon, model = name.partition(":")
    if colon and library in LIBRARIES:
        return load_remote(library, model)
    names = ", ".join(bundled()) or f"none (no checkpoint was found in {_root()})"
    raise CheckpointError(
        "Expected a bundled model, the path of a checkpoint folder or a weights file, or "
        f"{_NAMES}, got {name!r}. Bundled models: {names}."
    )


def _read_reference(name: str) -> Reference:
    """Read the settings of the model that `like` names."""
    library, colon, model = name.partition(":")
    folder = folder_of(name) if name in bundled() else Path(name)
    if colon and library in LIBRARIES and name not in bundled():
        return read_remote_reference(library, model)
    if not name or not folder.is_dir():
        raise CheckpointError(
            f"Expected like as a bundled model, a checkpoint folder, or {_NAMES}, got {name!r}. Choose one."
        )
    if "model_type" in _settings(folder):
        return read_reference_folder(folder, name)
    return Reference(name, *read_config(folder / CONFIG))


def _load_folder(folder: Path) -> ViT:
    """Load a folder of any kind. Only the config of transformers states a `model_type`."""
    if "model_type" in _settings(folder):
        return load_transformers(folder)
    if is_timm(_settings(folder)):
        return load_timm_folder(folder)
    if (folder / CONFIG).is_file():
        return load_folder(folder)
    if (folder / adapters.ADAPTER_CONFIG).is_file():
        return adapters.load_adapter_folder(folder)
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    if checkpoints:
        last = max(checkpoints, key=lambda path: int(path.name.partition("-")[2]))
        raise CheckpointError(
            f"Expected the folder of a model, got {str(folder)!r} with the checkpoints of a training run. Load one of "
            f"them, such as the last: {str(last)!r}."
        )
    if not (folder / CONFIG).is_file() and (inside := _find_models(folder)):
        raise CheckpointError(
            f"Expected a folder with {CONFIG}, got {str(folder)!r} without it. Load what it contains: {inside}."
        )
    return load_folder(folder)


def _find_models(folder: Path) -> str:
    """Return the first folders of models, or else weights files, at most two levels below a folder; empty if none."""
    paths = sorted(path for pattern in ("*", "*/*", "*/*/*") for path in folder.glob(pattern) if path.is_file())
    folders = [path.parent for path in paths if path.name == CONFIG]
    files = [path for path in paths if path.name.lower().endswith(SUFFIXES) and not path.name.startswith(_TRAINER)]
    return abbreviate([repr(str(path)) for path in folders or files])


def _is_file(name: str) -> bool:
    """Return whether a name is the path of a weights file, which need not exist, and not a name in a library."""
    path = Path(name)
    return path.is_file() or (
        name.lower().endswith(SUFFIXES) and not path.is_dir() and name.partition(":")[0] not in LIBRARIES
    )


def _has_settings(path: Path) -> bool:
    """Return whether a file holds the weights for the config in its folder."""
    settings = _settings(path.parent)
    ours = path.name == WEIGHTS and {"format", "preprocess"} <= set(settings)
    others = path.name in (WEIGHTS, OLD_WEIGHTS) and ("model_type" in settings or is_timm(settings))
    return path.is_file() and (ours or others)


def _settings(folder: Path) -> dict[str, Any]:
    """Return a folder's config, or an empty dict if it cannot be read, which the loader reports."""
    try:
        return read_json(folder / CONFIG)
    except CheckpointError:
        return {}


def _root() -> Path:
    return Path(read("checkpoints") or CHECKPOINTS)
