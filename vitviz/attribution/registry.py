"""List all attribution methods by name, and run them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.target_specs import FEATURE_TARGETS, Contrast, TargetLike, resolve_target
from vitviz.attribution.targets import ExplainError
from vitviz.fields import check_arguments, describe_type, field_types, matches_type, plain
from vitviz.heatmap import Heatmap
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.plugins import Registry
from vitviz.weights.captured_vit import CapturedViT

METHODS = Registry(
    Method, "vitviz.attribution", "METHODS", "vitviz.methods", lambda family: max(method.forwards for method in family)
)
"""All methods by name, cheap families first, plug-ins last."""
DEFAULT, WITHOUT_CLASS = "gae", "rollout"
"""Default method, and the default for models without class names."""


def default_methods(model: ViT) -> tuple[str, ...]:
    """Return the candidates for a model's default method, in order; the first one that works with the model is used.

    If `vitviz arena` has ranked methods for these weights, its winner comes first.
    """
    best = model.pretrained.method if model.pretrained else ""
    return (*([best] if best in METHODS else []), DEFAULT, WITHOUT_CLASS)


def methods_named(names: str | Iterable[str]) -> list[str]:
    """Return the names of methods, or one name, each once and in this order.

    Raises:
        ExplainError: if a method does not exist.
    """
    unique = [*dict.fromkeys([names] if isinstance(names, str) else names)]
    for name in unique:
        method_named(name)
    return unique


def method_named(name: str | Method) -> Method:
    """Return the method of this name; a method itself is returned unchanged.

    Raises:
        ExplainError: if it does not exist.
    """
    if isinstance(name, Method):
        return name
    if name not in METHODS:
        raise ExplainError(f"Expected one of the methods {', '.join(METHODS)}, got {name!r}. Choose one of them.")
    return METHODS[name]


def check_options(name: str | Method, options: Mapping[str, Any]) -> Method:
    """Check names and types of a method's options, and return the method.

    Raises:
        ExplainError: if the method or an option does not exist, or an option contradicts its type hint.
    """
    method = method_named(name)
    if unknown := sorted(set(options) - set(method.options)):
        takes = ", ".join(method.options) or "none"
        raise ExplainError(
            f"Expected options of {method.name} ({takes}), got {', '.join(unknown)}; it has no such option. "
            "Leave it out."
        )
    hints = field_types(method.function)
    for option, value in options.items():
        if not matches_type(plain(value), hints[option]):
            raise ExplainError(
                f"Expected {option} of {method.name} to be {describe_type(hints[option])}, got {value!r:.80}. "
                f"The default is {method.options[option]}."
            )
    return method


@check_arguments(ExplainError)
def attribute(
    model: ViT,
    images: Tensor,
    target: TargetLike = None,
    method: str | Method | None = None,
    *,
    contrast: Contrast | None = None,
    trace: AttentionTrace | None = None,
    **options: Any,
) -> list[Heatmap]:
    """Attribute predictions to patches: return one map for each image, as `View.explain` returns it.

    Tensors have no photograph, so the maps have a gray picture of the input behind them; `Heatmap.over` replaces it.
    The model, its parameters, their `.grad` and the random number generators are left unchanged.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels.
        target: what to explain: a class, as index or label, or a `TargetSpec`, for all images or one for each; by
            default the predicted class.
        method: a method of `METHODS`, or its name; by default the first of `default_methods`.
        contrast: (A, B) instead of `target`: why A rather than B.
        trace: an existing trace of these images, without graph and edits.
        options: options of the method, see `METHODS[method].options`.

    Raises:
        ExplainError: if the method, a class or an option does not exist.
    """
    method = check_options(method or default_methods(model)[0], options)
    case, scores = score_tokens(model, images, target, method, contrast, trace, options)
    return method.heatmaps(scores, case.trace, options, case.resolved, " ".join(case.notes))


def score_tokens(
    model: ViT,
    images: Tensor,
    target: TargetLike,
    method: Method,
    contrast: Contrast | None,
    trace: AttentionTrace | None,
    options: Mapping[str, Any],
) -> tuple[Case, Tensor]:
    """Run a method, with the arguments and errors of `attribute`; the caller has checked `options`.

    Returns:
        The case, and the score of each token, prefix tokens first: (B, N), on the model's device, in its precision or a
        higher one.
    """
    if contrast is not None and not method.class_specific:
        raise ExplainError(
            f"Expected a class-specific method for a contrast, got {method.name}, which ignores classes. "
            "Choose another."
        )
    if isinstance(model, CapturedViT) and method.not_captured:
        others = ", ".join(name for name, other in METHODS.items() if not other.not_captured)
        raise ExplainError(
            f"Expected a method for modules that run as they are, got {method.name}: {method.not_captured}. Choose one "
            f"of {others}."
        )
    images = images.to(next(model.parameters()).device)
    trace = trace or model.trace(images)
    resolved = resolve_target(model, trace.logits, target, contrast, len(images))
    if resolved is None and method.class_specific:
        others = ", ".join(name for name, other in METHODS.items() if not other.class_specific)
        raise ExplainError(
            f"Expected a model with a classifier for {method.name}, which explains a class, got one without. Choose a "
            f"target of the features ({FEATURE_TARGETS}), or a method that needs no target: {others}."
        )
    with untouched(images.device):
        case = Case(model, images, resolved, trace)
        scores = method.function(case, **options)
    grids = {trace.grid, *map(trace.grid_in, trace.blocks)}  # windowed models merge patches
    shapes = [(len(images), len(trace.prefix) + math.prod(grid)) for grid in grids]
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape not in shapes:
        raise ExplainError(
            f"Expected {method.name} to return a score for each token, {' or '.join(map(str, shapes))}, got {shape}. "
            "Correct this method."
        )
    return case, scores.detach()


def score_patches(
    model: ViT, images: Tensor, target: TargetLike = None, method: str = DEFAULT, **options: Any
) -> Tensor:
    """Return the scores of patches as a tensor, (B, gh, gw); `attribute` returns them as maps.

    In windowed models, the patches are those of the stage that the method reads.
    """
    case, scores = score_tokens(model, images, target, check_options(method, options), None, None, options)
    patches = scores[:, len(case.trace.prefix) :]  # (B, gh * gw)
    maps: Tensor = patches.unflatten(1, case.trace.grid_of(patches.shape[1]))  # (B, gh, gw)
    return maps


@contextmanager
def untouched(device: torch.device | None = None) -> Iterator[None]:
    """Restore the random number generators on exit, including the one of `device`."""
    state = np.random.get_state()  # noqa: NPY002 - captum draws from the global generator
    with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []), torch.enable_grad():
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
