"""Models by name: the checkpoints that come with vitviz, folders and files anywhere, other libraries' collections."""

import os
from pathlib import Path
from typing import Any

from vitviz.model.vit import ViT
from vitviz.resources import resource_folder
from vitviz.weights.checkpoint import load_folder
from vitviz.weights.checks import CONFIG, OLD_WEIGHTS, SUFFIXES, WEIGHTS, CheckpointError, read_json
from vitviz.weights.files import load_file
from vitviz.weights.remote import LIBRARIES, load_remote
from vitviz.weights.transformers_folder import load_transformers_folder

DEFAULT = "dinov2-s14-everyday"
"""The bundled model that commands and the page take where none is named."""

CHECKPOINTS = resource_folder("checkpoints")
"""Folder of the bundled checkpoints. The environment variable VITVIZ_CHECKPOINTS names another one."""


def bundled() -> list[str]:
    """Return the names of the models that come with vitviz, sorted: the folders in `CHECKPOINTS` that hold a config."""
    root = _root()
    return sorted(path.parent.name for path in root.glob(f"*/{CONFIG}")) if root.is_dir() else []


def folder_of(name: str) -> Path:
    """Return the folder of a bundled model, whether it is there or not."""
    return _root() / name


def load(source: str | os.PathLike[str], *, family: str | None = None, heads: int | None = None) -> ViT:
    """Load a model with its weights, in eval mode.

    | source | examples |
    |---|---|
    | a bundled model | `dinov2-s14-everyday` |
    | a folder | one that vitviz saved, or one in Hugging Face's format (`config.json` and safetensors) |
    | a file | `x.safetensors`; `x.pt`, `x.pth` or `x.bin` of `torch.save` with tensors by name |
    | torchvision | `torchvision:vit_b_16`, `torchvision:vit_b_16.IMAGENET1K_SWAG_E2E_V1` |
    | timm | `timm:vit_small_patch16_224.dino` (needs the package timm) |
    | Hugging Face | `hf:facebook/dinov2-small` |

    A bundled name comes before a folder of the same name in the working directory; write `./name` for the folder. A
    folder's `model.safetensors` or `pytorch_model.bin` is loaded as the folder, with the settings beside it. Any other
    file is told by the names and shapes of its tensors; `pretrained.source` says what had to be assumed.

    Args:
        source: see above.
        family: of a file whose names and shapes leave a choice: one of `vitviz.weights.infer.FAMILIES`.
        heads: of a file whose width does not tell how many there are.

    Raises:
        CheckpointError: if there is no such model, or its files are not what they should be.
        ConvertError: if it is a model whose attention cannot be shown here, or has parts that we do not know.
        RemoteError: if a library does not have it, or it is neither cached nor can be reached.
    """
    name = os.fspath(source)
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
        # Hugging Face's settings say the type of the model, ours do not.
        return load_transformers_folder(name) if "model_type" in _settings(Path(name)) else load_folder(name)
    library, colon, there = name.partition(":")
    if colon and library in LIBRARIES:
        return load_remote(library, there)
    names = ", ".join(bundled()) or f"none (no checkpoint was found in {_root()})"
    raise CheckpointError(
        "Expected a bundled model, the path of a checkpoint folder or of a file of weights, or "
        f"{', '.join(f'{one}:NAME' for one in LIBRARIES)}, got {name!r}. Bundled models: {names}."
    )


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
    return Path(os.environ.get("VITVIZ_CHECKPOINTS") or CHECKPOINTS)
