"""Test a trace's queries against softmax(q @ k.T) in float64."""

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairs
from tiny import PREFIXES, close

import vitviz.model.trace
import vitviz.model.tracing
from vitviz.model.ops import attention_and_lse
from vitviz.model.trace import BlockTrace, TraceError
from vitviz.model.tracing import tokens_per_piece

pytestmark = pytest.mark.usefixtures("one_thread")
CHUNKS = {64 * 2**20: 1, 40_000: 7, 1: 78}
"""Size of a chunk in bytes -> number of chunks of the 78 attention rows of a tiny model."""


@pytest.mark.parametrize(("name", "grad", "chunk"), pairs(list(PREFIXES), [False, True], list(CHUNKS)))
def test_trace_queries_match_softmax_attention(
    name: str, grad: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that chunks cover every row once within the size limit."""
    monkeypatch.setattr(vitviz.model.trace, "CHUNK_BYTES", chunk)
    trace = tiny.trace(grad=grad, **PREFIXES[name])
    first, count = len(trace.prefix), len(trace.prefix) + 77
    pieces, one_row = list(trace.block(0).chunks()), 4 * tiny.BATCH * tiny.HEADS * count
    assert [row for start, stop in pieces for row in range(start, stop)] == list(range(count))
    assert all((stop - start) * one_row <= max(chunk, one_row) for start, stop in pieces)
    assert name != "CLS" or len(pieces) == CHUNKS[chunk]
    for block in range(tiny.DEPTH):
        expected, block_trace = tiny.dense(trace, block), trace.block(block)
        assert expected.shape[-1] == count
        close(trace.attention(block), expected)
        close(trace.attentions[block], expected)
        close(block_trace.rows(5, 8), expected[:, :, 5:8])
        close(block_trace.log_rows(5, 8), expected[:, :, 5:8].log(), 1e-4)
        for token in (0, 3, count - 1):
            close(trace.row(block, token), expected[:, :, token])
            close(trace.column(block, token), expected[..., token])
        for weights in (torch.rand(tiny.BATCH, count), torch.eye(count)[[4, 40]], torch.zeros(tiny.BATCH, count)):
            close(block_trace.propagate(weights), torch.einsum("bn,bhnm->bhm", weights.double(), expected))
        close(trace.row(block, "mean"), expected[:, :, first:].mean(2))
        close(trace.column(block, "mean"), expected[..., first:].mean(-1))
    assert trace.row(1, "mean").dtype == trace.row(1, 5).dtype == torch.float32


@pytest.mark.parametrize("name", PREFIXES)
def test_token_is_found_by_name_index_row_and_column(name: str) -> None:
    trace = tiny.trace(depth=1, **PREFIXES[name])
    for index, token in enumerate(trace.prefix):
        assert trace.token(token) == trace.token(token.lower()) == trace.token(index) == index
    for row in range(7):
        for column in range(11):
            assert trace.token((row, column)) == len(trace.prefix) + row * 11 + column
    assert trace.default_query == ("cls" if "CLS" in trace.prefix else "mean")


@pytest.mark.parametrize(
    "query", [(7, 0), (0, 11), (-1, 0), (0, -1), (1, 2, 3), 78, -1, "clss", "register 1", None, [0, 1]]
)
def test_unknown_queries_raise_with_valid_choices(query: object) -> None:
    trace = tiny.trace(depth=1)
    for ask in (trace.token, lambda query: trace.row(0, query), lambda query: trace.column(0, query)):
        with pytest.raises(TraceError) as caught:
            ask(query)
        for fact in ("'cls'", "7 x 11", "78", repr(query)):
            assert fact in str(caught.value)
    with pytest.raises(TraceError, match="no class token"):
        tiny.trace(depth=1, class_token=False, pooling="mean").row(0, "cls")


def test_attentions_and_block_indices_cover_kept_blocks_only() -> None:
    trace = tiny.model().trace(tiny.images(), blocks=[0, 2])
    first, last = trace.attentions  # the kept blocks only
    for attention, same in ((first, trace.attention(-3)), (last, trace.attention(-1)), (last, trace.attentions[-1])):
        assert torch.equal(attention, same)
    assert torch.equal(last, trace.attention(2))
    assert all(torch.equal(a, b) for a, b in zip(trace.attentions[1:], [last], strict=True))
    assert len(trace.attentions) == 2
    with pytest.raises(IndexError):
        trace.attentions[2]
    for block in (1, -2, 3, -4):
        with pytest.raises(TraceError, match=rf"{block}\b.*\[0, 2\]|\[0, 2\].*{block}\b"):
            trace.attention(block)


def test_images_of_a_batch_do_not_mix() -> None:
    model, images = tiny.model(registers=2), tiny.images(3)
    for grad in (False, True):
        together = model.trace(images, grad=grad)
        for index in range(3):
            image, alone = together.image(index), model.trace(images[index : index + 1], grad=grad)
            assert (image.grid, image.prefix) == (alone.grid, alone.prefix)
            close(image.logits, alone.logits)
            close(image.tokens, alone.tokens)
            for block in range(tiny.DEPTH):
                close(image.attention(block), alone.attention(block))
                close(image.row(block, (1, 2)), together.row(block, (1, 2))[index : index + 1])
                close(image.column(block, "mean"), together.column(block, "mean")[index : index + 1])
            memory = [trace.block(0).queries.untyped_storage().data_ptr() for trace in (image, together)]
            assert memory[0] == memory[1]
    for index in (-1, 3, 7):
        with pytest.raises(TraceError, match=rf"0\.\.2.*{index}"):
            together.image(index)


def test_memory_grows_with_tokens_not_with_their_square() -> None:
    """Check that the trace of fused attention keeps no N x N matrix."""
    sizes = []
    for grid in ((7, 11), (14, 22)):
        trace = tiny.trace(batch=1, grid=grid, patch=3)
        tensors = [trace.tokens, *(t for state in trace.states for t in (state.stream, state.lse))]
        tensors += [t for state in map(trace.block, trace.blocks) for t in (state.queries, state.keys)]
        assert sum(t.nbytes for t in tensors) == sum(t.untyped_storage().nbytes() for t in tensors) == trace.nbytes
        sizes.append(trace.nbytes)
        assert all(trace.block(block).probabilities is None for block in trace.blocks)
    assert sizes[1] / sizes[0] == pytest.approx(309 / 78, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "cast"),
    [
        ({"qkv_bias": False}, None),
        ({"norms": {"qk": True}}, torch.bfloat16),
        ({"positions": "rotary", "head_width": 16}, None),
        ({"positions": "rotary", "head_width": 16}, torch.bfloat16),
        ({"registers": 3, "depth": 1}, None),
        ({}, torch.bfloat16),
    ],
    ids=str,
)
def test_recomputed_queries_and_keys_match_kept_ones(
    changes: dict, cast: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = tiny.model(**changes), tiny.images()
    with torch.no_grad(), torch.autocast("cpu", cast, enabled=cast is not None):
        stored = model.trace(images)
        monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", 0)
        recomputed = model.trace(images)
    # Queries outside autocast use the precision of the run.
    tolerance = 1e-5 if cast is None else 0.1  # bfloat16 has three significant digits
    close(recomputed.logits, stored.logits, tolerance)
    assert recomputed.nbytes < stored.nbytes
    for block in stored.blocks:
        assert recomputed.states[block].attention is None
        close(recomputed.stream(block), stored.stream(block), tolerance)
        close(recomputed.attention(block), stored.attention(block), tolerance)
        ones = torch.ones(recomputed.states[block].lse.shape)
        close(recomputed.attention(block).sum(-1), ones, 1e-5 if cast is None else 5e-3)
        close(recomputed.image(1).row(block, (2, 3)), recomputed.row(block, (2, 3))[1:], tolerance)
        close(recomputed.column(block, 4), stored.column(block, 4), tolerance)
        with torch.autocast("cpu", torch.bfloat16):  # autocast at the time of the query changes nothing
            close(recomputed.row(block, "mean"), recomputed.attention(block)[:, :, len(recomputed.prefix) :].mean(2))
            close(recomputed.column(block, 4), recomputed.attention(block)[..., 4], 1e-5 if cast is None else 1e-4)


def test_queries_after_a_change_of_weights_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row sums stored with the old weights would not match queries computed with the new weights."""
    monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", 0)
    model = tiny.model()
    trace = model.trace(tiny.images())
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.mul_(1.01)
    trace.attention(0)
    with pytest.raises(TraceError, match="changed"):
        trace.attention(1)
    model.load_state_dict(tiny.model(seed=7).state_dict(), assign=True)
    with pytest.raises(TraceError, match="changed"):
        trace.attention(0)


def test_mlp_in_pieces_matches_whole_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = tiny.model(layer_scale=0.3), tiny.images()
    expected = model(images)
    monkeypatch.setattr(vitviz.model.tracing, "PIECE_TOKENS", 1)
    for size in (1, 5000, 2**30):
        monkeypatch.setattr(vitviz.model.tracing, "PIECE_BYTES", size)
        close(model.trace(images).logits, expected)


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 5000), st.integers(1, 2**17))
def test_pieces_of_an_mlp_are_even_and_bounded(batch: int, tokens: int, hidden_bytes: int) -> None:
    step = tokens_per_piece(batch, tokens, hidden_bytes)
    count = -(-tokens // step)
    assert 1 <= step <= tokens
    assert step <= count or step * count - tokens < count  # all pieces have nearly equal size
    limit = max(vitviz.model.tracing.PIECE_BYTES, vitviz.model.tracing.PIECE_TOKENS * hidden_bytes)
    assert batch * step * hidden_bytes <= 1.5 * limit + batch * hidden_bytes or step == 1


def test_extreme_logits_stay_finite() -> None:
    """In this test, one logit exceeds all other logits by thousands."""
    queries, keys = 90.0 * torch.randn(1, 5, 78, 17), torch.randn(1, 5, 78, 17)
    _, lse = attention_and_lse(queries, keys, keys)
    block_trace = BlockTrace(queries, keys, lse)
    rows = block_trace.rows(0, 78)
    assert torch.isfinite(rows).all()
    assert torch.isfinite(block_trace.log_rows(0, 78)).all()
    close(rows.sum(-1), torch.ones(1, 5, 78), 1e-3)
    assert torch.equal(rows.argmax(-1), (queries @ keys.mT).argmax(-1))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-7)])
