"""Find sinks: patches with an outlying norm or an outlying share of attention, and the neurons that make them.

Darcet et al. 2024, "Vision Transformers Need Registers"; Sun et al. 2024, "Massive Activations in Large Language
Models"; Jiang et al. 2025, "Vision Transformers Don't Need Trained Registers".

Shapes: L blocks, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.interventions import Change, change_of
from vitviz.analysis.logit_lens import check_one_image
from vitviz.analysis.tokens import token_norms
from vitviz.attribution.target_specs import Contrast, TargetLike, resolve_target
from vitviz.attribution.values import output_map
from vitviz.formatting import percent, short_repr
from vitviz.model.layers import Block
from vitviz.model.registers import Neuron, find_neurons, norm_outliers, without_neurons
from vitviz.model.trace import AttentionTrace, Trace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT

Kind = Literal["silent", "broadcasting", "unknown"]
"""Whether an attention sink writes nearly nothing to other tokens or as much as others; unknown if captured."""

SILENT_BELOW = 0.25  # a sink is silent if it writes a smaller share than this multiple of its share of attention
MIN_SINK_ATTENTION = 10.0  # a sink receives at least this many times the mean attention of a token


@dataclass(frozen=True)
class Sink:
    """One patch that is a sink in one block.

    Args:
        block, token: indices from 0; tokens count prefix tokens first.
        kind: whether it is read and writes nearly nothing ("silent"), or writes to many tokens ("broadcasting").
        norm: norm of the token after the block, relative to the median of the patches.
        attention: its share of the block's attention, the mean over heads and queries.
        written: its share of what the block's attention writes: the sum over heads and queries of the norms of its
            weighted values.
    """

    block: int
    token: int
    kind: Kind
    norm: float
    attention: float
    written: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Sinks:
    """Sinks of one photograph.

    Args:
        sinks: the sinks, block by block.
        attention, written: (L, N), the shares of all tokens, see `Sink`; each row sums to 1. For a captured module,
            `written` is NaN.
        norms: (L, N), norm of each token after the block.
        neurons: the neurons that drive the outlying norms, largest share first.
        change: exact predictions with all these neurons off, or with those of one block; `None` without such neurons.
    """

    sinks: tuple[Sink, ...]
    attention: NDArray[np.float64]
    written: NDArray[np.float64]
    norms: NDArray[np.float64]
    neurons: tuple[Neuron, ...]
    change: Change | None

    __repr__ = short_repr

    def describe(self) -> str:
        """Return a sentence about the block whose sinks have the largest share of attention, or that there are none."""
        if not self.sinks:
            return "No patch has an outlying norm or an outlying share of attention."
        blocks = {sink.block for sink in self.sinks}
        shares = {block: [sink for sink in self.sinks if sink.block == block] for block in blocks}
        block = max(blocks, key=lambda block: sum(sink.attention for sink in shares[block]))
        count = len(shares[block])
        attention, written = (sum(getattr(sink, name) for sink in shares[block]) for name in ("attention", "written"))
        patches, verbs = ("1 patch", ("takes", "writes")) if count == 1 else (f"{count} patches", ("take", "write"))
        taken = f"{patches} {verbs[0]} {percent(attention, 2)} of the attention of layer {block + 1}"
        if np.isnan(written):
            return f"{taken}."
        return f"{taken} and {verbs[1]} {percent(written, 2)} of what its heads write."


@torch.no_grad()
def sinks(
    model: ViT,
    trace: AttentionTrace,
    *,
    target: TargetLike = None,
    contrast: Contrast | None = None,
    block: int | None = None,
) -> Sinks:
    """Find the sinks of one photograph, and the exact effect of the neurons that drive their norms.

    A patch has an outlying norm by `norm_outliers`, and an outlying share of attention by the same rule if the share is
    also `MIN_SINK_ATTENTION` times the mean share.

    Args:
        model: the model of the trace.
        trace: trace of one image with all blocks, without edits. With a captured module, `written` is NaN.
        target, contrast: a target to read with and without the neurons, see `resolve_target`.
        block: turn off the neurons of this block only, counted from 0; by default all neurons that are found.

    Raises:
        AnalysisError: for several images, windowed models, if a block was not kept, or if `block` has no such neurons.
        ExplainError: if the target does not fit.
    """
    check_one_image(trace)
    if trace.blocks != tuple(range(trace.depth)):
        raise AnalysisError(f"Expected a trace with all blocks, got {list(trace.blocks)}. Omit blocks=.")
    reads = [_read(trace, layer) for layer in trace.blocks]  # L x (H, N)
    attention = _shares(reads)
    prefix, mean = len(trace.prefix), 1 / attention.shape[1]
    outlying = norm_outliers(attention, prefix)[0] & (attention > MIN_SINK_ATTENTION * mean)
    written = np.full_like(attention, np.nan)
    about = token_norms(model, trace)
    norms, outlying = about.norms.astype(np.float64), outlying | about.outliers
    if isinstance(trace, Trace):
        written = np.stack([_written(model, trace, layer, read) for layer, read in enumerate(reads)])
    middle = np.median(norms[:, prefix:], axis=1)
    found = tuple(
        Sink(
            block=layer,
            token=token,
            kind=_kind(written[layer, token] / attention[layer, token]),
            norm=float(norms[layer, token] / middle[layer]),
            attention=float(attention[layer, token]),
            written=float(written[layer, token]),
        )
        for layer, token in np.argwhere(outlying).tolist()
    )
    neurons = find_neurons(model, trace) if isinstance(trace, Trace) and not model.config.norms.post else ()
    change = None
    if target is not None or contrast is not None:
        resolve_target(model, trace.logits, target, contrast)  # checks them, also without neurons
    places = [(neuron.block, neuron.index) for neuron in neurons if block in (None, neuron.block)]
    if block is not None and not places:
        blocks = sorted({neuron.block for neuron in neurons})
        raise AnalysisError(
            f"Expected a block whose neurons make outlying norms in this image, got {block}. "
            + (f"Choose one of {blocks}." if blocks else "There are none: omit block=.")
        )
    if places and (trace.logits is not None or target is not None):
        first, changed = min(block for block, _ in places), without_neurons(model, places)
        tokens = changed.encode(trace.stream(first), model.angles(trace.grid), start=first)
        change = change_of(model, trace.tokens, tokens, target, contrast)
    return Sinks(sinks=found, attention=attention, written=written, norms=norms, neurons=neurons, change=change)


def _kind(ratio: float) -> Kind:
    """Return the kind of a sink by its share of the writing relative to its share of attention."""
    return "unknown" if np.isnan(ratio) else "silent" if ratio < SILENT_BELOW else "broadcasting"


def attention_shares(trace: AttentionTrace) -> NDArray[np.float64]:
    """Return the share of each token in a block's attention, the mean over heads and queries: (L, N)."""
    return _shares([_read(trace, block) for block in trace.blocks])


