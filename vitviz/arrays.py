"""Read arrays that vitviz saved in .npz files."""

import os
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from vitviz.errors import VitvizError

_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip


def read_arrays(path: str | os.PathLike[str], names: Iterable[str], error: type[VitvizError]) -> dict[str, Any]:
    """Return arrays of a .npz file by name, without pickle; raise `error` if the file lacks one or is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except _UNREADABLE as reason:
        name = os.path.basename(os.fspath(path))
        raise error(f"Expected a .npz file that vitviz saved, got {name!r:.80} ({reason}). Save it again.") from reason
