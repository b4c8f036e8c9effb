"""Write files and folders beside their targets, and move them there when they are complete.

An error, Ctrl-C or a full disk leaves what existed before. Everything that vitviz writes goes through `replacing`;
results that are appended to a file go through `full_disk_explained`.
"""

import csv
import errno
import io
import os
import platform
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitviz.errors import VitvizError
from vitviz.formatting import describe_bytes

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # no space, a limit of the size of a file, a quota
ESCAPED = "backslashreplace"  # error handler for what UTF-8 cannot encode
PROBE = 1 << 20  # bytes that are written to find out whether a disk is full
_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip


class WritingError(VitvizError):
    """Raised if a disk has no room for an output; `number` is the system's error."""

    number: int


@contextmanager
def replacing(path: str | os.PathLike[str], *, folder: bool = False, needed: int | None = None) -> Iterator[Path]:
    """Yield a path beside `path`, and move what was written there to `path` after the context.

    An existing file is replaced. The files of an existing folder are replaced one by one, in the order in which the new
    ones were written; its other files stay.

    Args:
        path: file or folder to write. Its own folder must exist.
        folder: whether it is a folder, which is created empty.
        needed: bytes that it takes, if that is known, for the error.

    Raises:
        WritingError: if the disk is full.
    """
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        yield Path(path)  # a device or a pipe, such as /dev/stdout
        return
    target = Path(os.path.realpath(path))  # the file that a link points to
    name = f"{platform.node()} {target.name}".encode(errors="surrogateescape")
    start = f".{zlib.crc32(name):08x}-"  # a name longer than the target's could exceed the limit of the file system
    for left in target.parent.glob(f"{start}*"):
        if not _is_running(left.name.removeprefix(start).partition(".")[0]):
            _remove(left)  # its process was killed
    beside = target.with_name(f"{start}{os.getpid()}.new{target.suffix}")  # encoders read the suffix
    try:
        with full_disk_explained(path, beside, needed):
            _remove(beside)
            try:
                beside.mkdir() if folder else beside.touch()
            except OSError as error:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from error
            mode = (target if target.exists() else beside).stat().st_mode
            yield beside
            beside.chmod(mode)  # safetensors creates files that only their owner can read
            for file in _files(beside):
                with file.open("rb+") as opened:
                    os.fsync(opened.fileno())  # reports a full disk now, and keeps the file after a power failure
            _move(beside, target)
    finally:
        _remove(beside)


def write(path: str | os.PathLike[str], content: str | bytes | Callable[[Path], object]) -> None:
    """Write a file with `replacing`: text as UTF-8, bytes, or what a function writes to the path that it gets.

    Bytes of file names that are not UTF-8 become escapes, as on a terminal.
    """
    data = content.encode(errors=ESCAPED) if isinstance(content, str) else content
    with replacing(path, needed=len(data) if isinstance(data, bytes) else None) as beside:
        if isinstance(data, bytes):
            beside.write_bytes(data)
        else:
            data(beside)


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to a .npz file without pickle."""
    import numpy as np  # slow to import

    with replacing(path) as beside, beside.open("wb") as file:  # for a file name, NumPy may append a suffix
        np.savez(file, **arrays)


def read_arrays(path: str | os.PathLike[str], names: Iterable[str], error: type[VitvizError]) -> dict[str, Any]:
    """Read arrays from an `.npz` file of `write_arrays`.

    Args:
        path: the file.
        names: names of the arrays to read.
        error: class of the error to raise.

    Raises:
        VitvizError: of class `error`, if the file is damaged or lacks an array.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except _UNREADABLE as reason:
        name = os.path.basename(os.fspath(path))
        raise error(f"Expected a .npz file that vitviz saved, got {name!r:.80} ({reason}). Save it again.") from reason


def write_table(path: str | os.PathLike[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as a CSV file."""
    write(path, csv_text(rows))


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextmanager
def full_disk_explained(
    path: str | os.PathLike[str], written: Path | None = None, needed: int | None = None
) -> Iterator[None]:
    """Turn the error of a full disk into a sentence that names the output and the space.

    Args:
        path: the output that the sentence names.
        written: temporary file or folder that is written, if it is another one.
        needed: bytes that the output takes, if that is known.

    Raises:
        WritingError: if the disk is full.
    """
    try:
        yield
    except Exception as error:
        written_files = _files(written) if written else []
        if (number := _full(error, written_files)) is None:
            raise
        place = next(parent for parent in Path(path).absolute().parents if parent.exists())
        free = shutil.disk_usage(place).free + sum(file.stat().st_size for file in written_files)
        size = "" if needed is None else f" ({describe_bytes(needed)})"
        full = WritingError(
            f"Expected room for {os.fspath(path)!r}{size}, got: {os.strerror(number)}. Its disk has "
            f"{describe_bytes(free)} left. Make room, or write to another disk."
        )
        full.number = number
        raise full from error


def _full(error: Exception, written: list[Path]) -> int | None:
    """Return the error number if a disk is full.

    Pillow, PyTorch and safetensors raise errors without it, so a little more is written to the last file.
    """
    if isinstance(error, VitvizError):  # of an output inside a temporary folder, which the sentence must not name
        return error.number if written and isinstance(error, WritingError) else None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in FULL else None
    try:
        for file in written[-1:]:
            with file.open("ab") as opened:
                opened.write(bytes(PROBE))
    except OSError as probed:
        return probed.errno if probed.errno in FULL else None
    return None


def _files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder in the order in which they were written."""
    files = (file for file in (path, *path.rglob("*")) if file.is_file())
    return sorted(files, key=lambda file: file.stat().st_mtime_ns)


def _move(beside: Path, target: Path) -> None:
    if beside.is_dir() and target.is_dir() and any(target.iterdir()):
        for file in _files(beside):
            place = target / file.relative_to(beside)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
    else:
        os.replace(beside, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_running(process: str) -> bool:
    """Return whether a process of this machine runs; on Windows, which cannot be asked, assume so."""
    try:
        if os.name == "posix":
            os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # another user's
        return True
    return True
