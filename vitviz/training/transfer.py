"""Start from another model's weights, with a new head or input size.

Dosovitskiy et al. 2021, section 3.2: the head is replaced by zeros, and positions are interpolated to the new grid.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from vitviz.images.preprocess import Preprocess
from vitviz.model.positions import resize_biases, resize_positions
from vitviz.model.vit import Pretrained, ViT
from vitviz.outputs import SINGLE
from vitviz.training import TrainingError
from vitviz.training.data import Data

Pooling = Literal["cls", "mean", "cls+mean", "attention"]


def start_from(
    source: ViT,
    labels: Sequence[str],
    *,
    name: str,
    class_ids: Sequence[str] = (),
    pooling: Pooling | None = None,
    image_size: tuple[int, int] | None = None,
    keep_head: bool = False,
    preprocess: Preprocess | None = None,
    licence: str | None = None,
    data: str = "",
    seed: int = 0,
) -> ViT:
    """Return a copy of a model with a zero-initialised head for other classes, or with its own head.

    Args:
        source: source model, with or without a classifier; not changed.
        labels: one label per class, in the order of the logits.
        name: name of the new model.
        class_ids: names of the class folders in the same order, or empty.
        pooling: pooling of the new head; by default, the source's pooling.
        image_size: (height, width) in pixels for training. Learned positions are interpolated once, unless the source
            interpolates them from a separate grid for each image.
        keep_head: keep the source's classifiers, which must have these classes in this order.
        preprocess: by default the source's, at `image_size`.
        licence: by default the source's.
        data: description of the training data, stored with the model.
        seed: seed of attention pooling, if the source has none.

    Returns:
        A model in eval mode, in float32, on the source's device.

    Raises:
        TrainingError: for missing preprocessing, or a kept head with other classes.
        ModelError: if the sizes do not fit together.
    """
    source.check_converted()
    labels, class_ids, about, old = tuple(labels), tuple(class_ids), source.pretrained, source.config
    config = replace(old, classes=len(labels), pooling=pooling or old.pooling)
    if image_size is not None and old.grid != old.grid_of(*image_size):
        own_grid = old.table.grid not in (None, old.grid)
        table = old.table if own_grid else replace(old.table, grid=None)
        config = replace(config, image_size=image_size, table=table)
    fits = about is not None and about.labels == labels and config.pooling == old.pooling
    if keep_head and not (fits and source.problem_type == SINGLE):
        raise TrainingError(
            f"Expected a source that chooses one of the same {len(labels)} classes in the same order and with the same "
            "pooling to keep its head, got another. Leave --keep-head out for a new one."
        )
    if preprocess is None:
        if about is None:
            raise TrainingError("Expected a source with preprocessing, got one without. Give it preprocess.")
        same = config.image_size == old.image_size
        preprocess = about.preprocess if same else about.preprocess.shaped(*config.image_size)
    origin = "a model without a record" if about is None else f"{about.name} ({about.source or 'source unknown'})"
    head = "its head" if keep_head else f"a new head for {len(labels)} classes"
    record = Pretrained(
        name=name,
        preprocess=preprocess,
        labels=labels,
        class_ids=class_ids,
        licence=licence or ("unknown" if about is None else about.licence),
        source=f"made from {origin} with {head}{f', trained on {data}' if data else ''}",
    )
    with torch.random.fork_rng(devices=[]):  # preserves the caller's random state
        torch.default_generator.manual_seed(seed)
        model = ViT(config, record)
    weights = {key: value.detach().float() for key, value in source.state_dict().items()}
    grids = old.learned_grid, config.learned_grid
    for key, prefix in (("pos_embed", 0), ("mid_pos_embed", len(old.prefix))):
        if key in weights and grids[0] != grids[1]:
            first, patches = weights[key].tensor_split([prefix], dim=1)
            patches = resize_positions(patches, *grids, config.table)
            weights[key] = torch.cat([first, patches], dim=1)
    for name in [name for name in weights if name.endswith("bias_table")]:
        weights[name] = resize_biases(weights[name], *grids)
    state, new = model.state_dict(), () if keep_head else ("head.", "head_dist.")
    state |= {key: value for key, value in weights.items() if key in state and not key.startswith(new)}
    model.load_state_dict(state, strict=True)
    return model.to(source.patch_embed.proj.weight.device).eval()


def start_on(source: ViT, data: Data, *, name: str, **options: Any) -> ViT:
    """Return a copy of a model for the classes and the pixels of data; `options` are those of `start_from`."""
    about = source.pretrained
    mean_std = (about.preprocess.mean, about.preprocess.std) if about else data.mean_std()
    options |= {"class_ids": data.class_ids, "preprocess": data.preprocess(*mean_std), "data": data.name}
    return start_from(source, data.labels, name=name, **options)


def check_fits(model: ViT, data: Data) -> Pretrained:
    """Check that a model's classes and preprocessing match the data, and return its metadata.

    Raises:
        TrainingError: if they differ.
    """
    about = model.pretrained
    if about is None or model.head is None:
        raise TrainingError("Expected a classifier with model.pretrained, got one without. Set it first.")
    if about.labels != data.labels or (about.class_ids and about.class_ids != data.class_ids):
        raise TrainingError(
            f"Expected a model of the data's {len(data.labels)} classes in their order ({', '.join(data.labels[:5])}, "
            f"...), got one of {len(about.labels)} ({', '.join(about.labels[:5])}, ...). Give it a new head."
        )
    needed = data.preprocess(about.preprocess.mean, about.preprocess.std)
    if replace(about.preprocess, multiple=needed.multiple) != needed:
        raise TrainingError(
            f"Expected the preprocessing of the data, {needed}, got {about.preprocess}. Set it to "
            "data.preprocess(mean, std)."
        )
    return about
