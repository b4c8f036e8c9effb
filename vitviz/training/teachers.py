"""Load teachers for distillation: classifiers of any kind.

Touvron et al. 2021, "Training data-efficient image transformers", whose teacher was a convolutional network. Shapes: B
images, C classes of the student.
"""

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.formatting import abbreviate
from vitviz.images.folders import class_names
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.loaders import normalize
from vitviz.weights.checkpoint import add_weights
from vitviz.weights.remote import load_classifier
from vitviz.weights.zoo import bundled, load

_NO_VIT_WIDTH = 512  # assumed width of other networks when choosing threads


@dataclass(frozen=True, eq=False)
class Classifier:
    """Classifier other than `ViT`, with its metadata.

    Args:
        network: normalized images (B, 3, H, W) -> logits.
        pretrained: labels in the order of the logits, and preprocessing.
    """

    network: nn.Module
    pretrained: Pretrained


def load_teacher(source: str) -> ViT | Classifier:
    """Load a teacher from a source of `vitviz.load`, or any classifier as torchvision:NAME or timm:NAME.

    Raises:
        RemoteError: if the library lacks the model, or the model is neither cached nor available for download.
        CheckpointError: if the source is not a model.
    """
    library, colon, name = source.partition(":")
    if colon and library in ("torchvision", "timm") and source not in bundled():
        return Classifier(*load_classifier(library, name))
    return load(source)


class Teacher:
    """Frozen classifier that predicts its student's classes.

    It may know more classes than its student (an ImageNet model can teach Imagenette), and use another input size and
    normalization.

    Args:
        model: a classifier with `pretrained`; put into eval mode.
        student: metadata of the student, whose classes the teacher must know.

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
        logits: Tensor = self.model(normalize(images, self.preprocess))  # (B, all classes)
        return logits[:, self.columns]

    def fingerprint(self) -> str:
        """Return a hash of weights, classes and preprocessing."""
        digest = hashlib.blake2b(repr((self.columns, self.preprocess)).encode(), digest_size=12)
        add_weights(digest, self.model.state_dict())
        return digest.hexdigest()


def class_columns(teacher: Pretrained, student: Pretrained) -> list[int]:
    """Return the teacher's index of each of the student's C classes, by class id or else by label.

    Case is ignored, and ambiguous labels do not match.

    Raises:
        TrainingError: if the teacher lacks classes (the message lists them).
    """
    known = {_folded(name): index for name, index in class_names(teacher.labels, teacher.class_ids).items()}
    ids = student.class_ids or student.labels
    places = [
        known.get(_folded(class_id), known.get(_folded(label)))
        for class_id, label in zip(ids, student.labels, strict=True)
    ]
    if missing := [label for label, place in zip(student.labels, places, strict=True) if place is None]:
        raise TrainingError(
            f"Expected a teacher with each of the student's {len(places)} classes, got one without "
            f"{abbreviate([*map(repr, missing)], 5)}. Choose a teacher trained on these classes."
        )
    return [place for place in places if place is not None]


def _folded(name: str) -> str:
    return name.casefold().replace("_", " ")
