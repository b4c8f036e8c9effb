"""Import optional packages, or name the extra that installs them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from vitviz.errors import VitvizError


class MissingExtraError(ImportError, VitvizError):
    """Raised when a part of vitviz needs a package that is not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise an error that names an extra of pyproject.toml if an import in this context fails.

    >>> with extra("train"):
    ...     import no_such_package
    Traceback (most recent call last):
    vitviz.extras.MissingExtraError: Expected the package no_such_package, got none. Run pip install 'vitviz[train]'.

    Raises:
        MissingExtraError: if a package is not installed. If an installed package imports the missing one, the extra
            does not install it, and the error names both.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        importer = _importer(error)
        if importer == __name__.partition(".")[0]:
            raise MissingExtraError(
                f"Expected the package {error.name}, got none. Run pip install 'vitviz[{name}]'."
            ) from error
        raise MissingExtraError(
            f"Expected the module {error.name}, which {importer} imports, got none. Install what provides it, or "
            f"another version of {importer}."
        ) from error


def check_installed(name: str, *packages: str) -> None:
    """Raise the error of `extra` unless the packages are installed, without importing them.

    Call this before long work that imports them only later.

    Args:
        name: the extra that installs them.
        packages: names of their modules.

    Raises:
        MissingExtraError: for a package that is not installed.
    """
    with extra(name):
        for package in packages:
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


@contextmanager
def without(name: str) -> Iterator[None]:
    """Hide an installed package from the imports in this context, unless it has been imported already.

    An import of the hidden package raises the error of a package that is not installed.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def _importer(error: ModuleNotFoundError) -> str:
    """Return the package whose import statement failed."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in modules]
    return next(package for package in reversed(packages) if package not in ("importlib", "_frozen_importlib"))
