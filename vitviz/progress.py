"""Show the progress of long computations as a tqdm bar on standard error, in a terminal or notebook.

Progress is counted where the model runs its blocks, for all methods alike. A bar appears after `DELAY` seconds, and
only in the main thread: a server sends progress messages to its clients instead.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from tqdm import tqdm

DELAY = 2.0  # seconds
INTERVAL = 0.1  # seconds between updates of a bar

_bar: ContextVar["tqdm[None] | None"] = ContextVar("bar", default=None)
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def is_shown() -> bool:
    """Return whether output goes to a terminal or notebook."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


@contextmanager
def silent(yes: bool = True) -> Iterator[None]:
    """Hide bars inside the context."""
    token = _silent.set(yes)
    try:
        yield
    finally:
        _silent.reset(token)


@contextmanager
def watch(title: str, passes: float, tokens: int, *, delay: float | None = None) -> Iterator[None]:
    """Show a bar during a computation; nested computations have no bar.

    Args:
        title: title of the bar.
        passes: estimated forward passes of one image; a backward pass counts as one.
        tokens: N, number of tokens of the image.
        delay: seconds until the bar appears.
    """
    hidden = _silent.get() or _bar.get() is not None or threading.current_thread() is not threading.main_thread()
    if hidden or not is_shown():
        yield
        return
    with tqdm(
        total=passes * tokens, desc=title, delay=DELAY if delay is None else delay, leave=False, miniters=0,
        mininterval=INTERVAL,
        bar_format="{desc}: {percentage:3.0f} %|{bar}| {elapsed}, about {remaining} left",
    ) as bar:  # fmt: skip
        token = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(token)


def advance(tokens: Tensor, share: float) -> None:
    """Count a share of a pass of tokens (B, N, D), twice if a backward pass follows."""
    if not torch.compiler.is_compiling() and (bar := _bar.get()) is not None:
        done = tokens.shape[0] * tokens.shape[1] * share * (1 + tokens.requires_grad)
        bar.update(min(done, bar.total - bar.n))
