"""Import packages that only a part of vitviz needs, or name the extra that brings them."""

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors import VitvizError


class MissingExtraError(ImportError, VitvizError):
    """Error of a part of vitviz whose packages are not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Name the extra of pyproject.toml that the imports inside need, where a package of it is missing.

    >>> with extra("train"):
    ...     import no_such_package
    Traceback (most recent call last):
    vitviz.extras.MissingExtraError: Expected the package no_such_package, got none. Run pip install 'vitviz[train]'.

    Raises:
        MissingExtraError: for a package that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"Expected the package {error.name}, got none. Run pip install 'vitviz[{name}]'."
        ) from error
