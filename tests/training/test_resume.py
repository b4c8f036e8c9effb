"""Test resuming: the same losses as in an uninterrupted training run, and errors for states that do not match.

`make test-all` also kills a process, fills its disk, and trains with two processes under torchrun.
"""

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
import training_cases as cases
from patience import patience
from safetensors.torch import load_file
from torch.testing import assert_close

from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped
from vitviz.training.loop import Trainer
from vitviz.training.state import find_state

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def pythons_own_ctrl_c() -> Iterator[None]:
    """Restore Python's handler, because workers of pytest-xdist ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    """Raise SIGINT, and wait until Python handles it; two signals before that count as one."""
    handler = signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    for _ in range(5000):  # the first signal replaces the handler, the second one raises an exception
        if signal.getsignal(signal.SIGINT) is not handler:
            return
        time.sleep(0.001)


def die() -> None:
    raise MemoryError


def test_resumed_training_matches_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = cases.recipe(**cases.FULL)
    expected = cases.train(tmp_path / "whole", recipe)
    undo = cases.at_step(1, lambda: pytest.fail("the training was complete"))
    cases.assert_same(cases.train(tmp_path / "whole", recipe, resume=True), expected)
    undo()

    out = tmp_path / "crashed"
    undo = cases.at_step(10, die)
    with pytest.raises(MemoryError):
        cases.train(out, recipe, save_every=0)
    undo()
    assert cases.step_of(out) == 9  # in the middle of the second epoch of 6 steps
    cases.assert_same(cases.train(out, recipe, resume=True), expected)
    assert [path.name for path in (out / "state").iterdir()] == ["step-000000018"]
    assert len((out / "curves.csv").read_text().splitlines()) == 4

    out, validate, validations = tmp_path / "in a validation", Trainer._validate, []

    def interrupted(self: Trainer) -> Any:
        validations.append(0)
        if len(validations) == 2:
            ctrl_c()
        return validate(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_validate", interrupted)
        with pytest.raises(Stopped, match="after epoch 2 of 3"):
            cases.train(out, recipe)
    assert cases.step_of(out) == 12
    outcome = cases.train(out, recipe, resume=True)
    cases.assert_same(outcome, expected)
    assert outcome.epochs[1].images_per_second > 0


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({"unfreeze_last": 1}, {4: "step 4 of 6 in epoch 1", 9: "step 3 of 6 in epoch 2"}),
        ({"precision": "bfloat16"}, {4: "step 4 of 6 in epoch 1", 9: "step 3 of 6 in epoch 2"}),
        ({"accumulate": 2, "balance": 0.5}, {2: "step 2 of 6 in epoch 1", 5: "step 5 of 6 in epoch 1"}),
    ],
)
def test_training_resumes_after_ctrl_c(tmp_path: Path, changes: dict[str, Any], stops: dict[int, str]) -> None:
    recipe = cases.recipe(dropout=0.2, epochs=2, **changes)
    expected = cases.train(tmp_path / "whole", recipe)
    for part, (done, place) in zip((4, 5), stops.items(), strict=True):  # stopped twice, at these parts of steps
        undo = cases.at_step(part, ctrl_c)
        with pytest.raises(Stopped, match=f"{place} of 2.*--resume"):
            cases.train(tmp_path / "part", recipe, resume=True)
        undo()
        assert cases.step_of(tmp_path / "part") == done  # the current step was finished
    cases.assert_same(cases.train(tmp_path / "part", recipe, resume=True), expected)


def test_a_second_ctrl_c_acts_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    undo = cases.at_step(3, lambda: (ctrl_c(), ctrl_c()))
    with pytest.raises(KeyboardInterrupt) as caught:
        cases.train(tmp_path)
    undo()
    assert not isinstance(caught.value, Stopped)
    assert find_state(tmp_path) is None
    assert signal.getsignal(signal.SIGINT) is before


SHORT: dict[str, Any] = {"epochs": 1, "warmup": 0.5, "unfreeze_last": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished training run of one epoch."""
    out = tmp_path_factory.mktemp("done")
    cases.train(out, cases.recipe(**SHORT))
    return out


def test_existing_training_is_not_overwritten_or_resumed_with_other_settings(done: Path) -> None:
    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (done / "state").rglob("*") if path.is_file()}

    before = state()
    with pytest.raises(TrainingError, match="--resume"):
        cases.train(done, cases.recipe(**SHORT))
    for changes, sizes, message in (
        ({"lr": 1e-3}, {}, r"recipe\.lr was 0\.003 and is 0\.001"),
        ({"epochs": 4}, {}, r"recipe\.epochs"),
        ({"unfreeze_last": 2}, {}, r"recipe\.unfreeze_last"),
        ({}, {"width": 24}, r"model\.width was 20 and is 24"),
        ({}, {"seed": 1}, "frozen was"),
    ):
        with pytest.raises(TrainingError, match=message):
            cases.train(done, cases.recipe(**SHORT | changes), sizes=sizes, resume=True)
    data = cases.data(seed=1)
    with pytest.raises(TrainingError, match="data was"):
        cases.run(done, cases.model(data), data, cases.recipe(**SHORT), resume=True)
    assert state() == before


