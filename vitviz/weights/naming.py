"""Rename the tensors of other libraries' state dicts.

A `Naming` maps a library's names to ours. If the layout also differs, it maps to an intermediate name, which `merge`
resolves: `attn.q`, `attn.k`, `attn.v` are stacked to `attn.qkv`, `mlp.gate` and `mlp.up` to `mlp.fc1`, `attn_pool.qkv`
is split, `patch_embed.linear` is reshaped to a convolution, `bias_table` is added to those of all blocks, `rates` are
split by block, `class_angle` is copied to every block, `pos_embed_registers_last` (and the same with `mid_`) is
reordered, `head_alone` becomes two classifiers, and `embedding` (F, C) a classifier without a bias. Every tensor is
used exactly once, ignored for a stated reason, or reported as unknown.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vitviz.formatting import abbreviate
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.positions import sincos1d_positions
from vitviz.weights.checks import ConvertError

State = dict[str, Tensor]

CONVENTIONS = {
    "imagenet": Preprocess(resize=256),
    "clip": Preprocess(resize=224, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)),
    "half": Preprocess(mode="squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
}
"""Name of a mean and standard deviation -> the usual preprocessing with them, at 224 pixels."""

_CHUNK = re.compile(r"^blocks\.[0-9]+\.([0-9]+)\.")  # DINOv2's training code groups blocks into chunks
_INDEX = re.compile(r"(?<=[._])[0-9]+(?=\.)")
# A classifier in nn.Sequential, such as heads.1.weight after a dropout.
_SEQUENTIAL = re.compile(r"^((?:heads\.)?(?:heads?|head_dist|\w*classifier))(?:\.[0-9]+)+(?=\.(?:weight|bias)$)")


@dataclass(frozen=True)
class Renamed:
    """Result of `Naming.rename`: our names -> theirs, ignored tensors -> the reason, and unknown names."""

    names: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Naming:
    """Names that a library gives to the tensors of a Vision Transformer.

    Args:
        library: name of the library for messages, in the possessive form ("timm's").
        family: name of the models for messages.
        names: the library's names -> ours, without ".weight" and ".bias"; # stands for the number of a block.
        marks: names of tensors that occur together only in this naming.
        bases: prefixes that the names have if the model is part of a larger one.
        renames: patterns in the names of newer versions of the library -> the older names.
        unread: patterns of tensors that the forward pass does not use -> their description, or "" to leave it out.
        flat: whether the class token has shape (D,) and the position table (N, D), without leading axes of length 1.
        free_biases: whether queries, keys, values and the projection may each lack their bias, in all blocks.
        norm_eps: epsilon of the norms of published models with these names.
        activation: activation function of the MLPs of these models.
        preprocess: preprocessing of these models, at 224 pixels.
    """

    library: str
    family: str = "ViT"
    names: Mapping[str, str]
    marks: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    flat: bool = False
    free_biases: bool = False
    norm_eps: float = 1e-6
    activation: str = "gelu"
    preprocess: Preprocess = CONVENTIONS["imagenet"]

    def bare(self, name: str) -> str:
        """Return a name without the base model's prefix, chunks of blocks, and the classifier's index."""
        base = next((base for base in self.bases if name.startswith(base)), "")
        bare = _CHUNK.sub(r"blocks.\1.", name.removeprefix(base))
        for newer, older in self.renames.items():
            bare = re.sub(newer, older, bare)
        return bare if bare.rpartition(".")[0] in self.names else _SEQUENTIAL.sub(r"\1", bare)

    def without_biases(self, unbiased: Iterable[str]) -> "Naming":
        """Return the naming without the biases of these linear maps; `convert` then refuses such biases."""
        names = dict(self.names)
        for stem in unbiased:
            names[f"{stem}.weight"] = f"{names.pop(stem)}.weight"
        return replace(self, names=names)

    def rename(self, names: Iterable[str]) -> Renamed:
        """Translate names of tensors.

        Raises:
            ConvertError: if two names denote the same tensor, or two layers of one classifier.
        """
        result = Renamed()
        for theirs in names:
            bare = self.bare(theirs)
            if reasons := [why for pattern, why in self.unread.items() if re.match(pattern, bare)]:
                result.unread[theirs] = reasons[0]
            elif (ours := self._ours(bare)) is None:
                result.unknown.append(theirs)
            elif ours in result.names:
                if ours.startswith("head"):
                    raise ConvertError(
                        "Expected a classifier of one linear layer, with or without dropout, got the hidden layer or "
                        f"norm {result.names[ours]!r:.80} before {theirs!r:.80}. Use such a classifier."
                    )
                raise ConvertError(
                    f"Expected each tensor once, got {result.names[ours]!r:.80} and {theirs!r:.80}. Remove one of them."
                )
            else:
                result.names[ours] = theirs
        return result

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return the names that this naming neither translates nor leaves out."""
        bare = {name: self.bare(name) for name in names}
        return [n for n, own in bare.items() if not (self._ours(own) or any(re.match(p, own) for p in self.unread))]

    def _ours(self, bare: str) -> str | None:
        bare = bare.replace("in_proj_", "in_proj.")  # torch.nn.MultiheadAttention
        known = bare.rpartition(".")[0] in self.names  # in classifier.1 the number is not a block's
        index = None if known else _INDEX.search(bare)
        pattern = bare if known else _INDEX.sub("#", bare, count=1)
        stem, _, kind = pattern.rpartition(".")
        ours = f"{self.names[stem]}.{kind}" if kind in ("weight", "bias") and stem in self.names else None
        ours = ours or self.names.get(pattern)
        return ours and ours.replace("#", index[0] if index else "#")

    def convert(self, state: Mapping[str, Tensor], config: ViTConfig) -> State:
        """Return a state dict in our names, in float32; it may share memory with `state`, which is not changed.

        Raises:
            ConvertError: if tensors are unknown, occur twice, or do not fit one another.
        """
        renamed = self.rename(state)
        if unknown := sorted(renamed.unknown):
            raise ConvertError(
                f"Expected weights in {self.library} names, got {len(unknown)} unexpected tensors: "
                f"{abbreviate(unknown)}. Check that the settings belong to these weights."
            )
        new = {ours: state[theirs].float() for ours, theirs in renamed.names.items()}
        if scalars := [theirs for ours, theirs in renamed.names.items() if not new[ours].ndim]:
            raise ConvertError(f"Expected tensors with axes, got scalars: {abbreviate(scalars)}.")
        if self.flat:
            for name, axes in (("cls_token", (None, None)), ("pos_embed", (None,))):
                if name in new and new[name].ndim == 3 - len(axes):
                    new[name] = new[name][axes]
        rows, columns = config.learned_grid
        return merge(new, patches=rows * columns, free_biases=self.free_biases)


