"""The vision towers of CLIP and SigLIP, in Hugging Face's names, -> weights in ours.

Both come alone (`CLIPVisionModel`) or beside a text tower (`CLIPModel`), whose tensors are left out: no image meets
them. The settings of the whole model hold those of the tower as `vision_config`. Shapes as in `from_transformers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.weights.parts import State, finish, linear, norm, open_source, patches, stacked, within
from vitviz.weights.settings import Settings, labels
from vitviz.weights.source import ConvertError, Source

CLIP_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
SIGLIP_DEFAULTS: dict[str, Any] = CLIP_DEFAULTS | {
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}

# Read the text, or compare image and text: what is left without a text.
_TEXT = ("text_model.", "text_projection.", "logit_scale", "logit_bias")


def clip(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, State]:
    """CLIP's vision tower (`CLIPVisionModel`, with or without its projection, or inside a `CLIPModel`).

    Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". There is no
    classifier: the model returns the class token after the final norm, before the projection to the text's space.
    """
    whole = Settings(settings, "CLIP", {})
    if settings.get("architectures") == ["CLIPForImageClassification"]:
        raise whole.refuse(
            "architectures", "its classifier reads the mean over patches without the final norm, which the model has"
        )
    composite = settings.get("model_type") == "clip"
    alone = ("CLIPVisionModel", "CLIPVisionModelWithProjection")
    whole.architecture(("CLIPModel", *alone) if composite else alone)
    said = Settings(_tower(settings, "CLIP") if composite else settings, "CLIP", CLIP_DEFAULTS)
    config = _config(
        said, classes=0, class_token=True, pooling="cls", norm_pre=True, norm_pooled=True, patch_bias=False
    )
    # The projection makes image and text comparable; it is no classifier and moves no attention.
    source, _ = open_source(state, "CLIP", prefix="vision_model.", leave=(*_TEXT, "visual_projection."))
    width = config.width
    new, table = _trunk(source, config)
    new["cls_token"] = source.take("embeddings.class_embedding", width)[None, None] + table[:, :1]
    new["pos_embed"] = table[:, 1:]
    new |= norm(source, "norm_pre", "pre_layrnorm", width)  # the library's own spelling
    return config, finish(source, new)


def siglip(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, State]:
    """SigLIP's vision tower (`SiglipVisionModel`, or inside a `SiglipModel`), and its classifier.

    Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training". No class token: a learned query pools the patches.
    `SiglipForImageClassification` reads their mean instead, and its query is left out.
    """
    whole = Settings(settings, "SigLIP", {})
    composite = settings.get("model_type") == "siglip"
    classifier = "SiglipForImageClassification"
    alone = ("SiglipVisionModel", classifier)
    mean = whole.architecture(("SiglipModel", *alone) if composite else alone) == classifier
    classes = len(labels(settings)) if mean else 0
    said = Settings(_tower(settings, "SigLIP") if composite else settings, "SigLIP", SIGLIP_DEFAULTS)
    if not mean and not said.flag("vision_use_head"):
        raise said.refuse("vision_use_head", "without it nothing says what stands for the image")
    config = _config(said, classes=classes, class_token=False, pooling="mean" if mean else "attention")
    unread = ("vision_model.head.", "head.") if mean else ()
    source, _ = open_source(state, "SigLIP", prefix="vision_model.", leave=(*_TEXT, *unread))
    new, table = _trunk(source, config)
    new["pos_embed"] = table
    if not mean:
        new |= within("attn_pool.", _pool(source, config))
    if classes:
        new |= linear(source, "head", "classifier", classes, config.width)
    return config, finish(source, new)


def _tower(settings: Mapping[str, Any], family: str) -> Mapping[str, Any]:
    """The settings of the vision tower; an older file has them under a second name, which wins in transformers."""
    found = settings.get("vision_config_dict")
    found = settings.get("vision_config") if found is None else found
    found = {} if found is None else found
    if not isinstance(found, Mapping):
        raise ConvertError(f"{family} settings with vision_config={found!r:.80}: expected an object.")
    return found


def _config(said: Settings, **more: Any) -> ViTConfig:
    patch = said.square("patch_size")
    return ViTConfig(
        image_size=said.image(patch),
        patch_size=patch,
        channels=said.whole("num_channels"),
        width=said.whole("hidden_size"),
        depth=said.whole("num_hidden_layers"),
        heads=said.whole("num_attention_heads"),
        mlp_width=said.whole("intermediate_size"),
        activation=said.activation(),
        position_antialias=False,
        norm_eps=said.number("layer_norm_eps"),
        **more,
    )


def _trunk(source: Source, config: ViTConfig) -> tuple[State, Tensor]:
    """Patches, blocks and the final norm, and the position table, (1, [CLS +] gh * gw, D)."""
    width, hidden, patch = config.width, config.hidden, config.patch_size
    rows, columns = config.learned_grid
    source.drop("embeddings.position_ids")  # 0, 1, 2, ...: older files count their positions
    table = source.take("embeddings.position_embedding.weight", config.class_token + rows * columns, width)[None]
    shape = (width, config.channels, patch, patch)
    new = patches(source, "embeddings.patch_embedding", shape, bias=config.patch_bias)
    new |= norm(source, "norm", "post_layernorm", width)
    for index in range(config.depth):
        at = f"encoder.layers.{index}."
        block = stacked(source, "attn.qkv", tuple(f"{at}self_attn.{part}_proj" for part in "qkv"), width, width)
        block |= linear(source, "attn.proj", at + "self_attn.out_proj", width, width)
        block |= norm(source, "norm1", at + "layer_norm1", width)
        block |= norm(source, "norm2", at + "layer_norm2", width)
        block |= linear(source, "mlp.fc1", at + "mlp.fc1", hidden, width)
        block |= linear(source, "mlp.fc2", at + "mlp.fc2", width, hidden)
        new |= within(f"blocks.{index}.", block)
    return new, table


def _pool(source: Source, config: ViTConfig) -> State:
    """The learned query that attends to all patches, and the MLP behind it."""
    width, hidden = config.width, config.hidden
    weight = source.take("head.attention.in_proj_weight", 3 * width, width)  # queries, keys, values
    bias = source.take("head.attention.in_proj_bias", 3 * width)
    new = {
        "latent": source.take("head.probe", 1, 1, width),
        "q.weight": weight[:width],
        "q.bias": bias[:width],
        "kv.weight": weight[width:],
        "kv.bias": bias[width:],
    }
    new |= linear(source, "proj", "head.attention.out_proj", width, width)
    new |= norm(source, "norm", "head.layernorm", width)
    new |= linear(source, "mlp.fc1", "head.mlp.fc1", hidden, width)
    return new | linear(source, "mlp.fc2", "head.mlp.fc2", width, hidden)
