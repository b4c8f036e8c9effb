"""Map tokens to places in the photograph, and find the blocks, in modules that run as they are, for known classes."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from vitviz.weights.captured import Read, Tokens
from vitviz.weights.layouts import windows_of
from vitviz.weights.parts import Parts


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
    "pixio": lambda settings: ("CLS", *(f"CLS {count + 2}" for count in range(settings.n_cls_tokens - 1))),
    **dict.fromkeys(
        ("dinov2_with_registers", "dinov3_vit"),
        lambda settings: ("CLS", *_registers(settings.num_register_tokens)),
    ),
}


def _of_transformers(module: Any, height: int, width: int) -> Tokens | None:
    kind = module.config.model_type
    if kind in _WINDOWED:
        return _of_blocks(module, height, width)
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
    return Tokens(tuple(grid), prefix, height // grid[0], read=read)


def _of_blocks(module: Any, height: int, width: int) -> Tokens | None:
    """Return the tokens of a module whose blocks take patches only; its windows are found by running it."""
    parts, weight = parts_of(module), next(module.parameters())
    if parts is None or "max" in str(getattr(module, "global_pool", "")):
        return None
    known, place = _LAYOUTS.setdefault(module, {}), (height, width, weight.device)
    if place not in known:
        channels = next((part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)), 3)
        known[place] = windows_of(module, parts, weight.new_zeros(1, channels, height, width))
    if (found := known[place]) is None:
        return None
    grid, layouts = found
    whole = all(len(layout.members) == 1 and layout.grid == grid for layout in layouts)
    return Tokens(grid, (), height // grid[0], () if whole else layouts)


def _of_class_token(module: Any, height: int, width: int) -> Tokens | None:
    patch = module.patch_size[0] if isinstance(module.patch_size, Sequence) else module.patch_size
    return Tokens((height // patch, width // patch), ("CLS",), patch)


def _parts_of_timm(module: Any) -> Parts:
    head = module.get_classifier()
    return Parts(tuple(module.blocks), module.norm, head[0] if isinstance(head, tuple) else head)


def _parts_by_class(*names: str, last: str = "", channels_first: bool = False) -> Callable[[Any], Parts | None]:
    """Return a function that returns the parts of a module.

    Args:
        names: classes of the blocks; those with "2d" in their names have tokens (B, D, gh, gw).
        last: path of the module that returns the final tokens; by default, the last block.
        channels_first: whether the last module returns (B, D, gh, gw).
    """

    def parts(module: Any) -> Parts | None:
        tower = getattr(module, "encoder", module)
        blocks = tuple(part for part in tower.modules() if type(part).__name__ in names)
        if not blocks:
            return None
        final = tower.get_submodule(last) if last else blocks[-1]
        head = next((part for part in reversed([*module.modules()]) if isinstance(part, nn.Linear)), None)
        head = head if head is not None and getattr(module, "num_classes", True) else None
        of_maps = [block for block in blocks if "2d" in type(block).__name__ or type(block).__name__ in _OF_MAPS]
        return Parts(blocks, final, head, (*of_maps, *([final] if channels_first else ())))

    return parts


def _parts_of_torchvision(module: Any) -> Parts:
    return Parts(tuple(module.encoder.layers), module.encoder.ln, module.heads)


def _parts_of_transformers(module: Any) -> Parts | None:
    """Return the parts of a model of transformers; its blocks are in one `ModuleList`, or in one for each stage."""
    tower = module.base_model
    lists = [part for part in tower.modules() if isinstance(part, nn.ModuleList)]
    blocks = [block for part in lists for block in part if not any(inner in lists for inner in block.modules())]
    blocks = [block for block in blocks if any("Attention" in type(part).__name__ for part in block.modules())]
    if not blocks or len({type(block) for block in blocks}) > 1:
        return None
    pools = "clip" in module.config.model_type  # its norm follows the pooling
    norms = [] if pools else [norm for name in _NORMS if isinstance(norm := getattr(tower, name, None), nn.Module)]
    convolutions = [*blocks] if module.config.model_type == "vitdet" else [norms[0]] if hasattr(tower, "neck") else []
    heads = [head for name in _CLASSIFIERS if isinstance(head := getattr(module, name, None), nn.Module)]
    return Parts(tuple(blocks), norms[0] if norms else blocks[-1], heads[0] if heads else None, tuple(convolutions))


_LAYOUTS: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()  # by size of the image and device
_OF_MAPS = ("SpatialBlock",)  # classes of blocks whose tokens are (B, D, gh, gw)
_NORMS = ("neck", "layernorm", "norm", "post_layernorm")  # attributes of models of transformers
_CLASSIFIERS = ("classifier", "cls_classifier")
_WINDOWED = (
    *("swin", "swinv2", "donut-swin", "swin2sr", "sam_vision_model", "sam_hq_vision_model", "vitdet"),
    *("hiera", "mobilevit"),
)

# (package, class) -> the parts of a module whose blocks take patches only.
_BY_BLOCKS: dict[tuple[str, str], Callable[[Any], Parts | None]] = {
    **dict.fromkeys(
        (("timm", kind) for kind in ("SwinTransformer", "SwinTransformerV2")),
        _parts_by_class("SwinTransformerBlock", "SwinTransformerV2Block", last="norm"),
    ),
    ("timm", "SwinTransformerV2Cr"): _parts_by_class("SwinTransformerV2CrBlock", last="stages", channels_first=True),
    ("timm", "Hiera"): _parts_by_class("HieraBlock"),
    ("timm", "VisionTransformerSAM"): _parts_by_class("Block", last="neck", channels_first=True),
    ("timm", "MaxxVit"): _parts_by_class(
        "PartitionAttentionCl", "PartitionAttention2d", "TransformerBlock2d", last="norm", channels_first=True
    ),
    ("timm", "DaVit"): _parts_by_class("SpatialBlock", last="norm_pre", channels_first=True),
    ("timm", "TinyVit"): _parts_by_class("TinyVitBlock", last="stages", channels_first=True),
    ("timm", "GlobalContextVit"): _parts_by_class("GlobalContextVitBlock", last="stages", channels_first=True),
    **dict.fromkeys(
        (("timm", f"{name}{kind}") for name in ("Qwen3Vit", "Gemma4Vit") for kind in ("Encoder", "Classifier")),
        _parts_by_class("EvaBlock", "Gemma4Block"),
    ),
    **dict.fromkeys(
        (("timm", f"DeepseekVit{kind}") for kind in ("Encoder", "Classifier")),
        _parts_by_class("DeepseekVitBlock", last="norm"),
    ),
    ("torchvision", "SwinTransformer"): _parts_by_class("SwinTransformerBlock", "SwinTransformerBlockV2", last="norm"),
}  # fmt: skip

# (package, name of a class or base class) -> a function of the module and its input size that returns the tokens, and a
# function of the module that returns its parts.
_CLASSES: dict[tuple[str, str], tuple[Callable[[Any, int, int], Tokens | None], Callable[[Any], Parts | None]]] = {
    **{kind: (_of_blocks, parts) for kind, parts in _BY_BLOCKS.items()},
    **dict.fromkeys((("timm", kind) for kind in ("VisionTransformer", "Eva", "Beit")), (_of_timm, _parts_of_timm)),
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
