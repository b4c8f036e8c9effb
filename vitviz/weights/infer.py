"""Infer the architecture of a state dict from names and shapes alone.

Sizes are read from shapes. What shapes do not show (how many heads, the epsilon of the norms, the activation, how
photographs are prepared) is taken from the convention of the family and written down, or asked for where families
differ. A model whose attention cannot be shown is refused with its name and the reason.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitviz.fields import is_whole
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError
from vitviz.weights.from_timm import WHY_NOT
from vitviz.weights.from_transformers import REFUSED
from vitviz.weights.naming import NAMINGS, Naming, State

Shapes = Mapping[str, tuple[int, ...]]

CONVENTIONS = {
    "imagenet": Preprocess(resize=256),
    "clip": Preprocess(resize=224, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)),
    "half": Preprocess(mode="squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
}
"""How photographs are usually prepared, by the name of the mean and standard deviation; at 224 pixels."""
_IMAGENET, _CLIP, _HALF = CONVENTIONS.values()


@dataclass(frozen=True)
class Family:
    """Conventions of a family of models that their weights do not show.

    Args:
        who: its models, for people.
        preprocess: at 224 pixels.
        norm_eps: epsilon of the norms.
        activation: of the MLP.
    """

    who: str
    preprocess: Preprocess = _IMAGENET
    norm_eps: float = 1e-6
    activation: str = "gelu"


FAMILIES: dict[str, Family] = {
    "vit": Family("ViT, DeiT, DeiT III, DINO, MAE, DINOv2 with and without registers"),
    "dinov3": Family("DINOv3", norm_eps=1e-5),
    "clip": Family("CLIP with exact GELU (OpenCLIP)", _CLIP, norm_eps=1e-5),
    "clip-quickgelu": Family("CLIP with QuickGELU (OpenAI)", _CLIP, norm_eps=1e-5, activation="quick_gelu"),
    "siglip": Family("SigLIP", _HALF),
    "siglip-tanh": Family("SigLIP 2 and SO400M/16 in timm's form", _HALF, activation="gelu_tanh"),
    "torchvision": Family("torchvision's VisionTransformer", Preprocess(resize=256, interpolation="bilinear")),
}
"""Values of `--family`. Epsilons and activations are those of timm's form; `Naming.convention` has the others."""

_ROTARY_BASE, _PERIODS = 100.0, "rope_embed.periods"
_MOCO_WIDTH = 384

