"""What a training has led to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitviz.model import ViT
from vitviz.training.log import Epoch
from vitviz.training.recipes import Recipe


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """What a training has led to.

    Args:
        model: with the last weights, or their running mean where the recipe has one; in eval mode, on its device.
        recipe: what it was trained with.
        epochs: one row each: see `vitviz.training.log.Epoch`.
        losses: (steps,) float32, the loss of every step, the mean over the whole batch.
        top1, top5: shares of the validation images, 0..1, after the last epoch.
        val_loss: cross entropy on the validation images after the last epoch.
        confusion: (C, C) int64, validation images by class (rows) and by the class that was answered (columns).
        seconds: of training, validation and what was computed once, over all sessions.
        device: in words, such as "CPU, 2 threads" or "NVIDIA H200".
        processes: how many trained together.
        notes: sentences that the model card should have, such as how many images of an epoch are left over.
    """

    model: ViT
    recipe: Recipe
    epochs: tuple[Epoch, ...]
    losses: Tensor
    top1: float
    top5: float
    val_loss: float
    confusion: Tensor
    seconds: float
    device: str
    processes: int
    notes: tuple[str, ...] = ()

    @property
    def per_class(self) -> Tensor:
        """(C,), the share of each class's validation images that are answered rightly."""
        counts = self.confusion.sum(dim=1)
        return self.confusion.diagonal() / counts.clamp_min(1)


def device_words(device: torch.device) -> str:
    """A device as people call it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads != 1)}"
