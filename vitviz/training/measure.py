"""How good a network is on the validation images: loss, top-1, top-5, and which classes it takes for which.

Shapes: n images, k of them at once, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.training import TrainingError
from vitviz.training.feed import Feed
from vitviz.training.losses import predicted, soft_cross_entropy


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """What a validation found.

    Args:
        loss: cross entropy with the true classes, not smoothed, the mean over the images.
        top5: share of the images whose class is among the five most probable (all, where there are fewer), 0..1.
        confusion: (C, C) int64, images by class (rows) and by the class that was answered (columns).
    """

    loss: float
    top5: float
    confusion: Tensor

    @property
    def top1(self) -> float:
        """Share of the images whose most probable class is the right one, 0..1."""
        return int(self.confusion.diagonal().sum()) / max(1, int(self.confusion.sum()))


@torch.no_grad()
def measure(
    network: nn.Module,
    feed: Feed,
    cast: Callable[[], AbstractContextManager[Any]],
    watch: Callable[[int], object] = lambda _done: None,
) -> Measured:
    """Show a network all validation images; each process looks at its share of them, and all learn the result.

    Args:
        network: inputs -> logits (k, C) of each classifier; in eval mode while it runs here.
        feed: of the images.
        cast: what the precision of a forward pass is, as a context.
        watch: is told how many images of this process are done.

    Raises:
        TrainingError: if it answers with NaN.
    """
    count, device, done = feed.classes, feed.device, 0
    table = torch.zeros(count * count, dtype=torch.long, device=device)
    # MPS has no float64. Sums of losses need none there: float32 keeps seven digits of some thousand batches.
    sums = torch.zeros(2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    training = network.training
    network.eval()
    try:
        for batch in feed.val():
            with cast():
                logits = predicted(network(batch.inputs)).float()  # (k, C)
            true = batch.targets.argmax(dim=1)
            best = logits.topk(min(5, count)).indices  # (k, 5)
            table += (true * count + best[:, 0]).bincount(minlength=count * count)
            among = (best == true[:, None]).any(dim=1).sum()
            sums += torch.stack([soft_cross_entropy(logits, batch.targets) * len(batch), among.float()]).to(sums.dtype)
            done += len(batch)
            watch(done)
    finally:
        network.train(training)
    loss, right5 = (feed.world.total(sums) / len(feed.data.val)).tolist()
    if loss != loss:
        raise TrainingError("The model answers validation images with NaN: its weights or its precision are at fault.")
    confusion = feed.world.total(table).reshape(count, count).cpu()  # (C * C,) -> (C, C)
    return Measured(loss=loss, top5=right5, confusion=confusion)
