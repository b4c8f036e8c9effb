"""Check types and bounds of every endpoint's arguments, and raise readable errors."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from vitviz.errors import VitvizError
from vitviz.phrases import Phrase
from vitviz.server.sizes import MAX_PATCHES

MAX_PHOTO_BYTES = 64 * 10**6
_MEGABYTES = MAX_PHOTO_BYTES // 10**6


def too_large(length: int) -> str:
    """Return the message about a photograph whose file has too many bytes."""
    text = "Expected a photograph of at most {0} MB, got {1} MB. Make it smaller."
    return Phrase("photograph-file-too-large", text, _MEGABYTES, math.ceil(length / 10**6))


class ArgumentError(VitvizError):
    """Raised for an argument that an endpoint does not accept; the message names it."""


SceneId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="the id of an open photograph")]
Photo = Annotated[bytes, Field(max_length=MAX_PHOTO_BYTES, description=f"a file of at most {_MEGABYTES} MB")]
Name = Annotated[str, Field(min_length=1, max_length=300, description="a name")]
Size = Annotated[int, Field(ge=1, le=10**5, description="a size in pixels")]
Registers = Annotated[int, Field(ge=1, le=16, description="a number of registers")]
Index = Annotated[int, Field(ge=0, le=10**6, description="a whole number from 0")]
Spelling = Annotated[str, Field(min_length=1, max_length=60_000, description="a label or a target's spelling")]
Target = Index | Spelling
"""A class by index from 0, or a text: see `vitviz.attribution.target_specs`."""
Token = Annotated[int, Field(ge=-1, le=10**6, description="a token's number from 0, -1 for the mean over patches")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number from 0 to 1")]
Switch = Annotated[bool, Field(description="true or false")]
Fuse = Literal["mean", "max", "min"]
Head = Index | Fuse
Search = Annotated[str, Field(max_length=4000, description="a query string")]
Texts = Annotated[list[Name], Field(min_length=1, max_length=100, fail_fast=True, description="a list of texts")]
Names = Annotated[list[Name], Field(min_length=1, max_length=32, fail_fast=True, description="a list of names")]
Patches = Annotated[
    list[Index], Field(max_length=MAX_PATCHES, fail_fast=True, description="a list of patches' numbers from 0")
]
Classes = Annotated[list[Index], Field(max_length=32, fail_fast=True, description="a list of classes by index, from 0")]
Pair = Annotated[list[Index], Field(min_length=2, max_length=2, fail_fast=True)]
Heads = Annotated[
    list[Pair], Field(max_length=10_000, fail_fast=True, description="a list of [layer, head], both from 0")
]


def check(function: Callable[..., Any], arguments: object) -> dict[str, Any]:
    """Check a function's arguments without converting types, and return them with its defaults.

    Args:
        function: its parameters are annotated with the types above.
        arguments: JSON value from a client, not yet checked.

    Raises:
        ArgumentError: "Expected X as the NAME, got Y. Change it."
    """
    model = _model(getattr(function, "__func__", function))
    if not isinstance(arguments, dict):
        raise ArgumentError(f"Expected an object of arguments, got {quote(arguments)}. Name each argument.")
    if unknown := [name for name in arguments if name not in model.model_fields]:
        known = ", ".join(model.model_fields) or "none"
        raise ArgumentError(f"Expected arguments among {known}; got {quote(unknown[0])}. Leave it out.")
    try:
        checked = model.model_validate(arguments)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_context=False)[0]["loc"][0])
        kind = get_type_hints(function, include_extras=True)[name]
        value = quote(arguments[name]) if name in arguments else "nothing"
        raise ArgumentError(f"Expected {_describe(kind)} as the {name}, got {value}. Change it.") from None
    return {name: getattr(checked, name) for name in model.model_fields}


def quote(value: object) -> str:
    """Return a value as a short text for a message."""
    return reprlib.repr(value)[:60]


@cache
def _model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of a function's parameters."""
    hints = get_type_hints(function, include_extras=True)
    parameters: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }
    config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    return create_model(function.__name__, __config__=config, **parameters)


def _describe(kind: Any) -> str:
    """Return a description of a type for messages."""
    if get_origin(kind) is Annotated:
        fields = (field for field in kind.__metadata__ if isinstance(field, FieldInfo))
        return next((field.description for field in fields if field.description), "a value")
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(map(str, most))} or {last}"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_describe, get_args(kind)))
    return "nothing" if kind in (None, NoneType) else "a value"
