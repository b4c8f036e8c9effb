"""No work is lost: after kill -9, Ctrl-C or a full disk a training goes on to the very numbers of one never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_cases as cases
from torch import Tensor

from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.engine import Outcome, Stopped, Trainer
from vitviz.training.feed import Batch, Feed
from vitviz.training.state import Progress, load_state, position, save_state
from vitviz.training.step import Learner
from vitviz.weights.checkpoint import fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")

STATE = "state.safetensors"

# Everything that has a memory: order, augmentation, both dropouts, moments, running mean.
FULL: dict[str, Any] = {
    "augment": Augment(flip=True, crop_padding=1, mixup=0.3, group=4),
    "dropout": 0.1,
    "path_dropout": 0.3,
    "smoothing": 0.1,
    "layer_decay": 0.8,
}

CHILD = """
import os, resource, signal, sys, torch
torch.set_num_threads(1)
import training_cases as cases
from vitviz.training import TrainingError, state
from vitviz.training.augment import Augment
from vitviz.training.engine import Stopped
from vitviz.training.step import Learner

out, how, at, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
learn, save_file = Learner.learn, state.save_file

def stop():
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    elif how in ("SIGINT", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, how))

def step(self, batch, number):
    if number == at:
        stop()
    return learn(self, batch, number)

def write(tensors, path, metadata):
    save_file(tensors, path, metadata)
    whole = cases.Path(out, "state.safetensors")
    if how == "writing" and whole.exists() and state.position(whole) == at:
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

Learner.learn, state.save_file = step, write
try:
    cases.train(cases.Path(out), cases.recipe(**settings), save_every=0)
except Stopped as stopped:
    print(stopped)
    sys.exit(130)
except TrainingError as error:
    print(error)
    sys.exit(2)
