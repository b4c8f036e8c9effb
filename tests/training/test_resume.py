"""A training that ended early goes on to the losses of one that never stopped; what does not fit is refused."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import training_cases as cases

from vitviz.training import TrainingError
from vitviz.training.interrupts import Stopped
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.state import find_state

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def pythons_own_ctrl_c() -> Iterator[None]:
    """A worker of pytest-xdist is deaf to Ctrl-C: the process that started it hears it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    """As a person presses it: Python looks at a signal some instructions later, and two before that count as one."""
    handler = signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    for _ in range(5000):  # the first one puts another handler in place, the second one raises here
        if signal.getsignal(signal.SIGINT) is not handler:
            return
        time.sleep(0.001)


def die() -> None:
    raise MemoryError


def resumed(out: Path) -> Outcome:
    return cases.train(out, cases.recipe(**cases.FULL), resume=True)


def test_a_training_resumes_wherever_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pythons_own_ctrl_c: None
) -> None:
    recipe = cases.recipe(**cases.FULL)
    whole = cases.train(tmp_path / "whole", recipe)
    undo = cases.at_step(1, lambda: pytest.fail("there was nothing left to do"))
    cases.assert_same(cases.train(tmp_path / "whole", recipe, resume=True), whole)  # a finished one is told again
    undo()

    out = tmp_path / "crashed"
    undo = cases.at_step(10, die)
    with pytest.raises(MemoryError):
        cases.train(out, recipe, save_every=0)
    undo()
    assert cases.step_of(out) == 9  # in the middle of the second epoch of 6 steps
    (out / "state" / "unfinished").mkdir()  # as if it had died while it wrote the next one
    (out / "state" / "unfinished" / "model.safetensors").write_bytes(b"half")
    cases.assert_same(resumed(out), whole)
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
    outcome = resumed(out)
    cases.assert_same(outcome, whole)
    assert outcome.epochs[1].images_per_second > 0


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({"unfreeze_last": 1}, {4: "step 4 of 6 in epoch 1", 9: "step 3 of 6 in epoch 2"}),
        ({"precision": "bfloat16"}, {4: "step 4 of 6 in epoch 1", 9: "step 3 of 6 in epoch 2"}),
        ({"accumulate": 2, "balance": 0.5}, {2: "step 2 of 6 in epoch 1", 5: "step 5 of 6 in epoch 1"}),
    ],
)
def test_other_kinds_of_training_resume_after_ctrl_c(
    tmp_path: Path, changes: dict[str, Any], stops: dict[int, str], pythons_own_ctrl_c: None
) -> None:
    recipe = cases.recipe(dropout=0.2, epochs=2, **changes)
    expected = cases.train(tmp_path / "whole", recipe)
    for part, (done, place) in zip((4, 5), stops.items(), strict=True):  # stopped twice; parts of steps are counted
        undo = cases.at_step(part, ctrl_c)
        with pytest.raises(Stopped, match=f"{place} of 2.*--resume"):
            cases.train(tmp_path / "part", recipe, resume=True)
        undo()
        assert cases.step_of(tmp_path / "part") == done  # the step that ran is finished
    cases.assert_same(cases.train(tmp_path / "part", recipe, resume=True), expected)


def test_a_second_ctrl_c_acts_at_once(tmp_path: Path, pythons_own_ctrl_c: None) -> None:
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
    """A finished training of one epoch."""
    out = tmp_path_factory.mktemp("done")
    cases.train(out, cases.recipe(**SHORT))
    return out


def test_a_training_is_not_written_over_nor_resumed_with_other_settings(done: Path) -> None:
    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (done / "state").rglob("*") if path.is_file()}

    before = state()
    with pytest.raises(TrainingError, match="--resume"):
        cases.train(done, cases.recipe(**SHORT))
    for changes, sizes, named in (
        ({"lr": 1e-3}, {}, r"recipe\.lr was 0\.003 and is 0\.001"),
        ({"epochs": 4}, {}, r"recipe\.epochs"),
        ({"unfreeze_last": 2}, {}, r"recipe\.unfreeze_last"),
        ({}, {"width": 24}, r"model\.width was 20 and is 24"),
        ({}, {"seed": 1}, "frozen was"),
    ):
        with pytest.raises(TrainingError, match=named):
            cases.train(done, cases.recipe(**SHORT | changes), sizes=sizes, resume=True)
    data = cases.data(seed=1)
    with pytest.raises(TrainingError, match="data was"):
        Trainer(cases.model(data), data, cases.recipe(**SHORT), done, device="cpu", resume=True, progress=False).run()
    assert state() == before


def test_a_damaged_or_old_state_is_refused(done: Path, tmp_path: Path) -> None:
    for name in ("progress.json", "model.safetensors", "optimizer.bin"):
        path = find_state(done) / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-100])
        with pytest.raises(TrainingError, match="Remove it to begin anew"):
            cases.train(done, cases.recipe(**SHORT), resume=True)
        path.write_bytes(whole)
    (tmp_path / "state.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match=r"0\.1\.0"):
        cases.train(tmp_path, resume=True)
