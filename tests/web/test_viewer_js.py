"""The explorer's arithmetic, run under Node and held to the Python results: payload, attention, rollout."""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tiny
import torch
from viewer_js import Script, empty, once

import vitviz
from vitviz.attribution.attention import attention, rollout, rollout_matrix
from vitviz.attribution.scores import TokenScores
from vitviz.explorer import Explorer
from vitviz.model.trace import Trace
from vitviz.web.payload import Dtype, PayloadError, block_bytes, rollout_bytes

ROOT = Path(__file__).parents[2]
LIMITS: dict[Dtype, float] = {"float32": 1e-6, "float16": 2e-3}  # in probability
MODELS = {
    "class token": {},
    "registers": {"registers": 3},
    "distillation": {"distillation_token": True},
    "no class token": {"class_token": False, "pooling": "mean"},
    "a high grid, odd head width": {"grid": (5, 2), "head_width": 3, "heads": 2},
}


@lru_cache
def trace(name: str) -> Trace:
    return tiny.trace(batch=2, **MODELS[name]).image(1)


@lru_cache
def real() -> Trace:
    return Explorer(vitviz.load("dinov2-s14-imagenette")).open(ROOT / "examples" / "church.jpg").trace


def dense(trace: Trace, block: int) -> np.ndarray:
    """All attention of a block in float64: (H, N, N)."""
    kept = trace.block(block)
    return (kept.queries[0].double() @ kept.keys[0].double().mT).softmax(-1).numpy()


def some_tokens(trace: Trace) -> list[int]:
    """The prefix tokens, the first and the last patch, and one in the middle."""
    count, prefix = trace.tokens.shape[1], len(trace.prefix)
    return sorted({*range(prefix + 1), prefix + trace.grid[1] + 1, count - 1})


def scores(found: TokenScores) -> np.ndarray:
    """Scores over all tokens, prefix first: (N,)."""
    return torch.cat([found.prefix[0], found.patches[0].flatten()]).numpy()


def heads_and_tokens(trace: Trace) -> tuple[int, int]:
    return trace.heads, trace.tokens.shape[1]


# ---- halves ----


ALL_HALVES = np.arange(65536, dtype=np.uint16)


def test_every_half_becomes_its_float() -> None:
    out = once("compute/half", "widen", ALL_HALVES, empty(65536)).value
    expected = ALL_HALVES.view(np.float16).astype(np.float32)
    assert np.array_equal(out, expected, equal_nan=True)
    numbers = ~np.isnan(expected)  # NaN has no sign in JavaScript
    assert np.array_equal(np.signbit(out[numbers]), np.signbit(expected[numbers]))  # of zeros too


def test_widening_refuses_an_array_of_another_length() -> None:
    assert "room for 65536" in once("compute/half", "widen", ALL_HALVES, empty(9)).error


# ---- files ----


def test_a_float32_block_comes_through_bit_by_bit() -> None:
    kept = trace("registers").block(1)
    got = once("compute/payload", "parseBlock", block_bytes(trace("registers"), 1, "float32")).value
    sizes = {key: got[key] for key in ("heads", "tokens", "width", "block", "prefix", "grid")}
    heads, tokens, width = kept.queries.shape[1:]
    assert sizes == {"heads": heads, "tokens": tokens, "width": width, "block": 1, "prefix": 4, "grid": [7, 11]}
    for key, tensor in (("queries", kept.queries), ("keys", kept.keys)):
        assert np.array_equal(got[key], tensor[0].float().numpy().ravel()), key
    exact = (kept.queries[0].double() @ kept.keys[0].double().mT).logsumexp(-1).numpy().ravel()
    assert np.abs(got["lse"] - exact).max() <= 1e-12


def test_blocks_may_be_counted_from_the_last() -> None:
    assert block_bytes(trace("registers"), -1) == block_bytes(trace("registers"), tiny.DEPTH - 1)


def test_the_rollout_file_holds_the_matrix() -> None:
    expected = rollout_matrix(trace("registers"), fuse="max", discard=0.5, residual=0.25, start=1)[0].numpy()
    options = {"fuse": "max", "discard": 0.5, "residual": 0.25, "start": 1}
    for dtype, limit in (("float32", 0.0), ("float16", 2.0**-12)):
        got = once("compute/payload", "parseRollout", rollout_bytes(trace("registers"), dtype, **options)).value
        assert (got["tokens"], got["start"], got["prefix"], got["grid"]) == (len(expected), 1, 4, [7, 11])
        assert np.abs(got["matrix"].reshape(expected.shape) - expected).max() <= limit


