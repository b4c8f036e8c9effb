"""Models that lie elsewhere: torchvision, timm and Hugging Face, each through its own cache.

What is in the cache needs no network. What is not, and cannot be fetched, is said in one line and at once.
"""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from vitviz.errors import VitvizError
from vitviz.extras import extra
from vitviz.images.datasets import CONNECT_SECONDS, reachable
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.from_timm import about_timm, config_of, convert_timm
from vitviz.weights.from_torchvision import BUILDERS, about_torchvision, convert_torchvision
from vitviz.weights.transformers_folder import load_transformers_folder

ABOUT = ("config.json", "preprocessor_config.json", "processor_config.json", "README.md")
SAFE, OLD = ("*.safetensors", "*.safetensors.index.json"), ("pytorch_model.bin",)
NEEDED = ("config.json", "*processor_config.json")  # beside weights, for a folder to be whole


class RemoteError(VitvizError):
    """A model that a library's collection does not give; the text says what is missing and what to do."""


def load_remote(library: str, name: str) -> ViT:
    """Load a model by its name in a library's own collection, one of `LIBRARIES`, in eval mode; see `zoo.load`.

    Raises:
        RemoteError: if the library does not have it, is not installed, or cannot be reached and has not cached it.
        CheckpointError: if it is a model that is not supported, or its files are not what they should be.
    """
    return LIBRARIES[library](name)


def check_hub(repository: str) -> None:
    """Check that the Hugging Face hub has a repository, with one question of seconds.

    Raises:
        RemoteError: if it has not, cannot be reached, or must not be asked because HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT):
        raise _unreachable(repository, "Hugging Face")
    try:
        HfApi().model_info(repository, timeout=CONNECT_SECONDS)
    except Exception as error:  # what hub and HTTP client raise has no common ancestor
        raise RemoteError(
            f"Expected {repository!r} on the Hugging Face hub, got {_first_line(error)}. Check the name."
        ) from error


def cached(repository: str, needed: tuple[str, ...]) -> Path | None:
    """Return the folder of a Hugging Face repository in the cache; `None` where a file of a pattern is missing.

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
        raise RemoteError(f"Expected a repository as owner/name, got {repository!r}. Check it.") from error
    return folder if all(any(folder.glob(pattern)) for pattern in needed) else None


def fetch(repository: str, patterns: tuple[str, ...], needed: tuple[str, ...]) -> Path:
    """Return the local folder of a Hugging Face repository, from the cache, else from the hub with a progress bar.

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
    if constants.HF_HUB_OFFLINE:
        raise _unreachable(repository, "Hugging Face", " (HF_HUB_OFFLINE is set)")
    if not reachable(constants.ENDPOINT):
        raise _unreachable(repository, "Hugging Face")
    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except Exception as error:  # what hub, HTTP client and storage raise has no common ancestor
        raise RemoteError(
            f"Expected {repository!r} from the Hugging Face hub, got {_first_line(error)}. Check the name; a gated or "
            "private model needs `hf auth login` first."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Got: ")


def _unreachable(what: str, where: str, why: str = "") -> RemoteError:
    return RemoteError(
        f"{what} is not downloaded, and {where} cannot be reached{why}. Connect once to download it, or use a bundled "
        "model: `vitviz models` lists them."
    )


def hub_folder(name: str) -> Path:
    """Return the local folder of a model of Hugging Face, from the cache or the hub; raises as `fetch`."""
    safe, old = (*NEEDED, SAFE[0]), (*NEEDED, *OLD)
    folder = cached(name, old) or fetch(name, (*ABOUT, *SAFE), safe)
    if not any((*folder.glob(SAFE[0]), *folder.glob(OLD[0]))):  # an old repository
        folder = fetch(name, (*ABOUT, *OLD), old)
    return folder


def _hugging_face(name: str) -> ViT:
    folder = hub_folder(name)
    return load_transformers_folder(folder, name=name, licence=_licence(folder))


def _licence(folder: Path) -> str:
    """Return the licence that a model card's front matter states."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace")[:10_000] if card.is_file() else ""
    found = re.match(r"---\s*\n(?:.*\n)*?license:\s*(\S+)", text)
    return found[1].strip("'\"") if found else "unknown"


