"""Write the files from which the browser computes maps: attention of a block, the rollout matrix, and descriptors.

A file consists of a header of 40 bytes and contiguous arrays, all little endian; `compute/payload.js` reads it.

    offset  type     block file              rollout file                        descriptors file
    0       4 bytes  "VVB1"                  "VVR1"                              "VVD1"
    4       uint16   version, 2
    6       uint16   bits per number of the matrices: 16 or 32
    8       uint16   H, heads                1                                   1
    10      uint16   1 if keys are shared    0                                   0
    12      uint32   N, tokens                                                   n, patches
    16      uint32   d, head width           number of rows                      F, numbers per patch
    20      uint16   block, from 0           first block of the rollout, from 0  block, from 0
    22      uint16   P, prefix tokens                                            0
    24      uint16   gh, rows of patches
    26      uint16   gw, columns of patches
    28      uint32   length of the whole file in bytes
    32      uint32   W, windows              1                                   1
    36      uint32   M, tokens of a window   N                                   n

A block's tokens attend to each other in W windows of M tokens; in a model without windows, W is 1 and M is N. The
arrays of a block file are the log-sum-exp of each row (H, W, M), float64; the mean of the rows of all patches (H, N)
and the mean of the columns of all patches (H, N), float32; the tokens of each window (W, M), int32, where N stands for
padding; and queries (H, W, M, d) and keys (H, W, M, d) in 16 or 32 bits, so that the logits of a window are
`queries @ keys.T`. The log-sum-exp has 64 bits because it can reach 20, where float32 has steps of 0.000002, and this
error would affect every number of a column. The means are included because they need every row: computing them in a
browser would take 20 ms per block at 257 tokens, and five seconds at 4,097.

Where a trace holds probabilities (Swin), or a captured module has masks or biases, queries are their logarithms, d is
M, and the keys are the identity matrix (M, M), which all heads and windows share. Biases and masks are included, and
the file is smaller: a window of 49 tokens has fewer numbers per query than a query and a key of 32 channels each.

A rollout file contains one matrix (rows, N): row i shows which tokens the information in token i came from. In a
windowed model, rows are patches of the last stage, and columns the patches that enter the first block.

A descriptors file contains one unit vector for each patch (n, F), whose dot products are the cosines of
`vitviz.analysis.pairs`. In half precision, cosines differ by less than 0.001.

A caption file is JSON, see `caption_bytes`.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Literal, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vitviz.analysis.pairs import Descriptor, patch_descriptors
from vitviz.attribution.attention import (
    DISCARD,
    FUSE,
    RESIDUAL,
    START,
    Fusion,
    entered_count,
    rollout_matrix,
    rollout_scores,
)
from vitviz.errors import VitvizError
from vitviz.language.captioner import CaptionAnswer
from vitviz.language.words import Words
from vitviz.model.devices import double
from vitviz.model.trace import AttentionTrace, BlockTrace
from vitviz.model.vit import ViT
from vitviz.phrases import with_phrases
from vitviz.weights.captured import Captured

__all__ = [
    "LARGEST_HALF",
    "Dtype",
    "PayloadError",
    "balance",
    "block_bytes",
    "caption_bytes",
    "count_bytes",
    "descriptor_bytes",
    "rollout_bytes",
    "rollout_row_bytes",
]

Dtype = Literal["float16", "float32"]

HEADER = struct.Struct("<4sHHHHIIHHHHIII")
VERSION = 2
LARGEST_HALF = 65504.0
PIECE = 2**18  # numbers per chunk of an N x N matrix: 1 MB, which fits into a core's cache


class PayloadError(VitvizError):
    """Raised if a trace cannot be packed."""


@torch.no_grad()
def block_bytes(trace: AttentionTrace, block: int, dtype: Dtype = "float16") -> bytes:
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
    queries, keys, lse = _logit_parts(attention, dtype)  # (H, W, M, d), (H or 1, W or 1, M, d), (H, W, M)
    heads, count, size, width = queries.shape
    prefix, grid = len(trace.prefix), trace.grid_in(block)
    tokens = prefix + grid[0] * grid[1]
    members = _members(trace, block)
    members = members.to(queries.device)
    precise = Tensor.float if dtype == "float16" else double  # float16 has larger errors than float32 anyway
    is_patch = (members >= prefix) & (members < tokens)
    sums, *means = _sum_rows(precise(queries), precise(keys), precise(lse), is_patch)
    order = members.flatten().argsort()[:tokens]
    mean_row, mean_column = (mean.flatten(1)[:, order].float() for mean in means)  # (H, W, M) -> (H, N)
    arrays = [double(lse) + double(sums).log(), mean_row, mean_column, members.int(), queries, keys]
    if not all(bool(array.isfinite().all()) for array in arrays):
        raise PayloadError(
            f"Expected finite attention in block {block % trace.depth} (counted from 0), got NaN or infinite numbers. "
            "Look for them in the model's weights and its input."
        )
    shared = int(len(keys) < heads or keys.shape[1] < count)
    sizes = heads, shared, tokens, width, block % trace.depth, prefix, *grid
    return _packed(b"VVB1", dtype, sizes, (count, size), arrays)


@torch.no_grad()
def rollout_bytes(
    trace: AttentionTrace,
    dtype: Dtype = "float16",
    *,
    fuse: Fusion = FUSE,
    discard: float = DISCARD,
    residual: float = RESIDUAL,
    start: int = START,
) -> bytes:
    """Return rollout from every token to every token as a file for the browser, see `rollout_matrix`.

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
    rows, tokens = matrix.shape
    sizes = 1, 0, tokens, rows, start, len(trace.prefix), *trace.entered_grid(start)
    return _packed(b"VVR1", dtype, sizes, (1, tokens), [matrix])


