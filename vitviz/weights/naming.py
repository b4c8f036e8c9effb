"""Names of tensors in other libraries' state dicts, and the step from their state dicts to ours.

A `Naming` is data: their names -> ours. Where their layout differs, a name is intermediate, and `merge` resolves it:
`attn.q`, `attn.k`, `attn.v` are stacked to `attn.qkv`, `mlp.gate` and `mlp.up` to `mlp.fc1`, `attn_pool.qkv` is split,
`patch_embed.linear` is reshaped to a convolution, `head_alone` becomes two classifiers. Every tensor is used exactly
once, left out for a reason, or reported.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vitviz.model.config import ViTConfig
from vitviz.weights.checks import ConvertError, some

State = dict[str, Tensor]

_CHUNK = re.compile(r"^blocks\.[0-9]+\.([0-9]+)\.")  # blocks in chunks, as DINOv2 trains them
_INDEX = re.compile(r"(?<=[._])[0-9]+(?=\.)")
# A classifier in nn.Sequential: heads.1.weight behind a dropout.
_SEQUENTIAL = re.compile(r"^((?:heads\.)?(?:heads?|head_dist|\w*classifier))(?:\.[0-9]+)+(?=\.(?:weight|bias)$)")


@dataclass(frozen=True)
class Renamed:
    """Result of `Naming.rename`: our names -> theirs, tensors that are left out and why, and unknown ones."""

    names: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Naming:
    """Names that a library gives to the tensors of a Vision Transformer.

    Args:
        library: whose names they are, for people.
        names: theirs -> ours, without ".weight" and ".bias"; # stands for the number of a block.
        marks: tensors that together occur in this naming only.
        bases: what stands before the names of a model inside a larger one.
        unread: patterns of tensors that no image meets -> what they are, "" where there is nothing to say.
        flat: the class token has shape (D,) and the position table (N, D), without leading ones.
        free_biases: queries, keys, values and the projection may each lack their bias, in all blocks.
        families: those of `vitviz.weights.infer` that have these names.
        convention: settings in which these models differ from timm's of the same family.
    """

    library: str
    names: Mapping[str, str]
    marks: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    flat: bool = False
    free_biases: bool = False
    families: tuple[str, ...] = ("vit",)
    convention: Mapping[str, Any] = field(default_factory=dict)

    def bare(self, name: str) -> str:
        """Return a name without the base model's prefix, chunks of blocks, and a classifier's place."""
        base = next((base for base in self.bases if name.startswith(base)), "")
        bare = _CHUNK.sub(r"blocks.\1.", name.removeprefix(base))
        return bare if bare.rpartition(".")[0] in self.names else _SEQUENTIAL.sub(r"\1", bare)

    def without_biases(self, unbiased: Iterable[str]) -> "Naming":
        """Return the same names, but for the biases of some linear maps: a tensor of that name is unknown."""
        names = dict(self.names)
        for stem in unbiased:
            names[f"{stem}.weight"] = f"{names.pop(stem)}.weight"
        return replace(self, names=names)

    def rename(self, found: Iterable[str]) -> Renamed:
        """Translate names of tensors.

        Raises:
            ConvertError: if two of them are the same tensor, or layers of one classifier.
        """
        result = Renamed()
        for theirs in found:
            bare = self.bare(theirs)
            if reasons := [why for pattern, why in self.unread.items() if re.match(pattern, bare)]:
                result.unread[theirs] = reasons[0]
            elif (ours := self._ours(bare)) is None:
                result.unknown.append(theirs)
            elif ours in result.names:
                if ours.startswith("head"):
                    raise ConvertError(
                        "Expected a classifier of one linear layer, with or without dropout, got the hidden layer or "
                        f"norm {result.names[ours]!r:.80} before {theirs!r:.80}. Train one of that form."
                    )
                raise ConvertError(
                    f"Expected each tensor once, got {result.names[ours]!r:.80} and {theirs!r:.80}. Leave one out."
                )
            else:
                result.names[ours] = theirs
        return result

    def _ours(self, bare: str) -> str | None:
        bare = bare.replace("in_proj_", "in_proj.")  # torch.nn.MultiheadAttention
        known = bare.rpartition(".")[0] in self.names  # classifier.1 is a layer's place, not a block's
        index = None if known else _INDEX.search(bare)
        pattern = bare if known else _INDEX.sub("#", bare, count=1)
        stem, _, kind = pattern.rpartition(".")
        ours = f"{self.names[stem]}.{kind}" if kind in ("weight", "bias") and stem in self.names else None
        ours = ours or self.names.get(pattern)
        return ours and ours.replace("#", index[0] if index else "#")

    def convert(self, state: Mapping[str, Tensor], config: ViTConfig) -> State:
        """Return a state dict in our names, in float32; it may share memory with `state`, which is not changed.

        Raises:
            ConvertError: if tensors are unknown, twice there, or do not fit one another.
        """
        renamed = self.rename(state)
        if unknown := sorted(renamed.unknown):
            raise ConvertError(
                f"Expected weights in {self.library} names, got {len(unknown)} tensors too many: {some(unknown)}. "
                "Check that the settings belong to these weights."
            )
        new = {ours: state[theirs].float() for ours, theirs in renamed.names.items()}
        if numbers := [theirs for ours, theirs in renamed.names.items() if not new[ours].ndim]:
            raise ConvertError(f"Expected tensors with axes, got a single number: {some(numbers)}.")
        if self.flat:
            for name, axes in (("cls_token", (None, None)), ("pos_embed", (None,))):
                if name in new and new[name].ndim == 3 - len(axes):
                    new[name] = new[name][axes]
        rows, columns = config.learned_grid
        return merge(new, patches=rows * columns, free_biases=self.free_biases)


def merge(new: State, *, patches: int, free_biases: bool = False) -> State:
    """Resolve the intermediate names in place; `patches` of the position table's rows are no prefix token's."""
    blocks = sorted({name[: name.index(".", 7) + 1] for name in new if re.match(r"blocks\.[^.]+\.", name)})
    if free_biases:
        _fill_biases(new, blocks)
    for at in blocks:
        _stack(new, at + "attn.qkv", [at + f"attn.{part}" for part in "qkv"])
        gated = any(name.startswith(at + "mlp.gate.") for name in new)
        _stack(new, at + "mlp.fc1", [at + "mlp.gate", at + "mlp.up"] if gated else [at + "mlp.up"])
    for kind in ("weight", "bias"):
        if (both := new.pop(f"attn_pool.qkv.{kind}", None)) is not None:
            third = len(both) // 3
            new |= {f"attn_pool.q.{kind}": both[:third], f"attn_pool.kv.{kind}": both[third:]}
        if (head := new.pop(f"head_alone.{kind}", None)) is not None:
            # Our logits are the mean of two classifiers: twice this one and one of zeros make exactly this one.
            new |= {f"head.{kind}": 2 * head, f"head_dist.{kind}": torch.zeros_like(head)}
    if "reg_token" in new and new["reg_token"].shape[1:2] == (0,):
        del new["reg_token"]  # DINOv3 of transformers without registers has a tensor of shape (1, 0, D)
    if (flat := new.pop("patch_embed.linear.weight", None)) is not None:  # of pixels (p, p, 3), one after the other
        side = math.isqrt(flat.shape[1] // 3)
        new["patch_embed.proj.weight"] = flat.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2).contiguous()
        new["patch_embed.proj.bias"] = new.pop("patch_embed.linear.bias")
    if "pos_embed" in new:
        _fold_positions(new, patches)
    return new


def _fill_biases(new: State, blocks: list[str]) -> None:
    """Add biases of zeros where no block has one: ours have all or none for queries, keys and values."""
    absent = [part for part in ("q", "k", "v", "proj") if not any(f"{at}attn.{part}.bias" in new for at in blocks)]
    if absent[:3] == ["q", "k", "v"]:  # no biases, or in one tensor
        absent = absent[3:]
    for at in blocks:
        weights = {part: new.get(f"{at}attn.{part}.weight") for part in absent}
        if (qkv := new.get(f"{at}attn.qkv.weight")) is not None:
            weights |= dict.fromkeys(set(absent) - {"proj"}, qkv[: len(qkv) // 3])
        new |= {f"{at}attn.{part}.bias": w.new_zeros(len(w)) for part, w in weights.items() if w is not None}


def _stack(new: State, ours: str, parts: list[str]) -> None:
    """Replace several maps (rows, columns) by one that is as many times as high."""
    for kind in ("weight", "bias"):
        found = [new.pop(f"{part}.{kind}") for part in parts if f"{part}.{kind}" in new]
        shapes = {tuple(tensor.shape) for tensor in found}
        if found and (len(found) != len(parts) or len(shapes) != 1 or f"{ours}.{kind}" in new):
            raise ConvertError(
                f"Expected {', '.join(parts)} with one {kind} of the same shape each, got {len(found)} of shapes "
                f"{', '.join(map(str, sorted(shapes)))}. The weights are not complete or not of this family."
            )
        if found:
            new[f"{ours}.{kind}"] = torch.cat(found)


def _fold_positions(new: State, patches: int) -> None:
    """Add the positions of prefix tokens to the tokens: they never change, and ours have none of their own."""
    table, done = new["pos_embed"], 0
    front = table.shape[-2] - patches if table.ndim > 1 else 0
    for name in ("cls_token", "dist_token", "reg_token"):
        if name in new and done < front:
            token = new[name]
            rows = table[:, done : done + token.shape[1]] if table.ndim == token.ndim == 3 else table
            if token.shape != rows.shape:
                raise ConvertError(
                    f"Expected positions for {name}, {tuple(token.shape)}, at row {done} of a table of shape "
                    f"{tuple(table.shape)}, got {tuple(rows.shape)}. Check that the settings belong to these weights."
                )
            new[name] = token + rows
            done += token.shape[1]
    if done != front:
        raise ConvertError(
            f"Expected prefix tokens for {front} rows of the position table, those beside {patches} patches, got "
            f"{done}. Check that the settings belong to these weights."
        )
    if front:
        new["pos_embed"] = table[:, front:]


# --- the names of each library


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _blocks(at: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return names of a block, theirs behind `at` and the block's number."""
    return {f"{at}#.{theirs}": f"blocks.#.{ours}" for theirs, ours in names.items()}


