"""Show the progress of long work on standard error: a tqdm bar in a terminal or notebook, elsewhere lines.

Progress of a single photograph is counted where the model runs its blocks, for all methods alike. Its bar appears after
`DELAY` seconds, and only in the main thread: a server sends progress messages to its clients instead.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

if TYPE_CHECKING:  # the command line starts without torch
    from torch import Tensor

DELAY = 2.0  # seconds
INTERVAL = 0.1  # seconds between updates of a bar
LINE_SECONDS = 30.0  # between lines where there is no terminal
THREAD = "vitviz progress"

_bar: ContextVar["tqdm[NoReturn] | None"] = ContextVar("bar", default=None)
_silent: ContextVar[bool] = ContextVar("silent", default=False)
_texts: list[Callable[[], str]] = []  # bars in use, outermost first


def is_shown() -> bool:
    """Return whether output goes to a terminal or notebook."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


@contextmanager
def silent(yes: bool = True) -> Iterator[None]:
    """Hide progress inside the context."""
    token = _silent.set(yes)
    try:
        yield
    finally:
        _silent.reset(token)


@contextmanager
def lines(title: str) -> Iterator[None]:
    """Print a line every `LINE_SECONDS` during the context, unless there is a terminal, where bars are shown.

    The line is the outermost bar, or the title and the time if there is none. Under torchrun (RANK), only the first
    process prints.
    """
    nested = any(thread.name == THREAD for thread in threading.enumerate())
    if nested or is_shown() or _silent.get() or os.environ.get("RANK", "0") != "0":
        yield
        return
    began, ended = time.monotonic(), threading.Event()

    def elapsed() -> str:
        return f"{title}: running for {tqdm.format_interval(time.monotonic() - began)}"

    def work() -> None:
        while not ended.wait(LINE_SECONDS):
            tqdm.write([*_texts, elapsed][0](), file=sys.stderr)
            sys.stderr.flush()

    thread = threading.Thread(target=work, name=THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def bar(total: float | None, title: str = "", *, show: bool = True, **options: Any) -> Iterator["tqdm[NoReturn]"]:
    """Show a bar, which the caller updates; without a terminal, print it as a line every `LINE_SECONDS`.

    Args:
        total: number of things to count; `None` if it is unknown.
        title: title of the bar.
        show: whether to show anything.
        options: options of tqdm.
    """
    options = {"unit": " images", "desc": title or None, **options}
    with ExitStack() as stack:
        if show and not is_shown():
            stack.enter_context(lines(title))
            options["file"] = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            options |= {"mininterval": 0, "miniters": 1}  # tqdm would count a loop's items later
        counted = stack.enter_context(tqdm(total=total, disable=not show, **options))
        if show:
            _texts.append(text := counted.__str__)
            stack.callback(_texts.remove, text)
        yield counted


@contextmanager
def watch(title: str, passes: float, tokens: int, *, delay: float | None = None) -> Iterator[None]:
    """Show a bar during a computation; nested computations have no bar.

    Args:
        title: title of the bar.
        passes: estimated forward passes of one image; a backward pass counts as one.
        tokens: N, number of tokens of the image.
        delay: seconds until the bar appears.
    """
    if _silent.get() or _bar.get() is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    with bar(
        passes * tokens, title, delay=DELAY if delay is None else delay, leave=False, miniters=0, mininterval=INTERVAL,
        bar_format="{desc}: {percentage:3.0f} %|{bar}| {elapsed}, about {remaining} left",
    ) as shown:  # fmt: skip
        token = _bar.set(shown)
        try:
            yield
        finally:
            _bar.reset(token)


def advance(tokens: "Tensor", share: float) -> None:
    """Count a share of a pass of tokens (B, N, D), twice if a backward pass follows."""
    import torch

    if not torch.compiler.is_compiling() and (shown := _bar.get()) is not None:
        done = tokens.shape[0] * tokens.shape[1] * share * (1 + tokens.requires_grad)
        shown.update(min(done, shown.total - shown.n))
