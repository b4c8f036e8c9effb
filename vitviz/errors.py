"""Define the base class of every error that vitviz raises for invalid input."""


class VitvizError(ValueError):
    """An argument, a file or a setting that vitviz cannot use.

    Every error class of the package derives from it, so `except vitviz.VitvizError` catches all of them. The message
    states what was expected, what was passed and what to do.
    """


def refuse_windows(model: object, what: str, error: type[VitvizError]) -> None:
    """Raise an error for the config or a trace of a windowed model.

    `what` names the part that needs attention over all tokens. Every part that does not support windowed models raises
    this message.
    """
    if getattr(model, "windows", ()) or getattr(model, "layouts", ()):
        raise error(
            f"Expected a model with attention over all tokens for {what}, got one with windows (Swin, SAM). "
            "Use view.attention, view.rollout, view.heads, view.explain or trace.attentions in Python."
        )
