"""Map tokens to places in the photograph, and find the blocks, in modules that run as they are, for known classes."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from vitviz.weights.captured import Read, Tokens
from vitviz.weights.parts import Parts
from vitviz.weights.windows import partition


def _registers(count: int) -> tuple[str, ...]:
    return tuple(f"register {index + 1}" for index in range(count))


# transformers' `model_type` -> names of the tokens in front of the patches, from the settings.
PREFIXES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    **dict.fromkeys(
        ("siglip_vision_model", "siglip2_vision_model", "ijepa", "idefics3_vision", "smolvlm_vision"),
        lambda _settings: (),
    ),
    **dict.fromkeys(
        ("vit", "vit_msn", "beit", "data2vec-vision", "dinov2", "clip_vision_model", "internvl_vision"),
        lambda _settings: ("CLS",),
    ),
    "deit": lambda _settings: ("CLS", "distillation"),
    **dict.fromkeys(
        ("dinov2_with_registers", "dinov3_vit"),
        lambda settings: ("CLS", *_registers(settings.num_register_tokens)),
    ),
}


def _of_transformers(module: Any, height: int, width: int) -> Tokens | None:
    kind = module.config.model_type
    if kind in _WINDOWED:
        return _WINDOWED[kind](module, height, width)
    names = PREFIXES.get(kind)
    if names is None:
        return None
    patch = module.config.patch_size
    patch = patch if isinstance(patch, int) else patch[0]
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


def _of_windows(
    grid: tuple[int, int], patch: int, stages: Sequence[Sequence[tuple[tuple[int, int], bool]]], device: Any
) -> Tokens | None:
    """Return the windows of each block of a Swin; `None` if they need padding.

    Args:
        grid: rows and columns of patches in the first stage.
        patch: side length of a patch in pixels.
        stages: for each block of each stage, (height, width) of its windows in tokens, and whether they are shifted.
        device: device of the tensors.
    """
    layouts = []
    for stage, blocks in enumerate(stages):
        of_stage = grid[0] // 2**stage, grid[1] // 2**stage
        for index, (window, shifts) in enumerate(blocks):
            parts = partition(stage, of_stage, window, device, shifts=shifts, merges=stage > 0 and index == 0)
            if parts.members.numel() != of_stage[0] * of_stage[1]:
                return None  # padding
            layouts.append(parts)
    return Tokens(grid, (), patch, tuple(layouts))


def _of_swin(module: Any, height: int, width: int) -> Tokens | None:
    if module.global_pool not in ("avg", ""):
        return None
    patch = module.patch_embed.patch_size[0]
    stages = [[(tuple(b.window_size), any(b.shift_size)) for b in layer.blocks] for layer in module.layers]
    return _of_windows((height // patch, width // patch), patch, stages, module.patch_embed.proj.weight.device)


def _of_torchvision_swin(module: Any, height: int, width: int) -> Tokens | None:
    conv = module.features[0][0]
    patch = conv.stride[0]
    stages = [[(tuple(b.attn.window_size), any(b.attn.shift_size)) for b in stage] for stage in module.features[1::2]]
    return _of_windows((height // patch, width // patch), patch, stages, conv.weight.device)


def _of_transformers_swin(module: Any, height: int, width: int) -> Tokens | None:
    settings, stages = module.config, []
    patch = settings.patch_size
    for stage, depth in enumerate(settings.depths):
        side = min(height, width) // patch // 2**stage
        window = min(settings.window_size, side)
        stages.append([((window, window), side > window and index % 2 == 1) for index in range(depth)])
    return _of_windows((height // patch, width // patch), patch, stages, next(module.parameters()).device)


def _of_sam(module: Any, height: int, width: int) -> Tokens | None:
    """Return the windows of SAM and ViTDet, padded at the border; a block with window size 0 attends globally."""
    patch = module.patch_embed.patch_size[0] if hasattr(module, "patch_embed") else module.config.patch_size
    patch = patch[0] if isinstance(patch, Sequence) else patch
    grid, device, parts = (height // patch, width // patch), next(module.parameters()).device, parts_of(module)
    sides = [] if parts is None else [int(getattr(block, "window_size", 0)) for block in parts.blocks]
    windows = [(side, side) if side else grid for side in sides if any(sides)]
    return Tokens(grid, (), patch, tuple(partition(0, grid, window, device, merges=False) for window in windows))


def _of_class_token(module: Any, height: int, width: int) -> Tokens | None:
    patch = module.patch_size[0] if isinstance(module.patch_size, Sequence) else module.patch_size
    return Tokens((height // patch, width // patch), ("CLS",), patch)


def _parts_of_timm(module: Any) -> Parts:
    head = module.get_classifier()
    return Parts(tuple(module.blocks), module.norm, head[0] if isinstance(head, tuple) else head)


def _parts_of_swin(module: Any) -> Parts:
    return Parts(
        tuple(block for layer in module.layers for block in layer.blocks), module.norm, module.get_classifier()
    )


def _parts_of_sam(module: Any) -> Parts:
    return Parts(tuple(module.blocks), module.neck, module.get_classifier(), (module.neck,))


def _parts_of_torchvision_swin(module: Any) -> Parts:
    return Parts(tuple(block for stage in module.features[1::2] for block in stage), module.norm, module.head)


def _parts_of_torchvision(module: Any) -> Parts:
    return Parts(tuple(module.encoder.layers), module.encoder.ln, module.heads)


def _parts_of_transformers(module: Any) -> Parts | None:
    """Return the parts of a model of transformers; its blocks are in one `ModuleList`, or in one for each stage."""
    tower = module.base_model
    lists = [part for part in tower.modules() if isinstance(part, nn.ModuleList)]
    blocks = [block for part in lists for block in part if not any(inner in lists for inner in block.modules())]
    if not blocks or len({type(block) for block in blocks}) > 1:
        return None
    pools = "clip" in module.config.model_type  # its norm follows the pooling
    norms = [] if pools else [norm for name in _NORMS if isinstance(norm := getattr(tower, name, None), nn.Module)]
    convolutions = [*blocks] if module.config.model_type == "vitdet" else [norms[0]] if hasattr(tower, "neck") else []
    heads = [head for name in _CLASSIFIERS if isinstance(head := getattr(module, name, None), nn.Module)]
    return Parts(tuple(blocks), norms[0] if norms else blocks[-1], heads[0] if heads else None, tuple(convolutions))


_NORMS = ("neck", "layernorm", "norm", "post_layernorm")  # attributes of models of transformers
_CLASSIFIERS = ("classifier", "cls_classifier")
_WINDOWED: dict[str, Callable[[Any, int, int], Tokens | None]] = {
    **dict.fromkeys(("swin", "swinv2"), _of_transformers_swin),
    **dict.fromkeys(("sam_vision_model", "sam_hq_vision_model", "vitdet"), _of_sam),
}

# (package, name of a class or base class) -> a function of the module and its input size that returns the tokens, and a
# function of the module that returns its parts.
_CLASSES: dict[tuple[str, str], tuple[Callable[[Any, int, int], Tokens | None], Callable[[Any], Parts | None]]] = {
    **dict.fromkeys((("timm", kind) for kind in ("VisionTransformer", "Eva", "Beit")), (_of_timm, _parts_of_timm)),
    **dict.fromkeys((("timm", kind) for kind in ("SwinTransformer", "SwinTransformerV2")), (_of_swin, _parts_of_swin)),
    ("timm", "VisionTransformerSAM"): (_of_sam, _parts_of_sam),
    ("torchvision", "SwinTransformer"): (_of_torchvision_swin, _parts_of_torchvision_swin),
    ("transformers", "PreTrainedModel"): (_of_transformers, _parts_of_transformers),
    ("torchvision", "VisionTransformer"): (_of_class_token, _parts_of_torchvision),
    ("open_clip", "VisionTransformer"): (_of_class_token, lambda _module: None),
}


def _known(module: nn.Module) -> Any:
    """Return the entry of `_CLASSES` for a module's class; `None` if the class is not known."""
    kinds = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(module).__mro__)
    return next((_CLASSES[kind] for kind in kinds if kind in _CLASSES), None)


