"""Define the base class of every error that vitviz raises for invalid input."""


class VitvizError(ValueError):
    """An argument, a file or a setting that vitviz cannot use.

    Every error class of the package derives from it, so `except vitviz.VitvizError` catches all of them. The message
    states what was expected, what was passed and what to do.
    """
