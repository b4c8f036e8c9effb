"""Test raw attention and rollout against dense matrices, and value-weighted attention against the added vectors."""

import functools

import explain_cases as cases
import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
import torch.nn.functional as F
from allocations import Allocations
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pairwise import pairs
from tiny import PREFIXES, SMALL, close

import vitviz.attribution.attention
import vitviz.model.trace
from vitviz.attribution.attention import (
    attention_heads,
    attention_scores,
    discard_weakest,
    rollout_matrix,
    rollout_scores,
)
from vitviz.attribution.targets import ExplainError
from vitviz.attribution.values import value_attention
from vitviz.model.trace import BlockState, BlockTrace, Trace

pytestmark = pytest.mark.usefixtures("one_thread")
FUSE = ["mean", "max", "min"]
TRACES = {name: tiny.trace(seed=seed, **SMALL, **PREFIXES[name]) for seed, name in enumerate(PREFIXES)}
Array = NDArray[np.float64]


def keep(queries: torch.Tensor, keys: torch.Tensor) -> BlockState:
    """Return the state of a block with these queries and keys."""
    lse = (queries @ keys.mT).logsumexp(-1)
    stream = torch.zeros(1, queries.shape[2], tiny.WIDTH)
    return BlockState(stream, lse, lambda *_: (queries, keys), attention=BlockTrace(queries, keys, lse))


def with_ties(levels: int) -> Trace:
    """Return a trace with many equal entries of attention, because its queries and keys take few values."""
    generator = torch.Generator().manual_seed(levels)
    queries_and_keys = torch.randint(0, levels, (3, 2, 2, 5, 16, 7), generator=generator).float()
    blocks = tuple(keep(queries, keys) for queries, keys in queries_and_keys)
    return Trace(None, torch.zeros(2, 16, 3), (3, 5), ("CLS",), (0, 1, 2), blocks, 3)


WITH_TIES = [with_ties(levels) for levels in (2, 3, 8)]


def step(heads: Array, fuse: str, discard: float, prefix: int, rescale: bool = True) -> Array:
    """Fuse the attention of one image: (H, N, N) -> (N, N), rows sum to 1."""
    fused = {"mean": np.mean, "max": np.max, "min": np.min}[fuse](heads, axis=0)
    if rescale:
        fused = np.stack([row / row.sum() for row in fused])
    if discard:
        entries = sorted((value, at) for at, value in enumerate(fused.flat))
        for _, at in entries[: int(discard * fused.size)]:
            row, column = divmod(at, fused.shape[1])
            if column >= prefix and column != int(fused[row].argmax()):
                fused[row, column] = 0.0
        if rescale:
            fused = np.stack([row / row.sum() for row in fused])
    return fused


def product(
    trace: Trace, image: int, *, fuse: str, discard: float, residual: float, start: int, rescale: str = "attention"
) -> Array:
    """Return the rollout matrix of Abnar & Zuidema (2020); "sum" rescales like Gildenblat (2020)."""
    result = np.eye(trace.tokens.shape[1])
    for block in range(start, trace.depth):
        heads = tiny.dense(trace, block)[image].numpy()
        fused = step(heads, fuse, discard, len(trace.prefix), rescale=rescale == "attention")
        mixed = (1 - residual) * fused + residual * np.eye(len(result))
        result = (mixed / mixed.sum(axis=1, keepdims=True) if rescale == "sum" else mixed) @ result
    return result


@settings(max_examples=60)
@given(
    st.sampled_from([*TRACES.values(), *WITH_TIES]),
    st.fixed_dictionaries(
        {
            "fuse": st.sampled_from(FUSE),
            "discard": st.sampled_from([0.0, 0.01, 0.3, 0.62, 0.9, 0.99]) | st.floats(0.005, 0.999),
            "residual": st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 1.0),
            "start": st.integers(0, 2),
            "rescale": st.sampled_from(["attention", "sum"]),
        }
    ),
    st.data(),
)
def test_rollout_matches_product_of_matrices(trace: Trace, options: dict, data: st.DataObject) -> None:
    """Compare chunks of any number of rows, kept or recomputed.

    Rounding decides the order of equal entries, so such rows are compared only with `rollout_matrix`.
    """
    names = [name.lower() for name in trace.prefix]
    patches = st.tuples(st.integers(0, 2), st.integers(0, 4))
    query = data.draw(st.sampled_from(["mean", None, *names]) | patches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vitviz.model.trace, "CHUNK_BYTES", 4 * 2 * 5 * 16 * data.draw(st.integers(1, 20)))
        patch.setattr(vitviz.attribution.attention, "WORK_BYTES", 4 * 2 * 2 * 16**2 - data.draw(st.integers(0, 1)))
        scores = rollout_scores(trace, query, **options)
        in_one_matrix = {name: value for name, value in options.items() if name != "rescale"}
        matrix = rollout_matrix(trace, **in_one_matrix)
    weights = trace.weights(query or trace.default_query).numpy()
    for image in range(tiny.BATCH):
        if trace not in WITH_TIES:
            close(scores[image], weights[image] @ product(trace, image, **options))
            close(matrix[image], product(trace, image, **in_one_matrix))
        if options["rescale"] == "attention":
            close(scores[image], weights[image] @ matrix[image].numpy(), 1e-6)
    close(scores.sum(1), np.ones(tiny.BATCH))
    close(matrix.sum(2), np.ones((tiny.BATCH, trace.tokens.shape[1])))
    assert float(matrix.min()) >= 0.0


