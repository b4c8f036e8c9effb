"""Store records as JSON lines, which survive interruptions and are shared between processes.

The first line holds the settings; a file with other settings raises an error. Whole lines are appended and flushed, so
a killed process leaves at most one broken line at the end.
"""

import atexit
import glob
import json
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from vitviz.evaluation import EvaluationError
from vitviz.extras import extra

Record = Mapping[str, Any]
Key = tuple[str, str]
"""Key of a record: image (CLASS/NAME) and method."""

FORMAT = "vitviz faithfulness 1"
TIMEOUT = timedelta(days=7)  # maximum wait for other processes


class Journal:
    """File of one process, which other processes can read at any time.

    Args:
        path: file to create or continue.
        settings: plain data that records depend on.

    Raises:
        EvaluationError: if the file has other settings or another format.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        start = read(path, settings)[1] if path.exists() else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if start:
            os.truncate(path, start)  # drops a broken last line
        else:
            path.write_bytes(_lines([{"format": FORMAT, "settings": settings}]))

    def add(self, records: Iterable[Record]) -> None:
        """Append records in one write, and wait until they are on disk."""
        data = _lines(records)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            written = os.write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        if written != len(data):
            raise EvaluationError(f"Expected to write {len(data)} bytes to {self.path}, got {written}. Free some disk.")


def read(path: Path, settings: Mapping[str, Any]) -> tuple[dict[Key, Record], int]:
    """Return the records in a file, and the number of bytes of complete lines.

    Raises:
        EvaluationError: if the file has other settings or another format.
    """
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end == 0 and _lines([{"format": FORMAT, "settings": settings}]).startswith(data):
        return {}, 0  # empty, or the process was killed while writing the first line
    header, *lines = data[:end].decode("utf-8", errors="replace").splitlines() or [""]
    first = _parse(header)
    if first.get("format") != FORMAT or not isinstance(first.get("settings"), dict):
        raise EvaluationError(
            f"Expected {str(path)!r} to be a file of records to continue, got something else. Name another file."
        )
    saved, current = first["settings"], json.loads(json.dumps(settings))
    if different := [name for name in sorted({*saved, *current}) if saved.get(name) != current.get(name)]:
        changes = "; ".join(f"{name} was {saved.get(name)!r} and is {current.get(name)!r}" for name in different)
        raise EvaluationError(
            f"Expected {str(path)!r} to have these settings, got others: {changes}. Use the same or name another file."
        )
    records: dict[Key, Record] = {}
    for number, line in enumerate(lines, 2):
        record = _parse(line)
        if not isinstance(record.get("image"), str) or not isinstance(record.get("method"), str):
            raise EvaluationError(
                f"Expected records in {str(path)!r}, got none in line {number}. Remove that line to compute it again."
            )
        records[record["image"], record["method"]] = record
    return records, end


def read_all(path: Path, settings: Mapping[str, Any]) -> dict[Key, Record]:
    """Return all records on this machine, from the file and from all processes' files."""
    records: dict[Key, Record] = {}
    for file in [*([path] if path.exists() else []), *rank_files(path)]:
        records |= read(file, settings)[0]
    return records


def write(path: Path, settings: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write a sorted file atomically; then remove the processes' files, whose records it contains.

    Either the old or the new file exists at any time.
    """
    ordered = sorted(records, key=lambda record: (record["image"], record["method"]))
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(_lines([{"format": FORMAT, "settings": settings}, *ordered]))
    os.replace(beside, path)
    for file in rank_files(path):
        file.unlink(missing_ok=True)


def rank_file(path: Path, rank: int) -> Path:
    """Return the file of one of several processes: results.jsonl -> results.rank3.jsonl."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def rank_files(path: Path) -> list[Path]:
    """Return the existing files of processes for a results file."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.rank*{glob.escape(path.suffix)}"))


def processes() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, as set by torchrun (RANK, WORLD_SIZE), or 0 and 1.

    Raises:
        EvaluationError: for invalid numbers.
    """
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdigit() and world.isdigit() and int(rank) < int(world)):
        raise EvaluationError(f"Expected RANK below WORLD_SIZE, got {rank!r} and {world!r}. Start it by torchrun.")
    return int(rank), int(world)


def gather(records: Iterable[Record]) -> list[Record]:
    """Gather the records of all processes; blocks until all processes have called it."""
    if processes()[1] == 1:
        return list(records)
    with extra("train"):
        from accelerate import PartialState
        from accelerate.utils import gather_object

    is_joined = torch.distributed.is_initialized()
    PartialState(cpu=True, timeout=TIMEOUT)  # initialises the process group if necessary
    if not is_joined:  # a group that exists at interpreter exit may abort the process
        atexit.register(torch.distributed.destroy_process_group)
    gathered: list[Record] = gather_object([*records])
    return gathered


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join((json.dumps(record, allow_nan=False) + "\n").encode() for record in records)


def _parse(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty one if it is invalid."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
