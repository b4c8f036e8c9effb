"""Virtual environments with some of the packages that the tests run with, as links: an install takes minutes."""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def requirements(requires: Iterable[str]) -> set[str]:
    """Return the distributions that these requirements bring, and those that they bring in turn; without extras."""
    found: set[str] = set()
    pending = [*requires]
    while pending:
        one = Requirement(pending.pop())
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            pending += distribution(one.name).requires or []
    return found


def packages(names: Iterable[str]) -> list[Path]:
    """Return what these distributions have put into the folder of packages."""
    site = Path(sysconfig.get_path("purelib"))
    files = (path for name in names for path in distribution(name).files or ())
    return sorted({site / path.parts[0] for path in files if path.parts[0] not in ("..", "__pycache__")})


def make(folder: Path, linked: Iterable[Path]) -> Path:
    """Make an environment with links to packages; return its folder of commands."""
    venv.create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv" if sys.version_info >= (3, 11) else None, vars=paths))
    for package in linked:
        (site / package.name).symlink_to(package)
    return folder / ("Scripts" if os.name == "nt" else "bin")