_SCALES = {f"layer_scale{half}.lambda1": f"ls{half}.gamma" for half in "12"}
_QKV_PROJ = {f"{part}_proj": f"attn.{part}" for part in "qkv"}

TIMM = Naming(  # and facebookresearch's, which differ a little
    library="timm's",
    names=_same("cls_token", "dist_token", "reg_token", "pos_embed", "patch_embed.proj", "norm_pre", "norm")
    | _same("head", "head_dist", *(f"attn_pool.{part}" for part in ("latent", "q", "kv", "proj", "norm")))
    | _same("attn_pool.mlp.fc1", "attn_pool.mlp.fc2")
    | {"fc_norm": "norm", "register_tokens": "reg_token", "storage_tokens": "reg_token"}
    | _blocks(
        "blocks.",
        _same("norm1", "norm2", "attn.qkv", "attn.proj", "attn.q_norm", "attn.k_norm", "mlp.fc1", "mlp.fc2")
        | {f"attn.{theirs}": ours for theirs, ours in _QKV_PROJ.items()}
        | {f"attn.{part}_bias": f"attn.{part}.bias" for part in "qkv"}
        | {f"ls{half}.gamma": f"ls{half}.gamma" for half in "12"}
        | {f"gamma_{half}": f"ls{half}.gamma" for half in "12"}
        | {"mlp.fc1_g": "mlp.gate", "mlp.fc1_x": "mlp.up"}
        | {"mlp.w1": "mlp.gate", "mlp.w2": "mlp.up", "mlp.w12": "mlp.fc1", "mlp.w3": "mlp.fc2"},
    ),
    marks=("patch_embed.proj.weight", "blocks.0.norm1.weight"),
    unread={
        r"mask_token$": "mask token",  # stands in for hidden patches
        r"decoder_(embed|pos_embed|blocks|norm|pred)\b": "decoder of MAE",  # paints the hidden patches
        r"local_cls_norm\.": "norm of local crops",
        r"rope_embed\.periods$": "",  # the rotations themselves: always the same numbers, checked when converted
        r"blocks\.\d+\.attn\.qkv\.bias_mask$": "",  # zero for keys
    },
    free_biases=True,
)