def rollout_row_bytes(trace: AttentionTrace, token: int, **options: Any) -> bytes:
    """Return rollout from one token as float32: the N numbers of its row.

    Args:
        trace: of one image (B = 1).
        token: index, prefix tokens first, or -1 for the mean over patches; of the last stage in a windowed model.
        options: as for `vitviz.attribution.attention.rollout`.

    Raises:
        ExplainError: for options that rollout cannot take.
    """
    row = rollout_scores(trace, "mean" if token < 0 else token, **options)[0].cpu().numpy()  # (N,)
    return bytes(row.astype("<f4").tobytes())


def descriptor_bytes(
    model: ViT, trace: AttentionTrace, descriptor: Descriptor, block: int, dtype: Dtype = "float16"
) -> bytes:
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
    sizes = 1, 0, *vectors.shape, block % trace.depth, 0, *trace.grid
    return _packed(b"VVD1", dtype, sizes, (1, len(vectors)), [vectors])


def count_bytes(trace: AttentionTrace, *, rollout: bool) -> int:
    """Return the total length of all block files and the rollout file in half precision, without writing them."""
    rows, columns = trace.count, entered_count(trace)
    blocks = sum(_block_length(trace, block, trace.head_width) for block in range(trace.depth))
    return blocks + (HEADER.size + 2 * rows * columns if rollout else 0)


def _block_length(trace: AttentionTrace, block: int, width: int) -> int:
    """Return the length of a block's file in half precision; `width` is that of a head without windows."""
    heads, (rows, columns) = trace.heads_in(block), trace.grid_in(block)
    places = tokens = size = len(trace.prefix) + rows * columns
    keys = heads * tokens * width
    if not trace.recomputes:  # else, opening a block would compute its queries and keys
        attention = trace.block(block)
        places, size = _members(trace, block).numel(), _members(trace, block).shape[1]
        width = query_width(attention)
        keys = heads * places * width if attention.factored else size**2
    sums_and_means = heads * (8 * places + 2 * 4 * tokens)
    return HEADER.size + sums_and_means + 4 * places + 2 * (heads * places * width + keys)


def _members(trace: AttentionTrace, block: int) -> Tensor:
    """Return the tokens of each window of a block, (W, M); without windows, all tokens are one window."""
    if isinstance(trace, Captured) and trace.windowed:
        return trace.layouts[block].members
    return torch.arange(len(trace.prefix) + math.prod(trace.grid_in(block)))[None]


def query_width(attention: BlockTrace) -> int:
    """Return the width d of a query in a block's file."""
    return attention.queries.shape[-1] if attention.factored else attention.tokens


def _check(trace: AttentionTrace, dtype: str) -> None:
    if dtype not in get_args(Dtype):
        raise PayloadError(f"Expected float16 or float32 as the dtype, got {dtype!r}. Use one of them.")
    batch = trace.batch
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


