"""Test the files that Python writes for the page: queries and keys, and content security policies.

tests/js tests how the scripts read these files.
"""

import base64
import hashlib
import re

import numpy as np
import pytest
import tiny
import torch
from js_vectors import outliers
from numpy.typing import NDArray

from vitviz.web import bundle
from vitviz.web.payload import HEADER, PayloadError, block_bytes, rollout_bytes
from vitviz.web.scene import saved_frame


def test_block_bytes_refuses_invalid_input() -> None:
    image, broken = tiny.trace().image(1), tiny.model()
    with torch.no_grad():
        broken.blocks[1].attn.qkv.bias[0] = torch.nan
    odd = broken.trace(tiny.images(1))
    for trace, block, dtype, words in (
        (tiny.trace(), 0, "float32", "batch of 2"),
        (image, 0, "int8", "'int8'"),
        (outliers(gain=1e6), 0, "float16", r"up to 65504, the largest half, got .*Pass dtype='float32'"),
        (odd, 1, "float32", "finite"),
        (odd, 1, "float16", "finite"),
    ):
        with pytest.raises(PayloadError, match=words):
            block_bytes(trace, block, dtype)
    with pytest.raises(PayloadError, match="batch of 2"):
        rollout_bytes(tiny.trace())
    with pytest.raises(ValueError, match="Expected one of the blocks"):
        block_bytes(image, 3)
    assert block_bytes(image, -1) == block_bytes(image, tiny.DEPTH - 1)


def test_block_bytes_does_not_depend_on_piece_size(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tiny.trace(registers=3).image(1)
    count = trace.heads * trace.tokens.shape[1]

    def sums() -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return the log-sum-exp of each row, and the means over patches, at the start of the file."""
        file = block_bytes(trace, 1, "float32")
        start = HEADER.size + 8 * count
        return np.frombuffer(file, "<f8", count, HEADER.size), np.frombuffer(file, "<f4", 2 * count, start)

    whole = sums()
    monkeypatch.setattr("vitviz.web.payload.PIECE", 1)  # 16 rows at a time: the prefix ends inside the first chunk
    for array, expected in zip(sums(), whole, strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-9)


def test_balancing_queries_is_exact() -> None:
    """Balancing multiplies each channel by a power of two, which changes no digit."""
    trace = outliers(spread=2.0)
    queries = trace.block(1).queries[0].numpy()  # (H, N, d)
    heads, tokens, _ = queries.shape
    start = HEADER.size + (8 + 2 * 4) * heads * tokens + 4 * tokens  # after log-sum-exp, means and tokens
    sent = np.frombuffer(block_bytes(trace, 1), "<f2", queries.size, start).reshape(queries.shape).astype(np.float32)
    rounded = queries.astype(np.float16).astype(np.float32)
    factor = np.abs(sent).max(1, keepdims=True) / np.abs(rounded).max(1, keepdims=True)
    assert np.array_equal(np.log2(factor), np.round(np.log2(factor)))
    assert len(np.unique(factor)) > 1
    assert np.array_equal(sent, (queries * factor).astype(np.float16).astype(np.float32))


# ---- static and saved pages run only their own scripts

STATIC = bundle.index(
    script="page.js", template=bundle.template(), style=bundle.style(), head="", lang="en", given="{}"
)
SAVED = [
    saved_frame(rooms=rooms, manifest='{"a": 1}', search='"?"', lecture="null", title="t", parts="")
    for rooms in (False, True)
]
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@pytest.mark.parametrize("page", [STATIC, *SAVED], ids=["static", "saved", "lecture"])
def test_policy_allows_only_inline_scripts_by_hash(page: str) -> None:
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in INLINE.findall(page)}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
    assert "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<script")
    assert ("script-src 'self' 'sha256-" in policy) == (page is STATIC)  # a static site also runs its own files


def test_filling_does_not_change_scripts() -> None:
    first, second = (INLINE.findall(saved_frame(manifest=text)) for text in ("1", "2"))
    assert first == second
    assert len(first) == 2
