"""Convert torchvision's Vision Transformers.

torchvision accepts images of one size and interpolates positions when it loads weights (bicubic, with aligned corners).
vitviz interpolates them for images of another size. At the native size, both give the same outputs.
"""

import re
from typing import Any

from torch import nn

from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, assemble, checked_parts, checked_settings
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.describe import describe
from vitviz.weights.shapes import merge_fields, shown_settings
from vitviz.weights.timm_state import Channels
from vitviz.weights.verify import verified

SWINS = ("swin_t", "swin_s", "swin_b", "swin_v2_t", "swin_v2_s", "swin_v2_b")
PLAIN = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
BUILDERS = (*PLAIN, *SWINS)
"""Names of the Vision Transformers in `torchvision.models`."""

_SWAG = "facebookresearch/SWAG"


@checked_parts()
@checked_settings()
def convert_torchvision(model: nn.Module) -> ViT:
    """Convert a torchvision Vision Transformer: a copy in float32 and in eval mode.

    Args:
        model: a `torchvision.models.VisionTransformer`; its classifier may have been replaced by a linear layer.

    Raises:
        ConvertError: if the model has another class, or computes something else than it.
    """
    config, _ = config_of_torchvision(model)
    state, _ = read_classifiers(model, model.state_dict(), "heads", "head")
    return verified(assemble(config, naming.TORCHVISION.convert(state, config)), model)


def config_of_torchvision(model: Any) -> tuple[ViTConfig, Channels]:
    """Return the config of a built model, which may be on the meta device, and the order of its heads' channels.

    Raises:
        ConvertError: if the model has another class.
    """
    torchvision = import_torchvision()
    from torchvision.models import VisionTransformer

    if not isinstance(model, VisionTransformer):
        raise ConvertError(
            f"Expected a VisionTransformer of torchvision {torchvision.__version__}, got {type(model).__name__}. Build "
            "it with torchvision.models."
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    fields: dict[str, Any] = {
        "image_size": (model.image_size, model.image_size),
        "heads": model.encoder.layers[0].num_heads,
        "classes": read_classifiers(model, {}, "heads")[1],
        "table": {"antialias": False},
        "norms": {"eps": model.encoder.ln.eps},
    }
    return ViTConfig(**merge_fields(shown_settings(shapes, naming.TORCHVISION), fields)), Channels()


@checked_settings()
def about_torchvision(weights: Any) -> Pretrained:
    """Return labels and preprocessing of weights such as `ViT_B_16_Weights.IMAGENET1K_V1`, without a download.

    Raises:
        ConvertError: for weights whose transforms are not for image classification.
    """
    preprocess, meta = preprocess_torchvision(weights.transforms()), weights.meta
    licence = "unknown: torchvision (BSD-3-Clause) states none for these weights"
    if _SWAG in f"{meta.get('license', '')} {meta.get('recipe', '')}":
        licence = f"CC-BY-NC-4.0 ({meta['license']})"
    elif "license" in meta:
        licence = str(meta["license"])
    name = f"{re.sub('_Weights$', '', type(weights).__name__)} {weights.name}"
    origin = f"{weights.url} ({meta['recipe']})"
    return describe(name, preprocess, 0, meta["categories"], licence=licence, source=origin)


def preprocess_torchvision(transforms: Any) -> Preprocess:
    """Convert the `transforms()` of weights.

    Raises:
        ConvertError: for transforms that are not for image classification.
    """
    needed = ("resize_size", "crop_size", "mean", "std", "interpolation")
    if missing := [name for name in needed if not hasattr(transforms, name)]:
        raise ConvertError(
            f"Expected the transforms of an image classifier, got transforms without {', '.join(missing)}. "
            "Use weights of a Vision Transformer."
        )
    return Preprocess(
        height=transforms.crop_size[0],
        width=transforms.crop_size[0],
        mode="crop",
        resize=transforms.resize_size[0],
        interpolation=transforms.interpolation.value,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )
