"""Answers for every image of a split, computed once and kept in a file: written in order, gone on with after a stop.

The file is NumPy's own (.npy), one row an image, mapped into memory and not read whole. While it is made it is called
.part, and its length says how far it has come: whoever kills the process loses a batch at most. Its name holds a hash
of all that the numbers depend on, so that a file of other weights or other images is another file.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitviz.folders import show
from vitviz.training import TrainingError
from vitviz.training.data import Split
from vitviz.training.parallel import alone

FORMAT = "vitviz rows 1"
SYNCED = 2**28  # bytes: after so many, what was written is waited for
LEAST_FREE = 2**26  # bytes of a disk that are left to others
_KINDS: dict[torch.dtype, npt.DTypeLike] = {torch.float16: np.float16, torch.float32: np.float32}
_LOOKED_AT = 16  # images whose pixels are hashed


@dataclass(frozen=True, eq=False)
class Rows:
    """One row for each image of a split, on disk.

    Args:
        path: the file.
        size: (height, width) in pixels of the images that they were computed from.
        array: (n, N, D) or (n, R), mapped from the file.
    """

    path: Path
    size: tuple[int, int]
    array: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.array)

    @property
    def bytes(self) -> int:
        """How long the rows are on disk."""
        return int(self.array.nbytes)

    def read(self, indices: Tensor) -> Tensor:
        """Some rows, float32: image numbers (k,) -> (k, N, D), or (k, R). In memory only these are held."""
        order = np.argsort(numbers := indices.cpu().numpy(), kind="stable")
        rows = np.empty((len(numbers), *self.array.shape[1:]), np.float32)
        rows[order] = self.array[numbers[order]]  # in the order in which they lie on the disk
        return torch.from_numpy(rows)


def open_rows(
    compute: Callable[[Tensor], Tensor],
    made_by: Mapping[str, Any],
    split: Split,
    size: tuple[int, int],
    folder: Path,
    *,
    name: str,
    dtype: torch.dtype,
    batch: int,
    progress: bool,
) -> Rows:
    """The rows of every image of a split; what is not in the file yet is computed.

    Of several processes that ask for the same file one computes and the others wait for it (on Windows each computes,
    so there only one may ask).

    Args:
        compute: pixels (k, 3, H, W) uint8 -> rows (k, ...).
        made_by: plain data on which the rows depend beside the images.
        split: the images, at `size`, (height, width) in pixels.
        folder: of the file; made where it is missing.
        name: first part of the file's name.
        dtype: float16 or float32.
        batch: images at once.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        TrainingError: if the disk is full, a row is not finite in `dtype`, or there are no images.
    """
    if dtype not in _KINDS:
        raise TrainingError(f"Expected rows to be kept in float16 or float32, got {dtype}.")
    if batch < 1 or not len(split):
        raise TrainingError(f"Expected images, and at least one at once; got {len(split)} and {batch} at once.")
    facts = {"format": FORMAT, "by": made_by, "images": images_key(split, size), "dtype": str(dtype)}
    key = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=10).hexdigest()
    path = folder / f"{name}-{key}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with alone(path.with_suffix(".lock")):
            if not path.exists():  # another process may have made it meanwhile
                _fill(compute, split, size, path, dtype, batch, name if progress else "")
    return Rows(path, size, np.load(path, mmap_mode="r", allow_pickle=False))


def images_key(split: Split, size: tuple[int, int]) -> str:
    """The images of a split as a few letters: their files (name, length, time of the last change) or their pixels.

    The pixels of some are looked at in any case: another way to decode or to scale them is another key.
    """
    digest = hashlib.blake2b(json.dumps([len(split), size, split.preprocess.to_dict()]).encode(), digest_size=10)
    if split.paths is not None:
        for path in split.paths:
            stat = path.stat()
            line = f"{path.parent.name}/{path.name} {stat.st_size} {stat.st_mtime_ns}\n"
            digest.update(line.encode(errors="surrogateescape"))
    elif (held := split.origin if split.images is None else split.images) is not None:
        digest.update(held.contiguous().numpy().data)
    some = torch.linspace(0, len(split) - 1, min(_LOOKED_AT, len(split))).long()
    digest.update(split.pixels(some, size).contiguous().numpy().data)
    return digest.hexdigest()


def _fill(
    compute: Callable[[Tensor], Tensor],
    split: Split,
    size: tuple[int, int],
    path: Path,
    dtype: torch.dtype,
    batch: int,
    words: str,
) -> None:
    """Compute what `path` lacks, then give the file its name."""
    part = path.with_suffix(".part")
    shape = _shape(compute, split, size)
    header = _header(shape, dtype)
    row = math.prod(shape[1:]) * dtype.itemsize
    # Whole batches stay, so that a run that was stopped leaves the same numbers as one that was not.
    done = _whole_rows(part, header, row) // batch * batch
    _need_room(path, (shape[0] - done) * row)
    try:
        with part.open("r+b" if done else "wb") as file:
            if not done:
                file.write(header)
            file.truncate(len(header) + done * row)
            file.seek(0, os.SEEK_END)
            _write(file, compute, split, size, range(done, shape[0], batch), dtype, words)
            _sync(file)
    except OSError as error:
        raise TrainingError(
            f"{str(part)!r} could not be written: {error}. Make room and start again: what is there is kept."
        ) from error
    os.replace(part, path)


def _write(
    file: IO[bytes],
    compute: Callable[[Tensor], Tensor],
    split: Split,
    size: tuple[int, int],
    starts: range,
    dtype: torch.dtype,
    words: str,
) -> None:
    """Rows of the images from `starts` on, one batch after the other; the next one's pixels are read meanwhile."""
    count, batch = len(split), starts.step
    began, unsynced = time.monotonic(), 0

    def pixels(start: int) -> Tensor:
        return split.pixels(torch.arange(start, min(start + batch, count)), size)

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(pixels, starts[0]) if len(starts) else None
        for start in starts:
            assert coming is not None
            now = coming.result()
            if start + batch < count:
                coming = reader.submit(pixels, start + batch)
            rows = compute(now).to("cpu", dtype).contiguous()
            if not bool(rows.isfinite().all()):
                raise TrainingError(
                    f"The rows of images {start} to {start + len(rows) - 1} are not finite in {dtype}: they are "
                    "too large for it, or the weights are at fault. With --freeze none nothing is kept."
                )
            file.write(rows.numpy().data)
            file.flush()
            unsynced += rows.nbytes
            if unsynced >= SYNCED:
                _sync(file)
                unsynced = 0
            if words:
                done = start + len(now)
                rate = (done - starts[0]) / max(time.monotonic() - began, 1e-9)
                show(f"\r{words}: {done:,} of {count:,} images, {rate:,.1f}/s, {(count - done) / rate:,.0f} s left  ")
    if words:
        show("\n")


