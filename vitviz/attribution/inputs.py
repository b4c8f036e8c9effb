"""Define the inputs and the description of attribution methods.

Shapes: B images, N tokens = P prefix tokens followed by gh x gw patches, C classes.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from vitviz.attribution.targets import ExplainError, Target
from vitviz.heatmap import Heatmap
from vitviz.images.geometry import Geometry
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase

SLOW = 20.0
"""With more forward passes, a method counts as slow: other requests go first, and the page runs it only on request."""
UNMEASURED = 100.0
"""Forward passes that estimates assume for a method without a measured cost."""


@dataclass(frozen=True, eq=False)
class Case:
    """Input of an attribution method: images, model and target.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels, on the model's device.
        resolved: the target; `None` if the model has no classifier and no target is given.
        trace: trace of these images, without a graph.
        notes: notes of a method about its result, such as its uncertainty.
    """

    model: ViT
    images: Tensor
    resolved: Target | None
    trace: AttentionTrace
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        """Return the target.

        Raises:
            ExplainError: without a target.
        """
        if self.resolved is None:
            raise ExplainError("Expected a target for a model without a classifier, got none. Name one.")
        return self.resolved

    def score(self, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the target's score from final tokens: (B, N, D) -> (B,)."""
        return self.target.score(self.target.read(self.model, tokens, ops), ops)

    def read_rows(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the weight of each final token in the outputs that the target reads: (B, N), summing to 1.

        The weight is on the class token, on all patches, or on both. A distillation token with its own classifier has
        weight one half; targets of the features do not read it. Attention pooling is excluded, which reduces the sum.
        `dtype` is the model's by default.
        """
        model, trace = self.model, self.trace
        names = {"cls": ["cls"], "mean": ["mean"], "cls+mean": ["cls", "mean"], "attention": []}[model.config.pooling]
        precision = next(model.parameters()).dtype if dtype is None else dtype
        rows = torch.zeros(trace.batch, trace.count, dtype=precision, device=trace.device)
        for name in names:
            rows += trace.weights(name).to(rows) / len(names)
        two_classifiers = model.distilled and not (self.resolved and self.resolved.features)
        return (rows + trace.weights("distillation").to(rows)) / 2 if two_classifiers else rows


@dataclass(frozen=True, kw_only=True)
class Method:
    """Attribution method with its description for page, command line and documents.

    Args:
        function: `function(case, **options)` -> (B, N), a raw score for each token, in the order of the trace.
        title: display name, e.g. "Generic attention explainability".
        paper: authors, year, title and venue.
        about: one sentence about the method and its scores.
        cost: approximate number of forward passes for one image. `None` if it was not measured: the method counts as
            slow, and estimates assume `UNMEASURED` passes and the largest memory of any method.
        matrices: peak count of numbers per head and pair of tokens, see benchmarks/memory.py.
        activations: peak count of numbers per block, token and channel, in addition to a forward pass.
        double: whether it runs in double precision, whatever the model's precision.
        per_patch: whether it needs a forward pass per patch; `cost` is then for 256 patches.
        class_specific: whether the scores depend on the target.
        signed: whether negative scores oppose the target.
        unit: unit of the scores: "attention" for shares that sum to 1, else "score".
        not_in_browser: why the static site cannot compute it; empty if it can.
        not_captured: why it does not explain modules that run as they are; empty if it does.
        describe: `describe(trace, options)` -> the title of a map, if it differs from `title`.

    Attributes:
        name: name of the function in code and links, e.g. "gae".
        family: module of the function, such as gradient or perturbation.
        options: keyword arguments of the function with their defaults.
    """

    function: Callable[..., Tensor]
    title: str
    paper: str
    about: str
    cost: float | None = None
    matrices: float = 0.0
    activations: float = 0.0
    double: bool = False
    per_patch: bool = False
    class_specific: bool = True
    signed: bool = False
    unit: Literal["attention", "score"] = "score"
    not_in_browser: str = ""
    not_captured: str = ""
    describe: Callable[[AttentionTrace, Mapping[str, Any]], str] | None = None
    name: str = field(init=False)
    family: str = field(init=False)
    options: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.function.__name__)
        for text in ("title", "about"):
            object.__setattr__(self, text, Phrase(f"method-{self.name}-{text}", getattr(self, text)))
        object.__setattr__(self, "family", str(self.function.__module__).rpartition(".")[2])
        _, *options = inspect.signature(self.function).parameters.values()
        object.__setattr__(self, "options", {option.name: option.default for option in options})

    @property
    def slow(self) -> bool:
        """Return whether the method takes more than `SLOW` forward passes."""
        return self.forwards > SLOW

    @property
    def forwards(self) -> float:
        """Return the forward passes for one image, `UNMEASURED` if the cost was not measured."""
        return UNMEASURED if self.cost is None else self.cost

    def heatmaps(
        self,
        scores: Tensor,
        trace: AttentionTrace,
        options: Mapping[str, Any],
        target: Target | None = None,
        estimate: str = "",
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
        grid = trace.grid_of(scores.shape[1] - len(trace.prefix))
        geometry = Geometry(size, (size[1], size[0]), (0.0, 0.0, float(size[0]), float(size[1])))
        photo, count = Image.new("RGB", size, "gray"), len(trace.prefix)
        maps = []
        for index, of_image in enumerate(scores.detach().float().cpu()):  # (N,); NumPy has no bfloat16
            explained = target if self.class_specific else None
            heatmap = Heatmap(
                values=of_image[count:].unflatten(0, grid).numpy(),  # (gh * gw,) -> (gh, gw)
                geometry=geometry,
                photo=photo,
                title=Phrase("map-for", "{0}, for {1}", title, explained.describe(index)) if explained else title,
                unit=explained.score_scale if explained and explained.features and self.signed else self.unit,
                signed=self.signed,
                prefix_mass=dict(zip(trace.prefix, of_image[:count].tolist(), strict=True)),
                query=query if isinstance(query, tuple) and grid == trace.grid_in(used.get("block", -1)) else None,
                classes=explained.indices[index] if explained else (),
                question={"method": self.name, **(explained.question(index) if explained else {}), **used},
                estimate=estimate,
            )
            maps.append(heatmap)
        return maps

    def passes(self, patches: int, **options: Any) -> float:
        """Estimate the forward passes for one image with this number of patches and these options."""
        passes = patches + 1.0 if self.per_patch else self.forwards
        for name in ("samples", "steps"):  # the cost is proportional to them
            if isinstance(options.get(name), int) and self.options.get(name):
                passes *= options[name] / self.options[name]
        return passes
