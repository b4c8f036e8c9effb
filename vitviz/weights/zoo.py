"""Models by name: the checkpoints that come with vitviz, folders and files anywhere, other libraries' collections."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from vitviz.fields import check_arguments
from vitviz.model.vit import ViT
from vitviz.outputs import ProblemType
from vitviz.resources import DEFAULT as DEFAULT  # where those that load models look for it
from vitviz.resources import resource_folder
from vitviz.settings import read
from vitviz.weights import adapters
from vitviz.weights.checkpoint import load_folder
from vitviz.weights.checks import CONFIG, OLD_WEIGHTS, SUFFIXES, WEIGHTS, CheckpointError, read_json
from vitviz.weights.files import load_file
from vitviz.weights.given import Labels, describe_model
from vitviz.weights.objects import convert_object
from vitviz.weights.remote import LIBRARIES, load_remote
from vitviz.weights.transformers_folder import load_transformers_folder

CHECKPOINTS = resource_folder("checkpoints")
"""Folder of the bundled checkpoints. `vitviz.settings` may name another one."""


def bundled() -> list[str]:
    """Return the names of the models that come with vitviz, sorted: the folders in `CHECKPOINTS` that hold a config."""
    root = _root()
    return sorted(path.parent.name for path in root.glob(f"*/{CONFIG}")) if root.is_dir() else []


def folder_of(name: str) -> Path:
    """Return the folder of a bundled model, whether it is there or not."""
    return _root() / name


@check_arguments(CheckpointError)
def load(
    source: str | os.PathLike[str] | nn.Module,
    *,
    family: str | None = None,
    heads: int | None = None,
    labels: Labels | None = None,
    preprocess: Any = None,
    problem_type: ProblemType | None = None,
) -> ViT:
    """Load a model with its weights, or convert one that is in memory; in eval mode.

    | source | examples |
    |---|---|
    | a bundled model | `dinov2-s14-everyday` |
    | a folder | one that vitviz saved, or one in Hugging Face's format (`config.json` and safetensors) |
    | of a training | `out/checkpoint-500` of a `Trainer`; adapters of peft (`adapter_config.json`), which are merged |
    | a file | `x.safetensors`; `x.pt`, `x.pth` or `x.bin` of `torch.save` with tensors by name |
    | torchvision | `torchvision:vit_b_16`, `torchvision:vit_b_16.IMAGENET1K_SWAG_E2E_V1` |
    | timm | `timm:vit_small_patch16_224.dino` (needs the package timm) |
    | Hugging Face | `hf:facebook/dinov2-small` |
    | a model in memory | of timm, torchvision or transformers, also with adapters of peft; it is copied |

    A bundled name comes before a folder of the same name in the working directory; write `./name` for the folder. A
    folder's `model.safetensors` or `pytorch_model.bin` is loaded as the folder, with the settings beside it. Any other
    file is told by the names and shapes of its tensors. `pretrained.assumed` says what neither weights nor settings
    told, such as the preprocessing of a folder without an image processor; `labels` and `preprocess` tell it.

    Args:
        source: see above.
        family: of a file whose names and shapes leave a choice: one of `vitviz.weights.infer.FAMILIES`.
        heads: of a file whose width does not tell how many there are.
        labels: names of the classes in place of the model's own: a list in the order of its outputs, an `id2label`, or
            the path of a file with a name a line.
        preprocess: how photographs are prepared, in place of the model's own: a `vitviz.Preprocess`, an image processor
            of transformers, torchvision's `weights.transforms()`, timm's data config, the path of a
            `preprocessor_config.json`, or "imagenet", "clip" or "half".
        problem_type: what the outputs mean, in place of what the model says, in transformers' words:
            "single_label_classification" (softmax), "multi_label_classification" (a sigmoid for each label) or
            "regression" (values; `labels` names them with their unit). By default one output is a value.

    Raises:
        CheckpointError: if there is no such model, or its files are not what they should be.
        ConvertError: if it is a model whose attention cannot be shown here, or has parts that we do not know.
        RemoteError: if a library does not have it, or it is neither cached nor can be reached.
    """
    if isinstance(source, nn.Module):
        if family is not None or heads is not None:
            raise CheckpointError("Expected no family and heads for a model in memory, got some. It brings its own.")
        model = convert_object(source, preprocess)
    else:
        model = _load(os.fspath(source), family, heads)
    return describe_model(model, labels, preprocess, problem_type)


def _load(name: str, family: str | None, heads: int | None) -> ViT:
    """Load a model by its name or path."""
    known = name in bundled()
    if not known and _is_file(name) and (family is not None or heads is not None or not _has_settings(Path(name))):
        return load_file(name, family=family, heads=heads)
    if family is not None or heads is not None:
        raise CheckpointError(
            f"Expected a file of weights with family and heads, got {name!r}, which brings its own settings. "
            "Leave them out."
        )
    if known:
        return load_folder(folder_of(name))
    if _is_file(name):
        name = os.fspath(Path(name).parent)
    if name and Path(name).is_dir():  # Path("") would be the working directory
        return _load_folder(Path(name))
    library, colon, there = name.partition(":")
    if colon and library in LIBRARIES:
        return load_remote(library, there)
    names = ", ".join(bundled()) or f"none (no checkpoint was found in {_root()})"
    raise CheckpointError(
        "Expected a bundled model, the path of a checkpoint folder or of a file of weights, or "
        f"{', '.join(f'{one}:NAME' for one in LIBRARIES)}, got {name!r}. Bundled models: {names}."
    )


def _load_folder(folder: Path) -> ViT:
    """Load a folder of any kind; Hugging Face's settings say the type of the model, ours do not."""
    if "model_type" in _settings(folder):
        return load_transformers_folder(folder)
    if (folder / CONFIG).is_file():
        return load_folder(folder)
    if (folder / adapters.SETTINGS).is_file():
        return adapters.load_adapter_folder(folder)
    inside = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    if inside:
        last = max(inside, key=lambda path: int(path.name.partition("-")[2]))
        raise CheckpointError(
            f"Expected the folder of a model, got {str(folder)!r} with the checkpoints of a training. Load one of "
            f"them, such as the last: {str(last)!r}."
        )
    return load_folder(folder)


def _is_file(name: str) -> bool:
    """Return whether a file of weights is meant, there or not; a library's model may end in anything."""
    path = Path(name)
    return path.is_file() or (
        path.suffix.lower() in SUFFIXES and not path.is_dir() and name.partition(":")[0] not in LIBRARIES
    )


def _has_settings(path: Path) -> bool:
    """Return whether a file is the weights of a folder that says what they are."""
    said = _settings(path.parent)
    ours = path.name == WEIGHTS and {"format", "preprocess"} <= set(said)
    return path.is_file() and (ours or (path.name in (WEIGHTS, OLD_WEIGHTS) and "model_type" in said))


def _settings(folder: Path) -> dict[str, Any]:
    """Return a folder's config; nothing where it cannot be read, which is left to who loads it."""
    try:
        return read_json(folder / CONFIG)
    except CheckpointError:
        return {}


def _root() -> Path:
    return Path(read("checkpoints") or CHECKPOINTS)
