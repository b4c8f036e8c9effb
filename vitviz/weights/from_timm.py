"""Models of timm -> ours: weights in our names, and what travels with them.

`convert_timm` does all of it. Its parts are `settings_of` (a built module -> plain settings), `timm_model` (settings
and tensors -> `ViTConfig` and state, pure) and `about` (timm's `pretrained_cfg` -> `Pretrained`, pure).

Shapes: D width, M hidden width of the MLP, H heads, d head width, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.compat import import_torchvision
from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.weights.source import ConvertError, Source
from vitviz.weights.timm_settings import CONFIG, LAYOUT, Layout, settings_of


def convert_timm(model: nn.Module) -> ViT:
    """A model built by timm as a `ViT` of the same outputs and attentions: float32, in eval mode, a copy.

    Covers `VisionTransformer` (ViT, DeiT III, DINO, MAE, DINOv2, CLIP, SigLIP and their kin), its distilled form
    (DeiT) and `Eva` with learned positions or DINOv3's rotary ones. Dropout rates are not carried over.

    >>> import timm                                                                  # doctest: +SKIP
    >>> model = convert_timm(timm.create_model("vit_tiny_patch16_224", pretrained=True))   # doctest: +SKIP

    Raises:
        ConvertError: with the reason, for a model that has no single N x N attention in each block, or uses
            something that `ViT` does not compute.
    """
    config, state = timm_model(model.state_dict(), settings_of(model))
    cfg = getattr(model, "pretrained_cfg", None)
    with torch.device("meta"):  # no memory, no random numbers: every tensor is about to be replaced
        ours = ViT(config, about(cfg, config) if cfg else None)
    ours.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True, assign=True)
    return ours.eval()


# --- its weights


def timm_model(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Timm's tensors in our names; every one is taken exactly once.

    Args:
        state: `model.state_dict()`.
        settings: those of `settings_of`, all of them.

    Returns:
        The config and the state dict for `ViT(config)`, in the precision of `state`.

    Raises:
        ConvertError: if settings are missing or unknown, or tensors are missing, misshaped or left over.
    """
    if wrong := sorted((CONFIG | LAYOUT) ^ set(settings)):
        raise ConvertError(f"Expected the settings that settings_of returns; missing or unknown: {', '.join(wrong)}.")
    config = ViTConfig(**{name: settings[name] for name in CONFIG})
    layout = Layout(**{name: settings[name] for name in LAYOUT})
    source, width, patch = Source(state, "timm"), config.width, config.patch_size
    new = _tokens(source, config, layout)
    new["patch_embed.proj.weight"] = source.take("patch_embed.proj.weight", width, config.channels, patch, patch)
    if config.patch_bias:
        new["patch_embed.proj.bias"] = source.take("patch_embed.proj.bias", width)
    if config.norm_pre:
        new |= _norm(source, "norm_pre", width)
    final = _norm(source, "fc_norm" if config.norm_pooled else "norm", width)
    new |= {name.replace("fc_norm", "norm"): tensor for name, tensor in final.items()}
    for index in range(config.depth):
        block = _block(source, f"blocks.{index}.", config, layout)
        new |= {f"blocks.{index}.{name}": tensor for name, tensor in block.items()}
    if config.pooling == "attention":
        new["attn_pool.latent"] = source.take("attn_pool.latent", 1, 1, width)
        for name, rows in (("q", width), ("kv", 2 * width), ("proj", width)):
            new |= _linear(source, f"attn_pool.{name}", rows, width)
        new |= _norm(source, "attn_pool.norm", width)
        new |= _linear(source, "attn_pool.mlp.fc1", config.hidden, width, config.mlp_bias)
        new |= _linear(source, "attn_pool.mlp.fc2", width, config.hidden, config.mlp_bias)
    if config.classes:
        for head in ("head", "head_dist")[: 1 + config.distillation_token]:
            new |= _linear(source, head, config.classes, width)
    source.finish()
    return config, {name: tensor.detach().clone() for name, tensor in new.items()}


