"""Rearrange the tensors of timm models for parts that `ViT` computes in another form."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitviz.model.config import ViTConfig
from vitviz.model.vit import eval_mode
from vitviz.weights.checks import ConvertError
from vitviz.weights.naming import State


class Channels(NamedTuple):
    """Order of a head's channels in rotary positions.

    Args:
        neighbors: whether rotations pair neighbouring channels, instead of channels half a head apart.
        columns_first: whether the first rotations depend on the column, instead of the row.
    """

    neighbors: bool = False
    columns_first: bool = False


def reorder_channels(state: State, config: ViTConfig, channels: Channels) -> None:
    """Reorder the channels of queries and keys in place for `rotate`: pairs half a head apart, rotations by row first.

    The order is the same in queries and keys, so their dot products do not change.
    """
    if not config.rotates:
        return
    d = config.head_size
    pairs = torch.arange(d // 2)
    if channels.columns_first and not config.rotary.learned:
        pairs = pairs.roll(d // 4)
    order = torch.cat([2 * pairs, 2 * pairs + 1] if channels.neighbors else [pairs, pairs + d // 2])
    for at in (f"blocks.{index}.attn." for index in range(config.depth)):
        for name in (at + "qkv.weight", at + "qkv.bias"):
            if name in state:
                parts = state[name].unflatten(0, (3, config.heads, d))  # (3 H d, ...) -> (3, H, d, ...)
                state[name] = torch.cat([parts[:2][:, :, order], parts[2:]]).flatten(0, 2)
        for name in (f"{at}{part}_norm.{kind}" for part in "qk" for kind in ("weight", "bias")):
            if name in state:
                state[name] = state[name][order]
        if channels.columns_first and (rates := f"{at}rates") in state:
            state[rates] = state[rates].flip(0)


def check_file_names(model: nn.Module) -> None:
    """Check that a file with timm's names for this model can be read without the model.

    Raises:
        ConvertError: if `rearranged` needs the model.
    """
    if kinds := {type(module).__name__ for _, module, _ in _changes(model)}:
        raise ConvertError(
            f"Expected a model whose tensors need no rearranging, got one with {', '.join(sorted(kinds))}. Load the "
            "file into the model: vitviz.load(timm.create_model(NAME, checkpoint_path=FILE))."
        )


def _changes(model: nn.Module) -> Iterator[tuple[str, nn.Module, Callable[[Any, State], State]]]:
    """Yield name, module and rearranging function for each module whose tensors must be rearranged."""
    import timm.layers
    from timm.models.eva import EvaBlock
    from timm.models.naflexvit import NaFlexEmbeds
    from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock

    layers: Any = timm.layers  # without type hints
    kinds: dict[Any, tuple[Callable[[Any], Any], Callable[[Any, State], State]]] = {
        layers.RelPosMlp: (lambda _: True, _table),
        layers.GluMlp: (lambda mlp: mlp.gate_last, _gate_first),
        layers.AttentionRope: (lambda attn: attn.num_kv_groups > 1, _repeated),
        EvaBlock: (lambda block: block.gamma_1 is not None and block.gamma_2 is None, _scaled),
        ParallelScalingBlock: (lambda _: True, _split),
        ParallelThingsBlock: (lambda _: True, _joined),
        NaFlexEmbeds: (lambda _: True, _embeds),
    }
    for name, module in model.named_modules():
        if type(module) in kinds and kinds[type(module)][0](module):
            yield name, module, kinds[type(module)][1]


@torch.no_grad()
def rearranged(model: nn.Module, state: Mapping[str, Tensor]) -> State:
    """Return a model's state dict with the names that `naming.TIMM` knows."""
    new = dict(state)
    for name, module, change in _changes(model):
        own = {key.removeprefix(f"{name}."): key for key in new if key.startswith(f"{name}.")}
        tensors = {key: new.pop(full) for key, full in own.items()}
        new |= {f"{name}.{key}": tensor for key, tensor in change(module, tensors).items()}
    return new


def _table(module: Any, _: State) -> State:
    """Replace Swin v2's network by the table of biases that it computes, (rows, H), with 3 zero rows for a prefix."""
    with eval_mode(module):
        biases = module.bias_act(module.mlp(module.rel_coords_log)) * (module.bias_gain or 1.0)
    table = biases.flatten(0, 1)  # (2 gh - 1, 2 gw - 1, H) -> (rows, H)
    table = torch.cat([table, table.new_zeros(3, module.num_heads)]) if module.prefix_tokens else table
    return {"relative_position_bias_table": table}


