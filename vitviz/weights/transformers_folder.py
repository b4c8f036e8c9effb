"""Load folders that Hugging Face's `transformers` saved.

`transformers` itself is not needed, and no code from the files is run: they are JSON, safetensors, and PyTorch files
with tensors only.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.fields import is_whole, matches_type
from vitviz.formatting import abbreviate
from vitviz.images.bands import MAX_BANDS, RGB, band_names
from vitviz.images.preprocess import Interpolation, Mode, Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.outputs import ProblemType
from vitviz.weights import checks
from vitviz.weights.checks import CONFIG, OLD_WEIGHTS, WEIGHTS, ConvertError, checked_settings, read_json
from vitviz.weights.describe import describe
from vitviz.weights.from_transformers import (
    TypedSettings,
    convert_transformers,
    family_of,
    fit_labels,
    has_text_tower,
    is_classifier,
    labels,
    read_settings,
)
from vitviz.weights.infer import Reference
from vitviz.weights.naming import CONVENTIONS

_IMAGENET, _OPENAI, _HALF = (
    {"image_mean": CONVENTIONS[name].mean, "image_std": CONVENTIONS[name].std} for name in ("imagenet", "clip", "half")
)
_ALL = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_center_crop": False}
_CUT = _ALL | {"resample": 3, "do_center_crop": True, "crop_size": 224}
# Defaults of transformers' image processors, by the name before "ImageProcessor".
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": _ALL | _HALF | {"resample": 2, "size": 224},
    "DeiT": _CUT | _HALF | {"size": 256},
    "Beit": _ALL | _HALF | {"resample": 3, "size": 224},
    "DINOv3ViT": _ALL | _IMAGENET | {"resample": 2, "size": 224},
    "CLIP": _CUT | _OPENAI | {"size": {"shortest_edge": 224}},
    "ChineseCLIP": _CUT | _OPENAI | {"size": {"shortest_edge": 224}},
    "Bit": _CUT | _OPENAI | {"size": {"shortest_edge": 224}},
    "Siglip": _ALL | _HALF | {"resample": 3, "size": 224},
    "Siglip2": _ALL | _HALF | {"resample": 2, "max_num_patches": 256, "patch_size": 16},
    "MobileViT": _CUT | {"size": {"shortest_edge": 224}, "crop_size": 256, "do_normalize": False},
    "Tipsv2": _ALL | {"resample": 2, "size": 448, "do_normalize": False},
    "DPT": _ALL | _HALF | {"resample": 3, "size": {"height": 384, "width": 384}, "keep_aspect_ratio": False},
    "Blip": _ALL | _OPENAI | {"resample": 3, "size": {"height": 384, "width": 384}},
    "Sam": _ALL | _IMAGENET | {"resample": 2, "size": {"longest_edge": 1024}},
    "VideoMAE": _CUT | _HALF | {"resample": 2, "size": {"shortest_edge": 224}},
    "Vivit": _CUT | _HALF | {"resample": 2, "size": {"shortest_edge": 256}, "rescale_factor": 1 / 127.5},
    "Yolos": _ALL | _IMAGENET | {"resample": 2, "size": {"shortest_edge": 800, "longest_edge": 1333}},
}
# Processors whose input keeps the shape of the photograph -> its mode, and the setting with its side.
_EDGES: dict[str, tuple[Mode, str]] = {"Sam": ("pad", "longest_edge"), "Yolos": ("native", "shortest_edge")}
_SHORTER = {"CLIP", "ChineseCLIP", "Bit"}  # one number as the size is the shorter side; elsewhere, a square's side
# First part of a `model_type` -> the usual processor of these models, which mostly has the same name.
_USUAL = {kind.lower(): kind for kind in PROCESSORS} | {
    **dict.fromkeys(("ijepa", "swin", "swinv2", "vitdet"), "ViT"),
    **dict.fromkeys(("metaclip", "chinese", "altclip", "mlcd", "aimv2"), "CLIP"),
    **dict.fromkeys(("dinov2", "hiera"), "Bit"),
    "data2vec-vision": "Beit",
    "dinov3": "DINOv3ViT",
}
# Settings of a family's published models that differ from the defaults of their processor.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "deit": _IMAGENET,
    "vit_mae": _IMAGENET,
    "swin": _IMAGENET,
    "swinv2": _IMAGENET | {"size": 256},
    "dinov2": _IMAGENET | {"size": {"shortest_edge": 256}},
    "vitdet": _IMAGENET,
    "hiera": _IMAGENET | {"size": {"shortest_edge": 256}},
    "mobilevit": {"resample": 2, "size": {"shortest_edge": 288}},
    "videomae": _IMAGENET,
}
_RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@checked_settings()
def about_transformers(
    settings: Mapping[str, Any],
    preprocessor: Mapping[str, Any] | None,
    name: str,
    *,
    licence: str = "unknown",
    source: str = "",
    config: ViTConfig | None = None,
    preprocess: Preprocess | None = None,
) -> Pretrained:
    """Return preprocessing and labels of a `transformers` model.

    Preprocessing differs from `transformers`' own in seven ways. A crop with an odd margin is shifted by one pixel.
    Resizing works on Pillow images, not on tensors. An input size that is not a multiple of the patch size (SigLIP: 384
    and 14 pixels) is rounded down. DeiT's processor squashes the picture before the crop; vitviz resizes the
    shorter side, as in DeiT's training. SigLIP 2 NaFlex and YOLOS keep a photograph's shape, but vitviz rounds its
    sides to patches in another way, and gives YOLOS as many pixels as a square of its shorter side has. SAM's processor
    pads at the right and at the bottom; vitviz centres the picture. The frames of a video are squashed, not cropped.

    Args:
        settings: the model's `config.json`.
        preprocessor: the model's `preprocessor_config.json`; `None` assumes the family's usual preprocessing.
        name: short display name.
        licence: SPDX name or a sentence; the two files do not state it.
        source: origin of the weights.
        config: config of a model that is not converted; by default, it is read from the settings.
        preprocess: preprocessing in place of the one of these files.

    Raises:
        ConvertError: for steps that `Preprocess` does not have, or values of wrong types or ranges.
    """
    given = preprocess is not None
    if preprocess is None and preprocessor is None:
        preprocess = _usual(settings, config or read_settings(settings)[0])
    elif preprocess is None:
        preprocess = preprocess_transformers(settings, preprocessor or {})
    named = labels(settings) if is_classifier(settings) else ()
    means = (preprocessor or {}).get("image_mean")
    stated = len(means) if isinstance(means, list | tuple) else 3
    known = given or (preprocessor is not None and stated == len(preprocess.bands))
    numbered = bool(named) and all(name == f"LABEL_{index}" for index, name in enumerate(named))
    words = "labels: LABEL_0, LABEL_1, ..., because no names of its classes were saved"
    problem = TypedSettings(settings, "classifier", {"problem_type": None})
    return describe(
        name, preprocess, 0, named, known=known, assumed=(words,) if numbered else (), licence=licence, source=source,
        problem_type=problem.typed("problem_type", ProblemType | None) if named else None,
    )  # fmt: skip


@checked_settings()
def load_transformers_folder(path: str | os.PathLike[str], *, name: str | None = None, licence: str = "unknown") -> ViT:
    """Load the model in a folder that `save_pretrained` wrote: float32, on the CPU, in eval mode.

    Args:
        path: a folder with `config.json` and the weights: `model.safetensors`, the same in several files with an index,
            or `pytorch_model.bin`. Without a `preprocessor_config.json` the family's usual preprocessing is assumed.
            Other files in a `Trainer`'s folder (`checkpoint-500`) are not read.
        name: display name; by default the folder's name.
        licence: SPDX name or a sentence; the files do not state it.

    Raises:
        CheckpointError: if a weights file is damaged, hostile, or holds something else.
        ConvertError: if files are missing or inconsistent, or the model is not supported.
    """
    folder = Path(path)
    settings, title = read_json(folder / CONFIG), name or folder.resolve().name
    family_of(settings)
    tensors = read_tensors(folder)
    classifiers = [key for key in tensors if re.search(r"classifier(\.\d+)*\.weight$", key)]
    if classes := {len(tensors[key]) for key in classifiers if tensors[key].ndim}:
        if not settings.get("architectures"):
            raise ConvertError(
                f"Expected the class of weights with a classifier in architectures of {CONFIG}, got none in "
                f'{str(folder)!r}. Add it, such as ["ViTForImageClassification"].'
            )
        settings = fit_labels(settings, max(classes))
    about = about_transformers(
        settings, read_preprocessor(folder), title, licence=licence, source=f"transformers folder {title}"
    )
    model = convert_transformers(tensors, settings, about, where=repr(str(folder)))
    model.text_source = str(folder) if has_text_tower(settings) else ""
    return model


def read_reference_folder(folder: Path, name: str) -> Reference:
    """Read the settings of the model in a folder, without weights; raise the errors of `load_transformers_folder`."""
    settings = read_json(folder / CONFIG)
    about = about_transformers(settings, read_preprocessor(folder), name)
    return Reference(name, read_settings(settings)[0], about)


# --- files


def read_preprocessor(folder: Path) -> dict[str, Any] | None:
    """Read the image processor's settings from its own file or a joint `processor_config.json`; else return `None`."""
    own, joint = folder / "preprocessor_config.json", folder / "processor_config.json"
    if not own.is_file() and joint.is_file():
        inner = read_json(joint).get("image_processor")
        return inner if isinstance(inner, dict) else None
    return read_json(own) if own.is_file() else None


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of the folder by name, from the first kind of file that exists."""
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file() and not (folder / WEIGHTS).is_file():
        return checks.without_wrappers(_sharded(index))
    for name in (WEIGHTS, OLD_WEIGHTS):
        if (folder / name).is_file():
            return checks.without_wrappers(_load(folder / name))
    raise ConvertError(
        f"Expected weights as {WEIGHTS}, as {index.name} with its parts, or as {OLD_WEIGHTS}, got none of them in "
        f"{str(folder)!r}. Download them too."
    )


def _sharded(index: Path) -> dict[str, Tensor]:
    """Return tensors from several files, which must hold exactly the tensors that the index assigns to them."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ConvertError(
            f"Expected a weight_map from tensors to files, got something else in {str(index)!r}. Fetch the file again."
        )
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):  # stay in the folder, never unpickle
            raise ConvertError(
                f"Expected safetensors files beside {str(index)!r}, got the name {name!r}. Correct its weight_map."
            )
        part = _load(index.parent / name)
        if wrong := sorted(set(part) ^ {tensor for tensor, file in files.items() if file == name}):
            raise ConvertError(
                f"Expected {name} to hold the tensors that {index.name} lists, got differences: {abbreviate(wrong)}."
            )
        tensors |= part
    return tensors


