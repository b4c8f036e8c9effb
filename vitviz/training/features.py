"""The part of a model that learns, and what the frozen part in front of it sees, computed once.

The trunk is what stays as it is: the embedding and the first blocks, or everything but the classifier. Without
augmentation it sees the same pixels in each epoch, so its answers are kept on disk, and training runs the tail alone.

Shapes: B images, N tokens, D width, C classes. A row is what the trunk hands over for one image: the tokens (N, D) that
enter the first trained block, or what the classifiers read, (R,).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from vitviz.model import ViT
from vitviz.preprocess import Preprocess
from vitviz.training import TrainingError
from vitviz.training.cache import Rows, open_rows
from vitviz.training.data import Split
from vitviz.training.teacher import Teacher
from vitviz.training.transfer import learning
from vitviz.weights.checkpoint import fingerprint


def normalised(pixels: Tensor, preprocess: Preprocess) -> Tensor:
    """Pixels from 0 to 255, (B, 3, H, W), as the model reads them: float32, where the pixels are."""
    mean, std = (torch.tensor(v, device=pixels.device)[:, None, None] for v in (preprocess.mean, preprocess.std))
    return (pixels.float() / 255 - mean) / std


class Whole(nn.Module):
    """A model as training runs it: normalised images (B, 3, H, W) -> the logits (B, C) of each classifier.

    Shares the model's modules: training it trains the model.

    Raises:
        TrainingError: if the model has no classifier.
    """

    def __init__(self, model: ViT) -> None:
        super().__init__()
        _need_classifier(model)
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one or two of (B, C): see `ViT.heads_logits`."""
        tokens, grid = self.model.embed(images)
        return self.model.heads_logits(self.model.encode(tokens, self.model.angles(grid)))


