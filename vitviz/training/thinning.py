"""PatchDropout: each training image goes without some of its patches, other ones each time (Liu et al. 2022).

A step costs as much as the tokens that are left, so half of the patches buy nearly twice the epochs, and what is left
out keeps a small data set from being learnt by heart. The last fifth of the training sees every patch, as predictions
do (Li et al. 2023, "FLIP", section 3: unmasked tuning).

As in `depth`, all images of a step draw at once, from the step's own seed: the result does not depend on how a batch is
divided among processes and parts.

Shapes: G images in a step, k of them in a part, n patches, K of them kept, P prefix tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.edits import Angles, Edits

WHOLE_FROM = 0.8  # the share of the training after which images are whole


class Thinning:
    """Which patches the images that run now keep.

    Args:
        rate: the share of the patches that each image goes without, 0..1; one patch stays in any case.
        patches: n, of an image.
    """

    def __init__(self, rate: float, patches: int) -> None:
        self.patches, self.kept = patches, max(1, round((1.0 - rate) * patches))
        self._step: Tensor | None = None  # (G, K)
        self.part: Tensor | None = None  # (k, K), in any order; `None` where all stay

    def draw(self, seed: int, images: int, done: float = 0.0) -> None:
        """For all images of a step, when so much of the training is done: 0..1."""
        if done >= WHOLE_FROM:
            self._step = None
            return
        numbers = torch.rand(images, self.patches, generator=torch.Generator().manual_seed(seed))
        self._step = numbers.topk(self.kept, sorted=False).indices

    def take(self, images: slice, _device: torch.device) -> None:
        """Those images of the step are next. Their patches stay on the CPU: `Edits` looks at them, then sends them."""
        self.part = None if self._step is None else self._step[images]

    def __call__(self, tokens: Tensor, angles: Angles | None, config: ViTConfig) -> tuple[Tensor, Angles | None]:
        """What enters the first block: (k, P + n, D) -> (k, P + K, D), and the rotations of what is left."""
        if self.part is None:
            return tokens, angles
        return Edits(keep=self.part).gather(tokens, angles, config)
