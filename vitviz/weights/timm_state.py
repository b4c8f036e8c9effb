"""Rearrange the tensors of timm models whose parts `ViT` computes in another form."""

from typing import Any

import torch
from torch import Tensor, nn

from vitviz.model.config import ViTConfig
from vitviz.model.vit import eval_mode
from vitviz.weights.naming import State

OWN_TABLE, SHARED_TABLES = "relative_position_bias_table", ("rel_pos_bias", "shared_rel_pos")
"""Attributes of timm's attention and models that hold biases by relative position."""


def fill_tables(model: nn.Module, state: State) -> None:
    """Replace networks that compute a bias from the relative position (Swin v2, `vit_relpos`) by tables, in place."""
    from timm.layers import RelPosMlp

    for name, module in model.named_modules():
        if isinstance(module, RelPosMlp):
            for key in [key for key in state if key.startswith(f"{name}.")]:
                del state[key]
            state[f"{name}.{OWN_TABLE}"] = _table(module)


@torch.no_grad()
def _table(module: Any) -> Tensor:
    """Return the biases of all relative positions, ((2 gh - 1) * (2 gw - 1) + P', H); P' = 3 zeros with a prefix."""
    with eval_mode(module):
        biases = module.bias_act(module.mlp(module.rel_coords_log)) * (module.bias_gain or 1.0)  # (2 gh - 1, 2 gw - 1, H)
    table = biases.flatten(0, 1)
    return torch.cat([table, table.new_zeros(3, module.num_heads)]) if module.prefix_tokens else table


def separate_halves(state: State, config: ViTConfig) -> None:
    """Reorder the channels of queries and keys in place for rotations that pair channels half a head apart.

    Pairs (0, 1), (2, 3), ... become (0, d / 2), (1, d / 2 + 1), ... in queries and keys alike, so that their products
    do not change.
    """
    heads, d = config.heads, config.head_size
    order = torch.arange(d).reshape(-1, 2).T.flatten()
    for index in range(config.depth):
        at = f"blocks.{index}.attn."
        for name in (at + "qkv.weight", at + "qkv.bias"):
            if name in state:
                parts = state[name].unflatten(0, (3, heads, d))  # (3 H d, ...) -> (3, H, d, ...)
                state[name] = torch.cat([parts[:2][:, :, order], parts[2:]]).flatten(0, 2)
        for name in (f"{at}{part}_norm.{kind}" for part in "qk" for kind in ("weight", "bias")):
            if name in state:
                state[name] = state[name][order]
