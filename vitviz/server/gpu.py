"""Run models in this process or, on ZeroGPU, in a process that has a GPU for a few seconds.

ZeroGPU runs functions decorated with `spaces.GPU` in another process: arguments and results are copied, and the models
in this process stay on the CPU. The CPU is used if the visitor's GPU quota is used up or no GPU is free in time.
Without the package `spaces`, or on a Space with its own hardware, the functions below are plain calls.
"""

from __future__ import annotations

import copyreg
import logging
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, cast

import gradio as gr
import torch
from gradio.context import LocalContext
from PIL import Image
from starlette.requests import Request
from starlette.types import Scope
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.model.devices import best_device
from vitviz.model.tracing import Recall
from vitviz.model.vit import ViT
from vitviz.view import View

try:
    import spaces  # installed only on Hugging Face Spaces
except ImportError:
    spaces = None

BORROWED = spaces is not None and os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true", "t")
if BORROWED:  # maps contain read-only mappings, which pickle does not support
    copyreg.pickle(MappingProxyType, lambda mapping: (MappingProxyType, (dict(mapping),)))
OPEN_SECONDS, ASK_SECONDS = 5, 10  # time limits of a call, charged to the visitor's quota; short calls get a GPU sooner
CPU = torch.device("cpu")

log = logging.getLogger(__name__)


def home_device() -> torch.device:
    """Return the device on which models stay between questions."""
    return torch.device("cpu") if BORROWED else best_device()


def on_gpu(seconds: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of this module to run on a borrowed GPU for at most `seconds`.

    vitviz errors keep their message, which `spaces` would replace by the class name. If no GPU is available, the
    function receives the CPU as its last argument, `device`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if spaces is None:
            return function

        @wraps(function)
        def run(*args: Any) -> tuple[Any, VitvizError | None]:
            try:
                return function(*args), None
            except VitvizError as error:
                return None, error

        borrowed = spaces.GPU(duration=seconds)(run)

        @wraps(function)
        def call(*args: Any) -> Any:
            try:
                result, error = borrowed(*args)
            except gr.Error as refused:
                log.warning("No GPU is available for %s, so the CPU computes it: %s", function.__name__, refused)
                result, error = run(*args, CPU)
            if error is not None:
                raise error
            return result

        return call

    return decorate


@on_gpu(OPEN_SECONDS)
def run_model(explorer: Explorer, photo: Image.Image, size: int | None, device: torch.device | None = None) -> View:
    """Open a photograph, and return its view on the device where models stay."""
    if not BORROWED or device == CPU:
        return explorer.open(photo, size=size)
    preprocess = explorer.preprocess
    explorer = Explorer(explorer.model, best_device())
    explorer.preprocess = preprocess
    return moved(explorer.open(photo, size=size), explorer.model.cpu())


@on_gpu(ASK_SECONDS)
def run_question(view: View, question: str, options: dict[str, Any], device: torch.device | None = None) -> Any:
    """Call a method of a view that runs the model."""
    if BORROWED and device != CPU:
        view = moved(view, view.model.to(best_device()))
    return getattr(view, question)(**options)


def identify(scope: Scope) -> None:
    """Tell ZeroGPU which visitor's quota to charge; it reads the request from Gradio's context."""
    if BORROWED:
        LocalContext.request.set(gr.Request(Request(scope)))


def open_view(explorer: Explorer, photo: Image.Image, size: int | None) -> View:
    """Open a photograph; the view shares the explorer's model."""
    view: View = run_model(explorer, photo, size)
    return moved(view, explorer.model) if view.model is not explorer.model else view


def ask_view(view: View, question: str, **options: Any) -> Any:
    """Call a method of a view that runs the model: `ask_view(view, "intervene", drop=[(3, 4)])`."""
    if BORROWED:
        options.pop("progress", None)  # a function cannot be copied to the other process
    return run_question(view, question, options)


def moved(view: View, model: ViT) -> View:
    """Return a copy of a view that uses `model`, a copy of its model, with the trace on that model's device."""
    trace = cast(Any, _move(view.trace, next(model.parameters()).device))
    states = [
        replace(state, project=Recall(model.blocks[block], state.stream))
        for block, state in zip(trace.blocks, trace.states, strict=True)
    ]
    trace = replace(trace, states=tuple(states))
    copied = View(model, view.preprocess, view.photo, view._pixels, view.geometry, trace, view.seconds)
    copied.device = view.device  # where the trace was computed
    return copied


def _move(value: Any, device: torch.device) -> Any:
    """Move all tensors in a value, including its tuples and data classes, to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_move(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _move(getattr(value, field.name), device) for field in fields(value)})
    return value