class Tail(nn.Module):
    """The last part of a model: rows of the trunk -> the logits (B, C) of each classifier.

    Shares the model's modules under their names, and has only those that learn: training it trains the model.

    Args:
        model: a classifier.
        unfreeze_last: how many blocks learn; 0 for the classifiers alone (and attention pooling, which is one).
        grid: (gh, gw) patches of the images that the rows are of.

    Raises:
        TrainingError: if the model has no classifier or not so many blocks.
    """

    def __init__(self, model: ViT, unfreeze_last: int, grid: tuple[int, int]) -> None:
        super().__init__()
        _need_classifier(model)
        self.start, self.grid = model.config.depth - unfreeze_last, grid
        self._whole = (model,)  # in a tuple it is no submodule: the trunk is not part of the tail
        blocks: dict[str, nn.Module] = {}
        for name in learning(model, unfreeze_last):
            module = model.get_submodule(name)
            if name.startswith("blocks."):
                blocks[name.removeprefix("blocks.")] = module
            else:
                self.add_module(name, module)
        if blocks:
            self.blocks = nn.ModuleDict(blocks)  # by number, so that parameters keep their names

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(B, N, D) or (B, R), of `trunk` -> one or two of (B, C): see `ViT.heads_logits`."""
        (model,) = self._whole
        if self.start < model.config.depth:
            tokens = model.encode(rows, model.angles(self.grid), start=self.start)  # (B, N, D)
            return model.heads_logits(tokens)
        if _hands_over_tokens(model):
            return model.heads_logits(rows)
        assert model.head is not None
        if model.head_dist is None:
            return (model.head(rows),)
        read, token = rows.split([model.head.in_features, model.head_dist.in_features], dim=1)
        return model.head(read), model.head_dist(token)


@torch.no_grad()
def trunk(model: ViT, images: Tensor, unfreeze_last: int) -> Tensor:
    """What the tail is given: normalised images (B, 3, H, W) -> rows (B, N, D) or (B, R).

    With `unfreeze_last` blocks that learn, the tokens that enter the first of them. With none, what the classifiers
    read: what is pooled and normed, then the distillation token where it has a classifier; for attention pooling,
    which learns with them, the final tokens.
    """
    depth = model.config.depth
    tokens, grid = model.embed(images)
    angles = model.angles(grid)
    for block in list(model.blocks)[: depth - unfreeze_last]:
        tokens = block(tokens, angles)
    if unfreeze_last:
        return tokens
    tokens = model.finish(tokens)
    if _hands_over_tokens(model):
        return tokens
    read = model.read_out(tokens)
    return read if model.head_dist is None else torch.cat([read, tokens[:, model.config.distillation_at]], dim=1)


def open_features(
    model: ViT,
    split: Split,
    size: tuple[int, int],
    folder: str | os.PathLike[str],
    *,
    name: str,
    unfreeze_last: int,
    dtype: torch.dtype = torch.float16,
    cast: torch.dtype | None = None,
    batch: int = 64,
    progress: bool = True,
) -> Rows:
    """The trunk's rows for every image of a split, from a file in `folder`; what is not there yet is computed.

    The file is named after all that its numbers depend on: the trunk's weights, the images, their size, the precision.
    A run that was stopped goes on where it was. Of several processes on a machine one computes; the others wait.

    Args:
        model: with `pretrained`; it runs where it is, in eval mode.
        split: the images.
        size: (height, width) in pixels.
        folder: made where it is missing. Files of earlier settings stay in it until somebody removes them.
        name: of the split, the first part of the file's name.
        unfreeze_last: how many blocks learn, as in `Tail`.
        dtype: float16 or float32, on disk.
        cast: bfloat16 or float16 for matrix products and attention in that precision (autocast), as in training;
            float32 by default.
        batch: images at once.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        TrainingError: if the model does not know how it is fed, the disk is full, or the numbers do not fit `dtype`.
    """
    about = model.pretrained
    if about is None:
        raise TrainingError("Expected a model that knows how it is fed, got one without. Set model.pretrained first.")
    names = set(learning(model, unfreeze_last))
    config = model.config.to_dict()
    # What is no part of the trunk: other values of these leave its rows as they are.
    ignored = ["depth", "classes", "dropout", "attention_dropout", "path_dropout"]
    ignored += ["pooling", "norm_pooled"] if unfreeze_last else []
    made_by = {
        "weights": fingerprint(model, [one for one in model.state_dict() if not _lies_in(one, names)]),
        "sizes": {key: value for key, value in config.items() if key not in ignored},
        "first": model.config.depth - unfreeze_last,
        "read": unfreeze_last == 0,
        "mean": about.preprocess.mean,
        "std": about.preprocess.std,
        "cast": str(cast),
    }
    device = next(model.parameters()).device

    def compute(pixels: Tensor) -> Tensor:
        images = normalised(pixels.to(device, non_blocking=True), about.preprocess)
        # Said in any case: the numbers must not depend on a caller's autocast, which the file's name does not know.
        with _asleep(model), torch.autocast(device.type, cast, enabled=cast is not None):
            return trunk(model, images, unfreeze_last)

    return open_rows(
        compute, made_by, split, size, Path(folder), name=name, dtype=dtype, batch=batch, progress=progress
    )


def open_answers(
    teacher: Teacher,
    split: Split,
    size: tuple[int, int],
    folder: str | os.PathLike[str],
    *,
    name: str,
    batch: int = 64,
    progress: bool = True,
) -> Rows:
    """A teacher's logits (C,) for every image of a split, kept in float32 as `open_features` keeps a trunk's rows.

    Raises:
        TrainingError: if the disk is full, or the teacher answers with NaN.
    """
    device = next(teacher.model.parameters()).device

    def compute(pixels: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            return teacher(pixels.to(device, non_blocking=True))

    made_by = {"teacher": teacher.fingerprint()}
    return open_rows(
        compute, made_by, split, size, Path(folder), name=name, dtype=torch.float32, batch=batch, progress=progress
    )


@contextmanager
def _asleep(model: ViT) -> Iterator[None]:
    """Within, the model is in eval mode; afterwards each of its modules is as it was."""
    awake = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in awake:
            module.training = True


def _hands_over_tokens(model: ViT) -> bool:
    """Whether classifiers that learn alone read all tokens: attention pooling learns with them."""
    return model.attn_pool is not None


def _lies_in(parameter: str, modules: set[str]) -> bool:
    return any(parameter.startswith(f"{module}.") for module in modules)


def _need_classifier(model: ViT) -> None:
    if model.head is None:
        raise TrainingError("Expected a model with a classifier, got one without. Give it one with start_from.")
