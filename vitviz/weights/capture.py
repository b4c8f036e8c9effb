"""Run any module once, as it is, and observe its attention.

A `TorchFunctionMode` sees `scaled_dot_product_attention` (queries and keys after rotary positions, mask, scale, shared
keys) and `softmax`. It is off while it handles a function, so functions that call others inside are handled here:
`F.multi_head_attention_forward` runs as a copy that does not ask for modes, with the mode on, and a
`TorchDispatchMode` below autograd reads the row sums that the fused kernel computes anyway. The module that
makes a call is found among the callers. Hooks record the tokens between blocks of a known class, for this run.

Shapes: B images, H heads, n queries, N keys, d head width.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vitviz.formatting import describe_bytes
from vitviz.model.memory import available_bytes
from vitviz.model.trace import packed
from vitviz.weights.captured import Call, Captured, CapturedWindows, CaptureError, Mask, Tokens
from vitviz.weights.layouts import SOFTMAX
from vitviz.weights.tokens import parts_of, tokens_of

CHECK_BYTES = 64 * 2**20  # asking for the free memory takes milliseconds
CUT = -1e4  # a logit whose exponential is 0 in float32, and which half precision holds
MULTI_HEAD = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda _tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
MULTI_HEAD.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


def capture(
    module: nn.Module,
    *inputs: Any,
    grad: bool = False,
    grid: tuple[int, int] | None = None,
    prefix: Sequence[str] = (),
    **named: Any,
) -> Captured:
    """Run a module once, as it is, and return its attention calls. Nothing is converted, and the module is unchanged.

    A module with attention windows runs once more, on a blank image, for each new image size, to find its windows.
    Memory grows with the number of tokens where queries and keys are observed and the mask is `None`, causal, or the
    same for all queries. Other masks are kept once. Where only a softmax is observed, its probabilities are kept in
    16 bits.

    >>> import torch, vitviz
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    >>> captured = vitviz.capture(layer, torch.zeros(1, 12, 16), grid=(3, 4))
    >>> captured.calls[0].name, captured.row(0, (2, 3)).shape
    ('self_attn', torch.Size([1, 2, 12]))

    Args:
        module: in eval mode. A compiled module runs uncompiled.
        inputs, named: arguments of the module.
        grad: keep the probabilities of all calls in the autograd graph; `Captured.output` then has gradients.
        grid: (gh, gw), rows and columns of patches, if the class of the module is not known.
        prefix: names of the tokens in front of the patches, such as "CLS", if `grid` is given.

    Raises:
        CaptureError: for a module in training mode, a scripted module, attention that cannot be observed or does not
            fit into memory.
    """
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(
            f"Expected a Python module, got {type(module).__name__}, whose operations cannot be observed. Pass the "
            "module from which it was made."
        )
    if module.training:
        raise CaptureError("Expected a module in eval mode, got one in training mode. Call module.eval().")
    tensors = [value for value in (*inputs, *named.values()) if isinstance(value, Tensor)]
    places = tokens_of(module, tensors) if grid is None else Tokens((grid[0], grid[1]), tuple(prefix))
    parts = parts_of(module) if grid is None and places is not None else None
    parts = parts.ordered(places.layouts) if parts and places else None
    observer, streams = Observer(module, grad), list[Tensor]()
    with as_it_is(grad, tensors), parts.recorded() if parts else nullcontext(streams) as streams, observer:
        output = module(*inputs, **named)
    if not observer.calls:
        raise CaptureError(
            f"Expected a module that computes attention by scaled_dot_product_attention or softmax, got "
            f"{type(module).__name__}, which called neither. If it has a choice, such as "
            "attn_implementation='sdpa' of transformers, choose one of these."
        )
    batch = len(tensors[0]) if tensors and tensors[0].ndim else observer.calls[0].shape[0]
    once = parts is not None and len(streams) == len(parts.blocks) + 2  # no block ran twice
    kept = [*streams[:-2], streams[-1]] if once else []  # without the last block's output
    kind = CapturedWindows if places and places.layouts else Captured
    return kind(tuple(observer.calls), output, batch, places, streams=tuple(map(_beside, kept)))


@contextmanager
def as_it_is(grad: bool, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Run without compilation, with or without an autograd graph, and restore the random number generators."""
    with ExitStack() as stack:
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(sorted(devices, key=str)))
        if grad:
            stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.set_grad_enabled(grad))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@dataclass(frozen=True, eq=False)
