"""Write the files from which the browser computes maps: attention of a block, the rollout matrix, and descriptors.

A file consists of a header of 32 bytes and contiguous arrays, all little endian; `compute/payload.js` reads it.

    offset  type     block file              rollout file                        descriptors file
    0       4 bytes  "VVB1"                  "VVR1"                              "VVD1"
    4       uint16   version, 1
    6       uint16   bits per number of the matrices: 16 or 32
    8       uint32   H, heads                1                                   1
    12      uint32   N, tokens                                                   n, patches
    16      uint32   d, head width           N                                   F, numbers per patch
    20      uint16   block, from 0           first block of the rollout, from 0  block, from 0
    22      uint16   P, prefix tokens                                            0
    24      uint16   gh, rows of patches
    26      uint16   gw, columns of patches
    28      uint32   length of the whole file in bytes

The arrays of a block file are the log-sum-exp of each row (H, N), float64; queries (H, N, d) and keys (H, N, d) in 16
or 32 bits, so that the logits are `queries @ keys.T`; the mean of the rows of all patches (H, N) and the mean of the
columns of all patches (H, N), float32. The log-sum-exp has 64 bits because it can reach 20, where float32 has steps
of 0.000002, and this error would affect every number of a column. The means are included because they need every row:
computing them in a browser would take 20 ms per block at 257 tokens, and five seconds at 4,097.

A rollout file contains one matrix (N, N): row i shows which tokens the information in token i came from.

A descriptors file contains one unit vector for each patch (n, F), whose dot products are the cosines of
`vitviz.analysis.pairs`. In half precision, cosines differ by less than 0.001.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vitviz.analysis.pairs import Descriptor, patch_descriptors
from vitviz.attribution.attention import DISCARD, FUSE, RESIDUAL, START, Fusion, rollout_matrix, rollout_scores
from vitviz.errors import VitvizError
from vitviz.model.devices import double
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT

__all__ = [
    "LARGEST_HALF",
    "Dtype",
    "PayloadError",
    "balance",
    "block_bytes",
    "count_bytes",
    "descriptor_bytes",
    "rollout_bytes",
    "rollout_row_bytes",
]

Dtype = Literal["float16", "float32"]

HEADER = struct.Struct("<4sHHIIIHHHHI")
VERSION = 1
LARGEST_HALF = 65504.0
PIECE = 2**18  # numbers per chunk of an N x N matrix: 1 MB, which fits into a core's cache


class PayloadError(VitvizError):
    """Raised if a trace cannot be packed."""


@torch.no_grad()
def block_bytes(trace: Trace, block: int, dtype: Dtype = "float16") -> bytes:
    """Return one block's queries, keys, log-sum-exp and means as a file for the browser.

    In half precision, each head's mean key is first subtracted from its keys. This shifts a whole row of logits, which
    softmax ignores. Keys often share a large offset, and large half-precision numbers are coarse: for a block of
    DINOv2 S/14, the error in probability is 0.01 with the offset and 0.001 without it. Then each channel's queries and
    keys are balanced by a power of two, which is exact. The log-sum-exp is recomputed from the numbers that are sent,
    so that rows sum to 1 and a cell has the same value in its row and in its column.

    Args:
        trace: of one image (B = 1).
        block: index from 0; negative from the last.
        dtype: type of queries and keys; "float32" leaves them unchanged.

    Raises:
        PayloadError: for a batch, an unknown dtype, or numbers that are not finite or too large for float16.
        TraceError: if the trace has no such block.
    """
    _check(trace, dtype)
    attention = trace.block(block)
    if attention.cut:
        raise PayloadError(
            "Expected a trace without cut edges, got one with some: the browser computes attention from queries and "
            "keys only. Ask the trace itself."
        )
    # (H, N, d) twice, (H, N)
    queries, keys, lse = attention.queries[0].float(), attention.keys[0].float(), attention.lse[0].float()
    if dtype == "float16":
        queries, keys, lse = _halved(queries, keys, lse)
    precise = Tensor.float if dtype == "float16" else double  # float16 has larger errors than float32 anyway
    sums, mean_row, mean_column = _sum_rows(precise(queries), precise(keys), precise(lse), len(trace.prefix))
    heads, tokens, width = queries.shape
    arrays = [double(lse) + double(sums).log(), queries, keys, mean_row.float(), mean_column.float()]
    if not all(bool(array.isfinite().all()) for array in arrays):
        raise PayloadError(
            f"Expected finite attention in block {block % trace.depth} (counted from 0), got NaN or infinite numbers. "
            "Look for them in the model's weights and its input."
        )
    sizes = heads, tokens, width, block % trace.depth, len(trace.prefix)
    return _packed(b"VVB1", trace, dtype, sizes, arrays)


@torch.no_grad()
def rollout_bytes(
    trace: Trace,
    dtype: Dtype = "float16",
    *,
    fuse: Fusion = FUSE,
    discard: float = DISCARD,
    residual: float = RESIDUAL,
    start: int = START,
) -> bytes:
    """Return rollout from every token to every token as a file for the browser: O(L N³) time, 2 or 4 N² bytes.

    Args:
        trace: of one image (B = 1), with all blocks from `start` on.
        dtype: type of the matrix.
        fuse, discard, residual, start: as for `vitviz.attribution.attention.rollout`.

    Raises:
        PayloadError: for a batch or an unknown dtype.
        ExplainError: for options that rollout cannot take.
    """
    _check(trace, dtype)
    matrix = rollout_matrix(trace, fuse=fuse, discard=discard, residual=residual, start=start)[0]  # (1, N, N) -> (N, N)
    matrix = matrix.half() if dtype == "float16" else matrix.float()
    return _packed(b"VVR1", trace, dtype, (1, len(matrix), len(matrix), start, len(trace.prefix)), [matrix])


def rollout_row_bytes(trace: Trace, token: int, **options: Any) -> bytes:
    """Return rollout from one token as float32: the N numbers of its row.

    Args:
        trace: of one image (B = 1).
        token: index, prefix tokens first, or -1 for the mean over patches.
        options: as for `vitviz.attribution.attention.rollout`.

    Raises:
        ExplainError: for options that rollout cannot take.
    """
    row = rollout_scores(trace, "mean" if token < 0 else token, **options)[0].cpu().numpy()  # (N,)
    return bytes(row.astype("<f4").tobytes())


def descriptor_bytes(model: ViT, trace: Trace, descriptor: Descriptor, block: int, dtype: Dtype = "float16") -> bytes:
    """Return unit vectors that describe the patches as a file for the browser, which computes their cosines.

    Args:
        model: the model of the trace.
        trace: of one image (B = 1).
        descriptor, block: as for `vitviz.analysis.pairs.patch_descriptors`.
        dtype: type of the vectors.

    Raises:
        PayloadError: for a batch, an unknown dtype, or numbers that are not finite.
        AnalysisError: for an unknown descriptor.
        TraceError: if the trace has no such block.
    """
    _check(trace, dtype)
    vectors = normalize(patch_descriptors(model, trace, descriptor, block).float(), dim=-1)  # (n, F)
    if not bool(vectors.isfinite().all()):
        raise PayloadError(
            f"Expected finite {descriptor} in block {block % trace.depth} (counted from 0), got NaN or infinite "
            "numbers. Look for them in the model's weights and its input."
        )
    vectors = vectors.half() if dtype == "float16" else vectors
    return _packed(b"VVD1", trace, dtype, (1, *vectors.shape, block % trace.depth, 0), [vectors])


def count_bytes(trace: Trace, *, rollout: bool) -> int:
    """Return the total length of all block files and the rollout file in half precision, without writing them."""
    tokens, channels = trace.tokens.shape[1], trace.heads * trace.head_width
    rows = trace.heads * tokens * (8 + 4 + 4)  # log-sum-exp and two means
    blocks = trace.depth * (HEADER.size + rows + 2 * 2 * tokens * channels)
    return blocks + (HEADER.size + 2 * tokens**2 if rollout else 0)


def _check(trace: Trace, dtype: str) -> None:
    if dtype not in get_args(Dtype):
        raise PayloadError(f"Expected float16 or float32 as the dtype, got {dtype!r}. Use one of them.")
    batch = len(trace.tokens)
    if batch != 1:
        raise PayloadError(f"Expected the trace of one image, got a batch of {batch}; pass trace.image(0).")


def balance(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean key, and the powers of two that multiply queries and divide keys in a half-precision file.

    Queries and keys have shape (H, N, d); the results are float64 of shape (H, 1, d).
    """
    queries, keys = double(queries), double(keys)
    centre = keys.mean(1, keepdim=True)  # (H, 1, d)
    most_q, most_k = queries.abs().amax(1, keepdim=True), (keys - centre).abs().amax(1, keepdim=True)  # (H, 1, d)
    # Use the power of two that makes both maxima about equal, or 1 if one of them is zero.
    exponent = (0.5 * (most_k.log2() - most_q.log2())).round()
    return centre, torch.where(exponent.isfinite(), exponent, 0.0).exp2()


