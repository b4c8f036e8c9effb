"""Convert windowed models: Swin of timm, torchvision and transformers, config and tensors; the tensors of SAM, ViTDet.

The blocks of all stages are numbered through, and the map that merges tokens belongs to the first block of a stage. The
network of Swin v2 that computes relative position biases (Liu et al. 2022, "Swin Transformer V2", section 3.3) is
replaced by the table that it computes for the model's windows.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitviz.model.windowed_vit import WindowedConfig
from vitviz.weights.checks import ConvertError
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.naming import TIMM, Naming, State

_NETWORK = ("cpb_mlp", "continuous_position_bias_mlp")
_LARGEST = math.log(100)  # of the logarithms of version 2's factors


@dataclass(frozen=True, kw_only=True)
class WindowedNaming(Naming):
    """Names that a library gives to the tensors of a Swin.

    Args:
        block, merge: patterns of the names of a block and of the map that merges tokens; the groups are the number of
            the stage and of the block in it.
        steps: difference between the numbers of two stages in these names.
        early: whether the map that merges tokens has the number of the stage before.
        pretrained: windows of each stage in pre-training, to which coordinates are relative (version 2); 0 for own.
    """

    block: str
    merge: str
    steps: int = 1
    early: bool = False
    pretrained: tuple[int, ...] = ()

    def convert(self, state: Mapping[str, Tensor], config: Any) -> State:
        """Return a state dict in our names; see `Naming.convert`."""
        numbered = {self._numbered(name, config.depths): tensor.float() for name, tensor in state.items()}
        for at in sorted({name.partition("logit_scale")[0] for name in numbered if name.endswith(".logit_scale")}):
            _replace_network(numbered, at, config, self.pretrained)
        return super().convert(numbered, config)

    def _numbered(self, name: str, depths: Sequence[int]) -> str:
        """Return a name with blocks numbered through."""
        name = name.removeprefix(next((base for base in self.bases if name.startswith(base)), ""))
        if match := re.match(self.block, name):
            first = sum(depths[: int(match[1]) // self.steps])
            return f"blocks.{first + int(match[2])}.{name[match.end() :].replace('attention.self.', 'attn.')}"
        if match := re.match(self.merge, name):
            return f"blocks.{sum(depths[: int(match[1]) // self.steps + self.early])}.merge.{name[match.end() :]}"
        return name


def _replace_network(state: State, at: str, config: WindowedConfig, pretrained: Sequence[int]) -> None:
    """Replace version 2's network and logarithms of factors in the block with prefix `at` by what they compute."""
    stage = [stage for stage, depth in enumerate(config.depths) for _ in range(depth)][int(at.split(".")[1])]
    own, trained = config.windows[stage], pretrained[stage] if pretrained else 0
    steps = torch.arange(1 - own, own).float() * 8 / max(1, (trained or own) - 1)
    places = steps.sign() * steps.abs().add(1).log2() / math.log2(8)
    coordinates = torch.cartesian_prod(places, places)  # (rows, 2)
    kinds = [kind for kind in _NETWORK if f"{at}{kind}.0.weight" in state]
    if len(kinds) != 1:
        raise ConvertError(f"Expected the network of relative position biases of {at[:-1]}, got none. Save it too.")
    first, bias, last = (state.pop(f"{at}{kinds[0]}.{name}") for name in ("0.weight", "0.bias", "2.weight"))
    table = (coordinates @ first.T + bias).relu() @ last.T  # (rows, 2) -> (rows, H)
    state[f"{at}relative_position_bias_table"] = 16 * table.sigmoid()
    state[f"{at}q_norm.factor"] = state.pop(f"{at}logit_scale").clamp(max=_LARGEST).exp()
    if (name := f"{at}qkv.bias") in state:  # torchvision ignores the keys' part
        q, k, v = state[name].chunk(3)
        state[name] = torch.cat([q, torch.zeros_like(k), v])


