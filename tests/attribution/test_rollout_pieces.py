"""Rollout of large inputs, in pieces: exact, whatever their size, and within the memory that it says."""

import weakref
from typing import Any

import pytest
import torch
from attention_numpy import close, keep, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import vitviz.attribution.attention
import vitviz.model.trace
from vitviz.attribution.attention import WORK_BYTES, entry_in_order, fuse_heads, rollout, rollout_matrix
from vitviz.model.trace import BlockTrace, Query, Trace


def exact(kept: BlockTrace, flow: torch.Tensor, fuse: str, discard: float, prefix: int) -> torch.Tensor:
    """`flow` (B, N) times the fused matrix, dense; the weakest by `kthvalue`: an entry goes if it is below that."""
    matrix = torch.cat([fuse_heads(kept, fuse, start, stop) for start, stop in kept.chunks()], dim=1)
    for image in matrix:
        count = int(discard * image.numel())
        least = image.flatten().kthvalue(count + 1).values
        for row in image:
            gone = row < least
            gone[:prefix] = False
            gone[row.argmax()] = False
            row[gone] = 0.0
            row /= row.sum()
    return torch.einsum("bn,bnm->bm", flow.double(), matrix.double())


@settings(max_examples=40)
@given(
    fuse=st.sampled_from(["mean", "max", "min"]),
    discard=st.floats(0.005, 0.999),
    rows=st.integers(1, 16),
    held=st.booleans(),
    levels=st.sampled_from([0, 2, 3, 8]),
    seed=st.integers(0, 99),
)
def test_discard_in_pieces_is_the_dense_result(
    fuse: str, discard: float, rows: int, held: bool, levels: int, seed: int
) -> None:
    """Any share, any size of pieces, with many equal entries (logits of a few levels) or none."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 5, 16, 7, generator=generator) for _ in range(2))
    if levels:
        q, k = (torch.randint(0, levels, t.shape, generator=generator).float() for t in (q, k))
    kept = keep(q, k)
    flow = torch.rand(2, 16, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vitviz.model.trace, "CHUNK_BYTES", 4 * 2 * 5 * 16 * rows)
        patch.setattr(vitviz.attribution.attention, "WORK_BYTES", 4 * 2 * 2 * 16 * 16 - (not held))
        trace = Trace(None, torch.zeros(2, 16, 3), (3, 5), ("CLS",), (0,), (kept,), 1)
        for query, weights in (("cls", torch.eye(16)[[0, 0]]), (7, torch.eye(16)[[7, 7]]), ("mean", None)):
            weights = trace.weights("mean") if weights is None else weights
            ours = whole(rollout(trace, query, fuse=fuse, discard=discard, residual=0.0))
            close(ours, exact(kept.open(), weights, fuse, discard, 1), 1e-6)
            assert torch.equal(ours == 0.0, exact(kept.open(), weights, fuse, discard, 1) == 0.0)
        matrix = rollout_matrix(trace, fuse=fuse, discard=discard, residual=0.0)
        close(torch.einsum("bn,bnm->bm", flow, matrix), exact(kept.open(), flow, fuse, discard, 1), 1e-6)


FLOATS = st.floats(0.0, 2.0, width=32) | st.sampled_from([0.0, 1.0, 1e-45, 1.1754944e-38, 0.5, 0.50000006])


@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 6), st.data())
def test_the_entry_in_order_is_exact_to_the_last_bit(batch: int, n: int, m: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(FLOATS, min_size=batch * n * m, max_size=batch * n * m))
    entries = torch.tensor(values, dtype=torch.float32).reshape(batch, n, m)
    pieces = data.draw(st.integers(1, n))
    for position in {0, n * m - 1, data.draw(st.integers(0, n * m - 1))}:
        found = entry_in_order(lambda: entries.split(pieces, dim=1), position)
        assert torch.equal(found, entries.flatten(1).sort(dim=1).values[:, position])


class Largest(TorchDispatchMode):
    """The largest memory behind any tensor that is made inside, and how much was there at once, in bytes."""

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


@pytest.mark.parametrize(
    ("fuse", "discard", "query"),
    [("mean", 0.0, "mean"), ("max", 0.0, 9), ("min", 0.0, "mean"), ("mean", 0.9, 9), ("max", 0.9, "mean")],
)
@pytest.mark.parametrize("tokens", [2800, 4300])
def test_rollout_holds_no_more_than_it_says(fuse: str, discard: float, query: Query, tokens: int) -> None:
    """At 2,800 tokens the matrix of one block (31 MB) is held, at 4,300 it (74 MB) would be too large."""
    q, k = torch.randn(2, 1, 2, tokens, 3, generator=torch.Generator().manual_seed(0))
    kept = keep(q, k)
    trace = Trace(None, torch.zeros(1, tokens, 1), (1, tokens), (), (0, 1), (kept, kept), 2)
    with Largest() as seen:
        rollout(trace, query, fuse=fuse, discard=discard)
    few = 100 * 8 * tokens  # vectors of N numbers
    assert vitviz.model.trace.CHUNK_BYTES // 4 < seen.tensor <= vitviz.model.trace.CHUNK_BYTES + few
    assert vitviz.model.trace.CHUNK_BYTES // 2 < seen.most <= WORK_BYTES


def test_memory_is_measured() -> None:
    with Largest() as seen:
        a = torch.zeros(1000)
        del a
        b = torch.ones(300).view(30, 10).T.contiguous()
        assert (b + 1.0).sum() == 600
    assert (seen.tensor, seen.most, seen.alive) == (4000, 4000, 1200)
