"""A folder as Hugging Face's `transformers` saves it -> a model that knows how it is fed and what its outputs mean.

`transformers` itself is not needed. Nothing here runs a stranger's code: JSON, safetensors, and PyTorch's own files
with tensors only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Interpolation, Preprocess
from vitviz.weights import pickled
from vitviz.weights.checks import Entry, blank, check_kinds, check_sum, filled, read_header, read_tensors
from vitviz.weights.from_transformers import convert_transformers
from vitviz.weights.settings import Settings, labels
from vitviz.weights.source import ConvertError

MAX_JSON_BYTES = 10 * 2**20

_HALF, _CLIP_MEAN, _CLIP_STD = (0.5,) * 3, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_ALL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False}
_CLIP = _ALL | {"resample": 3, "size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}
# What transformers' image processors assume where the file does not say, by the name before "ImageProcessor".
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": _ALL | {"resample": 2, "size": 224, "image_mean": _HALF, "image_std": _HALF},
    "DeiT": _ALL
    | {"resample": 3, "size": 256, "do_center_crop": True, "crop_size": 224, "image_mean": _HALF, "image_std": _HALF},
    "DINOv3ViT": _ALL | {"resample": 2, "size": 224, "image_mean": _IMAGENET_MEAN, "image_std": _IMAGENET_STD},
    "CLIP": _CLIP | {"image_mean": _CLIP_MEAN, "image_std": _CLIP_STD},
    "Bit": _CLIP | {"image_mean": _CLIP_MEAN, "image_std": _CLIP_STD},
    "Siglip": _ALL | {"resample": 3, "size": 224, "image_mean": _HALF, "image_std": _HALF},
}
_SHORTER = {"CLIP", "Bit"}  # for these one number as the size is that of the shorter side; for others of a square
_USUAL = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "dinov3_vit": "DINOv3ViT",
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
}
_RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def about_transformers(
    settings: Mapping[str, Any],
    preprocessor: Mapping[str, Any],
    name: str,
    *,
    licence: str = "unknown",
    source: str = "",
) -> Pretrained:
    """How to feed a model of `transformers`, and what its outputs mean.

    Little differs from `transformers`' own preprocessing: it rounds the margins around the centre down, ours to the
    nearest, so that an odd margin may move the picture by a pixel; its default backend resizes tensors, ours Pillow
    images; an input that patches do not fill (SigLIP with 384 pixels and patches of 14) is prepared at the size that
    they do fill, where `transformers` leaves out the last pixels. One thing differs by more: `DeiTImageProcessor`
    squashes the picture to a square before it cuts out the centre. Here its shorter side is resized, as when DeiT was
    trained; for square pictures that is the same.

    Args:
        settings: the model's `config.json`.
        preprocessor: the `preprocessor_config.json` beside it.
        name: short name for people and menus.
        licence: SPDX name or a sentence; the two files do not say.
        source: where the weights come from.

    Raises:
        ConvertError: for steps that `Preprocess` does not have, or values that are not what they should be.
        ImageError: for sizes or means that make no sense.
    """
    return Pretrained(
        name=name,
        preprocess=_preprocess(settings, preprocessor),
        labels=labels(settings) if "ForImageClassification" in str(settings.get("architectures")) else (),
        licence=licence,
        source=source,
    )


def load_transformers_folder(path: str | os.PathLike[str], *, name: str | None = None, licence: str = "unknown") -> ViT:
    """The model in a folder that `save_pretrained` wrote: float32, on the CPU, in eval mode.

    Args:
        path: a folder with `config.json`, `preprocessor_config.json` and the weights: `model.safetensors`, the same in
            several files with an index, or `pytorch_model.bin`.
        name: for people and menus; by default the folder's name.
        licence: SPDX name or a sentence; the files do not say.

    Raises:
        CheckpointError: if a file of weights is damaged, hostile, or holds something else.
        ConvertError: if files are missing or do not fit together, or the model is of another kind.
    """
    folder = Path(path)
    settings = _read(folder / "config.json")
    config, state = convert_transformers(_tensors(folder), settings)
    title = name or folder.resolve().name
    about = about_transformers(
        settings, _read_preprocessor(folder), title, licence=licence, source=f"transformers folder {title}"
    )
    where = repr(str(folder))
    shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
    return filled(blank(config, about, shapes, f"{where} does not fit its config.json"), state, f"in {where}")


# --- files


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConvertError(f"Expected a folder of transformers with {path.name}, but {str(path.parent)!r} has none.")
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise ConvertError(f"{str(path)!r} is {size:,} bytes long: expected at most {MAX_JSON_BYTES:,}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{str(path)!r} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise ConvertError(f"{str(path)!r}: expected a JSON object, got {type(data).__name__}.")
    return data


def _read_preprocessor(folder: Path) -> dict[str, Any]:
    """The image processor's file; a processor of images and texts keeps it in one of its own."""
    joint = folder / "processor_config.json"
    if not (folder / "preprocessor_config.json").is_file() and joint.is_file():
        inner = _read(joint).get("image_processor")
        if isinstance(inner, dict):
            return inner
    return _read(folder / "preprocessor_config.json")


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder by name, from the first kind of file that is there."""
    single, index, older = (
        folder / name for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    )
    if single.is_file():
        return _load(single)
    if index.is_file():
        return _sharded(index)
    if not older.is_file():
        raise ConvertError(
            f"Expected weights in {str(folder)!r} as {single.name}, as {index.name} with its parts, or as "
            f"{older.name}, but there is none of them."
        )
    return _load(older)


def _sharded(index: Path) -> dict[str, Tensor]:
    """Tensors from several files; the index says which tensor is where, and both have to agree."""
    where = _read(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise ConvertError(f"{str(index)!r}: expected a weight_map from the names of tensors to those of files.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):  # no other folder, no other kind of file
            raise ConvertError(f"{str(index)!r} names the file {name!r}: expected a safetensors file beside it.")
        part = _load(index.parent / name)
        if wrong := sorted(set(part) ^ {tensor for tensor, file in where.items() if file == name}):
            raise ConvertError(f"{name} holds other tensors than {index.name} says: {', '.join(wrong[:3])}.")
        tensors |= part
    return tensors


def _load(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, after its header was found to be of weights."""
    if not path.is_file():
        raise ConvertError(f"Expected the file {path.name} in {str(path.parent)!r}, but it is missing.")
    if path.suffix == ".safetensors":
        check_kinds(read_header(path), repr(str(path)))
        return read_tensors(path)
    found = pickled.outline(path)
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(entry, Entry) for name, entry in found.items()
    ):
        raise ConvertError(f"{str(path)!r}: expected tensors by name.")
    check_kinds(found, repr(str(path)))
    check_sum(found, path)
    return {name: tensor.detach() for name, tensor in pickled.load(path).items()}


