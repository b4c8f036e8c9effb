"""Compute losses: cross entropy with label smoothing, and distillation from a teacher.

Szegedy et al. 2016, "Rethinking the Inception Architecture" (label smoothing, section 7); Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network" (soft targets); Touvron et al. 2021, "Training data-efficient image
transformers" (hard targets, the distillation token's own classifier).

Shapes: B images, C classes. Every loss is the mean over the batch, in float32.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from vitviz.training.network import mean_logits
from vitviz.training.recipes import Recipe


def training_loss(heads: Sequence[Tensor], targets: Tensor, recipe: Recipe, teacher: Tensor | None = None) -> Tensor:
    """Return the scalar loss of a batch.

    Args:
        heads: logits (B, C) of each classifier, from `ViT.classifier_logits`. The first learns from the targets, the
            last from the teacher.
        targets: (B, C), each row summing to 1.
        recipe: settings of label smoothing and distillation.
        teacher: logits (B, C) of the teacher in the same order of classes, for distillation.
    """
    if teacher is None:
        return F.cross_entropy(mean_logits(heads).float(), targets, label_smoothing=recipe.smoothing)
    labeled = F.cross_entropy(heads[0].float(), targets, label_smoothing=recipe.smoothing)
    if recipe.distill == "soft":
        distilled = soft_distillation(heads[-1], teacher, recipe.temperature)
    else:
        distilled = F.cross_entropy(heads[-1].float(), teacher.argmax(dim=1))
    return (1.0 - recipe.teacher_share) * labeled + recipe.teacher_share * distilled


def soft_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T² KL(softmax(teacher / T) || softmax(student / T)): Hinton et al. 2015, section 2; DeiT, equation 2.

    Logits are (B, C). T² keeps the scale of the gradients independent of T; a higher T gives more weight to improbable
    classes.
    """
    student, teacher = ((logits.float() / temperature).log_softmax(dim=1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
