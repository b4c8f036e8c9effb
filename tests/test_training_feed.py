"""Batches: in which order images come, what is done to them, and which process gets which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import training_cases as cases

from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.feed import Feed, ahead, seed_of
from vitviz.training.parallel import World

pytestmark = pytest.mark.usefixtures("one_thread")


def feed(recipe: Any, rank: int = 0, size: int = 1) -> Feed:
    data = cases.data()
    return Feed(data, recipe, data.preprocess(cases.MEAN, cases.STD), torch.device("cpu"), World(rank, size))


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    one = feed(cases.recipe())
    orders = [one.order(epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(52))
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert orders[1].equal(feed(cases.recipe()).order(1))
    assert not orders[1].equal(feed(cases.recipe(seed=6)).order(1))


@pytest.mark.parametrize(
    "augment", [Augment(), Augment(flip=True, crop_padding=1, mixup=0.5, policy="trivial", group=4)]
)
def test_batches_depend_neither_on_where_one_begins_nor_on_how_many_work(augment: Augment) -> None:
    the_recipe = cases.recipe(augment=augment)
    whole = list(feed(the_recipe).train(0))
    assert len(whole) == 18
    late = list(feed(the_recipe).train(7))
    for one, other in zip(whole[7:], late, strict=True):
        assert one.inputs.equal(other.inputs)
        assert one.targets.equal(other.targets)
    halves = [list(feed(the_recipe, rank, 2).train(0)) for rank in range(2)]
    for one, first, second in zip(whole, *halves, strict=True):
        assert one.inputs.equal(torch.cat([first.inputs, second.inputs]))
        assert one.targets.equal(torch.cat([first.targets, second.targets]))


def test_the_validation_images_are_shared_out_without_gap_or_overlap() -> None:
    the_recipe = cases.recipe(batch=12)
    whole = torch.cat([batch.inputs for batch in feed(the_recipe).val()])
    parts = [torch.cat([batch.inputs for batch in feed(the_recipe, rank, 3).val()]) for rank in range(3)]
    assert torch.cat(parts).equal(whole)
    assert len(whole) == 23


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TrainingError, match="3 processes"):
        feed(cases.recipe(), 0, 3)
    with pytest.raises(TrainingError, match="groups of 8"):
        feed(cases.recipe(augment=Augment(flip=True)), 0, 2)


def test_what_is_made_ahead_comes_in_order_and_stops_when_it_is_left() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number * number

    assert list(ahead(make, range(7))) == [0, 1, 4, 9, 16, 25, 36]
    made.clear()
    items = ahead(make, range(1000))
    assert next(items) == 0
    items.close()
    assert len(made) < 10
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda number: 1 / number, [1, 0]))


def test_seeds_differ() -> None:
    seeds = {seed_of(*numbers) for numbers in [(0, 1), (1, 0), (0, 1, 0), (0,), (1,), (0, -1)]}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
