"""Find the neurons that write tokens of outlying norm, and move their activations to registers added at test time.

Darcet et al. 2024, "Vision Transformers Need Registers"; Jiang et al. 2025, "Vision Transformers Don't Need Trained
Registers".

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width, F neurons of an MLP, n chosen tokens.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.images.decoding import decode
from vitviz.model.config import ModelError
from vitviz.model.layers import Block
from vitviz.model.trace import AttentionTrace
from vitviz.model.tracing import project_part
from vitviz.resources import examples

if TYPE_CHECKING:
    from vitviz.model.vit import ViT

RATIO, DEVIATIONS = 2.0, 6.0  # thresholds of outliers, see `norm_outliers`
OUTLIERS, ORDINARY = 8, 16  # maximum numbers of tokens whose activations are compared
PLANTED_NORM = 15.0  # norm of the weakest planted outlier, in medians of the patches
MIN_NEURON_SHARE = 0.05  # minimum share of an outlier's excess norm that a neuron causes to be listed


@dataclass(frozen=True)
class Neuron:
    """Neuron of an MLP that drives the norm of outliers.

    Args:
        block, index: counted from 0; the index is that of an input of the MLP's last linear map.
        share: fraction of the outliers' norm, beyond the median norm, that the neuron writes: a mean over outliers.
    """

    block: int
    index: int
    share: float


def norm_outliers(norms: NDArray[np.float64], prefix: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which tokens have an outlying norm, (L, N), and each block's threshold, (L, 1); prefix tokens have none.

    A patch is an outlier if its norm exceeds `RATIO` times its block's median over patches, and exceeds the median by
    `DEVIATIONS` robust standard deviations (1.4826 times the median absolute deviation).
    """
    patches = norms[:, prefix:]
    middle = np.median(patches, axis=1, keepdims=True)  # (L, 1)
    spread = 1.4826 * np.median(np.abs(patches - middle), axis=1, keepdims=True)
    threshold = np.maximum(RATIO * middle, middle + DEVIATIONS * spread)
    outliers = norms > threshold
    outliers[:, :prefix] = False
    return outliers, threshold


