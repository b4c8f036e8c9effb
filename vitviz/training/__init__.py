"""Training a model: data, recipes, losses, the engine, and starting from another model's weights."""


class TrainingError(ValueError):
    """What cannot be trained on, with or from; the text says what was expected, what came and what to do."""
