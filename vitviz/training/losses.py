"""What training makes small: cross entropy with soft labels, and what a student learns from a teacher.

Szegedy et al. 2016, "Rethinking the Inception Architecture" (label smoothing, section 7); Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network" (soft targets); Touvron et al. 2021, "Training data-efficient image
transformers" (hard targets, and the distillation token's own classifier).

Shapes: B images, C classes. Every loss is the mean over the batch, in float32 whatever the logits are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from vitviz.training import TrainingError

Distill = Literal["none", "soft", "hard"]
"""What is learnt from a teacher: nothing, its probabilities, or its most probable class."""

SHARES: dict[Distill, float] = {"none": 0.0, "soft": 0.1, "hard": 0.5}
"""The teacher's share of the loss, as in the DeiT paper (sections 4 and 5.2)."""


def one_hot(classes: Tensor, count: int) -> Tensor:
    """Class numbers (B,) as probabilities (B, C), float32."""
    return F.one_hot(classes, count).float()


def soft_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy with probabilities as targets: the mean over the batch of -sum(targets * log softmax(logits)).

    Args:
        logits: (B, C).
        targets: (B, C), each row summing to 1, such as `one_hot` gives or mixup.
        smoothing: this share of each target is spread evenly over all C classes, its own included.

    Raises:
        TrainingError: if the shapes differ.
    """
    _same_shape(logits, targets, "targets")
    # (1 - s) t + s / C: torch smooths probabilities as it smooths class numbers.
    return F.cross_entropy(logits.float(), targets.float(), label_smoothing=smoothing)


def soft_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(softmax(teacher / T) || softmax(student / T)): Hinton et al. 2015, section 2; DeiT, equation 2.

    The square keeps the gradients' size whatever the temperature T is. DeiT's code divides by C once more, which its
    paper does not.

    Args:
        student, teacher: logits (B, C).
        temperature: above 0; the higher, the more the improbable classes count.

    Raises:
        TrainingError: if the shapes differ.
    """
    _same_shape(student, teacher, "the teacher's logits")
    learnt = F.log_softmax(student.float() / temperature, dim=1)
    known = F.log_softmax(teacher.float() / temperature, dim=1)
    return F.kl_div(learnt, known, reduction="batchmean", log_target=True) * temperature**2


def hard_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross entropy with the teacher's most probable class, not smoothed: DeiT, equation 3.

    Args:
        student, teacher: logits (B, C).

    Raises:
        TrainingError: if the shapes differ.
    """
    _same_shape(student, teacher, "the teacher's logits")
    return F.cross_entropy(student.float(), teacher.argmax(dim=1))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of a training step.

    Without a teacher it is the cross entropy of what the model predicts, the mean over its classifiers. With one it is
    (1 - alpha) cross entropy + alpha distillation; where the model has a distillation token, the class token's
    classifier gets the former and the distillation token's the latter (DeiT, section 4).

    Args:
        smoothing: of the true labels, 0..1; the teacher's are not smoothed.
        distill: what is learnt from a teacher.
        alpha: the teacher's share, 0..1; by default DeiT's, 0.1 for soft and 0.5 for hard targets.
        temperature: T of soft targets; DeiT's by default.

    Raises:
        TrainingError: for numbers out of range.
    """

    smoothing: float = 0.0
    distill: Distill = "none"
    alpha: float | None = None
    temperature: float = 3.0

    def __post_init__(self) -> None:
        if self.distill not in get_args(Distill):
            raise TrainingError(f"distill: expected one of {', '.join(get_args(Distill))}, got {self.distill!r}.")
        for name, value in (("smoothing", self.smoothing), ("alpha", self.share)):
            if not 0.0 <= value <= 1.0:
                raise TrainingError(f"{name} is a share: expected 0 <= {name} <= 1, got {value}.")
        if not 0.0 < self.temperature < float("inf"):
            raise TrainingError(f"temperature divides logits: expected a number above 0, got {self.temperature}.")
        if self.distill == "none" and self.alpha:
            raise TrainingError("alpha is a teacher's share of the loss, but distill is 'none'. Choose soft or hard.")

    @property
    def share(self) -> float:
        """The teacher's share of the loss, 0..1."""
        return SHARES[self.distill] if self.alpha is None else self.alpha

    def __call__(self, heads: Sequence[Tensor], targets: Tensor, teacher: Tensor | None = None) -> Tensor:
        """The loss, a scalar.

        Args:
            heads: logits (B, C) of each classifier, as `ViT.heads_logits` gives them.
            targets: (B, C), each row summing to 1.
            teacher: its logits (B, C), in the same order of classes; needed for distillation, and only then.

        Raises:
            TrainingError: if shapes differ, or there is a teacher and no distillation, or the other way round.
        """
        if (teacher is None) != (self.distill == "none"):
            came = "none came" if teacher is None else "there is one"
            raise TrainingError(f"distill={self.distill!r} and a teacher's logits go together or not at all; {came}.")
        if teacher is None:
            return soft_cross_entropy(predicted(heads), targets, self.smoothing)
        true = soft_cross_entropy(heads[0], targets, self.smoothing)
        if self.distill == "soft":
            taught = soft_distillation(heads[-1], teacher, self.temperature)
        else:
            taught = hard_distillation(heads[-1], teacher)
        return (1.0 - self.share) * true + self.share * taught


def predicted(heads: Sequence[Tensor]) -> Tensor:
    """What a model answers: the mean over its classifiers' logits, one or two of (B, C), as `ViT.classify` has it."""
    return heads[0] if len(heads) == 1 else (heads[0] + heads[1]) / 2


def _same_shape(logits: Tensor, other: Tensor, what: str) -> None:
    if logits.ndim != 2 or other.shape != logits.shape:
        raise TrainingError(
            f"Expected logits and {what} of one shape (images, classes), got {tuple(logits.shape)} and "
            f"{tuple(other.shape)}. Class numbers become probabilities with one_hot."
        )
