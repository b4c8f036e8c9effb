"""The tables by which the everyday model is judged: enough is known, enough is unknown, groups and classes agree."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "scripts" / "everyday"
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
