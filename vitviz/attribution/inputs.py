"""Define the inputs and the description of attribution methods.

Shapes: B images, N tokens = P prefix tokens followed by gh x gw patches, C classes.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.heatmap import Heatmap
from vitviz.images.geometry import Geometry
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT
from vitviz.outputs import rank

SLOW = 20.0
"""With more forward passes, a method counts as slow: other requests go first, and the page runs it only on request."""
Named = int | str
"""A class: its index, or its label."""
TargetLike = Named | Sequence[Named] | Tensor | None
"""A class for all images, or one for each; `None` for the predicted class."""


class ExplainError(VitvizError):
    """Raised for invalid options and targets of a method."""


@dataclass(frozen=True, eq=False)
class Target:
    """Target of an explanation for each image: a class, or one class rather than another.

    Args:
        classes: (B,), the class of each image.
        against: (B,), the contrasted class, or `None`.
        names: text for each image, such as "church", or "church rather than gas pump".
    """

    classes: Tensor
    against: Tensor | None = None
    names: tuple[str, ...] = ()

    def score(self, logits: Tensor) -> Tensor:
        """Return the explained score, a logit or the difference of two: (B, C) -> (B,)."""
        score = logits.gather(1, self.classes[:, None].to(logits.device)).squeeze(1)  # (B,)
        if self.against is None:
            return score
        return score - logits.gather(1, self.against[:, None].to(logits.device)).squeeze(1)

    def image(self, index: int) -> "Target":
        """Return the target of one image of a batch, as a batch of one."""
        single = slice(index, index + 1)
        return Target(self.classes[single], None if self.against is None else self.against[single], self.names[single])

    @property
    def description(self) -> str:
        """Return the different names of the images' targets, at most the first three."""
        names = list(dict.fromkeys(self.names))
        return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

    @property
    def indices(self) -> list[tuple[int, ...]]:
        """Return the class index of each image, or the two class indices of a contrast."""
        columns = [self.classes] if self.against is None else [self.classes, self.against]
        return [tuple(pair) for pair in torch.stack(columns, dim=1).tolist()]

    def repeat(self, times: int) -> "Target":
        """Repeat each image's target `times` times: (B,) -> (B * times,)."""
        against = None if self.against is None else self.against.repeat_interleave(times)
        names = tuple(name for name in self.names for _ in range(times))
        return Target(self.classes.repeat_interleave(times), against, names)


@dataclass(frozen=True, eq=False)
class Case:
    """Input of an attribution method: images, model and target.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels, on the model's device.
        resolved: the target, or `None` without a classifier.
        trace: trace of these images, without a graph.
        notes: notes of a method about its result, such as its uncertainty.
    """

    model: ViT
    images: Tensor
    resolved: Target | None
    trace: Trace
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        """Return the target.

        Raises:
            ExplainError: without a classifier.
        """
        if self.resolved is None:
            raise ExplainError("Expected a model with a classifier, got one without. Choose a method that needs none.")
        return self.resolved

    def read_rows(self) -> Tensor:
        """Return the weight of each token's final row in the classifiers' input: (B, N), summing to 1.

        Class token, all patches, or both; an active distillation token has weight one half. Attention pooling is
        excluded, which reduces the sum.
        """
        model, trace = self.model, self.trace
        names = {"cls": ["cls"], "mean": ["mean"], "cls+mean": ["cls", "mean"], "attention": []}[model.config.pooling]
        rows = torch.zeros_like(trace.tokens[:, :, 0])  # (B, N)
        for name in names:
            rows += trace.weights(name).to(rows) / len(names)
        return (rows + trace.weights("distillation").to(rows)) / 2 if model.distilled else rows


