"""What heads, tokens and layers do, and whether an explanation is true: heads, lens, interventions, faithfulness."""


class ProbeError(ValueError):
    """A question that this model or trace cannot answer; the text says what was expected, what came, what to do."""