def _names(own: Mapping[str, str], block: Mapping[str, str]) -> dict[str, str]:
    shared = {name: name for name in ("norm1", "norm2", "merge.norm", "merge.reduction")}
    shared |= {"attn.q_norm.factor": "attn.q_norm.factor", "attn.relative_position_bias_table": "attn.bias_table"}
    blocks = {f"blocks.#.{theirs}": f"blocks.#.{ours}" for theirs, ours in (shared | {**block}).items()}
    return {"norm": "norm", "head": "head"} | blocks | {**own}


_BUFFERS = {r".*(relative_position_index|relative_coords_table|attn_mask)$": ""}
_ATTN = {name: name for name in ("attn.qkv", "attn.proj")}
TIMM_SWIN = WindowedNaming(
    library="timm's",
    names=_names(
        {name: name for name in ("patch_embed.proj", "patch_embed.norm")} | {"head.fc": "head"},
        _ATTN
        | {name: name for name in ("mlp.fc1", "mlp.fc2")}
        | {f"attn.{part}_bias": f"attn.{part}.bias" for part in "qv"},
    ),
    block=r"layers\.(\d+)\.blocks\.(\d+)\.",
    merge=r"layers\.(\d+)\.downsample\.",
    unread=_BUFFERS,
    free_biases=True,
)
TORCHVISION_SWIN = WindowedNaming(
    library="torchvision's",
    names=_names(
        {"features.0.0": "patch_embed.proj", "features.0.2": "patch_embed.norm"},
        _ATTN | {"mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2"},
    ),
    block=r"features\.(\d*[13579])\.(\d+)\.",
    merge=r"features\.([1-9]\d*)\.",
    steps=2,
    unread=_BUFFERS,
)
TRANSFORMERS_SWIN = WindowedNaming(
    library="transformers'",
    names=_names(
        {"embeddings.patch_embeddings.projection": "patch_embed.proj", "embeddings.norm": "patch_embed.norm"}
        | {"layernorm": "norm", "classifier": "head"},
        {f"attn.{name}": f"attn.{name[0]}" for name in ("query", "key", "value")}
        | {"attention.output.dense": "attn.proj", "layernorm_before": "norm1", "layernorm_after": "norm2"}
        | {"intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"},
    ),
    bases=("swin.", "swinv2."),
    block=r"encoder\.layers\.(\d+)\.blocks\.(\d+)\.",
    merge=r"encoder\.layers\.(\d+)\.downsample\.",
    early=True,
    unread=_BUFFERS | {r"embeddings\.mask_token$": "mask token"},
    free_biases=True,
)


# --- SAM and ViTDet


class GridNaming(Naming):
    """Names of tensors whose positions have the shape (1, gh, gw, D) in SAM, and a row too many in ViTDet."""

    def convert(self, state: Mapping[str, Tensor], config: Any) -> State:
        """Return a state dict in our names; see `Naming.convert`."""
        new = dict(state)
        for name, tensor in state.items():
            if name.endswith("pos_embed") and tensor.ndim == 4:
                new[name] = tensor.flatten(1, 2)
            if name.endswith("position_embeddings") and tensor.ndim == 3:
                new[name] = tensor[:, 1:]  # ViTDet has no class token, only its position
        return super().convert(new, config)


