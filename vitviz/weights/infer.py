"""Infer the config of a Vision Transformer from the names and shapes of its tensors.

Sizes are read from shapes. Settings that shapes do not show (number of heads, epsilon of the norms, activation,
preprocessing) are those of the published models with these names; `Pretrained.assumed` lists them. If these models
differ in such a setting, the caller names a model with the same settings: `load(file, like="timm:NAME")`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitviz.fields import is_whole
from vitviz.formatting import abbreviate
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError
from vitviz.weights.naming import NAMINGS, Naming, State
from vitviz.weights.shapes import Shapes, merge_fields, need_shape, shown_settings
from vitviz.weights.timm_state import Channels, reorder_channels

_ROTARY_BASE, _PERIODS = 100.0, "rope_embed.periods"
_MOCO_WIDTH = 384
# Width -> heads of published models. Up to ViT-L heads have width 64, except in MoCo v3's ViT-S.
_HEADS = {width: width // 64 for width in range(192, 1025, 64)} | {1152: 16, 1280: 16, 1408: 16, 1664: 16}
_DINOV2_HEADS, _DINOV3_HEADS = {1536: 24}, {1280: 20, 4096: 32}

_INTO_MODEL = (
    "load the file into the library's model, and pass that model: vitviz.load(timm.create_model(NAME, "
    "checkpoint_path=FILE))"
)
SWIN_FILE = f"its tensors do not show the size of the input; {_INTO_MODEL}"
# Tensor names that identify an unsupported kind of model: pattern, kind, reason. Only names that the closest naming
# lacks are tried, and the first match is reported.
NOT_SHOWN: tuple[tuple[str, str, str], ...] = (
    (r"(^|\.)(layers|features)\.\d+\.(blocks\.)?\d+\.att(n|ention)\.", "Swin", SWIN_FILE),
    (
        r"(^|[._])lora_|\.parametrizations\.|\.weight_(g|v|orig|mask)$",
        "a model with weights in several parts (LoRA, weight norm, pruning)",
        "merge the parts before saving (peft: merge_and_unload()), or load the model in memory",
    ),
    (r"\.rel_pos_[hw]$", "SAM, ViTDet or MViT", f"models with attention in windows open only whole; {_INTO_MODEL}"),
)
# The same for files that resemble no naming.
CONVOLUTIONS = (
    r"(^|\.)bn\d?\.running_mean$|^layer1\.0\.conv1\.|^stem\.",
    "a convolutional or hybrid network",
    "it has no attention between square patches of the image",
)
_RESEMBLES = 2 / 3  # minimum share of known tensors to name the closest naming


@dataclass(frozen=True)
class Reference:
    """Settings of a named model that apply to a weights file.

    Args:
        name: name of the model as the caller wrote it.
        config: config of the model.
        about: its preprocessing and labels.
        channels: order of each head's channels for rotary positions.
    """

    name: str
    config: ViTConfig
    about: Pretrained
    channels: Channels = Channels()  # noqa: RUF009 - immutable


class Architecture:
    """Config and preprocessing of the model in a state dict.

    `config` and `preprocess` describe the model, `assumed` lists settings that shapes do not show, and `unread` maps
    tensors that the forward pass does not use to their descriptions. The config of a block is read from the first
    block; `checks.assemble` compares every tensor.

    Args:
        theirs: shape of each tensor by its name in the file.
        heads: attention heads in each block; by default as in published models of this width.
        like: a model with the same settings, except for the number of classes and the input size.

    Raises:
        ConvertError: for an unsupported model, unknown names, or names and shapes that do not determine the settings.
        ModelError: if sizes do not fit one another.
    """

    def __init__(self, theirs: Shapes, *, heads: int | None = None, like: Reference | None = None) -> None:
        self.theirs, self.like = theirs, like
        self.naming = _find_naming(theirs)
        renamed = self.naming.rename(theirs)
        self.unread = renamed.unread
        self.shapes = {name: theirs[original] for name, original in renamed.names.items()}
        self.embeds = "embedding" in self.shapes  # CLIP: the outputs are an image embedding, not classes
        embedding = self.shapes.get("embedding", ())[::-1]
        head = embedding or self.shapes.get("head.weight") or self.shapes.get("head_alone.weight") or (0, 0)
        own_names = (_PERIODS, "register_tokens", "storage_tokens", "mask_token")
        self.facebook = self.naming is naming.TIMM and any(name in theirs for name in own_names)
        self.asks_heads = False
        self.assumed: tuple[str, ...]
        if head[0] and any(re.search(r"(^|\.)pooler\.dense\.", name) for name in renamed.unread):
            raise ConvertError(
                "Expected a classifier of tokens, got one beside a pooler, which it may read: the file does not "
                "determine this. Load the model in memory, or remove the pooler if the classifier does not read it."
            )
        if like is None:
            self.config, self.assumed = self._infer(head, heads)
            self.preprocess = self._fit(self.naming.preprocess)
        else:
            self.config, self.assumed = self._adapt(like.config, head), ()
            self.preprocess = self._fit(like.about.preprocess)

    def convert(self, tensors: Mapping[str, Tensor]) -> State:
        """Return the state dict in our names.

        Raises:
            ConvertError: if values contradict the config, or tensors do not fit one another.
        """
        if self.asks_heads and not tensors[self.naming.rename(tensors).names["pos_embed"]][:, 0].any():
            raise ConvertError(
                "Expected the number of heads, got none: fixed positions at this width are those of MoCo v3's ViT-S, "
                "which has 12 heads instead of the usual 6. Pass --heads 12 (heads=12 in Python)."
            )
        if _PERIODS in tensors:  # base ** (4 i / d) for i = 0, 1, ..., d / 4 - 1
            periods = tensors[_PERIODS].float()
            expected = self.config.rotary.base ** (torch.arange(len(periods)) / len(periods))
            if not torch.allclose(periods, expected, rtol=2e-2):
                raise ConvertError(
                    f"Expected rotations of base {self.config.rotary.base:g}, got another base in {_PERIODS!r}. "
                    "Choose a checkpoint with that base."
                )
        state = self.naming.convert(tensors, self.config)
        if self.facebook and self.config.positions == "rotary":
            # DINOv3's keys have no bias: facebookresearch multiplies the stored one by a mask of zeros.
            for name in [name for name in state if name.endswith("attn.qkv.bias")]:
                q, k, v = state[name].chunk(3)
                state[name] = torch.cat([q, torch.zeros_like(k), v])
        if self.like is not None:
            reorder_channels(state, self.config, self.like.channels)
        return state

    def describe(self, more: Iterable[str] = ()) -> str:
        """Return a readable description of the file."""
        library = "facebookresearch's" if self.facebook else self.naming.library
        parts = [f"with {library} tensor names", *([f"built like {self.like.name}"] if self.like else []), *more]
        return ", ".join(parts + [f"without the {part}" for part in sorted(set(self.unread.values())) if part])

    def _fit(self, preprocess: Preprocess) -> Preprocess:
        """Return preprocessing for the model's input size; keep a reference's preprocessing if its size is the same."""
        preprocess, size = preprocess.with_channels(self.config.channels), self.config.image_size
        same = self.like is not None and size == self.like.config.image_size
        return preprocess if same else preprocess.shaped(*size)

    # --- settings from another model

    def _adapt(self, config: ViTConfig, head: tuple[int, ...]) -> ViTConfig:
        """Return a reference's config with the classes, input size and pooling that the file's tensors show."""
        changes: dict[str, Any] = {"classes": head[0]}
        if config.positions == "learned":
            prefix_rows = self._position_rows() - math.prod(config.learned_grid)
            if prefix_rows not in {0, 1, len(config.prefix)}:
                side, _ = self._grid(config.class_token, config.distillation_token, config.registers)
                changes |= {"image_size": (side * config.patch_size,) * 2, "table": replace(config.table, grid=None)}
        if "fc_norm.weight" in self.theirs:
            changes |= {"pooling": "mean", "norms": replace(config.norms, final="pooled")}
        elif config.pooling == "mean" and config.norms.pooled:
            changes["norms"] = replace(config.norms, final="tokens")
        elif head[1:] == (2 * config.width,):
            changes["pooling"] = "cls+mean"
        return replace(config, **changes)

    # --- settings from shapes

    def _infer(self, head: tuple[int, ...], heads: int | None) -> tuple[ViTConfig, tuple[str, ...]]:
        """Return the config and the assumptions."""
        rotary = "pos_embed" not in self.shapes
        self._check_determined(rotary=rotary)
        shown = shown_settings(self.theirs, self.naming)
        width, patch = shown["width"], shown["patch_size"]
        inner = need_shape(self.shapes, "blocks.0.attn.proj.weight", 2)[1]
        count, caveat = self._heads(shown, heads, width=width, inner=inner, rotary=rotary)
        prefix = shown["class_token"], shown["distillation_token"], shown["registers"]
        side, rows = (max(1, 224 // patch), 0) if rotary else self._grid(*prefix)
        # timm antialiases resized positions; transformers and DINOv2's own code do so only in models with registers.
        filters = rotary or shown["registers"] > 0 or (self.naming is naming.TIMM and not self.facebook)
        fields = {
            "image_size": (side * patch, side * patch),
            "heads": count,
            "head_width": None if inner == width else inner // count,
            "classes": head[0],
            "pooling": self._pooling(rotary=rotary, both=head[1:] == (2 * width,)),
            "positions": "rotary" if rotary else "learned",
            "table": {"antialias": filters},
            "rotary": {"base": _ROTARY_BASE},
            "norms": {"eps": 1e-5 if rotary else self.naming.norm_eps},
            "activation": "gelu" if shown["mlp"] == "swiglu" else self.naming.activation,
        }
        config = ViTConfig(**merge_fields(shown, fields))
        # MoCo v3's ViT-S has more heads than usual at this width; `convert` recognises its position table.
        self.asks_heads = self.naming is naming.TIMM and width == _MOCO_WIDTH and rows > 0 and caveat != ""
        assumed = [f"norm epsilon {config.norms.eps:g}", f"pooling {config.pooling}"]
        assumed += ["gate SiLU" if config.gated else f"activation {config.activation}"]
        if rotary:
            assumed += [f"rotary positions of base {_ROTARY_BASE:g}", f"image size {side * patch}"]
        else:
            resized = f"{config.table.mode}, {'with' if config.table.antialias else 'without'} a low-pass filter"
            assumed += [f"a square of {side} x {side} patches", f"positions at other sizes: {resized}"]
        return config, tuple(filter(None, (caveat, *assumed)))

    def _check_determined(self, *, rotary: bool) -> None:
        """Refuse names and shapes that several published models with different settings have.

        No weight shows that EVA-02 and the Perception Encoder rotate queries and keys. CLIP and SigLIP differ in the
        activation of the MLP. Models that average patches differ in activation and preprocessing.
        """
        shapes, scaled = self.shapes, "blocks.0.ls1.gamma" in self.shapes
        eva = "blocks.0.gamma_1" in self.theirs and "blocks.0.attn.proj_l.weight" not in shapes  # CaiT's scales too
        class_token, registers = "cls_token" in shapes, "reg_token" in shapes
        sure = self.naming not in (naming.CLIP, naming.BEIT, naming.OPENCLIP)
        if self.naming is naming.TIMM and rotary:
            sure = class_token and registers and (eva or "storage_tokens" in self.theirs)  # DINOv3
        elif self.naming is naming.TIMM:
            others = {"norm_pre.weight", "attn_pool.latent", "bias_table", "blocks.0.attn.bias_table"}
            others |= {"patch_embed.norm.weight", "blocks.0.attn.norm.weight", "blocks.0.mlp.norm.weight", "rates"}
            parts = ("attn.q.bias", "attn.q.weight", "attn.q_norm.weight", "mlp.gate.weight")
            others |= {f"blocks.0.{part}" for part in parts}
            sure = (class_token or registers or scaled) and not eva and not others & {*shapes}
        elif rotary:
            sure = self.naming is naming.DINOV3
        if not sure:
            raise ConvertError(
                "Expected weights that determine a model, got names and shapes that several published models have, "
                "with different activations, positions or preprocessing. Name a model with the same settings: --like "
                'timm:NAME (like="timm:NAME" in Python).'
            )

    def _position_rows(self) -> int:
        return need_shape(self.shapes, "pos_embed", 2 if self.naming.flat else 3)[-2]

    def _heads(
        self, shown: Mapping[str, Any], heads: int | None, *, width: int, inner: int, rotary: bool
    ) -> tuple[int, str]:
        """Return the number of heads, and the assumption ("" if the caller passed `heads`).

        `width` is D, and `inner` is heads times the width of a head.

        Raises:
            ConvertError: if the width is not a published one, or `heads` does not divide `inner`.
        """
        if heads is None and shown["talking_heads"]:
            heads = need_shape(self.shapes, "blocks.0.attn.proj_l.weight", 2)[0]
        if heads is not None:
            if not (is_whole(heads) and heads > 0):
                raise ConvertError(f"Expected heads as a whole number of at least 1, got {heads!r}. Correct it.")
            if inner % heads:
                raise ConvertError(f"Expected a divisor of {inner}, got {heads} heads. Pass another number.")
            return heads, ""
        published = _HEADS | (_DINOV3_HEADS if rotary else _DINOV2_HEADS if shown["layer_scale"] else {})
        # Published models without biases have heads of different widths.
        if width not in published or inner != width or not (rotary or shown["qkv_bias"]):
            raise ConvertError(
                f"Expected the number of heads, got none: these weights do not determine it (width {width}, {inner} in "
                "all heads together). Pass --heads (heads=...)."
            )
        return published[width], f"{published[width]} heads of width {width // published[width]}"

    def _grid(self, class_token: bool, distillation: bool, registers: int) -> tuple[int, int]:
        """Return the side of the position table's square grid, and the number of rows for prefix tokens.

        Raises:
            ConvertError: if no square fits, or more than one.
        """
        rows = self._position_rows()
        prefixes = {class_token + distillation}
        if self.naming is naming.TIMM:
            prefixes = {0, class_token + distillation + registers} | ({1} if registers and class_token else set())
        squares = [(math.isqrt(rows - n), n) for n in prefixes if rows > n and math.isqrt(rows - n) ** 2 == rows - n]
        if len(squares) != 1:
            counts = " or ".join(map(str, sorted(prefixes)))
            raise ConvertError(
                f"Expected positions of {counts} prefix tokens and a square of patches, got {rows} rows, which fit "
                f"{'two squares' if squares else 'none'}. Name a model with the same settings: --like timm:NAME "
                '(like="timm:NAME" in Python).'
            )
        return squares[0]

    def _pooling(self, *, rotary: bool, both: bool) -> Any:
        """Return the pooling; `both` means that the classifier reads the class token and the mean."""
        if {"attn_pool.latent", "attn_pool.blocks.0.norm1.weight"} & {*self.shapes}:
            return "attention"
        if self.naming is naming.SIGLIP:
            raise ConvertError("Expected the head that pools SigLIP's patches, got none. Save the whole model.")
        eva = "blocks.0.gamma_1" in self.theirs
        if "cls_token" not in self.shapes or "fc_norm.weight" in self.theirs or (rotary and eva):
            return "mean"
        return "cls+mean" if both else "cls"


def _find_naming(shapes: Shapes) -> Naming:
    """Return the first naming scheme whose characteristic tensor names (`marks`) are all present.

    Raises:
        ConvertError: with the closest naming and the names that it does not have, if no scheme has all names.
    """
    names = sorted(shapes)
    fitting = next((known for known in NAMINGS if {*map(known.bare, names)}.issuperset(known.marks)), None)
    closest = fitting or min(NAMINGS, key=lambda known: len(known.unknown(names)))
    unknown = closest.unknown(names)
    if fitting and not unknown:
        return fitting
    resembles = fitting is not None or len(unknown) <= len(names) * (1 - _RESEMBLES)
    model, reason = _not_shown(unknown, NOT_SHOWN if resembles else (*NOT_SHOWN, CONVOLUTIONS))
    if resembles:
        missing = sorted({*closest.marks} - {*map(closest.bare, names)})
        count = "1 tensor" if len(unknown) == 1 else f"{len(unknown)} tensors"
        problems = [f"{count} unknown: {abbreviate(unknown)}"] if unknown else []
        problems += [f"{abbreviate(missing)} missing"] if missing else []
        advice = f"That is {model}, which cannot be shown: {reason}." if model else keep_classifier(shapes, unknown)
        raise ConvertError(
            f"Expected the tensors of a Vision Transformer, got a file that looks like {_family(closest, names)} with "
            f"{closest.library} tensor names: {'; '.join(problems)}. {advice}"
        )
    if model:
        raise ConvertError(f"Expected a Vision Transformer, got {model}, which cannot be shown: {reason}.")
    raise ConvertError(
        "Expected a Vision Transformer with tensor names of timm, facebookresearch, transformers, OpenCLIP or "
        f"torchvision, got {len(names)} tensors named {abbreviate(names)}; {closest.library} names for "
        f"{closest.family} are the closest. Rename the tensors, or load the model in memory."
    )


_BY_NAME = "Remove tensors that its forward pass does not use, or load the model by its name in its library."


def keep_classifier(shapes: Shapes, names: Iterable[str], prefix: str = "") -> str:
    """Return advice about tensors that are not the model's: to rename a classifier, or else to remove them.

    Args:
        shapes: shape of each tensor in the file.
        names: names of the tensors that are not the model's.
        prefix: prefix of the model's names.
    """
    stems = {name.rpartition(".")[0] for name in names if name.endswith((".weight", ".bias"))}
    if len(stems) != 1 or len(shapes.get(f"{(stem := stems.pop())}.weight", ())) != 2:
        return _BY_NAME
    bare = [name.removeprefix(prefix) for name in shapes if name.startswith(prefix)]
    known = min(NAMINGS, key=lambda known: len(known.unknown(bare)))
    head = next((theirs for theirs, ours in known.names.items() if ours in ("head", "head_alone")), "head")
    return (
        f"If {stem} is the classifier and reads what {known.library} own reads, keep it by renaming its tensors to "
        f"{prefix}{head}.weight and {prefix}{head}.bias; else load the model in memory."
    )


def _not_shown(unknown: Iterable[str], kinds: Iterable[tuple[str, str, str]]) -> tuple[str, str]:
    """Return the kind of model to which unknown tensors belong, and why it is refused; empty if unrecognised."""
    names = list(unknown)
    found = (kind for kind in kinds if any(re.search(kind[0], name) for name in names))
    return next(((model, reason) for _, model, reason in found), ("", ""))


def _family(closest: Naming, names: Iterable[str]) -> str:
    """Return the name of the family whose tensors these are; facebookresearch's names are nearly timm's."""
    if closest is not naming.TIMM:
        return closest.family
    if {_PERIODS, "storage_tokens"} & {*names}:
        return "DINOv3"
    return "DINOv2" if {"mask_token", "blocks.0.ls1.gamma"} <= {*names} else closest.family
