"""Find the windows of each block of a module by running it: which tokens attend to each other, and where they lie.

Binary digits of each token's row and column are the tokens of several images: one of two random vectors. The keys of
the block's attention then show which token is at which place of which window, and its queries which tokens were pooled.
In the same way, the output of the last convolution in front of a block shows the order of the block's tokens. This
needs no settings of any library.

Shapes: B images, n = gh x gw tokens of a block, W windows of M tokens each, P images of digits, D width.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitviz.weights.parts import LOCK, Parts, first_input
from vitviz.weights.windows import Windows

SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
"""Functions of torch that compute a softmax."""


PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
"""Functions of torch that compute a product of matrices."""


class _Stop(BaseException):
    """Raised where a block computes attention, or where a block begins."""


class _UntilAttention(TorchFunctionMode):
    """Run a block until it computes attention; convolutions between neighbors add nothing.

    Attributes:
        factors: queries (..., Mq, d) and keys (..., M, d) of the attention, or `None`.
        size: M, the number of keys; 0 until attention is computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.factors: tuple[Tensor, Tensor] | None = None
        self.size = 0
        self._products: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func is F.scaled_dot_product_attention:
            named = dict(zip(("query", "key"), args, strict=False)) | (kwargs or {})
            self.factors, self.size = (named["query"], named["key"]), named["key"].shape[-2]
            raise _Stop
        if func in SOFTMAX and args[0].ndim >= 3:
            rows, self.size = args[0].shape[-2:]
            fitting = [(a, b.mT) for a, b in self._products if (a.shape[-2], b.shape[-1]) == (rows, self.size)]
            self.factors = fitting[-1] if fitting else None
            raise _Stop
        result = func(*args, **kwargs or {})
        if func is F.conv2d and args[0].shape[1] != args[1].shape[1]:  # of single channels
            return torch.zeros_like(result)
        if func in PRODUCTS:
            self._products.append((args[0], args[1]))
        return result


