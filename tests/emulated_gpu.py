"""Emulate a GPU: tensors that say cuda:0, compute on the CPU, and refuse what a GPU's tensors refuse.

On a machine with a GPU, `emulated_gpu` yields the real one, so that the same tests run on it.

PyTorch's C++ code sees a CPU tensor, so that autograd and autocast work without a driver. Python code sees the device
`cuda:0`. Operations on tensors of two devices and `.numpy()` are refused. The current thread and those that it starts
have the GPU; other processes do not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

REAL = torch.cuda.is_available()
GPU, CPU = torch.device("cuda:0"), torch.device("cpu")
aten = torch.ops.aten
MOVES = {Tensor.to, Tensor.cuda, Tensor.cpu}
# A GPU's operations also accept these tensors of the CPU: sources of copies, and indices.
TAKE_BOTH = (aten.copy_, aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)


class OnGPU(Tensor):
    """A tensor of the emulated GPU; `inner` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGPU:
        """Wrap a tensor of the CPU."""
        wrapper = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        wrapper.inner = inner
        return wrapper

    @property
    def device(self) -> torch.device:
        """Return cuda:0."""
        return GPU

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def numpy(self, **_: Any) -> Any:
        """Raise as a tensor of a GPU does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: Any) -> Any:
        """Raise as a tensor of a GPU does."""
        return self.numpy()

    def __reduce_ex__(self, _: Any) -> Any:
        """Return what `torch.save` writes."""
        return OnGPU, (self.inner,)

    def untyped_storage(self) -> Any:
        """Return the storage of the numbers."""
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        """Return the address of the numbers."""
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        """Return the numbers."""
        return self.inner.tolist()

    def __repr__(self) -> str:
        return f"OnGPU({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU after checking that all tensors are on the GPU."""
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        foreign = [value for value in tensors if not isinstance(value, OnGPU) and value.dim() > 0]
        if foreign and func.overloadpacket not in TAKE_BOTH:
            raise RuntimeError(f"Expected all tensors on the same device, got cuda:0 and cpu in {func}.")
        if func.overloadpacket is aten._scaled_dot_product_efficient_attention:
            func, args = aten._scaled_dot_product_flash_attention_for_cpu.default, args[:3]
        result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if func.overloadpacket is aten.copy_ and not isinstance(args[0], OnGPU):
            return args[0]
        wrapped = tree_map(lambda value: OnGPU(value) if isinstance(value, Tensor) else value, result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnGPU) else CPU if value == GPU else value


class _ToGPU(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        return OnGPU(tensor.detach().clone())

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.inner if isinstance(gradient, OnGPU) else gradient


class _ToCPU(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        return tensor.inner.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return OnGPU(gradient)


class _Places(TorchFunctionMode):
    """Create tensors on the device that the caller names, and move them between devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (F.one_hot, Tensor.new_tensor) and isinstance(args[0], OnGPU):  # C++ code that creates a tensor
            return OnGPU(func(args[0].inner, *args[1:], **kwargs))
        if func in MOVES:
            return _move(func, args[0], args[1:], kwargs)
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        created = func(*tree_map(_inner, args), **{**kwargs, "device": CPU})
        if torch.device(device).type != "cuda":
            return created
        return OnGPU(created.detach()).requires_grad_(created.requires_grad)


def _move(func: Any, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return a tensor on the device and with the type that the arguments of `Tensor.to` or its relatives name."""
    target = {Tensor.cuda: GPU, Tensor.cpu: CPU}.get(func)
    rest = []
    for value in (*args, kwargs.pop("device", None)):
        if isinstance(value, Tensor):
            target, rest = value.device, [*rest, value.dtype]
        elif isinstance(value, str | torch.device):
            target = torch.device(value)
        elif isinstance(value, torch.dtype):
            rest.append(value)
    on_gpu = isinstance(tensor, OnGPU)
    if target is not None and (target.type == "cuda") != on_gpu:
        tensor = _ToCPU.apply(tensor) if on_gpu else _ToGPU.apply(tensor)
    with torch._C.DisableTorchFunction():
        return Tensor.to(tensor, *rest, **kwargs) if rest or kwargs else tensor


@contextmanager
def emulated_gpu() -> Iterator[torch.device]:
    """Yield the device of a GPU that this machine has, or seems to have."""
    if REAL:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # convolutions as exact as the CPU's
            yield GPU
        return
    autocast = torch.autocast

    def on_cpu(kind: str, *args: Any, **kwargs: Any) -> torch.autocast:
        return autocast("cpu" if kind == "cuda" else kind, *args, **kwargs)

    run = threading.Thread.run

    def run_with_gpu(thread: threading.Thread) -> None:
        with _Places():
            run(thread)

    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    fakes = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.get_device_name": lambda *_: "emulated GPU",
        "torch.cuda.mem_get_info": lambda *_: (8 * 2**30, 16 * 2**30),
        "torch.cuda.memory_reserved": lambda *_: 0,
        "torch.cuda.memory_allocated": lambda *_: 0,
        "torch.cuda.synchronize": lambda *_: None,
        "torch.accelerator.synchronize": lambda *_: None,
        "torch.cuda.set_device": lambda *_: None,
        "torch.cuda.get_rng_state": lambda *_: torch.get_rng_state(),
        "torch.cuda.set_rng_state": lambda *_: None,
        "threading.Thread.run": run_with_gpu,
        "torch.autocast": on_cpu,
        "torch.is_autocast_enabled": lambda kind="cpu": enabled("cpu" if kind == "cuda" else kind),
        "torch.get_autocast_dtype": lambda kind: dtype("cpu" if kind == "cuda" else kind),
        "torch.amp.is_autocast_available": lambda _: True,
    }
    patches = [patch(name, fake) for name, fake in fakes.items()]
    for each in patches:
        each.start()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter's class changes with its device
    try:
        with _Places():
            yield GPU
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        for each in patches:
            each.stop()
