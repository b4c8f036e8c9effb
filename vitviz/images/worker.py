"""Decode pictures in worker processes with limited memory and time.

A file may contain more than its header claims: more pixels, scans or metadata. A worker process can be killed at any
time. Two workers are kept ready, because starting Python takes time; each is replaced after a few hundred pictures, and
after a crash. Only Linux limits the memory of a process; macOS limits processor time, Windows only wall-clock time.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import IO, Any

from PIL import Image

from vitviz.images.limits import ImageError
from vitviz.phrases import Phrase, unpacked

WORKERS = 2
PICTURES = 300  # pictures per process before it is replaced
SECONDS = 10  # processor time per picture; wall-clock limit is three times that
MEMORY = 300_000_000  # bytes per picture, in addition to its file
TICK = 0.1  # seconds between checks for cancellation
LIMITS_MEMORY = sys.platform == "linux"  # macOS ignores RLIMIT_AS, and Windows has no such limit

_PROGRAM = "from vitviz.images.worker_process import serve; serve({})"
_SIZE = struct.Struct(">Q")
_HAS_SHARED_MEMORY = hasattr(os, "memfd_create")


class WorkerEnded(Exception):
    """Raised if a process ends while decoding a picture."""


class Worker:
    """Worker process that decodes pictures."""

    def __init__(self) -> None:
        self.decoded = 0
        # Pixels return through shared memory, or through the pipe on systems without it.
        self._pixels = os.memfd_create("pixels") if _HAS_SHARED_MEMORY else -1
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "MALLOC_ARENA_MAX": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(self._pixels)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[self._pixels] if _HAS_SHARED_MEMORY else [],
                start_new_session=True,  # Ctrl-C reaches only the server, which ends the workers
            )
        except OSError:  # no more processes or files
            if self._pixels >= 0:
                os.close(self._pixels)
            raise

    @property
    def alive(self) -> bool:
        """Return whether the process is running."""
        return self._process.poll() is None

    def decode(self, data: bytes, name: str, check: Callable[[], None]) -> Image.Image:
        """Decode a file.

        Args:
            data: bytes of the file.
            name: name for messages.
            check: called about ten times a second; an exception from it kills the process.

        Raises:
            ImageError: see `vitviz.images.decoding.decode`.
        """
        self.decoded += 1
        future: Future[Image.Image] = Future()
        threading.Thread(target=self._exchange, args=(data, name, future), daemon=True).start()
        until = time.monotonic() + 3 * SECONDS
        try:
            while not wait([future], TICK).done:
                check()
                if time.monotonic() > until:
                    raise ImageError(_slow(name))
        except BaseException:
            self.end()
            raise
        try:
            return future.result()
        except WorkerEnded as error:
            code = self._process.wait()
            slow = hasattr(os, "WIFSIGNALED") and -code == _SIGXCPU
            raise ImageError(_slow(name) if slow else broken(name)) from error

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # if unwritten data cannot be flushed
                pipe and pipe.close()
        if self._pixels >= 0:
            os.close(self._pixels)
            self._pixels = -1

    def _exchange(self, data: bytes, name: str, future: Future[Image.Image]) -> None:
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            send(self._process.stdin, {"name": name}, data)
            reply, _ = receive(self._process.stdout)
            if "error" in reply:
                raise ImageError(unpacked(reply["error"])) from RuntimeError(reply["reason"])
            width, height = reply["size"]
            count = 3 * width * height
            if self._pixels >= 0:
                pixels = os.pread(self._pixels, count, 0) if count < 2**30 else b""
                os.ftruncate(self._pixels, 0)
            else:
                pixels = self._process.stdout.read(count)
            picture = Image.frombytes("RGB", (width, height), pixels)
            picture.info = {"range": unpacked(reply["range"])} if reply["range"] else {}
            future.set_result(picture)
        except ImageError as error:
            future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - any read can fail while the process ends
            future.set_exception(WorkerEnded(str(error)))


class Workers:
    """Pool of worker processes; callers wait while all are busy.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int = WORKERS) -> None:
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)  # started on demand

    def warm(self) -> None:
        """Start missing processes."""
        for worker in [self._idle.get_nowait() for _ in range(self._idle.qsize())]:
            self._idle.put(worker or Worker())

    def decode(self, data: bytes, name: str, check: Callable[[], None] = lambda: None) -> Image.Image:
        """Decode a file, see `Worker.decode`."""
        worker = self._take(check)
        try:
            if worker is None or not worker.alive:
                worker = Worker()
            return worker.decode(data, name, check)
        finally:
            if worker is not None and (worker.decoded >= PICTURES or not worker.alive):
                worker.end()
                worker = None
                with suppress(OSError):  # without resources for a process, the next picture tries again
                    worker = Worker()  # starts in advance
            self._idle.put(worker)

    def end(self) -> None:
        """End all idle processes."""
        with suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker is not None:
                    worker.end()

    def _take(self, check: Callable[[], None]) -> Worker | None:
        while True:
            with suppress(queue.Empty):
                return self._idle.get(timeout=TICK)
            check()


_workers: list[Workers] = []
_lock = threading.Lock()


def workers() -> Workers:
    """Return the worker pool of this process."""
    with _lock:
        if not _workers:
            _workers.append(Workers())
            atexit.register(_workers[0].end)
        return _workers[0]


if hasattr(os, "register_at_fork"):  # a forked process must not use its parent's workers
    os.register_at_fork(after_in_child=_workers.clear)


def send(pipe: IO[bytes], about: dict[str, object], data: bytes = b"") -> None:
    """Write a message: a JSON header and bytes."""
    head = json.dumps(about).encode()
    pipe.write(_SIZE.pack(len(head)) + _SIZE.pack(len(data)) + head)
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Read a message.

    Raises:
        EOFError: if the other side has ended.
    """
    sizes = pipe.read(2 * _SIZE.size)
    if len(sizes) < 2 * _SIZE.size:
        raise EOFError
    (head,), (length,) = _SIZE.unpack(sizes[: _SIZE.size]), _SIZE.unpack(sizes[_SIZE.size :])
    about, data = pipe.read(head), pipe.read(length)
    if len(about) < head or len(data) < length:
        raise EOFError
    return json.loads(about), data


_SIGXCPU = 24  # on Linux and macOS


def broken(name: str) -> str:
    """Return the message about a photograph that needs too much memory."""
    text = "Expected a complete photograph, got {0}, which cannot be decoded in {1} MB of memory. Save it as JPEG."
    return Phrase("photograph-needs-memory", text, name, MEMORY // 10**6)


def _slow(name: str) -> str:
    text = "Expected an image that is decoded in {0} s, got {1}, which takes longer. Save it again as JPEG."
    return Phrase("photograph-slow", text, SECONDS, name)
