"""Analysis of what a model computes: heads, logit lens, token statistics, weights and interventions."""

from vitviz.errors import VitvizError


class AnalysisError(VitvizError):
    """Question that a model or trace cannot answer; the text says what was expected, what came and what to do."""
