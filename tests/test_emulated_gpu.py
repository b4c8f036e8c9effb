"""Compare everything that takes a device with the CPU, on an emulated GPU, or on a real one (`make test-cuda`)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import tiny
import torch
import training_cases
from emulated_gpu import REAL, OnGPU, emulated_gpu
from offered import ask, new_endpoints
from running import CHURCH, folder

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.registry import METHODS
from vitviz.cli.main import main
from vitviz.evaluation.evaluate import evaluate
from vitviz.explorer import Explorer
from vitviz.server import gpu as server_gpu
from vitviz.training.loop import Trainer
from vitviz.view import View

CLOSE = 3e-5  # relative to the largest number
pytestmark = [pytest.mark.cuda] if REAL else []


@pytest.fixture(autouse=True)
def gpu() -> Iterator[torch.device]:
    with emulated_gpu() as device:
        yield device


@pytest.fixture(scope="module")
def views() -> dict[str, View]:
    """Return a photograph's views on the CPU and on the GPU."""
    with emulated_gpu():
        return {
            device: Explorer(tiny.known(registers=2, **tiny.SMALL), device=device).open(CHURCH)
            for device in ("cpu", "cuda")
        }


def numbers(value: Any) -> np.ndarray:
    return value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, float)


def assert_equal(views: dict[str, View], question: Callable[[View], Any], close: float = CLOSE) -> None:
    """Compare the answers of the two devices."""
    expected, actual = (numbers(question(views[device])) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=close * np.abs(expected).max())


def test_emulated_tensors_refuse_what_tensors_of_a_gpu_refuse(gpu: torch.device) -> None:
    here, there = torch.ones(2, 3), torch.ones(2, 3, device=gpu)
    assert (there.device, there.is_cuda, (2 * there).device) == (gpu, True, gpu)
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert not isinstance(there.cpu(), OnGPU)
    leaf = here.requires_grad_()
    (leaf.to("cuda") * there).sum().cpu().backward()
    assert torch.equal(leaf.grad, here)


@pytest.mark.parametrize("method", METHODS)
def test_method_equals_the_cpus(views: dict[str, View], method: str) -> None:
    assert_equal(views, lambda view: view.explain(method).values)


@pytest.mark.parametrize(
    "question",
    [
        lambda view: view.trace.logits,
        lambda view: view.attention(1, 2, (1, 1)).values,
        *(lambda view, fuse=fuse: view.rollout(fuse=fuse, discard=0.2).values for fuse in ("mean", "max", "min")),
        lambda view: [view.heads(STATISTICS)[name] for name in view.heads(STATISTICS).present],
        lambda view: view.lens().probabilities,
        lambda view: view.intervene(drop=[(1, 2)], heads=[(0, 1)]).after,
        lambda view: view.faithfulness(view.explain("gae"), steps=4, random=2)[0].deletion.probabilities,
    ],
    ids=["logits", "attention", "rollout", "max", "min", "heads", "lens", "intervention", "faithfulness"],
)
def test_view_equals_the_cpus(views: dict[str, View], question: Callable[[View], Any]) -> None:
    assert_equal(views, question)


def test_pages_and_pictures_of_a_view_are_written(views: dict[str, View]) -> None:
    assert views["cuda"].token_pca().colors.shape == views["cpu"].token_pca().colors.shape
    assert views["cuda"].html(lecture=True).startswith("<!doctype html>")
    assert views["cuda"].head_sheet().size == views["cpu"].head_sheet().size


def test_half_precision_and_autocast_run() -> None:
    model = tiny.known(**tiny.SMALL)
    expected = Explorer(model).open(CHURCH).trace.logits
    with torch.autocast("cuda", torch.bfloat16):
        view = Explorer(model, device="cuda").open(CHURCH)
        assert view.explain("gae").values.shape == view.trace.grid
    np.testing.assert_allclose(numbers(view.trace.logits), numbers(expected), atol=0.1 * expected.abs().max())
    half = Explorer(tiny.known(**tiny.SMALL).bfloat16(), device="cuda").open(CHURCH)
    assert half.trace.logits.dtype == torch.bfloat16
    np.testing.assert_allclose(numbers(half.trace.logits), numbers(expected), atol=0.1 * expected.abs().max())


def test_evaluation_equals_the_cpus(tmp_path: Path) -> None:
    model = tiny.known(labels=("ox", "church"), classes=2, **tiny.SMALL)
    data_files.photo(tmp_path / "photos" / "ox" / "0.png", 30, 20, seed=0)
    asked = {"steps": 3, "random": 2, "progress": False}
    results = [
        evaluate(model.to(device), tmp_path / "photos", ["gae", "rollout"], **asked).records
        for device in ("cpu", "cuda")
    ]
    for here, there in zip(*results, strict=True):
        np.testing.assert_allclose(there["deletion"], here["deletion"], atol=CLOSE)
        np.testing.assert_allclose(there["gain"], here["gain"], atol=1e-3)


def test_two_training_steps_equal_the_cpus(tmp_path: Path) -> None:
    losses = []
    for device in ("cpu", "cuda"):
        data = training_cases.data(train=16, val=5)
        recipe = training_cases.recipe(epochs=1)
        out = Trainer(training_cases.model(data), data, recipe, tmp_path / device, device=device, progress=False).run()
        losses.append(numbers(out.losses))
    np.testing.assert_allclose(losses[1], losses[0], atol=CLOSE)


def test_endpoints_equal_the_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "model", mode="native")
    answers = []
    for device in ("cpu", "cuda"):
        monkeypatch.setattr(server_gpu, "best_device", lambda device=device: torch.device(device))
        endpoints = new_endpoints(tmp_path / device, (source,))
        scene = ask(endpoints, "open", image="Noise")["id"]
        answers.append(
            [
                ask(endpoints, "explain", scene=scene)["values"],
                ask(endpoints, "faithfulness", scene=scene, methods=["gae"])[0]["gain"],
                ask(endpoints, "intervene", scene=scene, patches=[3])["classes"][0][2],
                *ask(endpoints, "heads", scene=scene, names=["distance"])["values"].values(),
                ask(endpoints, "attention", scene=scene, block=1)["values"],
                np.frombuffer(ask(endpoints, "rollout", scene=scene, token=0), np.float32),
                ask(endpoints, "layers", scene=scene)["read"],
            ]
        )
        assert ask(endpoints, "block", scene=scene, block=1)
        assert ask(endpoints, "page", scene=scene)
    for here, there in zip(*answers, strict=True):
        np.testing.assert_allclose(np.array(there, float), np.array(here, float), atol=1e-4)


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_command_runs_with_the_device(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "model")
    outputs = []
    for device in ("cpu", "cuda"):
        out = ["-o", str(tmp_path / f"{device}.png")] if command == "explain" else []
        assert main([command, str(CHURCH), "--model", source, "--device", device, *out]) == 0
        outputs.append(capsys.readouterr().out.replace(f"{device}.png", "file.png"))
    assert outputs[0] == outputs[1]
