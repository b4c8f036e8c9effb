"""Specify targets: classes by index or label, the `TargetSpec` classes, and their spellings.

A spelling is the text form of a target for the command line, the API and addresses: `group:281,282`, `output:3`,
`unit:17`, `direction:0.1,-0.2,...`, `similar:0.1,-0.2,...`, `text:a cat`. A class is spelled as its label or index.

Shapes: B images, C outputs of the classifier, F features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.attribution.targets import LISTED, ExplainError, Kind, Target
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE, ProblemType, rank
from vitviz.phrases import Phrase, items

MAX_NUMBER = 1e6  # largest size of a direction's numbers: products of larger ones overflow in single precision
Named = int | str
"""A class: its index, or its label."""
Contrast = tuple[Named, Named]
"""Two classes (A, B): why A rather than B."""
FEATURE_TARGETS = "Unit(i), Direction(vector) or Similarity(view)"
"""Targets that need no classifier, as part of error messages."""
OTHER_MODEL = "Expected a view of the same model, got a view of another model. Open both photographs with one Explorer."


class TargetSpec(ABC):
    """Target other than a class; `str(spec)` is its spelling."""

    reads_features = False

    @abstractmethod
    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target for a batch of images.

        Raises:
            ExplainError: if the target does not fit the model's outputs or features.
        """


@dataclass(frozen=True)
class Group(TargetSpec):
    """Group of classes, whose reading is their summed probability: `Group(["cat", "dog"])`.

    Args:
        classes: their indices or labels.
    """

    classes: Sequence[Named]

    def __post_init__(self) -> None:
        classes = (self.classes,) if isinstance(self.classes, str) else tuple(self.classes)
        object.__setattr__(self, "classes", classes)
        if not self.classes:
            raise ExplainError("Expected at least one class in a group, got none. Name its classes.")

    def __str__(self) -> str:
        return f"group:{','.join(map(str, self.classes))}"

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`."""
        check_classifier(model, "a group of classes")
        if model.problem_type != SINGLE:
            raise ExplainError(
                f"Expected a model whose classes share a softmax, to add probabilities, got {model.problem_type}. "
                "Explain each output: Output(i)."
            )
        if len(self.classes) > model.config.classes:
            raise ExplainError(
                f"Expected a group of at most {model.config.classes} classes, got {len(self.classes)}. Leave some out."
            )
        indices = [class_index(model, named) for named in self.classes]
        if repeated := [named for place, named in enumerate(self.classes) if indices[place] in indices[:place]]:
            raise ExplainError(f"Expected different classes in a group, got {repeated[0]!r} twice. Leave it out once.")
        spelling = f"group:{','.join(map(str, indices))}"
        return same_target(torch.tensor(indices), "group", group_name(model, indices), spelling, batch)


@dataclass(frozen=True)
class Output(TargetSpec):
    """One output before a softmax: a label of a multi-label model, a value of a regression, or a class's logit.

    Args:
        output: its index or label.
    """

    output: Named

    def __str__(self) -> str:
        return f"output:{self.output}"

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`."""
        check_classifier(model, f"its output {self.output!r}")
        index, kind = class_index(model, self.output), model.problem_type
        name = f"the logit of {class_name(model, index)}" if kind == SINGLE else class_name(model, index)
        return same_target(torch.tensor([index]), "output", name, f"output:{index}", batch, kind)


@dataclass(frozen=True)
class Unit(TargetSpec):
    """One of the features, which are the classifier's input.

    Args:
        index: index of the feature, from 0.
    """

    index: int
    reads_features = True

    def __str__(self) -> str:
        return f"unit:{self.index}"

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`."""
        count = model.config.feature_width
        if isinstance(self.index, bool) or not isinstance(self.index, int) or not 0 <= self.index < count:
            raise ExplainError(
                f"Expected the index of a feature, 0..{count - 1}, got {self.index!r}. Choose one of them."
            )
        return same_target(
            torch.eye(count)[self.index],
            "direction",
            Phrase("unit-of-the-features", "unit {0} of the features", self.index),
            str(self),
            batch,
        )


