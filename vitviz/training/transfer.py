"""Starting from another model's weights: a new head for other classes, another size, and what of it learns.

Dosovitskiy et al. 2021, section 3.2: the head is replaced by one of zeros, and positions are interpolated to the new
grid. Only then is the model trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Literal

import torch

from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.positions import resize_positions
from vitviz.preprocess import Preprocess
from vitviz.training import TrainingError
from vitviz.training.data import Data

HEADS = ("head.", "head_dist.")  # what is always new


def start_from(
    source: ViT,
    labels: Sequence[str],
    *,
    name: str,
    class_ids: Sequence[str] = (),
    pooling: Literal["cls", "mean", "cls+mean", "attention"] | None = None,
    image_size: tuple[int, int] | None = None,
    preprocess: Preprocess | None = None,
    dropout: float | None = None,
    path_dropout: float | None = None,
    licence: str | None = None,
    data: str = "",
    seed: int = 0,
) -> ViT:
    """A copy of a model with a head of zeros for other classes; everything else has its weights.

    Args:
        source: with or without a classifier of its own; it stays as it is.
        labels: one for each new class, in the order of the logits.
        name: of the new model.
        class_ids: names of the class folders, in the same order; empty where there are none.
        pooling: what the new head reads; by default what the old one did.
        image_size: (height, width) in pixels that it is trained at. Where that is another grid of patches than the
            source's, learned positions are interpolated to it once, as the source itself would at each image.
        preprocess: how it is fed; by default as the source is, at `image_size`.
        dropout, path_dropout: probabilities in training; by default those of the source.
        licence: by default the source's, which its weights keep.
        data: what it will be trained on, for the record.
        seed: of the random numbers that attention pooling starts with, where the source has none.

    Returns:
        A model in eval mode, in float32, on the source's device.

    Raises:
        TrainingError: for fewer than two classes, ids that do not fit them, or nothing that says how it is fed.
        ModelError: if the sizes do not fit together.
    """
    labels, class_ids = tuple(labels), tuple(class_ids)
    if len(labels) < 2 or len(class_ids) not in (0, len(labels)):
        raise TrainingError(
            f"Expected labels of at least two classes and as many class ids or none, got {len(labels)} labels and "
            f"{len(class_ids)} class ids."
        )
    config = _config(source, len(labels), pooling, image_size, dropout, path_dropout)
    about = _record(source, labels, class_ids, name, config, preprocess, licence, data)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.default_generator.manual_seed(seed)
        model = ViT(config, about)
    state = model.state_dict()
    old = {key: value.detach().float() for key, value in source.state_dict().items() if not key.startswith(HEADS)}
    state |= {key: value for key, value in old.items() if key in state}
    if source.pos_embed is not None and config.learned_grid != source.config.learned_grid:
        state["pos_embed"] = resize_positions(
            old["pos_embed"], source.config.learned_grid, config.learned_grid, config.position_antialias
        )
    model.load_state_dict(state, strict=True)
    return model.to(source.norm.weight.device).eval()


def learning(model: ViT, unfreeze_last: int) -> tuple[str, ...]:
    """Names of the modules that learn when all but the last blocks are frozen, in the order in which they run.

    With 0 these are the classifiers, and attention pooling with a norm behind it; with K also the last K blocks and
    the norm. Embedding, positions and prefix tokens never do.

    Raises:
        TrainingError: if there are not so many blocks.
    """
    config = model.config
    if isinstance(unfreeze_last, bool) or not 0 <= unfreeze_last <= config.depth:
        raise TrainingError(
            f"Expected to train the last 0 to {config.depth} blocks, all that the model has; got {unfreeze_last}. "
            "Give the number (--unfreeze-last), or let everything learn (--freeze none)."
        )
    blocks = [f"blocks.{index}" for index in range(config.depth - unfreeze_last, config.depth)]
    pooling = ["attn_pool"] if model.attn_pool is not None else []
    normed = ["norm"] if unfreeze_last or (pooling and config.norm_pooled) else []
    heads = [part.rstrip(".") for part in HEADS if getattr(model, part.rstrip(".")) is not None]
    return (*blocks, *normed, *pooling, *heads)


def freeze(model: ViT, unfreeze_last: int | None) -> tuple[str, ...]:
    """Say what of a model learns, by `requires_grad` of its parameters.

    Args:
        model: changed in place.
        unfreeze_last: how many of the last blocks learn beside the classifiers; 0 for a frozen backbone, `None` for
            everything, embedding and prefix tokens too.

    Returns:
        Names of the parameters that learn.

    Raises:
        TrainingError: if there are not so many blocks.
    """
    modules = ("",) if unfreeze_last is None else tuple(f"{name}." for name in learning(model, unfreeze_last))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(modules))
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def _config(
    source: ViT,
    classes: int,
    pooling: Literal["cls", "mean", "cls+mean", "attention"] | None,
    image_size: tuple[int, int] | None,
    dropout: float | None,
    path_dropout: float | None,
) -> ViTConfig:
    old = source.config
    config = replace(
        old,
        classes=classes,
        pooling=old.pooling if pooling is None else pooling,
        dropout=old.dropout if dropout is None else dropout,
        path_dropout=old.path_dropout if path_dropout is None else path_dropout,
    )
    if image_size is None or old.grid == old.grid_of(*image_size):
        return config
    return replace(config, image_size=image_size, position_grid=None)


def _record(
    source: ViT,
    labels: tuple[str, ...],
    class_ids: tuple[str, ...],
    name: str,
    config: ViTConfig,
    preprocess: Preprocess | None,
    licence: str | None,
    data: str,
) -> Pretrained:
    """What travels with the new model, and says what it was made from."""
    about = source.pretrained
    if preprocess is None:
        if about is None:
            raise TrainingError("Expected a source that knows how it is fed, got one without. Give it preprocess.")
        preprocess = about.preprocess
        if config.image_size != source.config.image_size:
            preprocess = resized(preprocess, config.image_size)
    origin = "a model without a record" if about is None else f"{about.name} ({about.source or 'source unknown'})"
    trained = f", trained on {data}" if data else ""
    return Pretrained(
        name=name,
        preprocess=preprocess,
        labels=labels,
        class_ids=class_ids,
        licence=licence or ("unknown" if about is None else about.licence),
        source=f"made from {origin} with a new head for {len(labels)} classes{trained}",
    )


def resized(preprocess: Preprocess, size: tuple[int, int]) -> Preprocess:
    """The same preprocessing for an input of (height, width) pixels; a crop cuts off the same share."""
    short, new = min(preprocess.height, preprocess.width), min(size)
    resize = None if preprocess.resize is None else math.ceil(preprocess.resize * new / short)
    return replace(preprocess, height=size[0], width=size[1], resize=resize)


def fed_as(model: ViT, data: Data) -> Pretrained:
    """What says how a model is fed, if that is how the data are, and its classes are theirs.

    Raises:
        TrainingError: if they do not fit together.
    """
    about = model.pretrained
    if about is None or model.head is None:
        raise TrainingError(
            "Expected a classifier that knows how it is fed, with model.pretrained set; got one without."
        )
    if about.labels != data.labels or (about.class_ids and about.class_ids != data.class_ids):
        raise TrainingError(
            f"Expected a model of the data's {len(data.labels)} classes in their order ({', '.join(data.labels[:5])}, "
            f"...), got one of {len(about.labels)} ({', '.join(about.labels[:5])}, ...). Give it a new head."
        )
    fed, shown = about.preprocess, data.preprocess(about.preprocess.mean, about.preprocess.std)
    if replace(fed, multiple=shown.multiple) != shown:
        wrong = [f"{name} {value!r} and {asdict(shown)[name]!r}" for name, value in asdict(fed).items()
                 if value != asdict(shown)[name] and name != "multiple"]  # fmt: skip
        raise TrainingError(
            f"The model would be fed otherwise than it is trained: {'; '.join(wrong)}. Set its preprocessing to "
            "data.preprocess(mean, std)."
        )
    model.config.grid_of(*data.train.size)
    return about
