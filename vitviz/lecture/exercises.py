"""Read the texts of the lecture's exercises: one Markdown file per language, with up to three exercises for each step.

Each step has at most one exercise of each kind: a number, a choice, a patch. The files declare which. `{0}`, `{1}`, ...
stand for numbers of the photograph, which `page/compute/exercises.js` computes in this order.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from vitviz.resources import resource_folder
from vitviz.web.languages import LANGUAGES, texts_in

FILE = "exercises.md"
# Index of the right choice, for steps where it is the same for every photograph.
CHOICES = {
    "question": 2, "pixels": 1, "patches": 2, "positions": 1, "cls": 0, "residual": 1, "norm": 2, "attention": 0,
    "projection": 2, "mlp": 0, "prediction": 2, "training": 0, "explanation": 1, "sinks": 1, "words": 2,
    "closing": 1,
}  # fmt: skip
# A number is right within `relative` of the answer, and always within `least`; a whole number within `relativeWhole`
# and `leastWhole`. A patch is right if its value is at most `patch` of the range of all values below the largest one.
TOLERANCES = {"relative": 0.01, "least": 0.01, "relativeWhole": 1e-4, "leastWhole": 0.5, "patch": 0.05}

_BETWEEN_CHINESE = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")


@cache
def exercise_texts(language: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the texts by step and kind: {"question": text, "choices": texts, "solution": text}.

    Missing texts are in English.
    """
    files = {each: resource_folder("lecture") / each / FILE for each in ("en", language)}
    return texts_in(language, {each: _read(file) for each, file in files.items() if file.is_file()})


def exercises_given() -> dict[str, Any]:
    """Return the data of the exercises for a page: texts by language, right choices, and tolerances."""
    texts = {language: exercise_texts(language) for language in LANGUAGES}
    return {"texts": texts, "choices": CHOICES, "tolerances": TOLERANCES}


def _read(file: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        step: {kind: _exercise(body) for kind, body in _sections("## ", steps)}
        for step, steps in _sections("# ", file.read_text(encoding="utf-8"))
    }


def _sections(mark: str, text: str) -> list[tuple[str, str]]:
    """Return the headings that start with `mark`, and the text below each."""
    parts = re.split(rf"^{mark}(.+)$", text, flags=re.MULTILINE)
    return [*zip(parts[1::2], parts[2::2], strict=True)]


def _exercise(body: str) -> dict[str, Any]:
    question, *choices, solution = (
        _BETWEEN_CHINESE.sub("", part).replace("\n", " ") for part in re.split(r"\n\n|\n(?=- )", body.strip())
    )
    return {"question": question, "choices": [choice.removeprefix("- ") for choice in choices], "solution": solution}
