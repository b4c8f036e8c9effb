"""Store visitors' files in one folder of this process, within a quota, until the process ends.

Photographs are private (they show places and faces), so none outlives the server: the folder is removed at exit and at
SIGTERM, and after `kill -9` by the next process that starts.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import io
import os
import re
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

from filelock import FileLock, Timeout
from gradio_client.utils import strip_invalid_filename_characters

from vitviz.errors import VitvizError
from vitviz.images.limits import format_of
from vitviz.server.account import Account, Booking, OverBudgetError, Resource
from vitviz.settings import Settings

MAX_AGE = 24 * 3600  # seconds
NAME_BYTES = 80
PREFIX = "vitviz-uploads-"
_OWN = re.compile(rf"{PREFIX}\d+-[0-9a-f]{{8}}")
CHECKPOINT = ".safetensors"
DISK_FULL = "Expected room on the server's disk for this file, got none. Try again later."
EXPIRE_EVERY = 600.0  # seconds between checks of the age of files
STORED = "https://uploads.invalid/"  # prefix of stored files; Gradio's tools accept files only as URLs
NO_SUCH_UPLOAD = "Expected a file that was uploaded to this page and is still there. Upload it again."


class UploadError(VitvizError):
    """Raised for a file that this page does not accept or does not have; the text says what to do."""


class DiskFullError(UploadError):
    """Raised for a file that the disk or the budget has no room for."""


class UploadFolder:
    """Hold uploaded files of one process.

    If a visitor exceeds half of the budget, their oldest files are removed. If the whole budget is used up, the oldest
    files of the visitor who uses most of it are removed. All files are removed after a day.

    Args:
        root: the folder, used only by this process.
        quota: limit of all files together, in bytes.

    Attributes:
        account: where the files are booked.
    """

    def __init__(self, root: Path, quota: int | None = None) -> None:
        self.root = root.resolve()
        self.account = Account(Settings() if quota is None else Settings(disk=quota))
        self._secret = secrets.token_bytes(32)  # makes the names of folders unguessable
        self._files: dict[str, OrderedDict[Path, tuple[Booking, float]]] = {}  # by visitor: booking and time of upload
        self._lock = threading.RLock()

    def check(self, path: str | Path) -> Path:
        """Return the real path of an uploaded file, from a path relative to this folder or a URL of `STORED`.

        Raises:
            UploadError: for any other path, with one message for all, so that visitors cannot probe this machine.
        """
        try:
            real = Path(self.root, str(path).removeprefix(STORED)).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:  # missing file, null byte or loop of links
            raise UploadError(NO_SUCH_UPLOAD) from error
        if not (real.is_relative_to(self.root) and real.is_file()):
            raise UploadError(NO_SUCH_UPLOAD)
        return real

    def find(self, digest: str) -> Path | None:
        """Return the uploaded checkpoint whose folder's name starts with these digits, if it still exists."""
        if not (digest.isalnum() and digest.isascii()):  # visitor input: `*` would match any file
            return None
        return next((path for path in self.root.glob(f"{digest}*/*") if path.suffix.lower() == CHECKPOINT), None)

    def resolved(self, payload: Any) -> Any:
        """Return a request's data with the real path of every file in it, at any depth; Gradio checks only some files.

        Raises:
            UploadError: if a file was not uploaded.
        """
        if isinstance(payload, Mapping):
            data = {name: self.resolved(value) for name, value in payload.items()}
            return data | {"path": str(self.check(data["path"]))} if isinstance(data.get("path"), str) else data
        if isinstance(payload, Sequence) and not isinstance(payload, str | bytes):
            return [self.resolved(value) for value in payload]
        return payload

    def store_photographs(self, payload: Any, visitor: str) -> Any:
        """Store the pictures in a tool's request, and return it with a URL of `STORED` for each `data:` URL.

        Gradio would store files of any type.

        Raises:
            UploadError: if a file is not a picture.
            DiskFullError: if the disk or the budget is full.
        """
        if isinstance(payload, dict):
            return {name: self.store_photographs(value, visitor) for name, value in payload.items()}
        if isinstance(payload, list):
            return [self.store_photographs(value, visitor) for value in payload]
        if not (isinstance(payload, str) and payload.startswith("data:")):
            return payload
        try:
            data = base64.b64decode(payload.partition(",")[2], validate=True)
        except ValueError as error:
            raise UploadError("Expected a picture as a data: URL in base64, got something else. Encode it.") from error
        check_type(io.BytesIO(data), "", False)
        return STORED + self.add(visitor, "photo", data).relative_to(self.root).as_posix()

    def add(self, visitor: str, name: str, data: bytes) -> Path:
        """Store a visitor's file, and remove older files that no longer fit.

        Raises:
            DiskFullError: if the disk or the budget is full.
        """
        with self.receive(visitor) as incoming:
            try:
                incoming.booking.add(len(data))
                incoming.file.write(data)
            except (OSError, OverBudgetError) as error:
                raise DiskFullError(DISK_FULL) from error
            return incoming.keep(name)

    @contextmanager
    def receive(self, visitor: str) -> Iterator[Incoming]:
        """Receive a file, which is removed at the end unless `keep` was called.

        Raises:
            DiskFullError: if the disk is full.
        """
        partial = self.root / f"partial-{secrets.token_hex(8)}"
        try:
            file = partial.open("w+b")
        except OSError as error:
            raise DiskFullError(DISK_FULL) from error
        incoming = Incoming(self, visitor, file, partial)
        try:
            yield incoming
        finally:
            with suppress(OSError):  # a full disk is already reported
                file.close()
            incoming.end()

    def expire(self, now: float) -> None:
        """Remove files that are older than a day; `now` is by `time.monotonic`."""
        with self._lock:
            for files in self._files.values():
                while files and now - next(iter(files.values()))[1] >= MAX_AGE:
                    self._remove(files)

    def evict_for(self, visitor: str, amount: int) -> None:
        """Remove old files, first this visitor's, then those of the visitor with most bytes, until `amount` fits."""
        with self._lock:
            own = self._files.get(visitor, OrderedDict())
            limit = self.account.budgets[Resource.DISK].each or 0
            while own and self.account.used(Resource.DISK, visitor) + amount > limit:
                self._remove(own)
            if self.account.used(Resource.DISK, visitor) + amount > limit:
                return  # the rest is being received; other visitors' files stay
            while not self.account.fits(Resource.DISK, visitor, amount) and any(self._files.values()):
                self._remove(
                    max(self._files.values(), key=lambda files: sum(file[0].amount for file in files.values()))
                )
            self._files = {name: files for name, files in self._files.items() if files}

    def _place(self, visitor: str, digest: str, name: str) -> Path:
        """Return the path for a file; files with other names or from other visitors get separate folders."""
        safe = strip_invalid_filename_characters(Path(name).name, NAME_BYTES).lstrip(".") or "upload"
        return self.root / hmac.new(self._secret, f"{visitor} {digest} {safe}".encode(), "sha256").hexdigest() / safe

    def _keep(self, visitor: str, path: Path, booking: Booking) -> None:
        with self._lock:
            files = self._files.setdefault(visitor, OrderedDict())
            if path in files:
                files[path][0].close()
            files[path] = booking, time.monotonic()
            files.move_to_end(path)

    def _remove(self, files: OrderedDict[Path, tuple[Booking, float]]) -> None:
        path, (booking, _) = files.popitem(last=False)
        shutil.rmtree(path.parent, ignore_errors=True)
        booking.close()