def _logit_parts(attention: BlockTrace, dtype: Dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (H, W, M, d), keys of this shape or (1, 1, M, d), and log-sum-exp (H, W, M) of a block."""
    if not attention.factored:
        size = attention.tokens
        queries = attention.log_rows(0, size).transpose(0, 1)  # (W, H, M, M) -> (H, W, M, M)
        keys = torch.eye(size, device=queries.device)[None, None]
        if dtype == "float16":
            queries, keys = _half(queries, "queries"), keys.half()
        return queries, keys, torch.zeros(queries.shape[:3], device=queries.device)
    parts = attention.queries, attention.keys, attention.lse
    queries, keys, lse = (part.float().transpose(0, 1) for part in parts)  # (W, H, M, d) -> (H, W, M, d)
    return _halved(queries, keys, lse) if dtype == "float16" else (queries, keys, lse)


def _halved(queries: Tensor, keys: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys (H, W, M, d) in half precision, centred and balanced, and their log-sum-exp."""
    centre, factor = (part[:, None] for part in balance(queries.flatten(1, 2), keys.flatten(1, 2)))  # (H, 1, 1, d)
    queries, keys, lse = double(queries), double(keys), double(lse)
    shift = (queries @ centre.mT).squeeze(-1)  # (H, W, M, d) @ (H, 1, d, 1) -> (H, W, M)
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


def _sum_rows(queries: Tensor, keys: Tensor, lse: Tensor, is_patch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read all rows once: return their sums and the means over patch queries and over patch keys, each (H, W, M).

    The sums are 1 up to rounding; rows are divided by them before the means are taken. `is_patch` has shape (W, M).
    """
    sums, mean_row, mean_column = (torch.zeros_like(lse) for _ in range(3))
    heads, windows, size = lse.shape
    shares = is_patch.to(lse) / is_patch.sum()  # (W, M)
    keys, step = keys.expand(heads, windows, -1, -1), max(16, PIECE // (windows * size))
    for head in range(heads):
        for first in range(0, size, step):
            part = slice(first, min(first + step, size))
            logits = queries[head, :, part] @ keys[head].mT  # (W, m, d) @ (W, d, M) -> (W, m, M)
            rows = logits.sub_(lse[head, :, part, None]).exp_()
            total = rows.sum(-1)  # (W, m)
            mean_column[head, :, part] = (rows @ shares[..., None]).squeeze(-1) / total
            mean_row[head] += ((shares[:, part] / total)[:, None] @ rows).squeeze(1)  # (W, 1, m) @ (W, m, M)
            sums[head, :, part] = total
    return sums, mean_row, mean_column


def _packed(
    magic: bytes, dtype: Dtype, sizes: tuple[int, ...], windows: tuple[int, int], arrays: list[Tensor]
) -> bytes:
    """Pack a header and arrays as one file.

    `sizes` are heads, shared keys, tokens, width, block, prefix tokens, rows and columns; `windows` W and M.
    """
    parts = [_little_endian(array) for array in arrays]
    length = HEADER.size + sum(part.nbytes for part in parts)
    if length >= 2**32:
        raise PayloadError(f"Expected a file below 4 GB, got {length / 2**30:.1f} GB. Open the photograph smaller.")
    header = HEADER.pack(magic, VERSION, 16 if dtype == "float16" else 32, *sizes, length, *windows)
    return b"".join([header, *(part.tobytes() for part in parts)])


def _little_endian(array: Tensor) -> NDArray[Any]:
    values: NDArray[Any] = array.contiguous().cpu().numpy()
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def caption_bytes(words: Words) -> bytes:
    """Return a caption by a captioner as JSON: words, numbers of each word, sizes of the captioner, and a sentence.

    "values" has (W, L, H, M) integers: the attention of each word in each layer and head to the image tokens, in units
    of 0.00001. The image tokens divide the whole photograph into the rows and columns of "grid". "effects" has (W, M)
    integers: how much a word's log-probability falls if one image token is masked, in units of 0.001. "probabilities"
    has two numbers for each word: with the photograph, and with an average picture. "maps" are those of `Words.maps`
    but attention, (W, M) each, and "agreement" is `Words.agreement`. For "captioner", see
    `vitviz.language.captioner.Captioner.sizes`; "sentence" is `Words.describe`.
    """
    (frame,) = words.frames
    assert isinstance(words.answer, CaptionAnswer)
    effects = words.effects()
    caption = {
        "words": words.words,
        "grid": frame.grid,
        "heads": words.attention.shape[2],
        "values": (words.attention * 1e5).round().int().tolist(),
        "effects": (effects * 1e3).round().int().tolist(),
        "probabilities": _short(words.probabilities, 3),
        "maps": {name: _short(scores, 4) for name, scores in words.maps.items() if name != "attention"},
        "agreement": {name: _short(ranks[None].nan_to_num(), 3)[0] for name, ranks in words.agreement(effects).items()},
        "captioner": words.answer.captioner.sizes,
        "sentence": words.describe(),
    }
    return json.dumps(with_phrases(caption)).encode()


def _short(rows: Tensor, digits: int) -> list[list[float]]:
    """Return numbers rounded to significant digits: (R, n) -> R lists."""
    return [[float(f"{value:.{digits}g}") for value in row] for row in rows.tolist()]