def test_large_logits_keep_the_precision_of_the_model(dtype: torch.dtype, tolerance: float) -> None:
    """Check that rows sum to 1, and single rows and columns agree with the matrix."""
    model = tiny.model()
    with torch.no_grad():
        for block in model.blocks:  # keys share an offset, as in DINOv2: logits of 40 and more
            block.attn.qkv.weight *= 6.0
            block.attn.qkv.bias.view(3, -1)[1] += 30.0
    trace = model.to(dtype).trace(tiny.images(1).to(dtype))
    logits = [trace.block(block).queries.double() @ trace.block(block).keys.double().mT for block in range(trace.depth)]
    assert max(float(part.abs().max()) for part in logits) > 40
    for block, exact in enumerate(logits):
        rows = trace.attention(block)
        assert float((rows.double().sum(-1) - 1).abs().max()) < 5e-7
        torch.testing.assert_close(rows.double(), exact.softmax(-1), atol=tolerance, rtol=0)
        torch.testing.assert_close(trace.row(block, (1, 2)), rows[:, :, trace.token((1, 2))], atol=tolerance, rtol=0)
        torch.testing.assert_close(trace.column(block, "cls"), rows[..., 0], atol=tolerance, rtol=0)


def test_row_sums_on_other_devices_have_the_same_shapes() -> None:
    """Other devices compute row sums separately; the meta device checks shapes only."""
    q = torch.zeros(tiny.BATCH, tiny.HEADS, 78, 17, device="meta")
    mixed, lse = attention_and_lse(q, q, q)
    assert mixed.shape == q.shape
    assert lse.shape == q.shape[:-1]
    assert lse.dtype == torch.float32
