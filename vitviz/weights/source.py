"""A state dict from elsewhere, emptied tensor by tensor: nothing is left over in silence, no shape is forced."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class ConvertError(ValueError):
    """Weights that are not what their settings say; the text names the tensors or settings that differ."""


class Source:
    """A state dict to be emptied: what has been taken is gone, and what remains at the end is an error.

    Args:
        tensors: the state dict; it is not changed.
        family: what the weights are said to be, for the error texts.
    """

    def __init__(self, tensors: Mapping[str, Tensor], family: str) -> None:
        self._left, self._family = dict(tensors), family

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name, which must have this shape.

        Raises:
            ConvertError: if it is missing, already taken, or shaped otherwise.
        """
        if name not in self._left:
            raise ConvertError(
                f"Expected a tensor {name!r} of shape {shape} in {self._family} weights, but there is none. "
                f"Names that are left: {self._some()}."
            )
        if (came := tuple(self._left[name].shape)) != shape:
            raise ConvertError(
                f"Expected {name!r} of shape {shape} in {self._family} weights, got {came}. "
                "Check that the settings belong to these weights."
            )
        return self._left.pop(name)

    def drop(self, *names: str) -> None:
        """Leave out tensors that the model has no use for, where they are there."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        """Check that nothing is left.

        Raises:
            ConvertError: naming the tensors that nobody asked for.
        """
        if self._left:
            raise ConvertError(
                f"{self._family} weights with {len(self._left)} tensors too many: {self._some()}. Check that the "
                "settings belong to these weights, and that they are the bare model without a head or a prefix."
            )

    def _some(self) -> str:
        names = sorted(self._left)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
