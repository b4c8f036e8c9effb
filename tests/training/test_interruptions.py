"""Processes that train: killed, out of disk, stopped by Ctrl-C, and two under torchrun, all to the same outcome."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_cases as cases
from patience import patience
from safetensors.torch import load_file

from vitviz.training.loop import Outcome

pytestmark = [pytest.mark.tier("all"), pytest.mark.usefixtures("one_thread")]

# What happens to a training in its step `at`, and what is written of its outcome.
CHILD = """
import os, resource, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from safetensors.torch import save_file
from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped

rank, code = int(os.environ.get("RANK", 0)), 0

def happen(what):
    if what == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), getattr(signal, what))

for out, settings, what, at, happens_to in eval(sys.argv[1]):
    undo = cases.at_step(at, lambda: happen(what)) if what and rank == happens_to else lambda: None
    try:
        outcome = cases.train(cases.Path(out), cases.recipe(**settings), resume=True, save_every=0)
    except (Stopped, TrainingError) as error:
        print(error)
        open(f"{out}.stopped{rank}", "w").write(str(error))
        code = 130 if isinstance(error, Stopped) else 2
        undo()
        continue
    code = 0
    told = {"losses": outcome.losses, "confusion": torch.from_numpy(outcome.accuracy.confusion()[1])}
    told |= {"numbers": torch.tensor([outcome.accuracy.top5, outcome.accuracy.loss, outcome.processes])}
    told |= {f"weights.{name}": one.detach().clone() for name, one in outcome.model.state_dict().items()}
    save_file(told, f"{out}.rank{rank}")
sys.exit(code)
"""


def run(folder: Path, runs: list[tuple[str, dict[str, Any], str, int, int]], *launcher: str) -> Any:
    """Train in other processes; each run is the folder, the recipe, what happens, in which step, to which process."""
    tests, script = Path(__file__).parents[1], folder / "child.py"
    script.write_text(CHILD)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script), repr([(str(folder / name), *rest) for name, *rest in runs])]
    limit = patience(240)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)


# ---- one process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training that nothing happens to."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = cases.train(tmp_path_factory.mktemp("whole"), cases.recipe(**cases.FULL))
    torch.set_num_threads(before)
    return outcome


@pytest.mark.parametrize(
    ("what", "code", "saved", "words"),
    [
        ("SIGKILL", -signal.SIGKILL, 9, ()),
        ("SIGINT", 130, 10, ("step 4 of 6 in epoch 2 of 3", "--resume")),  # the step that ran is finished
        ("full", 2, 9, ("Make room", "step-000000009")),
    ],
)
def test_a_training_resumes_to_the_same_outcome(
    tmp_path: Path, whole: Outcome, what: str, code: int, saved: int, words: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    ended = run(tmp_path, [("out", cases.FULL, what, 10, 0)])
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert all(word in ended.stdout for word in words)
    assert [path.name for path in (out / "state").iterdir()] == [f"step-{saved:09}"]
    cases.assert_same(cases.train(out, cases.recipe(**cases.FULL), resume=True), whole)


# ---- two processes

SETTINGS: dict[str, dict[str, Any]] = {
    "accumulated": {"layer_decay": 0.8, "head_lr": 1e-2, "accumulate": 2},
    "cached features": {"unfreeze_last": 1, "smoothing": 0.1},
}
STOPPED = {"flip": True, "mixup": 0.4, "path_dropout": 0.3, "patch_dropout": 0.3, "precision": "bfloat16"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trainings of two processes; the last one is stopped in its second process, then goes on."""
    folder = tmp_path_factory.mktemp("two")
    runs = [(name, settings, "", 0, 0) for name, settings in SETTINGS.items()]
    runs += [("stopped", STOPPED, "SIGTERM", 8, 1), ("stopped", STOPPED, "", 0, 0)]
    done = run(folder, runs, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_train_as_one(trained: Path, tmp_path: Path, name: str) -> None:
    """Without augmentation and dropout they see the same batches, so losses are equal but for rounding."""
    alone = cases.train(tmp_path / "one", cases.recipe(**SETTINGS[name]))
    first, second = (load_file(trained / f"{name}.rank{rank}") for rank in range(2))
    torch.testing.assert_close(first["losses"], alone.losses, atol=1e-4, rtol=0)
    assert np.array_equal(first["confusion"], alone.accuracy.confusion()[1])
    assert first["numbers"].tolist() == pytest.approx([alone.accuracy.top5, alone.accuracy.loss, 2.0], abs=1e-4)
    assert all(first[key].equal(second[key]) for key in first)
    written = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (trained / name).iterdir()) == written
    assert len(list((trained / name / "events").iterdir())) == 1  # the main process alone writes


def test_two_processes_stop_together_and_go_on(trained: Path) -> None:
    assert all("step 2 of 6 in epoch 2" in (trained / f"stopped.stopped{rank}").read_text() for rank in range(2))
    first, second = (load_file(trained / f"stopped.rank{rank}") for rank in range(2))
    assert len(first["losses"]) == 18
    assert all(first[key].equal(second[key]) for key in first)
    assert cases.step_of(trained / "stopped") == 18
