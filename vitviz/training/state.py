"""The state of a training as one file: written beside its place, then moved there, so that a good one is always there.

A safetensors file. Its metadata hold what is no tensor, as JSON: the settings that all results depend on, the position,
the log. Random numbers need no state: they are functions of the seed and the position.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitviz.training import TrainingError
from vitviz.weights.checks import CheckpointError, read_tensors

STATE = "state.safetensors"
FORMAT = "vitviz training 1"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is, beside its tensors.

    Args:
        step: steps that are done, through all epochs.
        rows: the log, one plain mapping for each epoch that was validated.
        seconds: that it took so far, over all sessions.
        epoch_seconds: of these, in the epoch that is not finished yet.
        training_seconds: of these, in steps.
        sessions: how often it was started.
        scaler: of float16's loss scale; empty otherwise.
    """

    step: int = 0
    rows: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    training_seconds: float = 0.0
    sessions: int = 1
    scaler: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Progress:
        """What `dataclasses.asdict` made plain, also by way of JSON."""
        return cls(**{**data, "rows": tuple(data["rows"])})


def save_state(path: Path, tensors: Mapping[str, Tensor], progress: Progress, settings: Mapping[str, Any]) -> None:
    """Replace the state. Whenever the process or the machine stops, the old one or the new one is there, whole.

    Raises:
        TrainingError: if it cannot be written; the old one stays.
    """
    beside = path.with_name(f"{path.name}.new")
    facts = {"format": FORMAT, "settings": settings, "progress": dataclasses.asdict(progress)}
    held = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    try:
        beside.touch()
        mode = beside.stat().st_mode  # what this user's files have; safetensors would keep others from reading
        save_file(held, beside, metadata={"vitviz": json.dumps(facts)})
        beside.chmod(mode)
        _sync(beside)
        os.replace(beside, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        size = sum(one.nbytes for one in held.values())
        kept = f"The last good one is still there, {_where(path)}." if path.exists() else "There is none from before."
        raise TrainingError(
            f"The state of {size / 1e6:,.1f} MB could not be written to {str(path)!r}: {error}. {kept} Make room for "
            "two of them, then go on with --resume."
        ) from error


def load_state(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], Progress]:
    """The state that `save_state` wrote.

    Args:
        path: the file.
        settings: those of now; a training goes on with the ones it began with.

    Raises:
        TrainingError: if it is damaged, no state, or of other settings; these are named.
    """
    facts = _facts(path)
    if differences := list(_differences(facts["settings"], json.loads(json.dumps(settings)))):
        raise TrainingError(
            f"{str(path)!r} is of a training with other settings: {'; '.join(differences[:5])}"
            f"{f' and {len(differences) - 5} more' if len(differences) > 5 else ''}. "
            "Go on with the same ones, or begin anew in another folder."
        )
    try:
        tensors = read_tensors(path)
    except CheckpointError as error:
        raise TrainingError(str(error)) from error
    return tensors, Progress.from_dict(facts["progress"])


def position(path: Path) -> int:
    """How many steps are done in a state."""
    return int(_facts(path)["progress"]["step"])


def _facts(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("vitviz", "")
        facts = json.loads(text)
    except (OSError, ValueError, SafetensorError) as error:
        raise TrainingError(
            f"{str(path)!r} is damaged or no state of a training ({error}). Take it away to begin anew."
        ) from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise TrainingError(
            f"{str(path)!r}: expected {FORMAT!r}, got something else. Resume with the version of vitviz that began it."
        )
    return facts


def _differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    """What differs between two pieces of plain data, in words."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(set(then) | set(now)):
            yield from _differences(then.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif then != now:
        yield f"{name} was {then!r:.60} and is {now!r:.60}"


def _where(path: Path) -> str:
    return f"after {position(path):,} steps"


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
