"""Load the text tower of CLIP and SigLIP through transformers, and make texts the classes of a model.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; Zhai et al. 2023, "Sigmoid
Loss for Language Image Pre-Training". The logit of a text is a scale times the cosine of image and text embedding, plus
a bias in SigLIP.

Shapes: n texts, F features of the image, E width of the embeddings.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.errors import first_line
from vitviz.extras import extra
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.vit import Pretrained, ViT
from vitviz.outputs import SEVERAL, SINGLE
from vitviz.weights.checks import CONFIG, ConvertError, read_json
from vitviz.weights.from_transformers import WITH_TEXTS, has_text_tower
from vitviz.weights.remote import ABOUT, SAFE, fetch

TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "spiece.model")
"""Patterns of a tokenizer's files."""


@dataclass(frozen=True, eq=False)
class TextTower:
    """Text tower with its tokenizer, as transformers' own objects.

    Args:
        model: a `CLIPModel` or `SiglipModel`.
        tokenizer: its tokenizer.

    Raises:
        ConvertError: for a model of another class.
    """

    model: Any
    tokenizer: Any

    def __post_init__(self) -> None:
        if type(self.model).__name__ not in WITH_TEXTS.values():
            raise ConvertError(
                f"Expected a {' or '.join(WITH_TEXTS.values())}, with its text tower, got {type(self.model).__name__}. "
                "Load the whole model."
            )

    @property
    def sigmoid(self) -> bool:
        """Return whether each text has its own sigmoid (SigLIP), instead of one softmax over all texts (CLIP)."""
        return bool(self.model.config.model_type == "siglip")

    @property
    def projection(self) -> Tensor | None:
        """Return the map from the image's features to its embedding, (E, F); `None` in SigLIP, where they are equal."""
        return None if self.sigmoid else self.model.visual_projection.weight.detach()

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings of texts as unit vectors: (n, E)."""
        limit = self.model.config.text_config.max_position_embeddings
        padding = "max_length" if self.sigmoid else True  # SigLIP was trained on texts of one length
        tokens = self.tokenizer(list(texts), padding=padding, max_length=limit, truncation=True, return_tensors="pt")
        names = ("input_ids",) if self.sigmoid else ("input_ids", "attention_mask")
        device = self.model.logit_scale.device
        pooled = self.model.text_model(**{name: tokens[name].to(device) for name in names}).pooler_output
        return F.normalize(pooled if self.sigmoid else self.model.text_projection(pooled), dim=-1)


@lru_cache(maxsize=1)
def load_text_tower(source: str) -> TextTower:
    """Load a text tower with its tokenizer, on the CPU.

    Args:
        source: a folder in Hugging Face's format, or `hf:owner/name`.

    Raises:
        ConvertError: for a model without a text tower, or without a tokenizer.
        RemoteError: if the model is neither cached nor reachable.
    """
    import_torchvision()  # transformers imports torchvision, whose import may fail
    with extra("transformers"):
        import transformers
    folder = _folder(source)
    if not has_text_tower(read_json(folder / CONFIG)):
        raise ConvertError(
            f"Expected a {' or '.join(WITH_TEXTS.values())}, with its text tower, got {source!r} without one. Load the "
            "whole model."
        )
    try:
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).float()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise ConvertError(
            f"Expected a text tower and a tokenizer in {source!r}, got an error: {first_line(error)}. Add the "
            "tokenizer's files."
        ) from error
    return TextTower(model.eval(), tokenizer)


def _folder(source: str) -> Path:
    library, _, name = source.partition(":")
    if library != "hf" or Path(source).is_dir():
        return Path(source)
    return fetch(name, (*ABOUT, *SAFE, *TOKENIZER), (CONFIG, SAFE[0], TOKENIZER[0]))


def text_tower_of(model: ViT, tower: TextTower | str | os.PathLike[str] | None = None) -> TextTower:
    """Return the given text tower, or the one stored with the model's weights, which is loaded on first use.

    Raises:
        ConvertError: if the model has no text tower, or the tower belongs to another model.
    """
    if tower is None and not model.text_source:
        raise ConvertError(
            "Expected a model with a text tower, such as hf:openai/clip-vit-base-patch32, got one without. Load such a "
            "model, or pass tower=TextTower(model, tokenizer)."
        )
    text_tower = tower if isinstance(tower, TextTower) else load_text_tower(os.fspath(tower or model.text_source))
    width = text_tower.model.config.vision_config.hidden_size
    if width != model.config.feature_width:
        raise ConvertError(
            f"Expected the text tower of this model with {model.config.feature_width} features, got one for {width}. "
            "Load both from the same source."
        )
    return text_tower


def classify_texts(model: ViT, texts: Sequence[str], tower: TextTower | str | os.PathLike[str] | None = None) -> ViT:
    """Return a model whose classes are texts, for zero-shot classification; it shares the image tower's weights.

    Args:
        model: the image tower of CLIP or SigLIP.
        texts: such as "a photo of a cat".
        tower: the text tower; by default the one stored with the model's weights.

    Raises:
        ConvertError: without texts, if a text occurs twice, or for a model without a text tower.
    """
    names = [texts] if isinstance(texts, str) else list(texts)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConvertError(
            f"Expected at least one text, none of them empty, got {texts!r:.80}. Write what to look for."
        )
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ConvertError(f"Expected different texts, got {repeated[0]!r:.80} twice. Leave it out once.")
    text_tower = text_tower_of(model, tower)
    scale, weight = text_tower.model.logit_scale.detach().exp(), model.patch_embed.proj.weight
    head = (scale * text_tower.embed(names)).to(weight)  # (n, E)
    bias = text_tower.model.logit_bias.detach().expand(len(names)) if text_tower.sigmoid else torch.zeros(len(names))
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(("head", "projection"))}
    state |= {"head.weight": head, "head.bias": bias.to(weight).clone()}
    projection = text_tower.projection  # (E, F)
    if projection is not None:
        state["projection.weight"] = projection.to(weight)
    config = replace(
        model.config,
        classes=len(names),
        cosine=True,
        projection=None if projection is None else len(projection),
    )
    with torch.device("meta"):
        classifier = ViT(config, _about(model, names, sigmoid=text_tower.sigmoid))
    classifier.load_state_dict(state, strict=True, assign=True)
    classifier.text_source = model.text_source
    return classifier.train(model.training).requires_grad_(weight.requires_grad)


def _about(model: ViT, texts: Sequence[str], *, sigmoid: bool) -> Pretrained | None:
    """Return the model's metadata with the texts as labels."""
    if model.pretrained is None:
        return None
    labels, meaning = tuple(texts), SEVERAL if sigmoid else SINGLE
    about = replace(model.pretrained, labels=labels, class_ids=(), groups=(), problem_type=meaning)
    return replace(about, sure_above=None, known_above=None)