def test_files_that_are_not_what_they_should_be_are_refused() -> None:
    block, rolled = block_bytes(trace("registers"), 0), rollout_bytes(trace("registers"))
    wrong_bits = block[:6] + struct.pack("<H", 8) + block[8:]
    other_version = block[:4] + struct.pack("<H", 2) + block[6:]
    other_length = block[:28] + struct.pack("<I", 9) + block[32:]
    other_grid = block[:24] + struct.pack("<H", 8) + block[26:]
    cases = [
        ("parseBlock", b"", "at least 32 bytes, got 0"),
        ("parseBlock", b"<!doctype html><title>Bad Gateway</title>", 'starts with VVB1, got "<!do"'),
        ("parseBlock", rolled, 'starts with VVB1, got "VVR1"'),
        ("parseRollout", block, 'starts with VVR1, got "VVB1"'),
        ("parseBlock", other_version, "version 1, got 2"),
        ("parseBlock", wrong_bits, "16 or 32 bits, got 8"),
        ("parseBlock", other_grid, "prefix tokens and 8 x 11 patches"),
        ("parseBlock", block[:-4], f"got {len(block) - 4} (the file says {len(block)})"),
        ("parseBlock", other_length, "the file says 9)"),
        ("parseBlock", block + b"0000", f"expected {len(block)} bytes"),
        ("parseRollout", rolled[:-2], "cut short"),
    ]
    script = Script()
    answers = [script.call("compute/payload", name, data) for name, data, _ in cases]
    script.run()
    for (_, _, text), answer in zip(cases, answers, strict=True):
        assert answer.error.startswith("PayloadError: ")
        assert text in answer.error


def test_what_cannot_be_packed_is_refused() -> None:
    whole, unknown = tiny.trace(), cast(Any, "int8")
    with pytest.raises(PayloadError, match="batch of 2"):
        block_bytes(whole, 0)
    with pytest.raises(PayloadError, match="batch of 2"):
        rollout_bytes(whole)
    with pytest.raises(PayloadError, match="'int8'"):
        block_bytes(trace("registers"), 0, unknown)
    with pytest.raises(ValueError, match="Expected one of the blocks"):
        block_bytes(trace("registers"), 3)


# ---- attention ----

FUSIONS = ("mean", "max", "min")


def fused_by_hand(probabilities: np.ndarray, how: str) -> np.ndarray:
    """(H, N, N) -> (N, N): the mean, or softmax of the largest or smallest logarithm."""
    if how == "mean":
        return probabilities.mean(0)
    extreme = probabilities.max(0) if how == "max" else probabilities.min(0)  # float64: nothing underflows here
    return extreme / extreme.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_and_columns_of_every_head_equal_pythons(name: str, dtype: str) -> None:
    one, (heads, count) = trace(name), heads_and_tokens(trace(name))
    script, asked = Script(), []
    for block in range(one.depth):
        parsed = script.call("compute/payload", "parseBlock", block_bytes(one, block, dtype), give=None)
        for token in some_tokens(one):
            room = (empty(heads * count), empty(heads * count))
            row = script.call("compute/attention", "row", parsed, token, *room, give=(2, 3))
            column = script.call("compute/attention", "column", parsed, token, *room, give=(3,))
            asked.append((block, token, row, column))
    script.run()
    for block, token, row, column in asked:
        exact = dense(one, block)
        logs, rows = (given.reshape(heads, count) for given in row.given)
        assert np.abs(rows - exact[:, token]).max() <= LIMITS[dtype]
        assert np.abs(rows.sum(-1, dtype=np.float64) - 1).max() <= 1e-6
        assert np.allclose(np.exp(logs), rows, rtol=1e-5)
        assert np.abs(column.given[0].reshape(heads, count) - exact[:, :, token]).max() <= LIMITS[dtype]
        # Python's own rows and columns miss float64's by the rounding of their log-sum-exp.
        for got, python in ((rows, one.row(block, token)), (column.given[0], one.column(block, token))):
            assert np.abs(got.reshape(heads, count) - python[0].numpy()).max() <= LIMITS[dtype] + 1.5e-6


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", ["registers", "a high grid, odd head width"])
def test_fused_rows_and_columns_equal_pythons(name: str, dtype: str) -> None:
    one, block = trace(name), 1
    heads, count = heads_and_tokens(one)
    script, asked = Script(), []
    parsed = script.call("compute/payload", "parseBlock", block_bytes(one, block, dtype), give=None)
    sweep = script.call("compute/sweep", "new Sweep", parsed, give=None)
    script.call("compute/sweep", ".advance", sweep, float("inf"), give=None)
    for token in some_tokens(one):
        for how in FUSIONS:
            row = script.call(
                "compute/attention", "row", parsed, token, empty(heads * count), empty(heads * count), give=None
            )
            logs, rows = row.argument(2), row.argument(3)
            fused = script.call("compute/attention", "fuse", how, logs, rows, heads, count, empty(count), give=(5,))
            column = script.call("compute/attention", "column", parsed, token, logs, rows, give=None)
            norms = None if how == "mean" else sweep.part(how, "norms")
            given = (how, column.argument(2), column.argument(3), heads, count, norms, empty(count))
            asked.append((token, how, fused, script.call("compute/attention", "fuseColumn", *given, give=(6,))))
    script.run()
    for token, how, fused, column in asked:
        assert np.abs(fused.given[0] - scores(attention(one, block, how, token))).max() <= LIMITS[dtype]
        assert np.abs(column.given[0] - fused_by_hand(dense(one, block), how)[:, token]).max() <= LIMITS[dtype]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_means_over_patches_equal_pythons(name: str, dtype: str) -> None:
    one, block = trace(name), 2
    heads, count = heads_and_tokens(one)
    script = Script()
    parsed = script.call("compute/payload", "parseBlock", block_bytes(one, block, dtype))
    sweep = script.call("compute/sweep", "new Sweep", parsed, give=None)
    for _ in range(count):  # in the smallest slices, as a page with little time would; it is done before the last
        script.call("compute/sweep", ".advance", sweep, 0, give=None)
    swept = script.call("compute/sweep", ".advance", sweep, 0, give=(0,))
    fused = script.call("compute/attention", "fuseMean", parsed.part("meanRow"), heads, count, empty(count), give=(3,))
    script.run()
    got, limit, prefix = parsed.value, LIMITS[dtype], len(one.prefix)
    assert np.abs(got["meanRow"].reshape(heads, count) - one.row(block, "mean")[0].numpy()).max() <= limit
    assert np.abs(got["meanColumn"].reshape(heads, count) - one.column(block, "mean")[0].numpy()).max() <= limit
    assert np.abs(fused.given[0] - scores(attention(one, block, "mean", "mean"))).max() <= limit
    assert swept.value is True
    for how in ("max", "min"):
        sums = swept.given[0][how]
        assert np.abs(sums["meanRow"] - scores(attention(one, block, how, "mean"))).max() <= limit
        by_hand = fused_by_hand(dense(one, block), how)[:, prefix:].mean(-1)
        assert np.abs(sums["meanColumn"] - by_hand).max() <= limit


