"""No work is lost: after kill -9, Ctrl-C or a full disk a training goes on to the losses of one never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_cases as cases

from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.state import find_state

pytestmark = pytest.mark.usefixtures("one_thread")

# Everything that has a memory: order, augmentation, dropouts, moments, running mean.
FULL: dict[str, Any] = {
    "flip": True, "crop_padding": 1, "mixup": 0.3, "dropout": 0.1, "path_dropout": 0.3, "patch_dropout": 0.3,
    "smoothing": 0.1, "layer_decay": 0.8,
}  # fmt: skip

CHILD = """
import os, resource, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped

def happen():
    if sys.argv[2] == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))

cases.at_step(10, happen)
try:
    cases.train(cases.Path(sys.argv[1]), cases.recipe(**eval(sys.argv[3])), save_every=0)
except (Stopped, TrainingError) as error:
    print(error)
    sys.exit(130 if isinstance(error, Stopped) else 2)
"""


def child(out: Path, what: str) -> subprocess.CompletedProcess[str]:
    """A training in a process of its own, to which something happens in its tenth step."""
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(out), what, repr(FULL)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def assert_same(one: Outcome, other: Outcome) -> None:
    """To the last bit."""
    assert one.losses.equal(other.losses)
    for name, weight in other.model.state_dict().items():
        assert one.model.state_dict()[name].equal(weight), name
    assert np.array_equal(one.accuracy.predicted, other.accuracy.predicted)
    assert [row.top1 for row in one.epochs] == [row.top1 for row in other.epochs]


def resumed(out: Path, **changes: Any) -> Outcome:
    return cases.train(out, cases.recipe(**FULL, **changes), resume=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training that nothing happened to."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = cases.train(tmp_path_factory.mktemp("whole"), cases.recipe(**FULL))
    torch.set_num_threads(before)
    return outcome


# ---- whatever happens


def test_kill_9_costs_nothing_but_the_time(tmp_path: Path, whole: Outcome) -> None:
    died = child(tmp_path, "SIGKILL")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert cases.step_of(tmp_path) == 9  # in the middle of the second epoch of 6 steps
    (tmp_path / "state" / "unfinished").mkdir()  # and as if it had died while it wrote the next one
    (tmp_path / "state" / "unfinished" / "model.safetensors").write_bytes(b"half")
    assert_same(resumed(tmp_path), whole)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-000000018"]
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 4


def test_ctrl_c_saves_and_ends_with_a_sentence(tmp_path: Path, whole: Outcome) -> None:
    stopped = child(tmp_path, "SIGINT")
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "step 4 of 6 in epoch 2 of 3" in stopped.stdout
    assert "--resume" in stopped.stdout
    assert cases.step_of(tmp_path) == 10  # the step that ran was finished
    assert_same(resumed(tmp_path), whole)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of files")
def test_a_full_disk_ends_in_words_and_the_last_good_state_stays(tmp_path: Path, whole: Outcome) -> None:
    full = child(tmp_path, "full")
    assert full.returncode == 2, full.stderr
    assert "Make room" in full.stdout
    assert "step-000000009" in full.stdout
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-000000009"]
    assert_same(resumed(tmp_path), whole)


def ctrl_c() -> None:
    """As a person presses it: Python looks at a signal some instructions later, and two before that count as one."""
    handler = signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    for _ in range(5000):  # the first one puts another handler in place, the second one raises here
        if signal.getsignal(signal.SIGINT) is not handler:
            return
        time.sleep(0.001)


@pytest.fixture
def pythons_own_ctrl_c() -> Iterator[None]:
    """A worker of pytest-xdist is deaf to Ctrl-C: the process that started it hears it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_acts_at_once(tmp_path: Path, pythons_own_ctrl_c: None) -> None:
    before = signal.getsignal(signal.SIGINT)
    undo = cases.at_step(3, lambda: (ctrl_c(), ctrl_c()))
    with pytest.raises(KeyboardInterrupt) as caught:
        cases.train(tmp_path)
    undo()
    assert not isinstance(caught.value, Stopped)
    assert find_state(tmp_path) is None
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_validation_ends_there(tmp_path: Path, whole: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    validate, seen = Trainer._validate, []

    def interrupted(self: Trainer) -> Any:
        seen.append(0)
        if len(seen) == 2:
            ctrl_c()
        return validate(self)

    monkeypatch.setattr(Trainer, "_validate", interrupted)
    with pytest.raises(Stopped, match="after epoch 2 of 3"):
        cases.train(tmp_path, cases.recipe(**FULL))
    monkeypatch.undo()
    assert cases.step_of(tmp_path) == 12
    outcome = resumed(tmp_path)
    assert_same(outcome, whole)
    assert outcome.epochs[1].images_per_second > 0


@pytest.mark.parametrize(
    "changes", [{"unfreeze_last": 1}, {"precision": "bfloat16"}, {"accumulate": 2, "balance": 0.5}]
)
def test_other_kinds_of_training_go_on_as_well(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = cases.recipe(dropout=0.2, **changes)
    expected = cases.train(tmp_path / "whole", recipe)
    for at in (4, 5):  # and again
        undo = cases.at_step(at, ctrl_c)
        with pytest.raises(Stopped):
            cases.train(tmp_path / "part", recipe, resume=True)
        undo()
    assert_same(cases.train(tmp_path / "part", recipe, resume=True), expected)


def test_a_finished_training_is_told_again(tmp_path: Path) -> None:
    first = cases.train(tmp_path)
    undo = cases.at_step(1, lambda: pytest.fail("there was nothing left to do"))
    assert_same(cases.train(tmp_path, resume=True), first)
    undo()


# ---- what is refused


def test_a_training_is_not_written_over(tmp_path: Path) -> None:
    cases.train(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    with pytest.raises(TrainingError, match="--resume"):
        cases.train(tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == before


SHORT: dict[str, Any] = {"epochs": 1, "warmup": 0.5, "unfreeze_last": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of one epoch."""
    out = tmp_path_factory.mktemp("done")
    cases.train(out, cases.recipe(**SHORT))
    return out


@pytest.mark.parametrize(
    ("changes", "sizes", "named"),
    [
        ({"lr": 1e-3}, {}, r"recipe\.lr was 0\.003 and is 0\.001"),
        ({"epochs": 4}, {}, r"recipe\.epochs"),
        ({"unfreeze_last": 2}, {}, r"recipe\.unfreeze_last"),
        ({}, {"width": 24}, r"model\.width was 20 and is 24"),
        ({}, {"seed": 1}, "frozen was"),
    ],
)
def test_other_settings_are_refused_by_name(
    done: Path, changes: dict[str, Any], sizes: dict[str, Any], named: str
) -> None:
    with pytest.raises(TrainingError, match=named):
        cases.train(done, cases.recipe(**SHORT | changes), sizes=sizes, resume=True)


def test_other_data_are_refused(done: Path) -> None:
    data = cases.data(seed=1)
    with pytest.raises(TrainingError, match="data was"):
        Trainer(cases.model(data), data, cases.recipe(**SHORT), done, device="cpu", resume=True, progress=False).run()


@pytest.mark.parametrize("name", ["progress.json", "model.safetensors", "optimizer.bin"])
def test_a_damaged_state_is_refused_in_words(tmp_path: Path, name: str) -> None:
    cases.train(tmp_path, cases.recipe(**SHORT))
    path = find_state(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TrainingError, match="Remove it to begin anew"):
        cases.train(tmp_path, cases.recipe(**SHORT), resume=True)


def test_a_state_of_version_0_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"0\.1\.0"):
        cases.train(tmp_path, resume=True)
