"""Load models that torchvision, timm and Hugging Face publish, each through its own cache.

Cached models need no network. A model that is neither cached nor reachable immediately raises a one-line error.
"""

import re
from collections.abc import Callable, Collection
from functools import partial
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
from vitviz.weights.captured_vit import load_transformers, open_captured
from vitviz.weights.checks import CONFIG, ConvertError, read_json
from vitviz.weights.from_timm import about_timm, config_of, convert_timm
from vitviz.weights.from_torchvision import (
    BUILDERS,
    PLAIN,
    about_torchvision,
    config_of_torchvision,
    convert_torchvision,
)
from vitviz.weights.infer import Reference
from vitviz.weights.timm_folder import is_timm, load_timm_folder
from vitviz.weights.timm_state import check_file_names
from vitviz.weights.tokens import size_of
from vitviz.weights.transformers_folder import read_reference_folder

ABOUT = ("config.json", "preprocessor_config.json", "processor_config.json", "README.md")
SAFE, OLD = ("*.safetensors", "*.safetensors.index.json"), ("pytorch_model.bin",)
NEEDED = ("config.json", "*processor_config.json")  # files needed besides weights


class RemoteError(VitvizError):
    """Raised when a published model is unknown, or neither cached nor reachable."""


def load_remote(library: str, name: str) -> ViT:
    """Load a model by its name in a library of `LIBRARIES`, in eval mode; see `zoo.load`.

    Raises:
        RemoteError: if the library is not installed or does not have the model, or if the model is neither cached nor
            reachable.
        CheckpointError: if the model is not supported, or its files are damaged.
    """
    return LIBRARIES[library][0](name)


def read_remote_reference(library: str, name: str) -> Reference:
    """Read the settings of a model by its name in a library of `LIBRARIES`, without its weights.

    Raise the errors of `load_remote`. timm and torchvision models need no network.
    """
    return LIBRARIES[library][1](name)


# --- Hugging Face


def check_hub(repository: str) -> None:
    """Check with one request of a few seconds that a repository exists on the Hugging Face hub.

    Raises:
        RemoteError: if it does not exist, the hub cannot be reached, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT):
        raise _unreachable(repository, "Hugging Face")
    try:
        HfApi().model_info(repository, timeout=CONNECT_SECONDS)
    except Exception as error:  # errors of the hub client and the HTTP client share no base class
        raise RemoteError(
            f"Expected {repository!r} on the Hugging Face hub, got {_first_line(error)}. Check the name."
        ) from error


def cached(repository: str, needed: tuple[str, ...]) -> Path | None:
    """Return the cached folder of a Hugging Face repository, or `None` if a pattern in `needed` matches no file.

    Other programs may have cached only some files of a repository, and the cache does not list the missing ones.

    Raises:
        RemoteError: if the repository's name is invalid.
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
    """Return the local folder of a Hugging Face repository, from the cache or downloaded with a progress bar.

    Args:
        repository: `owner/name`.
        patterns: the files to download.
        needed: patterns; the cached folder is used if each of them matches a file.

    Raises:
        RemoteError: if the repository is not cached, and the hub cannot be reached or refuses the download.
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
    except Exception as error:  # errors of the hub client, HTTP client and storage share no base class
        raise RemoteError(
            f"Expected {repository!r} from the Hugging Face hub, got {_first_line(error)}. Check the name; a gated or "
            "private model needs `hf auth login` first."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("Got: ")


def _unreachable(model: str, host: str, reason: str = "") -> RemoteError:
    return RemoteError(
        f"{model} is not downloaded, and {host} cannot be reached{reason}. Connect once to download it, or use a "
        "bundled model: `vitviz models` lists them."
    )


def hub_folder(name: str) -> Path:
    """Return the local folder of a Hugging Face model, from the cache or the hub; raise the errors of `fetch`."""
    settings = read_json(fetch(name, ABOUT, NEEDED[:1]) / CONFIG)
    needed = NEEDED[:1] if is_timm(settings) else NEEDED
    safe, old = (*needed, SAFE[0]), (*needed, *OLD)
    folder = cached(name, old) or fetch(name, (*ABOUT, *SAFE), safe)
    if not any((*folder.glob(SAFE[0]), *folder.glob(OLD[0]))):  # an old repository without safetensors
        folder = fetch(name, (*ABOUT, *OLD), old)
    return folder


def _load_hugging_face(name: str) -> ViT:
    folder = hub_folder(name)
    if is_timm(read_json(folder / CONFIG)):
        return load_timm_folder(folder, name)
    model = load_transformers(folder, name=name, licence=_licence(folder))
    model.text_source = f"hf:{name}" if model.text_source else ""  # its folder lacks the tokenizer
    return model


def _hugging_face_reference(name: str) -> Reference:
    return read_reference_folder(fetch(name, ABOUT, NEEDED), f"hf:{name}")


def _licence(folder: Path) -> str:
    """Return the licence in a model card's front matter."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace")[:10_000] if card.is_file() else ""
    match = re.match(r"---\s*\n(?:.*\n)*?license:\s*(\S+)", text)
    return match[1].strip("'\"") if match else "unknown"


# --- timm and torchvision


