"""Find the windows of each block of a module by running it: which tokens attend to each other, and where they lie.

A block divides its tokens into windows before it computes queries and keys. Each token gets a number, whose binary
digits are the tokens of several images: one of two random vectors. The input of the block's linear maps then shows
which token is at which place of which window. This needs no settings of any library.

Shapes: B images, n = gh x gw tokens of a block, W windows of M tokens each, P images of digits, D width.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitviz.weights.parts import LOCK, Parts, first_input
from vitviz.weights.windows import Windows

SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
"""Functions of torch that compute a softmax."""


class _Attends(BaseException):
    """Raised where a block computes attention."""


class _UntilAttention(TorchFunctionMode):
    """Keep the inputs of linear maps until attention is computed; convolutions between neighbors add nothing.

    Attributes:
        inputs: the inputs, in order.
        size: M, the number of tokens of a window; 0 until attention is computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []
        self.size = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func is F.scaled_dot_product_attention or (func in SOFTMAX and args[0].ndim >= 3):
            self.size = args[0].shape[-2]
            raise _Attends
        result = func(*args, **kwargs or {})
        if func is F.conv2d and args[0].shape[1] != args[1].shape[1]:  # of single channels
            return torch.zeros_like(result)
        if func in (F.linear, F.conv2d):
            self.inputs.append(args[0])
        return result

    def run(self, block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], tokens: Tensor) -> None:
        """Run a block with other tokens as its first argument."""
        with self, suppress(_Attends):
            block(tokens, *inputs[1:], **named) if inputs else block(**named | {next(iter(named)): tokens})


@torch.inference_mode(mode=False)  # the result is used again, also in autograd graphs
@torch.no_grad()
def windows_of(module: nn.Module, parts: Parts, images: Tensor) -> tuple[tuple[int, int], tuple[Windows, ...]] | None:
    """Return the grid of tokens that enter the first block, and the windows of each block.

    Args:
        module: the module, in eval mode.
        parts: its blocks, which take tokens without a prefix: (B, n, D), (B, gh, gw, D) or (B, D, gh, gw).
        images: (B, channels, H, W); their pixels do not matter.

    Returns:
        `None` if a block does not divide its tokens in a way that this finds.
    """
    entered: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def enter(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        entered[block] = inputs, named

    with LOCK, ExitStack() as stack:
        for block in parts.blocks:
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
        module(images[:1] * 0)
    if len(entered) < len(parts.blocks):  # it does not run all of its blocks
        return None
    layouts: list[Windows] = []
    for block in parts.blocks:
        layout = _layout(block, *entered[block], block in parts.channels_first, images, layouts[-1:])
        if layout is None:
            return None
        layouts.append(layout)
    rows, columns = layouts[0].grid
    return (2 * rows, 2 * columns) if layouts[0].merges else (rows, columns), tuple(layouts)


def _layout(
    block: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
    channels_first: bool,
    images: Tensor,
    previous: Sequence[Windows],
) -> Windows | None:
    """Return the windows of a block; `previous` is the layout of the block before, if any."""
    x = first_input(inputs, named)
    entering = _grid(x, channels_first, images)
    if entering is None:
        return None
    once, count, grid = _UntilAttention(), math.prod(entering), entering
    once.run(block, inputs, named, x)
    size = once.size
    places = None if size == count else _places(block, inputs, named, channels_first, size)
    if places is None or (places.shape[1] == 1 and size < count):  # all tokens, maybe after some are merged
        grid = _fitting(size, images) or entering
        members = torch.arange(size, device=x.device)[None]
    else:
        members = _decoded(places, count)
    if members.flatten().sort().values[: math.prod(grid)].tolist() != list(range(math.prod(grid))):
        return None
    before = previous[0].grid if previous else entering
    merges = before == (2 * grid[0], 2 * grid[1])
    if grid != before and not merges:
        return None
    return Windows((previous[0].stage if previous else 0) + (merges and bool(previous)), grid, merges, members)


def _digits(tokens: Tensor, channels_first: bool) -> Tensor:
    """Return the images of digits: all ones, all zeros, then each binary digit of the tokens' numbers."""
    x = tokens.movedim(1, -1) if channels_first else tokens  # (1, ..., D)
    numbers = torch.arange(x[0, ..., 0].numel(), device=x.device)
    shifts = torch.arange(max(1, len(numbers).bit_length()), device=x.device)
    ones = torch.cat([torch.ones_like(numbers[None]), torch.zeros_like(numbers[None]), numbers >> shifts[:, None] & 1])
    generator = torch.Generator().manual_seed(0)
    zero, one = torch.randn(2, x.shape[-1], generator=generator).to(x)
    digits = torch.where(ones.bool().view(-1, *x.shape[1:-1], 1), one, zero)  # (P, ..., D)
    return digits.movedim(-1, 1) if channels_first else digits


def _places(
    block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], channels_first: bool, size: int
) -> Tensor | None:
    """Return the images of digits where they are in windows of M = `size` tokens: (P, W, M, D)."""
    digits = _digits(first_input(inputs, named), channels_first)
    reader = _UntilAttention()
    reader.run(block, inputs, named, digits)
    for x in reversed(reader.inputs):
        if x.ndim == 4 and math.prod(x.shape[2:]) == size and math.prod(x.shape[1:3]) != size:
            x = x.flatten(2).mT
        if x.shape[0] % len(digits) == 0 and (math.prod(x.shape[1:-1]) == size or x.shape[-2] == size):
            return x.reshape(len(digits), -1, size, x.shape[-1]).float()
    return None


def _decoded(places: Tensor, count: int) -> Tensor:
    """Return the number of the token at each place, `count` for padding: (P, W, M, D) -> (W, M)."""
    one, zero, digits = places[0], places[1], places[2:]
    are_ones = (digits - one).abs().sum(-1) < (digits - zero).abs().sum(-1)  # (P - 2, W, M)
    powers = 2 ** torch.arange(len(digits), device=places.device)
    numbers = (are_ones * powers[:, None, None]).sum(0)
    return torch.where((one == zero).all(-1), count, numbers)


def _grid(tokens: Tensor, channels_first: bool, images: Tensor) -> tuple[int, int] | None:
    """Return the rows and columns of tokens."""
    if tokens.ndim == 4:
        rows, columns = tokens.shape[2:] if channels_first else tokens.shape[1:3]
        return int(rows), int(columns)
    return _fitting(tokens.shape[1], images)


def _fitting(count: int, images: Tensor) -> tuple[int, int] | None:
    """Return the rows and columns of a number of tokens in the shape of the images; `None` if there are none."""
    height, width = images.shape[2:]
    rows = round(math.sqrt(count * height / width))
    return (rows, count // rows) if rows and count % rows == 0 else None