VIT = Naming(
    library="transformers'",
    names={
        "embeddings.cls_token": "cls_token",
        "embeddings.distillation_token": "dist_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "layernorm": "norm",
        "classifier": "head",
    }
    | _blocks(
        "encoder.layer.",
        {f"attention.attention.{name}": f"attn.{name[0]}" for name in ("query", "key", "value")}
        | {"attention.output.dense": "attn.proj", "layernorm_before": "norm1", "layernorm_after": "norm2"}
        | {"intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"}
        # of DINOv2
        | _same("norm1", "norm2", "mlp.fc1", "mlp.fc2")
        | _SCALES
        | {"mlp.weights_in": "mlp.fc1", "mlp.weights_out": "mlp.fc2"},
    ),
    marks=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"),
    bases=("vit.", "ijepa."),
    unread={r"embeddings\.mask_token$": "", r"pooler\.dense\.": ""},  # for training, and for tasks that fine-tune it
    convention={"norm_eps": 1e-12},
)
DEIT = replace(
    VIT,
    names={**VIT.names, "classifier": "head_alone", "cls_classifier": "head", "distillation_classifier": "head_dist"},
    marks=(*VIT.marks, "embeddings.distillation_token"),
    bases=("deit.",),
)
DINOV2 = replace(
    VIT,
    marks=(VIT.marks[0], "encoder.layer.0.layer_scale1.lambda1"),
    bases=("dinov2.", "dinov2_with_registers."),
    convention={},
)
DINOV3 = replace(
    VIT,
    names={
        "embeddings.cls_token": "cls_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.patch_embeddings": "patch_embed.proj",
        "norm": "norm",
    }
    | _blocks(
        "layer.",
        {f"attention.{theirs}": ours for theirs, ours in _QKV_PROJ.items()}
        | {"attention.o_proj": "attn.proj", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up"}
        | {"mlp.down_proj": "mlp.fc2"}
        | _same("norm1", "norm2")
        | _SCALES,
    ),
    marks=("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight"),
    bases=("dinov3_vit.", "model."),  # "model." in memory, not in files
    free_biases=True,
    families=("dinov3",),
    convention={},
)
CLIP = Naming(
    library="transformers'",
    names={
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding.weight": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "pre_layrnorm": "norm_pre",  # the library's own spelling
        "post_layernorm": "norm",
        # of SigLIP
        "classifier": "head",
        "head.probe": "attn_pool.latent",
        "head.attention.in_proj": "attn_pool.qkv",
        "head.attention.out_proj": "attn_pool.proj",
        "head.layernorm": "attn_pool.norm",
        "head.mlp.fc1": "attn_pool.mlp.fc1",
        "head.mlp.fc2": "attn_pool.mlp.fc2",
    }
    | _blocks(
        "encoder.layers.",
        {f"self_attn.{theirs}": ours for theirs, ours in _QKV_PROJ.items()}
        | {"self_attn.out_proj": "attn.proj", "layer_norm1": "norm1", "layer_norm2": "norm2"}
        | _same("mlp.fc1", "mlp.fc2"),
    ),
    marks=("embeddings.patch_embedding.weight", "embeddings.class_embedding"),
    bases=("vision_model.",),
    # The towers of texts, what compares images with texts, and positions that older files count.
    unread={r"text_(model|projection)\.|visual_projection\.|logit_(scale|bias)$|embeddings\.position_ids$": ""},
    flat=True,
    families=("clip", "clip-quickgelu"),
)
SIGLIP = replace(
    CLIP,
    marks=(CLIP.marks[0], "encoder.layers.0.self_attn.q_proj.weight"),
    families=("siglip",),
    convention={"activation": "gelu_tanh"},
)
SIGLIP_CLASSIFIER = replace(  # reads the mean over patches; the query that pools them otherwise is left out
    SIGLIP, marks=(*SIGLIP.marks, "classifier.weight"), unread={**CLIP.unread, r"head\.": ""}
)
TORCHVISION = Naming(
    library="torchvision's",
    names={
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj",
        "encoder.ln": "norm",
        "heads.head": "head",
        "heads.pre_logits": "head",  # refused as a hidden layer, because there are two then
        "heads": "head",  # replaced by a linear layer
    }
    | _blocks(
        "encoder.layers.encoder_layer_",
        {"ln_1": "norm1", "self_attention.in_proj": "attn.qkv", "self_attention.out_proj": "attn.proj", "ln_2": "norm2"}
        | {"mlp.0": "mlp.fc1", "mlp.3": "mlp.fc2", "mlp.linear_1": "mlp.fc1", "mlp.linear_2": "mlp.fc2"},
    ),
    marks=("conv_proj.weight", "encoder.layers.encoder_layer_0.ln_1.weight"),
    families=("torchvision",),
)

BOURKE = Naming(
    library="the PyTorch Paper Replicating tutorial's",
    names={
        "class_embedding": "cls_token",
        "position_embedding": "pos_embed",
        "patch_embedding.patcher": "patch_embed.proj",
        "classifier.0": "norm",  # of the class token alone, which is the same
        "classifier.1": "head",
    }
    | _blocks(
        "transformer_encoder.",
        {"msa_block.layer_norm": "norm1", "msa_block.multihead_attn.in_proj": "attn.qkv"}
        | {"msa_block.multihead_attn.out_proj": "attn.proj"}
        | {"mlp_block.layer_norm": "norm2", "mlp_block.mlp.0": "mlp.fc1", "mlp_block.mlp.3": "mlp.fc2"},
    ),
    marks=("patch_embedding.patcher.weight", "transformer_encoder.0.msa_block.layer_norm.weight"),
    convention={"norm_eps": 1e-5},
)
LUCIDRAINS = Naming(  # before its patch projection had norms around it
    library="vit_pytorch's",
    names={
        "cls_token": "cls_token",
        "pos_embedding": "pos_embed",
        "to_patch_embedding.1": "patch_embed.linear",
        "mlp_head.0": "norm",
        "mlp_head.1": "head",
    }
    | _blocks(
        "transformer.layers.",
        {"0.norm": "norm1", "0.fn.to_qkv": "attn.qkv", "0.fn.to_out.0": "attn.proj"}
        | {"1.norm": "norm2", "1.fn.net.0": "mlp.fc1", "1.fn.net.3": "mlp.fc2"},
    ),
    marks=("to_patch_embedding.1.weight", "transformer.layers.0.0.fn.to_qkv.weight"),
    convention={"norm_eps": 1e-5},
)

NAMINGS = (TIMM, DEIT, VIT, DINOV2, DINOV3, CLIP, SIGLIP_CLASSIFIER, SIGLIP, TORCHVISION, BOURKE, LUCIDRAINS)
"""In the order in which their marks are tried."""