def _tokens(source: Source, config: ViTConfig, layout: Layout) -> dict[str, Tensor]:
    """Prefix tokens, with their positions added once for all, and the positions of the patches."""
    counts = {"cls_token": config.class_token, "dist_token": config.distillation_token, "reg_token": config.registers}
    new = {name: source.take(name, 1, int(count), config.width) for name, count in counts.items() if count}
    if config.positions == "learned":
        rows, columns = config.learned_grid
        front = len(config.prefix) if layout.prefix_positions else 0
        table = source.take("pos_embed", 1, front + rows * columns, config.width)
        if front:
            parts = table[:, :front].split([token.shape[1] for token in new.values()], dim=1)
            new = {name: token + part for (name, token), part in zip(new.items(), parts, strict=True)}
        new["pos_embed"] = table[:, front:]
    return new


def _block(source: Source, at: str, config: ViTConfig, layout: Layout) -> dict[str, Tensor]:
    """One block, whose tensors are named `at` + ...; ours without the block's prefix."""
    width, hidden, inner = config.width, config.hidden, config.heads * config.head_size
    new = _attention(source, at + "attn.", config, layout)
    # timm's blocks come without a bias here when their MLP does; ours always has one.
    zeros = {} if layout.output_bias else {at + "attn.proj.bias": new["attn.qkv.weight"].new_zeros(width)}
    theirs = _linear(source, at + "attn.proj", width, inner, layout.output_bias) | zeros
    for name in ("norm1", "norm2"):
        theirs |= _norm(source, at + name, width)
    if layout.gate_apart:  # gate, then what it gates: the halves of our fc1
        for kind, *shape in (("weight", hidden, width), ("bias", hidden))[: 1 + config.mlp_bias]:
            parts = [source.take(f"{at}mlp.fc1_{part}.{kind}", *shape) for part in "gx"]
            theirs[f"{at}mlp.fc1.{kind}"] = torch.cat(parts)
    else:
        rows = 2 * hidden if config.mlp == "swiglu" else hidden
        theirs |= _linear(source, at + "mlp.fc1", rows, width, config.mlp_bias)
    theirs |= _linear(source, at + "mlp.fc2", width, hidden, config.mlp_bias)
    if config.layer_scale is not None:
        for part in "12":
            new[f"ls{part}.gamma"] = source.take(at + (f"gamma_{part}" if layout.eva else f"ls{part}.gamma"), width)
    return new | {name.removeprefix(at): tensor for name, tensor in theirs.items()}


def _attention(source: Source, at: str, config: ViTConfig, layout: Layout) -> dict[str, Tensor]:
    """Queries, keys and values of one block, and the norms of the first two."""
    width, d = config.width, config.head_size
    inner = config.heads * d
    if layout.split:
        weights = [source.take(f"{at}{part}_proj.weight", inner, width) for part in "qkv"]
    else:
        weights = list(source.take(at + "qkv.weight", 3 * inner, width).chunk(3))
    if layout.biased == "qkv" and not layout.split:
        biases = list(source.take(at + "qkv.bias", 3 * inner).chunk(3))
    else:
        name = "_proj.bias" if layout.split else "_bias"
        biases = [
            source.take(at + part + name, inner) if part in layout.biased else weights[0].new_zeros(inner)
            for part in "qkv"
        ]
    # Pairs (0, 1), (2, 3), ... become (0, d / 2), (1, d / 2 + 1), ...: queries and keys alike, so that no product of
    # the two changes.
    order = torch.arange(d).reshape(-1, 2).T.flatten() if layout.interleaved else torch.arange(d)
    for part in (0, 1):
        weights[part] = weights[part].unflatten(0, (-1, d))[:, order].flatten(0, 1)  # (H * d, D)
        biases[part] = biases[part].unflatten(0, (-1, d))[:, order].flatten()  # (H * d,)
    new = {"attn.qkv.weight": torch.cat(weights)}
    if config.qkv_bias:
        new["attn.qkv.bias"] = torch.cat(biases)
    for name in ("q_norm", "k_norm") if config.qk_norm else ():
        for key, tensor in _norm(source, at + name, d).items():
            new["attn." + key.removeprefix(at)] = tensor[order]
    return new


