"""Check arguments, and fields of settings, which may come from untrusted JSON, against type hints."""

import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from vitviz.errors import VitvizError

Range = tuple[float, float]
WORDS: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "None"
}  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])
field_types = functools.cache(typing.get_type_hints)


def check_fields(
    settings: Any, error: type[VitvizError], ranges: Mapping[str, Range] | None = None, part: str = ""
) -> None:
    """Check the type and range of every field; convert lists to tuples, and numbers to the hinted types.

    A mapping becomes the dataclass that the field has.

    Args:
        settings: a new frozen dataclass.
        error: class of the error to raise.
        ranges: field name -> smallest and largest allowed number.
        part: what precedes the names of the fields in errors and `ranges`, such as `norms.`.
    """
    kind: Any = type(settings)
    for name, hint in field_types(kind).items():
        value = getattr(settings, name)
        if isinstance(value, list):  # JSON has no tuples; settings are hashable and compare by value
            value = tuple(value)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            check_names(value, [field.name for field in dataclasses.fields(hint)], error, complete=False)
            value = hint(**value)
        if is_whole(value):
            value = int(value)
        least, most = (ranges or {}).get(part + name, (-math.inf, math.inf))
        items = value if isinstance(value, tuple) else (value,)
        in_range = all(least <= item <= most for item in items if isinstance(item, int | float))
        if not matches_type(value, hint) or not in_range:
            expected = describe_type(hint)
            if least > -math.inf:
                expected += f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
            raise error(f"Expected {part}{name} to be {expected}, got {value!r:.80}. Correct this setting.")
        if float in (hint, *typing.get_args(hint)) and value is not None:
            value = tuple(map(float, value)) if isinstance(value, tuple) else float(value)
        object.__setattr__(settings, name, value)


def check_arguments(error: type[VitvizError]) -> Callable[[F], F]:
    """Decorate a public function or method, so that an argument that does not match its hint raises `error`.

    Decorating a class decorates its methods whose names do not begin with an underscore.

    NumPy numbers are converted to Python numbers first. A wrong number of arguments raises Python's TypeError.
    """

    def decorate(function: F) -> F:
        if isinstance(function, type):
            for name, method in [*vars(function).items()]:
                if inspect.isfunction(method) and not name.startswith("_"):
                    setattr(function, name, decorate(method))
            return function
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound, hints = signature.bind(*args, **kwargs), field_types(function)
            for name, value in bound.arguments.items():
                bound.arguments[name] = value = plain(value)
                if not matches_type(value, hints.get(name, Any), finite=False):  # the function checks ranges
                    expected = f"{name} of {function.__name__} to be {describe_type(hints[name])}"
                    raise error(f"Expected {expected}, got {value!r:.80}. Correct this argument.")
            return function(*bound.args, **bound.kwargs)

        return cast(F, call)

    return decorate


def plain(value: Any) -> Any:
    """Convert NumPy numbers, alone or in a list or tuple, to Python numbers; return other values unchanged."""
    numpy = sys.modules.get("numpy")  # not imported, because `vitviz --help` does not need it
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def is_whole(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def check_names(data: object, known: Collection[str], error: type[VitvizError], *, complete: bool) -> None:
    """Raise `error` for settings that are not a mapping, have unknown names, or, if `complete`, lack names."""
    if not isinstance(data, Mapping):
        raise error(f"Expected the settings as a mapping, got {data!r:.80}. Save them again.")
    missing = sorted(set(known) - set(data)) if complete else []
    unknown = sorted(map(str, set(data) - set(known)))
    if missing or unknown:
        raise error(
            f"Expected the settings {', '.join(known)}, got others; missing: {missing or 'none'}, unknown: "
            f"{unknown or 'none'!s:.200}. Save them again."
        )


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield the differences between plain data, such as settings from a file and current ones, as text."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield f"{name} was {before!r:.60} and is {now!r:.60}"


def matches_type(value: object, hint: Any, *, finite: bool = True) -> bool:
    """Return whether a value, from JSON or Python, matches a type hint.

    An int matches float and a list matches a tuple; a bool does not match a number. With `finite`, infinity and NaN do
    not match float.
    """
    matches = functools.partial(matches_type, finite=finite)
    while hasattr(
        alias := typing.get_origin(hint) or hint, "__value__"
    ):  # type aliases: numpy 2.5's NDArray, ArrayLike
        hint = alias.__value__
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin in (types.UnionType, typing.Union):
        return any(matches(value, alternative) for alternative in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple | list) else inner
        return isinstance(value, tuple | list) and len(kinds) == len(value) and all(map(matches, value, kinds))
    if origin in (Sequence, Collection, Iterable):
        if not isinstance(value, Iterable) or not isinstance(value, origin) or isinstance(value, str | bytes):
            return False
        return isinstance(value, Iterator) or all(matches(item, inner[0]) for item in value)  # iterators: not yet
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and (abs(value) < math.inf or not finite)
    return isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool))


def describe_type(hint: Any) -> str:
    """Return a type hint as text for error messages."""
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(map(describe_type, typing.get_args(hint)))
    if hint in WORDS:
        return WORDS[hint]
    plain_class = isinstance(hint, type) and typing.get_origin(hint) is None
    return hint.__name__ if plain_class else str(hint).replace("typing.", "").replace("collections.abc.", "")
