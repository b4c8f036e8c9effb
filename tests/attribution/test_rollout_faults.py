"""The known faults of other rollout code, numbered as the project's list of what goes wrong elsewhere."""

import numpy as np
import pytest
import tiny
import torch
from attention_numpy import PREFIXES, SMALL, TRACES, close, keep, whole

from vitviz.attribution.attention import attention, discard_weakest, fused_matrix, rollout, rollout_matrix
from vitviz.model.trace import Trace


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
