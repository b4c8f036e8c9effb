"""Save and load the state of a training run: Accelerate's state, progress and settings.

Each state is a folder that replaces the previous one when it is complete.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitviz.extras import extra
from vitviz.fields import differences
from vitviz.formatting import abbreviate
from vitviz.training import TrainingError
from vitviz.writing import WritingError, full_disk_explained, replacing

with extra("train"):
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list

STATES = "state"
_PROGRESS = "progress.json"


@dataclass(kw_only=True)
class Progress:
    """Counters and log of a training run.

    Args:
        step: completed steps over all epochs.
        losses, right: mean loss and accuracy of each step.
        epochs: log entries of validated epochs.
        seconds: total time over all sessions.
        epoch_seconds: time of the unfinished epoch.
        training_seconds: time spent on steps.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    training_seconds: float = 0.0


def save_state(accelerator: Accelerator, out: Path, progress: Progress, settings: Mapping[str, Any]) -> None:
    """Save the state of all processes and remove older states; all processes must call this.

    Raises:
        WritingError: if the disk is full; the previous state is kept.
    """
    folder, is_first = out / STATES / f"step-{progress.step:09d}", accelerator.is_main_process
    if folder.exists():
        return
    with ExitStack() as stack:
        place = [""]
        if is_first:
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside = stack.enter_context(replacing(folder, folder=True))
            text = json.dumps({"settings": settings, "progress": vars(progress)})
            (beside / _PROGRESS).write_text(text, encoding="utf-8")
            place = [str(beside)]
        accelerator.save_state(broadcast_object_list(place)[0])
        accelerator.wait_for_everyone()
    if is_first:
        for other in {*folder.parent.glob("step-*")} - {folder}:
            shutil.rmtree(other, ignore_errors=True)
    accelerator.wait_for_everyone()  # otherwise one process could find an older state


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say how a training run continues after the error of a full disk.

    Raises:
        TrainingError: if the disk is full; the last state is kept.
    """
    try:
        with full_disk_explained(out):
            yield
    except WritingError as error:
        state = find_state(out)
        last = f"The last state is in {str(state)!r}: continue with --resume" if state else "No state was saved yet"
        raise TrainingError(f"Expected a disk with room for the training, got: {error} {last}.") from error


def find_state(out: Path, *, resume: bool = True) -> Path | None:
    """Return the folder of the last complete state, or `None`.

    Raises:
        TrainingError: if a state exists without `resume`.
    """
    folder = max((out / STATES).glob("step-*"), default=None)
    if folder and not resume:
        raise TrainingError(
            f"Expected a folder without a training run, got one in {str(out)!r}. Continue it (--resume), or choose "
            "another folder."
        )
    return folder


def read_progress(folder: Path, settings: Mapping[str, Any]) -> Progress:
    """Return the progress of a saved training run.

    Raises:
        TrainingError: if the state is damaged, or its settings differ (the message lists them).
    """
    try:
        facts = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        progress, saved = Progress(**facts["progress"]), facts["settings"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"Expected a state in {str(folder)!r}, got: {error}. Remove it to start again.") from error
    if changes := [*differences(saved, json.loads(json.dumps(settings)))]:
        raise TrainingError(
            f"Expected the settings of the training in {str(folder.parent.parent)!r}, got others: "
            f"{abbreviate(changes, 5)}. Continue with the same settings, or train in another folder."
        )
    return progress


def load_state(accelerator: Accelerator, folder: Path) -> None:
    """Load a state into the accelerator's objects; all processes must call this.

    Raises:
        TrainingError: if the state is damaged.
    """
    try:
        accelerator.load_state(str(folder))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise TrainingError(f"Expected a state in {str(folder)!r}, got: {error}. Remove it to start again.") from error