def test_many_small_pieces_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [once("compute/payload", "parseBlock", block_bytes(trace("registers"), 1, "float32")).value]
    monkeypatch.setattr("vitviz.web.payload.PIECE", 1)  # 16 rows at a time: the prefix ends inside the first piece
    whole.append(once("compute/payload", "parseBlock", block_bytes(trace("registers"), 1, "float32")).value)
    for key in ("lse", "meanRow", "meanColumn"):
        assert np.allclose(whole[0][key], whole[1][key], rtol=1e-6, atol=1e-9)


def test_heads_that_disagree_everywhere_still_have_a_smallest() -> None:
    """Every product of probabilities underflows; in logarithms there is an answer."""
    logs = np.array([[0.0, -300.0, -400.0], [-400.0, -300.0, 0.0]], np.float32)
    out = once("compute/attention", "fuse", "min", logs.ravel(), np.exp(logs).ravel(), 2, 3, empty(3), give=(5,)).given[
        0
    ]
    assert np.allclose(out, [0.0, 1.0, 0.0])


@pytest.mark.parametrize("block", range(12))
def test_a_real_model_keeps_to_the_limit_in_half_precision(block: int) -> None:
    one, (heads, count) = real(), heads_and_tokens(real())
    exact = dense(one, block)
    peak = np.unravel_index(exact.max(0).argmax(), (count, count))[1]  # rounding shows most where attention is sharp
    tokens = [0, int(peak), 1 + count // 2, *range(1, count, 37)]
    script = Script()
    parsed = script.call("compute/payload", "parseBlock", block_bytes(one, block), give=None)
    room = (empty(heads * count), empty(heads * count))
    asked = [
        (t, *(script.call("compute/attention", n, parsed, t, *room, give=(3,)) for n in ("row", "column")))
        for t in tokens
    ]
    script.run()
    for token, row, column in asked:
        rows, columns = (answer.given[0].reshape(heads, count) for answer in (row, column))
        assert np.abs(rows - exact[:, token]).max() <= LIMITS["float16"]
        assert np.abs(columns - exact[:, :, token]).max() <= LIMITS["float16"]


# ---- numbers that halves are bad at ----


def outliers(key_bias: float = 0.0, gain: float = 1.0, spread: float = 0.0) -> Trace:
    """A model whose keys share a large offset in one channel, with queries and keys larger by `gain`, and channels that
    differ in size by `spread` orders of magnitude, large in queries where they are small in keys.
    """
    model = tiny.model(registers=3)
    for block in model.blocks:
        weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
        with torch.no_grad():
            size = 10.0 ** torch.linspace(-spread / 2, spread / 2, tiny.HEAD_WIDTH)  # (d,)
            factor = torch.stack([gain * size, gain / size, torch.ones_like(size)])  # queries, keys, values: (3, d)
            shape = (3, tiny.HEADS, tiny.HEAD_WIDTH)
            weight.mul_(factor[:, None].expand(shape).reshape(-1, 1))
            bias.mul_(factor[:, None].expand(shape).reshape(-1))
            bias.view(shape)[1, :, 3] += key_bias
    return model.trace(tiny.images(1))


@pytest.mark.parametrize(
    "kind",
    [
        {"key_bias": 300.0},
        {"key_bias": 1e5},  # beyond the largest half
        {"spread": 6.0},  # queries from 0.001 to 1,000
        {"spread": 14.0},  # beyond the largest half on one side, below the smallest on the other
        {"spread": 3.0, "key_bias": -50.0},
    ],
    ids=str,
)
def test_outliers_keep_to_the_limit_in_half_precision(kind: dict[str, float]) -> None:
    one = outliers(**kind)
    heads, count = heads_and_tokens(one)
    script = Script()
    parsed = script.call("compute/payload", "parseBlock", block_bytes(one, 1), give=None)
    room = (empty(heads * count), empty(heads * count))
    asked = [
        (t, *(script.call("compute/attention", n, parsed, t, *room, give=(3,)) for n in ("row", "column")))
        for t in some_tokens(one)
    ]
    script.run()
    exact = dense(one, 1)
    for token, row, column in asked:
        assert np.abs(row.given[0].reshape(heads, count) - exact[:, token]).max() <= LIMITS["float16"]
        assert np.abs(column.given[0].reshape(heads, count) - exact[:, :, token]).max() <= LIMITS["float16"]


def test_numbers_that_no_half_can_hold_are_refused() -> None:
    with pytest.raises(PayloadError, match=r"up to 65504, the largest half, got .*Pass dtype='float32'"):
        block_bytes(outliers(gain=1e6), 0)


def test_attention_that_is_not_finite_is_refused() -> None:
    model = tiny.model()
    with torch.no_grad():
        model.blocks[1].attn.qkv.bias[0] = torch.nan
    broken = model.trace(tiny.images(1))
    for dtype in LIMITS:
        with pytest.raises(PayloadError, match="finite"):
            block_bytes(broken, 1, dtype)


def test_halves_keep_every_bit_that_a_half_has() -> None:
    """Powers of two move no digit: each half is a whole power of two times the number rounded without balancing."""
    one = outliers(spread=2.0)
    got = once("compute/payload", "parseBlock", block_bytes(one, 1)).value
    queries = one.block(1).queries[0].numpy()
    sent = got["queries"].reshape(queries.shape)
    factor = np.abs(sent).max(1, keepdims=True) / np.abs(queries.astype(np.float16).astype(np.float32)).max(
        1, keepdims=True
    )
    assert np.array_equal(np.log2(factor), np.round(np.log2(factor)))
    assert np.array_equal(sent, (queries * factor).astype(np.float16).astype(np.float32))


# ---- rollout ----


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", ["registers", "no class token"])
def test_rollout_rows_and_columns_equal_pythons(name: str, dtype: str) -> None:
    one = trace(name)
    count, prefix, limit = one.tokens.shape[1], len(one.prefix), LIMITS[dtype]
    script, asked = Script(), []
    parsed = script.call("compute/payload", "parseRollout", rollout_bytes(one, dtype), give=None)
    for token in some_tokens(one):
        row, column = (
            script.call("compute/rollout", n, parsed, token, empty(count), give=(2,))
            for n in ("rolloutRow", "rolloutColumn")
        )
        asked.append((token, row, column))
    means = [
        script.call("compute/rollout", n, parsed, empty(count), give=(1,))
        for n in ("rolloutMeanRow", "rolloutMeanColumn")
    ]
    script.run()
    matrix = rollout_matrix(one)[0].numpy()
    for token, row, column in asked:
        assert np.abs(row.given[0] - scores(rollout(one, token))).max() <= limit
        assert abs(row.given[0].sum(dtype=np.float64) - 1) <= 1e-6
        assert np.abs(column.given[0] - matrix[:, token]).max() <= limit
    assert np.abs(means[0].given[0] - scores(rollout(one, "mean"))).max() <= limit
    assert np.abs(means[1].given[0] - matrix[:, prefix:].mean(1)).max() <= limit
