"""Define the result of attribution methods: scores of patches and prefix tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.formatting import short_repr
from vitviz.model.trace import Trace


class ExplainError(VitvizError):
    """Raised for options that a method does not accept."""


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Raw scores of all tokens, neither normalised nor clipped.

    Args:
        patches: (B, gh, gw), the score of each patch.
        prefix: (B, P), the score of each prefix token (CLS, registers), in the order of `names`.
        names: the P names of the prefix tokens.
        method: the method's name in the registry.
        options: the options used, as plain data.
        signed: whether negative scores oppose the target.
        target: description of the target; empty if the method does not depend on the class.
        note: uncertainty of the scores, for methods that estimate them.
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
