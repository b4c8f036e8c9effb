"""Weights: checkpoint folders on disk, conversion from other libraries' names, and the models known by name."""
