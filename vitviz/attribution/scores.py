"""Define what every attribution method returns: a score for each patch and each prefix token."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.formatting import short_repr
from vitviz.model.trace import Trace


class ExplainError(VitvizError):
    """Options that a method cannot take."""


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Raw scores over tokens: nothing is normalised, clipped or left out.

    Args:
        patches: (B, gh, gw), the score of each patch.
        prefix: (B, P), the score of each prefix token (CLS, registers), in the order of `names`.
        names: the P names of the prefix tokens.
        method: the method's name in the registry.
        options: the options it ran with, as plain data.
        signed: whether negative scores mean evidence against.
        target: description of what was explained; empty where the method is the same for every class.
        note: how well the scores are known, for methods that estimate them.
    """

    patches: Tensor
    prefix: Tensor
    names: tuple[str, ...]
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    signed: bool = False
    target: str = ""
    note: str = ""

    __repr__ = short_repr

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        trace: Trace,
        method: str,
        *,
        signed: bool = False,
        target: str = "",
        note: str = "",
        **options: Any,
    ) -> "TokenScores":
        """Split scores over all tokens (B, N) into patches (B, gh, gw) and prefix tokens (B, P)."""
        count = len(trace.prefix)
        patches = tokens[:, count:].unflatten(1, trace.grid)  # (B, gh * gw) -> (B, gh, gw)
        return cls(patches, tokens[:, :count], trace.prefix, method, options, signed, target, note)
