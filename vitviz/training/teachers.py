"""Teachers: classifiers of any kind that a student learns from.

Touvron et al. 2021, "Training data-efficient image transformers", whose teacher was a convolutional network. Shapes: B
images, C classes of the student.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.images.folders import class_names
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.loaders import normalize
from vitviz.weights.remote import load_classifier
from vitviz.weights.zoo import bundled, load

_NO_VIT_WIDTH = 512  # of a network of another kind: how wide it counts when threads are dealt out


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier that is no `ViT`, with what `Pretrained` says of one.

    Args:
        network: normalized images (B, 3, H, W) -> logits.
        pretrained: its labels, in the order of the logits, and its preprocessing.
    """

    network: nn.Module
    pretrained: Pretrained


def load_teacher(source: str) -> ViT | Classifier:
    """Load a teacher: what `vitviz.load` takes, or any classifier as torchvision:NAME or timm:NAME.

    Raises:
        RemoteError: if a library does not have it, or it is neither cached nor can be reached.
        CheckpointError: if it is no model.
    """
    library, colon, name = source.partition(":")
    if colon and library in ("torchvision", "timm") and source not in bundled():
        return Classifier(*load_classifier(library, name))
    return load(source)


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

    def __init__(self, model: ViT | Classifier, student: Pretrained) -> None:
        about = model.pretrained
        if about is None or not about.labels:
            raise TrainingError("Expected a teacher with a classifier and labels, got one without. Choose another.")
        network = model.network if isinstance(model, Classifier) else model
        self.model, self.preprocess = network.eval(), about.preprocess
        self.size = (
            model.config.image_size if isinstance(model, ViT) else (self.preprocess.height, self.preprocess.width)
        )
        self.width = model.config.width if isinstance(model, ViT) else _NO_VIT_WIDTH
        self.columns = class_columns(about, student)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return logits (B, C) in the order of the student's classes, for images (B, 3, H, W) in 0..1."""
        if tuple(images.shape[2:]) != self.size:
            images = F.interpolate(images, size=self.size, mode="bicubic", antialias=True)
        logits: Tensor = self.model(normalize(images, self.preprocess))  # (B, all of its classes)
        return logits[:, self.columns]

    def fingerprint(self) -> str:
        """Return a hash of its weights, classes and preprocessing."""
        digest = hashlib.blake2b(repr((self.columns, self.preprocess)).encode(), digest_size=12)
        weights: Mapping[str, Any] = self.model.state_dict()
        for name, one in weights.items():
            digest.update(f"{name} {one.dtype}".encode())
            digest.update(one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


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