# Up to ViT-L, published models have heads of width 64, but for MoCo v3's ViT-S; then those whose heads are wider:
# SigLIP SO400M, ViT-H, ViT-g, ViT-G.
_HEADS = {width: width // 64 for width in range(192, 1025, 64)} | {1152: 16, 1280: 16, 1408: 16, 1664: 16}
_DINOV2_HEADS, _DINOV3_HEADS = {1536: 24}, {1280: 20, 4096: 32}

# Names that only such a model has: a pattern, what it is, and why it cannot be shown. The first that is found counts.
NOT_SHOWN: tuple[tuple[str, str, str], ...] = (
    (r"attn_(block|grid)\.|\.attn_(layer|block)\.|\.(grid|window)_attention\.", "MaxViT", WHY_NOT["MaxxVit"]),
    (r"(^|\.)(layers|features)\.\d+\.(blocks\.)?\d+\.att(n|ention)\.", "Swin", WHY_NOT["SwinTransformer"]),
    (r"\.rel_pos_[hw]$", "SAM or MViT", WHY_NOT["VisionTransformerSAM"]),
    (r"relative_position_bias|rel_pos_bias", "BEiT", WHY_NOT["Beit"]),
    (r"patch_embed(dings)?\.backbone\.", "a hybrid model", WHY_NOT["HybridEmbed"]),
    (r"blocks_token_only\.|\.attn\.proj_l\.", "CaiT", WHY_NOT["Cait"]),
    (r"\.attn\.gating_param$", "ConViT", WHY_NOT["ConVit"]),
    (r"\.local_mp\.", "XCiT", WHY_NOT["Xcit"]),
    (r"^blocks\.\d+\.(norm_in|attn_in)\.", "TNT", WHY_NOT["TNT"]),
    (r"^patch_embed1\.|^stages\.\d+\..*\.attn\.", "a pyramid of stages", WHY_NOT["PyramidVisionTransformerV2"]),
    (r"^decoder\.decoder_layers\.", "MAE with its decoder, in transformers' names", REFUSED["vit_mae"]),
    (
        r"(^|\.)resblocks\.\d+\.",
        "CLIP in OpenAI's or OpenCLIP's names",
        "only timm's and transformers' names of it are known; load it as timm:NAME or hf:NAME",
    ),
    (
        r"^to_patch_embedding\.3\.",
        "a model of vit_pytorch with norms around its patch projection",
        "it norms the pixels of a patch before the projection and the token after it (Kumar et al. 2023)",
    ),
    (r"(^|\.)bn\d?\.running_mean$|^layer1\.0\.conv1\.|^stem\.", "a convolutional network", "it has no attention"),
)


class Architecture:
    """Architecture that names and shapes show; what one block has is checked for the others when a model is assembled.

    `family` is one of `FAMILIES`, `config` that of the model, `assumed` what was taken from convention, for people,
    `unread` has tensors that no image meets and what they are.

    Args:
        found: shape of each tensor by name.
        family: one of `FAMILIES`, where names and shapes leave a choice.
        heads: attention heads in each block, where the width is none of the published ones.

    Raises:
        ConvertError: if it is none that can be shown, not known, or not told apart without `family` or `heads`.
        ModelError: if its sizes do not fit one another.
    """

    def __init__(self, found: Shapes, *, family: str | None = None, heads: int | None = None) -> None:
        if family is not None and family not in FAMILIES:
            raise ConvertError(f"Expected one of {', '.join(FAMILIES)}, got family {family!r}. Choose one.")
        if heads is not None and not (is_whole(heads) and heads > 0):
            raise ConvertError(f"Expected heads as a whole number of at least 1, got {heads!r}. Correct it.")
        for pattern, what, why in NOT_SHOWN:
            if any(re.search(pattern, name) for name in found):
                raise ConvertError(f"Expected a Vision Transformer, got {what}, which cannot be shown: {why}.")
        self.found = found
        self.naming = self._naming()
        renamed = self.naming.rename(found)
        self.unread = renamed.unread
        self.shapes = {ours: found[theirs] for ours, theirs in renamed.names.items()}
        if flat := self.shapes.pop("patch_embed.linear.weight", ()):  # a linear map of a patch's pixels
            side = math.isqrt(flat[-1] // 3)
            self.shapes["patch_embed.proj.weight"] = (flat[0], 3, side, side)
        self.rotary = "pos_embed" not in self.shapes
        self.eva = "blocks.0.gamma_1" in found
        own = (_PERIODS, "register_tokens", "storage_tokens", "mask_token")
        self.facebook = self.naming is naming.TIMM and any(name in found for name in own)
        self.family = self._family(family)
        usual = {**vars(FAMILIES[self.family]), **self.naming.convention}
        block = self._block(usual["activation"])
        width, channels, patch = self._patches()
        inner = self._shape("blocks.0.attn.proj.weight", 2)[1]
        count, head_caveat = self._heads(block, heads, width=width, inner=inner)
        tokens = self._tokens()
        side, front = (max(1, 224 // patch), 0) if self.rotary else self._grid(tokens)
        head = self.shapes.get("head.weight", self.shapes.get("head_alone.weight", (0, 0)))
        self.config = config = ViTConfig(
            image_size=(side * patch, side * patch),
            patch_size=patch,
            channels=channels,
            width=width,
            depth=self._depth(),
            heads=count,
            head_width=None if inner == width else inner // count,
            classes=head[0],
            pooling=self._pooling(both=head[1:] == (2 * width,)),
            norm_pooled="fc_norm.weight" in self.found or self.naming is naming.CLIP,
            positions="rotary" if self.rotary else "learned",
            # timm filters positions; transformers and DINOv2's own code do so only in models with registers.
            position_antialias=self.rotary
            or tokens["registers"] > 0
            or (self.naming is naming.TIMM and not self.facebook),
            rotary_base=_ROTARY_BASE,
            norm_pre="norm_pre.weight" in self.shapes,
            norm_eps=usual["norm_eps"],
            patch_bias="norm_pre.weight" not in self.shapes,  # CLIP alone has none; elsewhere that is a fault
            **tokens,
            **block,
        )
        assumed = (head_caveat, f"norm epsilon {config.norm_eps:g}", *_caveats(config))
        self.assumed = tuple(one for one in assumed if one)
        # Of MoCo v3, which has other heads; the position table has to show that these weights are not its.
        self.unsure_heads = self.naming is naming.TIMM and width == _MOCO_WIDTH and front > 0 and head_caveat != ""

    def convert(self, tensors: Mapping[str, Tensor]) -> State:
        """Return the state dict in our names.

        Raises:
            ConvertError: if the numbers are not those of the family, or tensors do not fit one another.
        """
        if self.unsure_heads and not tensors[self.naming.rename(tensors).names["pos_embed"]][:, 0].any():
            raise ConvertError(
                "Expected the number of heads, got none: fixed positions at this width are those of MoCo v3's ViT-S, "
                "which has 12 heads where others have 6. Pass --heads 12 (heads=12 in Python)."
            )
        if _PERIODS in tensors:  # of the rotations: base ** (4 i / d) for i = 0, 1, ..., d / 4 - 1
            periods = tensors[_PERIODS].float()
            expected = _ROTARY_BASE ** (torch.arange(len(periods)) / len(periods))
            if not torch.allclose(periods, expected, rtol=2e-2):
                raise ConvertError(
                    f"Expected DINOv3's rotations of base {_ROTARY_BASE:g}, got others in {_PERIODS!r}: not supported."
                )
        new = self.naming.convert(tensors, self.config)
        if self.facebook and self.config.positions == "rotary":
            # DINOv3's keys have no bias: facebookresearch multiplies what is stored for them by a mask of zeros.
            for name in [name for name in new if name.endswith("attn.qkv.bias")]:
                q, k, v = new[name].chunk(3)
                new[name] = torch.cat([q, torch.zeros_like(k), v])
        return new

    def preprocess(self) -> Preprocess:
        """Return how photographs are assumed to be prepared."""
        if self.config.channels != 3:
            raise ConvertError(f"Expected a model of 3 channels, got {self.config.channels}: not of photographs.")
        return FAMILIES[self.family].preprocess.shaped(*self.config.image_size)

    def describe(self, more: Iterable[str] = ()) -> str:
        """Return what was inferred, for people."""
        library = "facebookresearch's" if self.facebook else self.naming.library
        left_out = (f"without the {what}" for what in sorted(set(self.unread.values())) if what)
        return ", ".join((f"{self.family} in {library} names", *more, *left_out))

    def _naming(self) -> Naming:
        """Return the first naming whose marks are there."""
        for names in NAMINGS:
            if {names.bare(name) for name in self.found}.issuperset(names.marks):
                return names
        some = ", ".join(f"{name:.80}" for name in sorted(self.found)[:3])
        raise ConvertError(
            "Expected names that timm, facebookresearch, transformers, torchvision or a tutorial give to a Vision "
            f"Transformer ({'; '.join(one.who for one in FAMILIES.values())}), got {len(self.found)} tensors named "
            f"{some}, ... "
            "Load the model by its library's name."
        )

    # --- the family

    def _family(self, given: str | None) -> str:
        """Return the only family that there can be, or the one that was asked for, which has to be among these."""
        among, why, ask = self._families()
        choices = " or ".join(f"{name} ({FAMILIES[name].who})" for name in among)
        if given is None and (len(among) > 1 or ask):
            raise ConvertError(
                f"Expected a family, got none: names do not tell {why}. Say --family (family=...): {choices}."
            )
        if given is not None and given not in among:
            raise ConvertError(f"Expected {choices} for these names and shapes, got family {given}. Choose another.")
        return given or among[0]

    def _families(self) -> tuple[tuple[str, ...], str, bool]:
        """Return the families that have these names, what they differ in, and whether one has to be named.

        One name may stand for several models in timm. EVA-02 and its kin turn queries and keys by rotations that have
        no weights: their names are refused, because nothing would show that the rotation was forgotten.
        """
        if self.naming is not naming.TIMM:
            return self.naming.families, "the MLP's activation", False
        shapes, eva = self.shapes, self.eva
        cls, pool, registers = "cls_token" in shapes, "attn_pool.latent" in shapes, "reg_token" in shapes
        scaled = "blocks.0.ls1.gamma" in shapes and not eva
        if self.rotary:
            if not (cls and registers and (eva or scaled)):
                raise ConvertError(
                    "Expected a position table, got none: nothing tells whether positions are rotary, fixed, or not "
                    "there. Load the folder with its settings, or the model by its library's name."
                )
            sure = eva or _PERIODS in self.found or "storage_tokens" in self.found
            return ("dinov3",), "whether positions are rotary, fixed, or not there", not sure
        if eva or any(f"blocks.0.{name}" in shapes for name in ("attn.q.bias", "attn.q.weight", "mlp.gate.weight")):
            raise ConvertError(
                "Expected weights that tell their positions, got those of an EVA model with a position table: nothing "
                "tells whether it rotates queries and keys as well. Load it by its library's name (timm:NAME)."
            )
        if pool or "norm_pre.weight" in shapes:
            if pool == cls or scaled or registers:
                raise ConvertError(
                    "Expected weights that tell their positions, got what looks like a Perception Encoder: it rotates "
                    "queries and keys, and no weight shows how."
                )
            return ("siglip", "siglip-tanh") if pool else ("clip", "clip-quickgelu"), "the MLP's activation", False
        if not (cls or scaled or registers):
            return ("vit", "siglip", "siglip-tanh"), "the MLP's activation, and how photographs are prepared", False
        return ("vit",), "", False

    # --- sizes

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        shape = self.shapes.get(name)
        if shape is None or len(shape) != axes or 0 in shape:
            raise ConvertError(f"Expected a tensor {name!r} with {axes} axes, got {shape or 'none'}. Save it again.")
        return shape

    def _patches(self) -> tuple[int, int, int]:
        """Return (width, channels, side of a patch) from the patch embedding, (D, channels, p, p)."""
        width, channels, height, across = self._shape("patch_embed.proj.weight", 4)
        if height != across:
            raise ConvertError(f"Expected square patches, got {height} x {across}: not supported.")
        return width, channels, height

    def _depth(self) -> int:
        found = {int(match[1]) for name in self.shapes if (match := re.match(r"blocks\.([0-9]{1,5})\.", name))}
        if missing := sorted(set(range(len(found))) - found):
            raise ConvertError(f"Expected blocks counted from 0, got no block {missing[0]}. Save them all.")
        return len(found)

    def _tokens(self) -> dict[str, Any]:
        registers = self.shapes.get("reg_token", (1, 0, 0))
        return {
            "class_token": "cls_token" in self.shapes,
            "distillation_token": "dist_token" in self.shapes,
            "registers": self._shape("reg_token", 3)[1] if math.prod(registers) else 0,
        }

    def _block(self, activation: str) -> dict[str, Any]:
        """Return what one block computes."""
        shapes, at = self.shapes, "blocks.0."
        hidden = self._shape(at + "mlp.fc2.weight", 2)[1]
        first = at + ("mlp.up.weight" if at + "mlp.up.weight" in shapes else "mlp.fc1.weight")
        gated = at + "mlp.gate.weight" in shapes or self._shape(first, 2)[0] == 2 * hidden
        return {
            "mlp_width": hidden,
            "mlp_bias": at + "mlp.fc2.bias" in shapes,
            "qkv_bias": any(f"{at}attn.{part}.bias" in shapes for part in ("qkv", "q", "k", "v")),
            "qk_norm": at + "attn.q_norm.weight" in shapes,
            "layer_scale": 1e-5 if at + "ls1.gamma" in shapes else None,  # where training began; scales are weights
            "mlp": "swiglu" if gated else "mlp",
            "activation": "gelu" if gated else activation,
        }

    def _heads(self, block: Mapping[str, Any], given: int | None, *, width: int, inner: int) -> tuple[int, str]:
        """Return the number of heads, and what was assumed ("" where the weights or the caller say it).

        `given` is what the caller said, `width` D of the model, `inner` heads times the width of a head.

        Raises:
            ConvertError: if it has to be said, or what was said cannot be.
        """
        one = self.found[_PERIODS][0] * 4 if len(self.found.get(_PERIODS, ())) == 1 else 0  # the width of a head
        one = self._shape("blocks.0.attn.q_norm.weight", 1)[0] if block["qk_norm"] else one
        if one and inner % one == 0 and given in (None, inner // one):
            return inner // one, ""
        if given is not None:
            if one or inner % given:
                fit = f"{inner // one} heads of width {one}" if one else f"a divisor of {inner}"
                raise ConvertError(f"Expected {fit}, got {given} heads. Say another number.")
            return given, ""
        published = _HEADS | (_DINOV3_HEADS if self.rotary else _DINOV2_HEADS if block["layer_scale"] else {})
        # Without biases other widths of a head have been published.
        if width not in published or inner != width or not (self.rotary or block["qkv_bias"]):
            raise ConvertError(
                f"Expected the number of heads, got none: it cannot be told from these weights (width {width}, {inner} "
                "in all heads together). Say --heads (heads=...)."
            )
        return published[width], f"{published[width]} heads of width {width // published[width]}"

    def _grid(self, tokens: Mapping[str, Any]) -> tuple[int, int]:
        """Return the side of the square grid of the position table, and its rows that belong to prefix tokens.

        Raises:
            ConvertError: if there is no such square, or more than one.
        """
        rows = self._shape("pos_embed", 2 if self.naming.flat else 3)[-2]
        front = {tokens["class_token"] + tokens["distillation_token"]}
        if self.naming is naming.TIMM:
            front = {0, sum(tokens.values())} | ({1} if tokens["registers"] and tokens["class_token"] else set())
        squares = [(math.isqrt(rows - n), n) for n in front if rows > n and math.isqrt(rows - n) ** 2 == rows - n]
        if len(squares) != 1:
            raise ConvertError(
                f"Expected positions of a square of patches, got {rows} rows, which are one in "
                f"{'two ways' if squares else 'no way'}. Load the folder with its settings, or the model by its "
                "library's name."
            )
        return squares[0]

    def _pooling(self, *, both: bool) -> Any:
        """Return what the classifier reads; `both` are the class token and the mean, as the head's width tells."""
        if "attn_pool.latent" in self.shapes:
            return "attention"
        if self.naming is naming.SIGLIP:
            raise ConvertError("Expected the head that pools SigLIP's patches, got none. Save the whole model.")
        if "cls_token" not in self.shapes or "fc_norm.weight" in self.found or (self.rotary and self.eva):
            return "mean"
        return "cls+mean" if both else "cls"


def _caveats(config: ViTConfig) -> list[str]:
    """Return what else was taken from convention."""
    activation = {"gelu": "exact GELU", "gelu_tanh": "GELU by tanh", "quick_gelu": "QuickGELU"}[config.activation]
    caveats = [] if config.mlp == "swiglu" else [activation]
    if config.positions == "rotary":
        caveats += [f"rotary positions of base {config.rotary_base:g}", f"image size {config.image_size[0]}"]
    if config.class_token and config.pooling == "cls" and config.classes:
        caveats.append("a classifier that reads the class token")
    if config.class_token and config.pooling == "mean":
        caveats.append("pooling over the patches, as in timm")
    return caveats