def _shape(compute: Callable[[Tensor], Tensor], split: Split, size: tuple[int, int]) -> tuple[int, ...]:
    """The shape of all rows together, by asking for one: (n, N, D) or (n, R)."""
    return len(split), *compute(split.pixels(torch.zeros(1, dtype=torch.long), size)).shape[1:]


def _header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """The first bytes of an .npy file of such an array: always the same."""
    made = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(_KINDS[dtype])),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(made, described)
    return made.getvalue()


def _whole_rows(part: Path, header: bytes, row: int) -> int:
    """How many whole rows are in an unfinished file; 0 if there is none, or it was stopped in its header."""
    try:
        with part.open("rb") as file:
            if file.read(len(header)) != header:
                return 0
        return (part.stat().st_size - len(header)) // row
    except FileNotFoundError:
        return 0


def _need_room(path: Path, wanted: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    free = shutil.disk_usage(path.parent).free - LEAST_FREE
    if wanted <= free:
        return
    others = [one for one in path.parent.glob("*-*.*") if one.suffix in (".npy", ".part") and one.stem != path.stem]
    held = sum(one.stat().st_size for one in others)
    raise TrainingError(
        f"Expected {wanted / 1e9:,.2f} GB of room for {path.name} in {str(path.parent)!r}, there are "
        f"{max(0, free) / 1e9:,.2f} GB. Make room, choose another folder, or train fewer blocks."
        + (f" {len(others)} other files of rows lie there ({held / 1e9:,.2f} GB); old ones can go." if others else "")
    )


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