"""


def child(out: Path, how: str, at: int, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """A training in a process of its own that something happens to at step `at`."""
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "OMP_NUM_THREADS": "1"}
    asked = [sys.executable, "-c", CHILD, str(out), how, str(at), repr(settings)]
    return subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=240, check=False)


def assert_same(one: Outcome, other: Outcome) -> None:
    """To the last bit."""
    assert one.losses.equal(other.losses)
    for name, weight in other.model.state_dict().items():
        assert one.model.state_dict()[name].equal(weight), name
    assert one.confusion.equal(other.confusion)
    for row, expected in zip(one.epochs, other.epochs, strict=True):
        times = {"seconds": 0.0, "images_per_second": 0.0}
        assert {**row.to_dict(), **times} == {**expected.to_dict(), **times}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training that nothing happened to."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = cases.train(tmp_path_factory.mktemp("whole"), cases.recipe(**FULL))
    torch.set_num_threads(before)
    return outcome


# ---- whatever happens


@pytest.mark.parametrize(("how", "left"), [("kill", 9), ("writing", 9)])
def test_after_kill_9_the_numbers_are_those_of_a_training_never_stopped(
    tmp_path: Path, whole: Outcome, how: str, left: int
) -> None:
    died = child(tmp_path, how, 9, FULL)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert position(tmp_path / STATE) == left  # in the middle of the second epoch of 6 steps
    assert (tmp_path / f"{STATE}.new").exists() == (how == "writing")
    resumed = cases.train(tmp_path, cases.recipe(**FULL), resume=True)
    assert_same(resumed, whole)
    assert not (tmp_path / f"{STATE}.new").exists()
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_saves_and_ends_with_a_sentence(tmp_path: Path, whole: Outcome, name: str) -> None:
    stopped = child(tmp_path, name, 8, FULL)
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "step 3 of 6 in epoch 2 of 3" in stopped.stdout
    assert "--resume" in stopped.stdout
    assert position(tmp_path / STATE) == 9  # the step that ran was finished
    assert_same(cases.train(tmp_path, cases.recipe(**FULL), resume=True), whole)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of files")
def test_a_full_disk_ends_in_words_and_the_last_good_state_stays(tmp_path: Path, whole: Outcome) -> None:
    full = child(tmp_path, "full", 9, FULL)
    assert full.returncode == 2, full.stderr
    assert "could not be written" in full.stdout
    assert "after 9 steps" in full.stdout
    assert position(tmp_path / STATE) == 9
    assert not (tmp_path / f"{STATE}.new").exists()
    assert_same(cases.train(tmp_path, cases.recipe(**FULL), resume=True), whole)


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


def test_a_second_ctrl_c_is_not_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pythons_own_ctrl_c: None
) -> None:
    learn = Learner.learn

    def twice(self: Learner, batch: Any, number: int) -> Tensor:
        if number == 2:
            ctrl_c()
            ctrl_c()
        return learn(self, batch, number)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Learner, "learn", twice)
    with pytest.raises(KeyboardInterrupt) as caught:
        cases.train(tmp_path)
    assert not isinstance(caught.value, Stopped)
    assert not (tmp_path / STATE).exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_validation_ends_there(tmp_path: Path, whole: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    val = Feed.val
    validations = []

    def interrupted(self: Feed) -> Iterator[Batch]:
        validations.append(0)
        for batch in val(self):
            if len(validations) == 2:
                ctrl_c()
            yield batch

    monkeypatch.setattr(Feed, "val", interrupted)
    with pytest.raises(Stopped, match="after epoch 2 of 3"):
        cases.train(tmp_path, cases.recipe(**FULL))
    monkeypatch.undo()
    assert position(tmp_path / STATE) == 12
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 2
    resumed = cases.train(tmp_path, cases.recipe(**FULL), resume=True)
    assert_same(resumed, whole)
    assert resumed.epochs[1].images_per_second > 0


@pytest.mark.parametrize("settings", [{"unfreeze_last": 1}, {"precision": "float16", "ema": 0.0}, {"accumulate": 2}])
def test_other_kinds_of_training_go_on_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    expected = cases.train(tmp_path / "whole", cases.recipe(**settings))
    stop_at(monkeypatch, 7)
    with pytest.raises(Stopped):
        cases.train(tmp_path / "part", cases.recipe(**settings))
    monkeypatch.undo()
    assert_same(cases.train(tmp_path / "part", cases.recipe(**settings), resume=True), expected)


def stop_at(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Ctrl-C while a step runs."""
    learn = Learner.learn

    def interrupted(self: Learner, batch: Any, number: int) -> Tensor:
        if number == at:
            ctrl_c()
        return learn(self, batch, number)

    monkeypatch.setattr(Learner, "learn", interrupted)


def test_it_may_be_stopped_again_and_again(tmp_path: Path, whole: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in (0, 5, 6, 13):
        stop_at(monkeypatch, at)
        with pytest.raises(Stopped):
            cases.train(tmp_path, cases.recipe(**FULL), resume=True)
        monkeypatch.undo()
        assert position(tmp_path / STATE) == at + 1
    assert_same(cases.train(tmp_path, cases.recipe(**FULL), resume=True), whole)


def test_a_finished_training_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cases.train(tmp_path)
    monkeypatch.setattr(Learner, "learn", lambda *_: pytest.fail("there was nothing left to do"))
    assert_same(cases.train(tmp_path, resume=True), first)


# ---- what is refused


def test_a_training_is_not_written_over(tmp_path: Path) -> None:
    first = cases.train(tmp_path)
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(TrainingError, match="already"):
        cases.train(tmp_path)
    assert (tmp_path / STATE).read_bytes() == before
    assert len(first.epochs) == 3


@pytest.mark.parametrize(
    ("changes", "sizes", "named"),
    [
        ({"lr": 1e-3}, {}, r"recipe\.lr was 0\.003 and is 0\.001"),
        ({"augment": Augment(flip=True)}, {}, r"recipe\.augment\.flip was False and is True"),
        ({"epochs": 4}, {}, r"recipe\.epochs"),
        ({}, {"width": 24}, r"model\.width was 20 and is 24"),
        ({"unfreeze_last": 1}, {}, r"recipe\.unfreeze_last"),
    ],
)
def test_other_settings_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sizes: dict[str, Any], named: str
) -> None:
    cases.train(tmp_path, cases.recipe(epochs=1, warmup=0.5))
    other = cases.recipe(**{"epochs": 1, "warmup": 0.5, **changes})
    with pytest.raises(TrainingError, match=named):
        cases.train(tmp_path, other, sizes=sizes, resume=True)


