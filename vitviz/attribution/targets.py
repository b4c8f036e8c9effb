"""Define targets: the functions of a model's output that methods explain.

A target reads the classifier's outputs or the features, which are the classifier's input.
`vitviz.attribution.target_specs` creates targets from classes, vectors, photographs and texts.

Shapes: B images, C outputs of the classifier, F features, E numbers of an embedding, k classes of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.vit import ViT
from vitviz.outputs import REGRESSION, SEVERAL, SINGLE, ProblemType, activate
from vitviz.phrases import Phrase

Scale = Literal["probability", "logit", "cosine", "value"]
"""Quantity that the numbers of a target measure."""
Kind = Literal["class", "contrast", "group", "output", "direction", "similarity"]
LISTED = 3  # maximum number of names in the description of a batch, or of classes in the name of a group


class ExplainError(VitvizError):
    """Raised for invalid options and targets of a method."""


@dataclass(frozen=True, eq=False)
class Target:
    """Target of an explanation: a function of the classifier's outputs or of the features, for each image of a batch.

    | kind | score: what methods explain | reading: what tests and curves show |
    |---|---|---|
    | class | its logit | its probability (softmax, or sigmoid with several labels), or its value |
    | contrast | the difference of two logits or values | the probability of A among A and B, or the difference |
    | group | the log-sum-exp of the logits | the sum of the probabilities |
    | output | the output before softmax or sigmoid | the sigmoid with several labels, else the output |
    | direction | the dot product of the features with a vector | the same |
    | similarity | the cosine of the features and a reference | the same |

    A group's score is the logit of one class that replaces the group: the softmax of this logit is the summed
    probability of the group.

    Args:
        points: (B, k), class indices; (B, F), vectors of a direction; (B, F) or (B, E), unit vectors of a similarity.
        kind: the function.
        names: display name for each image, such as "church", or "church rather than gas pump".
        problem_type: meaning of the classifier's outputs.
        spellings: spelling for each image (see `vitviz.attribution.target_specs`); empty for classes and contrasts.
        projection: (E, F), map from the features to the embedding of a similarity; `None` to compare the features.
    """

    points: Tensor
    kind: Kind = "class"
    names: tuple[str, ...] = ()
    problem_type: ProblemType = SINGLE
    spellings: tuple[str, ...] = ()
    projection: Tensor | None = None

    @property
    def features(self) -> bool:
        """Return whether the target reads the features instead of the classifier's outputs."""
        return self.kind in ("direction", "similarity")

    @property
    def score_scale(self) -> Scale:
        """Return the scale of `score`."""
        if self.kind == "similarity":
            return "cosine"
        return "value" if self.kind == "direction" or self.problem_type == REGRESSION else "logit"

    @property
    def reading_scale(self) -> Scale:
        """Return the scale of `reading`."""
        sigmoid = self.problem_type == SEVERAL and self.kind in ("class", "output")
        softmax = self.problem_type == SINGLE and self.kind in ("class", "contrast", "group")
        return "probability" if sigmoid or softmax else self.score_scale

    def outputs(self, model: ViT, images: Tensor) -> Tensor:
        """Run the model and return what the target reads: logits (B, C) or features (B, F)."""
        return model.features(images) if self.features else model(images)

    def read(self, model: ViT, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return what the target reads from final tokens: (B, N, D) -> (B, C) or (B, F)."""
        return model.read_out(tokens, ops) if self.features else model.classify(tokens, ops)

    def score(self, outputs: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Compute the score that methods explain: (B, C) or (B, F) -> (B,)."""
        points = self.points.to(outputs.device)
        if self.features:
            points = points.to(outputs.dtype)
            outputs = outputs if self.projection is None else outputs @ self.projection.to(outputs).T  # (B, E)
            return ((ops.unit(outputs) if self.kind == "similarity" else outputs) * points).sum(1)
        logits = outputs.gather(1, points)  # (B, k)
        if self.kind == "contrast":
            return logits[:, 0] - logits[:, 1]
        return logits.logsumexp(1) if self.kind == "group" else logits[:, 0]

    def reading(self, outputs: Tensor) -> Tensor:
        """Compute the probability, logit, value or cosine that tests show: (B, C) or (B, F) -> (B,)."""
        if self.reading_scale != "probability":
            return self.score(outputs)
        if self.kind == "contrast":
            return self.score(outputs).sigmoid()
        return activate(outputs, self.problem_type).gather(1, self.points.to(outputs.device)).sum(1)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return whether the target is predicted: (B, C) or (B, F) -> (B,) bools.

        A class or group is predicted if it is, or contains, the most probable class; a contrast if A is more probable
        than B; a label if its probability is above 50 %. Targets without a probability are never predicted.
        """
        if self.reading_scale != "probability":
            return torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
        if self.kind == "contrast" or self.problem_type == SEVERAL:
            return self.score(outputs) > 0
        return (outputs.argmax(1, keepdim=True) == self.points.to(outputs.device)).any(1)

    def relevance(self, outputs: Tensor) -> Tensor:
        """Return the initial relevance of the outputs for the alpha-beta rule, which sums to 1 for each image.

        All relevance is on the class, or on the first class of a contrast. The classes of a group share it by their
        softmax, and features by their positive contributions to the dot product.
        """
        if self.features:
            points = self.points.to(outputs)
            weights = points if self.projection is None else points @ self.projection.to(outputs)  # (B, F)
            positive = (outputs * weights).clamp_min(0)
            return positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(outputs.dtype).tiny)
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.score(outputs).sum(), outputs)
        return slope.clamp_min(0)

    def select(self, images: Tensor | Sequence[int] | slice) -> Target:
        """Return the targets of selected images of the batch; an image may occur several times."""
        rows = torch.arange(len(self.points))[images]
        names, spellings = (
            tuple(texts[row] for row in rows.tolist()) if texts else () for texts in (self.names, self.spellings)
        )
        return replace(self, points=self.points[rows.to(self.points.device)], names=names, spellings=spellings)

    def image(self, index: int) -> Target:
        """Return the target of one image of a batch, as a batch of one."""
        return self.select([index])

    def repeat(self, times: int) -> Target:
        """Repeat each image's target `times` times: (B,) -> (B * times,)."""
        return self.select(torch.arange(len(self.points)).repeat_interleave(times))

    @property
    def description(self) -> str:
        """Return the distinct names of the images' targets, at most the first `LISTED`."""
        names = list(dict.fromkeys(self.names))
        return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")

    @property
    def indices(self) -> list[tuple[int, ...]]:
        """Return the class index of each image, or the two class indices of a contrast; empty for other kinds."""
        named = self.kind in ("class", "contrast")
        return [tuple(row) if named else () for row in self.points.tolist()]

    def describe(self, image: int) -> str:
        """Return the name of an image's target, followed by the score's scale unless it is a class or contrast."""
        name, scale = self.names[image], self.score_scale
        return name if self.kind in ("class", "contrast") else Phrase(f"{scale}-of", f"{{0}} ({scale})", name)

    def question(self, image: int) -> dict[str, Any]:
        """Return the arguments of `View.explain` that give an image's target, as JSON data."""
        if self.spellings:
            return {"target": self.spellings[image]}
        classes = self.indices[image]
        return {"contrast": classes} if self.kind == "contrast" else {"target": classes[0]}
