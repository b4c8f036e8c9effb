"""Evaluation of classifiers and explanations: accuracy, faithfulness, sanity checks, localization."""


class EvaluationError(ValueError):
    """Evaluation that cannot be made; the text says what was expected, what came and what to do."""