def parts_of(module: nn.Module) -> Parts | None:
    """Return the blocks and other parts of a module of a known class; `None` if unknown."""
    known = _known(module)
    parts: Parts | None = known[1](module) if known else None
    return parts


def tokens_of(module: nn.Module, inputs: Sequence[Tensor]) -> Tokens | None:
    """Return the places of a module's tokens for its inputs, of which images are (B, C, H, W); `None` if unknown."""
    images = next((tensor for tensor in inputs if tensor.ndim == 4 and tensor.is_floating_point()), None)
    if images is None:
        return None
    known = _known(module)
    places: Tokens | None = known[0](module, *images.shape[2:]) if known else None
    return places


def is_known(model_type: object) -> bool:
    """Return whether the tokens of models of this `model_type` of transformers are known."""
    return model_type in PREFIXES or model_type in _WINDOWED or model_type in ("sam", "sam_hq")


def size_of(module: nn.Module) -> tuple[int, int] | None:
    """Return the (height, width) of the images of a module of a known class; `None` if unknown."""
    if _known(module) is None:
        return None
    cfg: Any = getattr(module, "pretrained_cfg", None) or {}
    parts = module, getattr(module, "patch_embed", None), getattr(module, "config", None)
    sizes = [getattr(part, name, None) for part in parts for name in ("image_size", "img_size")]
    sizes.append(tuple(cfg.get("input_size", ()))[1:])
    if (stages := getattr(module, "features", None)) is not None:  # torchvision's Swin: as published
        any_stages: Any = stages
        sizes.append(any_stages[1][0].attn.window_size[0] * any_stages[0][0].stride[0] * 2 ** (len(stages) // 2 - 1))
    size = next((size for size in sizes if size), None)
    return None if size is None else (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
