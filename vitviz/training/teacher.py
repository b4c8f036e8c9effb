"""A teacher: a classifier that answers in its student's classes, for distillation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

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

    Class ids are compared where the teacher knows one of the student's (a folder's ids are its names, not ImageNet's),
    else labels, without regard to case.

    Raises:
        TrainingError: naming the classes that the teacher does not have, or that are not told apart.
    """
    there, wanted = _plain(teacher.class_ids), _plain(student.class_ids)
    by_id = not set(there).isdisjoint(wanted)
    if not by_id:
        there, wanted = _plain(teacher.labels), _plain(student.labels)
    names = student.class_ids if by_id else student.labels
    if wrong := [name for name, one in zip(names, wanted, strict=True) if there.count(one) * wanted.count(one) != 1]:
        raise TrainingError(
            f"Expected a teacher that has each of the student's {len(wanted)} classes once, by their "
            f"{'class ids' if by_id else 'labels'}; it does not for {', '.join(map(repr, wrong[:5]))}"
            f"{f' and {len(wrong) - 5} more' if len(wrong) > 5 else ''}. Choose a teacher "
            "that was trained on these classes."
        )
    columns = [there.index(one) for one in wanted]
    return None if columns == list(range(len(there))) else torch.tensor(columns)


def _plain(names: Sequence[str]) -> list[str]:
    return [name.casefold().replace("_", " ") for name in names]
