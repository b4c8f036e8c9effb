"""Declare each query that the page or an API client can send about a photograph.

Routes, queues, API, tools, the page's messages and the documents' table are generated from `QUESTIONS`. The arguments
of a question, with types, ranges and meaning, are in the signature of the method with the same name in
`vitviz.server.endpoints`. `vitviz/site/worker/worker.js` answers questions in the browser.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.phrases import Phrase
from vitviz.rooms import has


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a photograph.

    Args:
        name: name of the method, the route, the tool and the browser's function that answer it.
        waiting: message that the page shows until progress or the answer arrives; empty for none.
        page: whether the page uses it.
        programs: whether Gradio's API and the tools offer it.
        light: whether it takes only milliseconds and therefore bypasses the queue of computations.
        cached: whether its answer is cached.
        settle: milliseconds that the page waits after the last change, because a slider changes the question often.
        not_in_browser: why the static site cannot answer it; empty if it can.
        room: the room (`vitviz.rooms`) that answers it; without its folder, there is no such question.
    """

    name: str
    waiting: str = ""
    page: bool = True
    programs: bool = True
    light: bool = False
    cached: bool = True
    settle: int = 0
    not_in_browser: str = ""
    room: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "waiting", self.waiting and Phrase(f"question-{self.name}", self.waiting))


QUESTIONS = {
    question.name: question
    for question in (
        Question(name="open", waiting="Running the model on the photograph", cached=False),  # scenes are cached
        Question(name="block", light=True),  # the page fetches blocks in the background
        Question(name="descriptors", waiting="Reading the patches", light=True),
        Question(name="rollout", waiting="Computing rollout"),
        Question(
            name="caption", waiting="Writing a caption",
            not_in_browser="the captioner runs in Python; a site contains the captions of its examples",
        ),
        Question(name="explain", waiting="Computing a map"),
        Question(name="faithfulness", waiting="Testing maps"),
        Question(name="heads", waiting="Measuring heads"),
        Question(name="layers", waiting="Reading the layers"),
        Question(name="decompose", waiting="Computing the contributions to the score"),
        Question(name="edge", settle=60, not_in_browser="the graphs lack the singular modes of queries and keys"),
        Question(
            name="sinks", waiting="Looking for bright spots",
            not_in_browser="the graphs lack the neurons of the MLPs",
        ),
        Question(name="evidence", waiting="Searching for a few sufficient patches"),
        Question(name="intervene", waiting="Running the model again", settle=200),
        Question(
            name="patch", waiting="Running the model again",
            not_in_browser="the graphs do not take activations of another photograph",
        ),
        Question(name="rearrange", waiting="Running the model again"),
        Question(name="attention", page=False, light=True, not_in_browser="the page computes it from a block"),
        Question(name="lecture", waiting="Loading the lecture’s numbers", programs=False, light=True, room="lecture"),
        Question(
            name="planted", waiting="Planting a neuron", programs=False, room="lecture",
            not_in_browser="the graphs take no changed weights; a site contains the numbers of its examples",
        ),
        Question(name="page", waiting="Writing the page", cached=False),  # large and rarely requested twice
        Question(name="models", programs=False, cached=False, not_in_browser="the page contains the list"),
        Question(
            name="checkpoint", waiting="Uploading the checkpoint", programs=False, cached=False,
            not_in_browser="a static site accepts no uploads",
        ),
    )
    if not question.room or has(question.room)
}  # fmt: skip
"""All questions by name."""
