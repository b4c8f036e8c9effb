"""Raw attention and rollout against dense matrices in NumPy, and the known faults of other rollout code.

Faults are numbered as the project's list of what goes wrong elsewhere.
"""

import weakref
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import vitviz.explain.attention
import vitviz.trace
from vitviz.explain.attention import (
    WORK_BYTES,
    attention,
    discard_weakest,
    entry_in_order,
    fuse_heads,
    fused_matrix,
    rollout,
    rollout_matrix,
)
from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.trace import BlockTrace, Kept, Query, Trace, TraceError

PREFIXES = [
    {},
    {"class_token": False, "pooling": "mean"},
    {"distillation_token": True, "registers": 3},
    {"class_token": False, "pooling": "mean", "registers": 2},
]
Array = NDArray[np.float64]


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    a, b = (x.detach().double().numpy() if isinstance(x, torch.Tensor) else x for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def whole(scores: TokenScores) -> torch.Tensor:
    """Scores of all tokens, prefix first: (B, N)."""
    return torch.cat([scores.prefix, scores.patches.flatten(1)], dim=1)


# ---- the oracle: one image, one row after the other


def step(heads: Array, fuse: str, discard: float, prefix: int) -> Array:
    """Attention (H, N, N) of one image -> (N, N), rows summing to 1."""
    fused = {"mean": np.mean, "max": np.max, "min": np.min}[fuse](heads, axis=0)
    fused = np.stack([row / row.sum() for row in fused])
    if discard:
        entries = sorted((value, at) for at, value in enumerate(fused.flat))
        for _, at in entries[: int(discard * fused.size)]:
            row, column = divmod(at, fused.shape[1])
            if column >= prefix and column != int(fused[row].argmax()):
                fused[row, column] = 0.0
        fused = np.stack([row / row.sum() for row in fused])
    return fused


def product(trace: Trace, image: int, *, fuse: str, discard: float, residual: float, start: int) -> Array:
    """The matrix of Abnar & Zuidema: later blocks stand on the left."""
    result = np.eye(trace.tokens.shape[1])
    for block in range(start, trace.depth):
        heads = tiny.dense(trace, block)[image].numpy()
        result = (
            (1 - residual) * step(heads, fuse, discard, len(trace.prefix)) + residual * np.eye(len(result))
        ) @ result
    return result


def start_row(trace: Trace, query: Query) -> Array:
    count, patches = trace.tokens.shape[1], trace.grid[0] * trace.grid[1]
    row = np.zeros(count)
    if query == "mean":
        row[count - patches :] = 1 / patches
    else:
        row[trace.token(query)] = 1.0
    return row


# ---- rollout

SMALL = {"grid": (3, 5), "patch": 2}
TRACES = [tiny.trace(seed=seed, **SMALL, **changes) for seed, changes in enumerate(PREFIXES)]
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
    assert scores.options == {"query": query, **options}


@pytest.mark.parametrize("options", [{}, {"fuse": "max", "discard": 0.7}, {"fuse": "min", "start": 1, "residual": 0.2}])
@pytest.mark.parametrize("trace", TRACES, ids=["CLS", "none", "many", "registers"])
def test_a_rows_of_the_matrix_are_rollouts_of_each_token(trace: Trace, options: dict) -> None:
    matrix = rollout_matrix(trace, **options)
    for token in range(trace.tokens.shape[1]):
        close(whole(rollout(trace, token, **options)), matrix[:, token])


def test_rollout_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [{}, {"fuse": "max"}, {"fuse": "min", "discard": 0.6}]
    before = [whole(rollout(TRACES[0], "mean", **o)) for o in options]
    monkeypatch.setattr(vitviz.trace, "CHUNK_BYTES", 4 * 2 * 5 * 16 * 7)  # seven rows at a time
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


@pytest.mark.parametrize("trace", TRACES, ids=["CLS", "none", "many", "registers"])
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
    assert scores.tokens == 20
    assert scores.method == "attention"
    assert scores.options == {"block": 1, "head": "max", "query": (2, 3)}
    assert not scores.signed
    assert rollout(TRACES[0]).method == "rollout"


# ---- known faults


def test_fault_1_rows_are_divided_by_their_own_sums() -> None:
    """Dividing without keepdim divides columns by row sums; rows then sum to 0.8 to 1.3."""
    for trace in TRACES:
        for fuse in ("mean", "max", "min"):
            for discard in (0.0, 0.5, 0.9):
                fused = fused_matrix(trace.block(0), fuse, discard, len(trace.prefix))
                close(fused.sum(-1), np.ones(fused.shape[:2]))


def test_fault_2_discard_treats_every_image_and_protects_prefix_and_peaks() -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.rand(3, 17, 17, generator=generator)
    fused[1] *= 100  # a threshold taken from all images together would clear the other two
    kept = discard_weakest(fused, 0.9, prefix=2)
    assert torch.equal(kept[:, :, :2], fused[:, :, :2])
    assert torch.equal(kept.amax(-1), fused.amax(-1))
    for image in range(3):
        assert torch.equal(kept[image], discard_weakest(fused[image : image + 1], 0.9, prefix=2)[0])
        weakest = fused[image].flatten().argsort()[: int(0.9 * 289)]
        dropped = (kept[image].flatten() == 0).nonzero().flatten()
        assert set(dropped.tolist()) <= set(weakest.tolist())
        assert len(dropped) > 200
    assert torch.equal(discard_weakest(fused, 0.001, prefix=2), fused)  # less than one entry


def test_uniform_attention_stays_uniform_under_discard() -> None:
    """Where all entries are equal none is the weakest: dropping all but the first would invent a peak."""
    fused = torch.full((1, 7, 7), 1 / 7)
    kept = discard_weakest(fused, 0.5, prefix=0)
    assert torch.equal(kept, fused)


def keep(queries: torch.Tensor, keys: torch.Tensor) -> Kept:
    """What a trace would keep of a block with these queries and keys."""
    lse = (queries @ keys.mT).logsumexp(-1)
    stream = torch.zeros(1, queries.shape[2], tiny.WIDTH)
    return Kept(stream, lse, lambda _: (queries, keys), BlockTrace(queries, keys, lse))


def test_fault_3_blocks_are_multiplied_in_the_order_of_the_model() -> None:
    """Block 0 sends all tokens to token 1, block 1 sends all to token 2: what ends anywhere came from token 1."""
    count, far = 8, 40.0
    kept = []
    for target in (1, 2):
        keys = torch.zeros(1, tiny.HEADS, count, 17)
        keys[:, :, target] = far
        queries = torch.ones(1, tiny.HEADS, count, 17)
        kept.append(keep(queries, keys))
    trace = Trace(None, torch.zeros(1, count, tiny.WIDTH), (1, 7), ("CLS",), (0, 1), tuple(kept), 2)
    for fuse in ("mean", "max", "min"):
        close(whole(rollout(trace, (0, 5), residual=0.0, fuse=fuse)), np.eye(count)[[1]])
        close(rollout_matrix(trace, residual=0.0, fuse=fuse)[0], np.eye(count)[[1] * count])
    # Half stays on each way: a quarter on the query, a quarter on 2 by block 1 alone, half on 1.
    expected = 0.25 * np.eye(count)[[6]] + 0.25 * np.eye(count)[[2]] + 0.5 * np.eye(count)[[1]]
    close(whole(rollout(trace, (0, 5))), expected)


def test_fault_4_nothing_is_kept_between_calls() -> None:
    model, (one, other) = tiny.model(**SMALL), tiny.images(2, **SMALL).split(1)
    options = {"fuse": "min", "discard": 0.4}
    first = rollout(model.trace(one), **options).patches
    trace = model.trace(other, grad=True)
    rollout(trace), attention(trace, 0, 1), trace.attentions[1]
    assert torch.equal(rollout(model.trace(one), **options).patches, first)
    trace = model.trace(one)
    before = [(k.queries.clone(), k.keys.clone(), k.lse.clone()) for k in map(trace.block, trace.blocks)]
    assert torch.equal(rollout(trace, **options).patches, rollout(trace, **options).patches)
    attention(trace, 0, "max", "mean"), rollout(trace), rollout_matrix(trace)
    for kept, (q, k, lse) in zip(map(trace.block, trace.blocks), before, strict=True):
        assert torch.equal(kept.queries, q)
        assert torch.equal(kept.keys, k)
        assert torch.equal(kept.lse, lse)


@pytest.mark.parametrize("grid", [(2, 13), (13, 2), (1, 5), (7, 1)])
def test_fault_5_grids_are_not_square(grid: tuple[int, int]) -> None:
    trace = tiny.trace(grid=grid, patch=2, registers=2)
    for scores in (rollout(trace), attention(trace, 0, 4, (grid[0] - 1, grid[1] - 1))):
        assert scores.patches.shape == (tiny.BATCH, *grid)
        flat = whole(scores)
        for row in range(grid[0]):
            for column in range(grid[1]):
                assert torch.equal(scores.patches[:, row, column], flat[:, trace.token((row, column))])


@pytest.mark.parametrize("changes", PREFIXES)
def test_fault_6_every_prefix_token_is_told_from_patches(changes: dict) -> None:
    trace = tiny.trace(**SMALL, **changes)
    scores = rollout(trace)
    assert scores.names == trace.prefix
    assert scores.prefix.shape == (tiny.BATCH, len(trace.prefix))
    close(scores.prefix.sum(1) + scores.patches.sum((1, 2)), np.ones(tiny.BATCH))


def test_fault_7_rollout_needs_no_unfused_attention() -> None:
    model, images = tiny.model(**SMALL), tiny.images(**SMALL)
    for options in ({}, {"fuse": "max", "discard": 0.3}, {"fuse": "min"}):
        close(whole(rollout(model.trace(images), **options)), whole(rollout(model.trace(images, grad=True), **options)))


def test_fault_12_discard_above_16_million_entries() -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.rand(1, 4100, 4100, generator=generator)
    kept = discard_weakest(fused, 0.9, prefix=1)
    assert float((kept == 0).float().mean()) == pytest.approx(0.9 * 4099 / 4100, abs=1e-4)
    assert float(kept[0, :, 1:][kept[0, :, 1:] > 0].min()) == pytest.approx(0.9, abs=1e-3)


def test_a_batch_is_its_images_one_by_one() -> None:
    trace = tiny.trace(batch=3, **SMALL)
    for options in ({}, {"fuse": "max"}, {"fuse": "min", "discard": 0.8}, {"residual": 0.0, "start": 1}):
        together = whole(rollout(trace, (1, 2), **options))
        for image in range(3):
            close(together[image], whole(rollout(trace.image(image), (1, 2), **options))[0])


def test_heads_that_disagree_everywhere_still_give_rows() -> None:
    """Each head looks at another token with all its might: the smallest probability underflows to zero everywhere."""
    count = 8
    keys = torch.zeros(1, tiny.HEADS, count, 17)
    for head in range(tiny.HEADS):
        keys[0, head, head] = 1000.0
    queries = torch.ones_like(keys)
    kept = keep(queries, keys)
    assert float(kept.open().rows(0, count).amin(1).sum()) == 0.0
    trace = Trace(None, torch.zeros(1, count, tiny.WIDTH), (1, 7), ("CLS",), (0,), (kept,), 1)
    for options in ({}, {"discard": 0.9}, {"residual": 0.0}):
        scores = whole(rollout(trace, fuse="min", **options))
        assert torch.isfinite(scores).all()
        close(scores.sum(1), np.ones(1))


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


# ---- large inputs: pieces only


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
        patch.setattr(vitviz.trace, "CHUNK_BYTES", 4 * 2 * 5 * 16 * rows)
        patch.setattr(vitviz.explain.attention, "WORK_BYTES", 4 * 2 * 2 * 16 * 16 - (not held))
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
    assert vitviz.trace.CHUNK_BYTES // 4 < seen.tensor <= vitviz.trace.CHUNK_BYTES + few
    assert vitviz.trace.CHUNK_BYTES // 2 < seen.most <= WORK_BYTES


def test_memory_is_measured() -> None:
    with Largest() as seen:
        a = torch.zeros(1000)
        del a
        b = torch.ones(300).view(30, 10).T.contiguous()
        assert (b + 1.0).sum() == 600
    assert (seen.tensor, seen.most, seen.alive) == (4000, 4000, 1200)
