"""Split a block after its attention into the contributions of its heads, its norms, its MLP and what each adds."""

from __future__ import annotations

from torch import Tensor, nn

from vitviz.model.layers import Block
from vitviz.model.ops import Ops

PARTS = ("heads", "attended", "renormed", "before", "after", "transformed")
"""Names of the tensors of `block_parts`."""


def block_parts(block: Block, tokens: Tensor, mixed: Tensor) -> dict[str, Tensor]:
    """Return the parts of a block after its attention, by the names in `PARTS`.

    Args:
        block: the block.
        tokens: (1, n, D), its input.
        mixed: (1, H, n, d), the outputs of the heads.

    Returns:
        (H, n, D) for "heads"; (n, ...) for all others.
    """
    record, attn = _Record(), block.attn
    by_head = attn.proj.weight.unflatten(1, (attn.heads, -1)).transpose(0, 1)  # (D, H * d) -> (H, D, d)
    heads = block.ls1(mixed[0] @ by_head.mT)  # (H, n, d) @ (H, d, D) -> (H, n, D)
    block.finish(tokens, attn.merge(mixed), record)
    (attended, transformed), (renormed,), ((_, before), (after, _)) = record.branches, record.normed, record.linears
    parts = {"attended": attended, "renormed": renormed, "before": before, "after": after, "transformed": transformed}
    return {"heads": heads, **{name: part[0] for name, part in parts.items()}}


class _Record(Ops):
    """Record the results of norms, the inputs and results of linear layers, and the branches that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.normed: list[Tensor] = []
        self.linears: list[tuple[Tensor, Tensor]] = []
        self.branches: list[Tensor] = []

    def norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        normed = super().norm(layer, x)
        if not isinstance(layer, nn.Identity):  # stands for a norm that this model does not have
            self.normed.append(normed)
        return normed

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        self.linears.append((x, super().linear(layer, x)))
        return self.linears[-1][1]

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        self.branches.append(branch)
        return super().add(x, branch)
