"""Verify a converted model against the module that it was converted from, on random images.

Comparing logits alone is not enough: behind a layer scale of 1e-5, a wrong activation changes them by less than 1e-4.
So what each attention and each MLP adds to the tokens is compared, relative to its largest entry. To keep rounding
errors from growing from block to block, every part of the converted model gets the tokens of the module.

Shapes: B images, N tokens, D width, C classes.
"""

import copy
import inspect
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitviz.errors import first_line
from vitviz.model.config import ViTConfig
from vitviz.model.ops import Ops
from vitviz.model.vit import ViT
from vitviz.weights.checks import ConvertError

TOLERANCE = 1e-5
"""Largest difference from the module, relative to the largest entry of what is compared."""

_ADD = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
_TOWERS = ("vision_model", "vision_encoder")  # of transformers' models of images and texts, or prompts


class VerifyError(ConvertError):
    """Raised when a converted model computes something else than its source."""


def verify(model: ViT, source: nn.Module) -> None:
    """Check that a converted model computes what its source computes, at its input size and at another one.

    The source is copied: its mode, buffers, gradients, hooks and the states of random numbers stay as they are. The
    copy shares the parameters in float32; others are compared after conversion to float32. Hooks run on the copy.

    Args:
        model: the converted model, on the device of `source`.
        source: a module of timm, torchvision or transformers.

    Raises:
        VerifyError: if the source does not run, or if an attention, an MLP or an output differs by more than
            `TOLERANCE`. The message names the first part that differs, and by how much.
    """
    native, device = _native_size(source, model.config), model.patch_embed.proj.weight.device
    with _undisturbed(device):
        try:
            theirs = _float_copy(source)
        except Exception as error:  # `__deepcopy__` may be anybody's
            raise _failed("could not be copied", error) from error
        for height, width in _sizes(model.config, native):
            images = torch.randn(1, model.config.channels, height, width, generator=torch.Generator().manual_seed(0))
            try:
                with Additions(model.config.width) as additions:
                    result = run_source(theirs, images.to(device), model.config, native)
            except Exception as error:  # the source's own error
                if (height, width) != native:
                    continue  # it takes only its own size
                raise _failed("does not run on images of its size", error) from error
            patch = model.config.patch_size
            images = images[..., : height // patch * patch, : width // patch * patch]
            registers_last = "YolosEmbeddings" in {type(module).__name__ for module in theirs.modules()}
            _compare(model, images.to(device), additions.stream(), result, registers_last)


def verified(model: ViT, source: nn.Module) -> ViT:
    """Return a converted model after `verify`, on the device of its source."""
    device = next((parameter.device for parameter in source.parameters()), torch.device("cpu"))
    verify(model.to(device), source)
    return model


def _failed(what: str, error: Exception) -> VerifyError:
    line = f"{first_line(error):.200}"
    return VerifyError(f"Expected a model to compare with, got one that {what}: {line}. Check the model.")


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Compute in exact float32 without gradients, and restore the states of all random numbers."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state of the caller's program
    with ExitStack() as stack:
        devices = [device] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(torch.backends.cudnn.flags(allow_tf32=False))
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _float_copy(source: nn.Module) -> Any:
    """Copy a module in eval mode, in float32; parameters in float32 are shared."""
    shared: dict[int, Any] = {}
    for tensor in (*source.parameters(), *_plain_tensors(source)):
        if tensor.is_floating_point():
            own = tensor.detach().float()
            shared[id(tensor)] = nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own
    return copy.deepcopy(source, shared).float().eval()


def _plain_tensors(source: nn.Module) -> Iterator[Tensor]:
    """Yield tensors with a gradient that are plain attributes, which cannot be copied."""
    for module in source.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor) and not value.is_leaf)