_SIDES = ("rel_pos_h", "rel_pos_w")
_NECK = ("conv1", "norm1", "conv2", "norm2")
TIMM_SAM = GridNaming(
    library="timm's",
    family="SAM",
    names={name: ours for name, ours in TIMM.names.items() if name != "head"}
    | {f"blocks.#.attn.{side}": f"blocks.#.attn.{side}" for side in _SIDES}
    | {f"neck.{index}": f"neck.{part}" for index, part in enumerate(_NECK)}
    | {"neck": "neck.norm2", "head.fc": "head"},
    free_biases=True,
)
TRANSFORMERS_SAM = GridNaming(
    library="transformers'",
    family="SAM",
    names={"pos_embed": "pos_embed", "patch_embed.projection": "patch_embed.proj"}
    | {f"neck.{part.replace('norm', 'layer_norm')}": f"neck.{part}" for part in _NECK}
    | {f"layers.#.attn.{part}": f"blocks.#.attn.{part}" for part in ("qkv", "proj", *_SIDES)}
    | {f"layers.#.layer_norm{half}": f"blocks.#.norm{half}" for half in "12"}
    | {f"layers.#.mlp.lin{half}": f"blocks.#.mlp.fc{half}" for half in "12"},
    bases=("vision_encoder.",),
    unread={r"(prompt_encoder|mask_decoder|shared_image_embedding)\.": "prompt encoder and mask decoder"},
    free_biases=True,
)
VITDET = GridNaming(
    library="transformers'",
    family="ViTDet",
    names={"embeddings.position_embeddings": "pos_embed", "embeddings.projection": "patch_embed.proj"}
    | {f"encoder.layer.#.attention.{part}": f"blocks.#.attn.{part}" for part in ("qkv", "proj", *_SIDES)}
    | {f"encoder.layer.#.{part}": f"blocks.#.{part}" for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")},
    bases=("vitdet.",),
    free_biases=True,
)


# --- built models of timm and torchvision


def read_swin(built: Any, library: Literal["timm", "torchvision"]) -> tuple[WindowedConfig, WindowedNaming]:
    """Return the config of a built Swin, which may be on the meta device, and the names of its tensors.

    Raises:
        ConvertError: with the reason, for a model that differs from the published ones.
        ModelError: if windows do not divide its input.
    """
    if library == "timm":
        stages, naming = [list(stage.blocks) for stage in built.layers], TIMM_SWIN
        stem = built.patch_embed
        conv, image = stem.proj, tuple(stem.img_size)
        windows = [{tuple(block.window_size) for block in blocks} for blocks in stages]
        heads = [{block.attn.num_heads for block in blocks} for blocks in stages]
        hidden = stages[0][0].mlp.fc1.out_features
        trained = [tuple(getattr(blocks[0].attn, "pretrained_window_size", (0, 0))) for blocks in stages]
        head = (built, "head") if type(built.head) is nn.Linear else (built.head, "fc")
    else:
        stages, naming = [list(stage) for stage in built.features[1::2]], TORCHVISION_SWIN
        conv = built.features[0][0]
        windows = [{tuple(block.attn.window_size) for block in blocks} for blocks in stages]
        side = stages[0][0].attn.window_size[0] * conv.stride[0] * 2 ** (len(stages) - 1)
        image = (side, side)  # as published; any input has the same tensors
        heads = [{block.attn.num_heads for block in blocks} for blocks in stages]
        hidden, trained, head = stages[0][0].mlp[0].out_features, [], (built, "head")
    sizes = [size for stage in windows for size in stage] + trained
    _check(all(rows == columns for rows, columns in (*sizes, conv.stride)), "windows or patches that are not square")
    widths = [(blocks[0].mlp.fc1 if library == "timm" else blocks[0].mlp[0]).out_features for blocks in stages]
    _check(widths == [hidden * 2**index for index in range(len(stages))], f"an mlp_ratio of hidden widths {widths}")
    cosine = hasattr(stages[0][0].attn, "logit_scale")
    bias = [getattr(stages[0][0].attn, "q_bias", None), stages[0][0].attn.qkv.bias]
    config = WindowedConfig(
        image_size=image,
        patch_size=conv.stride[0],
        channels=conv.in_channels,
        width=conv.out_channels,
        mlp_width=hidden,
        classes=read_classifiers(head[0], {}, head[1])[1],
        depths=tuple(map(len, stages)),
        stage_heads=tuple(min(stage) for stage in heads),
        windows=tuple(min(stage)[0] for stage in windows),
        qkv_bias=any(part is not None for part in bias),
        norm_post=cosine,
        norm_eps=stages[0][0].norm1.eps,
        cosine_attention=cosine,
    )
    return config, replace(naming, pretrained=tuple(size[0] for size in trained))


def _check(holds: bool, got: str) -> None:
    if not holds:
        raise ConvertError(f"Expected a Swin as published, got one with {got}. Choose another model.")
