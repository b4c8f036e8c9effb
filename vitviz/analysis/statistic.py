"""Define the description of a statistic of heads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from vitviz.phrases import Phrase

Reads = Literal["rows", "matrix", "model"]
"""Input of a statistic, the cheapest first."""


@dataclass(frozen=True)
class Statistic:
    """A statistic, with its description for page, command line and documents.

    Args:
        function: computes it, or returns why it is missing: from `Rows` (B, H, n) if it reads "rows", from a
            `BlockTrace` (B, H) if it reads the "matrix", from an `Importance` (B, L, H) if it reads the "model".
        title: display name.
        unit: the unit; empty for pure numbers.
        about: definition in one or two sentences.
        low, high: bounds for color scales, or `None`.
        reads: its input: "rows" of attention (cheap), the full "matrix" (O(N³)), or the "model" (run again).
        not_in_browser: why the static site cannot compute it; empty if it can. The site has no matrices.

    Attributes:
        name: name of the function, used in code and in tables.
    """

    function: Callable[[Any], Tensor | str]
    title: str
    unit: str
    about: str
    low: float | None = None
    high: float | None = None
    reads: Reads = "rows"
    not_in_browser: str = ""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.function.__name__)
        for text in ("title", "about"):
            object.__setattr__(self, text, Phrase(f"statistic-{self.name}-{text}", getattr(self, text)))
        object.__setattr__(self, "unit", self.unit and Phrase(f"unit-{self.unit}", self.unit))
        if self.reads == "matrix" and not self.not_in_browser:
            object.__setattr__(self, "not_in_browser", "it needs the whole matrix of attention")

    @property
    def heading(self) -> str:
        """Return name and unit as a column heading."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name
