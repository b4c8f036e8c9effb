"""Train a model: data, recipes, losses, training loop, and transfer from another model."""

from vitviz.errors import VitvizError


class TrainingError(VitvizError):
    """Raised for data, models, settings or folders that do not allow training."""