def test_damaged_states_are_refused(done: Path) -> None:
    for name in ("progress.json", "model.safetensors", "optimizer.bin"):
        path = find_state(done) / name
        content = path.read_bytes()
        path.write_bytes(content[:-100])
        with pytest.raises(TrainingError, match="Remove it to start again"):
            cases.train(done, cases.recipe(**SHORT), resume=True)
        path.write_bytes(content)


# ---- separate processes

# Trains with an event in step `at` of process `target`, and writes the outcome to files.
CHILD = """
import os, resource, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from safetensors.torch import save_file
from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped

rank, code = int(os.environ.get("RANK", 0)), 0

def happen(event):
    if event == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), getattr(signal, event))

for out, settings, event, at, target in eval(sys.argv[1]):
    undo = cases.at_step(at, lambda: happen(event)) if event and rank == target else lambda: None
    try:
        outcome = cases.train(cases.Path(out), cases.recipe(**settings), resume=True, save_every=0)
    except (Stopped, TrainingError) as error:
        print(error)
        open(f"{out}.stopped{rank}", "w").write(str(error))
        code = 130 if isinstance(error, Stopped) else 2
        undo()
        continue
    code = 0
    results = {"losses": outcome.losses, "confusion": torch.from_numpy(outcome.accuracy.confusion()[1])}
    results |= {"numbers": torch.tensor([outcome.accuracy.top5, outcome.accuracy.loss, outcome.processes])}
    results |= {f"weights.{name}": weight for name, weight in cases.weights(outcome.model).items()}
    save_file(results, f"{out}.rank{rank}")
sys.exit(code)
"""


def run(folder: Path, runs: list[tuple[str, dict[str, Any], str, int, int]], *launcher: str) -> Any:
    """Train in other processes; each run has folder, recipe, event, step of the event, and rank of its process."""
    tests, script = Path(__file__).parents[1], folder / "child.py"
    script.write_text(CHILD)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script), repr([(str(folder / name), *rest) for name, *rest in runs])]
    limit = patience(240)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)


@pytest.mark.tier("all")
def test_training_resumes_after_a_killed_process_and_a_full_disk(tmp_path: Path) -> None:
    recipe = cases.recipe(**cases.FULL)
    expected = cases.train(tmp_path / "whole", recipe)
    for event, code, saved, phrases in (
        ("SIGKILL", -signal.SIGKILL, 9, ()),
        ("SIGINT", 130, 10, ("step 4 of 6 in epoch 2 of 3", "--resume")),  # the current step is finished
        ("full", 2, 9, ("Make room", "step-000000009")),
    ):
        process = run(tmp_path, [(event, cases.FULL, event, 10, 0)])
        assert process.returncode == code, process.stderr
        assert event == "SIGKILL" or "Traceback" not in process.stderr  # workers may report that their parent died
        assert all(phrase in process.stdout for phrase in phrases)
        assert [path.name for path in (tmp_path / event / "state").iterdir()] == [f"step-{saved:09}"]
        cases.assert_same(cases.train(tmp_path / event, recipe, resume=True), expected)


SETTINGS: dict[str, dict[str, Any]] = {
    "accumulated": {"layer_decay": 0.8, "head_lr": 1e-2, "accumulate": 2},
    "cached features": {"unfreeze_last": 1, "smoothing": 0.1},
}
STOPPED = {"flip": True, "mixup": 0.4, "path_dropout": 0.3, "patch_dropout": 0.3, "precision": "bfloat16"}


@pytest.mark.tier("all")
def test_two_processes_match_one_and_stop_together(tmp_path: Path) -> None:
    """Without augmentation and dropout, both processes see the same batches, so losses are equal up to rounding."""
    runs = [(name, settings, "", 0, 0) for name, settings in SETTINGS.items()]
    runs += [("stopped", STOPPED, "SIGTERM", 8, 1), ("stopped", STOPPED, "", 0, 0)]  # a signal to the second process
    process = run(tmp_path, runs, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert process.returncode == 0, process.stderr[-3000:]
    names = (*SETTINGS, "stopped")
    results = {name: [load_file(tmp_path / f"{name}.rank{rank}") for rank in range(2)] for name in names}
    assert all(first[key].equal(second[key]) for first, second in results.values() for key in first)
    for name, settings in SETTINGS.items():
        single, first = cases.train(tmp_path / f"{name} alone", cases.recipe(**settings)), results[name][0]
        assert_close(first["losses"], single.losses, atol=1e-4, rtol=0)
        assert np.array_equal(first["confusion"], single.accuracy.confusion()[1])
        assert first["numbers"].tolist() == pytest.approx([single.accuracy.top5, single.accuracy.loss, 2.0], abs=1e-4)
        outputs = [sorted(path.name for path in (tmp_path / out).iterdir()) for out in (name, f"{name} alone")]
        assert outputs[0] == outputs[1]
        assert len(list((tmp_path / name / "events").iterdir())) == 1  # only the main process writes
    assert all("step 2 of 6 in epoch 2" in (tmp_path / f"stopped.stopped{rank}").read_text() for rank in range(2))
    assert len(results["stopped"][0]["losses"]) == cases.step_of(tmp_path / "stopped") == 18
