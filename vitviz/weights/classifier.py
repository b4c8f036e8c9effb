"""Read the classifier of a model in memory, which fine-tuning may have replaced."""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from torch import Tensor, nn

from vitviz.weights.checks import ConvertError


def read_classifiers(model: nn.Module, state: Mapping[str, Tensor], *names: str) -> tuple[dict[str, Tensor], int]:
    """Return the tensors of a model, with biases of zeros for classifiers without, and the number of its classes.

    Args:
        model: its classifiers are linear layers, also in `nn.Sequential` with dropout.
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
    """Return the only linear layer of a classifier and its name, or none if the classifier is the identity."""
    layers = [(at, layer) for at, layer in _layers(classifier, name) if type(layer) not in (nn.Identity, nn.Dropout)]
    linear = [(at, layer) for at, layer in layers if type(layer) is nn.Linear]
    if len(linear) > 1:
        _refuse(f"the hidden layer {linear[0][0]}")
    for at, layer in layers:
        if type(layer) is not nn.Linear:
            _refuse(f"{at}, which is {type(layer).__name__}")
    return linear


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module with their names, in order, also those of nested `nn.Sequential`."""
    if type(module) is not nn.Sequential:
        yield name, module
    else:
        for at, part in module.named_children():
            yield from _layers(part, f"{name}.{at}")


def number_classes(classes: int) -> tuple[tuple[str, ...], str]:
    """Return labels for classes without names, "class 0", "class 1" and so on, and a sentence about this assumption.

    A single output is a value (regression), as in transformers.
    """
    if classes == 1:
        return ("value",), "labels: value, because the model does not name its only output"
    words = "labels: class 0, class 1, ..., because the model does not name the classes of its classifier"
    return tuple(f"class {index}" for index in range(classes)), words


def _refuse(layer: str) -> NoReturn:
    raise ConvertError(
        f"Expected a classifier of one linear layer, with or without dropout, got {layer}. Train one of that form."
    )