@dataclass(frozen=True)
class Direction(TargetSpec):
    """Dot product of the features with a vector, such as the weights of a linear probe.

    Args:
        vector: F numbers, not all zero.
        name: display name.
    """

    vector: Sequence[float] = field(repr=False)
    name: str = ""
    reads_features = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "vector", as_vector(self.vector, "a direction"))
        if not 1 / MAX_NUMBER <= (largest := max(map(abs, self.vector))) <= MAX_NUMBER:
            raise ExplainError(
                f"Expected a direction whose largest number has a size from {1 / MAX_NUMBER:g} to {MAX_NUMBER:g}, got "
                f"{largest:g}. Scale it."
            )

    def __str__(self) -> str:
        return spell_vector("direction", self.vector, self.name)

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`."""
        vector = fit_vector(model, self.vector, "a direction")
        name = f"the direction {self.name}" if self.name else "a direction of the features"
        return same_target(vector, "direction", name, str(self), batch)


@dataclass(frozen=True)
class Text(TargetSpec):
    """Cosine similarity of the image's and a text's embedding, for CLIP and SigLIP: `Text("a photo of a cat")`.

    Args:
        text: the text.
    """

    text: str
    reads_features = True

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ExplainError(f"Expected a text, got {self.text!r:.60}. Write what to look for.")

    def __str__(self) -> str:
        return f"text:{self.text}"

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`.

        Raises:
            ConvertError: for a model without a text tower.
        """
        from vitviz.weights.text_tower import text_tower_of

        tower = text_tower_of(model)
        vector, matrix = tower.embed([self.text])[0].cpu(), tower.projection
        name = Phrase("the-similarity-to-text", "the similarity to “{0}”", self.text)
        target = same_target(vector, "similarity", name, str(self), batch)
        return target if matrix is None else replace(target, projection=matrix.cpu())


@dataclass(frozen=True)
class Similarity(TargetSpec):
    """Cosine similarity of the features and a fixed reference.

    Args:
        reference: a `View` of the same model, or F numbers, not all zero.
        name: display name; by default the file name of the view's photograph.
    """

    reference: Any = field(repr=False)
    name: str = ""
    model: Any = field(default=None, repr=False, compare=False)
    reads_features = True

    def __post_init__(self) -> None:
        view = self.reference if hasattr(self.reference, "features") else None
        if view is not None:
            object.__setattr__(self, "model", view.model)
            object.__setattr__(self, "name", self.name or view.name)
        vector = self.reference if view is None else view.features
        object.__setattr__(self, "reference", as_vector(vector, "a reference"))

    def __str__(self) -> str:
        return spell_vector("similar", self.reference, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle without the model."""
        return type(self), (self.reference, self.name)

    def resolve(self, model: ViT, batch: int) -> Target:
        """Return the target; see `TargetSpec.resolve`."""
        if self.model is not None and self.model is not model:
            raise ExplainError(OTHER_MODEL)
        vector = fit_vector(model, self.reference, "a reference")
        vector = torch.nn.functional.normalize(vector / vector.abs().max(), dim=0)  # squares of large numbers overflow
        name = Phrase("the-similarity-to", "the similarity to {0}", self.name or "a reference")
        return same_target(vector, "similarity", name, str(self), batch)


_NO_FEATURES = "its graphs return logits, but no features"
SPELLINGS = {
    "group": "",
    "output": "it shows probabilities",
    "unit": _NO_FEATURES,
    "direction": _NO_FEATURES,
    "similar": _NO_FEATURES,
    "text": "it has no text tower",
}
"""Words before the colon of a spelling, and why a static site cannot explain such targets; empty if it can."""
TargetOf = Named | TargetSpec
"""Target of one image."""
TargetLike = TargetOf | Target | Sequence[TargetOf] | Tensor | None
"""One target for all images, or one for each; `None` for the predicted class."""