class DiskBooking(Booking):
    """Booking of a visitor's file, which removes older files to make room."""

    def __init__(self, folder: UploadFolder, visitor: str) -> None:
        super().__init__(folder.account, Resource.DISK, visitor)
        self._folder = folder

    def add(self, amount: int) -> None:
        """Add to the booking, see `Booking.add`."""
        if not self.account.fits(self.resource, self.address, amount):
            self._folder.evict_for(self.address, amount)
        super().add(amount)


class Incoming:
    """File that is being received.

    Attributes:
        file: the file, open for writing.
        booking: booking of its bytes.
    """

    def __init__(self, folder: UploadFolder, visitor: str, file: IO[bytes], path: Path) -> None:
        self.file, self.booking = file, DiskBooking(folder, visitor)
        self._folder, self._visitor, self._path, self._kept = folder, visitor, path, False

    def keep(self, name: str) -> Path:
        """Move the file to its final path, and return that path.

        Args:
            name: file name on the visitor's machine.

        Raises:
            DiskFullError: if the disk is full.
        """
        try:
            self.file.close()
            target = self._folder._place(self._visitor, hash_file(self._path), name)
            target.parent.mkdir(exist_ok=True)
            self._path.replace(target)
        except OSError as error:
            raise DiskFullError(DISK_FULL) from error
        self._folder._keep(self._visitor, target, self.booking)
        self._kept = True
        return target

    def end(self) -> None:
        """Remove the file unless it was kept."""
        if not self._kept:
            self._path.unlink(missing_ok=True)
            self.booking.close()


