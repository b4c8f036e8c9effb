"""Models by name: the checkpoints that come with vitviz, folders anywhere, and other libraries' collections."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vitviz.model import ViT
from vitviz.weights.checkpoint import CONFIG, CheckpointError, load_folder
from vitviz.weights.remote import LIBRARIES, load_remote
from vitviz.weights.transformers_folder import load_transformers_folder

_BESIDE = (Path(__file__).parents[1] / "checkpoints", Path(__file__).parents[2] / "checkpoints")

CHECKPOINTS = next((folder for folder in _BESIDE if folder.is_dir()), _BESIDE[1])
"""Where the bundled checkpoints are: inside the package, or at the root of the repository. The environment variable
VITVIZ_CHECKPOINTS names another folder."""


def bundled() -> list[str]:
    """Names of the models that come with vitviz, sorted: the folders in `CHECKPOINTS` that hold a config."""
    root = _root()
    return sorted(path.parent.name for path in root.glob(f"*/{CONFIG}")) if root.is_dir() else []


def title(name: str) -> str:
    """What people call a bundled model, read from its config without its weights."""
    return str(json.loads((_root() / name / CONFIG).read_text(encoding="utf-8"))["name"])


def load(source: str | os.PathLike[str]) -> ViT:
    """A model with its weights, in eval mode.

    | source | examples |
    |---|---|
    | a bundled model | `dinov2-s14-imagenette` |
    | a folder | one that vitviz saved, or one in Hugging Face's format (`config.json` and safetensors) |
    | torchvision | `torchvision:vit_b_16`, `torchvision:vit_b_16.IMAGENET1K_SWAG_E2E_V1` |
    | timm | `timm:vit_small_patch16_224.dino` (needs the package timm) |
    | Hugging Face | `hf:facebook/dinov2-small` |

    A bundled name comes before a folder of the same name in the working directory; write `./name` for the folder.

    Raises:
        CheckpointError: if there is no such model, or its files are not what they should be.
        ConvertError: if it is a model whose attention cannot be shown here, or has parts that we do not know.
        RemoteError: if a library does not have it, or it is neither cached nor can be reached.
    """
    name = os.fspath(source)
    if name in bundled():
        return load_folder(_root() / name)
    if name and Path(name).is_dir():  # Path("") would be the working directory
        return load_transformers_folder(name) if _is_transformers(Path(name)) else load_folder(name)
    library, colon, there = name.partition(":")
    if colon and library in LIBRARIES:
        return load_remote(library, there)
    known = ", ".join(bundled()) or f"none (no checkpoint was found in {_root()})"
    raise CheckpointError(
        f"Unknown model {name!r}: expected a bundled name, the path of a checkpoint folder, or "
        f"{', '.join(f'{one}:NAME' for one in LIBRARIES)}. Bundled models: {known}."
    )


def _is_transformers(folder: Path) -> bool:
    """Whether a folder's config is Hugging Face's. What cannot be read is left to `load_folder`, which says why."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config


def _root() -> Path:
    return Path(os.environ.get("VITVIZ_CHECKPOINTS") or CHECKPOINTS)