def _native_size(source: Any, config: ViTConfig) -> tuple[int, int]:
    """Return the source's input size (height, width); it need not be a multiple of the patch size."""
    settings = getattr(source, "config", None)
    stated = getattr(getattr(source, "patch_embed", None), "img_size", None)
    stated = stated or getattr(getattr(settings, "vision_config", settings), "image_size", None)
    sides = tuple(stated) if isinstance(stated, Sequence) else (stated, stated)
    fits = all(isinstance(side, int) for side in sides) and len(sides) == 2
    fits = fits and tuple(side // config.patch_size * config.patch_size for side in sides) == config.image_size
    return sides if fits else config.image_size


def _sizes(config: ViTConfig, native: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the source's input size, and a smaller size with more columns than rows."""
    if config.frames > 1:
        return [native]
    step, (rows, columns) = config.size_multiple, config.grid
    factor = step // config.patch_size
    rows, columns = max(1, rows // factor // 2), max(1, columns // factor // 2) + 1
    return [native, (rows * step, columns * step)]


# --- the source


def run_source(source: Any, images: Tensor, config: ViTConfig, native: tuple[int, int]) -> Any:
    """Run a module on images (B, channels, H, W), in the form that it expects."""
    known = inspect.signature(source.forward).parameters
    if "pixel_values" not in known:
        return source(images)
    if not any("Classification" in kind.__name__ for kind in type(source).__mro__):  # other heads are left out
        base = source.base_model  # in some models, this is a part that takes tokens
        source = base if "pixel_values" in inspect.signature(base.forward).parameters else source
        source = next((getattr(source, name) for name in _TOWERS if hasattr(source, name)), source)
        known = inspect.signature(source.forward).parameters
    more: dict[str, Any] = {}
    if "interpolate_pos_encoding" in known and tuple(images.shape[2:]) != native:
        more["interpolate_pos_encoding"] = True
    if "noise" in known:  # MAE keeps all patches in their order
        source.config.mask_ratio = 0.0
        more["noise"] = torch.arange(images[0, 0].numel() // config.patch_size**2, device=images.device).float()[None]
    if "spatial_shapes" in known:  # SigLIP 2 takes flattened patches (B, gh * gw, p * p * 3)
        side = config.patch_size
        rows, columns = images.shape[2] // side, images.shape[3] // side
        cut = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))  # (B, 3, gh, p, gw, p)
        images = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        shapes = torch.tensor([[rows, columns]])
        more |= {"spatial_shapes": shapes, "pixel_attention_mask": torch.ones(images.shape[:2], device=images.device)}
    if config.frames > 1:  # pictures of tubes to frames: (B, C, T' H, W) -> (B, T, 3, H, W)
        cut = images.unflatten(2, (config.frames, -1)).unflatten(1, (-1, source.config.num_channels))
        images = cut.permute(0, 3, 1, 2, 4, 5).flatten(1, 2)
    return source(pixel_values=images, **more)


@dataclass(frozen=True)
class Addition:
    """Addition of two tensors (B, N, D) at these addresses, of which one holds the tokens before."""

    operands: tuple[Tensor, Tensor]
    addresses: tuple[int, int]
    total: Tensor


class Additions(TorchDispatchMode):
    """Record the additions of tensors as wide as a model's tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.width, self.recorded = width, list[Addition]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and record it if it is an addition."""
        kwargs = kwargs or {}
        tensors = all(isinstance(x, Tensor) and x.ndim > 1 and x.shape[-1] == self.width for x in args[:2])
        if func not in _ADD or not tensors:
            return func(*args, **kwargs)
        first, second = args
        addresses = first.data_ptr(), second.data_ptr()
        first = first.clone() if func is _ADD[1] else first  # changed in place
        total = func(*args, **kwargs)
        self.recorded.append(Addition((first, second * kwargs.get("alpha", 1)), addresses, total))
        return total

    def stream(self) -> list[Addition]:
        """Return the additions to the tokens in order: the longest sequence of which each adds to the last sum."""
        chains: dict[int, list[Addition]] = {}
        longest: list[Addition] = []
        for addition in self.recorded:
            before = next((address for address in addition.addresses if address in chains), None)
            chain = [] if before is None else chains.pop(before)
            chain.append(addition)
            chains[addition.total.data_ptr()] = chain
            longest = max(longest, chain, key=len)
        return longest


# --- comparison


class Compared(Ops):
    """Operations that compare every addition to the tokens with a module's, and continue with its sum.

    Args:
        expected: tokens before the first block, and after every addition.
        branches: what each addition adds, (B, N, D).
        parts: name of each addition for messages.
    """

    def __init__(self, expected: Sequence[Tensor], branches: Sequence[Tensor], parts: Sequence[str]) -> None:
        super().__init__()
        self.expected, self.branches, self.parts, self.done = expected, branches, parts, 0

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """Compare a branch that is added to the tokens; add other branches."""
        if not self._adds_to_tokens(x):
            return super().add(x, branch)
        return self._continue(branch)

    def shift(self, x: Tensor, constant: Tensor) -> Tensor:
        """Compare positions that are added between blocks."""
        return self._continue(constant) if self._adds_to_tokens(x) else super().shift(x, constant)

    def _adds_to_tokens(self, x: Tensor) -> bool:
        return self.done < len(self.branches) and x.data_ptr() == self.expected[self.done].data_ptr()

    def _continue(self, branch: Tensor) -> Tensor:
        compare(self.parts[self.done], branch, self.branches[self.done])
        self.done += 1
        return self.expected[self.done]


def compare(part: str, ours: Tensor, theirs: Tensor) -> None:
    """Compare what a part computes with the source.

    Raises:
        VerifyError: if the difference is larger than `TOLERANCE`, relative to the largest entry of `theirs`.
    """
    if ours.shape != theirs.shape:
        got = f"the shape {tuple(theirs.shape)} instead of {tuple(ours.shape)}"
    elif not (difference := (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)) <= TOLERANCE:  # or NaN
        got = f"a difference of {float(difference):.1e} relative to the largest entry"
    else:
        return
    raise VerifyError(
        f"Expected a model that computes what its class and parameters say, got one that differs in {part}: {got}. "
        "Remove hooks, replaced methods and changed settings, which have this effect."
    )


def _compare(model: ViT, images: Tensor, additions: list[Addition], result: Any, registers_last: bool) -> None:
    """Compare the additions and outputs for images (B, channels, H, W)."""
    config = model.config
    tokens, grid = model.embed(images)
    halves = ["block {}"] if config.parallel else ["the attention of block {}", "the MLP of block {}"]
    halves += ["the positions after block {}"] * config.table.between
    parts = [half.format(index) for index in range(config.depth) for half in halves]
    parts = parts[: len(parts) - config.table.between]  # none after the last block
    if len(additions) < len(parts):
        raise VerifyError(
            f"Expected {len(parts)} additions to the tokens in its blocks, got {len(additions)}. Undo its changes."
        )
    order = torch.arange(tokens.shape[1])
    if registers_last:
        order = torch.cat([order[:1], order[-config.registers :], order[1 : -config.registers]])
    expected, branches = _unzip(additions[len(additions) - len(parts) :], tokens, order)
    compare("the input of block 0", tokens, expected[0])
    ours = model.run(expected[0], model.angles(grid), ops=Compared(expected, branches, parts))
    compare("its output", *_closest(ours, result, config))


def _unzip(additions: Sequence[Addition], tokens: Tensor, order: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tokens before each addition and after the last one, and the branches: (B, N, D) each."""
    expected, branches = list[Tensor](), list[Tensor]()
    for index, addition in enumerate(additions):
        operands = [_ordered(operand.expand_as(addition.total), tokens, order) for operand in addition.operands]
        if index:
            second = addition.addresses[0] != additions[index - 1].total.data_ptr()
        else:
            second = _distance(operands[1], tokens) < _distance(operands[0], tokens)
        expected.append(operands[second])
        branches.append(operands[not second])
    return [*expected, _ordered(additions[-1].total, tokens, order)], branches


def _ordered(theirs: Tensor, tokens: Tensor, order: Tensor) -> Tensor:
    """Return a source's tokens in our order and shape if there are as many; they may be on a grid (B, gh, gw, D)."""
    return theirs.reshape_as(tokens)[:, order] if theirs.numel() == tokens.numel() else theirs


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")


def _closest(ours: Tensor, result: Any, config: ViTConfig) -> tuple[Tensor, Tensor]:
    """Return our output and the source's: its logits, or else its features or tokens that are closest to ours."""
    if isinstance(result, Tensor):
        return ours, result
    if getattr(result, "logits", None) is not None:
        return ours, result.logits
    features = list[Tensor]()
    values = result if isinstance(result, tuple | list) else result.values()
    for tensor in (value for value in values if isinstance(value, Tensor)):
        if tensor.ndim == 3:  # tokens (B, N, D)
            features += [tensor[:, 0], tensor.mean(1), tensor[:, len(config.prefix) :].mean(1)]
        features.append(tensor.flatten(2).mean(2) if tensor.ndim == 4 else tensor)  # (B, D, gh, gw) or (B, D)
    return ours, min(features, key=lambda each: _distance(ours, each), default=ours)