@torch.no_grad()
def find_neurons(model: ViT, trace: AttentionTrace) -> tuple[Neuron, ...]:
    """Return the neurons that write the outlying norms of the tokens of one image, largest share first.

    For each outlier, the reference is the block after which its norm is largest relative to the median. A neuron's part
    is its activation, beyond the mean of ordinary tokens, times its output weights in the direction of the outlier
    there. The last block is left out, because no other token reads what it writes.

    Raises:
        ModelError: for models that normalise the outputs of their MLPs.
    """
    model.check_converted()
    if model.config.norms.post:
        raise ModelError(
            "Expected MLPs that add to the residual stream directly, got a norm before the sum, which bounds what a "
            "neuron writes. Choose another model."
        )
    prefix, streams = len(trace.prefix), [trace.stream(block)[0].double() for block in range(1, trace.depth)]
    if not streams:
        return ()
    norms = torch.stack([tokens.norm(dim=-1) for tokens in streams]).cpu().numpy()  # (L - 1, N)
    outliers, _ = norm_outliers(norms, prefix)
    middle = np.median(norms[:, prefix:], axis=1, keepdims=True)
    ratios = np.where(outliers, norms / middle, 0.0)
    tokens = np.argsort(-ratios.max(0))[:OUTLIERS]
    tokens = tokens[ratios.max(0)[tokens] > 0]
    if not len(tokens):
        return ()
    ordinary = np.flatnonzero(~outliers.any(0))
    ordinary = ordinary[ordinary >= prefix][:: max(1, len(ordinary) // ORDINARY)]
    peaks = ratios[:, tokens].argmax(0)  # (n,), index of the block
    excess = torch.from_numpy((norms - middle)[peaks, tokens])  # (n,)
    aims = torch.stack([F.normalize(streams[peak][token], dim=0) for peak, token in zip(peaks, tokens, strict=True)])
    found = []
    for block in range(int(peaks.max()) + 1):
        hidden = _hidden(model, trace, block, np.concatenate([tokens, ordinary])).double()  # (n + m, F)
        beyond = hidden[: len(tokens)] - hidden[len(tokens) :].mean(0)
        parts = beyond * (aims @ _written(model.blocks[block]).double())  # (n, D) @ (D, F) -> (n, F)
        counts = torch.from_numpy(peaks >= block)[:, None]
        shares = (parts.cpu() / excess[:, None] * counts).mean(0)  # (F,)
        of_block = (shares >= MIN_NEURON_SHARE).nonzero().flatten().tolist()
        found += [Neuron(block, index, float(shares[index])) for index in of_block]
    return tuple(sorted(found, key=lambda neuron: -neuron.share))


def _hidden(model: ViT, trace: AttentionTrace, block: int, tokens: NDArray[np.int64]) -> Tensor:
    """Return the activations of some tokens in a block's MLP: (n, F)."""
    layer, seen, chosen = model.blocks[block], trace.block(block), torch.from_numpy(tokens)
    stream = trace.stream(block)
    entered = layer.enter(stream)
    if layer.parallel:
        return layer.mlp.hidden(entered[0, chosen], moves=False)
    some = replace(seen, queries=seen.queries[:, :, chosen])  # the trace has no edits
    values = project_part(layer.attn, entered, parts=slice(2, 3))[0]  # (1, H, N, d)
    rows = layer.attn.talk(some.rows(0, len(tokens))).to(values.dtype)  # (1, H, n, N)
    middle = stream[:, chosen] + layer.ls1(layer.attn.merge(rows @ values))
    return layer.mlp.hidden(layer.norm2(middle)[0], moves=False)


def _written(block: Block) -> Tensor:
    """Return what the neurons of a block's MLP write to the residual stream: (D, F)."""
    scale = block.ls1 if block.parallel else block.ls2
    out: Tensor = scale(block.mlp.fc2.weight.T).T
    return out


@torch.no_grad()
def without_neurons(model: ViT, neurons: Iterable[tuple[int, int]]) -> ViT:
    """Return a copy of a model whose neurons (block, index) write nothing; all other weights are shared."""
    neurons = list(neurons)
    changed = _with_own_blocks(model, {block for block, _ in neurons})
    for block, index in neurons:
        changed.blocks[block].mlp.fc2.weight[:, index] = 0.0
    return changed


def _with_own_blocks(model: ViT, blocks: Collection[int]) -> ViT:
    """Return a copy of a model that shares all weights but those of some blocks."""
    changed = copy.copy(model)
    own = [copy.deepcopy(layer) if block in blocks else layer for block, layer in enumerate(model.blocks)]
    changed._modules = {**model._modules, "blocks": nn.ModuleList(own)}
    return changed


@torch.no_grad()
def plant_neurons(
    model: ViT,
    images: Tensor,
    block: int,
    neurons: Sequence[int],
    *,
    patches: int = 2,
    directions: int = 64,
    attracts: float = 0.0,
    seed: int = 0,
) -> tuple[ViT, list[set[int]]]:
    """Return a copy of a model in which neurons of a block give a few patches an outlying norm, to show and to test.

    The neurons fire at the patches that are largest in one of some random directions: in the one that separates them
    best from the others. All images share direction and threshold, so some may have fewer patches.

    Args:
        model: a converted model whose MLPs add to the residual stream directly.
        images: (B, channels, H, W) pixels.
        block: index from 0.
        neurons: indices in the block's MLP.
        patches: number of patches for each image.
        directions: number of random directions; with one, the neurons also fire in most other photographs.
        attracts: how much the neurons write in the direction that the queries of later blocks look for, relative to a
            random direction.
        seed: seed of the random directions.

    Returns:
        The model, and the indices of the patches among all tokens, for each image.
    """
    trace, generator = model.trace(images), torch.Generator().manual_seed(seed)
    changed = _with_own_blocks(model, {block})
    layer, prefix, width = changed.blocks[block], len(trace.prefix), model.config.width
    inputs: list[Tensor] = []
    handle = layer.mlp.fc1.register_forward_hook(lambda _module, given, _out: inputs.append(given[0]))
    out = layer(trace.stream(block), model.angles(trace.grid))
    handle.remove()
    (entering,) = inputs
    candidates = torch.randn(width, directions, generator=generator).to(entering)
    read = entering @ candidates  # (B, N, k)
    ranked = read[:, prefix:].flatten(0, 1).sort(0, descending=True).values
    last = ranked[patches * len(images) - 1 : patches * len(images) + 1]  # (2, k): the weakest, and the next patch
    best = ((last[0] - last[1]) / (ranked[0] - last[1])).argmax()
    threshold, gap = last[:, best].mean(), last[0, best] - last[1, best]
    gain = 20 / gap  # the weakest activation is 10, and the next patch's is below zero
    least = PLANTED_NORM * out[:, prefix:].norm(dim=-1).median() / 10 / len(neurons)
    scale: Tensor | float = getattr(layer.ls1 if layer.parallel else layer.ls2, "gamma", 1.0)
    column = F.normalize(torch.randn(width, generator=generator), dim=0).to(read)
    if attracts:
        column = column + attracts * _looked_for(model, trace, block)
    for index in neurons:
        layer.mlp.fc1.weight[index], layer.mlp.fc1.bias[index] = gain * candidates[:, best], -gain * threshold
        if model.config.gated:  # the second half of the activations multiplies the first
            layer.mlp.fc1.weight[model.config.hidden + index] = 0.0
            layer.mlp.fc1.bias[model.config.hidden + index] = 1.0
        noise = 0.1 * F.normalize(torch.randn(width, generator=generator), dim=0).to(read)
        layer.mlp.fc2.weight[:, index] = least * F.normalize(column + noise, dim=0) / scale
    fires = read[..., best] > threshold
    fires[:, :prefix] = False
    return changed, [set(row.nonzero().flatten().tolist()) for row in fires]


def _looked_for(model: ViT, trace: AttentionTrace, block: int) -> Tensor:
    """Return the direction of a token's key that the mean queries of later blocks look for: (D,), of length 1."""
    total = torch.zeros(())
    for later in range(block + 1, trace.depth):
        layer = model.blocks[later]
        weight = layer.attn.qkv.weight.unflatten(0, (3, layer.attn.heads, -1))[1]  # (H, d, D)
        queries = trace.block(later).queries[..., : weight.shape[1]].mean((0, 2))  # (H, d)
        scale = cast(Tensor, layer.norm1.weight)
        total = total + F.normalize(torch.einsum("hd,hdw->w", queries, weight) * scale, dim=0)
    return F.normalize(total, dim=-1)


@torch.no_grad()
def with_registers(model: ViT, registers: int = 1, neurons: Sequence[tuple[int, int]] | None = None) -> ViT:
    """Return a model with more registers, to which the activations of some neurons move from all other tokens.

    The tokens that had an outlying norm then keep their content, and the registers get the norm. The new registers
    start as zeros. The result shares the weights of `model`, and its config holds the neurons, so it can be saved.

    Args:
        model: a converted model, in eval mode.
        registers: number of registers to add.
        neurons: (block, index), such as those of `find_neurons`; by default the neurons found in at least half of the
            example photographs with outliers.

    Raises:
        ModelError: if there are no outliers in the example photographs, a neuron does not exist, or the model already
            has test-time registers.
    """
    model.check_converted()
    config = model.config
    if config.test_registers or registers < 1:
        raise ModelError(
            f"Expected at least one register to add to a model without test-time registers, got {registers} for a "
            f"model with {config.test_registers}. Start from the original model."
        )
    neurons = _example_neurons(model) if neurons is None else neurons
    changed = replace(
        config,
        registers=config.registers + registers,
        test_registers=registers,
        register_neurons=tuple(sorted((int(block), int(index)) for block, index in neurons)),
        pool=replace(config.pool, prefix=config.pool.prefix and bool(config.prefix)),
    )
    state = _with_rows(model, registers)
    with torch.device("meta"):
        repaired = type(model)(changed, model.pretrained)
    repaired.load_state_dict(state, assign=True)
    repaired.text_source = model.text_source
    return repaired.train(model.training)


def _with_rows(model: ViT, registers: int) -> dict[str, Tensor]:
    """Return the weights with zeros for the new registers, which follow the other prefix tokens."""
    state, prefix = dict(model.state_dict()), len(model.config.prefix)
    zeros = model.patch_embed.proj.weight.new_zeros(1, registers, model.config.width)
    state["reg_token"] = torch.cat([state["reg_token"], zeros], dim=1) if "reg_token" in state else zeros
    if (table := model.mid_pos_embed) is not None:
        first, rest = table.tensor_split([prefix], dim=1)
        state["mid_pos_embed"] = torch.cat([first, zeros.expand(len(table), -1, -1), rest], dim=1)
    if not prefix:  # relative positions have rows for prefix tokens only if there are some
        tables = {name: table for name, table in state.items() if name.endswith("attn.bias_table")}
        state |= {name: torch.cat([table, table.new_zeros(3, table.shape[1])]) for name, table in tables.items()}
    return state


def _example_neurons(model: ViT) -> list[tuple[int, int]]:
    """Return the neurons that are found in at least half of the example photographs with outliers.

    Raises:
        ModelError: without preprocessing, or without outliers.
    """
    if (about := model.pretrained) is None:
        raise ModelError("Expected a model with preprocessing (`pretrained`), got one without. Name the neurons.")
    weight, found = next(model.parameters()), []
    for path in examples():
        pixels = torch.from_numpy(about.preprocess(decode(path)).pixels)[None]
        found.append(find_neurons(model, model.trace(pixels.to(weight.device, weight.dtype))))
    counts = Counter((neuron.block, neuron.index) for neurons in found for neuron in neurons)
    least = sum(map(bool, found)) / 2
    if not counts:
        raise ModelError(
            "Expected tokens of outlying norm in the example photographs, got none: this model needs no registers. "
            "Name neurons to move others."
        )
    return [neuron for neuron, count in counts.items() if count >= least]
