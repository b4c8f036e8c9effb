"""Models that lie elsewhere: torchvision, timm and Hugging Face, each through its own cache.

What is in the cache needs no network. What is not, and cannot be fetched, is said in one line and at once.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch

from vitviz.compat import import_torchvision
from vitviz.model import ViT
from vitviz.weights.from_timm import convert_timm
from vitviz.weights.from_torchvision import BUILDERS, convert_torchvision
from vitviz.weights.timm_settings import settings_of
from vitviz.weights.transformers_folder import load_transformers_folder

CONNECT_SECONDS = 3.0
ABOUT = ("config.json", "preprocessor_config.json", "processor_config.json", "README.md")
SAFE, OLD = ("*.safetensors", "*.safetensors.index.json"), ("pytorch_model.bin",)
NEEDED = ("config.json", "*processor_config.json")  # beside weights, for a folder to be whole


class RemoteError(ValueError):
    """A model that cannot be had from where it is said to lie; the text says what is missing and what to do."""


def load_remote(library: str, name: str) -> ViT:
    """A model from a library's own collection, in eval mode.

    Args:
        library: one of `LIBRARIES`.
        name: as the library calls it: `vit_b_16` or `vit_b_16.IMAGENET1K_SWAG_E2E_V1` (torchvision),
            `vit_small_patch16_224.dino` (timm), `facebook/dinov2-small` (hf).

    Raises:
        RemoteError: if the library does not have it, is not installed, or cannot be reached and has not cached it.
        ConvertError: if its attention is not one N x N matrix a block, or its parts are none that we know.
    """
    return LIBRARIES[library](name)


def online(host: str) -> bool:
    """Whether a connection to `host` is worth trying. One attempt of a few seconds, instead of a minute of retries."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy knows; a direct connection may be shut and the way through it open
    try:
        socket.create_connection((host, 443), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def cached(repository: str, needed: tuple[str, ...]) -> Path | None:
    """The folder of a Hugging Face repository in the cache; `None` where a file of one of these patterns is missing.

    Other programs fetch some of a repository's files only, and the cache does not know which there are.

    Raises:
        RemoteError: if the repository's name is none.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(needed), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise RemoteError(f"Expected a repository as owner/name, got {repository!r}.") from error
    return folder if all(any(folder.glob(pattern)) for pattern in needed) else None


def fetch(repository: str, patterns: tuple[str, ...], needed: tuple[str, ...]) -> Path:
    """The local folder of a Hugging Face repository, from the cache, else from the hub with a progress bar.

    Args:
        repository: `owner/name`.
        patterns: the files to fetch.
        needed: what must be there for the cache to be enough, as patterns.

    Raises:
        RemoteError: if it is not cached and the hub cannot be reached, or the hub does not give it.
    """
    from huggingface_hub import constants, snapshot_download

    if (folder := cached(repository, needed)) is not None:
        return folder
    host = urlparse(constants.ENDPOINT).hostname or ""
    if constants.HF_HUB_OFFLINE or not online(host):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
        raise _unreachable(repository, "the Hugging Face hub", why)
    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # what hub, HTTP client and storage raise has no common ancestor
        raise RemoteError(
            f"The Hugging Face hub did not give {repository!r} ({_first_line(error)}). Check the name; a gated or "
            "private model needs `hf auth login` first."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _unreachable(what: str, where: str, why: str) -> RemoteError:
    reason = f" ({why})" if why else ""
    return RemoteError(
        f"{what!r} is not in this machine's cache, and {where} cannot be reached from here{reason}. Connect once to "
        "fetch it, or use a bundled model: `vitviz models` lists them."
    )


def _hugging_face(name: str) -> ViT:
    safe, old = (*NEEDED, SAFE[0]), (*NEEDED, *OLD)
    folder = cached(name, old) or fetch(name, (*ABOUT, *SAFE), safe)
    if not any(
        any(folder.glob(pattern)) for pattern in (SAFE[0], OLD[0])
    ):  # an old repository: tensors only are read of it
        folder = fetch(name, (*ABOUT, *OLD), old)
    return load_transformers_folder(folder, name=name, licence=_licence(folder))


def _licence(folder: Path) -> str:
    """The licence that a model card's front matter states."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace")[:10_000] if card.is_file() else ""
    found = re.match(r"---\s*\n(?:.*\n)*?license:\s*(\S+)", text)
    return found.group(1).strip("'\"") if found else "unknown"


def _timm(name: str) -> ViT:
    import_torchvision()  # timm imports it, and its own way may fail
    try:
        import timm
    except ImportError as error:
        raise RemoteError(f"timm:{name} needs the package timm, which is not installed: pip install timm.") from error
    if not timm.is_model(name.split(".")[0]):
        near = ", ".join(timm.list_pretrained(f"{name[:8]}*")[:3])
        raise RemoteError(f"timm has no model {name!r}; timm.list_pretrained() lists them{near and f': {near}, ...'}.")
    with torch.device("meta"):
        settings_of(timm.create_model(name.split(".")[0]))  # refuses what we cannot show before anything is fetched
    about = timm.get_pretrained_cfg(name)
    if about is None or not about.hf_hub_id:
        raise RemoteError(f"timm has no weights on the hub for {name!r}. timm.list_pretrained() lists those that have.")
    folder = fetch(about.hf_hub_id, ("model.safetensors",), ("model.safetensors",))
    file = str(folder / "model.safetensors")
    return convert_timm(timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file}))


def _torchvision(name: str) -> ViT:
    import_torchvision()
    from torchvision import models

    architecture, _, tag = name.partition(".")
    if architecture not in BUILDERS:
        raise RemoteError(f"torchvision has no Vision Transformer {architecture!r}: expected {', '.join(BUILDERS)}.")
    known: Any = models.get_model_weights(architecture)
    if tag and tag not in known.__members__:
        raise RemoteError(f"{architecture} has no weights {tag!r}: expected one of {', '.join(known.__members__)}.")
    weights = known[tag] if tag else known.DEFAULT
    address = urlparse(weights.url)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(address.path).name
    if not cached.exists() and not online(address.hostname or ""):
        raise _unreachable(f"torchvision:{name}", str(address.hostname), "")
    # Not weights.get_state_dict: that would unpickle whatever the file holds.
    try:
        state = torch.hub.load_state_dict_from_url(weights.url, check_hash=True, weights_only=True, map_location="cpu")
    except Exception as error:  # of the network, of a wrong hash, of a damaged file
        raise RemoteError(
            f"torchvision:{name} could not be had from {address.hostname} or read from {str(cached)!r} "
            f"({_first_line(error)}). If that file is there, remove it and try again."
        ) from error
    model = models.get_model(architecture, image_size=weights.meta["min_size"][0])
    model.load_state_dict(state)
    return convert_torchvision(model, weights)


LIBRARIES: dict[str, Callable[[str], ViT]] = {"torchvision": _torchvision, "timm": _timm, "hf": _hugging_face}
