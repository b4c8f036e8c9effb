"""Read the classifier of a model in memory, which fine-tuning often replaces."""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from torch import Tensor, nn

from vitviz.weights.checks import ConvertError


def read_classifiers(model: nn.Module, state: Mapping[str, Tensor], *names: str) -> tuple[dict[str, Tensor], int]:
    """Return the tensors of a model, with biases of zeros for classifiers without, and how many classes it has.

    Args:
        model: whose classifiers are linear layers, also in `nn.Sequential` with dropout.
        state: its tensors by name.
        names: attributes that hold a classifier, where the model has them.

    Raises:
        ConvertError: naming a layer that computes something else (a hidden layer, a norm, an activation), or two
            classifiers of other sizes.
    """
    linear = [found for name in names if hasattr(model, name) for found in _linear(model.get_submodule(name), name)]
    sizes = {at: layer.out_features for at, layer in linear}
    if len({*sizes.values()}) > 1:
        _refuse(f"several: {', '.join(f'{at} of {classes} classes' for at, classes in sizes.items())}")
    biases = {f"{at}.bias": layer.weight.new_zeros(sizes[at]) for at, layer in linear if layer.bias is None}
    return {**state, **biases}, max(sizes.values(), default=0)


def _linear(classifier: nn.Module, name: str) -> list[tuple[str, nn.Linear]]:
    """Return the only linear layer of a classifier by its name; none where the classifier returns what it is given."""
    layers = [(at, layer) for at, layer in _layers(classifier, name) if type(layer) not in (nn.Identity, nn.Dropout)]
    linear = [(at, layer) for at, layer in layers if type(layer) is nn.Linear]
    if len(linear) > 1:
        _refuse(f"the hidden layer {linear[0][0]}")
    for at, layer in layers:
        if type(layer) is not nn.Linear:
            _refuse(f"{at}, which is {type(layer).__name__}")
    return linear


def _layers(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module by name, in order, those of nested `nn.Sequential` one by one."""
    if type(module) is not nn.Sequential:
        yield name, module
    else:
        for at, part in module.named_children():
            yield from _layers(part, f"{name}.{at}")


def number_classes(classes: int) -> tuple[tuple[str, ...], str]:
    """Return labels for classes without names, and what to say of them: "class 0", "class 1" and so on.

    The only output of a model is a value (regression), as in transformers.
    """
    if classes == 1:
        return ("value",), "labels: value, because the model does not name its only output, which is shown as it is"
    words = "labels: class 0, class 1, ..., because the model does not name the classes of its classifier"
    return tuple(f"class {index}" for index in range(classes)), words


def _refuse(found: str) -> NoReturn:
    raise ConvertError(
        f"Expected a classifier of one linear layer, with or without dropout, got {found}. Train one of that form."
    )