def _load(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file, checked."""
    tensors = checks.read_weights(checks.need_file(path))
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ConvertError(f"Expected tensors by name, got something else in {str(path)!r}. Save the state dict.")
    checks.check_tensors(tensors, path)
    return {name: tensor.detach() for name, tensor in tensors.items()}


# --- preprocessing


def _usual(settings: Mapping[str, Any], config: ViTConfig) -> Preprocess:
    """Return the family's usual preprocessing at the model's size; for DINOv2, whose grid is larger, at 224 pixels."""
    kind = str(settings.get("model_type"))
    family = kind.partition("_")[0]
    if config.frames > 1:
        return preprocess_transformers(settings, _PUBLISHED.get(kind, {}))
    usual = preprocess_transformers({"model_type": family}, _PUBLISHED.get(kind, _PUBLISHED.get(family, {})))
    usual = usual.at(usual.height, config.patch_size) if family == "dinov2" else usual.shaped(*config.image_size)
    return usual.with_channels(config.channels)


def preprocess_transformers(settings: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> Preprocess:
    """Convert the settings of an image processor for a model; see `about_transformers`.

    Raises:
        ConvertError: for steps that `Preprocess` does not have, or values of wrong types or ranges.
    """
    kind = _kind(settings, preprocessor)
    # A null setting means the processor's default, as in transformers.
    values = {key: value for key, value in preprocessor.items() if value is not None}
    checked = TypedSettings(values, "Preprocessing", PROCESSORS.get(kind, _ALL))
    checked.need(*(() if kind in PROCESSORS else ("size", "resample", "image_mean", "image_std")))
    if not checked.typed("do_resize", bool):
        raise checked.refuse("do_resize", "true, because photographs may have any size")
    if not isinstance(resample := checked.get("resample"), int) or resample not in _RESAMPLE:
        raise checked.refuse("resample", f"one of {_RESAMPLE}")
    crop = checked.typed("do_center_crop", bool)
    mode: Mode = "crop" if crop else "squash"
    if values.get("keep_aspect_ratio"):
        raise checked.refuse("keep_aspect_ratio", "false, because shapes would differ")
    if kind == "Siglip2":
        mode, shorter = "native", None
        height = width = math.isqrt(max(1, checked.typed("max_num_patches", int))) * checked.square("patch_size")
    elif kind in _EDGES:
        (mode, edge), shorter = _EDGES[kind], None
        height = width = TypedSettings(checked.typed("size", dict), "Preprocessing", {}).typed(edge, int)
    else:
        shorter, (height, width) = _size(checked, kind, crop)
    tower = settings.get("vision_config_dict") or settings.get("vision_config") or settings
    patch = tower.get("patch_size", 1) if isinstance(tower, Mapping) else 1
    patch = patch[0] if isinstance(patch, list | tuple) and patch else patch
    if isinstance(patch, int) and 0 < patch <= min(height, width):
        height, width = height // patch * patch, width // patch * patch
    scale = 255 * checked.typed("rescale_factor", float) if checked.typed("do_rescale", bool) else 255.0
    if not 1e-6 < scale < 1e6:
        raise checked.refuse("rescale_factor", "a number above 0")
    scale = 1.0 if abs(scale - 1) < 1e-6 else scale  # 1 / 255 with rounding errors
    # The processor computes (scale * x - mean) / std for pixels x from 0 to 1; here mean and std are divided by scale.
    channels = tower.get("num_channels", 3) if isinstance(tower, Mapping) else 3
    if not is_whole(channels) or not 0 < channels <= MAX_BANDS:
        raise ConvertError(f"Expected num_channels from 1 to {MAX_BANDS}, got {channels!r:.80}. Correct config.json.")
    shift = 1 / scale if values.get("offset", kind == "Vivit") else 0.0  # ViViT subtracts 1 after rescaling
    mean: tuple[float, ...] = (shift,) * 3
    std: tuple[float, ...] = (1 / scale,) * 3
    if checked.typed("do_normalize", bool):
        mean, std = (_numbers(checked, name, scale, channels) for name in ("image_mean", "image_std"))
        mean = tuple(value + shift for value in mean)
    read = Preprocess(
        height=height,
        width=width,
        mode=mode,
        multiple=patch if mode == "native" and isinstance(patch, int) and patch > 1 else 16,
        resize=shorter,
        interpolation=_RESAMPLE[resample],
        mean=mean,
        std=std,
        bands=RGB[::-1] if values.get("do_flip_channel_order", kind == "MobileViT") else band_names(len(mean)),
    )
    return _of_tubes(read, settings) if kind in ("VideoMAE", "Vivit") else read.with_channels(channels)


def _of_tubes(read: Preprocess, settings: Mapping[str, Any]) -> Preprocess:
    """Return the preprocessing of stacked frames, see `stack_frames`, from that of a frame."""
    config = read_settings(settings)[0]
    length = config.channels // len(read.bands)
    bands = tuple(f"{band} of frame {frame + 1}" for frame in range(length) for band in read.bands)
    return Preprocess(
        height=config.image_size[0],
        width=config.image_size[1],
        mode="squash",
        interpolation=read.interpolation,
        mean=read.mean * length,
        std=read.std * length,
        bands=bands,
        shown=bands[: len(read.bands)],
    )


def _kind(settings: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> str:
    """Return the processor's name without suffixes such as "Fast"; by default, the model's usual processor."""
    kind = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type")
    if kind is None:
        return _USUAL.get(str(settings.get("model_type")).partition("_")[0], "")
    return re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(kind))


def _size(checked: TypedSettings, kind: str, crop: bool) -> tuple[int | None, tuple[int, int]]:
    """Return the resized shorter side (`None`: the whole picture is squashed), and the input's (height, width)."""
    size = checked.get("size")
    if isinstance(size, int) and not isinstance(size, bool):
        size = {"shortest_edge": size} if kind in _SHORTER else {"height": size, "width": size}
    if not isinstance(size, Mapping) or set(size) not in ({"shortest_edge"}, {"height", "width"}):
        raise checked.refuse("size", "a number, height and width, or shortest_edge")
    sizes = TypedSettings(size, "Preprocessing", {})
    if not crop:
        if "shortest_edge" in size:
            raise checked.refuse("size", "height and width: without do_center_crop shapes would differ")
        return None, (sizes.typed("height", int), sizes.typed("width", int))
    if "shortest_edge" not in size and size["height"] != size["width"]:
        raise checked.refuse("size", "shortest_edge, because before do_center_crop a picture keeps its shape")
    crop_size = checked.get("crop_size")
    if isinstance(crop_size, Mapping):
        sides = TypedSettings(crop_size, "Preprocessing", {"height": None, "width": None})
        box = sides.typed("height", int), sides.typed("width", int)
    else:
        box = checked.pair("crop_size")
    return sizes.typed("shortest_edge" if "shortest_edge" in size else "height", int), box


def _numbers(checked: TypedSettings, name: str, scale: float, channels: Any) -> tuple[float, ...]:
    """Return one number for each channel, or for three, divided by `scale`."""
    value = checked.get(name)
    values = [value] * 3 if isinstance(value, int | float) else value
    if not matches_type(values, tuple[float, ...]) or len(values) not in (3, channels):
        raise checked.refuse(name, "one number for each channel")
    return tuple(value / scale for value in values)
