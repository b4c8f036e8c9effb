"""The everyday model: the threshold its script finds, and the tables by which it is judged."""

import csv
import sys
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from finish_everyday import RIGHT, cells_above, find_threshold  # noqa: E402


def test_the_threshold_is_the_lowest_whole_percent_above_which_enough_images_are_right() -> None:
    probability = torch.rand(2000, generator=torch.Generator().manual_seed(3))
    right = torch.rand(2000, generator=torch.Generator().manual_seed(4)) < probability  # calibrated
    shares = {}
    for percents in range(100):
        above = [hit for p, hit in zip(probability.tolist(), right.tolist(), strict=True) if p >= percents / 100]
        shares[percents / 100] = sum(above) / len(above)
    assert find_threshold(probability, right) == min(least for least, share in shares.items() if share >= RIGHT)


def test_always_and_never_sure() -> None:
    probability = torch.tensor([0.2, 0.9, 0.6])
    assert find_threshold(probability, torch.tensor([True, True, True])) == 0.0
    assert find_threshold(probability, torch.tensor([False, False, False])) == 1.0
    assert cells_above(0.5, probability, torch.tensor([True, True, False])) == "66.67 % | 50.00 % | 100.00 %"
    assert cells_above(0.0, probability, torch.tensor([True, True, True])) == "100.00 % | 100.00 % | none"


# ---- the tables

FOLDER = SCRIPTS / "everyday"
LEFT_OUT, UNKNOWN = "left out", "unknown"


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


TRAINS = {row["folder"]: row["class"] for row in rows("classes.csv")}
CLASSES = {*TRAINS.values()} - {LEFT_OUT, UNKNOWN}


def test_enough_of_the_foreign_photographs_is_known() -> None:
    known = [row for row in rows("wild_labels.csv") if row["answers"] != UNKNOWN]
    assert len(known) >= 190
    assert sum(int(row["images"]) for row in known) >= 1250


def test_enough_of_the_foreign_photographs_is_unknown_and_trains_nothing() -> None:
    images = {row["folder"]: int(row["images"]) for row in rows("wild_labels.csv")}
    drawn = [folder for folder, trained in TRAINS.items() if trained == UNKNOWN]
    assert len(drawn) >= 24
    assert sum(images[folder] for folder in drawn) >= 120
    assert not CLASSES & {*drawn}


@pytest.mark.parametrize("name", ["wild_labels.csv", "own_labels.csv"])
def test_right_answers_are_classes_and_the_own_class_is_the_first(name: str) -> None:
    for row in rows(name):
        answers = row["answers"].split("|")
        assert answers == [UNKNOWN] or {*answers} <= CLASSES
        if TRAINS[row["folder"]] in CLASSES:
            assert answers[0] == TRAINS[row["folder"]]


def test_groups_hold_classes_and_earlier_groups() -> None:
    earlier: set[str] = set()
    for row in rows("groups.csv"):
        members = row["members"].split("|")
        assert len(members) == len({*members}) >= 2
        assert {member for member in members if not member.startswith("[")} <= CLASSES
        assert {member[1:-1] for member in members if member.startswith("[")} <= earlier
        earlier.add(row["group"])
