"""Several processes under torchrun: one training, one folder, the same outcome in each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_cases as cases
from safetensors.torch import load_file

pytestmark = pytest.mark.usefixtures("one_thread")

CHILD = """
import os, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from safetensors.torch import save_file
from vitviz.training.interrupts import Stopped

rank = int(os.environ["RANK"])
for out, settings, at in eval(sys.argv[1]):
    if at and rank == 1:
        undo = cases.at_step(at, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        outcome = cases.train(cases.Path(out), cases.recipe(**settings), resume=True)
    except Stopped as error:
        open(f"{out}.stopped{rank}", "w").write(str(error))
        if rank == 1:
            undo()
        continue
    told = {"losses": outcome.losses, "confusion": torch.from_numpy(outcome.accuracy.confusion()[1])}
    told |= {"numbers": torch.tensor([outcome.accuracy.top5, outcome.accuracy.loss, outcome.processes])}
    told |= {f"weights.{name}": one.detach().clone() for name, one in outcome.model.state_dict().items()}
    save_file(told, f"{out}.rank{rank}")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trainings of two processes, all started at once; the last one is asked to end, then goes on."""
    folder = tmp_path_factory.mktemp("two")
    runs = [(str(folder / name), settings, 0) for name, settings in SETTINGS.items()]
    torchrun(folder, [*runs, (str(folder / "stopped"), STOPPED, 8), (str(folder / "stopped"), STOPPED, 0)])
    return folder


def torchrun(folder: Path, runs: list[tuple[str, dict[str, Any], int]]) -> None:
    """Train in two processes, one training after the other; in step `at` the second process is asked to end."""
    tests, script = Path(__file__).parents[1], folder / "child.py"
    script.write_text(CHILD)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*command, repr(runs)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


SETTINGS: dict[str, dict[str, Any]] = {
    "accumulated": {"layer_decay": 0.8, "head_lr": 1e-2, "accumulate": 2},
    "cached features": {"unfreeze_last": 1, "smoothing": 0.1},
}
STOPPED = {"flip": True, "mixup": 0.4, "path_dropout": 0.3, "patch_dropout": 0.3, "precision": "bfloat16"}


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_train_what_one_does(trained: Path, tmp_path: Path, name: str) -> None:
    """Without augmentation and dropout they see the same batches, so losses are equal but for rounding."""
    whole = cases.train(tmp_path / "one", cases.recipe(**SETTINGS[name]))
    first, second = (load_file(trained / f"{name}.rank{rank}") for rank in range(2))
    torch.testing.assert_close(first["losses"], whole.losses, atol=1e-4, rtol=0)
    assert np.array_equal(first["confusion"], whole.accuracy.confusion()[1])
    assert first["numbers"].tolist() == pytest.approx([whole.accuracy.top5, whole.accuracy.loss, 2.0], abs=1e-4)
    assert all(first[key].equal(second[key]) for key in first)
    alone = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert sorted(path.name for path in (trained / name).iterdir()) == alone
    assert len(list((trained / name / "events").iterdir())) == 1  # the main process alone writes


def test_they_stop_together_and_go_on(trained: Path) -> None:
    said = [(trained / f"stopped.stopped{rank}").read_text() for rank in range(2)]
    assert all("step 2 of 6 in epoch 2" in text for text in said)
    first, second = (load_file(trained / f"stopped.rank{rank}") for rank in range(2))
    assert len(first["losses"]) == 18
    assert all(first[key].equal(second[key]) for key in first)
    assert cases.step_of(trained / "stopped") == 18
