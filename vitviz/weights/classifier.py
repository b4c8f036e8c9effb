"""Read the classifier of a model in memory, which fine-tuning may have replaced."""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from torch import Tensor, nn

from vitviz.weights.checks import ConvertError


def read_classifiers(model: nn.Module, state: Mapping[str, Tensor], *names: str) -> tuple[dict[str, Tensor], int]:
    """Return a model's tensors, with zero biases for classifiers that have none, and its number of classes.

    Args:
        model: its classifiers are linear layers, alone or with dropout in an `nn.Sequential`.
        state: its tensors by name.
        names: attributes that may hold a classifier.

    Raises:
        ConvertError: for a classifier with a hidden layer, a norm or an activation, or two classifiers of different
            sizes.
    """
    linear = [layer for name in names if hasattr(model, name) for layer in _linear(model.get_submodule(name), name)]
    sizes = {at: layer.out_features for at, layer in linear}
    if len({*sizes.values()}) > 1:
        _refuse(f"several: {', '.join(f'{at} of {classes} classes' for at, classes in sizes.items())}")
    biases = {f"{at}.bias": layer.weight.new_zeros(sizes[at]) for at, layer in linear if layer.bias is None}
    return {**state, **biases}, max(sizes.values(), default=0)


def _linear(classifier: nn.Module, name: str) -> list[tuple[str, nn.Linear]]:
    """Return the only linear layer of a classifier and its name, or an empty list for the identity."""
    layers = [(at, layer) for at, layer in _layers(classifier, name) if type(layer) not in (nn.Identity, nn.Dropout)]
    linear = [(at, layer) for at, layer in layers if type(layer) is nn.Linear]
    if len(linear) > 1:
        _refuse(f"the hidden layer {linear[0][0]}")
    for at, layer in layers:
        if type(layer) is not nn.Linear:
            _refuse(f"{at}, which is {type(layer).__name__}")
    return linear


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module with their names, in order, including layers in nested `nn.Sequential`."""
    if type(module) is not nn.Sequential:
        yield name, module
    else:
        for at, part in module.named_children():
            yield from _layers(part, f"{name}.{at}")


def _refuse(layer: str) -> NoReturn:
    raise ConvertError(
        f"Expected a classifier of one linear layer, with or without dropout, got {layer}. Use such a classifier."
    )
