"""The `config.json` of Hugging Face's library, read with types: a stranger's file may hold anything under any name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vitviz.weights.source import ConvertError

# Hugging Face's names of the non-linearities that the model has.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


class Settings:
    """Settings by name, each with the type that it must have.

    Args:
        values: the `config.json`.
        family: what it is said to describe, for the error texts.
        defaults: what `transformers` assumes where the file does not say.
    """

    def __init__(self, values: Mapping[str, Any], family: str, defaults: Mapping[str, Any]) -> None:
        self._values, self._family, self._defaults = values, family, defaults

    def get(self, name: str) -> Any:
        """The value as it is, or the default."""
        return self._values[name] if name in self._values else self._defaults[name]

    def whole(self, name: str, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        return value

    def number(self, name: str) -> float:
        """A number above 0."""
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def pair(self, name: str) -> tuple[int, int]:
        """(height, width) in pixels, from one whole number or two."""
        value = self.get(name)
        sides = list(value) if isinstance(value, list | tuple) else [value, value]
        if len(sides) != 2 or any(not isinstance(s, int) or isinstance(s, bool) or s < 1 for s in sides):
            raise self._wrong(name, value, "a whole number of pixels, or two of them")
        return sides[0], sides[1]

    def square(self, name: str) -> int:
        """The side of a square, in pixels."""
        height, width = self.pair(name)
        if height != width:
            raise self._wrong(name, [height, width], "a square, with one whole number as its side")
        return height

    def image(self, patch: int, *, square: bool = True) -> tuple[int, int]:
        """(height, width) of the model's grid in pixels.

        The source cuts off what is left at the right and at the bottom when patches do not fill the image (SigLIP with
        384 pixels and patches of 14): the size without that rest is the size that the model sees.
        """
        height, width = (self.square("image_size"),) * 2 if square else self.pair("image_size")
        if min(height, width) < patch:
            raise self._wrong("image_size", [height, width], f"room for a patch of {patch} x {patch}")
        return height // patch * patch, width // patch * patch

    def activation(self) -> Any:
        """Our name of the MLP's non-linearity."""
        came = self.get("hidden_act")
        if not isinstance(came, str) or came not in ACTIVATIONS:
            raise self.refuse("hidden_act", f"expected one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[came]

    def refuse(self, name: str, why: str) -> ConvertError:
        """The error for a setting that the model cannot follow."""
        return ConvertError(f"{self._family} with {name}={self.get(name)!r} is not supported: {why}.")

    def need(self, *names: str) -> None:
        """Check that these settings are there, for families where a default would be a guess."""
        if missing := [name for name in names if name not in self._values]:
            raise ConvertError(
                f"{self._family} settings without {', '.join(missing)}: expected those of its config.json."
            )

    def architecture(self, allowed: Collection[str]) -> str:
        """The class that the weights are for, one of `allowed`; the first, the bare model, where none is named.

        Raises:
            ConvertError: for any other class: its head may read the tokens in another way.
        """
        names = self._values.get("architectures") or [next(iter(allowed))]
        if not isinstance(names, list | tuple) or len(names) != 1 or names[0] not in allowed:
            raise ConvertError(
                f"{self._family} weights for {names!r} are not supported: expected one of {', '.join(allowed)}."
            )
        return str(names[0])

    def _wrong(self, name: str, value: object, wanted: str) -> ConvertError:
        return ConvertError(f"{self._family} settings with {name}={value!r:.80}: expected {wanted}.")


def labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes in the order of the logits; `transformers`' own where the file has none.

    Raises:
        ConvertError: if `id2label` does not number its names from 0 on.
    """
    named = settings.get("id2label")
    if named is None:
        count = settings.get("num_labels", 2)  # two is what transformers assumes
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 10**6:
            raise ConvertError(f"Expected num_labels as a whole number, got {count!r}.")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        by_index = {int(index): name for index, name in named.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConvertError(f"Expected id2label as an object from class numbers to names: {error}.") from error
    if sorted(by_index) != list(range(len(named))) or not all(isinstance(name, str) for name in by_index.values()):
        raise ConvertError(f"Expected id2label with the classes 0 to {len(named) - 1}, each with a name.")
    return tuple(by_index[index] for index in range(len(by_index)))
