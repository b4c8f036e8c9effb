"""Load models that torchvision, timm and Hugging Face publish, each through its own cache.

Cached models need no network. A model that is neither cached nor reachable immediately raises a one-line error.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from vitviz.errors import VitvizError, first_line
from vitviz.extras import extra
from vitviz.images.datasets import CONNECT_SECONDS, reachable
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.captured_vit import load_transformers, open_captured
from vitviz.weights.checks import CONFIG, WEIGHTS, ConvertError, attach, read_json
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
from vitviz.weights.timm_state import Channels, check_file_names
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
            f"Expected {repository!r} on the Hugging Face hub, got {first_line(error)}. Check the name."
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
            f"Expected {repository!r} from the Hugging Face hub, got {first_line(error)}. Check the name; a gated or "
            "private model needs `hf auth login` first."
        ) from error


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


@dataclass(frozen=True)
class Library:
    """A library that builds its models by name.

    Args:
        name: prefix of its models' names.
        build: function of a name that returns the model with its weights, and the library's description of them; with
            `empty=True`, the model is on the meta device.
        config_of: function of a built model that returns its config, and the order of its heads' channels.
        convert: function that converts a model.
        about: function of the description and the config that returns labels and preprocessing.
    """

    name: str
    build: Callable[..., tuple[nn.Module, Any]]
    config_of: Callable[[nn.Module], tuple[ViTConfig, Channels]]
    convert: Callable[[nn.Module], ViT]
    about: Callable[[Any, ViTConfig], Pretrained]

    def load(self, name: str) -> ViT:
        """Load a model by its name. A model that is not converted runs as it is."""
        empty, _ = self.build(name, empty=True)
        try:
            self.config_of(empty)
        except ConvertError:
            if size_of(empty) is None:  # before the download
                raise
        model, description = self.build(name)
        try:
            converted = self.convert(model)
        except ConvertError as refusal:
            return open_captured(model.eval(), refusal, about=partial(self.about, description))
        return attach(converted, self.about(description, converted.config))

    def read_reference(self, name: str) -> Reference:
        """Return the settings of a model by its name, without its weights."""
        model, description = self.build(name, empty=True)
        config, channels = self.config_of(model)
        check_file_names(model)
        return Reference(f"{self.name}:{name}", config, self.about(description, config), channels)


def load_classifier(library: str, name: str) -> tuple[nn.Module, Pretrained]:
    """Load any torchvision or timm classifier, in eval mode, with its labels and preprocessing.

    Raises:
        RemoteError: if the library is not installed or does not have the model, or if the model is neither cached nor
            reachable.
        ConvertError: if its preprocessing is not for image classification.
    """
    built: Any
    built, description = BUILT[library].build(name, any_model=True)
    cfg = getattr(built, "pretrained_cfg", {"input_size": (3, 1, 1)})
    channels, height, width = cfg["input_size"]
    classes = getattr(built, "num_classes", 0)
    sizes = ViTConfig(image_size=(height, width), patch_size=1, channels=channels, classes=classes)
    return built.eval(), BUILT[library].about(description, sizes)


def _build_timm(name: str, *, empty: bool = False, any_model: bool = False) -> tuple[Any, Any]:  # noqa: ARG001
    """Return a timm model, on the meta device or with its weights, and its `pretrained_cfg`."""
    import_torchvision()  # timm imports torchvision, whose import may fail
    with extra("convert"):
        import timm
    model: Any = None
    with suppress(RuntimeError), torch.device("meta"):  # for an unknown tag
        if timm.is_model(name.split(".")[0]):  # refuses names with a source prefix such as hf-hub:
            model = timm.create_model(name)
    if model is None:
        similar = ", ".join(timm.list_pretrained(f"{name[:8]}*")[:3])
        raise RemoteError(
            f"Expected a timm model, got {name!r}. timm.list_pretrained() lists them{similar and f': {similar}, ...'}."
        )
    if empty:
        return model, model.pretrained_cfg
    if not (repository := model.pretrained_cfg.get("hf_hub_id")):
        raise RemoteError(
            f"Expected a timm model with weights on the hub, got {name!r}. timm.list_pretrained() lists them."
        )
    file = str(fetch(repository, (WEIGHTS,), (WEIGHTS,)) / WEIGHTS)
    model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": file})
    return model, model.pretrained_cfg


def _build_torchvision(name: str, *, empty: bool = False, any_model: bool = False) -> tuple[nn.Module, Any]:
    """Return a torchvision model, on the meta device or with its weights, and the weights' enum member."""
    import_torchvision()
    from torchvision import models

    architecture, _, tag = name.partition(".")
    builders = models.list_models(models) if any_model else BUILDERS
    if architecture not in builders:
        listed = "list_models(torchvision.models) lists them" if any_model else ", ".join(builders)
        raise RemoteError(f"Expected a torchvision model, got {architecture!r}. Choose one: {listed}.")
    published: Any = models.get_model_weights(architecture)
    if tag and tag not in published.__members__:
        raise RemoteError(
            f"Expected weights of {architecture} among {', '.join(published.__members__)}, got {tag!r}. Choose one."
        )
    weights = published[tag] if tag else published.DEFAULT
    settings = {"image_size": weights.meta["min_size"][0]} if architecture in PLAIN else {}
    if empty:
        with torch.device("meta"):
            return models.get_model(architecture, **settings), weights
    address = urlparse(weights.url)
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(address.path).name
    if not path.exists() and not reachable(weights.url):
        raise _unreachable(f"torchvision:{name}", str(address.hostname))
    # Unlike weights.get_state_dict, this unpickles tensors only.
    try:
        state = torch.hub.load_state_dict_from_url(weights.url, check_hash=True, weights_only=True, map_location="cpu")
    except Exception as error:  # a network error, a wrong hash, or a damaged file
        raise RemoteError(
            f"Expected torchvision:{name} from {address.hostname} or in {str(path)!r}, got {first_line(error)}. If "
            "that file exists, remove it and try again."
        ) from error
    model = models.get_model(architecture, **settings)
    model.load_state_dict(state)
    return model, weights


_TORCHVISION = Library(
    "torchvision",
    _build_torchvision,
    config_of_torchvision,
    convert_torchvision,
    lambda weights, _: about_torchvision(weights),
)
_TIMM = Library("timm", _build_timm, config_of, convert_timm, about_timm)
BUILT = {library.name: library for library in (_TORCHVISION, _TIMM)}
LIBRARIES: dict[str, tuple[Callable[[str], ViT], Callable[[str], Reference]]] = {
    **{name: (library.load, library.read_reference) for name, library in BUILT.items()},
    "hf": (_load_hugging_face, _hugging_face_reference),
}
"""Prefix of a model's name -> functions that load the model and read its settings."""
