"""Run a part of a module that is not converted: from the output of one block to that of another, or to the end.

A module with L blocks has L + 2 points between its parts. Point 0 is the input of the first block, point k is the
output of block k - 1 (from 0), and point L + 1 is the final tokens. A run that starts at a point skips the blocks
before it: these return their input, and a hook replaces the tokens at the point. After the run, the module is as
before.

Shapes: B images, N tokens, D width, gh x gw patches.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from vitviz.weights.windows import Windows

LOCK = threading.RLock()
"""Lock for running a module, because hooks and attributes of the module change during a run."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a model that its tokens pass through, in order: blocks, final norm, classifier.

    Args:
        blocks: the L blocks, in order.
        last: the module that returns the final tokens, such as the final norm; by default the last block.
        head: the classifier, whose input is the features; `None` without one.
        channels_first: modules whose tokens are (B, D, gh, gw).
        outputs: number of outputs of each block that returns several, else 0; known after a run.
        orders: modules whose tokens (B * W, N / W, D) are in another order than the reading order, or divided into
            W windows -> number of each token, (W, N / W).
    """

    blocks: tuple[nn.Module, ...]
    last: nn.Module
    head: nn.Module | None = None
    channels_first: tuple[nn.Module, ...] = ()
    outputs: dict[nn.Module, int] = field(default_factory=dict)
    orders: dict[nn.Module, Tensor] = field(default_factory=dict)

    def ordered(self, layouts: Sequence[Windows]) -> "Parts":
        """Return the parts with the orders of tokens for an image size, given the windows of each block."""
        own = {block: one.order for block, one in zip(self.blocks, layouts, strict=bool(layouts))}
        orders = {block: order for block, order in own.items() if order is not None}
        return replace(self, orders=orders) if orders or self.orders else self

    @property
    def points(self) -> list[nn.Module]:
        """Return the modules whose outputs are the tokens at points 1 to L + 1."""
        return [*self.blocks, self.last]

    @contextmanager
    def recorded(self, *, replace: bool = False) -> Iterator[list[Tensor]]:
        """Record the tokens at each point, (B, N, D), while the module runs.

        With `replace`, the module continues with the recorded tensors, so that its autograd graph contains them.
        """
        seen: list[Tensor] = []

        def enter(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append(self._tokens(module, first_input(inputs, named)))

        def leave(module: nn.Module, inputs: Any, output: Any) -> Any:
            self.outputs[module] = len(output) if isinstance(output, tuple | list) else 0
            seen.append(self._tokens(module, output))
            return self._replace(module, inputs, output, tokens=seen[-1]) if replace else None

        with LOCK, ExitStack() as stack:
            stack.callback(self.blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
            for module in self.points:
                stack.callback(module.register_forward_hook(leave).remove)
            yield seen

    def run(
        self, module: Callable[..., Any], images: Tensor, tokens: Tensor, start: int, stop: int | nn.Module | None
    ) -> Any:
        """Run a module from a point on.

        Args:
            module: the whole module.
            images: (1, channels, H, W), images with the tokens' grid of patches; their pixels do not matter.
            tokens: (B, N, D), the tokens at the start point.
            start: the start point.
            stop: the point whose tokens are returned, a module whose input is returned, or `None` for the output.

        Returns:
            Tokens (B, N, D), or what the module returns.
        """
        with LOCK, ExitStack() as stack:
            for point in self.points[:start]:
                stack.enter_context(_skipped(point, self.outputs[point]))
            if start:
                hook = partial(self._replace, tokens=tokens)
                stack.callback(self.points[start - 1].register_forward_hook(hook).remove)
            else:
                enter = partial(self._replace_input, tokens=tokens)
                stack.callback(self.blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
            if isinstance(stop, int):
                stack.callback(self.points[stop - 1].register_forward_hook(_stop).remove)
            elif stop is not None:
                stack.callback(stop.register_forward_pre_hook(_stop_before).remove)
            try:  # a module with windows in the place of images counts its images
                return module(images.expand(len(tokens), -1, -1, -1) if self.orders else images)
            except _Stop as stopped:
                return self._tokens(self.points[stop - 1], stopped.value) if isinstance(stop, int) else stopped.value

    def _replace(self, module: nn.Module, _inputs: Any, output: Any, *, tokens: Tensor) -> Any:
        if isinstance(output, tuple | list):
            return (self._formed(module, tokens, output[0]), *output[1:])
        return self._formed(module, tokens, output)

    def _replace_input(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], *, tokens: Tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        formed = self._formed(module, tokens, first_input(inputs, named))
        return ((formed, *inputs[1:]), named) if inputs else ((), named | {next(iter(named)): formed})

    def _tokens(self, module: nn.Module, output: Any) -> Tensor:
        """Return an output of a module in the form (B, N, D)."""
        tokens: Tensor = output[0] if isinstance(output, tuple | list) else output
        if (order := self.orders.get(module)) is not None:
            return tokens.reshape(-1, order.numel(), tokens.shape[-1])[:, order.flatten().argsort()]
        if tokens.ndim != 4:
            return tokens
        return tokens.flatten(2).mT if module in self.channels_first else tokens.flatten(1, 2)

    def _formed(self, module: nn.Module, tokens: Tensor, like: Tensor) -> Tensor:
        """Return tokens (B, N, D) in the shape of `like`, the module's own input or output."""
        if (order := self.orders.get(module)) is not None:
            return tokens[:, order].flatten(0, 1)  # (B, W, N / W, D)
        if like.ndim != 4:
            return tokens
        first = module in self.channels_first
        grid = tuple(like.shape[2:] if first else like.shape[1:3])
        grid = grid if math.prod(grid) == tokens.shape[1] else (tokens.shape[1], 1)  # such as single patches
        formed: Tensor = tokens.mT.unflatten(2, grid) if first else tokens.unflatten(1, grid)
        return formed


class _Stop(BaseException):
    """Raised by a hook to end a run early; `value` is the input or output of the module with the hook."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
    raise _Stop(output)


def _stop_before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
    raise _Stop(inputs[0])


def first_input(inputs: Sequence[Any], named: dict[str, Any]) -> Tensor:
    """Return the first positional argument of a call, or the first keyword argument if there is none."""
    tensor: Tensor = inputs[0] if inputs else next(iter(named.values()))
    return tensor


@contextmanager
def _skipped(block: nn.Module, outputs: int) -> Iterator[None]:
    """Make a block return its input, as the first of its outputs if it has several."""
    own = vars(block).get("forward")
    vars(block)["forward"] = lambda x, *_args, **_named: (x, *(None,) * (outputs - 1)) if outputs else x
    try:
        yield
    finally:
        if own is None:
            del vars(block)["forward"]
        else:
            vars(block)["forward"] = own
