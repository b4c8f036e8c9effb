"""Count the memory of tensors as they are created and freed, independently of the allocator."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Allocations(TorchDispatchMode):
    """Record the largest storage of a tensor created inside, and the peak of all storages, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = self.alive = self.most = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known.add(storage)
                self.tensor, self.alive = max(self.tensor, storage.nbytes()), self.alive + storage.nbytes()
                self.most = max(self.most, self.alive)
                weakref.finalize(storage, self._gone, storage.nbytes())
        return result

    def _gone(self, nbytes: int) -> None:
        self.alive -= nbytes
