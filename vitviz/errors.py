"""Define the base class of every error that vitviz raises for invalid input."""


class VitvizError(ValueError):
    """An argument, a file or a setting that vitviz cannot use.

    Every error class of the package derives from it, so `except vitviz.VitvizError` catches all of them. The message
    states what was expected, what was passed and what to do.
    """


def first_line(error: Exception) -> str:
    """Return the first line of another library's message, without its full stop, or the name of the error's class."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.removeprefix("Got: ").rstrip(".")
