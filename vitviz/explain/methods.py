"""All attribution methods by name, and the one function that runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.explain import attention, gradient, perturbation, relevance, values
from vitviz.explain.case import Case, Method, Named, resolve_target
from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.model import ViT
from vitviz.trace import Trace

FAMILIES = (attention, values, gradient, relevance, perturbation)
METHODS: dict[str, Method] = {method.name: method for family in FAMILIES for method in family.METHODS}
"""Every method by its name, the cheap families first."""


def method_named(name: str) -> Method:
    """The method of this name.

    Raises:
        ExplainError: if there is none.
    """
    if name not in METHODS:
        raise ExplainError(f"Expected one of the methods {', '.join(METHODS)}; got {name!r}.")
    return METHODS[name]


def check_options(name: str, options: Mapping[str, Any]) -> Method:
    """The method of this name, which takes these options; what they may be worth it says itself.

    Raises:
        ExplainError: if there is no such method or option, or a number or a flag is asked for and something else comes.
    """
    method = method_named(name)
    if unknown := sorted(set(options) - set(method.options)):
        takes = ", ".join(method.options) or "none"
        raise ExplainError(f"{name} has no option {', '.join(unknown)}. It takes: {takes}.")
    for option, value in options.items():
        usual = method.options[option]
        wanted = Real if isinstance(usual, float) else Integral
        number = isinstance(usual, Real) and not isinstance(usual, bool)
        if number and (isinstance(value, bool) or not isinstance(value, wanted)):
            kind = "a number" if wanted is Real else "a whole number"
            raise ExplainError(f"{name}: expected {option} as {kind}, such as {usual}; got {value!r}.")
        if isinstance(usual, bool) and not isinstance(value, bool):
            raise ExplainError(f"{name}: expected {option} as true or false, got {value!r}.")
    return method


def attribute(
    model: ViT,
    images: Tensor,
    target: Named | Sequence[Named] | Tensor | None = None,
    method: str = "gae",
    *,
    contrast: tuple[Named, Named] | None = None,
    trace: Trace | None = None,
    **options: Any,
) -> TokenScores:
    """Which patches an answer rests on.

    The model, its parameters, their `.grad` and the random number generators are afterwards as they were before.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels.
        target: the class to explain, by index or label, for all images or one for each; by default the predicted one.
        method: a name in `METHODS`.
        contrast: (A, B) in place of `target`: why A and not B.
        trace: of these images without a graph and without edits, if there is one already.
        options: of the method, see `METHODS[method].options`.

    Raises:
        ExplainError: if there is no such method, class or option.
    """
    chosen = check_options(method, options)
    if contrast is not None and not chosen.class_specific:
        raise ExplainError(f"{method} is the same for every class, so it cannot tell one from another.")
    images = images.to(next(model.parameters()).device)
    seen = trace or model.trace(images)
    asked = resolve_target(model, seen.logits, target, contrast)
    with untouched(images.device):
        tokens = chosen.function(Case(model, images, asked, seen), **options)  # (B, N)
    given = {**chosen.options, **options}
    words = asked.words if asked is not None and chosen.class_specific else ""
    return TokenScores.of(tokens.detach(), seen, method, signed=chosen.signed, target=words, **given)


@contextmanager
def untouched(device: torch.device | None = None) -> Iterator[None]:
    """Random number generators, also that of `device`, are afterwards as they were before, also after an exception."""
    state = np.random.get_state()  # noqa: NPY002 - captum draws from the global generator
    with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []), torch.enable_grad():
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