def check_type(file: IO[bytes], name: str, checkpoints: bool) -> None:
    """Check that a file is a picture by its first bytes or, where allowed, a checkpoint by its name.

    Raises:
        UploadError: if it is neither.
    """
    if not (checkpoints and name.lower().endswith(CHECKPOINT)) and format_of(file.read(512)) is None:
        raise UploadError("Expected a picture (JPEG, PNG or WebP), got something else. Choose another file.")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


@cache
def upload_folder() -> UploadFolder:
    """Return this process's folder, which Gradio also uses and which is removed when the process ends."""
    own = Path(tempfile.gettempdir(), f"vitviz-{_user()}")
    parent = Path(os.environ.get("GRADIO_TEMP_DIR") or own)
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if parent == own and hasattr(os, "getuid") and parent.stat().st_uid != os.getuid():
        raise UploadError(
            f"Expected {parent} to belong to this user, got another user's folder. Set GRADIO_TEMP_DIR to your own."
        )
    remove_leftovers(parent)
    root = parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    lock = FileLock(_lock_of(root))
    lock.acquire()  # before the folder exists, so that no other process removes it as a leftover
    root.mkdir(mode=0o700)
    os.environ["GRADIO_TEMP_DIR"] = str(root)

    def remove() -> None:
        shutil.rmtree(root, ignore_errors=True)
        lock.release()
        _lock_of(root).unlink(missing_ok=True)

    atexit.register(remove)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:

        def end(number: int, _frame: FrameType | None) -> None:
            remove()  # at once: threads that run a model may delay the exit longer than a host waits
            os._exit(128 + number)

        signal.signal(signal.SIGTERM, end)
    folder = UploadFolder(root)

    def expire() -> None:
        while True:
            time.sleep(EXPIRE_EVERY)
            folder.expire(time.monotonic())

    threading.Thread(target=expire, name="expire", daemon=True).start()
    return folder


def remove_leftovers(parent: Path) -> None:
    """Remove this user's folders left by processes that have ended: those whose lock no process holds.

    No other file is touched, even if its name looks like such a folder's.
    """
    for lock in parent.glob(f"{PREFIX}*.lock"):
        root = lock.with_suffix("")
        if not _OWN.fullmatch(root.name) or any(_is_foreign(path) for path in (lock, root)):
            continue
        try:
            with FileLock(lock, timeout=0):
                shutil.rmtree(root, ignore_errors=True)
        except (Timeout, OSError):  # its process is still running
            continue
        lock.unlink(missing_ok=True)


def _is_foreign(path: Path) -> bool:
    """Return whether an existing path is a link or belongs to another user."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        return stat.S_ISLNK(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid())
    return False


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