class Attention:
    """Arguments of `F.scaled_dot_product_attention`, in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def factor(self) -> float:
        """Return the factor of the logits."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else float(self.scale)

    def probabilities(self) -> Tensor:
        """Return the attention probabilities, in the autograd graph: (..., n, N)."""
        return probabilities_of(self.query, self.key, self.attn_mask, self.is_causal, self.factor)

    def run(self) -> Tensor:
        """Compute the attention output with the original function: (..., n, d)."""
        output: Tensor = F.scaled_dot_product_attention(
            self.query, self.key, self.value, self.attn_mask, self.dropout_p, self.is_causal, scale=self.scale,
            enable_gqa=self.enable_gqa,
        )  # fmt: skip
        return output


class Observer(TorchFunctionMode):
    """Record the attention calls of a module.

    Args:
        module: the module.
        grad: compute probabilities explicitly, in the autograd graph.
    """

    def __init__(self, module: nn.Module, grad: bool) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._grad = grad
        self._names = {id(part): name for name, part in module.named_modules()}
        self._masks: dict[Any, tuple[Tensor, Mask]] = {}  # with the tensor, so that its address stays its own
        self._heads: int | None = None  # of the running `F.multi_head_attention_forward`
        self._unchecked = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, and record it if it computes attention."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(Attention(*args, **kwargs))
        if func in SOFTMAX:
            return self._softmax(func, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            heads, self._heads = self._heads, inspect.signature(func).bind(*args, **kwargs).arguments["num_heads"]
            with self:
                result = MULTI_HEAD(*args, **kwargs)
            self._heads = heads
            return result
        return func(*args, **kwargs)

    def _attend(self, call: Attention) -> Tensor:
        """Record and compute scaled dot-product attention."""
        query, key = call.query, call.key
        if call.dropout_p:
            raise CaptureError(f"Expected no dropout in attention, got {call.dropout_p}. Call module.eval().")
        shape = (*query.shape[:-1], key.shape[-2])
        if self._grad:
            self._reserve(3 * math.prod(shape) * query.element_size(), query.device)  # with logits and gradient
            return self._in_graph(call.probabilities()) @ _shared(call.value, query)
        mask = self._mask(call.attn_mask, call.is_causal)
        self._reserve(query.nbytes + key.nbytes, query.device)
        with _RowSums() as kernel:
            output = call.run()
        if torch.is_autocast_enabled(query.device.type):
            query, key = (part.to(torch.get_autocast_dtype(query.device.type)) for part in (query, key))
        parts = {"queries": _kept(query), "keys": _kept(key), "scale": call.factor, "mask": mask}
        if kernel.sums is not None and kernel.sums.numel():
            parts["kernel_sums"] = _kept(kernel.sums.flatten()[: math.prod(shape[:-1])].reshape(shape[:-1]))
        self._add(shape, **parts)
        return output

    def _softmax(self, func: Callable[..., Tensor], logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute a softmax, and record it if it may be attention: over the last of at least three axes."""
        probabilities = func(logits, *args, **kwargs)
        dim = kwargs.get("dim", args[0] if args else None)
        if probabilities.ndim < 3 or dim not in (-1, probabilities.ndim - 1):
            return probabilities
        self._reserve(3 * probabilities.nbytes if self._grad else 2 * probabilities.numel(), probabilities.device)
        if self._grad:
            return self._in_graph(probabilities)
        self._add(tuple(probabilities.shape), probabilities=_kept(packed(probabilities)))
        return probabilities

    def _in_graph(self, probabilities: Tensor) -> Tensor:
        """Record probabilities, and return them as a function of what is recorded."""
        self._add(tuple(probabilities.shape), probabilities=probabilities)
        recorded = self.calls[-1].probabilities
        assert recorded is not None
        if not recorded.requires_grad:
            recorded.requires_grad_()  # frozen weights: the graph starts here
        return recorded.reshape(probabilities.shape)

    def _add(self, shape: tuple[int, ...], **parts: Any) -> None:
        """Record an attention call; tensors with merged heads (B * H, n, ...) are reshaped to (B, H, n, ...)."""
        name, caller = self._caller()
        heads = self._heads or getattr(caller, "num_heads", None) or getattr(caller, "num_attention_heads", None)
        heads = heads if len(shape) == 3 and heads and shape[0] % heads == 0 else None
        view = partial(_by_head, heads=heads)
        if heads and "mask" in parts:
            parts["mask"] = parts["mask"].by_head(heads)
        tensors = {part: view(tensor) for part, tensor in parts.items() if isinstance(tensor, Tensor)}
        if "kernel_sums" in tensors:
            tensors["kernel_sums"] = view(parts["kernel_sums"][..., None]).squeeze(-1)
        batch, count, rows, columns = view(torch.empty(shape, device="meta")).shape
        self.calls.append(Call(name, type(caller).__name__, (batch, count, rows, columns), **parts | tensors))

    def _caller(self) -> tuple[str, Any]:
        """Return the name of the innermost running module, and the module."""
        # The locals of a frame that refers to itself, such as this one, would keep all tensors below it alive.
        frame = sys._getframe(1)
        while (frame := frame.f_back) is not None:  # type: ignore[assignment]
            for variable in ("self", "module"):  # attention functions of transformers have the second
                owner = frame.f_locals.get(variable)
                if id(owner) in self._names and not isinstance(owner, nn.Softmax):
                    return self._names[id(owner)], owner
        return "", None

    def _mask(self, mask: Tensor | None, causal: bool) -> Mask:
        """Return a mask in its smallest form; each tensor is examined and kept once."""
        if mask is None:
            return Mask(causal=causal)
        place = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)
        if place not in self._masks:
            self._reserve(mask.nbytes, mask.device)
            smallest = _smallest(mask)
            if smallest.rows is not None:  # computed from queries, for one call
                return smallest
            self._masks[place] = mask, smallest
        return self._masks[place][1]

    def _reserve(self, nbytes: int, device: torch.device) -> None:
        """Raise an error if tensors of this size do not fit into memory beside those that are kept."""
        self._unchecked += nbytes
        if self._unchecked < CHECK_BYTES:
            return
        free, self._unchecked = available_bytes(device), 0
        if free is not None and nbytes > free:
            advice = " or grad=False." if self._grad else "."
            raise CaptureError(
                f"Expected attention that fits into memory, got a call that keeps {describe_bytes(nbytes)}, and "
                f"{describe_bytes(free)} are free. Use a smaller input{advice}"
            )


class _RowSums(TorchDispatchMode):
    """Keep the log-sum-exp of each row, (B, H, n), which the kernel of fused attention returns as second output."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sums: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation below autograd."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in ("scaled_dot_product_attention", "_scaled_dot_product_attention_math"):  # in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        if name == "_scaled_dot_product_efficient_attention":
            args = (*args[:4], True, *args[5:])  # the same kernel also writes the sums
        result = func(*args, **kwargs)
        if name.startswith("_scaled_dot_product_"):
            self.sums = result[1]
        return result


def probabilities_of(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return softmax(scale * query @ key.T + mask), in the autograd graph: (..., n, N)."""
    logits = (query * scale) @ _shared(key, query).mT  # (..., n, d) @ (..., d, N)
    if causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    probabilities: Tensor = torch.ops.aten._safe_softmax(logits, -1)  # zeros in a row without keys
    return probabilities


def _shared(keys: Tensor, query: Tensor) -> Tensor:
    """Repeat keys or values of grouped-query attention for each head of queries."""
    if keys.ndim < 4 or keys.shape[-3] == query.shape[-3]:
        return keys
    return keys.repeat_interleave(query.shape[-3] // keys.shape[-3], dim=-3)


def _kept(tensor: Tensor) -> Tensor:
    """Return a copy beside the graph: a view would keep the buffer of queries, keys and values alive."""
    with torch.inference_mode(mode=False), torch.no_grad():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _beside(tokens: Tensor) -> Tensor:
    """Return tokens beside the graph, which later graphs may use; a view unless they were computed in inference."""
    return _kept(tokens) if tokens.is_inference() else tokens.detach()


def _smallest(mask: Tensor) -> Mask:
    """Return a mask that is the same for all queries, or causal beside that, as such: (..., n or 1, N)."""
    for axis, stride in enumerate(mask.stride()):
        mask = mask.narrow(axis, 0, 1) if stride == 0 else mask  # expanded
    last = mask[..., -1:, :]  # (..., 1, N)
    cut = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    square = mask.shape[-2] == mask.shape[-1]
    later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
    if mask.shape[-2] == 1 or torch.equal(mask, last.expand_as(mask)):
        return Mask(keys=_of_keys(last))
    if (decomposed := _of_rows_and_columns(mask)) is not None:
        return decomposed
    if square and torch.equal(mask.masked_fill(later, cut), last.expand_as(mask).masked_fill(later, cut)):
        hidden = mask[..., later]
        if not (hidden if mask.dtype == torch.bool else hidden > CUT).any():
            return Mask(keys=_of_keys(last), causal=True)
    return Mask(pairs=_kept(mask.reshape((1,) * (4 - mask.ndim) + mask.shape)))


def _of_rows_and_columns(mask: Tensor) -> Mask | None:
    """Return a mask as numbers of a query for rows and for columns of a square of keys, if it is a sum of these (SAM).

    It is checked head by head, because masks of all heads may be large: (..., n, N).
    """
    side = math.isqrt(mask.shape[-1])
    if mask.dtype == torch.bool or side < 2 or side**2 != mask.shape[-1]:
        return None
    squares = mask.reshape(-1, mask.shape[-2], side, side)  # (H, n, r, c)
    rows, columns = squares[..., 0], squares[..., 0, :] - squares[..., 0, :1]
    for square, row, column in zip(squares, rows, columns, strict=True):
        if not (row[..., None] + column[:, None] - square).abs().max() <= 1e-5 * square.abs().max():  # or NaN
            return None
    shape = *(1,) * (4 - mask.ndim), *mask.shape[:-1], side
    return Mask(rows=_kept(rows.reshape(shape)), columns=_kept(columns.reshape(shape)))


def _of_keys(row: Tensor) -> Tensor | None:
    """Return the numbers added to the logits of each key, (B or 1, H or 1, N); `None` for zeros: (..., 1, N)."""
    row = torch.where(row, 0.0, CUT) if row.dtype == torch.bool else row.clamp_min(CUT)
    row = row.reshape((1,) * (4 - row.ndim) + row.shape).squeeze(2)
    return _kept(row) if row.any() else None


def _by_head(tensor: Tensor, heads: int | None) -> Tensor:
    """Return a tensor (..., n, x) as (B, H, n, x); one with three axes has one head, or H heads for each image."""
    if tensor.ndim > 4:
        return tensor.flatten(0, -4)
    if tensor.ndim == 3:
        return tensor[:, None] if heads is None else tensor.unflatten(0, (-1, heads))
    return tensor[None, None] if tensor.ndim == 2 else tensor
