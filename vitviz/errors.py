"""The base class of every error that vitviz raises for what a user passes."""


class VitvizError(ValueError):
    """An argument, a file or a setting that vitviz cannot use.

    Every error class of the package derives from it, so `except vitviz.VitvizError` catches all of them. The message
    says what was expected, what came and what to do.
    """