def load_classifier(library: str, name: str) -> tuple[nn.Module, Pretrained]:
    """Load any torchvision or timm classifier, in eval mode, with its labels and preprocessing.

    Raises:
        RemoteError: if the library is not installed or does not have the model, or if the model is neither cached nor
            reachable.
        ConvertError: if its preprocessing is not for image classification.
    """
    if library == "torchvision":
        import_torchvision()
        from torchvision import models

        names = models.list_models(models)
        model, weights = _torchvision_model(name, names, "list_models(torchvision.models) lists them")
        return model.eval(), about_torchvision(weights)
    built: Any = _timm_model(name)
    cfg = built.pretrained_cfg
    channels, height, width = cfg["input_size"]
    sizes = ViTConfig(image_size=(height, width), patch_size=1, channels=channels, classes=built.num_classes)
    return built.eval(), about_timm(cfg, sizes)


def _load_timm(name: str) -> ViT:
    empty = _empty_timm_model(name)
    try:
        config_of(empty)
    except ConvertError as refusal:
        if size_of(empty) is None:  # before the download
            raise
        built: Any = _timm_model(name).eval()
        return open_captured(built, refusal, about=partial(about_timm, built.pretrained_cfg))
    model: Any = _timm_model(name)
    return convert_timm(model, model.pretrained_cfg)


def _timm_reference(name: str) -> Reference:
    model = _empty_timm_model(name)
    config, channels = config_of(model)
    check_file_names(model)
    return Reference(f"timm:{name}", config, about_timm(model.pretrained_cfg, config), channels)


def _empty_timm_model(name: str) -> Any:
    """Return a timm model on the meta device."""
    import_torchvision()  # timm imports torchvision, whose import may fail
    with extra("convert"):
        import timm
    try:
        if timm.is_model(name.split(".")[0]):  # refuses names with a source prefix such as hf-hub:
            with torch.device("meta"):
                return timm.create_model(name)
    except RuntimeError:  # an unknown tag
        pass
    similar = ", ".join(timm.list_pretrained(f"{name[:8]}*")[:3])
    raise RemoteError(
        f"Expected a timm model, got {name!r}. timm.list_pretrained() lists them{similar and f': {similar}, ...'}."
    )


def _timm_model(name: str) -> nn.Module:
    """Load a timm model with its weights."""
    repository = _empty_timm_model(name).pretrained_cfg.get("hf_hub_id")
    import timm

    if not repository:
        raise RemoteError(
            f"Expected a timm model with weights on the hub, got {name!r}. timm.list_pretrained() lists them."
        )
    folder = fetch(repository, ("model.safetensors",), ("model.safetensors",))
    file = str(folder / "model.safetensors")
    model: nn.Module = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file})
    return model


def _load_torchvision(name: str) -> ViT:
    model, weights = _torchvision_model(name, BUILDERS, ", ".join(BUILDERS))
    try:
        return convert_torchvision(model, weights)
    except ConvertError as refusal:
        return open_captured(model.eval(), refusal, about=lambda _config: about_torchvision(weights))


def _torchvision_reference(name: str) -> Reference:
    weights, build = _torchvision_weights(name, BUILDERS, ", ".join(BUILDERS))
    with torch.device("meta"):
        config = config_of_torchvision(build())
    return Reference(f"torchvision:{name}", config, about_torchvision(weights))


def _torchvision_weights(name: str, builders: Collection[str], listed: str) -> tuple[Any, Callable[[], nn.Module]]:
    """Return the enum member of the weights of a model in `builders`, and a function that builds the model."""
    import_torchvision()
    from torchvision import models

    architecture, _, tag = name.partition(".")
    if architecture not in builders:
        raise RemoteError(f"Expected a torchvision model, got {architecture!r}. Choose one: {listed}.")
    published: Any = models.get_model_weights(architecture)
    if tag and tag not in published.__members__:
        raise RemoteError(
            f"Expected weights of {architecture} among {', '.join(published.__members__)}, got {tag!r}. Choose one."
        )
    weights = published[tag] if tag else published.DEFAULT
    settings = {"image_size": weights.meta["min_size"][0]} if architecture in PLAIN else {}
    return weights, lambda: models.get_model(architecture, **settings)


def _torchvision_model(name: str, builders: Collection[str], listed: str) -> tuple[nn.Module, Any]:
    """Load a model in `builders` with its weights, and return the model and the weights' enum member."""
    weights, build = _torchvision_weights(name, builders, listed)
    address = urlparse(weights.url)
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(address.path).name
    if not path.exists() and not reachable(weights.url):
        raise _unreachable(f"torchvision:{name}", str(address.hostname))
    # Unlike weights.get_state_dict, this unpickles tensors only.
    try:
        state = torch.hub.load_state_dict_from_url(weights.url, check_hash=True, weights_only=True, map_location="cpu")
    except Exception as error:  # a network error, a wrong hash, or a damaged file
        raise RemoteError(
            f"Expected torchvision:{name} from {address.hostname} or in {str(path)!r}, got {_first_line(error)}. If "
            "that file exists, remove it and try again."
        ) from error
    model = build()
    model.load_state_dict(state)
    return model, weights


LIBRARIES: dict[str, tuple[Callable[[str], ViT], Callable[[str], Reference]]] = {
    "torchvision": (_load_torchvision, _torchvision_reference),
    "timm": (_load_timm, _timm_reference),
    "hf": (_load_hugging_face, _hugging_face_reference),
}
"""Prefix of a model's name -> functions that load the model and read its settings."""
