"""The explorer's numbers about a row, its address and its keys, run under Node."""

from __future__ import annotations

import numpy as np
import pytest
from viewer_js import Script, empty, once

GRID = (5, 7)
NAMES = ["CLS", "distillation", "register 1", "register 2"]
PREFIX = len(NAMES)
TOKENS = PREFIX + GRID[0] * GRID[1]


def row(seed: int = 0) -> np.ndarray:
    """A row that sums to 1, some of it exactly zero, with two equal patches."""
    values = np.random.default_rng(seed).exponential(size=TOKENS)
    values[[6, 20]] = 0.0
    values[[11, 30]] = 4.0
    return (values / values.sum()).astype(np.float32)


def patches(values: np.ndarray) -> np.ndarray:
    return values[PREFIX:].astype(np.float64).reshape(GRID)


# ---- numbers about a row ----


def test_masses_are_the_sums_that_they_say() -> None:
    values, script = row().astype(np.float64), Script()
    wall = np.concatenate([row(1), row()])
    kinds = script.call("compute/statistics", "prefixKinds", NAMES)
    cases = [(wall[TOKENS:], 9, 0), (wall[TOKENS:], 0, 0), (wall[TOKENS:], -1, 0), (wall, 9, TOKENS)]
    asked = [
        script.call(
            "compute/statistics", "masses", array, TOKENS, kinds.part(), query, empty(5, "float64"), start, give=(4,)
        )
        for array, query, start in cases
    ]
    script.run()
    assert kinds.value.tolist() == [1, 3, 2, 2]
    by_hand = [values[PREFIX:].sum(), values[0], values[2] + values[3], values[1]]
    for (_, query, _), answer in zip(cases, asked, strict=True):
        own = np.nan if query < 0 else values[query]
        assert np.allclose(answer.given[0], [*by_hand, own], atol=1e-12, rtol=0, equal_nan=True)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("k", [1, 5, 12, 99])
def test_the_strongest_patches_come_first(k: int, signed: bool) -> None:
    values = row() - np.float32(0.05 if signed else 0.0)
    flat = values[PREFIX:]
    expected = np.argsort(-np.abs(flat) if signed else -flat, kind="stable")[:k]
    answer = once("compute/statistics", "topPatches", values, PREFIX, TOKENS, signed, empty(k, "int32"), give=(4,))
    assert answer.value == len(expected)
    assert np.array_equal(answer.given[0][: answer.value], expected)


def test_entropy_is_shannons_of_the_part_made_a_whole() -> None:
    values, script = row(), Script()
    parts = [(0, TOKENS), (PREFIX, TOKENS), (8, 9)]
    found = [script.call("compute/statistics", "entropy", values, *part) for part in parts]
    shares = [
        script.call("compute/statistics", "share", answer.part(), b - a)
        for answer, (a, b) in zip(found, parts, strict=True)
    ]
    flat = script.call("compute/statistics", "entropy", np.full(32, 0.01, np.float32), 0, 32)
    even = script.call("compute/statistics", "share", flat.part(), 32)
    nothing = script.call("compute/statistics", "entropy", np.zeros(9, np.float32), 0, 9)
    script.run()
    for (start, stop), answer, relative in zip(parts, found, shares, strict=True):
        part = values[start:stop].astype(np.float64)
        p = part[part > 0] / part.sum()
        expected = -(p * np.log(p)).sum()
        assert answer.value == pytest.approx(expected, abs=1e-12)
        assert relative.value == pytest.approx(expected / np.log(stop - start) if stop - start > 1 else 0.0)
    assert even.value == pytest.approx(1.0)
    assert np.isnan(nothing.value)


def test_mean_distance_leaves_prefix_tokens_out_and_the_rest_makes_a_whole() -> None:
    values, script = row(), Script()
    places = [(0, 0), (4, 6), (2, 3)]
    found = [script.call("compute/statistics", "meanDistance", values, PREFIX, GRID, place) for place in places]
    halved = values.copy()
    halved[PREFIX:] /= 2
    halved[0] += halved[PREFIX:].sum()  # more on CLS: the distance among patches stays
    less = script.call("compute/statistics", "meanDistance", halved, PREFIX, GRID, places[0])
    without = script.call("compute/statistics", "meanDistance", values, PREFIX, GRID, None)
    on_cls = script.call(
        "compute/statistics", "meanDistance", np.eye(1, TOKENS, dtype=np.float32)[0], PREFIX, GRID, (0, 0)
    )
    script.run()
    rows, columns = np.indices(GRID)
    weights = patches(values) / patches(values).sum()
    for (r, c), answer in zip(places, found, strict=True):
        assert answer.value == pytest.approx((weights * np.hypot(rows - r, columns - c)).sum(), abs=1e-12)
    assert less.value == pytest.approx(found[0].value, abs=1e-6)
    assert np.isnan(without.value)
    assert np.isnan(on_cls.value)
