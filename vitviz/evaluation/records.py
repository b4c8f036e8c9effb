"""Store results of an evaluation as JSON lines: the settings, then a row for each task, image and method.

Rows are appended, also by several processes. A row that is broken, because its process was killed, is computed again;
of several rows for one task, image and method, the last one counts.
"""

import atexit
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from vitviz.errors import VitvizError
from vitviz.evaluation import EvaluationError
from vitviz.extras import extra
from vitviz.fields import differences
from vitviz.formatting import abbreviate
from vitviz.writing import full_disk_explained, write

Record = Mapping[str, Any]
Key = tuple[str, str, str]
"""Key of a record: task, image (such as its path below the folder) and method."""

FORMAT = "vitviz evaluation 2"
KEYS = ("task", "image", "method")
TIMEOUT = timedelta(days=7)  # maximum wait for other processes


def read(path: Path, settings: Mapping[str, Any]) -> dict[Key, Record]:
    """Return the records of a file; create the file if it is missing or empty.

    Raises:
        EvaluationError: if the file has other settings or another format.
    """
    if not path.exists() or not path.stat().st_size:
        rewrite(path, settings, [])
    data = path.read_bytes()
    first, *rows = map(_parse, data.split(b"\n"))
    if first.get("format") != FORMAT or not isinstance(first.get("settings"), dict):
        raise EvaluationError(
            f"Expected {str(path)!r} to be a file of records to continue, got something else. Name another file."
        )
    current = json.loads(json.dumps(settings))
    headers = [row["settings"] for row in (first, *rows) if isinstance(row.get("settings"), dict)]  # several, if joined
    saved = next((other for other in headers if other != current), current)
    if changes := [*differences(saved, current)]:
        raise EvaluationError(
            f"Expected {str(path)!r} to have these settings, got others: {abbreviate(changes, 5)}. Use the same "
            "or name another file."
        )
    complete = [row for row in rows if all(isinstance(row.get(name), str) for name in KEYS)]
    records: dict[Key, Record] = {key_of(row): row for row in complete}
    if not data.endswith(b"\n"):  # a killed process left a part of a row
        rewrite(path, settings, records.values())
    return records


def append(path: Path, records: Iterable[Record]) -> None:
    """Append records in one write, and wait until they are on disk.

    Raises:
        WritingError: if the disk is full.
    """
    with full_disk_explained(path), path.open("ab") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())


def rewrite(path: Path, settings: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write the settings and the sorted records."""
    write(path, _lines([{"format": FORMAT, "settings": settings}, *sorted(records, key=key_of)]))


def key_of(record: Record) -> Key:
    """Return the key of a record."""
    task, image, method = (record[name] for name in KEYS)
    return task, image, method


@contextmanager
def opened(path: Path, settings: Mapping[str, Any]) -> Iterator[dict[Key, Record]]:
    """Yield the records of a file, and hold its lock, so that two runs do not compute the same rows.

    Under torchrun, the first process opens the file before the others, and holds the lock for all. The system frees the
    lock of a process that has ended. On file systems without locks, the file is opened without one.

    Raises:
        EvaluationError: in every process, if another run holds the lock, or as for `read`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_first, problems, records = processes()[0] == 0, list[Record](), dict[Key, Record]()
    with ExitStack() as stack:
        if is_first:
            try:
                stack.enter_context(_locked(path))
                records = read(path, settings)
            except VitvizError as error:
                problems = [{"text": str(error)}]
        for problem in gather(problems):
            raise EvaluationError(problem["text"])
        yield records if is_first else read(path, settings)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file while the block runs, so that no other process writes to it."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise EvaluationError(
            f"Expected to write {str(path)!r} alone, got another process that writes it too. Wait for it, or name "
            "another file."
        ) from None
    except (OSError, NotImplementedError):  # a file system without locks, such as a network drive: evaluate anyway
        pass
    try:
        yield
    finally:
        if lock.is_locked:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


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


def _parse(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty one if it is invalid."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
