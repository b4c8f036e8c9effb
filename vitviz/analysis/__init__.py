"""Analysis of a model: heads, logit lens, token statistics, weights and interventions."""

from vitviz.errors import VitvizError


class AnalysisError(VitvizError):
    """Raised if an analysis is not possible for a model or trace."""
