"""What a forward pass leaves behind: every answer against softmax(q @ k.T) written out in float64."""

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import vitviz.model.trace
import vitviz.model.tracing
from vitviz.model.ops import attention_and_lse
from vitviz.model.trace import BlockTrace, Trace, TraceError
from vitviz.model.tracing import tokens_per_piece

PREFIXES = {
    "CLS": {},
    "none": {"class_token": False, "pooling": "mean"},
    "CLS, distillation, registers": {"distillation_token": True, "registers": 3},
    "registers without CLS": {"class_token": False, "pooling": "mean", "registers": 2},
}
prefixes = pytest.mark.parametrize("changes", PREFIXES.values(), ids=PREFIXES.keys())


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a.detach().double(), b.detach().double(), rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[64 * 2**20, 40_000, 1], ids=["one piece", "pieces", "row by row"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Tests that ask for this run three times: with all rows at once, twelve, and a single one."""
    monkeypatch.setattr(vitviz.model.trace, "CHUNK_BYTES", request.param)
    return request.param


def test_pieces_cover_every_row_once_and_stay_small(chunk: int) -> None:
    kept = tiny.trace().block(0)
    pieces = list(kept.chunks())
    assert [row for start, stop in pieces for row in range(start, stop)] == list(range(78))
    one_row = 4 * tiny.BATCH * tiny.HEADS * 78
    assert all((stop - start) * one_row <= max(chunk, one_row) for start, stop in pieces)
    assert len(pieces) == {64 * 2**20: 1, 40_000: 7, 1: 78}[chunk]


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("grad", [False, True])
@prefixes
def test_every_answer_is_softmax_attention(changes: dict, grad: bool) -> None:
    trace = tiny.trace(grad=grad, **changes)
    first = len(trace.prefix)
    for block in range(tiny.DEPTH):
        expected = tiny.dense(trace, block)
        count = expected.shape[-1]
        assert count == first + 77
        close(trace.attention(block), expected)
        close(trace.attentions[block], expected)
        kept = trace.block(block)
        close(kept.rows(5, 8), expected[:, :, 5:8])
        close(kept.log_rows(5, 8), expected[:, :, 5:8].log(), 1e-4)
        for token in (0, 3, count - 1):
            close(trace.row(block, token), expected[:, :, token])
            close(trace.column(block, token), expected[..., token])
        weights = torch.rand(tiny.BATCH, count, generator=torch.Generator().manual_seed(block))
        close(kept.propagate(weights), torch.einsum("bn,bhnm->bhm", weights.double(), expected))
        close(trace.row(block, "mean"), expected[:, :, first:].mean(2))
        close(trace.column(block, "mean"), expected[..., first:].mean(-1))


def test_answers_have_one_sum_and_one_precision() -> None:
    trace = tiny.trace()
    for query in ("cls", "mean", (2, 7), 77):
        row = trace.row(1, query)
        assert row.shape == (tiny.BATCH, tiny.HEADS, 78)
        assert row.dtype == torch.float32
        close(row.sum(-1), torch.ones(tiny.BATCH, tiny.HEADS))
        assert trace.column(1, query).shape == (tiny.BATCH, tiny.HEADS, 78)


@given(row=st.integers(0, 6), column=st.integers(0, 10))
def test_a_patch_is_found_by_row_and_column(row: int, column: int) -> None:
    """Fault 5: the grid is 7 x 11, no square, and nothing is guessed from the number of tokens."""
    for changes in PREFIXES.values():
        trace = Trace(None, torch.zeros(1, 1, 1), tiny.GRID, tiny.config(**changes).prefix, (), (), tiny.DEPTH)
        assert trace.token((row, column)) == len(trace.prefix) + row * 11 + column


@prefixes
def test_a_prefix_token_is_found_by_name(changes: dict) -> None:
    """Fault 6: registers, a distillation token, no CLS."""
    trace = tiny.trace(**changes)
    for index, name in enumerate(trace.prefix):
        assert trace.token(name) == trace.token(name.lower()) == trace.token(index) == index
    assert trace.default_query == ("cls" if changes.get("class_token", True) else "mean")
    weights = trace.weights("mean")
    assert weights.shape == (tiny.BATCH, len(trace.prefix) + 77)
    assert not weights[:, : len(trace.prefix)].any()
    close(weights.sum(1), torch.ones(tiny.BATCH))


@pytest.mark.parametrize(
    "query", [(7, 0), (0, 11), (-1, 0), (0, -1), (1, 2, 3), 78, -1, "clss", "register 1", None, [0, 1]]
)
def test_unknown_queries_are_refused_with_what_there_is(query: object) -> None:
    trace = tiny.trace(depth=1)
    for ask in (trace.token, lambda query: trace.row(0, query), lambda query: trace.column(0, query)):
        with pytest.raises(TraceError) as caught:
            ask(query)
        for fact in ("'cls'", "7 x 11", "78", repr(query)):
            assert fact in str(caught.value)


def test_a_model_without_cls_says_so() -> None:
    trace = tiny.trace(depth=1, class_token=False, pooling="mean")
    with pytest.raises(TraceError, match="no CLS"):
        trace.row(0, "cls")


def test_blocks_are_counted_from_the_ends_of_the_model() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images, blocks=[0, 2])
    assert torch.equal(trace.attention(-1), trace.attention(2))
    assert torch.equal(trace.attention(-3), trace.attention(0))
    assert torch.equal(trace.attentions[1], trace.attention(2))  # `attentions` holds only what was kept
    assert torch.equal(trace.attentions[-1], trace.attention(2))
    for block in (1, -2, 3, -4):
        with pytest.raises(TraceError) as caught:
            trace.attention(block)
        assert "[0, 2]" in str(caught.value)
        assert str(block) in str(caught.value)


def test_attentions_read_like_a_tuple() -> None:
    trace = tiny.trace()
    assert len(trace.attentions) == 3
    assert [a.shape for a in trace.attentions] == [(tiny.BATCH, tiny.HEADS, 78, 78)] * 3
    assert all(torch.equal(a, b) for a, b in zip(trace.attentions[1:], list(trace.attentions)[1:], strict=True))
    with pytest.raises(IndexError):
        trace.attentions[3]


def test_images_of_a_batch_do_not_mix() -> None:
    model, images = tiny.model(registers=2), tiny.images(3)
    for grad in (False, True):
        together = model.trace(images, grad=grad)
        for index in range(3):
            one, alone = together.image(index), model.trace(images[index : index + 1], grad=grad)
            assert one.grid == alone.grid
            assert one.prefix == alone.prefix
            close(one.logits, alone.logits)
            close(one.tokens, alone.tokens)
            for block in range(tiny.DEPTH):
                close(one.attention(block), alone.attention(block))
                close(one.row(block, (1, 2)), together.row(block, (1, 2))[index : index + 1])
                close(one.column(block, "mean"), together.column(block, "mean")[index : index + 1])
            assert (
                one.block(0).queries.untyped_storage().data_ptr()
                == together.block(0).queries.untyped_storage().data_ptr()
            )


@pytest.mark.parametrize("index", [-1, 2, 7])
def test_an_image_that_is_not_in_the_batch_is_refused(index: int) -> None:
    with pytest.raises(TraceError) as caught:
        tiny.trace(depth=1).image(index)
    assert "0..1" in str(caught.value)
    assert str(index) in str(caught.value)


def test_memory_grows_with_tokens_not_with_their_square() -> None:
    """Fault 7 and the promise of this project: fused attention is traced, and no N x N matrix is kept."""
    sizes = []
    for grid in ((7, 11), (14, 22)):
        trace = tiny.trace(batch=1, grid=grid, patch=3)
        held = [trace.tokens, *(t for k in trace.kept for t in (k.stream, k.lse))]
        held += [t for k in map(trace.block, trace.blocks) for t in (k.queries, k.keys)]
        assert sum(t.nbytes for t in held) == sum(t.untyped_storage().nbytes() for t in held) == trace.nbytes
        sizes.append(trace.nbytes)
        assert all(trace.block(block).probabilities is None for block in trace.blocks)
    assert sizes[1] / sizes[0] == pytest.approx(309 / 78, rel=0.01)


def test_many_rows_are_summed_by_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where most weights are zero: what nobody looks from adds nothing."""
    monkeypatch.setattr(vitviz.model.trace, "MANY_TOKENS", 10)
    trace = tiny.trace(registers=3)
    for block in range(tiny.DEPTH):
        expected, kept = tiny.dense(trace, block), trace.block(block)
        count = expected.shape[-1]
        for weights in (torch.rand(tiny.BATCH, count), torch.eye(count)[[4, 40]], torch.zeros(tiny.BATCH, count)):
            close(kept.propagate(weights), torch.einsum("bn,bhnm->bhm", weights.double(), expected))


LOOKS = {
    "plain": {},
    "no bias": {"qkv_bias": False},
    "norms of queries and keys": {"qk_norm": True},
    "rotary": {"positions": "rotary", "head_width": 16},
    "registers": {"registers": 3},
    "one block": {"depth": 1},
}


@pytest.mark.parametrize("changes", LOOKS.values(), ids=LOOKS.keys())
@pytest.mark.parametrize("cast", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_queries_and_keys_are_made_again_as_they_were(
    changes: dict, cast: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = tiny.model(**changes), tiny.images()
    with torch.no_grad(), torch.autocast("cpu", cast, enabled=cast is not None):
        held = model.trace(images)
        monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", 0)
        again = model.trace(images)
    # Outside of autocast: what is asked later is answered in the precision of the run.
    tolerance = 1e-5 if cast is None else 0.1  # bfloat16 has three figures
    close(again.logits, held.logits, tolerance)
    assert again.nbytes < held.nbytes
    for block in held.blocks:
        assert again.kept[block].attention is None
        close(again.stream(block), held.stream(block), tolerance)
        close(again.attention(block), held.attention(block), tolerance)
        close(again.attention(block).sum(-1), torch.ones(again.kept[block].lse.shape), 1e-5 if cast is None else 5e-3)
        close(again.image(1).row(block, (2, 3)), again.row(block, (2, 3))[1:], tolerance)
        close(again.column(block, 4), held.column(block, 4), tolerance)
        with torch.autocast("cpu", torch.bfloat16):  # who asks does not change the answer
            close(again.row(block, "mean"), again.attention(block)[:, :, len(again.prefix) :].mean(2))
            close(again.column(block, 4), again.attention(block)[..., 4])


def test_what_entered_each_block_is_there() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images)
    tokens, _ = model.embed(images)
    for block in range(tiny.DEPTH):
        close(trace.stream(block), tokens)
        tokens = model.blocks[block](tokens)
    close(trace.tokens, model.norm(tokens))
    assert torch.equal(trace.stream(-1), trace.stream(tiny.DEPTH - 1))


def test_a_question_after_training_went_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row sums of the old weights and queries of the new ones would give rows that mean nothing."""
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


def test_an_mlp_in_pieces_is_the_same_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = tiny.model(layer_scale=0.3), tiny.images()
    expected = model(images)
    monkeypatch.setattr(vitviz.model.tracing, "PIECE_TOKENS", 1)
    for size in (1, 5000, 2**30):
        monkeypatch.setattr(vitviz.model.tracing, "PIECE_BYTES", size)
        close(model.trace(images).logits, expected)


@given(st.integers(1, 9), st.integers(1, 5000), st.integers(1, 2**17))
def test_pieces_of_an_mlp_are_even_and_bounded(batch: int, tokens: int, middle: int) -> None:
    step = tokens_per_piece(batch, tokens, middle)
    count = -(-tokens // step)
    assert 1 <= step <= tokens
    assert step <= count or step * count - tokens < count  # the last one is hardly shorter than the others
    most = max(vitviz.model.tracing.PIECE_BYTES, vitviz.model.tracing.PIECE_TOKENS * middle)
    assert batch * step * middle <= 1.5 * most + batch * middle or step == 1


def test_extreme_logits_stay_finite() -> None:
    """One key wins by thousands: probabilities are exactly what a stable softmax gives."""
    queries, keys = 90.0 * torch.randn(1, 5, 78, 17), torch.randn(1, 5, 78, 17)
    _, lse = attention_and_lse(queries, keys, keys)
    kept = BlockTrace(queries, keys, lse)
    rows = kept.rows(0, 78)
    assert torch.isfinite(rows).all()
    assert torch.isfinite(kept.log_rows(0, 78)).all()
    close(rows.sum(-1), torch.ones(1, 5, 78), 1e-3)
    assert torch.equal(rows.argmax(-1), (queries @ keys.mT).argmax(-1))


def test_other_devices_get_row_sums_in_pieces() -> None:
    """The path beside kernels that keep their row sums to themselves; without numbers here, by shapes."""
    q = torch.zeros(tiny.BATCH, tiny.HEADS, 78, 17, device="meta")
    mixed, lse = attention_and_lse(q, q, q)
    assert mixed.shape == q.shape
    assert lse.shape == q.shape[:-1]
    assert lse.dtype == torch.float32
