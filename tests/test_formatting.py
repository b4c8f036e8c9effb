"""Test the formatting of numbers and predictions; tests/js compares the page's with the same cases."""

import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vitviz.formatting import describe_prediction, number, percent

# [share, digits, text], read by js_vectors.py, too; null is a number that is not finite.
CASES = json.loads((Path(__file__).parent / "percent_cases.json").read_text(encoding="utf-8"))
# [labels, probabilities, classes, sure_above, text], read by js_vectors.py, too.
PREDICTIONS = json.loads((Path(__file__).parent / "prediction_cases.json").read_text(encoding="utf-8"))


def test_percent_and_predictions_match_the_pages_cases() -> None:
    for share, digits, text in CASES:
        assert percent(math.nan if share is None else share, digits) == text
    for *prediction, text in PREDICTIONS:
        assert describe_prediction(*prediction) == text


@given(st.floats(0, 1), st.integers(2, 4))
def test_percent_rounds_no_share_to_0_or_100(share: float, digits: int) -> None:
    text = percent(share, digits)
    number = float(text.strip("<> %"))
    assert (number == 0, number == 100) == (share == 0, share == 1)
    if text[0] not in "<>":
        assert abs(number - 100 * share) <= 0.5 * 10 ** (2 - digits) + 0.5e-2
        assert sum(letter.isdigit() for letter in text.lstrip("0.")) <= max(digits, 3)


def test_numbers_are_formatted_with_few_digits_and_their_unit() -> None:
    for value, unit, text in (
        (0.12, "attention", "12 %"), (0.999, "attention", "> 99 %"), (0.12, "", "0.12"), (-1.5, "relevance", "−1.5"),
        (1234.0, "", "1234"), (0.0, "", "0"), (1.2e-7, "", "1.2e−07"), (3e38, "", "3e+38"),
    ):  # fmt: skip
        assert number(value, unit) == text


def test_number_distinguishes_steps() -> None:
    assert [number(value, "", 0.0001) for value in (0.5001, 0.5002)] == ["0.5001", "0.5002"]
    assert number(-0.000001, "", 0.2) == "0"  # not "-0"
    assert [number(value, "attention", 0.025) for value in (0.0, 0.025, 0.05)] == ["0 %", "2.5 %", "5 %"]
