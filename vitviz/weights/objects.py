"""Convert timm, torchvision, transformers and peft models that are already in memory.

The class of a model determines its library. A model in memory may have been trained further, so it never inherits the
name, address or licence of published weights.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checks import CONFIG, DTYPES, ConvertError, attach, checked_parts, checked_settings, read_json
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.describe import describe
from vitviz.weights.from_timm import about_timm, convert_timm
from vitviz.weights.from_torchvision import convert_torchvision
from vitviz.weights.from_transformers import convert_transformers, family_of, fit_labels
from vitviz.weights.given import read_preprocess
from vitviz.weights.naming import CONVENTIONS, TORCHVISION
from vitviz.weights.transformers_folder import about_transformers, read_tensors
from vitviz.weights.verify import verified

_MODELS = {
    "VisionTransformer",
    "SwinTransformer",
    "SwinTransformerV2",
    "Eva",
    "PreTrainedModel",
    "PeftModel",
    "ViT",
}  # classes of wrapped models
_WRAPPING = ("torch", "timm", "accelerate", "lightning", "pytorch_lightning", "deepspeed")
"""Packages with wrappers whose attribute `module` is the model."""
_CLASSIFIERS = ("classifier", "cls_classifier", "distillation_classifier")  # attributes of transformers models


@checked_settings()
def convert_object(model: nn.Module, preprocess: Any = None) -> ViT:
    """Convert a timm, torchvision, transformers or peft model: a copy in float32, in eval mode, on the same device.

    Wrappers of `torch.compile`, parallel training and averages of weights are removed. `pretrained` holds the model's
    own settings, and lists assumptions; it is `None` if the preprocessing is unknown.

    Args:
        model: a model of one of these libraries, or a `ViT`, which is copied.
        preprocess: preprocessing that replaces the model's own (see `given.read_preprocess`). The model's own is then
            not read, because it may be unsupported.

    Raises:
        ConvertError: if the model belongs to another library, its attention cannot be shown, or it computes something
            else than its class and parameters say (`verify.VerifyError`).
        CheckpointError: if its tensors do not match its settings.
    """
    model = unwrapped(model)
    if isinstance(model, ViT):
        return copy.deepcopy(model).float().eval()
    _check_weights(model)
    library = next((top for top in map(_package, type(model).__mro__) if top in LIBRARIES), None)
    if library is None:
        advice = _advise(model, "Save its state dict with the tensor names of one of these, and load the file.")
        raise ConvertError(
            f"Expected a Vision Transformer of {', '.join(LIBRARIES)}, got {type(model).__qualname__} of "
            f"{type(model).__module__}. {advice}"
        )
    if library == "peft":  # the adapters are merged into a copy, unless they are switched off
        adapted: Any = copy.deepcopy(model).float()
        with checked_parts():
            states = [part.disable_adapters for part in adapted.modules() if hasattr(part, "disable_adapters")]
            merged = adapted.unload() if states and all(states) else adapted.merge_and_unload()
        return verified(convert_object(merged, preprocess), bare(model))
    converted = CONVERTERS[library](model)
    return attach(converted, about_object(model, converted.config, preprocess))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers of libraries: compilation, parallel training, averages."""
    inner: Any = model
    while _package(type(inner)) in _WRAPPING and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    own: nn.Module = getattr(inner, "_orig_mod", inner)
    return own