def merge(new: State, *, patches: int, free_biases: bool = False) -> State:
    """Resolve the intermediate names in place; the position table has `patches` rows plus those of prefix tokens."""
    blocks = sorted({found[0] for name in new if (found := re.match(r"(attn_pool\.)?blocks\.[^.]+\.", name))})
    if any(at.startswith("attn_pool.") for at in blocks) and "cls_token" in new:
        new["attn_pool.latent"] = new.pop("cls_token")  # CaiT: only class attention has a class token
    if free_biases:
        _fill_biases(new, blocks)
    for at in blocks:
        _stack(new, at + "attn.qkv", [at + f"attn.{part}" for part in "qkv"])
        gated = any(name.startswith(at + "mlp.gate.") for name in new)
        _stack(new, at + "mlp.fc1", [at + "mlp.gate", at + "mlp.up"] if gated else [at + "mlp.up"])
    if "attn_pool.k.weight" in new:  # AIMv2: the learned query has no linear map
        _stack(new, "attn_pool.kv", ["attn_pool.k", "attn_pool.v"])
        width = len(new["attn_pool.kv.weight"]) // 2
        new |= {"attn_pool.q.weight": torch.eye(width), "attn_pool.q.bias": torch.zeros(width)}
        new.setdefault("attn_pool.kv.bias", torch.zeros(2 * width))
    for kind in ("weight", "bias"):
        if (qkv := new.pop(f"attn_pool.qkv.{kind}", None)) is not None:
            third = len(qkv) // 3
            new |= {f"attn_pool.q.{kind}": qkv[:third], f"attn_pool.kv.{kind}": qkv[third:]}
        if (head := new.pop(f"head_alone.{kind}", None)) is not None:
            # Our logits are the mean of two classifiers, so this one doubled and one of zeros give the same logits.
            new |= {f"head.{kind}": 2 * head, f"head_dist.{kind}": torch.zeros_like(head)}
    if (embedding := new.pop("embedding", None)) is not None:
        new |= {"head.weight": embedding.T, "head.bias": embedding.new_zeros(embedding.shape[1:])}
    if "reg_token" in new and new["reg_token"].shape[1:2] == (0,):
        del new["reg_token"]  # transformers' DINOv3 without registers has a tensor of shape (1, 0, D)
    if (flat := new.pop("patch_embed.linear.weight", None)) is not None:  # weights for flattened pixels (p, p, 3)
        side = math.isqrt(flat.shape[1] // 3)
        new["patch_embed.proj.weight"] = flat.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2).contiguous()
        new["patch_embed.proj.bias"] = new.pop("patch_embed.linear.bias")
    if (rates := new.pop("rates", None)) is not None:  # (2, L, H, d / 2)
        new |= {f"blocks.{index}.attn.rates": rates[:, index] for index in range(rates.shape[1])}
    if (angle := new.pop("class_angle", None)) is not None:  # (1, d / 2)
        new |= {f"{at}attn.class_angle": angle[0] for at in blocks}
    for name in ("pos_embed", "mid_pos_embed"):
        if (table := new.pop(f"{name}_registers_last", None)) is not None and "reg_token" in new:
            count, table = new["reg_token"].shape[1], table.flatten(0, -3)  # (L - 1, 1, N, D) between blocks
            new[name] = torch.cat([table[:, :1], table[:, -count:], table[:, 1:-count]], dim=1)
    if (shared := new.pop("bias_table", None)) is not None:
        for name in (f"{at}attn.bias_table" for at in blocks):
            new[name] = shared + new[name] if name in new else shared
    if "pos_embed" in new:
        _fold_positions(new, patches)
    return new


