"""Load folders in timm's format, as on the hub: `config.json` with the architecture, labels and preprocessing."""

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitviz.extras import extra
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.vit import ViT
from vitviz.weights.checks import CONFIG, ConvertError, attach, checked_settings, read_json
from vitviz.weights.describe import describe
from vitviz.weights.from_timm import convert_timm, labels_timm, preprocess_timm
from vitviz.weights.transformers_folder import read_tensors

_BUILD_ERRORS = (
    ArithmeticError,
    TypeError,
    ValueError,
    RuntimeError,
    AssertionError,
    AttributeError,
    KeyError,
    IndexError,
)


def is_timm(settings: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` is timm's."""
    return isinstance(settings.get("architecture"), str) and "model_type" not in settings


@checked_settings()
def load_timm_folder(folder: Path, name: str | None = None) -> ViT:
    """Load the model in a folder that timm's `save_for_hf` or `push_to_hf_hub` wrote.

    Depth and input size are read from the tensors, because timm writes them only if `model_args` has them.

    Args:
        folder: with `config.json` and `model.safetensors` or `pytorch_model.bin`.
        name: display name; by default the folder's name.

    Raises:
        ConvertError: if timm does not have the architecture, or the tensors do not fit it.
        MissingExtraError: if timm is not installed.
    """
    settings, tensors = read_json(folder / CONFIG), read_tensors(folder)
    model = _build(settings, {key: tuple(tensor.shape) for key, tensor in tensors.items()})
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ConvertError(
            f"Expected the tensors of {settings['architecture']} in {str(folder)!r}, got others: "
            f"{' '.join(str(error).split())[:300]}. Correct config.json."
        ) from error
    stated = settings.get("pretrained_cfg") or settings  # older versions of timm have one level
    cfg = {**(model.pretrained_cfg or {}), **stated, "num_classes": model.num_classes}
    cfg["label_names"] = settings.get("label_names") or stated.get("label_names") or stated.get("labels")
    cfg["label_descriptions"] = settings.get("label_descriptions")
    converted, title = convert_timm(model.eval()), name or folder.resolve().name
    config = converted.config
    labels, class_ids = labels_timm(cfg, config.classes)
    about = describe(
        title, preprocess_timm(cfg, config), config.classes, labels, known=bool(stated.get("mean")),
        class_ids=class_ids, licence=cfg.get("license") or "unknown", source=f"timm folder {title}",
    )  # fmt: skip
    return attach(converted, about)


def _build(settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Build the model of a `config.json`, with the depth and the input size of these tensors."""
    import_torchvision()
    with extra("convert"):
        import timm

    name, arguments = settings["architecture"], settings.get("model_args") or {}
    taken = {*inspect.signature(timm.create_model).parameters}  # such as the path of a checkpoint
    options = {key: value for key, value in dict(arguments).items() if key not in taken}
    options |= {key: settings[key] for key in ("num_classes", "global_pool") if settings.get(key) is not None}
    if depth := len({key.split(".")[1] for key in shapes if key.startswith("blocks.")}):
        options["depth"] = depth
    try:
        with torch.device("meta"):
            model: Any = timm.create_model(name, **options)
        own, positions = shapes.get("pos_embed"), getattr(model, "pos_embed", None)
        if own and positions is not None and own != tuple(positions.shape) and len(own) == positions.ndim == 3:
            patches = own[1] - positions.shape[1] + model.patch_embed.num_patches
            options["img_size"] = math.isqrt(max(0, patches)) * model.patch_embed.patch_size[0]
        return timm.create_model(name, **options)
    except _BUILD_ERRORS as error:
        raise ConvertError(
            f"Expected a model of timm in {CONFIG}, got {name!r:.80}, which timm cannot build: {error!s:.200}. Update "
            "timm, or correct the settings."
        ) from error
