"""Where a model runs: in this process or, on ZeroGPU, in another process to which everything is copied."""

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
from gradio.context import LocalContext
from offered import photograph

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.server import endpoints as module
from vitviz.server import gpu, opening
from vitviz.server.endpoints import Endpoints


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Reload `gpu` with a stub of ZeroGPU's package, which copies arguments and results; return its calls."""
    calls: list[tuple[str, int]] = []

    def borrow(duration: int) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                calls.append((function.__name__, duration))
                return copy.deepcopy(function(*copy.deepcopy(args)))

            return call

        return decorate

    monkeypatch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=borrow))
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    importlib.reload(gpu)
    monkeypatch.setattr(opening, "open_view", gpu.open_view)
    monkeypatch.setattr(module, "ask_view", gpu.ask_view)
    yield calls
    monkeypatch.undo()
    importlib.reload(gpu)


def test_models_run_in_process_without_spaces() -> None:
    assert gpu.spaces is None
    assert not gpu.BORROWED
    explorer = Explorer(tiny.model())
    view = gpu.open_view(explorer, photograph(), None)
    assert view.model is explorer.model
    assert gpu.ask_view(view, "intervene", drop=[(0, 0)]).before.shape == (1, tiny.CLASSES)


def test_gpu_is_borrowed_only_to_run_the_model(calls: list[tuple[str, int]], endpoints: Endpoints) -> None:
    scene = endpoints.open(photograph())["id"]
    assert calls == [("run_model", gpu.OPEN_SECONDS)]
    assert gpu.BORROWED
    endpoints.block(scene, 0)
    endpoints.rollout(scene)
    endpoints.layers(scene)
    endpoints.attention(scene, 0)
    endpoints.page(scene)
    assert len(calls) == 1
    plain = Explorer(endpoints.loaded.get(endpoints.menu.default).explorer.model).open(photograph())
    values = endpoints.explain(scene, "token_gradcam", 3)["values"]
    np.testing.assert_allclose(values, plain.explain("token_gradcam", 3).values.ravel(), rtol=1e-4)
    assert endpoints.faithfulness(scene, ["token_gradcam"], 3)[0]["words"]
    assert endpoints.intervene(scene, [0])["classes"]
    assert endpoints.heads(scene, ["distance"])["values"]
    assert [name for name, _ in calls] == ["run_model", *["run_question"] * 4]
    assert all(0 < seconds <= 60 for _, seconds in calls)
    gpu.identify({"type": "http", "headers": [], "client": ("203.0.113.7", 1)})
    assert LocalContext.request.get().client.host == "203.0.113.7"  # ZeroGPU charges this visitor's quota


@pytest.mark.usefixtures("calls")
def test_borrowed_view_uses_local_weights_and_errors_keep_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.model.tracing.keeps_queries", lambda _: False)  # as for a large input
    explorer = Explorer(tiny.model())
    view, expected = gpu.open_view(explorer, photograph(), None), Explorer(explorer.model).open(photograph())
    assert view.model is explorer.model
    np.testing.assert_allclose(view.attention(1).values, expected.attention(1).values, atol=1e-6)
    np.testing.assert_allclose(view.rollout().values, expected.rollout().values, atol=1e-6)
    with pytest.raises(ImageError, match="Expected a photograph"):
        gpu.open_view(explorer, b"no picture", None)