def load_classifier(library: str, name: str) -> tuple[nn.Module, Pretrained]:
    """Load any classifier of torchvision or timm by its name there, in eval mode, with its labels and preprocessing.

    Raises:
        RemoteError: if the library does not have it, is not installed, or cannot be reached and has not cached it.
        ConvertError: if what it says of preprocessing is not that of image classification.
    """
    if library == "torchvision":
        import_torchvision()
        from torchvision import models

        known = models.list_models(models)
        model, weights = _torchvision_model(name, known, "list_models(torchvision.models) lists them")
        return model.eval(), about_torchvision(weights)
    built: Any = _timm_model(name)
    cfg = built.pretrained_cfg
    channels, height, width = cfg["input_size"]
    sizes = ViTConfig(image_size=(height, width), patch_size=1, channels=channels, classes=built.num_classes)
    return built.eval(), about_timm(cfg, sizes)


def _timm(name: str) -> ViT:
    model: Any = _timm_model(name, config_of)  # refuses what we cannot show before anything is fetched
    return convert_timm(model, model.pretrained_cfg)


def _timm_model(name: str, check: Callable[[nn.Module], object] = lambda _model: None) -> nn.Module:
    """Load a model of timm that passes `check`, which gets it without weights."""
    import_torchvision()  # timm imports it, and its own way may fail
    with extra("convert"):
        import timm
    if not timm.is_model(name.split(".")[0]):
        near = ", ".join(timm.list_pretrained(f"{name[:8]}*")[:3])
        raise RemoteError(
            f"Expected a model of timm, got {name!r}. timm.list_pretrained() lists them{near and f': {near}, ...'}."
        )
    with torch.device("meta"):
        check(timm.create_model(name.split(".")[0]))
    about = timm.get_pretrained_cfg(name)
    if about is None or not about.hf_hub_id:
        raise RemoteError(
            f"Expected a model of timm with weights on the hub, got {name!r}. timm.list_pretrained() lists them."
        )
    folder = fetch(about.hf_hub_id, ("model.safetensors",), ("model.safetensors",))
    file = str(folder / "model.safetensors")
    model: nn.Module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file})
    return model


def _torchvision(name: str) -> ViT:
    return convert_torchvision(*_torchvision_model(name, BUILDERS, ", ".join(BUILDERS)))


def _torchvision_model(name: str, builders: Collection[str], listed: str) -> tuple[nn.Module, Any]:
    """Load a model of torchvision, one of these, and return it with the member of the enum of its weights."""
    import_torchvision()
    from torchvision import models

    architecture, _, tag = name.partition(".")
    if architecture not in builders:
        raise RemoteError(f"Expected a model of torchvision, got {architecture!r}. Choose one: {listed}.")
    known: Any = models.get_model_weights(architecture)
    if tag and tag not in known.__members__:
        raise RemoteError(
            f"Expected weights of {architecture} among {', '.join(known.__members__)}, got {tag!r}. Choose one."
        )
    weights = known[tag] if tag else known.DEFAULT
    address = urlparse(weights.url)
    place = Path(torch.hub.get_dir()) / "checkpoints" / Path(address.path).name
    if not place.exists() and not reachable(weights.url):
        raise _unreachable(f"torchvision:{name}", str(address.hostname))
    # Not weights.get_state_dict: that would unpickle whatever the file holds.
    try:
        state = torch.hub.load_state_dict_from_url(weights.url, check_hash=True, weights_only=True, map_location="cpu")
    except Exception as error:  # of the network, of a wrong hash, of a damaged file
        raise RemoteError(
            f"Expected torchvision:{name} from {address.hostname} or in {str(place)!r}, got {_first_line(error)}. If "
            "that file is there, remove it and try again."
        ) from error
    settings = {"image_size": weights.meta["min_size"][0]} if architecture in BUILDERS else {}
    model: nn.Module = models.get_model(architecture, **settings)
    model.load_state_dict(state)
    return model, weights


LIBRARIES: dict[str, Callable[[str], ViT]] = {"torchvision": _torchvision, "timm": _timm, "hf": _hugging_face}
