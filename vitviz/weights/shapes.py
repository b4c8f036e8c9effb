"""Derive settings of a model from the names and shapes of its tensors."""

from collections.abc import Mapping
from typing import Any

from vitviz.weights.checks import ConvertError
from vitviz.weights.naming import Naming

Shapes = Mapping[str, tuple[int, ...]]


def merge_fields(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dicts of config fields, including the nested dicts of parts; a later dict overrides an earlier one."""
    result: dict[str, Any] = {}
    for name, value in (item for part in fields for item in part.items()):
        result[name] = result.get(name, {}) | value if isinstance(value, dict) else value
    return result


def need_shape(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor by our name.

    Raises:
        ConvertError: if it is missing, empty, or has another number of axes.
    """
    shape = shapes.get(name)
    if shape is None or len(shape) != axes or 0 in shape:
        raise ConvertError(
            f"Expected a tensor {name!r} with {axes} axes, got {shape or 'none'}. Merge added parts into the weights, "
            "such as those of LoRA, or undo the change."
        )
    return shape


def shown_settings(theirs: Shapes, names: Naming) -> dict[str, Any]:
    """Return fields of `ViTConfig` that a library's tensors show, of a block those of the first.

    Heads, epsilon, activation, input size and rotations are not among them. Of parts of the config, such as `norms`,
    the fields that tensors show are a dict.

    Raises:
        ConvertError: for missing tensors, and those of other shapes.
    """
    shapes = {ours: theirs[own] for ours, own in names.rename(theirs).names.items()}
    at = "blocks.0."
    hidden = need_shape(shapes, at + "mlp.fc2.weight", 2)[1]
    first = at + ("mlp.up.weight" if at + "mlp.up.weight" in shapes else "mlp.fc1.weight")
    gated = at + "mlp.gate.weight" in shapes or need_shape(shapes, first, 2)[0] == 2 * hidden
    width, channels, patch, _ = need_shape(shapes, "patch_embed.proj.weight", 4)  # (D, channels, p, p)
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    class_blocks = {name.split(".")[2] for name in shapes if name.startswith("attn_pool.blocks.")}
    pooling = "attn_pool.blocks.0." if class_blocks else "attn_pool."
    pool_hidden = shapes.get(pooling + "mlp.fc2.weight", (0, hidden))[1]
    norms = {"patch": "patch_embed.norm", "pre": "norm_pre", "qk": f"{at}attn.q_norm"}
    norms |= {"attention": f"{at}attn.norm", "mlp": f"{at}mlp.norm"}
    pooled = class_blocks or any(name.endswith("fc_norm.weight") for name in theirs)
    return {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": len(blocks),
        "class_token": "cls_token" in shapes and not class_blocks,  # CaiT's is that of its pooling
        "distillation_token": "dist_token" in shapes,
        "registers": shapes.get("reg_token", (1, 0))[1],
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "qkv_bias": any(f"{at}attn.{part}.bias" in shapes for part in ("qkv", "q", "k", "v")),
        "mlp_bias": at + "mlp.fc2.bias" in shapes,
        "mlp_width": hidden,
        "mlp": "swiglu" if gated else "mlp",
        "layer_scale": 1e-5 if at + "ls1.gamma" in shapes else None,  # the initial value; scales are weights
        "talking_heads": at + "attn.proj_l.weight" in shapes,
        "relative_bias": bool({"bias_table", f"{at}attn.bias_table"} & {*shapes}),
        "positions": "learned" if "pos_embed" in shapes else "none",
        "pool": {"blocks": len(class_blocks), "mlp_width": None if pool_hidden == hidden else pool_hidden},
        "norms": {field: f"{name}.weight" in shapes for field, name in norms.items()}
        | {"final": "none" if "norm.weight" not in shapes else "pooled" if pooled else "tokens"},
    }
