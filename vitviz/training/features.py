"""Cache the features of a frozen backbone for each image of a split in a file.

The file contains only the float16 rows in order, and is memory-mapped. While incomplete, it has the suffix .part, and
its length gives the progress. Its name has a hash of everything that the features depend on.
"""

import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitviz.model.vit import ViT, eval_mode
from vitviz.progress import bar
from vitviz.training import TrainingError
from vitviz.training.data import Data
from vitviz.training.loaders import Images, normalize
from vitviz.training.network import backbone_features, learning_modules
from vitviz.weights.checkpoint import fingerprint
from vitviz.writing import full_disk_explained

BATCH = 64


class FeatureCache:
    """Memory-mapped features of every image of a split; missing features are computed.

    Args:
        model: model with `pretrained`; runs on its device in eval mode.
        data: the data set.
        name: "train" or "val".
        folder: cache folder, created if missing.
        unfreeze_last: number of trained blocks, as in `Network`.
        cast: precision of matrix products (autocast), as in training; `None` for float32.
        progress: show progress on standard error.

    Raises:
        TrainingError: if a feature is not finite in float16.
        WritingError: if the disk is full; the features computed so far are kept.
    """

    def __init__(
        self, model: ViT, data: Data, name: str, folder: Path, *, unfreeze_last: int, cast: torch.dtype | None,
        progress: bool,
    ) -> None:  # fmt: skip
        assert model.pretrained is not None
        self.model, self.unfreeze_last, self.cast = model, unfreeze_last, cast
        self.preprocess, self.split = model.pretrained.preprocess, getattr(data, name)
        learning = tuple(f"{module}." for module in learning_modules(model, unfreeze_last))
        ignored = ("classes", "dropout", "attention_dropout", "path_dropout")  # these do not change the features
        facts = {
            "weights": fingerprint(model, [key for key in model.state_dict() if not key.startswith(learning)]),
            "config": {key: value for key, value in model.config.to_dict().items() if key not in ignored},
            "unfreeze_last": unfreeze_last,
            "preprocess": self.preprocess.to_dict(),
            "cast": str(cast),
            "images": data.fingerprint,
        }
        key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=10).hexdigest()
        path = folder / f"{name}-{key}.features"
        folder.mkdir(parents=True, exist_ok=True)
        with eval_mode(model):
            self.shape = (len(self.split), *self._compute(self.split.read(torch.zeros(1, dtype=torch.long))).shape[1:])
            if not path.exists():
                self._fill(path, name if progress else None)
        self.rows = np.memmap(path, np.float16, mode="r", shape=self.shape)

    def read(self, indices: Tensor) -> Tensor:
        """Return float32 rows: indices (k,) -> (k, N, D) or (k, R)."""
        return torch.from_numpy(self.rows[indices.numpy()].astype(np.float32))

    def _compute(self, pixels: Tensor) -> Tensor:
        """Compute features (k, ...) float16 of pixels (k, 3, H, W) uint8."""
        device = next(self.model.parameters()).device
        images = normalize(pixels.to(device).float().div_(255), self.preprocess)
        with torch.autocast(device.type, self.cast, enabled=self.cast is not None):
            return backbone_features(self.model, images, self.unfreeze_last).to("cpu", torch.float16)

    def _fill(self, path: Path, title: str | None) -> None:
        """Compute the missing rows of the .part file, then rename it."""
        part, row, total = path.with_suffix(".part"), 2 * math.prod(self.shape[1:]), self.shape[0]
        done = part.stat().st_size // row if part.exists() else 0
        keys = [(0, indices) for indices in torch.arange(done, total).split(BATCH) if len(indices)]
        shown = bar(total, f"features of {title}", initial=done, show=title is not None)
        with full_disk_explained(path, needed=total * row):
            with part.open("ab") as file, shown as counted:
                file.truncate(done * row)
                for pixels, _ in Images(self.split).load(keys, torch.device("cpu")):
                    rows = self._compute(pixels)
                    if not rows.isfinite().all():
                        raise TrainingError(
                            f"Expected finite features, got NaN or infinity from image {file.tell() // row} on. Check "
                            "the weights, or keep no features (--freeze none)."
                        )
                    file.write(rows.numpy().data)
                    file.flush()
                    counted.update(len(rows))
            os.replace(part, path)
