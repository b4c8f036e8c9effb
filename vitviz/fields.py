"""Check the fields of a frozen dataclass against their types and ranges: settings may come from a stranger's JSON."""

import functools
import math
import numbers
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

Range = tuple[float, float]
field_types = functools.cache(typing.get_type_hints)


def check_fields(settings: Any, error: type[ValueError], ranges: Mapping[str, Range] | None = None) -> None:
    """Check the type and the range of every field, and make lists tuples, NumPy's numbers Python's, ints floats.

    Args:
        settings: a frozen dataclass that was just made.
        error: what to raise.
        ranges: least and most of numbers by the name of their field, both included.
    """
    kind: Any = type(settings)
    for name, hint in field_types(kind).items():
        value = getattr(settings, name)
        if isinstance(value, list):  # JSON has no tuples; settings are hashable and compare by value
            value = tuple(value)
        if is_whole(value):
            value = int(value)
        least, most = (ranges or {}).get(name, (-math.inf, math.inf))
        found = [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, int | float)]
        if not matches_type(value, hint) or not all(least <= number <= most for number in found):
            expected = describe_type(hint)
            if least > -math.inf:
                expected += f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
            raise error(f"Expected {name} to be {expected}, got {value!r:.80}. Correct this setting.")
        if float in (hint, *typing.get_args(hint)) and value is not None:
            value = tuple(map(float, value)) if isinstance(value, tuple) else float(value)
        object.__setattr__(settings, name, value)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, Python's or NumPy's."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def check_names(data: object, known: Collection[str], error: type[ValueError], *, complete: bool) -> None:
    """Refuse settings that are no mapping or have unknown names, and where `complete` those that lack some."""
    if not isinstance(data, Mapping):
        raise error(f"Expected the settings as a mapping, got {data!r:.80}. Save them again.")
    missing = sorted(set(known) - set(data)) if complete else []
    unknown = sorted(map(str, set(data) - set(known)))
    if missing or unknown:
        raise error(
            f"Expected the settings {', '.join(known)}, got others; missing: {missing or 'none'}, unknown: "
            f"{unknown or 'none'!s:.200}. Save them again."
        )


def matches_type(value: object, hint: Any) -> bool:
    """Return whether a value, from JSON or Python, is what a type hint says.

    An int may stand for a float and a list for a tuple; a bool stands for no number.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(matches_type(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return len(kinds) == len(value) and all(map(matches_type, value, kinds))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def describe_type(hint: Any) -> str:
    """Return a type hint as an error message names it."""
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace(" | None", " or None")
