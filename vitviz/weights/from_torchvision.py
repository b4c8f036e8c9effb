"""Models of torchvision's `VisionTransformer` -> ours.

torchvision takes images of one size only and interpolates positions when weights are loaded (bicubic, the corners
aligned); here they are interpolated for images of another size, as everywhere in vitviz. At the native size both
compute the same.
"""

import re
from dataclasses import replace
from typing import Any

from torch import nn

from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checks import ConvertError, assemble, checked_settings
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.infer import Architecture

BUILDERS = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
"""Names of the Vision Transformers in `torchvision.models`."""

_SWAG = "facebookresearch/SWAG"


@checked_settings()
def convert_torchvision(model: nn.Module, weights: Any = None) -> ViT:
    """Convert a Vision Transformer of torchvision: float32, in eval mode, a copy.

    Args:
        model: a `torchvision.models.VisionTransformer`, also one whose classifier was replaced by a linear layer.
        weights: the member of the enum of weights that it was loaded with: what travels with them; `None` for others.

    Raises:
        ConvertError: for another model, one that was changed beyond its classifier, or weights with other classes.
    """
    torchvision = import_torchvision()
    from torchvision.models import VisionTransformer

    if not isinstance(model, VisionTransformer):
        raise ConvertError(
            f"Expected a VisionTransformer of torchvision {torchvision.__version__}, got {type(model).__name__}. "
            "Build it with torchvision.models."
        )
    state, _ = read_classifiers(model, model.state_dict(), "heads")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    found = Architecture(shapes, family="torchvision", heads=model.encoder.layers[0].num_heads)
    config = replace(found.config, norm_eps=model.encoder.ln.eps)
    about = about_torchvision(weights) if weights is not None else None
    return assemble(config, found.convert(state), about)


@checked_settings()
def about_torchvision(weights: Any) -> Pretrained:
    """Return how weights such as `torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1` are fed, without a download.

    Raises:
        ConvertError: for weights whose transforms are not those of image classification.
    """
    preprocess, meta = preprocess_torchvision(weights.transforms()), weights.meta
    licence = "unknown: torchvision (BSD-3-Clause) states none for these weights"
    if _SWAG in f"{meta.get('license', '')} {meta.get('recipe', '')}":
        licence = f"CC-BY-NC-4.0 ({meta['license']})"
    elif "license" in meta:
        licence = str(meta["license"])
    return Pretrained(
        name=f"{re.sub('_Weights$', '', type(weights).__name__)} {weights.name}",
        preprocess=preprocess,
        labels=tuple(meta["categories"]),
        licence=licence,
        source=f"{weights.url} ({meta['recipe']})",
    )


def preprocess_torchvision(transforms: Any) -> Preprocess:
    """Return the steps of a weights' `transforms()`.

    Raises:
        ConvertError: for those of another task than image classification.
    """
    needed = ("resize_size", "crop_size", "mean", "std", "interpolation")
    if missing := [name for name in needed if not hasattr(transforms, name)]:
        raise ConvertError(
            f"Expected the transforms of an image classifier, got some without {', '.join(missing)}. "
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
