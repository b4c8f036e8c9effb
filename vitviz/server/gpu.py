"""Run a model where its device is: in this process, or on ZeroGPU in a process that has a GPU for some seconds.

ZeroGPU lends a GPU to functions that carry `spaces.GPU`, which it runs in a process of their own: arguments and results
are copied, and the models in this process stay on the CPU. The CPU answers where no GPU is lent because a visitor's
quota is used up or none is free in time. Where the package `spaces` is not there, or the Space has hardware of its own,
the functions below are plain calls.
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
from PIL import Image
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.model.devices import best_device
from vitviz.model.tracing import Recall
from vitviz.model.vit import ViT
from vitviz.view import View

try:
    import spaces  # on Hugging Face alone
except ImportError:
    spaces = None

BORROWED = spaces is not None and os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true", "t")
if BORROWED:  # maps hold read-only mappings, which Python does not copy by itself
    copyreg.pickle(MappingProxyType, lambda mapping: (MappingProxyType, (dict(mapping),)))
OPEN_SECONDS, ASK_SECONDS = 5, 10  # that a call may take of the visitor's quota; the fewer, the sooner it has a GPU
CPU = torch.device("cpu")

log = logging.getLogger(__name__)


def home_device() -> torch.device:
    """Return the device on which models stay between questions."""
    return torch.device("cpu") if BORROWED else best_device()


def on_gpu(seconds: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of this module run where the GPU is, for at most so many seconds.

    Errors with words for the visitor come back as they are: `spaces` would replace them by the name of their class.
    The last argument of the function is a device. It is given where no GPU is lent, and is then the CPU.
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
                log.warning("No GPU was lent for %s, so the CPU computes it: %s", function.__name__, refused)
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
    own = explorer.preprocess
    explorer = Explorer(explorer.model, best_device())
    explorer.preprocess = own
    return moved(explorer.open(photo, size=size), explorer.model.cpu())


@on_gpu(ASK_SECONDS)
def run_question(view: View, question: str, options: dict[str, Any], device: torch.device | None = None) -> Any:
    """Call a method of a view that runs the model."""
    if BORROWED and device != CPU:
        view = moved(view, view.model.to(best_device()))
    return getattr(view, question)(**options)


def open_view(explorer: Explorer, photo: Image.Image, size: int | None) -> View:
    """Open a photograph. Its view shares the model of the explorer."""
    view: View = run_model(explorer, photo, size)
    return moved(view, explorer.model) if view.model is not explorer.model else view


def ask_view(view: View, question: str, **options: Any) -> Any:
    """Ask a view what needs its model: `ask_view(view, "intervene", drop=[(3, 4)])`."""
    if BORROWED:
        options.pop("progress", None)  # it cannot be copied to the other process
    return run_question(view, question, options)


def moved(view: View, model: ViT) -> View:
    """Return a view whose trace lies on the device of a copy of its model, and uses its weights."""
    device = next(model.parameters()).device
    trace = cast(Any, _move(view.trace, device))
    kept = [
        replace(one, project=Recall(model.blocks[block], one.stream))
        for block, one in zip(trace.blocks, trace.kept, strict=True)
    ]
    trace = replace(trace, kept=tuple(kept))
    made = View(model, view.preprocess, view.photo, view._pixels, view.geometry, trace, view.seconds)
    made.device = view.device  # where it was computed
    return made


def _move(value: Any, device: torch.device) -> Any:
    """Return a value with all tensors in it on a device: of tuples and frozen data classes."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_move(one, device) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _move(getattr(value, one.name), device) for one in fields(value)})
    return value