@dataclass(frozen=True, kw_only=True)
class Method:
    """Attribution method with its description for page, command line and documents.

    Args:
        function: `function(case, **options)` -> (B, N), a raw score for each token, in the order of the trace.
        title: display name, e.g. "Generic attention explainability".
        paper: authors, year, title and venue.
        about: one sentence about the method and its scores.
        cost: approximate number of forward passes for one image.
        matrices: peak count of numbers per head and pair of tokens, see benchmarks/memory.py.
        activations: peak count of numbers per block, token and channel, in addition to a forward pass.
        per_patch: whether it needs a forward pass per patch; `cost` is then for 256 patches.
        class_specific: whether the scores depend on the target.
        signed: whether negative scores oppose the target.
        unit: unit of the scores: "attention" for shares that sum to 1, else "score".
        not_in_browser: why the static site cannot compute it; empty if it can.
        describe: `describe(trace, options)` -> the title of a map, if it differs from `title`.

    Attributes:
        name: name of the function in code and links, e.g. "gae".
        family: module of the function: attention, values, gradient, relevance or perturbation.
        options: keyword arguments of the function with their defaults.
    """

    function: Callable[..., Tensor]
    title: str
    paper: str
    about: str
    cost: float
    matrices: float = 0.0
    activations: float = 0.0
    per_patch: bool = False
    class_specific: bool = True
    signed: bool = False
    unit: Literal["attention", "score"] = "score"
    not_in_browser: str = ""
    describe: Callable[[Trace, Mapping[str, Any]], str] | None = None
    name: str = field(init=False)
    family: str = field(init=False)
    options: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.function.__name__)
        object.__setattr__(self, "family", str(self.function.__module__).rpartition(".")[2])
        _, *options = inspect.signature(self.function).parameters.values()
        object.__setattr__(self, "options", {option.name: option.default for option in options})

    @property
    def slow(self) -> bool:
        """Return whether the method takes more than `SLOW` forward passes."""
        return self.cost > SLOW

    def heatmaps(
        self, scores: Tensor, trace: Trace, options: Mapping[str, Any], target: Target | None = None, estimate: str = ""
    ) -> list[Heatmap]:
        """Return scores of all tokens (B, N) as maps, one for each image, over a gray picture of the model's input.

        Args:
            scores: raw, prefix tokens first.
            trace: the trace of these images.
            options: options of the run; omitted ones have their defaults.
            target: the explained target.
            estimate: the accuracy of the scores, as text.
        """
        used: dict[str, Any] = {**self.options, **options}
        if "query" in used and used["query"] is None:
            used["query"] = trace.default_query
        query = used.get("query")
        title = self.describe(trace, used) if self.describe else self.title
        size = trace.grid[1] * trace.patch_size, trace.grid[0] * trace.patch_size  # (width, height)
        geometry = Geometry(size, (size[1], size[0]), (0.0, 0.0, float(size[0]), float(size[1])))
        photo, count = Image.new("RGB", size, "gray"), len(trace.prefix)
        maps = []
        for index, of_image in enumerate(scores.detach().float().cpu()):  # (N,); NumPy has no bfloat16
            classes = target.indices[index] if target is not None and self.class_specific else ()
            aim = {} if not classes else {"target": classes[0]} if len(classes) == 1 else {"contrast": classes}
            heatmap = Heatmap(
                values=of_image[count:].unflatten(0, trace.grid).numpy(),  # (gh * gw,) -> (gh, gw)
                geometry=geometry,
                photo=photo,
                title=f"{title}, for {target.names[index]}" if target is not None and classes else title,
                unit=self.unit,
                signed=self.signed,
                prefix_mass=dict(zip(trace.prefix, of_image[:count].tolist(), strict=True)),
                query=query if isinstance(query, tuple) else None,
                classes=classes,
                question={"method": self.name, **aim, **used},
                estimate=estimate,
            )
            maps.append(heatmap)
        return maps

    def passes(self, patches: int, **options: Any) -> float:
        """Estimate the forward passes for one image with this number of patches and these options."""
        passes = patches + 1.0 if self.per_patch else self.cost
        for name in ("samples", "steps"):  # the cost is proportional to them
            if isinstance(options.get(name), int) and self.options.get(name):
                passes *= options[name] / self.options[name]
        return passes


def resolve_target(
    model: ViT, logits: Tensor | None, target: TargetLike = None, contrast: tuple[Named, Named] | None = None
) -> Target | None:
    """Return the target for a class or contrast, given by index or label.

    Args:
        model: the model with these classes.
        logits: (B, C) of the images; `None` without a classifier.
        target: a class for all images, or one for each; by default the predicted class.
        contrast: (A, B), why A rather than B; instead of `target`.

    Returns:
        `None` without a classifier if no class is given.

    Raises:
        ExplainError: if a class does not exist, the number of classes does not match the images, or both are given.
    """
    if target is not None and contrast is not None:
        raise ExplainError(f"Expected a target or a contrast, got both: {target!r} and {contrast!r}. Leave one out.")
    if logits is None:
        if target is None and contrast is None:
            return None
        raise ExplainError("Expected no target for a model without a classifier, got one. Leave it out.")
    batch = len(logits)
    if contrast is not None:
        first, second = (class_index(model, named) for named in contrast)
        if first == second:
            raise ExplainError(f"Expected two different classes, got {contrast[0]!r} twice. Change one.")
        same = torch.full((batch,), first), torch.full((batch,), second)
        return Target(*same, (f"{class_name(model, first)} rather than {class_name(model, second)}",) * batch)
    if isinstance(target, Tensor):
        target = target.tolist()
    if target is None:
        classes = rank(logits, model.problem_type)[:, 0].cpu()
    elif isinstance(target, int | np.integer | str):
        classes = torch.full((batch,), class_index(model, target))
    else:
        listed = list(target)
        if len(listed) != batch:
            raise ExplainError(
                f"Expected one class for each of {batch} images, got {len(listed)}. Give one class per image."
            )
        classes = torch.tensor([class_index(model, named) for named in listed])
    return Target(classes, names=tuple(class_name(model, index) for index in classes.tolist()))


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
        exact = [index for index, label in enumerate(labels) if label == text]
        matches = exact or [index for index, label in enumerate(labels) if label.casefold() == text.casefold()]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ExplainError(f"Expected one class, got {named!r}, the label of the classes {matches}. Give an index.")
        if text.isdecimal() and int(text) < count:  # checked after the labels, because labels may be numbers
            return int(text)
    known = ", ".join(labels[:12]) + (", ..." if len(labels) > 12 else "") if labels else "no labels"
    raise ExplainError(f"Expected a class among 0..{count - 1} or a label ({known}), got {named!r}. Choose one.")


def class_name(model: ViT, index: int) -> str:
    """Return the label of a class, or "class 7"."""
    labels = model.pretrained.labels if model.pretrained else ()
    return labels[index] if labels else f"class {index}"
