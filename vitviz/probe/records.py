"""Results on disk, a line of JSON each: written as they come, read again after a stop, shared between processes.

A file begins with a line that holds the settings; results of other settings are refused, not mixed. Lines are appended
whole and flushed, so that a process that is killed leaves at most one broken line, the last.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from vitviz.probe import ProbeError

Record = Mapping[str, Any]
Key = tuple[str, str]
"""An image, CLASS/NAME, and a method."""

FORMAT = "vitviz faithfulness 1"
PATIENCE = timedelta(days=7)  # how long a process waits for the others to finish their images


class Journal:
    """The file of one process. Others may read it at any time.

    Args:
        path: where to write; made if it is not there, continued if it is.
        settings: plain data that results depend on.

    Raises:
        ProbeError: if there is a file that was made with other settings, or is no such file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        header = _line({"format": FORMAT, "settings": settings})
        start = read(path, settings)[1] if path.exists() else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if start:
            os.truncate(path, start)  # what a killed process left of its last line
        else:
            path.write_bytes(header)

    def add(self, records: Iterable[Record]) -> None:
        """Append records, all of them in one piece, and wait until they are on disk."""
        data = b"".join(map(_line, records))
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            written = os.write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        if written != len(data):
            raise ProbeError(f"Expected to write {len(data)} bytes to {self.path}, wrote {written}. Is the disk full?")


def read(path: Path, settings: Mapping[str, Any]) -> tuple[dict[Key, Record], int]:
    """The results in a file, and how many of its bytes are whole lines.

    Raises:
        ProbeError: if it was made with other settings, or is no such file.
    """
    data = path.read_bytes()
    header = _line({"format": FORMAT, "settings": settings})
    end = data.rfind(b"\n") + 1
    if end == 0 and header.startswith(data):
        return {}, 0  # empty, or a process that was killed before it had written the first line
    lines = data[:end].decode("utf-8", errors="replace").splitlines()
    first = _parse(lines[0]) if lines else None
    if first is None or first.get("format") != FORMAT or not isinstance(first.get("settings"), dict):
        raise ProbeError(
            f"Expected {str(path)!r} to be a file of results to go on with, but it is something else. "
            "Name another file."
        )
    _same(path, first["settings"], json.loads(json.dumps(settings)))
    records: dict[Key, Record] = {}
    for number, line in enumerate(lines[1:], 2):
        record = _parse(line)
        if record is None or not isinstance(record.get("image"), str) or not isinstance(record.get("method"), str):
            raise ProbeError(
                f"Expected results in {str(path)!r}, but line {number} is none. Remove that line: it is made again."
            )
        records[record["image"], record["method"]] = record
    return records, end


def write(path: Path, settings: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write a whole file at once, in order; then remove those of processes, which are in it.

    At any time there is the old file or the new one.
    """
    ordered = sorted(records, key=lambda record: (record["image"], record["method"]))
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(b"".join(map(_line, [{"format": FORMAT, "settings": settings}, *ordered])))
    os.replace(beside, path)
    for file in parts(path):
        file.unlink(missing_ok=True)


def part(path: Path, rank: int) -> Path:
    """The file of one of several processes: results.jsonl -> results.rank3.jsonl."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def parts(path: Path) -> list[Path]:
    """The files of processes that there are beside a file."""
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.rank*{glob.escape(path.suffix)}"))


def known(path: Path, settings: Mapping[str, Any]) -> dict[Key, Record]:
    """All results that are on this machine: in the file, and in those of each process."""
    records: dict[Key, Record] = {}
    for file in [*([path] if path.exists() else []), *parts(path)]:
        records |= read(file, settings)[0]
    return records


def processes() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun says (RANK, WORLD_SIZE); 0 and 1 without it.

    Raises:
        ProbeError: for numbers that make no sense.
    """
    rank, world = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if not (rank.isdigit() and world.isdigit() and int(rank) < int(world)):
        raise ProbeError(f"Expected RANK below WORLD_SIZE, as torchrun sets them; got {rank!r} and {world!r}.")
    return int(rank), int(world)


Gather = Callable[[Iterable[Record]], list[Record]]


@contextmanager
def together(world: int) -> Iterator[Gather]:
    """A function that gives the records of all processes to each of them, and waits for the last.

    They travel as JSON: no objects are unpacked that came over a network.
    """
    if world == 1:
        yield list
        return
    import torch.distributed as dist

    began = not dist.is_initialized()
    if began:
        dist.init_process_group("gloo", timeout=PATIENCE)
    group = dist.group.WORLD if began else dist.new_group(backend="gloo", timeout=PATIENCE)

    def gather(records: Iterable[Record]) -> list[Record]:
        data = torch.frombuffer(bytearray(b"\n" + b"".join(map(_line, records))), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
        longest = int(torch.cat(sizes).max())
        every = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
        dist.all_gather(every, torch.nn.functional.pad(data, (0, longest - len(data))), group=group)
        texts = [one[: int(size)].numpy().tobytes().decode() for one, size in zip(every, sizes, strict=True)]
        return [json.loads(line) for text in texts for line in text.splitlines() if line]

    try:
        yield gather
    finally:
        if began:
            dist.destroy_process_group()


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _parse(line: str) -> dict[str, Any] | None:
    """A line as an object; `None` if it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to go on with a file of other settings, and say which."""
    different = [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if different:
        raise ProbeError(
            f"Expected to go on with {str(path)!r}, but it was made with other settings: {'; '.join(different)}. "
            "Ask with the same ones, or name another file."
        )
