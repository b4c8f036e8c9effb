"""Files that visitors send: one folder for this process, within a quota, removed when the process ends.

Photographs hold what their makers did not mean to publish (places, faces), so nothing of them outlives the server: the
folder goes at exit and at SIGTERM, and what a killed process left behind goes when the next one starts.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO

from filelock import FileLock, Timeout
from gradio.processing_utils import hash_file
from gradio_client.utils import strip_invalid_filename_characters
from PIL import Image, UnidentifiedImageError

from vitviz.images.heif import kind_of

MAX_BYTES = 2 * 2**30  # of all uploads
MAX_AGE = 24 * 3600  # seconds
NAME_BYTES = 80
CHECKPOINT = ".safetensors"
NO_SUCH_UPLOAD = "Expected a file that was uploaded to this page and is still there. Upload it again."


class UploadError(ValueError):
    """File that this page does not accept, or does not have; the text says what to do."""


class DiskFullError(UploadError):
    """File that the disk has no room for."""


class UploadFolder:
    """Hold uploaded files of one process.

    A visitor who needs more than half of the quota loses that visitor's own oldest files; when the whole quota is used
    up, the visitor who uses most of it does.

    Args:
        root: the folder, which belongs to this process alone.
        quota: bytes that all files together may take.
    """

    def __init__(self, root: Path, quota: int = MAX_BYTES) -> None:
        self.root, self.quota = root.resolve(), quota
        self._files: dict[str, OrderedDict[Path, tuple[int, float]]] = {}  # by visitor: (bytes, time of upload)
        self._lock = threading.Lock()

    def check(self, path: str | Path) -> Path:
        """Return the real path of an uploaded file.

        Raises:
            UploadError: with one text for whatever else lies there, so that nothing on this machine can be probed.
        """
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:  # not there; a null byte; a circle of links
            raise UploadError(NO_SUCH_UPLOAD) from error
        if not (real.is_relative_to(self.root) and real.is_file()):
            raise UploadError(NO_SUCH_UPLOAD)
        return real

    def find(self, digest: str) -> Path | None:
        """Return the uploaded checkpoint whose SHA-256 begins with these digits, if it is still there."""
        if not (digest.isalnum() and digest.isascii()):  # it comes from a visitor, and `*` would name any file
            return None
        return next((path for path in self.root.glob(f"{digest}*/*") if path.suffix.lower() == CHECKPOINT), None)

    def check_all(self, payload: object) -> None:
        """Check every file that a request's data names, at any depth: gradio itself checks only some of them."""
        pending = [payload]
        while pending:
            node = pending.pop()
            if isinstance(node, Mapping):
                if isinstance(node.get("path"), str):
                    self.check(node["path"])
                pending += node.values()
            elif isinstance(node, Sequence) and not isinstance(node, str | bytes):
                pending += node

    def add(self, visitor: str, name: str, file: IO[bytes]) -> Path:
        """Keep a file that a visitor sent, and remove what no longer fits.

        Raises:
            DiskFullError: if the disk is full.
        """
        safe = strip_invalid_filename_characters(Path(name).name, NAME_BYTES).lstrip(".") or "upload"
        partial = self.root / f"partial-{secrets.token_hex(8)}"
        try:
            with partial.open("wb") as out:
                shutil.copyfileobj(file, out, 2**20)
            target = self.root / hash_file(partial) / safe  # where gradio would copy it to, so it is there once
            target.parent.mkdir(exist_ok=True)
            partial.replace(target)
        except OSError as error:
            raise DiskFullError(
                "Expected room on the server's disk for this file, got none. Try again later."
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        with self._lock:
            mine = self._files.setdefault(visitor, OrderedDict())
            mine[target] = (target.stat().st_size, time.monotonic())
            mine.move_to_end(target)
            self._evict(visitor)
        return target

    def _evict(self, visitor: str) -> None:
        """Remove what is too old, then the oldest files of who uses most, until the quotas hold."""

        def used(files: OrderedDict[Path, tuple[int, float]]) -> int:
            return sum(size for size, _ in files.values())

        for files in self._files.values():
            while files and time.monotonic() - next(iter(files.values()))[1] > MAX_AGE:
                self._remove(files)
        while len(self._files[visitor]) > 1 and used(self._files[visitor]) > self.quota // 2:
            self._remove(self._files[visitor])
        while sum(map(used, self._files.values())) > self.quota:
            self._remove(max(self._files.values(), key=used))
        self._files = {name: files for name, files in self._files.items() if files}

    def _remove(self, files: OrderedDict[Path, tuple[int, float]]) -> None:
        path, _ = files.popitem(last=False)
        if not any(path in others for others in self._files.values()):  # somebody else may have sent the same file
            shutil.rmtree(path.parent, ignore_errors=True)


def check_type(file: IO[bytes], name: str, checkpoints: bool) -> None:
    """Check that a file begins as a picture does, or as a checkpoint where these may be uploaded.

    Raises:
        UploadError: if not.
    """
    if checkpoints and name.lower().endswith(CHECKPOINT):
        return
    head = file.read(512)
    file.seek(0)
    if kind_of(head) is not None:  # AVIF and HEIC, which `decode` reads in a process of its own
        return
    try:
        Image.open(file)  # reads the header only; `decode` has words for what is wrong behind it
    except Image.DecompressionBombError:
        return
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, OverflowError) as error:
        raise UploadError("Expected a picture (JPEG, PNG or WebP), got something else. Choose another file.") from error


@cache
def upload_folder() -> UploadFolder:
    """Make this process's folder, tell gradio of it, and see to it that it goes when the process does."""
    own = Path(tempfile.gettempdir(), f"vitviz-{_user()}")
    parent = Path(os.environ.get("GRADIO_TEMP_DIR") or own)
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent == own and hasattr(os, "getuid") and parent.stat().st_uid != os.getuid():
        raise UploadError(
            f"Expected {parent} to be this user's, got another's folder. Set GRADIO_TEMP_DIR to your own."
        )
    remove_leftovers(parent)
    root = parent / f"uploads-{os.getpid()}-{secrets.token_hex(4)}"
    lock = FileLock(_lock_of(root))
    lock.acquire()  # before the folder is there, so that no other process takes it for a leftover
    root.mkdir(mode=0o700)
    os.environ["GRADIO_TEMP_DIR"] = str(root)

    def remove() -> None:
        shutil.rmtree(root, ignore_errors=True)
        lock.release()
        _lock_of(root).unlink(missing_ok=True)

    atexit.register(remove)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:

        def end(number: int, _frame: FrameType | None) -> None:
            remove()  # at once: threads that run a model may hold up the exit longer than a host waits
            os._exit(128 + number)

        signal.signal(signal.SIGTERM, end)
    return UploadFolder(root)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that are gone: nobody holds their locks."""
    for root in parent.glob("uploads-*/"):
        try:
            with FileLock(_lock_of(root), timeout=0):
                shutil.rmtree(root, ignore_errors=True)
        except (Timeout, OSError):  # it runs, or belongs to another user
            continue
        _lock_of(root).unlink(missing_ok=True)


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