def test_rollout_changes_no_trace_and_needs_no_graph() -> None:
    model, images = tiny.model(**SMALL), tiny.images(**SMALL)
    trace, graph = model.trace(images), model.trace(images, grad=True)

    def tensors() -> list[torch.Tensor]:
        return [part for block in map(trace.block, trace.blocks) for part in (block.queries, block.keys, block.lse)]

    before = [tensor.clone() for tensor in tensors()]
    for options in ({}, {"fuse": "max", "discard": 0.3}, {"fuse": "min", "discard": 0.4}):
        close(rollout_scores(graph, **options), rollout_scores(trace, **options))
    attention_scores(trace, 0, "max", "mean"), rollout_matrix(trace), trace.attentions[1]
    assert all(map(torch.equal, tensors(), before))


def test_discard_keeps_ties_and_takes_more_than_16_million_entries() -> None:
    fused = torch.rand(1, 4100, 4100, generator=torch.Generator().manual_seed(0))
    dropped = discard_weakest(fused, 0.9, prefix=1)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.9 * 4099 / 4100, abs=1e-4)
    assert float(dropped[0, :, 1:][dropped[0, :, 1:] > 0].min()) == pytest.approx(0.9, abs=1e-3)
    few = fused[:, :17, :17]
    assert torch.equal(discard_weakest(few, 0.001, prefix=2), few)
    # Equal entries all stay: dropping all but the first would create a peak.
    uniform = torch.full((1, 7, 7), 1 / 7)
    assert torch.equal(discard_weakest(uniform, 0.5, prefix=0), uniform)


def test_min_fusion_of_disjoint_heads_is_finite() -> None:
    """Each head attends to another token only, so the minimum over heads underflows everywhere."""
    count = 8
    keys = torch.zeros(1, tiny.HEADS, count, 17)
    for head in range(tiny.HEADS):
        keys[0, head, head] = 1000.0
    state = keep(torch.ones_like(keys), keys)
    assert float(state.open().rows(0, count).amin(1).sum()) == 0.0
    trace = Trace(None, torch.zeros(1, count, tiny.WIDTH), (1, 7), ("CLS",), (0,), (state,), 1)
    for options in ({}, {"discard": 0.9}, {"residual": 0.0}):
        scores = rollout_scores(trace, fuse="min", **options)
        assert torch.isfinite(scores).all()
        close(scores.sum(1), np.ones(1))


# ---- large inputs, in chunks: exact and in bounded memory


FLOATS = st.floats(0.0, 2.0, width=32) | st.sampled_from([0.0, 1.0, 1e-45, 1.1754944e-38, 0.5, 0.50000006])


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 6), st.data())
def test_entry_in_order_is_exact(batch: int, n: int, m: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(FLOATS, min_size=batch * n * m, max_size=batch * n * m))
    entries = torch.tensor(values, dtype=torch.float32).reshape(batch, n, m)
    pieces = data.draw(st.integers(1, n))
    for position in {0, n * m - 1, data.draw(st.integers(0, n * m - 1))}:
        entry = vitviz.attribution.attention.entry_in_order(lambda: entries.split(pieces, dim=1), position)
        assert torch.equal(entry, entries.flatten(1).sort(dim=1).values[:, position])


