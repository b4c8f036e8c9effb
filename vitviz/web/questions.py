"""Declare every question that the page or a program can ask about a photograph.

The server's routes, lanes, API and tools, and the page's words and documents' table, are made from `QUESTIONS`. The
method of `vitviz.server.endpoints` with the name holds the arguments in its signature, with types, ranges and
meaning; `vitviz/web/local/worker.js` has the browser's own answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question about a photograph.

    Args:
        name: of the method, the route, the tool and the browser's function that answer it.
        waiting: what the page says until there is an answer or news of it; empty for nothing.
        page: whether the page asks it.
        programs: whether it is offered over Gradio's API and as a tool.
        light: whether it takes some milliseconds, and so needs no place among the computations.
        cached: whether its answer is kept.
        settle: milliseconds without a change before the page asks: a slider changes its question at every step.
        not_in_browser: why the static site cannot answer it; empty where it can.
    """

    name: str
    waiting: str = ""
    page: bool = True
    programs: bool = True
    light: bool = False
    cached: bool = True
    settle: int = 0
    not_in_browser: str = ""


QUESTIONS = {
    question.name: question
    for question in (
        Question(name="open", waiting="Running the model on the photograph", cached=False),  # scenes have their cache
        Question(name="block", light=True),  # the page fetches blocks by itself, and says nothing
        Question(name="rollout", waiting="Computing rollout"),
        Question(name="explain", waiting="Computing a map"),
        Question(name="faithfulness", waiting="Testing maps"),
        Question(name="heads", waiting="Measuring heads"),
        Question(name="layers", waiting="Reading the layers"),
        Question(name="intervene", waiting="Running the model on the rest", settle=200),
        Question(name="attention", page=False, light=True, not_in_browser="the page computes it from a block"),
        Question(name="lecture", waiting="Loading the lecture’s numbers", programs=False, light=True),
        Question(name="page", waiting="Writing the page", cached=False),  # large, and rarely asked for twice
        Question(name="models", programs=False, cached=False, not_in_browser="the page holds the list"),
        Question(
            name="checkpoint", waiting="Uploading the checkpoint", programs=False, cached=False,
            not_in_browser="a static site takes no files",
        ),
    )
}  # fmt: skip
"""Every question by its name."""
