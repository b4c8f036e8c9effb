"""List a model's modules, the shapes that they return and their parameter counts."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.model.config import ViTConfig
from vitviz.model.layers import DropPath
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.vit import ViT


@dataclass(frozen=True)
class Row:
    """One module: its name in the model, its class, shapes of its input and output, its number of parameters."""

    name: str
    kind: str
    input: tuple[int, ...]
    shape: tuple[int, ...]
    parameters: int


def run_on_meta(config: ViTConfig, size: tuple[int, int], batch: int = 1, ops: Ops = PLAIN) -> list[Row]:
    """Run a model of this config on the meta device, which takes no time and no memory, and record shapes.

    Return one row for each module, in the order in which they finish; that of the whole model has no name. `size` is
    (height, width) in pixels; `ops` of an own class can record more.
    """
    found: list[Row] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            own = sum(p.numel() for p in module.parameters())
            found.append(Row(name, type(module).__name__, tuple(inputs[0].shape), tuple(output.shape), own))

        return hook

    with torch.device("meta"), torch.no_grad():
        model = ViT(config).eval()
        for name, module in model.named_modules():
            if name and not isinstance(module, nn.ModuleList):
                module.register_forward_hook(record(name))
        images = torch.zeros(batch, config.channels, *size)
        tokens, grid = model.embed(images)
        record("")(model, (images,), model.run(tokens, model.angles(grid), ops=ops))
    return found


def rows(model: ViT, batch: int = 1) -> list[Row]:
    """Return one row for each module that computes something, down to the parts of the blocks, in running order."""
    idle = {one.__name__ for one in (nn.Dropout, nn.Identity, DropPath)}
    table = run_on_meta(model.config, model.config.image_size, batch)
    return [row for row in table if row.name and row.kind not in idle and row.name.count(".") <= 2]


def summary(model: ViT, batch: int = 1) -> str:
    """Return a table of modules, output shapes and parameter counts, ready to print.

    >>> from vitviz.model.config import preset
    >>> print(summary(ViT(preset("tiny", depth=1))).splitlines()[-1])
    all parameters                                                            823,720
    """
    table = [(row.name, row.kind, row.shape, row.parameters) for row in rows(model, batch)]
    own = [(name, p) for name, p in model.named_parameters() if "." not in name]
    table += [(name, "Parameter", tuple(p.shape), p.numel()) for name, p in own]
    lines = [f"{'module':<24} {'kind':<14} {'output':<20} {'parameters':>20}", "-" * 81]
    lines += [f"{name:<24} {kind:<14} {' x '.join(map(str, shape)):<20} {n:>20,}" for name, kind, shape, n in table]
    total = sum(p.numel() for p in model.parameters())
    return "\n".join([*lines, "-" * 81, f"{'all parameters':<24} {'':<14} {'':<20} {total:>20,}"])
