"""Know the places of tokens in the photograph for modules of known classes that run as they are."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from vitviz.model.windows import partition
from vitviz.weights.captured import Read, Tokens


def _registers(count: int) -> tuple[str, ...]:
    return tuple(f"register {index + 1}" for index in range(count))


# transformers' `model_type` -> names of the tokens in front of the patches, from the settings.
_PREFIXES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    **dict.fromkeys(("siglip_vision_model", "siglip2_vision_model", "ijepa"), lambda _settings: ()),
    **dict.fromkeys(
        ("vit", "vit_msn", "beit", "data2vec-vision", "dinov2", "clip_vision_model"), lambda _settings: ("CLS",)
    ),
    "deit": lambda _settings: ("CLS", "distillation"),
    **dict.fromkeys(
        ("dinov2_with_registers", "dinov3_vit"),
        lambda settings: ("CLS", *_registers(settings.num_register_tokens)),
    ),
}


def _of_transformers(module: Any, height: int, width: int) -> Tokens | None:
    names = _PREFIXES.get(module.config.model_type)
    if names is None:
        return None
    patch = module.config.patch_size
    read: Read = ""
    if type(module).__name__.endswith("ForImageClassification"):  # others return the class token
        averaged = getattr(module.config, "use_mean_pooling", False)
        read = "cls+mean" if "dinov2" in module.config.model_type else "mean" if averaged else ""
    return Tokens((height // patch, width // patch), names(module.config), patch, read=read)


def _of_timm(module: Any, height: int, width: int) -> Tokens | None:
    if not hasattr(module, "num_prefix_tokens") or not hasattr(module.patch_embed, "dynamic_feat_size"):
        return None
    token = getattr(module, "reg_token", None)
    count, registers = module.num_prefix_tokens, 0 if token is None else token.shape[1]
    first = ("CLS", "distillation")[: count - registers]
    grid, prefix = module.patch_embed.dynamic_feat_size((height, width)), (*first, *_registers(registers))
    read: Read = "mean" if "avg" in module.global_pool else ""
    return Tokens(tuple(grid), prefix, module.patch_embed.patch_size[0], read=read)


def _of_swin(module: Any, height: int, width: int) -> Tokens | None:
    """Return windows as each block of timm's Swin divides its stage; see `vitviz.model.windows.partition`."""
    patch, weight = module.patch_embed.patch_size[0], module.patch_embed.proj.weight
    grid, layouts = (height // patch, width // patch), []
    for stage, layer in enumerate(module.layers):
        of_stage = grid[0] // 2**stage, grid[1] // 2**stage
        for index, block in enumerate(layer.blocks):
            window, merges = tuple(block.window_size), stage > 0 and index == 0
            parts = partition(stage, of_stage, window, weight.device, shifts=any(block.shift_size), merges=merges)
            if parts.members.numel() != of_stage[0] * of_stage[1]:
                return None  # padding
            layouts.append(parts)
    return Tokens(grid, (), patch, tuple(layouts))


def _of_class_token(module: Any, height: int, width: int) -> Tokens | None:
    patch = module.patch_size[0] if isinstance(module.patch_size, Sequence) else module.patch_size
    return Tokens((height // patch, width // patch), ("CLS",), patch)


# Package and class, or a base class -> function of the module and the size of its images.
_CLASSES: dict[tuple[str, str], Callable[[Any, int, int], Tokens | None]] = {
    ("timm", "VisionTransformer"): _of_timm,
    ("timm", "SwinTransformer"): _of_swin,
    ("timm", "SwinTransformerV2"): _of_swin,
    ("timm", "Eva"): _of_timm,
    ("timm", "Beit"): _of_timm,
    ("transformers", "PreTrainedModel"): _of_transformers,
    ("torchvision", "VisionTransformer"): _of_class_token,
    ("open_clip", "VisionTransformer"): _of_class_token,
}


def tokens_of(module: nn.Module, inputs: Sequence[Tensor]) -> Tokens | None:
    """Return the places of a module's tokens for its inputs, of which images are (B, C, H, W); `None` if unknown."""
    images = next((tensor for tensor in inputs if tensor.ndim == 4 and tensor.is_floating_point()), None)
    if images is None:
        return None
    for kind in type(module).__mro__:
        if find := _CLASSES.get((kind.__module__.partition(".")[0], kind.__name__)):
            return find(module, *images.shape[2:])
    return None


def is_known(model_type: object) -> bool:
    """Return whether the tokens of models of this `model_type` of transformers are known."""
    return model_type in _PREFIXES


def size_of(module: nn.Module) -> tuple[int, int] | None:
    """Return the (height, width) of the images of a module of a known class; `None` if unknown."""
    if not any((kind.__module__.partition(".")[0], kind.__name__) in _CLASSES for kind in type(module).__mro__):
        return None
    cfg: Any = getattr(module, "pretrained_cfg", None) or {}
    parts = module, getattr(module, "patch_embed", None), getattr(module, "config", None)
    sizes = [getattr(part, name, None) for part in parts for name in ("image_size", "img_size")]
    size = next((size for size in (*sizes, tuple(cfg.get("input_size", ()))[1:]) if size), None)
    return None if size is None else (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