@pytest.mark.parametrize(("fuse", "discard", "tokens"), pairs(["mean", "max"], [0.0, 0.9], [1400, 2150]))
def test_rollout_memory_is_bounded(fuse: str, discard: float, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that at 1,400 tokens one block's matrix (8 MB) is kept; at 2,150 (18 MB) it is recomputed."""
    chunk, work = 2**20, 2**24
    monkeypatch.setattr(vitviz.model.trace, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(vitviz.attribution.attention, "WORK_BYTES", work)
    q, k = torch.randn(2, 1, 2, tokens, 3, generator=torch.Generator().manual_seed(0))
    state = keep(q, k)
    trace = Trace(None, torch.zeros(1, tokens, 1), (1, tokens), (), (0, 1), (state, state), 2)
    with Allocations() as allocations:
        rollout_scores(trace, "mean" if fuse == "mean" else 9, fuse=fuse, discard=discard)
    margin = 2**19  # for vectors of N numbers and counts of digits
    assert chunk // 4 < allocations.tensor <= chunk + margin
    assert chunk // 2 < allocations.most <= work


@pytest.mark.parametrize("name", TRACES)
def test_attention_of_single_and_fused_heads_matches_dense_weights(name: str) -> None:
    trace = TRACES[name]
    count = len(trace.prefix)
    for block in range(trace.depth):
        dense = tiny.dense(trace, block).numpy()  # (B, H, N, N)
        for query in (None, "mean", (0, 4), (2, 0), count, *(name.lower() for name in trace.prefix)):
            row = trace.weights(trace.default_query if query is None else query)[0].numpy()
            for head, maps in enumerate(attention_heads(trace, block, query)):
                expected = np.stack([row @ dense[image, head] for image in range(tiny.BATCH)])
                close(attention_scores(trace, block, head, query), expected)
                close(np.stack(maps), expected[:, count:].reshape(tiny.BATCH, 3, 5))
                assert {heatmap.question["head"] for heatmap in maps} == {head}
            for fuse in FUSE:
                fused = np.stack([row @ step(dense[image], fuse, 0.0, count) for image in range(tiny.BATCH)])
                close(attention_scores(trace, block - trace.depth, fuse, query), fused)


def test_rollout_of_missing_blocks_raises() -> None:
    model, images = tiny.model(**SMALL), tiny.images(**SMALL)
    trace = model.trace(images, blocks=[1, 2])
    for ask in (rollout_scores, rollout_matrix):
        with pytest.raises(ExplainError, match=r"\[0\]"):
            ask(trace)
    close(rollout_scores(trace, start=1), rollout_scores(model.trace(images), start=1))


def centered(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Apply a layer norm without its division, or nothing."""
    return x if weight is None else (x - x.mean(-1, keepdim=True)) * weight


@functools.cache
def vectors(kind: str, block: int) -> torch.Tensor:
    """Return the vector that token j adds to token i through each head: (B, H, i, j, D)."""
    model = cases.model(kind)
    run, p = reference.run(model, cases.images()), reference.parameters(model)
    name = f"blocks.{range(3)[block]}."
    values, width = run.values[block], run.values[block].shape[-1]
    sides = [(h * width, (tiny.HEADS - 1 - h) * width) for h in range(tiny.HEADS)]
    alone = torch.stack([F.pad(values[:, h], side) for h, side in enumerate(sides)], 1)  # (B, H, N, H * d), rest 0
    added = centered(alone, p.get(name + "attn.norm.weight")) @ p[name + "attn.proj.weight"].T  # (B, H, N, D)
    if model.config.talking_heads:  # head g adds the values of all heads h, times weight (h, g)
        added = torch.einsum("hg,bhnd->bgnd", p[name + "attn.proj_w.weight"], added)
    added = centered(added, p[name + "norm1.weight"] if model.config.norms.post else None)
    added = added * p.get(name + "ls1.gamma", 1.0)
    return run.attentions[block].tensor.detach()[..., None] * added[:, :, None]


@pytest.mark.parametrize(("head", "block", "kind"), pairs(["sum", "mean", 0, 3], [-1, 0], list(tiny.KINDS)))
def test_value_attention_is_the_norm_of_the_added_vectors(
    head: int | str, block: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cases.model(kind)
    monkeypatch.setattr("vitviz.model.trace.CHUNK_BYTES", 4 * 5 * 18 * 7)  # seven rows of one image at a time
    case, prefix, contributions = cases.case(model, cases.images()), len(model.config.prefix), vectors(kind, block)
    lengths = contributions.norm(dim=-1)  # (B, H, N, N)
    rows = {"sum": contributions.sum(1).norm(dim=-1), "mean": lengths.mean(1)}.get(head)
    rows = lengths[:, head] if rows is None else rows
    for query, expected in (
        ((1, 3), rows[:, prefix + 8]),
        (0, rows[:, 0]),
        ("mean", rows[:, prefix:].mean(1)),
        (None, rows[:, 0] if model.config.class_token else rows[:, prefix:].mean(1)),
    ):
        ours = value_attention(case, block=block, head=head, query=query)
        assert ours.dtype == torch.float64
        cases.close(ours, expected, 1e-5)  # attention of a trace is in single precision
