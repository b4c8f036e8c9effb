"""Read the logits or features of what a module returns that runs as it is.

Shapes: B images, C classes or features.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitviz.weights.captured import CaptureError
from vitviz.weights.parts import Parts


def read_output(output: Any, parts: Parts) -> Tensor:
    """Return the first floating-point tensor of a module's output, averaged over a grid or sequence: (B, C).

    Raises:
        CaptureError: for other outputs.
    """
    if isinstance(output, Mapping):  # such as outputs of transformers; those of a backbone have feature maps
        names = ("feature_maps", "logits", "pooler_output", "last_hidden_state")
        output = next((output[name] for name in names if output.get(name) is not None), output)
        output = output[-1] if isinstance(output, tuple) else output
    output = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(output, Tensor) or output.ndim < 2 or not output.is_floating_point():
        shape = f" {tuple(output.shape)} of {output.dtype}" if isinstance(output, Tensor) else ""
        raise CaptureError(
            "Expected a module that returns a tensor (images, outputs) of floating-point numbers, got "
            f"{type(output).__name__}{shape}. Use vitviz.capture."
        )
    if output.ndim == 4 and parts.last in parts.channels_first:
        return output.mean((2, 3))
    return output if output.ndim == 2 else output.flatten(1, -2).mean(1)


def inverse_activation(module: nn.Module, images: Tensor, parts: Parts) -> tuple[str, list[str]]:
    """Return the key in `INVERSES` of a module's last operation, or "", and assumptions about its output.

    Args:
        module, parts: a module that runs as it is, and its parts.
        images: (B, channels, H, W).
    """
    with torch.no_grad(), _Activations() as seen:
        output = module(images)
    notes = []
    if isinstance(output, tuple | list) and len(output) > 1:
        notes.append(f"output: the first of the {len(output)} that the model returns")
    if isinstance(output, Tensor) and output.ndim == 3:
        notes.append(f"output: the mean over {output.shape[1]:,} tokens, because the model returns one for each")
    result = read_output(output, parts)
    activation = next((name for name, last in seen.last.items() if torch.equal(last, result)), "")
    if activation and result.shape[1] > 1:  # a single output is a value
        notes.append(f"output: probabilities ({activation.lstrip('_')}), from which logits are computed")
        return activation, notes
    return "", notes


class _Activations(TorchDispatchMode):
    """Record the last softmax and the last sigmoid that a module computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        result = func(*args, **(kwargs or {}))
        if (name := func.overloadpacket.__name__) in INVERSES:
            self.last[name] = result
        return result


def _log(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def _logit(probabilities: Tensor) -> Tensor:
    return probabilities.logit(torch.finfo(probabilities.dtype).eps)


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {"": lambda logits: logits, "_softmax": _log, "sigmoid": _logit}
"""Name of PyTorch's operation -> function that returns logits of its probabilities."""
