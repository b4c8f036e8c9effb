"""Raw attention and rollout against dense matrices in NumPy."""

import numpy as np
import pytest
import tiny
import torch
from attention_numpy import SMALL, TRACE_NAMES, TRACES, close, gildenblat, product, start_row, step, whole
from hypothesis import given, settings
from hypothesis import strategies as st

import vitviz.attribution.attention
import vitviz.model.trace
from vitviz.attribution.attention import attention, rollout, rollout_matrix
from vitviz.attribution.scores import ExplainError
from vitviz.model.trace import Query, Trace, TraceError

# ---- rollout

OPTIONS = st.fixed_dictionaries(
    {
        "fuse": st.sampled_from(["mean", "max", "min"]),
        "discard": st.sampled_from([0.0, 0.01, 0.3, 0.62, 0.9, 0.99]),
        "residual": st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 1.0),
        "start": st.integers(0, 2),
    }
)


@settings(max_examples=60)
@given(st.sampled_from(TRACES), OPTIONS, st.data())
def test_rollout_is_the_row_of_a_product_of_matrices(trace: Trace, options: dict, data: st.DataObject) -> None:
    names = [name.lower() for name in trace.prefix]
    patches = st.tuples(st.integers(0, 2), st.integers(0, 4))
    query = data.draw(st.sampled_from(["mean", *names]) | patches)
    scores = rollout(trace, query, **options)
    matrix = rollout_matrix(trace, **options)
    for image in range(tiny.BATCH):
        expected = product(trace, image, **options)
        close(matrix[image], expected)
        close(whole(scores)[image], start_row(trace, query) @ expected)
    close(whole(scores).sum(1), np.ones(tiny.BATCH))
    close(matrix.sum(2), np.ones((tiny.BATCH, trace.tokens.shape[1])))
    assert float(matrix.min()) >= 0.0
    assert scores.options == {"query": query, **options, "rescale": "attention"}


@settings(max_examples=40)
@given(st.sampled_from(TRACES), OPTIONS, st.data())
def test_rollout_of_gildenblat_rescales_attention_and_identity_together(
    trace: Trace, options: dict, data: st.DataObject
) -> None:
    query = data.draw(st.sampled_from(["mean", (2, 3)]))
    scores = whole(rollout(trace, query, **options, rescale="sum"))
    for image in range(tiny.BATCH):
        close(scores[image], start_row(trace, query) @ gildenblat(trace, image, **options))
    close(scores.sum(1), np.ones(tiny.BATCH))


@pytest.mark.parametrize("options", [{}, {"fuse": "max", "discard": 0.7}, {"fuse": "min", "start": 1, "residual": 0.2}])
@pytest.mark.parametrize("trace", TRACES, ids=TRACE_NAMES)
def test_a_rows_of_the_matrix_are_rollouts_of_each_token(trace: Trace, options: dict) -> None:
    matrix = rollout_matrix(trace, **options)
    for token in range(trace.tokens.shape[1]):
        close(whole(rollout(trace, token, **options)), matrix[:, token])


def test_rollout_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [{}, {"fuse": "max"}, {"fuse": "min", "discard": 0.6}]
    before = [whole(rollout(TRACES[0], "mean", **o)) for o in options]
    monkeypatch.setattr(vitviz.model.trace, "CHUNK_BYTES", 4 * 2 * 5 * 16 * 7)  # seven rows at a time
    for option, expected in zip(options, before, strict=True):
        close(whole(rollout(TRACES[0], "mean", **option)), expected)


@pytest.mark.parametrize("query", ["cls", "mean", (2, 3), "register 3"])
def test_only_the_residual_is_the_query_itself(query: Query) -> None:
    trace = TRACES[2]
    close(whole(rollout(trace, query, residual=1.0))[1], start_row(trace, query))