def bare(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers, also inside a `PeftModel`, whose adapters remain in its layers."""
    own: Any = unwrapped(model)
    base: nn.Module = own.get_base_model() if hasattr(own, "get_base_model") else own
    return base


def _check_weights(model: nn.Module) -> None:
    """Refuse weights that are not in memory, quantised, or of a subclass of tensors that holds other numbers."""
    for name, module in model.named_modules():
        if "quant" in type(module).__module__ or type(module).__module__.startswith("bitsandbytes"):
            raise ConvertError(
                f"Expected weights in floating point, got a quantised part, {name} of {type(module).__module__}. Load "
                "the model without quantisation."
            )
    for name, weight in model.named_parameters():
        if weight.is_meta or weight.dtype not in DTYPES or type(weight.data) not in (Tensor, nn.Parameter):
            kind = "on the meta device" if weight.is_meta else f"{weight.dtype} in {type(weight.data).__name__}"
            raise ConvertError(
                f"Expected weights in memory, in {', '.join(map(str, DTYPES))}, got {kind} for {name}. Load the model "
                "without quantisation and device maps."
            )


def _advise(wrapper: nn.Module, otherwise: str) -> str:
    """Return advice for an unknown model: load its only part of a known class, with its classifier, or `otherwise`."""
    paths: list[str] = []
    for name, module in wrapper.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__ if _package(kind) in (*LIBRARIES, "vitviz")}
        if name and kinds & _MODELS and not any(name.startswith(f"{outer}.") for outer in paths):
            paths.append(name)
    if len(paths) != 1:
        return otherwise
    part: Any = wrapper.get_submodule(paths[0])
    widths = [getattr(part, name, None) for name in ("num_features", "hidden_dim")]
    widths += [getattr(getattr(part, "config", None), "hidden_size", None)]
    others = [
        name
        for name, module in wrapper.named_modules()
        if isinstance(module, nn.Linear) and module.in_features in widths and not name.startswith(f"{paths[0]}.")
    ]
    path = _expression(paths[0])
    if len(others) != 1:
        return f"Load the model inside, without what is around it: vitviz.load({path})."
    classifier, head = _expression(others[0]), next((name for name in ("head", "heads") if hasattr(part, name)), "")
    if not head:  # a model of transformers without a classifier
        return f"Put {path} and its classifier {classifier} into the class of transformers that has both, and load it."
    return (
        f"If its classifier {classifier} reads what {path}.{head} would read, keep it: {path}.{head} = {classifier}; "
        f"vitviz.load({path})."
    )


def _expression(name: str) -> str:
    """Return the expression for a part of `model`: "net.0.head" -> "model.net[0].head"."""
    return "model" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in name.split("."))


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def about_object(
    source: nn.Module,
    config: ViTConfig,
    preprocess: Any = None,
    preprocessor: Mapping[str, Any] | None = None,
) -> Pretrained:
    """Return labels and preprocessing of a model in memory: its own, or the usual ones of its library.

    Args:
        source: the model.
        config: its sizes.
        preprocess: preprocessing to use instead, see `given.read_preprocess`.
        preprocessor: settings of the image processor of a transformers model.
    """
    library = next((top for top in map(_package, type(source).__mro__) if top in CONVERTERS), "")
    own = None if preprocess is None else read_preprocess(preprocess, config)
    name, origin, labels = type(source).__name__, f"{library} model in memory".strip(), tuple[str, ...]()
    cfg: Any = getattr(source, "pretrained_cfg", None) if library == "timm" else None
    if cfg:
        origin += "" if own else ", with the preprocessing of its pretrained_cfg"
        return about_timm(cfg, config, source=origin, preprocess=own)
    if library == "transformers":
        model: Any = source
        kind = next(kind for kind in type(source).__mro__ if _package(kind) == library)  # of a subclass, too
        settings = fit_labels(model.config.to_dict() | {"architectures": [kind.__name__]}, config.classes)
        return about_transformers(settings, preprocessor, name, source=origin, config=config, preprocess=own)
    usual = TORCHVISION.preprocess if library == "torchvision" else CONVENTIONS["imagenet"]
    if library == "torchvision" and config.classes == 1000:
        from torchvision.models import ViT_B_16_Weights

        labels = tuple(ViT_B_16_Weights.DEFAULT.meta["categories"])
    read = own or usual.shaped(*config.image_size).with_channels(config.channels)
    known = own is not None
    return describe(name, read, config.classes, labels, known=known, labels_of="ImageNet", source=origin)


@checked_parts()
def convert_transformers_object(model: nn.Module) -> ViT:
    """Convert a model of a transformers class in memory, without labels and preprocessing; see `convert_object`."""
    built: Any = model
    kind = type(model)
    if _package(kind) != "transformers":
        raise ConvertError(
            f"Expected a model of a class of transformers, got {kind.__qualname__} of {kind.__module__}, which may "
            f"compute something else. {_advise(model, 'Copy its weights into the class that it derives from.')}"
        )
    if adapted := [name for name in model.state_dict() if ".lora_" in name or ".base_layer." in name]:
        raise ConvertError(
            f"Expected a model with its adapters merged, got {adapted[0]}. Load the PeftModel around it, or the result "
            "of its merge_and_unload()."
        )
    # Names in memory change between versions of transformers. Names in files written by save_pretrained do not.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, quiet_transformers():
        family_of(built.config.to_dict())
        built.save_pretrained(folder)
        tensors, classes = read_classifiers(built, read_tensors(Path(folder)), *_CLASSIFIERS)
        settings = fit_labels(read_json(Path(folder) / CONFIG), classes)
        return verified(convert_transformers(tensors, settings), model)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers."""
    messages: Any = import_module("transformers.utils.logging")
    shown, verbosity = messages.is_progress_bar_enabled(), messages.get_verbosity()
    messages.disable_progress_bar()
    messages.set_verbosity_error()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        if shown:
            messages.enable_progress_bar()


CONVERTERS: dict[str, Callable[[nn.Module], ViT]] = {
    "timm": convert_timm,
    "torchvision": convert_torchvision,
    "transformers": convert_transformers_object,
}
"""Package of the model's class or of a base class -> function that converts the model."""
LIBRARIES = (*CONVERTERS, "peft")
