"""A teacher: a classifier that answers in its student's classes, for distillation."""

from __future__ import annotations

import hashlib
import json

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.weights.checkpoint import fingerprint


class Teacher:
    """A classifier that is asked and never trained.

    It may know more classes than its student (an ImageNet model teaches Imagenette), and be fed otherwise: it is
    given the student's pixels before they are normalised, and brings them to its own size.

    Args:
        model: a classifier with `pretrained`; it is put into eval mode and stays where it is.
        student: of the model that learns; its classes are looked up among the teacher's.

    Raises:
        TrainingError: if the teacher has no classifier or lacks a class of the student.
    """

    def __init__(self, model: ViT, student: Pretrained) -> None:
        about = model.pretrained
        if about is None or not about.labels:
            raise TrainingError("Expected a teacher with a classifier and labels for its classes, got one without.")
        self.model, self.preprocess = model.eval(), about.preprocess
        self.columns = class_columns(about, student)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255, (B, 3, H, W) -> logits (B, C) in the order of the student's classes."""
        size = self.model.config.image_size
        images = pixels.float() / 255
        if tuple(images.shape[2:]) != size:
            images = F.interpolate(images, size=size, mode="bicubic", antialias=True)
        settings = (self.preprocess.mean, self.preprocess.std)
        mean, std = (torch.tensor(v, device=images.device)[:, None, None] for v in settings)
        logits: Tensor = self.model((images - mean) / std)  # (B, all of its classes)
        return logits if self.columns is None else logits[:, self.columns.to(logits.device)]

    def fingerprint(self) -> str:
        """Its answers as a few letters: other weights, another order of classes or other normalisation, others."""
        columns = None if self.columns is None else self.columns.tolist()
        settings = [fingerprint(self.model), columns, self.preprocess.mean, self.preprocess.std]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()


def class_columns(teacher: Pretrained, student: Pretrained) -> Tensor | None:
    """For each of the student's classes (C,), its place among the teacher's; `None` where they are the same.

    Class ids are compared where both have them, else labels, without regard to case.

    Raises:
        TrainingError: naming the classes that the teacher does not have, or has more than once.
    """
    by_id = bool(teacher.class_ids and student.class_ids)
    wanted, there = ((a.class_ids if by_id else a.labels) for a in (student, teacher))
    places: dict[str, list[int]] = {}
    for index, label in enumerate(there):
        places.setdefault(label.casefold(), []).append(index)
    found = [places.get(label.casefold(), []) for label in wanted]
    if wrong := [label for label, at in zip(wanted, found, strict=True) if len(at) != 1]:
        what = "class ids" if by_id else "labels"
        raise TrainingError(
            f"Expected a teacher that has each of the student's {len(wanted)} classes once, by their {what}; it does "
            f"not for {', '.join(map(repr, wrong[:5]))}{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}. "
            "Choose a teacher that was trained on these classes."
        )
    columns = [at[0] for at in found]
    return None if columns == list(range(len(there))) else torch.tensor(columns)
