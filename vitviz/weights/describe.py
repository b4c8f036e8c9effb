"""Describe weights: labels, preprocessing, origin, and which of these are assumed."""

from collections.abc import Sequence
from typing import Any

from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained


def describe(
    name: str,
    preprocess: Preprocess,
    classes: int,
    labels: Sequence[str] = (),
    *,
    known: bool = True,
    labels_of: str = "",
    assumed: Sequence[str] = (),
    **facts: Any,
) -> Pretrained:
    """Return metadata of weights, with what is assumed of them. Classes without labels are numbered.

    Args:
        name: display name.
        preprocess: the preprocessing.
        classes: number of classes that need labels; 0 for a model without a classifier, or with features as outputs.
        labels: names of the classes.
        known: whether the preprocessing is the model's own.
        labels_of: whose labels these are, if they may not be the model's.
        assumed: further assumptions.
        facts: other fields of `Pretrained`.
    """
    notes = [] if known else [f"preprocessing: {preprocess.describe()}"]
    if labels and labels_of:
        notes.append(f"labels: the {len(labels):,} of {labels_of}")
    elif classes == 1 and not labels:  # regression, as in transformers
        labels = ("value",)
        notes.append("labels: value, because the model does not name its only output")
    elif classes and not labels:
        labels = [f"class {index}" for index in range(classes)]
        notes.append("labels: class 0, class 1, ..., because the model does not name the classes of its classifier")
    return Pretrained(name=name, preprocess=preprocess, labels=tuple(labels), assumed=(*notes, *assumed), **facts)
