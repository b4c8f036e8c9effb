"""Large inputs and questions: refused with what fits, or run so that others need not wait. No socket is needed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import tiny
from offered import WIDTH, ask, folder, made, photograph

from vitviz.attribution.registry import METHODS
from vitviz.server import endpoints as module
from vitviz.server import sizes
from vitviz.server.endpoints import Endpoints
from vitviz.server.routes import describe_error
from vitviz.server.scheduler import Client, current
from vitviz.server.sizes import TooLargeError, check_method, question_bytes


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return made(tmp_path / "page", (folder(tmp_path / "a"),))


def test_a_large_input_gives_way_to_anothers_photograph(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun, end, order = module.open_view, threading.Event(), threading.Event(), []

    def held(explorer: Any, picture: Any, size: int | None) -> Any:
        if size is not None:
            begun.set()
            assert end.wait(60)
        return run(explorer, picture, size)

    monkeypatch.setattr(module, "open_view", held)
    monkeypatch.setattr(sizes, "LARGE", 2)

    def large() -> None:
        current.set(Client("127.0.0.2"))
        ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)
        order.append("large")

    thread = threading.Thread(target=large)
    thread.start()
    assert begun.wait(60)
    token = current.set(Client("127.0.0.9"))
    try:
        assert ask(endpoints, "open", photo=photograph(2))["id"]
        order.append("photograph")
    finally:
        current.reset(token)
        end.set()
        thread.join(60)
    assert order == ["photograph", "large"]


def test_an_input_of_too_many_patches_is_refused_also_at_the_models_own_size(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MOST_PATCHES", 50)
    with pytest.raises(TooLargeError, match=r"at most 50 patches .* got 77") as refused:
        ask(endpoints, "open", photo=photograph(1))
    error = describe_error(refused.value)
    assert error["kind"] == "refused"
    assert error["size"] == refused.value.size
    assert refused.value.size is not None
    assert ask(endpoints, "open", photo=photograph(1), size=refused.value.size)["size"] == refused.value.size


def test_a_question_that_does_not_fit_is_refused_with_the_largest_size_that_does(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(1), size=4 * WIDTH)["id"]
    found = endpoints.scenes.get(scene)
    assert found is not None
    model, tokens = found.view.model, found.view.trace.tokens.shape[1]
    own = endpoints.loaded.get(found.model).explorer.preprocess
    need = question_bytes(model.config, METHODS["gae"], tokens, 4)
    allowed = type(endpoints.menu.settings)(question_memory=need - 1)
    endpoints.menu.settings = allowed
    with pytest.raises(TooLargeError, match=r"Open the photograph at \d+ pixels or fewer") as refused:
        ask(endpoints, "explain", scene=scene, method="gae")
    with pytest.raises(TooLargeError):
        ask(endpoints, "faithfulness", scene=scene, methods=["gae"])
    size = refused.value.size
    assert size is not None
    assert size < 4 * WIDTH
    smaller = ask(endpoints, "open", photo=photograph(1), size=size)["id"]
    assert ask(endpoints, "explain", scene=smaller, method="gae")["values"]
    check_method(model, METHODS["rollout"], (90, 60), own, tokens, allowed)  # it holds no matrix of all heads


def test_estimates_grow_with_the_square_where_matrices_are_held() -> None:
    config = tiny.model().config
    small, large = (question_bytes(config, METHODS["gae"], tokens, 4) for tokens in (5_000, 10_000))
    assert large > 3.5 * small
    small, large = (question_bytes(config, METHODS["occlusion"], tokens, 4) for tokens in (5_000, 10_000))
    assert large < 2.5 * small


@pytest.mark.parametrize("name", ["block", "attention", "lecture"])
def test_simple_questions_about_large_scenes_leave_the_light_threads(
    name: str, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph(1))["id"]
    given = {"scene": scene, "block": 0}
    assert endpoints.question(name, given).light
    monkeypatch.setattr(module, "LIGHT_TOKENS", 20)
    question = endpoints.question(name, given)
    assert not question.light
    assert question.compute()