def _halved(queries: Tensor, keys: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys (H, N, d) in half precision, centred and balanced, and their log-sum-exp."""
    centre, factor = balance(queries, keys)
    queries, keys, lse = double(queries), double(keys), double(lse)
    shift = (queries @ centre.mT).squeeze(-1)  # (H, N, d) @ (H, d, 1) -> (H, N)
    keys = keys - centre
    return _half(queries * factor, "queries"), _half(keys / factor, "keys"), (lse - shift).float()


def _half(values: Tensor, what: str) -> Tensor:
    largest = float(values.abs().max())
    if not largest <= LARGEST_HALF:  # NaN fails this comparison too
        raise PayloadError(
            f"Expected finite {what} up to {LARGEST_HALF:.0f}, the largest half, got {largest:g} after balancing "
            "queries and keys. Pass dtype='float32'."
        )
    return values.half()


def _sum_rows(queries: Tensor, keys: Tensor, lse: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Read all rows once: return their sums and the means over patch queries and over patch keys, each (H, N).

    The sums are 1 up to rounding; rows are divided by them before the means are taken.
    """
    heads, tokens, _ = queries.shape
    sums, mean_row, mean_column = (torch.zeros_like(lse) for _ in range(3))
    count, step = tokens - prefix, max(16, PIECE // tokens)
    for head in range(heads):
        for first in range(0, tokens, step):
            part = slice(first, min(first + step, tokens))
            rows = (queries[head, part] @ keys[head].T).sub_(lse[head, part, None]).exp_()  # (n, d) @ (d, N) -> (n, N)
            total = rows.sum(-1)  # (n,)
            weights = 1.0 / total
            mean_column[head, part] = rows[:, prefix:].sum(-1) * weights / count
            weights[: max(0, prefix - first)] = 0.0  # the mean is over patch queries
            mean_row[head] += weights @ rows / count  # (n,) @ (n, N) -> (N,)
            sums[head, part] = total
    return sums, mean_row, mean_column


def _packed(magic: bytes, trace: Trace, dtype: Dtype, sizes: tuple[int, ...], arrays: list[Tensor]) -> bytes:
    """Pack a header and arrays as one file; `sizes` are heads, tokens, width, block and prefix tokens."""
    parts = [_little_endian(array) for array in arrays]
    length = HEADER.size + sum(part.nbytes for part in parts)
    if length >= 2**32:
        raise PayloadError(f"Expected a file below 4 GB, got {length / 2**30:.1f} GB. Open the photograph smaller.")
    rows, columns = trace.grid
    bits = 16 if dtype == "float16" else 32
    header = HEADER.pack(magic, VERSION, bits, *sizes, rows, columns, length)
    return b"".join([header, *(part.tobytes() for part in parts)])


def _little_endian(array: Tensor) -> NDArray[np.floating]:
    values: NDArray[np.floating] = array.contiguous().cpu().numpy()
    return values.astype(values.dtype.newbyteorder("<"), copy=False)