# --- preprocessing


def _preprocess(settings: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> Preprocess:
    kind = _kind(settings, preprocessor)
    # A setting that is null takes the default of its processor, as in transformers.
    given = {key: value for key, value in preprocessor.items() if value is not None}
    said = Settings(given, "Preprocessing", PROCESSORS.get(kind, _ALL))
    said.need(*(() if kind in PROCESSORS else ("size", "resample", "image_mean", "image_std")))
    if not said.flag("do_resize"):
        raise said.refuse("do_resize", "a model for photographs of any size needs one")
    if not isinstance(resample := said.get("resample"), int) or resample not in _RESAMPLE:
        raise said.refuse("resample", f"expected one of {_RESAMPLE}")
    crop = said.flag("do_center_crop")
    shorter, (height, width) = _size(said, kind, crop)
    tower = settings.get("vision_config_dict") or settings.get("vision_config") or settings
    patch = tower.get("patch_size", 1) if isinstance(tower, Mapping) else 1
    patch = patch[0] if isinstance(patch, list | tuple) and patch else patch
    if isinstance(patch, int) and 0 < patch <= min(height, width):
        height, width = height // patch * patch, width // patch * patch
    scale = 255 * said.number("rescale_factor") if said.flag("do_rescale") else 255.0
    scale = 1.0 if abs(scale - 1) < 1e-6 else scale  # 1 / 255 in so many digits
    normal = said.flag("do_normalize")
    mean = _three(said, "image_mean") if normal else (0.0, 0.0, 0.0)
    std = _three(said, "image_std") if normal else (1.0, 1.0, 1.0)
    return Preprocess(
        height=height,
        width=width,
        mode="crop" if crop else "squash",
        resize=shorter,
        interpolation=_RESAMPLE[resample],
        # (scale * x - mean) / std for pixels x from 0 to 1, told without the scale.
        mean=(mean[0] / scale, mean[1] / scale, mean[2] / scale),
        std=(std[0] / scale, std[1] / scale, std[2] / scale),
    )


def _kind(settings: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> str:
    """The processor's name without what says how it computes; the model's usual one where the file has none."""
    kind = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type")
    if kind is None:
        return _USUAL.get(str(settings.get("model_type")), "")
    return re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(kind))


def _size(said: Settings, kind: str, crop: bool) -> tuple[int | None, tuple[int, int]]:
    """What the shorter side is resized to (`None`: the whole picture to the input), and the input (height, width)."""
    size = said.get("size")
    if isinstance(size, int) and not isinstance(size, bool):
        size = {"shortest_edge": size} if kind in _SHORTER else {"height": size, "width": size}
    if not isinstance(size, Mapping) or set(size) not in ({"shortest_edge"}, {"height", "width"}):
        raise said.refuse("size", "expected a number, height and width, or shortest_edge")
    sizes = Settings(size, "Preprocessing", {})
    if not crop:
        if "shortest_edge" in size:
            raise said.refuse("size", "without do_center_crop every photograph would have another shape")
        return None, (sizes.whole("height"), sizes.whole("width"))
    if "shortest_edge" not in size and size["height"] != size["width"]:
        raise said.refuse("size", "before do_center_crop a picture keeps its shape: expected shortest_edge")
    cut = said.get("crop_size")
    if isinstance(cut, Mapping):
        inner = Settings(cut, "Preprocessing", {"height": None, "width": None})
        box = inner.whole("height"), inner.whole("width")
    else:
        box = said.pair("crop_size")
    return sizes.whole("shortest_edge" if "shortest_edge" in size else "height"), box


def _three(said: Settings, name: str) -> tuple[float, float, float]:
    value = said.get(name)
    values = [value] * 3 if isinstance(value, int | float) else value
    if not isinstance(values, list | tuple) or len(values) != 3 or not all(isinstance(v, int | float) for v in values):
        raise said.refuse(name, "expected one number for each of three channels")
    return float(values[0]), float(values[1]), float(values[2])