def _shares(reads: Sequence[Tensor]) -> NDArray[np.float64]:
    attention = np.stack([read.mean(0).double().cpu().numpy() for read in reads])  # L x (H, N) -> (L, N)
    shares: NDArray[np.float64] = attention / attention.sum(1, keepdims=True)
    return shares


def _read(trace: AttentionTrace, block: int) -> Tensor:
    """Return the mean attention over queries to each token: (H, N)."""
    weights = torch.full((1, trace.count), 1 / trace.count, device=trace.device)
    return trace.block(block).propagate(weights)[0]


def _written(model: ViT, trace: Trace, block: int, read: Tensor) -> NDArray[np.float64]:
    """Return the share of each token in what a block's attention writes, (N,), from the attention to it, (H, N)."""
    layer = model.blocks[block]
    values = project_part(layer.attn, layer.enter(trace.stream(block)), parts=slice(2, 3))[0]  # (1, H, N, d)
    factors = layer.attn.talk(read[None, :, None])[0, :, 0].abs()  # (H, N)
    sizes = (factors * _value_norms(layer, values[0])).sum(0)  # (N,)
    shares: NDArray[np.float64] = (sizes / sizes.sum()).double().cpu().numpy()
    return shares


def _value_norms(layer: Block, values: Tensor) -> Tensor:
    """Return the norms of values after the output projection: (H, N, d) -> (H, N)."""
    of_heads = output_map(layer).to(values).unflatten(1, (len(values), -1)).transpose(0, 1)  # (H, D, d)
    grams = of_heads.mT @ of_heads  # (H, d, d)
    norms: Tensor = ((values @ grams) * values).sum(-1).clamp_min(0).sqrt()
    return norms
