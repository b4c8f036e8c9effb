"""List a model's modules: shapes in and out, parameters, and multiply-adds as counted by torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitviz.fields import check_arguments
from vitviz.formatting import text_table
from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.layers import DropPath
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.vit import ViT


@dataclass(frozen=True)
class ModuleRow:
    """One module: name, class, input and output shapes, parameters and multiply-adds.

    `trainable` counts the parameters that require gradients; `run_on_meta` leaves it at 0. Multiply-adds count matrix
    products, convolutions and attention (half of torch's floating-point operations), but not norms, activations and
    sums, as in torchinfo and papers.
    """

    name: str
    kind: str
    input: tuple[int, ...]
    shape: tuple[int, ...]
    parameters: int
    multiply_adds: int
    trainable: int = 0


def run_on_meta(config: ViTConfig, size: tuple[int, int], batch: int = 1, ops: Ops = PLAIN) -> list[ModuleRow]:
    """Run a model of this config on the meta device, without computing, and record shapes.

    Return one row per module, in order of completion; the row of the whole model has no name. `size` is (height, width)
    in pixels; a custom `ops` can record more.
    """
    table: list[ModuleRow] = []
    flops_before = {"": 0}  # operations counted before each module

    def record(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            parameters = sum(p.numel() for p in module.parameters())
            count = counter.get_total_flops() - flops_before[name]
            shapes = tuple(inputs[0].shape), tuple(output.shape)
            table.append(ModuleRow(name, type(module).__name__, *shapes, parameters, count // 2))

        return hook

    def note_flops(name: str) -> Any:
        return lambda *_: flops_before.update({name: counter.get_total_flops()})

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model = ViT(config).eval().requires_grad_(False)  # the counter's hooks would need gradients
        for name, module in model.named_modules():
            if name and not isinstance(module, nn.ModuleList):
                module.register_forward_pre_hook(note_flops(name))
                module.register_forward_hook(record(name))
        images = torch.zeros(batch, config.channels, *size)
        tokens, grid = model.embed(images)
        record("")(model, (images,), model.run(tokens, model.angles(grid), ops=ops))
    return table


def rows(model: ViT, batch: int = 1) -> list[ModuleRow]:
    """Return one row for each module that computes something, down to the parts of blocks, in order of execution."""
    model.check_converted()
    idle = {kind.__name__ for kind in (nn.Dropout, nn.Identity, DropPath)}
    table = run_on_meta(model.config, model.config.image_size, batch)
    shown = [row for row in table if row.name and row.kind not in idle and row.name.count(".") <= 2]
    return [replace(row, trainable=_trainable(model.get_submodule(row.name).parameters())) for row in shown]


def _trainable(parameters: Iterable[nn.Parameter]) -> int:
    """Count the trainable numbers."""
    return sum(p.numel() for p in parameters if p.requires_grad)


def totals(model: ViT, batch: int = 1) -> dict[str, int]:
    """Return the totals of a model for `batch` images of its native size.

    "parameters", "trainable", "multiply_adds", and in bytes "input_bytes", "output_bytes" (the outputs of the modules,
    which training keeps) and "parameter_bytes".
    """
    table = run_on_meta(model.config, model.config.image_size, batch)
    parameters = [*model.parameters()]
    itemsize = parameters[0].dtype.itemsize
    names = {row.name for row in table}
    inner = {name.rpartition(".")[0] for name in names if name}  # their parts are counted instead
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": _trainable(parameters),
        "multiply_adds": table[-1].multiply_adds,
        "input_bytes": itemsize * math.prod(table[-1].input),
        "output_bytes": itemsize * sum(math.prod(row.shape) for row in table if row.name not in inner),
        "parameter_bytes": sum(p.numel() * p.dtype.itemsize for p in parameters),
    }


@check_arguments(ModelError)
def summary(model: ViT, batch: int = 1) -> str:
    """Return a printable table of modules: shapes, parameters, trainable parameters, multiply-adds, and totals.

    >>> from vitviz.model.config import preset
    >>> print(*summary(ViT(preset("tiny", depth=1))).splitlines()[-6].split())
    parameters 823,720
    """
    top_level = [(name, p) for name, p in model.named_parameters() if "." not in name]
    table = [
        *rows(model, batch),
        *(ModuleRow(name, "Parameter", (), tuple(p.shape), p.numel(), 0, _trainable([p])) for name, p in top_level),
    ]
    cells = [
        [
            *(row.name, row.kind, *(" x ".join(map(str, shape)) for shape in (row.input, row.shape))),
            *(f"{row.parameters:,}", f"{row.trainable:,}", f"{row.multiply_adds:,}" if row.multiply_adds else ""),
        ]
        for row in table
    ]
    heading = ["module", "kind", "input", "output", "parameters", "trainable", "multiply-adds"]
    lines = text_table([heading, *cells], left=4).split("\n")
    sums = totals(model, batch)
    height, width = model.config.image_size
    images = f"for {batch} image{'' if batch == 1 else 's'} of {width} x {height} pixels"
    kinds = {name: f"{sums[f'{name}_bytes'] / 1e6:,.2f} MB" for name in ("input", "output", "parameter")}
    foot = [
        ["parameters", f"{sums['parameters']:,}", ""],
        ["trainable", f"{sums['trainable']:,}", ""],
        ["multiply-adds", f"{sums['multiply_adds']:,}", images],
        ["input", kinds["input"], images],
        ["outputs of all modules", kinds["output"], images],
        ["parameters in memory", kinds["parameter"], ""],
    ]
    return "\n".join([*lines, "", *(line.rstrip() for line in text_table([["total", "", ""], *foot]).split("\n"))])
