"""Orders of patches, steps, areas: what curves are made of, against numbers on paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import (
    Curve,
    Faithfulness,
    area,
    rank_patches,
    visible_counts,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_ranking_falls_and_shuffles_what_is_equal(seed: int, levels: int) -> None:
    scores = torch.randint(levels, (3, 41), generator=torch.Generator().manual_seed(seed)).double()
    order = rank_patches(scores, seed)
    assert torch.equal(order.sort(dim=1).values, torch.arange(41).expand(3, -1))
    assert (scores.gather(1, order).diff(dim=1) <= 0).all()
    flat = rank_patches(torch.full((2, 41), 0.1, dtype=torch.float64), seed)
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], torch.arange(41))
    place = flat[0].argsort()
    for one, row in zip(order, scores, strict=True):
        for level in row.unique():
            same = one[row[one] == level]  # the patches of this score, in the order in which they come
            assert (place[same].diff() > 0).all()


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 1))
def test_steps_go_from_everything_to_the_least(patches: int, steps: int, least: int) -> None:
    counts = visible_counts(patches, steps, least)
    assert counts[0] == patches
    assert counts[-1] == least
    assert counts == sorted(set(counts), reverse=True)
    assert len(counts) <= steps + 1
    assert max(-np.diff(counts), default=0) <= patches / steps + 1


def test_steps_may_be_given() -> None:
    assert visible_counts(20, [0.5, 0.05], 0) == [20, 10, 1, 0]
    assert visible_counts(20, 4, 1) == [20, 15, 10, 5, 1]
    for wrong in (0, -1, [], [1.5], [float("nan")]):
        with pytest.raises(EvaluationError):
            visible_counts(20, wrong, 0)


def test_areas_are_those_on_paper() -> None:
    x = np.array([0.0, 0.25, 1.0])
    # trapezoids: a quarter of the width at 0.75, three quarters at 0.25
    assert area(x, [1.0, 0.5, 0.0]) == pytest.approx(0.375)
    assert area(x / 2, [1.0, 0.5, 0.0]) == pytest.approx(0.375)  # half the range, the same mean height
    assert area(x, [True, True, False]) == pytest.approx(0.25 + 0.375)
    np.testing.assert_allclose(area(x, [[2.0, 2.0, 2.0], [0.0, 0.0, 4.0]]), [2.0, 1.5])
    assert area(np.array([0.0]), [0.7]) == pytest.approx(0.7)


def made(kind: str, ours: list[float], chance: list[list[float]]) -> Curve:
    many = np.array(chance)
    return Curve(
        kind=kind,
        fractions=np.array([0.0, 1.0]),
        probabilities=np.array(ours),
        correct=np.array(ours) > 0.5,
        random=many,
        random_correct=many > 0.5,
    )


def test_a_curve_compares_itself_with_chance() -> None:
    chance = [[1.0, 0.0], [1.0, 0.4], [0.8, 0.0]]  # areas 0.5, 0.7, 0.4
    low, high = made("deletion", [1.0, 0.0], chance), made("insertion", [1.0, 0.3], chance)
    assert (low.area, high.area) == (0.5, 0.65)
    np.testing.assert_allclose(low.random_areas, [0.5, 0.7, 0.4])
    assert low.random_area == pytest.approx(1.6 / 3)
    assert low.gain == pytest.approx(1.6 / 3 - 0.5)
    assert high.gain == pytest.approx(0.65 - 1.6 / 3)
    assert (low.beaten, high.beaten) == (1, 2)
    assert [one.tolist() for one in low.band] == [[0.8, 0.0], [1.0, 0.4]]
    both = Faithfulness(deletion=low, insertion=high, baseline="remove", target="church")
    assert both.gain == pytest.approx((0.65 - 0.5) / 2)
    assert both.n == 3
    words = both.describe()
    assert "1 of 3" in words
    assert "2 of 3" in words
    assert "area 0.50 against 0.53 (0.40-0.70)" in words
    assert "church" in words
