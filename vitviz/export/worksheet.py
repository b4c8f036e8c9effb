"""Write the lecture's exercises about a photograph as a worksheet in PDF, with solutions."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitviz.draw.figures.worksheet import Sheet, Task, worksheet
from vitviz.formatting import percent
from vitviz.view import View
from vitviz.web.exercises import Exercise, exercises
from vitviz.web.languages import texts_in
from vitviz.web.lecture_texts import STEPS, lecture_texts

WORDS = {
    "en": {
        "title": "How a Vision Transformer reads this photograph", "solutions": "Solutions",
        "about": "Photograph: {photo}. Model: {model}. It predicts: {prediction}.",
        "name": "Name: ................................",
        "number": "Answer: ................................", "patch": "Row .........., column ..........",
        "right": "{choice}. {reason}", "photo": "The model’s input. Rows and columns count patches.",
        "map": "Left: the model’s input. Right: the number of each patch; bright means large.",
        "signed": "Left: the model’s input. Right: the number of each patch; red is positive, blue negative.",
    },
    "zh": {
        "title": "Vision Transformer 怎样读这张照片", "solutions": "答案",
        "about": "照片：{photo}。模型：{model}。预测：{prediction}。",
        "name": "姓名：................................",
        "number": "答案：................................", "patch": "第 .......... 行第 .......... 列",
        "right": "{choice}。{reason}", "photo": "模型的输入。行和列按图块计数。",
        "map": "左：模型的输入。右：每个图块的数值，越亮越大。",
        "signed": "左：模型的输入。右：每个图块的数值，红色为正，蓝色为负。",
    },
}  # fmt: skip
PHOTOGRAPHS = ("pixels", "patches")  # steps whose exercise shows the photograph instead of a map


def write_worksheet(view: View, language: str = "en", photo: str = "") -> bytes:
    """Return a worksheet about a photograph as a PDF file.

    Args:
        view: the photograph and its model.
        language: one of `vitviz.web.languages.LANGUAGES`.
        photo: the photograph's name.

    Raises:
        LectureError: for models without a lecture, see `vitviz.web.lecture_numbers.lecture_bytes`.
        DrawError: for Chinese without a Chinese font.
    """
    words, about = texts_in(language, WORDS), view.model.pretrained
    model = (about and about.name) or "Vision Transformer"
    prediction = " ".join([(best := view.predictions(1)[0])[0], percent(best[1])]) if view.names_classes else "-"
    seen, all_exercises = np.asarray(view.seen()), exercises(view)
    titles = dict(zip(STEPS, (_plain(step["title"]) for step in lecture_texts()[language]), strict=True))
    sections = [
        (title, [_task(exercise, seen, language) for exercise in all_exercises if exercise.step == step])
        for step, title in titles.items()
    ]
    return worksheet(
        Sheet(
            title=words["title"],
            about=words["about"].format(photo=photo or "-", model=model, prediction=prediction),
            name=words["name"],
            solutions=words["solutions"],
            sections=[(title, tasks) for title, tasks in sections if tasks],
            grid=view.trace.grid,
            footer=f"vitviz · {model}",
        )
    )


def _task(exercise: Exercise, seen: NDArray[Any], language: str) -> Task:
    words, texts, scores = texts_in(language, WORDS), exercise.texts(language), exercise.scores
    solution = texts["solution"]
    if exercise.kind == "choice":
        solution = words["right"].format(choice=texts["choices"][int(exercise.answer)], reason=solution)
    pictures: list[NDArray[Any]] = []
    legend = ""
    if scores is not None:
        is_photo = exercise.step in PHOTOGRAPHS
        pictures = [seen] if is_photo else [seen, scores]
        legend = words["photo" if is_photo else "signed" if np.nanmin(scores) < 0 else "map"]
    return Task(
        ask=texts["ask"], solution=solution, choices=texts["choices"],
        field=words.get(exercise.kind, ""), pictures=pictures, legend=legend,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Return HTML as text."""
    return html.unescape(re.sub("<[^>]+>", "", text))