def resolve_target(
    model: ViT,
    logits: Tensor | None,
    target: TargetLike = None,
    contrast: Contrast | None = None,
    batch: int | None = None,
) -> Target | None:
    """Return the target of a batch.

    Args:
        model: the model with these classes and features.
        logits: (B, C) of the images; may be `None` unless the predicted class is the target.
        target: a class, given by index or label, a `TargetSpec` or its spelling: for all images, or one for each; by
            default the predicted class. A `Target` is returned unchanged.
        contrast: (A, B), why A rather than B; instead of `target`.
        batch: B, if there are no logits.

    Returns:
        `None` without a classifier if no target is given.

    Raises:
        ExplainError: if a class does not exist, a target does not fit the model, the number of targets differs from the
            number of images, or both a target and a contrast are given.
    """
    if target is not None and contrast is not None:
        raise ExplainError(f"Expected a target or a contrast, got both: {target!r} and {contrast!r}. Leave one out.")
    count = len(logits) if logits is not None else batch or 1
    if contrast is not None:
        return _contrast(model, contrast, count)
    if target is None:
        return None if logits is None else _of_classes(model, rank(logits, model.problem_type)[:, 0].cpu().tolist())
    if isinstance(target, Tensor) and target.ndim == 0:
        target = int(target)
    if isinstance(target, int | np.integer | str | TargetSpec):
        return _resolve(model, target, count)
    listed = target if isinstance(target, Target) else target.tolist() if isinstance(target, Tensor) else list(target)
    given = len(listed.points) if isinstance(listed, Target) else len(listed)
    if given != count:
        raise ExplainError(f"Expected one target for each of {count} images, got {given}. Give one target per image.")
    if isinstance(listed, Target):
        return listed
    return _joined([_resolve(model, each, 1) for each in listed])


def read_spelling(model: ViT, text: str) -> TargetOf:
    """Parse a spelling; return the text itself if it has none of the `SPELLINGS`, or if it is a class label.

    Raises:
        ExplainError: if the part after the colon is invalid.
    """
    word, colon, rest = text.strip().partition(":")
    labels = model.pretrained.labels if model.pretrained else ()
    if not colon or word not in SPELLINGS or text.strip() in labels:
        return text
    if word == "group":
        return Group([part.strip() for part in rest.split(",") if part.strip()])
    if word == "output":
        return Output(rest.strip())
    if word == "text":
        return Text(rest.strip())
    numbers, _, name = rest.partition(";")
    try:
        if word == "unit":
            return Unit(int(rest))
        vector = [float(number) for number in numbers.split(",")]
    except ValueError:
        expected = "a whole number" if word == "unit" else "numbers separated by commas"
        raise ExplainError(f"Expected {word}: followed by {expected}, got {rest!r:.60}. Correct it.") from None
    return Direction(vector, name.strip()) if word == "direction" else Similarity(vector, name.strip())


def reads_features(model: ViT, target: TargetLike) -> bool:
    """Return whether a target, or the first one of several, reads the features instead of the classifier's outputs."""
    first = target
    if isinstance(target, Sequence) and not isinstance(target, str) and len(target):
        first = target[0]
    if isinstance(first, str):
        first = read_spelling(model, first)
    if isinstance(first, Target):
        return first.features
    return isinstance(first, TargetSpec) and first.reads_features


def _resolve(model: ViT, target: TargetOf, batch: int) -> Target:
    if isinstance(target, str):
        target = read_spelling(model, target)
    if isinstance(target, TargetSpec):
        return target.resolve(model, batch)
    check_classifier(model, f"the class {target!r}")
    return _of_classes(model, [class_index(model, target)] * batch)


def _of_classes(model: ViT, indices: list[int]) -> Target:
    names = tuple(class_name(model, index) for index in indices)
    return Target(torch.tensor(indices)[:, None], "class", names, model.problem_type)


def _contrast(model: ViT, contrast: Contrast, batch: int) -> Target:
    check_classifier(model, "a contrast of two classes")
    first, second = (class_index(model, named) for named in contrast)
    if first == second:
        raise ExplainError(f"Expected two different classes, got {contrast[0]!r} twice. Change one.")
    names = class_name(model, first), class_name(model, second)
    name = Phrase("aim-rather-than", "{0} rather than {1}", *names)
    return Target(torch.tensor([[first, second]] * batch), "contrast", (name,) * batch, model.problem_type)


def _joined(targets: list[Target]) -> Target:
    """Concatenate the targets of single images to the target of a batch."""
    kinds = {(target.kind, target.points.shape[1]) for target in targets}
    if len(kinds) > 1:
        described = sorted(f"{kind} of {width} numbers" for kind, width in kinds)
        raise ExplainError(f"Expected targets of one kind in a batch, got {', '.join(described)}. Run each kind alone.")
    names, spellings = (
        tuple(text for target in targets for text in getattr(target, texts)) for texts in ("names", "spellings")
    )
    points = torch.cat([target.points for target in targets])
    return replace(targets[0], points=points, names=names, spellings=spellings)