def _linear(source: Source, name: str, rows: int, columns: int, bias: bool = True) -> dict[str, Tensor]:
    new = {name + ".weight": source.take(name + ".weight", rows, columns)}
    return new | ({name + ".bias": source.take(name + ".bias", rows)} if bias else {})


def _norm(source: Source, name: str, width: int) -> dict[str, Tensor]:
    return {f"{name}.{part}": source.take(f"{name}.{part}", width) for part in ("weight", "bias")}


# --- what travels with them


def about(cfg: Mapping[str, Any], config: ViTConfig) -> Pretrained:
    """Name, preprocessing, labels, licence and source, from timm's `model.pretrained_cfg`, for the size of `config`.

    Raises:
        ConvertError: if the `pretrained_cfg` is incomplete, or asks for preprocessing that `Preprocess` cannot do.
    """
    needed = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    if missing := [name for name in needed if cfg.get(name) is None]:
        raise ConvertError(f"timm's pretrained_cfg without {', '.join(missing)}: expected how images are prepared.")
    labels, class_ids = _labels(cfg, config.classes)
    name = ".".join(str(cfg[part]) for part in ("architecture", "tag") if cfg.get(part))
    hub = cfg.get("hf_hub_id")
    return Pretrained(
        name=name or "timm model",
        preprocess=_preprocess(cfg, config),
        labels=labels,
        class_ids=class_ids,
        licence=cfg.get("license") or "unknown",
        source=f"https://huggingface.co/{hub}" if hub else cfg.get("url") or cfg.get("origin_url") or "timm",
    )


def _preprocess(cfg: Mapping[str, Any], config: ViTConfig) -> Preprocess:
    """Timm's evaluation transform (`timm.data.create_transform`) for images of the model's size."""
    (height, width), share, mode = config.image_size, cfg["crop_pct"], cfg["crop_mode"]
    advice = "Convert the weights with timm_model(state_dict, settings_of(model)) and choose a Preprocess yourself."
    if config.channels != 3:
        raise ConvertError(f"Photographs have 3 channels, this timm model reads {config.channels}. {advice}")
    if cfg["interpolation"] not in ("bilinear", "bicubic", "lanczos", "nearest"):
        raise ConvertError(f"timm's interpolation {cfg['interpolation']!r} is not supported. {advice}")
    same = {"height": height, "width": width, "interpolation": cfg["interpolation"]}
    same |= {"mean": tuple(cfg["mean"]), "std": tuple(cfg["std"])}
    if mode == "center" and height == width:
        return Preprocess(mode="crop", resize=math.floor(height / share), **same)
    if mode in ("squash", "border") and share == 1.0:
        return Preprocess(mode="squash" if mode == "squash" else "pad", **same)
    raise ConvertError(
        f"timm prepares images by crop_mode={mode!r} with crop_pct={share} for {height} x {width} pixels: expected "
        f"'center' for a square, or 'squash' or 'border' of the whole image (crop_pct 1). {advice}"
    )


def _labels(cfg: Mapping[str, Any], classes: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and class ids: those of the weights, or of the ImageNet of that many classes, as timm tells them apart."""
    import_torchvision()
    import timm.data

    data: Any = timm.data
    if not classes or classes != cfg.get("num_classes") or cfg.get("label_offset"):
        return (), ()  # a classifier that is not the one the weights came with
    if names := cfg.get("label_names"):
        words = cfg.get("label_descriptions") or {}
        return tuple(str(words.get(name, name)) for name in names), tuple(map(str, names))
    subset = data.infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return (), ()
    info = data.ImageNetInfo(subset)
    return tuple(info.label_descriptions()), tuple(info.label_names())