def test_other_data_and_other_frozen_weights_are_refused(tmp_path: Path) -> None:
    frozen = cases.recipe(epochs=1, warmup=0.5, unfreeze_last=1)
    cases.train(tmp_path, frozen)
    data = cases.data(seed=1)
    with pytest.raises(TrainingError, match="data was"):
        Trainer(cases.model(data), data, frozen, tmp_path, device="cpu", resume=True, progress=False).run()
    data = cases.data()
    with pytest.raises(TrainingError, match="frozen was"):
        Trainer(cases.model(data, 1), data, frozen, tmp_path, device="cpu", resume=True, progress=False).run()


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "foreign"])
def test_a_damaged_state_is_refused_in_words(tmp_path: Path, damage: str) -> None:
    cases.train(tmp_path, cases.recipe(epochs=1, warmup=0.5))
    path = tmp_path / STATE
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "foreign":
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(2)}, path)
    else:
        path.write_bytes(b"" if damage == "empty" else b"hello there, this is no state at all")
    with pytest.raises(TrainingError, match="no state of a training"):
        cases.train(tmp_path, cases.recipe(epochs=1, warmup=0.5), resume=True)


# ---- the file


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5).mT, "b": torch.tensor(7.0), "c": torch.arange(5).bfloat16()}
    progress = Progress(step=3, rows=({"epoch": 1, "loss": 0.1},), seconds=1.5, scaler={"scale": 2.0})
    settings = {"recipe": {"lr": 0.1, "betas": (0.9, 0.99)}, "none": None}
    save_state(tmp_path / "s", tensors, progress, settings)
    back, told = load_state(tmp_path / "s", settings)
    assert told == progress
    for name, one in tensors.items():
        assert back[name].equal(one)
        assert back[name].dtype == one.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    reference = tmp_path / "as others"
    reference.touch()
    assert (tmp_path / "s").stat().st_mode == reference.stat().st_mode
    with pytest.raises(TrainingError, match=r"recipe\.lr was 0\.1 and is 0\.2; z was None and is 1"):
        load_state(tmp_path / "s", {"recipe": {"lr": 0.2, "betas": (0.9, 0.99)}, "z": 1})


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is none from before"):
        save_state(tmp_path / "nowhere" / "s", {"a": torch.zeros(2)}, Progress(), {})


def test_what_is_saved_is_all_that_is_needed(tmp_path: Path, whole: Outcome) -> None:
    """The weights in a finished state are those of the model, its running mean included."""
    outcome = cases.train(tmp_path, cases.recipe(**FULL))
    tensors, progress = load_state(tmp_path / STATE, json.loads(json.dumps(settings_of(outcome))))
    assert progress.step == 18
    for name, one in outcome.model.named_parameters():
        assert tensors[f"average.{name}"].equal(one)
        assert not tensors[f"weights.{name}"].equal(one)
    assert fingerprint(outcome.model) == fingerprint(whole.model)


def settings_of(outcome: Outcome) -> dict[str, Any]:
    data = cases.data()
    return {
        "recipe": outcome.recipe.to_dict(),
        "model": outcome.model.config.to_dict(),
        "preprocess": data.preprocess(cases.MEAN, cases.STD).to_dict(),
        "labels": list(data.labels),
        "data": data.fingerprint,
        "frozen": None,
        "teacher": None,
    }
