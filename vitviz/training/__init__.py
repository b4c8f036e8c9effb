"""Training a model: data, recipes, losses, the engine, and starting from another model's weights."""


class TrainingError(ValueError):
    """Error of data, models, settings or folders that cannot be trained with; the text says what to do."""
