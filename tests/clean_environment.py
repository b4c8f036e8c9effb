"""Make virtual environments with links to installed packages, because installing takes minutes."""

import os
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def requirements(requires: Iterable[str]) -> set[str]:
    """Return the distributions of requirements and of their own requirements, without extras."""
    names: set[str] = set()
    pending = [*requires]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(requirement.name)
            pending += distribution(requirement.name).requires or []
    return names


def packages(names: Iterable[str]) -> list[Path]:
    """Return the paths of these distributions in site-packages."""
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