@pytest.mark.parametrize("fuse", ["mean", "max", "min"])
def test_one_block_without_residual_is_attention(fuse: str) -> None:
    for trace in TRACES:
        for query in ("mean", (1, 3)):
            one = rollout(trace, query, fuse=fuse, residual=0.0, start=2)
            close(whole(one), whole(attention(trace, 2, fuse, query)))


def test_by_default_the_class_token_asks_or_all_patches() -> None:
    for trace in TRACES:
        query = "cls" if "CLS" in trace.prefix else "mean"
        assert torch.equal(rollout(trace).patches, rollout(trace, query).patches)
        assert torch.equal(attention(trace).patches, attention(trace, -1, "mean", query).patches)


# ---- raw attention


@pytest.mark.parametrize("trace", TRACES, ids=TRACE_NAMES)
def test_attention_of_one_head_and_of_heads_together(trace: Trace) -> None:
    count = len(trace.prefix)
    for block in range(trace.depth):
        dense = tiny.dense(trace, block).numpy()  # (B, H, N, N)
        for query in ("mean", (0, 4), (2, 0), count, *(name.lower() for name in trace.prefix)):
            row = start_row(trace, query)
            for head in range(tiny.HEADS):
                scores = attention(trace, block, head, query)
                expected = np.stack([row @ dense[image, head] for image in range(tiny.BATCH)])
                close(scores.prefix, expected[:, :count])
                close(scores.patches, expected[:, count:].reshape(tiny.BATCH, 3, 5))
            for fuse in ("mean", "max", "min"):
                fused = np.stack([row @ step(dense[image], fuse, 0.0, count) for image in range(tiny.BATCH)])
                close(whole(attention(trace, block - trace.depth, fuse, query)), fused)


def test_scores_say_what_they_are() -> None:
    scores = attention(TRACES[2], 1, "max", (2, 3))
    assert scores.names == ("CLS", "distillation", "register 1", "register 2", "register 3")
    assert scores.prefix.shape == (tiny.BATCH, 5)
    assert scores.patches.shape == (tiny.BATCH, 3, 5)
    assert scores.method == "attention"
    assert scores.options == {"block": 1, "head": "max", "query": (2, 3)}
    assert not scores.signed
    assert rollout(TRACES[0]).method == "rollout"


# ---- refusals


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"fuse": "median"}, ["mean", "max", "min", "'median'"]),
        ({"discard": 1.0}, ["0 <= discard < 1", "1.0"]),
        ({"discard": -0.1}, ["-0.1"]),
        ({"residual": 1.5}, ["0..1", "1.5"]),
        ({"start": 3}, ["0..2", "3"]),
        ({"start": -1}, ["0..2", "-1"]),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, facts: list[str]) -> None:
    for ask in (rollout, rollout_matrix):
        with pytest.raises(ExplainError) as caught:
            ask(TRACES[0], **options)
        for fact in facts:
            assert fact in str(caught.value)


def test_other_ways_to_rescale_are_refused() -> None:
    with pytest.raises(ExplainError, match="attention or sum, got 'rows'"):
        rollout(TRACES[0], rescale="rows")


def test_heads_blocks_and_queries_that_do_not_exist_are_refused() -> None:
    trace = TRACES[0]
    for head, came in ((5, "5"), (-1, "-1"), ("sum", "'sum'")):
        with pytest.raises(ExplainError, match=came):
            attention(trace, 0, head)
    with pytest.raises(TraceError, match="3"):
        attention(trace, 3)
    with pytest.raises(TraceError, match="3 x 5"):
        rollout(trace, (3, 0))


def test_rollout_names_the_blocks_that_it_misses() -> None:
    trace = tiny.model(**SMALL).trace(tiny.images(**SMALL), blocks=[1, 2])
    with pytest.raises(ExplainError, match=r"\[0\]"):
        rollout(trace)
    complete = tiny.model(**SMALL).trace(tiny.images(**SMALL))
    close(whole(rollout(trace, start=1)), whole(rollout(complete, start=1)))
