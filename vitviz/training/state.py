"""Save and load the state of a training run: Accelerate's state, progress and settings.

Each state is a folder that is written under a temporary name and then renamed, so a complete state always exists.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitviz.extras import extra
from vitviz.training import TrainingError

with extra("train"):
    from accelerate import Accelerator

STATES = "state"
_PROGRESS, _UNFINISHED = "progress.json", "unfinished"


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
        TrainingError: if the state cannot be written; the previous state is kept.
    """
    folder, unfinished = out / STATES / f"step-{progress.step:09d}", out / STATES / _UNFINISHED
    if folder.exists():
        return
    try:
        if accelerator.is_main_process:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            text = json.dumps({"settings": settings, "progress": vars(progress)})
            (unfinished / _PROGRESS).write_text(text, encoding="utf-8")
        accelerator.wait_for_everyone()
        accelerator.save_state(str(unfinished))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            for path in unfinished.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())  # files are complete even after a power failure
            os.replace(unfinished, folder)
            for other in {*(out / STATES).glob("step-*")} - {folder}:
                shutil.rmtree(other, ignore_errors=True)
        accelerator.wait_for_everyone()  # otherwise one process could find an older state
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
        shutil.rmtree(unfinished, ignore_errors=True)
        raise TrainingError(
            f"Expected room for the state in {str(out)!r}, got: {error}. The last one is in {str(find_state(out))!r}. "
            "Make room for two states, then continue with --resume."
        ) from error


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
    if differences := [*_differences(saved, json.loads(json.dumps(settings)))]:
        raise TrainingError(
            f"Expected the settings of the training in {str(folder.parent.parent)!r}, got others: "
            f"{'; '.join(differences[:5])}{f' and {len(differences) - 5} more' if len(differences) > 5 else ''}. "
            "Continue with the same settings, or train in another folder."
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


def _differences(saved: Any, current: Any, name: str = "") -> Iterator[str]:
    """Yield the differences between two plain data structures."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(set(saved) | set(current)):
            yield from _differences(saved.get(key), current.get(key), f"{name}.{key}" if name else key)
    elif saved != current:
        yield f"{name} was {saved!r:.60} and is {current!r:.60}"
