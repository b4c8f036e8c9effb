"""Predict from images with only some patches visible.

Shapes: B images, N tokens = P prefix tokens followed by n = gh x gw patches, D width, C classes, R masked images.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitviz.analysis.interventions import Drop, check_runs, hidden_grid
from vitviz.attribution.baselines import baseline_images, pixel_mask
from vitviz.evaluation import EvaluationError
from vitviz.model.vit import ViT

Progress = Callable[[int, int], None]

# Tokens per batch: on a CPU, a batch should fit the cache; on a GPU, larger batches are faster.
CPU_TOKENS, TOKENS = 4096, 65_536


def usual_baseline(model: ViT) -> Drop:
    """Return "remove", or "blur" for models that cannot run without some patches."""
    return "remove" if model.removes_patches else "blur"


class MaskedModel:
    """Model that computes logits or features from the visible patches of images.

    With the baseline "remove", images are embedded once, and the blocks run on the tokens of the visible patches. The
    other baselines paint over the pixels (`baseline_images`) and run the whole image. In windowed models, they paint
    over patches of the last stage.

    Args:
        model: model in eval mode; not changed.
        images: (B, channels, H, W) normalised pixels.
        baseline: "remove", "blur", "mean", "zero" or "black".
        features: whether to read the features, (B, F), instead of the logits, (B, C).

    Attributes:
        grid: (gh, gw).
        patches: n.
        least: smallest number of visible patches: 1 if the model pools only patches, else 0.

    Raises:
        AnalysisError: for logits of a model without a classifier, for a model in training mode, or for an unknown
            baseline.
        ExplainError: for "black" with a model without preprocessing.
    """

    def __init__(self, model: ViT, images: Tensor, baseline: Drop = "remove", *, features: bool = False) -> None:
        check_runs(model, baseline, features=features)
        self.model, self.baseline, self.features = model, baseline, features
        self.images = images.to(next(model.parameters()).device)
        grid = model.check(self.images)
        self.grid, self._patch_size = hidden_grid(model, self.images)
        self.patches, self._input_patches = self.grid[0] * self.grid[1], grid[0] * grid[1]
        self.least = int(baseline == "remove" and (not model.config.prefix or "mean" in model.config.pooling))
        with torch.no_grad():
            if baseline == "remove":
                self._tokens, _ = model.embed(self.images)  # (B, N, D)
                self._angles = model.angles(grid)  # of all patches, or none
            else:
                self._behind = baseline_images(model, self.images, baseline, self._patch_size)

    def unmasked(self) -> Tensor:
        """Return the outputs of the whole images: (B, C) or (B, F), float64, on the CPU."""
        batch = len(self.images)
        return self.outputs(torch.ones(batch, self.patches, dtype=torch.bool), torch.arange(batch))

    def outputs(self, visible: Tensor, image: Tensor, progress: Progress | None = None) -> Tensor:
        """Return the logits or features of masked images.

        Duplicates run once, and equal numbers of visible patches run together.

        Args:
            visible: (R, n) bools.
            image: (R,), index of each image, from 0.
            progress: called with (completed, total) masked images.

        Returns:
            Logits (R, C) or features (R, F), float64, on the CPU.

        Raises:
            EvaluationError: if fewer than `least` patches are visible, or outputs are NaN or infinite.
        """
        if visible.dtype != torch.bool or visible.ndim != 2 or visible.shape[1] != self.patches:
            raise EvaluationError(
                f"Expected bools (R, {self.patches}), got {visible.dtype} {tuple(visible.shape)}. Give a row per mask."
            )
        if int(visible.sum(1).min()) < self.least:
            raise EvaluationError(
                "Expected at least one visible patch for a model that pools patches, got none. Choose another "
                "baseline, such as blur, or show one."
            )
        rows, inverse = torch.unique(
            torch.cat([image.cpu()[:, None], visible.cpu().long()], dim=1), dim=0, return_inverse=True
        )
        image, visible = rows[:, 0], rows[:, 1:].bool()
        outputs_of: dict[int, Tensor] = {}
        for indices in self._batches(visible.sum(1)):
            with torch.no_grad():
                batch_outputs = self._run(visible[indices], image[indices]).cpu().double()  # (r, C) or (r, F)
            outputs_of.update(zip(indices.tolist(), batch_outputs, strict=True))
            if progress is not None:
                progress(len(outputs_of), len(rows))
        outputs = torch.stack([outputs_of[index] for index in range(len(rows))])
        if not bool(outputs.isfinite().all()):
            raise EvaluationError("Expected finite outputs, got NaN or infinity. Check the weights and precision.")
        return outputs[inverse]

    def _batches(self, counts: Tensor) -> Iterator[Tensor]:
        """Yield indices of masked images per batch, with equal sequence length and a limited number of tokens."""
        most = CPU_TOKENS if self.images.device.type == "cpu" else TOKENS
        if self.baseline != "remove":
            counts = torch.full_like(counts, self._input_patches)
        for count in counts.unique().tolist():
            tokens = max(1, len(self.model.config.prefix) + count)
            yield from (counts == count).nonzero().flatten().split(max(1, most // tokens))

    def _run(self, visible: Tensor, image: Tensor) -> Tensor:
        """Return the outputs of one batch of masked images: visible (r, n), image (r,)."""
        image, visible = image.to(self.images.device), visible.to(self.images.device)
        if self.baseline != "remove":
            mask = pixel_mask(visible.unflatten(1, self.grid), self._patch_size)  # (r, 1, H, W)
            painted = torch.where(mask, self.images[image], self._behind[image])
            return self.model.features(painted) if self.features else self.model(painted)
        keep = visible.nonzero()[:, 1].reshape(len(visible), int(visible[0].sum()))  # (r, K)
        prefix = torch.arange(len(self.model.config.prefix), device=keep.device).expand(len(keep), -1)  # (r, P)
        tokens = self._tokens[image[:, None], torch.cat([prefix, keep + prefix.shape[1]], dim=1)]  # (r, P + K, D)
        angles = self._angles
        if angles is not None:
            angles = angles.keep(keep)
        encoded = self.model.encode(tokens, angles)
        return self.model.read_out(encoded) if self.features else self.model.classify(encoded)
