"""The files that the page computes attention from. What its scripts read from them is held by tests/js."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import tiny
import torch
from js_vectors import outliers
from numpy.typing import NDArray

from vitviz.web.payload import Dtype, PayloadError, block_bytes, rollout_bytes


def test_what_cannot_be_packed_is_refused() -> None:
    whole, image, unknown = tiny.trace(), tiny.trace().image(1), cast(Any, "int8")
    with pytest.raises(PayloadError, match="batch of 2"):
        block_bytes(whole, 0)
    with pytest.raises(PayloadError, match="batch of 2"):
        rollout_bytes(whole)
    with pytest.raises(PayloadError, match="'int8'"):
        block_bytes(image, 0, unknown)
    with pytest.raises(ValueError, match="Expected one of the blocks"):
        block_bytes(image, 3)
    with pytest.raises(PayloadError, match=r"up to 65504, the largest half, got .*Pass dtype='float32'"):
        block_bytes(outliers(gain=1e6), 0)
    model = tiny.model()
    with torch.no_grad():
        model.blocks[1].attn.qkv.bias[0] = torch.nan
    for dtype in ("float32", "float16"):
        with pytest.raises(PayloadError, match="finite"):
            block_bytes(model.trace(tiny.images(1)), 1, cast(Dtype, dtype))


def test_blocks_may_be_counted_from_the_last() -> None:
    trace = tiny.trace().image(1)
    assert block_bytes(trace, -1) == block_bytes(trace, tiny.DEPTH - 1)


def test_many_small_pieces_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tiny.trace(registers=3).image(1)
    count = trace.heads * trace.tokens.shape[1]

    def sums() -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the log-sum-exp of each row, and the means over patches at the end of the file."""
        file = block_bytes(trace, 1, "float32")
        return np.frombuffer(file, "<f8", count, offset=32), np.frombuffer(file[-8 * count :], "<f4")

    whole = sums()
    monkeypatch.setattr("vitviz.web.payload.PIECE", 1)  # 16 rows at a time: the prefix ends inside the first piece
    for one, other in zip(whole, sums(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_halves_keep_every_bit_of_the_rounded_queries() -> None:
    """Balancing multiplies each channel by a power of two, which moves no digit."""
    trace = outliers(spread=2.0)
    queries = trace.block(1).queries[0].numpy()  # (H, N, d)
    start = 32 + 8 * queries.shape[0] * queries.shape[1]
    sent = np.frombuffer(block_bytes(trace, 1), "<f2", queries.size, start).reshape(queries.shape).astype(np.float32)
    rounded = queries.astype(np.float16).astype(np.float32)
    factor = np.abs(sent).max(1, keepdims=True) / np.abs(rounded).max(1, keepdims=True)
    assert np.array_equal(np.log2(factor), np.round(np.log2(factor)))
    assert len(np.unique(factor)) > 1
    assert np.array_equal(sent, (queries * factor).astype(np.float16).astype(np.float32))