def _gate_first(_: Any, tensors: State) -> State:
    """Move the gate to the first half of the hidden layer."""
    return {name: t.roll(len(t) // 2, 0) if name.startswith("fc1.") else t for name, t in tensors.items()}


def _repeated(module: Any, tensors: State) -> State:
    """Repeat keys and values that several heads share (grouped-query attention)."""
    for name in [name for name in tensors if name.startswith(("k_proj.", "v_proj."))]:
        heads = tensors[name].unflatten(0, (module.num_kv_heads, module.head_dim))
        tensors[name] = heads.repeat_interleave(module.num_kv_groups, dim=0).flatten(0, 1)
    return tensors


def _scaled(_: Any, tensors: State) -> State:
    """Add scales of 1 to the MLP if only attention is scaled."""
    return tensors | {"gamma_2": torch.ones_like(tensors["gamma_1"])}


def _split(block: Any, tensors: State) -> State:
    """Split the fused projections of attention and MLP (Dehghani et al. 2023)."""
    hidden = block.in_split[0]
    new = {name.replace("in_norm", "norm1"): tensor for name, tensor in tensors.items() if name.startswith("in_norm")}
    new |= {f"attn.{name}": tensor for name, tensor in tensors.items() if name.startswith(("q_norm.", "k_norm."))}
    new |= {name.replace("ls.", "ls1."): tensor for name, tensor in tensors.items() if name.startswith("ls.")}
    for kind in ("weight", "bias"):
        if (joint := tensors.get(f"in_proj.{kind}")) is not None:
            new |= {f"mlp.fc1.{kind}": joint[:hidden], f"attn.qkv.{kind}": joint[hidden:]}
        for theirs, ours in (("attn_out_proj", "attn.proj"), ("mlp_out_proj", "mlp.fc2")):
            if (alone := tensors.get(f"{theirs}.{kind}")) is not None:
                new[f"{ours}.{kind}"] = alone
    if (joint := tensors.get("out_proj.weight")) is not None:
        new |= {"attn.proj.weight": joint[:, :-hidden], "mlp.fc2.weight": joint[:, -hidden:]}
        new["attn.proj.bias"] = tensors.get("out_proj.bias", joint.new_zeros(len(joint)))
    new.setdefault("mlp.fc2.bias", torch.zeros_like(new["mlp.fc2.weight"][:, 0]))
    return new | ({"mlp.fc1.bias": tensors["mlp_bias"]} if "mlp_bias" in tensors else {})


def _embeds(module: Any, tensors: State) -> State:
    """Reshape the linear map of flattened patches to a convolution, and the table of positions to (1, gh * gw, D).

    Positions that are sums of a row's and a column's become a table.
    """
    if module.is_linear:
        (side, _), flat = module.patch_size, tensors["proj.weight"]
        shape = (side, side, module.in_chans) if module.channels_last else (module.in_chans, side, side)
        order = (0, 3, 1, 2) if module.channels_last else (0, 1, 2, 3)
        tensors["proj.weight"] = flat.unflatten(1, shape).permute(order).contiguous()
    if "pos_embed_y" in tensors:
        rows, columns = tensors.pop("pos_embed_y"), tensors.pop("pos_embed_x")  # (1, gh, D), (1, gw, D)
        tensors["pos_embed"] = rows[:, :, None] + columns[:, None]
    if "pos_embed" in tensors:
        tensors["pos_embed"] = tensors["pos_embed"].flatten(1, 2)
    return tensors


def _joined(block: Any, _: State) -> State:
    """Merge parallel attentions into one with all heads, and parallel MLPs into one of the total width."""
    new: State = {}
    for norm in ("norm1", "norm2"):  # the branches' own norms are folded into their linear maps
        first = block.attns[0].norm
        new |= {f"{norm}.weight": torch.ones_like(first.weight)}
        new |= {} if getattr(first, "bias", None) is None else {f"{norm}.bias": torch.zeros_like(first.bias)}
    maps = [
        (_fold_in(attn.norm, attn.attn.qkv), _fold_out(attn.attn.proj, attn.ls)) for attn in block.attns
    ]  # (weight, bias) each
    for kind, parts in zip(("weight", "bias"), zip(*(into for into, _ in maps), strict=True), strict=True):
        new[f"attn.qkv.{kind}"] = torch.cat([part.unflatten(0, (3, -1)) for part in parts], dim=1).flatten(0, 1)
    layers = [(_fold_in(ffn.norm, ffn.mlp.fc1), _fold_out(ffn.mlp.fc2, ffn.ls)) for ffn in block.ffns]
    new["mlp.fc1.weight"], new["mlp.fc1.bias"] = (
        torch.cat(parts) for parts in zip(*(a for a, _ in layers), strict=True)
    )
    for name, ends in (("attn.proj", [out for _, out in maps]), ("mlp.fc2", [out for _, out in layers])):
        new[f"{name}.weight"] = torch.cat([weight for weight, _ in ends], dim=1)
        new[f"{name}.bias"] = torch.stack([bias for _, bias in ends]).sum(0)
    return new


def _fold_in(norm: Any, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Fold a norm's weight and bias into the linear map after it; return weight and bias of the map."""
    bias = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
    shift = getattr(norm, "bias", None)
    return linear.weight * norm.weight, bias if shift is None else bias + linear.weight @ shift


def _fold_out(linear: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor]:
    """Fold a layer scale into the linear map before it; return weight and bias of the map."""
    factor = getattr(scale, "gamma", torch.ones_like(linear.weight[:, 0]))
    bias = torch.zeros_like(factor) if linear.bias is None else linear.bias
    return linear.weight * factor[:, None], bias * factor
