"""Training a model: data, recipes, losses, the engine, and starting from another model's weights."""

from vitviz.errors import VitvizError


class TrainingError(VitvizError):
    """Error of data, models, settings or folders that cannot be trained with; the text says what to do."""
