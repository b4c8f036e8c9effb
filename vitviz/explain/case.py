"""What an attribution method is given, and how it is described: the case, the target, and the method itself.

Shapes: B images, N tokens = P prefix tokens followed by gh x gw patches, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitviz.explain.scores import ExplainError
from vitviz.model import ViT
from vitviz.trace import Trace

Named = int | str
"""A class: its index, or its label."""


@dataclass(frozen=True, eq=False)
class Target:
    """What is to be explained, for each image: a class, or why one class and not another.

    Args:
        classes: (B,), the class of each image.
        against: (B,), the class that it is held against, or `None`.
        words: as a person says it: "church", or "church rather than gas pump".
    """

    classes: Tensor
    against: Tensor | None = None
    words: str = ""

    def score(self, logits: Tensor) -> Tensor:
        """The number that is explained, for each image: (B, C) -> (B,), a logit or the difference of two."""
        score = logits.gather(1, self.classes[:, None].to(logits.device)).squeeze(1)  # (B,)
        if self.against is None:
            return score
        return score - logits.gather(1, self.against[:, None].to(logits.device)).squeeze(1)

    def repeat(self, times: int) -> Target:
        """Each image's target `times` times, one after the other: (B,) -> (B * times,)."""
        against = None if self.against is None else self.against.repeat_interleave(times)
        return Target(self.classes.repeat_interleave(times), against, self.words)


@dataclass(eq=False)
class Case:
    """Images, the model that saw them, and what is to be explained.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels, on the model's device.
        asked: the target, or `None` where the model has no classifier.
        seen: a trace of these images without a graph, if there is one already.
    """

    model: ViT
    images: Tensor
    asked: Target | None
    seen: Trace | None = None

    @property
    def target(self) -> Target:
        """What is to be explained.

        Raises:
            ExplainError: if the model has no classifier.
        """
        if self.asked is None:
            raise ExplainError(
                "This method explains a class, and this model has no classifier. Expected one of the methods that "
                "explain none: attention, rollout, value_attention."
            )
        return self.asked

    @cached_property
    def trace(self) -> Trace:
        """What the forward pass left behind, without a graph."""
        return self.seen or self.model.trace(self.images)

    def graph(self) -> tuple[Trace, Tensor]:
        """A new trace whose probabilities are in the graph, and the score (B,) that was computed from them."""
        target = self.target
        trace = self.model.trace(self.images, grad=True)
        assert trace.logits is not None  # there is a target, so there is a classifier
        return trace, target.score(trace.logits)


Family = Literal["attention", "gradient", "relevance", "perturbation"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One attribution method, as the page, the command line and the documents describe it.

    Args:
        name: in code and in links, e.g. "gae".
        title: for people, e.g. "Generic attention explainability".
        paper: authors, year, title and where it appeared.
        family: what it works with.
        function: `function(case, **options)` -> (B, N), a score for each token, in the order of the trace. Raw.
        about: one sentence on what it does and what its scores mean.
        class_specific: whether the scores depend on the target.
        signed: whether negative scores mean evidence against.
        cost: how many forward passes it takes for one image, roughly.
        options: the options it takes, with their defaults.
    """

    name: str
    title: str
    paper: str
    family: Family
    function: Callable[..., Tensor]
    about: str
    class_specific: bool
    signed: bool
    cost: float
    options: Mapping[str, Any] = field(default_factory=dict)


def resolve_target(
    model: ViT,
    logits: Tensor | None,
    target: Named | Sequence[Named] | Tensor | None = None,
    contrast: tuple[Named, Named] | None = None,
) -> Target | None:
    """The target that a person named.

    Args:
        model: whose classes they are.
        logits: (B, C) of the images; `None` for a model without a classifier.
        target: a class for all images, or one for each; by default the one that the model predicts.
        contrast: (A, B), why A and not B; in place of `target`.

    Returns:
        `None` for a model without a classifier if nothing was named.

    Raises:
        ExplainError: if there is no such class, not one for each image, or both were named.
    """
    if target is not None and contrast is not None:
        raise ExplainError(f"Expected a target or a contrast, got both: {target!r} and {contrast!r}. Leave one out.")
    if logits is None:
        if target is None and contrast is None:
            return None
        raise ExplainError("This model has no classifier, so there is no class to explain. Leave the target out.")
    batch = len(logits)
    if contrast is not None:
        first, second = (class_index(model, one) for one in contrast)
        if first == second:
            raise ExplainError(f"Expected two different classes, got {contrast[0]!r} twice.")
        same = torch.full((batch,), first), torch.full((batch,), second)
        return Target(*same, words=f"{class_name(model, first)} rather than {class_name(model, second)}")
    if isinstance(target, Tensor):
        target = target.tolist()
    if target is None:
        classes = logits.argmax(1).cpu()
    elif isinstance(target, int | np.integer | str):
        classes = torch.full((batch,), class_index(model, target))
    else:
        each = list(target)
        if len(each) != batch:
            raise ExplainError(f"Expected one class for each of the {batch} images, got {len(each)}.")
        classes = torch.tensor([class_index(model, one) for one in each])
    names = list(dict.fromkeys(class_name(model, index) for index in classes.tolist()))
    return Target(classes, words=", ".join(names[:3]) + (", ..." if len(names) > 3 else ""))


def class_index(model: ViT, named: Named) -> int:
    """The index of a class that was named by index or label.

    Raises:
        ExplainError: if there is none, or a label that several classes share.
    """
    count, labels = model.config.classes, model.pretrained.labels if model.pretrained else ()
    if isinstance(named, int | np.integer) and not isinstance(named, bool):
        if 0 <= named < count:
            return int(named)
        raise ExplainError(f"Expected a class among 0..{count - 1}, got {named}.")
    if isinstance(named, str):
        text = named.strip()
        exact = [index for index, label in enumerate(labels) if label == text]
        found = exact or [index for index, label in enumerate(labels) if label.casefold() == text.casefold()]
        if len(found) == 1:
            return found[0]
        if found:
            raise ExplainError(f"{named!r} is the label of the classes {found}. Name one of them by its index.")
        if text.isdecimal() and int(text) < count:  # typed; classes may be called by numbers, so labels come first
            return int(text)
    known = ", ".join(labels[:12]) + (", ..." if len(labels) > 12 else "") if labels else "no labels"
    raise ExplainError(f"Expected a class among 0..{count - 1} or a label ({known}); got {named!r}.")


def class_name(model: ViT, index: int) -> str:
    """A class as people call it."""
    labels = model.pretrained.labels if model.pretrained else ()
    return labels[index] if labels else f"class {index}"