class _WithoutAttention(TorchFunctionMode):
    """Run a block whose attention adds nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        result = func(*args, **kwargs or {})
        return torch.zeros_like(result) if func in {F.scaled_dot_product_attention, *SOFTMAX} else result


class _Convolutions(TorchFunctionMode):
    """Count convolutions, and put the images of digits in place of the output of one.

    Args:
        replaced: the number of this convolution, from 1; 0 for none.

    Attributes:
        count: the convolutions so far.
        last: the number of the last one since the end of a block; 0 if there was none.
        grid: rows and columns of the output that was replaced.
    """

    def __init__(self, replaced: int = 0) -> None:
        super().__init__()
        self.count = self.last = 0
        self.grid = (0, 0)
        self._replaced = replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        result = func(*args, **kwargs or {})
        if func is F.conv2d:
            self.count = self.last = self.count + 1
            if self.count == self._replaced:
                self.grid = tuple(result.shape[2:])
                return digits(self.grid, result[0, :, 0, 0]).movedim(-1, 1)
        return result


Entered = tuple[tuple[Any, ...], dict[str, Any], int]
"""Arguments of a block, and the number of the last convolution between the block before and this one."""


@torch.inference_mode(mode=False)  # the result is used again, also in autograd graphs
@torch.no_grad()
def windows_of(module: nn.Module, parts: Parts, images: Tensor) -> tuple[tuple[int, int], tuple[Windows, ...]] | None:
    """Return the grid of tokens that enter the first block, and the windows of each block.

    Args:
        module: the module, in eval mode.
        parts: its blocks, which take tokens without a prefix: (B, n, D), (B * W, n / W, D), (B, gh, gw, D) or
            (B, D, gh, gw).
        images: (B, channels, H, W); their pixels do not matter.

    Returns:
        `None` if a block does not divide its tokens in a way that this finds.
    """
    entered: dict[nn.Module, Entered] = {}
    convolutions = _Convolutions()

    def enter(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        entered[block] = inputs, named, convolutions.last

    def leave(_block: nn.Module, _inputs: Any, _output: Any) -> None:
        convolutions.last = 0

    with LOCK, ExitStack() as stack:
        for block in parts.blocks:
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(leave).remove)
        stack.enter_context(convolutions)
        module(images[:1] * 0)
    if len(entered) < len(parts.blocks):  # it does not run all of its blocks
        return None
    layouts: list[Windows] = []
    for block in parts.blocks:
        inputs, named, convolution = entered[block]
        x = first_input(inputs, named)
        order, grid = None, _fitting(x.shape[1], images)
        if x.ndim == 4:
            rows, columns = x.shape[2:] if block in parts.channels_first else x.shape[1:3]
            grid = rows, columns
        elif convolution:
            order, grid = _order(module, block, convolution, images) or (order, grid)
        elif layouts and layouts[-1].order is not None and layouts[-1].order.numel() == x.shape[:-1].numel():
            order, grid = layouts[-1].order, layouts[-1].leaving
        if grid is None or (order is None and len(x) > 1):
            return None
        run = partial(_run, block, inputs, named, block in parts.channels_first, order)
        layout = _layout(run, grid, order, images, layouts[-1:])
        if layout is None:
            return None
        layouts.append(layout)
    rows, columns = layouts[0].grid
    return (2 * rows, 2 * columns) if layouts[0].merges else (rows, columns), tuple(layouts)


def _order(
    module: nn.Module, block: nn.Module, convolution: int, images: Tensor
) -> tuple[Tensor | None, tuple[int, int]] | None:
    """Return the order of a block's tokens, and their grid, which is that of the last convolution's output.

    Returns:
        See `Parts.orders`; the order is `None` for reading order. `None` if the block has other tokens.
    """
    seen: list[Tensor] = []

    def enter(_block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(first_input(inputs, named))
        raise _Stop

    mode = _Convolutions(convolution)
    with LOCK, ExitStack() as stack, suppress(_Stop, RuntimeError):  # such as for another number of images
        stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        stack.enter_context(mode)
        module(images[:1] * 0)
    order = _numbers(seen[0], mode.grid) if seen else None
    if order is None:
        return None
    plain = order.equal(torch.arange(order.numel(), device=order.device)[None])
    return (None if plain else order), mode.grid


def _run(
    block: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
    channels_first: bool,
    order: Tensor | None,
    mode: TorchFunctionMode,
    grid: tuple[int, int],
) -> Any:
    """Run a block on the images of digits of a grid; return its output, or `None` if `mode` stops it earlier."""
    x = first_input(inputs, named)
    x = x.movedim(1, -1) if channels_first else x
    tokens = digits(grid, x.reshape(-1, x.shape[-1])[0])  # (P, gh, gw, D)
    if x.ndim == 3:
        tokens = tokens.flatten(1, 2)
        tokens = tokens if order is None else tokens[:, order].flatten(0, 1)
    tokens = tokens.movedim(-1, 1) if channels_first else tokens
    output = None
    with mode, suppress(_Stop):
        output = block(tokens, *inputs[1:], **named) if inputs else block(**named | {next(iter(named)): tokens})
    return output[0] if isinstance(output, tuple | list) else output


def _layout(
    run: Callable[[TorchFunctionMode, tuple[int, int]], Any],
    entering: tuple[int, int],
    order: Tensor | None,
    images: Tensor,
    previous: Sequence[Windows],
) -> Windows | None:
    """Return the windows of a block.

    Args:
        run: function of a mode and of the grid of digits that runs the block.
        entering: rows and columns of its tokens.
        order: their order, if it is not the reading order.
        images: the images.
        previous: the windows of the block before, if any.
    """
    run(reader := _UntilAttention(), entering)
    grid, rows, columns = entering, None, None
    found = None if reader.factors is None else _windows(*reader.factors, entering)
    if found is None and order is None:  # all tokens, maybe after some are merged
        grid = _fitting(reader.size, images) or entering
        members, heads_first = torch.arange(reader.size, device=images.device)[None], False
        if reader.size != math.prod(grid):
            return None
    elif found is None:
        return None
    else:
        members, heads_first, queries = found
        if order is not None or queries is not None:
            columns = members.argsort(1)[0]  # to reading order
            members = members[:, columns]
            if (members.diff(dim=1) < 0).any():
                return None
            columns = None if columns.diff().eq(1).all() else columns
        if queries is not None:
            rows = _pooled_rows(members, queries, entering)
            if rows is None:
                return None
    before = previous[0].grid if previous else entering
    merges = before == (2 * grid[0], 2 * grid[1])
    if grid != before and not merges:
        return None
    stage = (previous[0].stage if previous else 0) + (merges and bool(previous))
    layout = Windows(stage, grid, merges, members, heads_first, rows, columns, order)
    output = run(_WithoutAttention(), entering) if order is not None or rows is not None else None
    if output is None or output.ndim == 4:
        return layout
    leaving = _numbers(output, entering, pooled=rows is not None)
    return None if leaving is None else replace(layout, order=leaving)


def digits(grid: tuple[int, int], like: Tensor) -> Tensor:
    """Return the images of digits: all ones, all zeros, then each binary digit of rows and columns: (P, gh, gw, D)."""
    places = torch.meshgrid(*(torch.arange(side, device=like.device) for side in grid), indexing="ij")
    ones = [torch.ones_like(places[0]), torch.zeros_like(places[0])]
    ones += [place >> digit & 1 for place, side in zip(places, grid, strict=True) for digit in range(_digits(side))]
    zero, one = torch.randn(2, len(like), generator=torch.Generator().manual_seed(0)).to(like)
    return torch.where(torch.stack(ones).bool()[..., None], one, zero)


def _digits(side: int) -> int:
    """Return the number of binary digits of the numbers below `side`."""
    return max(1, (side - 1).bit_length())


def _images(grid: tuple[int, int]) -> int:
    """Return P, the number of images of digits."""
    return 2 + sum(map(_digits, grid))


def _read(places: Tensor, grid: tuple[int, int], pooled: bool = False) -> Tensor:
    """Return the number of the token at each place, -1 for padding: (P, ..., D) -> (...).

    With `pooled`, the places are of 2 x 2 tokens each, and the numbers are those of the merged tokens.
    """
    one, zero, rest = places[0], places[1], places[2:]
    are_ones = (rest - one).abs().sum(-1) < (rest - zero).abs().sum(-1)  # (P - 2, ...)
    split = are_ones.split([_digits(side) for side in grid])
    row, column = (
        sum((bits.long() << digit for digit, bits in enumerate(part)), torch.zeros_like(part[0], dtype=torch.long))
        for part in split
    )
    numbers = (row >> pooled) * (grid[1] >> pooled) + (column >> pooled)
    return torch.where((one == zero).all(-1), -1, numbers)


def _numbers(tokens: Tensor, grid: tuple[int, int], *, pooled: bool = False) -> Tensor | None:
    """Return the numbers of tokens (P * W, n / W, D), each of the grid once, or `None`: (W, n / W)."""
    count = _images(grid)
    if tokens.ndim != 3 or len(tokens) % count:
        return None
    numbers = _read(tokens.unflatten(0, (count, -1)), grid, pooled)
    total = math.prod(side >> pooled for side in grid)
    return numbers if numbers.flatten().sort().values.tolist() == [*range(total)] else None


def _windows(queries: Tensor, keys: Tensor, grid: tuple[int, int]) -> tuple[Tensor, bool, Tensor | None] | None:
    """Return windows (W, M), whether the axis of heads is in front of theirs, and the numbers of pooled queries.

    Args:
        queries, keys: (P * ..., Mq, d) and (P * ..., M, d), with axes of windows and heads in any order.
        grid: rows and columns of the tokens.
    """
    count, images, size = math.prod(grid), _images(grid), keys.shape[-2]
    if keys.shape[:-2].numel() % images:
        return None
    axes = keys.shape[1:-2] if keys.ndim == 5 else ()  # windows and heads
    keys = keys.reshape(images, -1, *keys.shape[-2:])
    total = keys.shape[1]
    for windows in (number for number in range(1, total + 1) if total % number == 0 and number * size >= count):
        for heads_first in (False, True) if axes else (False,):
            if axes and axes[heads_first] != windows:
                continue
            members = _read(_by_window(keys, windows, heads_first), grid)  # (W, M)
            tokens = members[members >= 0]
            if len(tokens) != count or tokens.sort().values.tolist() != [*range(count)]:
                continue
            members = torch.where(members < 0, count, members)
            if queries.shape[-2] == size:
                return members, heads_first, None
            if 4 * queries.shape[-2] != size or queries.shape[:-2].numel() % (images * windows):
                return None
            pooled = queries.reshape(images, -1, *queries.shape[-2:])
            return members, heads_first, _read(_by_window(pooled, windows, heads_first), grid, pooled=True)
    return None


def _by_window(keys: Tensor, windows: int, heads_first: bool) -> Tensor:
    """Return the keys of all heads of each token: (P, W * H or H * W, M, d) -> (P, W, M, H * d)."""
    parted = keys.unflatten(1, (-1, windows)).transpose(1, 2) if heads_first else keys.unflatten(1, (windows, -1))
    joined: Tensor = parted.transpose(2, 3).flatten(3)
    return joined


def _pooled_rows(members: Tensor, queries: Tensor, grid: tuple[int, int]) -> Tensor | None:
    """Return the row of the pooled query of each token of a window, (M,), or `None` if windows differ.

    Args:
        members: (W, M), tokens of each window.
        queries: (W, M / 4), the merged token of each query.
        grid: rows and columns of the tokens.
    """
    merged = members // grid[1] // 2 * (grid[1] // 2) + members % grid[1] // 2
    same = merged[:, :, None] == queries[:, None]  # (W, M, M / 4)
    rows = same.int().argmax(2)
    fits = bool((same.sum(2) == 1).all()) and bool((rows == rows[0]).all()) and not any(side % 2 for side in grid)
    return rows[0] if fits else None


def _fitting(count: int, images: Tensor) -> tuple[int, int] | None:
    """Return the rows and columns of a number of tokens in the shape of the images; `None` if there are none."""
    height, width = images.shape[2:]
    rows = round(math.sqrt(count * height / width))
    return (rows, count // rows) if rows and count % rows == 0 else None
