"""Losses: cross entropy with label smoothing, and distillation from a teacher.

Szegedy et al. 2016, "Rethinking the Inception Architecture" (label smoothing, section 7); Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network" (soft targets); Touvron et al. 2021, "Training data-efficient image
transformers" (hard targets, the distillation token's own classifier).

Shapes: B images, C classes. Every loss is the mean over the batch, in float32 whatever the logits are in.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.images.folders import class_names
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.loaders import normalize
from vitviz.training.network import mean_logits
from vitviz.training.recipes import Recipe


def training_loss(heads: Sequence[Tensor], targets: Tensor, recipe: Recipe, teacher: Tensor | None = None) -> Tensor:
    """Return the loss of a batch, a scalar.

    Args:
        heads: logits (B, C) of each classifier, as `ViT.heads_logits` gives them. The first learns from the targets,
            the last from the teacher.
        targets: (B, C), each row summing to 1.
        recipe: label smoothing, and how to learn from a teacher.
        teacher: its logits (B, C), in the same order of classes; for distillation only.
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

    Of logits (B, C). The square keeps the size of the gradients whatever T is; the higher, the more improbable classes
    count.
    """
    student, teacher = ((logits.float() / temperature).log_softmax(dim=1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


class Teacher:
    """A classifier that predicts its student's classes and is not trained.

    It may know more classes than its student (an ImageNet model teaches Imagenette), at another input size and
    normalization.

    Args:
        model: a classifier with `pretrained`; it is put into eval mode.
        student: of the model that learns; its classes are looked up among the teacher's.

    Raises:
        TrainingError: if the teacher has no classifier or lacks a class of the student.
    """

    def __init__(self, model: ViT, student: Pretrained) -> None:
        about = model.pretrained
        if about is None or not about.labels:
            raise TrainingError("Expected a teacher with a classifier and labels, got one without. Choose another.")
        self.model, self.preprocess = model.eval(), about.preprocess
        self.columns = class_columns(about, student)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return logits (B, C) in the order of the student's classes, for images (B, 3, H, W) in 0..1."""
        size = self.model.config.image_size
        if tuple(images.shape[2:]) != size:
            images = F.interpolate(images, size=size, mode="bicubic", antialias=True)
        logits: Tensor = self.model(normalize(images, self.preprocess))  # (B, all of its classes)
        return logits[:, self.columns]


def class_columns(teacher: Pretrained, student: Pretrained) -> list[int]:
    """Return the place of each of the student's C classes among the teacher's, by class id or else by label.

    Case does not count, and labels that two of the teacher's classes share are not known.

    Raises:
        TrainingError: naming the classes that the teacher lacks.
    """
    known = {_folded(name): index for name, index in class_names(teacher.labels, teacher.class_ids).items()}
    ids = student.class_ids or student.labels
    places = [
        known.get(_folded(one), known.get(_folded(label))) for one, label in zip(ids, student.labels, strict=True)
    ]
    if missing := [label for label, place in zip(student.labels, places, strict=True) if place is None]:
        raise TrainingError(
            f"Expected a teacher with each of the student's {len(places)} classes, got one without "
            f"{', '.join(map(repr, missing[:5]))}{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}. Choose "
            "a teacher trained on these classes."
        )
    return [place for place in places if place is not None]


def _folded(name: str) -> str:
    return name.casefold().replace("_", " ")
