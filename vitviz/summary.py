"""A table of a model's modules: what comes out of each, and how many numbers it learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.layers import DropPath
from vitviz.model import ViT


@dataclass(frozen=True)
class Row:
    """One module: its name in the model, its class, its output's shape and its own parameters."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int


def rows(model: ViT, batch: int = 1) -> list[Row]:
    """One row for each module that computes something, in the order in which they run.

    The model itself is not run: an empty twin of it is, which costs no time and no memory.
    """
    with torch.device("meta"):
        twin = ViT(model.config).eval()
        images = torch.zeros(batch, model.config.channels, *model.config.image_size)
    found: list[Row] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, _inputs: Any, output: Tensor) -> None:
            own = sum(p.numel() for p in module.parameters())
            found.append(Row(name, type(module).__name__, tuple(output.shape), own))

        return hook

    idle = (nn.ModuleList, nn.Dropout, nn.Identity, DropPath)  # compute nothing here
    for name, module in twin.named_modules():
        # Blocks are printed as a whole and by their parts; the parts of the parts are left out.
        if name and not isinstance(module, idle) and name.count(".") <= 2:
            module.register_forward_hook(note(name))
    twin(images)
    return found


def summary(model: ViT, batch: int = 1) -> str:
    """A table of modules, output shapes and parameter counts, ready to print.

    >>> from vitviz.config import preset
    >>> print(summary(ViT(preset("tiny", depth=1))).splitlines()[-1])
    all parameters                                                            823,720
    """
    table = rows(model, batch)
    lines = [f"{'module':<24} {'kind':<14} {'output':<20} {'parameters':>20}", "-" * 81]
    lines += [f"{r.name:<24} {r.kind:<14} {' x '.join(map(str, r.shape)):<20} {r.parameters:>20,}" for r in table]
    free = [(name, p) for name, p in model.named_parameters() if "." not in name]
    lines += [f"{name:<24} {'Parameter':<14} {' x '.join(map(str, p.shape)):<20} {p.numel():>20,}" for name, p in free]
    lines.append("-" * 81)
    lines.append(f"{'all parameters':<24} {'':<14} {'':<20} {sum(p.numel() for p in model.parameters()):>20,}")
    return "\n".join(lines)
