"""Leave `torch.inference_mode`, whose tensors no gradient method can use."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def outside_inference(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside of `torch.inference_mode`, without gradients unless it enables them; a decorator.

    Arguments that were made in inference mode are copied.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        values: list[Any] = [*args, *kwargs.values()]
        if not (torch.is_inference_mode_enabled() or any(map(_is_inference, values))):
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            copies: list[Any] = [value.clone() if _is_inference(value) else value for value in values]
            return function(*copies[: len(args)], **dict(zip(kwargs, copies[len(args) :], strict=True)))

    return call


def methods_outside_inference(kind: C) -> C:
    """Apply `outside_inference` to all methods of a class; a decorator."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not inspect.isgeneratorfunction(method) and not name.startswith("__"):
            setattr(kind, name, outside_inference(method))
    return kind


def _is_inference(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_inference()
