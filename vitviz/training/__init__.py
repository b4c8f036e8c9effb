"""Train a model: data, recipes, losses, training loop, transfer from another model, and the folder with its record."""

from vitviz.errors import VitvizError


class TrainingError(VitvizError):
    """Raised for data, models, settings or folders that do not allow training."""
