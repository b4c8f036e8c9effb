"""Check the deletion test against the pixel flipping of Quantus, with the same order and the same baseline.

    pip install quantus
    python benchmarks/quantus.py photos                       # vit-cifar10, one photograph of each of six classes

Both replace patches by zero, the mean color of the training data, an eighth of the patches in each step, those with the
highest scores first. Patches with equal scores have the same order in both. The script compares the probability of the
predicted class.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.attribution.registry import score_patches
from vitviz.evaluation.faithfulness import SEED, faithfulness, rank_patches
from vitviz.images.decoding import decode

METHODS = ("attn_lrp", "gae", "token_gradcam", "legrad", "rollout", "attention")
STEPS = 8


class Masked(torch.nn.Module):
    """A model whose input is a mask (1, 1, H, W), by which the pixels of a photograph are multiplied."""

    def __init__(self, model: vitviz.ViT, images: torch.Tensor) -> None:
        super().__init__()
        self.model, self.images = model, images

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.model(mask * self.images)
        return logits


def main() -> None:
    """Print the largest difference of a probability, and the mean probability of each method in both libraries."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="FOLDER/CLASS/image")
    parser.add_argument("--model", default="vit-cifar10", help="a model with a fixed, square input")
    parser.add_argument("--classes", type=int, default=6)
    args = parser.parse_args()
    quantus, model = import_module("quantus"), vitviz.load(args.model)
    curves: dict[str, list[list[np.ndarray]]] = {
        name: [] for name in METHODS
    }  # of vitviz and of Quantus, for each photograph
    for folder in sorted(args.folder.iterdir())[: args.classes]:
        images = torch.from_numpy(model.pretrained.preprocess(decode(min(folder.iterdir()))).pixels)[None]
        target, patch = int(model(images).argmax()), model.config.patch_size
        for name in METHODS:
            scores = score_patches(model, images, target, name).flatten(1)  # (1, n)
            order, places = rank_patches(scores, SEED), torch.arange(scores.shape[1], 0.0, -1.0)[None]
            ranks = torch.zeros_like(places).scatter(1, order, places).unflatten(1, model.check(images))  # (1, gh, gw)
            (test,) = faithfulness(model, images, ranks, target, baseline="zero", steps=STEPS, random=1)
            pixels = ranks.repeat_interleave(patch, 1).repeat_interleave(patch, 2)[None].numpy()  # (1, 1, H, W)
            flip = quantus.PixelFlipping(
                features_in_step=pixels.size // STEPS, perturb_baseline=0.0, normalise=False, abs=False,
                disable_warnings=True,
            )  # fmt: skip
            theirs = flip(Masked(model, images).eval(), np.ones_like(pixels), np.array([target]), pixels, device="cpu")
            curves[name].append([test.deletion.probabilities[1:], np.ravel(theirs[0])])
    rows = {name: np.array(values) for name, values in curves.items()}  # (photographs, 2, steps)
    print(f"largest difference: {max(abs(values[:, 0] - values[:, 1]).max() for values in rows.values()):.1e}")
    for index, title in enumerate(("vitviz", f"Quantus {quantus.__version__}")):
        means = {name: values[:, index].mean() for name, values in rows.items()}
        print(title, ", ".join(f"{name} {means[name]:.4f}" for name in sorted(means, key=means.__getitem__)))


if __name__ == "__main__":
    main()
