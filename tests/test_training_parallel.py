"""Two processes are as one with the same global batch: in every loss, in the weights, in what is validated."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import training_cases as cases
from safetensors.torch import load_file
from torch import Tensor

from vitviz.training.augment import Augment
from vitviz.training.engine import Outcome
from vitviz.training.parallel import World
from vitviz.training.state import position

pytestmark = pytest.mark.usefixtures("one_thread")

CHILD = """
import os, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from safetensors.torch import save_file
from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.engine import Stopped
from vitviz.training.step import Learner

out, settings, asked, at = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3]), int(sys.argv[4])
rank = int(os.environ["RANK"])
learn, steps = Learner.learn, []

def step(self, batch, number):
    steps.append(number)
    if number == at and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return learn(self, batch, number)

Learner.learn = step
try:
    seed = 0 if "unfreeze_last" in settings else rank
    outcome = cases.train(cases.Path(out), cases.recipe(**settings), sizes={"seed": seed}, **asked)
except (Stopped, TrainingError) as error:
    print(type(error).__name__, error)
    sys.exit(3)
told = {"losses": outcome.losses, "confusion": outcome.confusion, "steps": torch.tensor(steps)}
told |= {"numbers": torch.tensor([outcome.top1, outcome.top5, outcome.val_loss, outcome.processes])}
told |= {f"weights.{name}": one.detach().clone() for name, one in outcome.model.state_dict().items()}
save_file(told, f"{out}.rank{rank}")
"""


def together(out: Path, settings: dict[str, Any], at: int = -1, **asked: Any) -> list[tuple[int, str]]:
    """Train in two processes, as torchrun starts them: how each ended, and what it said."""
    tests = Path(__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", CHILD, str(out), repr(settings), repr(asked), str(at)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out + error) for process, (out, error) in zip(processes, said, strict=True)]


def told(out: Path) -> list[dict[str, Tensor]]:
    return [load_file(f"{out}.rank{rank}") for rank in range(2)]


def assert_close(out: Path, whole: Outcome) -> None:
    first, second = told(out)
    for one in (first, second):
        torch.testing.assert_close(one["losses"], whole.losses, atol=1e-4, rtol=0)
        assert one["confusion"].equal(whole.confusion)
        expected = [whole.top1, whole.top5, whole.val_loss, 2.0]
        assert one["numbers"].tolist() == pytest.approx(expected, abs=1e-4)
    for name in first:
        assert name == "steps" or first[name].equal(second[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {"path_dropout": 0.4, "patch_dropout": 0.5, "layer_decay": 0.8, "head_lr": 1e-2},
        {"augment": Augment(flip=True, crop_padding=1, mixup=0.4, policy="trivial", group=4), "accumulate": 2},
        {"unfreeze_last": 1, "smoothing": 0.1},
    ],
    ids=["stochastic depth", "augmented and accumulated", "frozen trunk"],
)
def test_two_processes_are_as_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = cases.train(tmp_path / "one", cases.recipe(**settings))
    # The second process begins with other weights: it is given the first one's. What is frozen has to be the same.
    ended = together(tmp_path / "two", settings)
    assert [code for code, _ in ended] == [0, 0], ended
    assert_close(tmp_path / "two", whole)
    assert position(tmp_path / "two" / "state.safetensors") == 18
    with_one = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == with_one
    assert len(list((tmp_path / "two" / "events").iterdir())) == 1  # the first alone writes


def test_together_they_stop_and_go_on_alone_or_together(tmp_path: Path) -> None:
    settings = {"path_dropout": 0.3}
    whole = cases.train(tmp_path / "one", cases.recipe(**settings))
    out = tmp_path / "two"
    ended = together(out, settings, at=7)  # the second process alone is told to end
    assert [code for code, _ in ended] == [3, 3], ended
    assert all("Stopped" in text and "step 2 of 6 in epoch 2" in text for _, text in ended)
    assert position(out / "state.safetensors") == 8
    ended = together(out, settings, at=14, resume=True)
    assert [code for code, _ in ended] == [3, 3], ended
    assert position(out / "state.safetensors") == 15
    alone = cases.train(out, cases.recipe(**settings), resume=True)
    torch.testing.assert_close(alone.losses, whole.losses, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("count", "size"), [(23, 2), (7, 3), (2, 4), (12, 1)])
def test_slices_cover_everything_once(count: int, size: int) -> None:
    parts = [list(range(count))[World(rank, size).slice(count)] for rank in range(size)]
    assert [one for part in parts for one in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_alone_nothing_is_sent() -> None:
    world = World()
    tensor = torch.tensor([3.0])
    assert world.total(tensor) is tensor
    assert world.tell({"a": 1}) == {"a": 1}
    world.same([tensor])
    assert tensor.item() == 3.0
    assert world.first