def _fill_biases(new: State, blocks: list[str]) -> None:
    """Add zero biases that all blocks lack, because our queries, keys and values must all have biases, or none."""
    absent = [part for part in ("q", "k", "v", "proj") if not any(f"{at}attn.{part}.bias" in new for at in blocks)]
    if absent[:3] == ["q", "k", "v"]:  # they have no biases, or one tensor for all three
        absent = absent[3:]
    for at in blocks:
        weights = {part: new.get(f"{at}attn.{part}.weight") for part in absent}
        if (qkv := new.get(f"{at}attn.qkv.weight")) is not None:
            weights |= dict.fromkeys(set(absent) - {"proj"}, qkv[: len(qkv) // 3])
        new |= {f"{at}attn.{part}.bias": w.new_zeros(len(w)) for part, w in weights.items() if w is not None}


def _stack(new: State, ours: str, parts: list[str]) -> None:
    """Concatenate several linear maps of shape (rows, columns) along the rows."""
    for kind in ("weight", "bias"):
        maps = [new.pop(f"{part}.{kind}") for part in parts if f"{part}.{kind}" in new]
        shapes = {tuple(tensor.shape) for tensor in maps}
        if maps and (len(maps) != len(parts) or len(shapes) != 1 or f"{ours}.{kind}" in new):
            raise ConvertError(
                f"Expected {', '.join(parts)}, each with a {kind} of the same shape, got {len(maps)} of shapes "
                f"{', '.join(map(str, sorted(shapes)))}. The weights are incomplete or of another family."
            )
        if maps:
            new[f"{ours}.{kind}"] = torch.cat(maps)


def _fold_positions(new: State, patches: int) -> None:
    """Add the positions of prefix tokens to the tokens themselves, because our prefix tokens have no positions."""
    table, done = new["pos_embed"], 0
    prefix = table.shape[-2] - patches if table.ndim > 1 else 0
    if prefix < 0:
        raise ConvertError(
            f"Expected positions of {patches} patches, got {patches + prefix}. Correct the sizes of image and patch in "
            "the settings."
        )
    for name in ("cls_token", "dist_token", "reg_token"):
        if name in new and done < prefix:
            token = new[name]
            rows = table[:, done : done + token.shape[1]] if table.ndim == token.ndim == 3 else table
            if token.shape != rows.shape:
                raise ConvertError(
                    f"Expected positions for {name}, {tuple(token.shape)}, at row {done} of a table of shape "
                    f"{tuple(table.shape)}, got {tuple(rows.shape)}. Check that the settings belong to these weights."
                )
            new[name] = token + rows
            done += token.shape[1]
    if done != prefix:
        raise ConvertError(
            f"Expected prefix tokens for {prefix} rows of the position table beside {patches} patches, got "
            f"{done}. Check that the settings belong to these weights."
        )
    if prefix:
        new["pos_embed"] = table[:, prefix:]


# --- the names of each library


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _reversed(names: Mapping[str, str]) -> dict[str, str]:
    """Return theirs -> ours for ours -> theirs, which are separated by spaces."""
    return {theirs: ours for ours, listed in names.items() for theirs in listed.split()}


# Our name of a tensor of a block -> names that libraries give to it.
_OF_BLOCK = {
    "norm1": "norm1 layernorm_before layer_norm1 rms_norm1 ln_1",
    "norm2": "norm2 layernorm_after layer_norm2 rms_norm2 ln_2",
    "attn.qkv": "attn.qkv attn.in_proj attention.qkv self_attn.qkv self_attention.in_proj",
    "attn.proj": "attn.proj attn.out_proj attention.proj attention.o_proj attention.out_proj attention.output.dense "
    "self_attn.out_proj self_attn.projection self_attention.out_proj",
    **{
        f"attn.{part}": f"attn.{part} attn.{part}_proj attention.{part}_proj self_attn.{part}_proj "
        f"attention.attention.{part} attention.attention.{name}"
        for part, name in {"q": "query", "k": "key", "v": "value"}.items()
    },
    **{f"attn.{part}.bias": f"attn.{part}_bias attention.attention.{part}_bias" for part in "qkv"},
    **{f"attn.{part}": f"attn.{part}" for part in ("q_norm", "k_norm", "norm", "proj_l", "proj_w")},
    "attn.bias_table": "attn.relative_position_bias_table attn.rel_pos.relative_position_bias_table "
    "attention.attention.relative_position_bias.relative_position_bias_table",
    "mlp.fc1": "mlp.fc1 mlp.w12 mlp.weights_in mlp.c_fc mlp.0 mlp.linear_1 intermediate.dense",
    "mlp.gate": "mlp.fc1_g mlp.w1 mlp.gate_proj ffn.gate_proj",
    "mlp.up": "mlp.fc1_x mlp.w2 mlp.up_proj ffn.up_proj",
    "mlp.norm": "mlp.norm",
    "mlp.fc2": "mlp.fc2 mlp.w3 mlp.weights_out mlp.c_proj mlp.3 mlp.linear_2 mlp.down_proj ffn.down_proj output.dense",
    **{
        f"ls{half}.gamma": f"ls{half}.gamma ls_{half}.gamma gamma_{half} lambda_{half} layer_scale{half}.lambda1"
        for half in "12"
    },
}  # fmt: skip


def _blocks(at: str) -> dict[str, str]:
    """Return the names of a block's tensors; the library's names follow `at` and the block's number."""
    return {f"{at}#.{theirs}": f"blocks.#.{ours}" for theirs, ours in _reversed(_OF_BLOCK).items()}


TIMM = Naming(  # also covers facebookresearch's names, which differ slightly
    library="timm's",
    names=_same("head", "head_dist", "norm_pre")
    | _same(*(f"attn_pool.{part}" for part in ("latent", "q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")))
    | _reversed(
        {
            "cls_token": "cls_token embeds.cls_token",
            "dist_token": "dist_token",
            "reg_token": "reg_token embeds.reg_token register_tokens storage_tokens",
            "pos_embed": "pos_embed embeds.pos_embed",
            "patch_embed.proj": "patch_embed.proj embeds.proj",
            "patch_embed.norm": "patch_embed.norm embeds.norm",
            "norm": "norm fc_norm",
            "rates": "rope.freqs",
            "bias_table": "rel_pos_bias.relative_position_bias_table shared_rel_pos.relative_position_bias_table",
        }
    )
    | {theirs: f"attn_pool.{ours}" for theirs, ours in _blocks("blocks_token_only.").items()}
    | _blocks("blocks."),
    marks=("patch_embed.proj.weight", "blocks.0.norm1.weight"),
    unread={
        r"mask_token$": "mask token",  # replaces hidden patches in training
        r"decoder_(embed|pos_embed|blocks|norm|pred)\b": "decoder of MAE",  # predicts hidden patches in training
        r"local_cls_norm\.": "norm of local crops",
        r"rope_embed\.periods$": "",  # constants that `Architecture.convert` checks
        r"blocks\.\d+\.attn\.qkv\.bias_mask$": "",  # zero for keys
        r"blocks\.\d+\.attn\.proj_l\.bias$": "",  # of CaiT's logits; the softmax cancels it
        r"(.*\.)?relative_position_index$": "",  # computed from the grid
    },
    free_biases=True,
)

TIPSV2 = replace(  # transformers saves it in the names of its authors
    TIMM,
    library="transformers'",
    family="TIPSv2",
    bases=("vision_encoder.",),
    unread={**TIMM.unread, r"text_encoder\.|temperature$": ""},
)

VIT = Naming(
    library="transformers'",
    names={
        "classifier": "head",
        "embeddings.cls_token": "cls_token",
        "embeddings.distillation_token": "dist_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "layernorm": "norm",
    }
    | _blocks("encoder.layer."),
    marks=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"),
    bases=("vit.", "ijepa."),
    renames={  # in memory, transformers 5 has other names than in files
        r"^layers\.": "encoder.layer.",
        r"^shared_position_bias\.": "encoder.relative_position_bias.",
        r"(?<=\.attention\.)([qkv])_proj\.": r"attention.\1.",
        r"(?<=\.attention\.)o_proj\.": "output.dense.",
        r"(?<=[0-9]\.attention\.)relative_position_bias\.": "attention.relative_position_bias.",
    },
    # for training and for other tasks
    unread={r"embeddings\.mask_token$": "", r"pooler\.dense\.": "", r"decoder\.": "decoder of MAE"},
    norm_eps=1e-12,
)
DEIT = replace(
    VIT,
    family="DeiT",
    names={**VIT.names, "classifier": "head_alone", "cls_classifier": "head", "distillation_classifier": "head_dist"},
    marks=(*VIT.marks, "embeddings.distillation_token"),
    bases=("deit.",),
)
BEIT = replace(
    VIT,
    family="BEiT",
    names={
        **VIT.names,
        "pooler.layernorm": "norm",
        "encoder.relative_position_bias.relative_position_bias_table": "bias_table",
    },
    marks=(VIT.marks[0], "encoder.layer.0.lambda_1"),
    bases=("beit.", "data2vec_vision."),
    unread={**VIT.unread, r"(.*\.)?relative_position_index$": ""},
    free_biases=True,
)
DINOV2 = replace(
    VIT,
    family="DINOv2",
    marks=(VIT.marks[0], "encoder.layer.0.layer_scale1.lambda1"),
    bases=("dinov2.", "dinov2_with_registers."),
    norm_eps=1e-6,
)
DINOV3 = replace(
    VIT,
    family="DINOv3",
    names={
        "embeddings.cls_token": "cls_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.patch_embeddings": "patch_embed.proj",
        "norm": "norm",
    }
    | _blocks("layer."),
    marks=("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight"),
    bases=("dinov3_vit.", "model."),  # "model." occurs in memory only
    renames={},
    free_biases=True,
    norm_eps=1e-5,
)
CLIP = Naming(
    library="transformers'",
    family="CLIP",
    names={
        "classifier": "head",
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding.weight": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "pre_layrnorm": "norm_pre",  # transformers' own spelling
        "post_layernorm": "norm",
        # SigLIP
        "head.probe": "attn_pool.latent",
        "head.attention.in_proj": "attn_pool.qkv",
        "head.attention.out_proj": "attn_pool.proj",
        "head.layernorm": "attn_pool.norm",
        "head.mlp.fc1": "attn_pool.mlp.fc1",
        "head.mlp.fc2": "attn_pool.mlp.fc2",
    }
    | _blocks("encoder.layers."),
    marks=("embeddings.patch_embedding.weight", "embeddings.class_embedding"),
    bases=("vision_model.",),
    # The text tower, projections for comparing images with texts, and the indices of positions in older files.
    unread={r"text_(model|projection)\.|visual_projection\.|logit_(scale|bias)$|embeddings\.position_ids$": ""},
    flat=True,
)
CLIP_CLASSIFIER = replace(  # reads the patches before the final norm
    CLIP, bases=("vision_model.vision_model.", *CLIP.bases), unread={**CLIP.unread, r"post_layernorm\.": ""}
)
SIGLIP = replace(
    CLIP,
    family="SigLIP",
    marks=(CLIP.marks[0], "encoder.layers.0.self_attn.q_proj.weight"),
    activation="gelu_tanh",
    preprocess=CONVENTIONS["half"],
)
SIGLIP_CLASSIFIER = replace(  # reads the mean over patches and ignores the attention pooling
    SIGLIP, marks=(*SIGLIP.marks, "classifier.weight"), unread={**CLIP.unread, r"head\.": ""}
)
SIGLIP2 = replace(SIGLIP, names={**SIGLIP.names, "embeddings.patch_embedding": "patch_embed.linear"})
SIGLIP2_CLASSIFIER = replace(SIGLIP2, unread=SIGLIP_CLASSIFIER.unread)
MLCD = replace(
    CLIP,
    family="MLCD",
    names={**CLIP.names, "class_pos_emb": "class_angle"},
    unread={r"vision_rotary_embedding\.": "", r"embeddings\.position_ids$": ""},
)
AIMV2 = Naming(
    library="transformers'",
    family="AIMv2",
    names={
        "embeddings.patch_embed": "patch_embed.proj",
        "embeddings.rms_norm": "patch_embed.norm",
        "embeddings.position_embedding.weight": "pos_embed",
        "rms_norm": "norm",
        "head.cls_token": "attn_pool.latent",
        "head.k_proj": "attn_pool.k",
        "head.v_proj": "attn_pool.v",
        "head.output_proj": "attn_pool.proj",
    }
    | _blocks("encoder.layers."),
    bases=("vision_model.",),
    unread={r"text_model\.|(visual|text)_projection\.|logit_scale$|embeddings\.position_ids$": ""},
    flat=True,
    free_biases=True,
)
BLIP = replace(
    CLIP,
    family="BLIP",
    names={**CLIP.names, "embeddings.position_embedding": "pos_embed"},
    unread={
        r"text_(model|encoder|decoder)\.": "text model",
        r"(visual_projection|text_projection|vision_proj|text_proj|itm_head)\.|logit_scale$": "",
    },
    flat=False,
)
OPENCLIP = Naming(
    library="OpenAI's and OpenCLIP's",
    family="CLIP",
    names={
        "class_embedding": "cls_token",
        "positional_embedding": "pos_embed",
        "conv1": "patch_embed.proj",
        "ln_pre": "norm_pre",
        "ln_post": "norm",
        "proj": "embedding",
    }
    | _blocks("transformer.resblocks."),
    marks=("conv1.weight", "transformer.resblocks.0.ln_1.weight"),
    flat=True,
)
TORCHVISION = Naming(
    library="torchvision's",
    names={
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj",
        "encoder.ln": "norm",
        "heads.head": "head",
        "heads.pre_logits": "head",  # maps two tensors to "head", which is refused as a hidden layer
        "heads": "head",  # a linear layer in place of the classifier
    }
    | _blocks("encoder.layers.encoder_layer_"),
    marks=("conv_proj.weight", "encoder.layers.encoder_layer_0.ln_1.weight"),
    preprocess=Preprocess(resize=256, interpolation="bilinear"),
)


@dataclass(frozen=True, kw_only=True)
class TubeNaming(Naming):
    """Names of tensors whose patches are tubes of a video: (D, C, frames, p, p).

    Args:
        sincos: whether the library computes fixed positions in reading order, which become a table.
    """

    sincos: bool = False

    def convert(self, state: Mapping[str, Tensor], config: ViTConfig) -> State:
        """Return a state dict in our names; see `Naming.convert`."""
        flat = {name: t.transpose(1, 2).flatten(1, 2) if t.ndim == 5 else t for name, t in state.items()}
        new = super().convert(flat, config)
        if self.sincos:
            new["pos_embed"] = sincos1d_positions(config.learned_grid, config.width, dtype=torch.float64).float()
        return new


VIDEOMAE = TubeNaming(
    library="transformers'",
    family="VideoMAE",
    names={**VIT.names, "fc_norm": "norm"},
    bases=("videomae.",),
    unread={r"decoder\.|encoder_to_decoder\.|mask_token$": "decoder"},
    free_biases=True,
    sincos=True,
)
VIVIT = TubeNaming(
    library="transformers'",
    family="ViViT",
    names=VIT.names,
    bases=("vivit.",),
    unread={r"pooler\.dense\.": ""},
)
YOLOS = replace(
    VIT,
    family="YOLOS",
    names={
        **VIT.names,
        "embeddings.detection_tokens": "reg_token",
        "embeddings.position_embeddings": "pos_embed_registers_last",
        "encoder.mid_position_embeddings": "mid_pos_embed_registers_last",
    },
    unread={r"pooler\.dense\.": "", r"(class_labels_classifier|bbox_predictor)\.": "detection heads"},
)
DPT = replace(
    VIT, family="DPT", bases=("dpt.",), unread={r"pooler\.dense\.": "", r"(neck|head|auxiliary_head)\.": "decoder"}
)


NAMINGS = (TIMM, DEIT, BEIT, VIT, DINOV2, DINOV3, CLIP, SIGLIP_CLASSIFIER, SIGLIP, OPENCLIP, TORCHVISION)
"""All namings, in the order in which their marks are tried."""