def same_target(
    points: Tensor, kind: Kind, name: str, spelling: str, batch: int, problem_type: ProblemType = SINGLE
) -> Target:
    """Return a batch with the same target for every image; `points` is that of one image, (k,) or (F,)."""
    return Target(points.expand(batch, -1), kind, (name,) * batch, problem_type, (spelling,) * batch)


def check_classifier(model: ViT, what: str) -> None:
    """Raise `ExplainError` if the model has no classifier."""
    if model.head is None:
        raise ExplainError(
            f"Expected a model with a classifier to explain {what}, got one without. Choose a target of the features: "
            f"{FEATURE_TARGETS}."
        )


def as_vector(vector: Any, what: str) -> tuple[float, ...]:
    """Return a vector as a tuple of finite float32 numbers, not all zero."""
    array = np.asarray(vector.detach().cpu() if isinstance(vector, Tensor) else vector)
    if array.dtype.kind not in "fiu" or array.ndim != 1 or not array.size:
        raise ExplainError(f"Expected {what} as a list of numbers, got {vector!r:.60}. Give one number per feature.")
    numbers = array.astype(np.float32).tolist()
    if not all(map(math.isfinite, numbers)):
        raise ExplainError(f"Expected {what} of finite numbers, got NaN or infinity. Look for a division by zero.")
    if not any(numbers):
        raise ExplainError(f"Expected {what} that is not zero, got only zeros. Give another vector.")
    return tuple(numbers)


def fit_vector(model: ViT, vector: Sequence[float], what: str) -> Tensor:
    """Check that a vector has one number for each feature, and return it as a tensor: (F,)."""
    if len(vector) != (count := model.config.feature_width):
        raise ExplainError(
            f"Expected {what} of {count} numbers, one for each feature of this model, got {len(vector)}. "
            "Take it from the same model."
        )
    return torch.tensor(vector)


def spell_vector(word: str, vector: Iterable[float], name: str) -> str:
    """Return the spelling of a vector, with nine digits, which determine a float32 exactly."""
    return f"{word}:{','.join(f'{number:.9g}' for number in vector)}{f';{name}' if name else ''}"


def either(names: Sequence[str]) -> str:
    """Join names with commas and "or", as in "cat, dog or fox"."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def class_index(model: ViT, named: Named) -> int:
    """Return the index of a class given by index or label.

    Raises:
        ExplainError: if the class does not exist, or several classes share the label.
    """
    count, labels = model.config.classes, model.pretrained.labels if model.pretrained else ()
    if isinstance(named, int | np.integer) and not isinstance(named, bool):
        if 0 <= named < count:
            return int(named)
        raise ExplainError(f"Expected a class among 0..{count - 1}, got {named}. Choose one of them.")
    if isinstance(named, str):
        text = named.strip()
        exact, folded = _places(tuple(labels))
        matches = exact.get(text) or folded.get(text.casefold(), [])
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ExplainError(f"Expected one class, got {named!r}, the label of the classes {matches}. Give an index.")
        if (
            text.isdecimal() and len(text) < 10 and int(text) < count
        ):  # checked after the labels, because labels may be numbers
            return int(text)
    known = ", ".join(labels[:12]) + (", ..." if len(labels) > 12 else "") if labels else "no labels"
    raise ExplainError(f"Expected a class among 0..{count - 1} or a label ({known}), got {named!r}. Choose one.")


@lru_cache(maxsize=8)
def _places(labels: tuple[str, ...]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the indices of each label, and of each label without case; a group may name thousands of classes."""
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        exact.setdefault(label, []).append(index)
        folded.setdefault(label.casefold(), []).append(index)
    return exact, folded


def class_name(model: ViT, index: int) -> str:
    """Return the label of a class; without labels, its index, as in "class 7"."""
    labels = model.pretrained.labels if model.pretrained else ()
    return labels[index] if labels else f"class {index}"


def group_name(model: ViT, indices: Sequence[int]) -> str:
    """Return "some kind of dog" for a named group of the checkpoint, else "cat or dog", or the first `LISTED` names."""
    names = [class_name(model, index) for index in indices]
    for title, *members in model.pretrained.groups if model.pretrained else ():
        if sorted(members) == sorted(names):
            return Phrase("some-kind-of", "some kind of {0}", title)
    if len(names) > LISTED + 1:
        return Phrase("some-of-classes", "{0}, ... ({1} classes)", items(names[:LISTED]), len(names))
    return Phrase("or", "{0} or {1}", items(names[:-1]), names[-1]) if len(names) > 1 else names[0]
