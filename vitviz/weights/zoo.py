"""Models by name: the checkpoints that come with vitviz, folders and files anywhere, other libraries' collections."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vitviz.model import ViT
from vitviz.weights.checkpoint import CONFIG, MAX_CONFIG_BYTES, WEIGHTS, load_folder
from vitviz.weights.checks import CheckpointError
from vitviz.weights.files import SUFFIXES, load_file
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


def folder_of(name: str) -> Path:
    """Where a bundled model lies, whether it is there or not."""
    return _root() / name


def load(source: str | os.PathLike[str], *, family: str | None = None, heads: int | None = None) -> ViT:
    """A model with its weights, in eval mode.

    | source | examples |
    |---|---|
    | a bundled model | `dinov2-s14-imagenette` |
    | a folder | one that vitviz saved, or one in Hugging Face's format (`config.json` and safetensors) |
    | a file | `x.safetensors`; `x.pt`, `x.pth` or `x.bin` of `torch.save` with tensors by name |
    | torchvision | `torchvision:vit_b_16`, `torchvision:vit_b_16.IMAGENET1K_SWAG_E2E_V1` |
    | timm | `timm:vit_small_patch16_224.dino` (needs the package timm) |
    | Hugging Face | `hf:facebook/dinov2-small` |

    A bundled name comes before a folder of the same name in the working directory; write `./name` for the folder. A
    folder's `model.safetensors` or `pytorch_model.bin` is loaded as the folder, with the settings beside it. Any other
    file is recognised by the names and shapes of its tensors; `pretrained.source` says what had to be assumed.

    Args:
        source: see above.
        family: of a file whose names and shapes leave a choice: one of `vitviz.weights.families.FAMILIES`.
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
        raise CheckpointError(f"family and heads are for a file of weights; {name!r} brings its own settings.")
    if known:
        return load_folder(folder_of(name))
    if _is_file(name):
        name = os.fspath(Path(name).parent)
    if name and Path(name).is_dir():  # Path("") would be the working directory
        return load_transformers_folder(name) if _is_transformers(Path(name)) else load_folder(name)
    library, colon, there = name.partition(":")
    if colon and library in LIBRARIES:
        return load_remote(library, there)
    names = ", ".join(bundled()) or f"none (no checkpoint was found in {_root()})"
    raise CheckpointError(
        f"Unknown model {name!r}: expected a bundled name, the path of a checkpoint folder or of a file of weights, or "
        f"{', '.join(f'{one}:NAME' for one in LIBRARIES)}. Bundled models: {names}."
    )


def _is_file(name: str) -> bool:
    """Whether it is meant as a file of weights, there or not; a library's model may end in anything."""
    path = Path(name)
    return path.is_file() or (
        path.suffix.lower() in SUFFIXES and not path.is_dir() and name.partition(":")[0] not in LIBRARIES
    )


def _has_settings(path: Path) -> bool:
    """Whether a file is the weights of a folder that says what they are."""
    if path.name not in (WEIGHTS, "pytorch_model.bin") or not path.is_file():
        return False
    return _is_transformers(path.parent) or (path.name == WEIGHTS and _is_ours(path.parent))


def _is_transformers(folder: Path) -> bool:
    """Whether a folder's config is Hugging Face's. What cannot be read is left to `load_folder`, which says why."""
    return "model_type" in _settings(folder)


def _is_ours(folder: Path) -> bool:
    return {"format", "preprocess"} <= set(_settings(folder))


def _settings(folder: Path) -> dict[str, object]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _root() -> Path:
    return Path(os.environ.get("VITVIZ_CHECKPOINTS") or CHECKPOINTS)
