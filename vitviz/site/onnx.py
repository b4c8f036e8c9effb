"""Export a model as ONNX graphs of its parts, which the browser combines to answer the page's questions.

One graph serves all blocks; the weights are in a separate file. The graphs are therefore small and few, and
memory holds the weights once for the forward and once for the backward pass.

| graph | inputs | outputs |
|---|---|---|
| embed | pixels (1, channels, H, W) | tokens (1, N, D) |
| block | tokens (1, n, D), heads (H) | tokens, queries and keys (H, n, d), lse, mean_row and mean_column (H, n) |
| gradient | tokens and flow (1, N, D) | attention and its gradient (H, N, N), gradient of the tokens (1, N, D) |
| relevance | tokens and flow (1, N, D) | gradient of the tokens by the rules of AttnLRP (1, N, D) |
| values | tokens (1, N, D) | values (H, N, d) |
| parts | tokens (1, N, D) | normed (N, D) and the tensors of `vitviz.analysis.block_parts.block_parts` |
| value_attention | tokens (1, N, D), queries and keys (H, N, d), weights (N) | scores (N) |
| classify | tokens (1, n, D) | logits (1, C) |
| slope | tokens (1, N, D), weights (1, C) | gradient of the weighted logits with respect to the tokens (1, N, D) |
| share | tokens (1, N, D), weights (1, C) | the same gradient by the rules of AttnLRP |
| direct | tokens (1, N, D), weights (1, C) | this gradient with constant scales of norms: the direct effect (1, N, D) |
| writes | tokens and flow, a direct effect, (1, N, D) | contributions of heads by attended token (H, N), bias (1) |
| lens | tokens (1, N, D), classes (K) | probabilities of the image (K) and patches (K, gh * gw), final tokens (N, D) |

`vitviz.site.formulas` lists the graphs that turn these outputs into scores and statistics.

`n` is any number of tokens, because patches may be removed. `heads` multiplies the output of each head; 0 disables it.
With rotary positions block, writes, parts, gradient and relevance also take cos and sin of the patches, (n - P, d).
With attention pooling slope also returns the attention of the pooling and its gradient, (H, N) each.
Shapes: H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, C classes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.analysis.block_parts import PARTS, block_parts
from vitviz.analysis.decomposition import Direct
from vitviz.analysis.logit_lens import each_alone
from vitviz.attribution.attn_lrp import KINDS, AttnLRP
from vitviz.attribution.values import head_products, norms_of_rows
from vitviz.errors import VitvizError
from vitviz.model.layers import largest_in_registers
from vitviz.model.ops import Explicit
from vitviz.model.positions import FIXED, Angles, resize_positions
from vitviz.model.trace import BlockTrace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE, activate
from vitviz.site.formulas import Formula, formulas
from vitviz.web.responses import LENS

OPSET = 20
MAX_PATCHES = 4096  # maximum number of patches along an axis
WEIGHTS = "weights"  # name of the weights file in the graphs


class StaticError(VitvizError):
    """Raised for a model or site that cannot be exported."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model with its weights.

    Args:
        name: "embed", "block 0", ..., "classify".
        tensors: its weights by name.
    """

    name: str
    tensors: dict[str, Tensor]

    def offsets(self) -> Iterator[tuple[str, int, Tensor]]:
        """Yield each weight's name, its offset in numbers, and the weight."""
        at = 0
        for name, tensor in sorted(self.tensors.items()):
            yield name, at, tensor
            at += tensor.numel()

    @property
    def count(self) -> int:
        """Return the number of weights of the part."""
        return sum(tensor.numel() for tensor in self.tensors.values())


def check_exportable(model: ViT) -> None:
    """Check that a model's graphs can be exported.

    Raises:
        StaticError: for nearest-neighbor resizing, unnamed classes, multi-label classification, regression, a relative
            position bias, talking heads, class attention, a norm after the patch projection, other input channels than
            red, green and blue, or rotary positions that count rows and columns or are learned.
    """
    model.check_converted()
    about, config = model.pretrained, model.config
    resized = config.table.mode != "bicubic" or config.table.crop or config.table.corners
    rotary = config.rotary.places == "index" or config.rotary.learned or config.rotary.class_token
    pooling = not config.pool.prefix or config.pool.mlp_width is not None or config.pool.blocks
    problems = {
        "a relative position bias or talking heads, which its graphs do not have yet": not config.plain_attention,
        "a norm after the patch projection, which the lecture does not show yet": config.norms.patch,
        "bilinear or cropped positions, which its graphs do not have yet": resized,
        "positions between blocks, which its graphs do not have yet": config.table.between,
        "attention pooling of another form, which its graphs do not have yet": pooling,
        f"{config.channels} input channels, which the page cannot read from photographs": config.channels != 3,
        "blocks of another form, which the lecture's graph does not support yet": not config.plain_blocks,
        "rotary positions that count rows and columns or are learned, which the page does not compute yet": (
            config.rotates and rotary
        ),
        "no preprocessing": about is None,
        "no named classes": model.head is None or not (about and about.labels),
        "nearest-neighbor resizing": about is not None and about.preprocess.interpolation == "nearest",
        f"outputs for {model.problem_type}, which the static page cannot show yet": model.problem_type != SINGLE,
    }
    if found := [problem for problem, applies in problems.items() if applies]:
        raise StaticError(
            f"Expected a model that chooses one of its named classes and a smooth resizing, got "
            f"{about.name if about else 'this model'} with {found[0]}. Serve it with vitviz app."
        )


def parts(model: ViT) -> list[Part]:
    """Return the parts of a model in order of execution."""
    middle = [Part(f"block {index}", _named(block) | _mask(model, index)) for index, block in enumerate(model.blocks)]
    return [Part("embed", _named(_Embed(model))), *middle, Part("classify", _named(_Classify(model)))]


def save_graphs(model: ViT, folder: Path) -> list[Path]:
    """Write the graphs of a model, without weights, into a folder; return the files.

    Raises:
        StaticError: if the model has unsupported parts.
    """
    check_exportable(model)
    files = []
    for graph in _graphs(copy.deepcopy(model).cpu().float().eval().requires_grad_(False)):
        files.append(folder / f"{graph.name}.onnx")
        graph.save(files[-1])
    return files


def _graphs(model: ViT) -> Iterator[_Graph]:
    """Yield the graphs of a model, with example inputs for dynamic sizes."""
    config = model.config
    side, prefix = config.patch_size, len(config.prefix)
    sizes = {size for weight in model.parameters() for size in weight.shape}
    # Example sizes must be unique, because the exporter treats equal sizes as the same axis.
    grid = next((5, across) for across in range(7, 99) if sizes.isdisjoint((5 * across, 5 * across + prefix)))
    pixels = torch.zeros(1, config.channels, grid[0] * side, grid[1] * side)
    if mask := _mask(model, 0):
        model.blocks[0].mlp.move = _Move(mask["mlp.move.mask"], config.register_places)
    tokens, heads, weights = model.embed(pixels)[0], torch.ones(config.heads), torch.zeros(1, config.classes)
    flow = torch.zeros_like(tokens)  # the exporter would merge the same tensor, passed twice, into one input
    rows, columns, flows = (torch.export.Dim(name, min=2, max=MAX_PATCHES) for name in ("rows", "columns", "flows"))
    patches = torch.export.Dim("patches", min=2, max=MAX_PATCHES**2)
    count = {1: patches + prefix if prefix else patches}
    positions = model.angles(grid)
    angles = (positions and positions.rotation) or ()
    angle_axes, names = tuple({0: patches} for _ in angles), " cos sin" if angles else ""
    both: tuple[Any, ...] = (angle_axes,) if angles else ()  # *angles counts as one argument
    embed, classify = _Embed(model), _Classify(model)
    first, middle, last = (Part("", _named(module)) for module in (embed, model.blocks[0], classify))
    scale = {2: side * rows, 3: side * columns}
    yield _Graph("embed", embed, first, (pixels,), (scale,), "pixels -> tokens")
    yield _Graph(
        "block", _Block(model), middle, (tokens, heads, *angles), (count, {}, *both),
        f"tokens heads{names} -> out queries keys lse mean_row mean_column",
    )  # fmt: skip
    yield _Graph(
        "writes", _Writes(model), middle, (tokens, flow, *angles), (count, count, *both),
        f"tokens flow{names} -> terms bias",
    )  # fmt: skip
    yield _Graph("values", _Values(model), middle, (tokens,), (count,), "tokens -> values")
    yield _Graph(
        "parts", _Parts(model), middle, (tokens, *angles), (count, *both), f"tokens{names} -> normed {' '.join(PARTS)}"
    )
    yield _Graph("classify", classify, last, (tokens,), (count,), "tokens -> logits")
    classes = torch.zeros(min(LENS, config.classes))
    yield _Graph("lens", _Lens(model), last, (tokens, classes), (count, {}), "tokens classes -> image patches final")
    pool = " pool_attention pool_slope" if model.attn_pool is not None else ""
    for name, function, part, inputs, axes, signature in (
        ("gradient", partial(_gradient, model), middle, (tokens, flow, *angles), (count, count, *angle_axes),
            f"tokens flow{names} -> attention slope back"),
        ("relevance", partial(_relevance, model), middle, (tokens, flow, *angles), (count, count, *angle_axes),
            f"tokens flow{names} -> back"),
        ("direct", partial(_share, model, _Direct), last, (tokens, weights), (count, {}), "tokens weights -> slope"),
        ("slope", partial(_slope, model), last, (tokens, weights), (count, {}), f"tokens weights -> slope{pool}"),
        ("share", partial(_share, model, _Rules), last, (tokens, weights), (count, {}), "tokens weights -> slope"),
    ):  # fmt: skip
        yield _Graph(name, _differentiate(function, inputs, part), part, inputs, axes, signature)
    attention, row = torch.zeros(config.heads, *2 * tokens.shape[1:2]), torch.zeros(tokens.shape[1])
    many = next(size for size in range(len(row) + 1, 999) if size not in sizes)  # unique, like the sizes of the grid
    queries, pooling = torch.zeros(*attention.shape[:2], config.head_size), torch.zeros(config.heads, 1, len(row))
    examples: dict[str, tuple[Tensor, dict[int, Any]]] = {
        "tokens": (tokens, count), "flow": (flow, count), "queries": (queries, count), "keys": (queries, count),
        "attention": (attention, {**count, 2: count[1]}), "slope": (attention, {**count, 2: count[1]}),
        "pooling": (pooling, {2: count[1]}), "pooling_slope": (pooling, {2: count[1]}),
        "matrix": (attention[0], {0: count[1], 1: count[1]}),
        "flows": (torch.zeros(many, len(row)), {0: flows, 1: count[1]}),
        **dict.fromkeys(("rows", "skipped", "attended", "weights"), (row, {0: count[1]})),
        **dict.fromkeys(("least", "residual", "columns", "score"), (torch.ones(1), {})),
        "patch_pixels": (torch.ones(2), {}),
    }  # fmt: skip
    named = Formula("value_attention", partial(_value_attention, model), "tokens queries keys weights -> scores")
    for formula in (named, *formulas(model)):
        takes = formula.signature.partition(" ->")[0].split()
        inputs = tuple(examples[name][0].clone() for name in takes)
        part = middle if formula is named else Part("", {})
        axes = tuple(examples[name][1] for name in takes)
        yield _Graph(
            formula.name, _differentiate(formula.function, inputs, part), part, inputs, axes, formula.signature
        )


# Modules of the forward graphs; their parameters have the same names as in the part.


class _Embed(nn.Module):
    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.patch_embed, self.norm_pre = model.patch_embed, model.norm_pre
        self.pos_embed, self.config = model.pos_embed, model.config
        prefix = [token for token in (model.cls_token, model.dist_token, model.reg_token) if token is not None]
        joined = torch.cat([token.detach() for token in prefix], dim=1) if prefix else None  # (1, P, D)
        self.prefix = None if joined is None else nn.Parameter(joined, requires_grad=False)

    def forward(self, pixels: Tensor) -> Tensor:
        config, features = self.config, self.patch_embed.proj(pixels)  # (1, D, gh, gw)
        grid = features.shape[2], features.shape[3]
        patches = self.patch_embed.norm(features.flatten(2).transpose(1, 2))
        if self.pos_embed is not None:
            patches = patches + resize_positions(self.pos_embed, config.learned_grid, grid, config.table)
        elif fixed := FIXED.get(config.positions):
            patches = patches + fixed(grid, config.width)
        joined = patches if self.prefix is None else torch.cat([self.prefix, patches], dim=1)
        tokens: Tensor = self.norm_pre(joined)
        return tokens


class _Heads(Explicit):
    """Compute explicit attention with heads multiplied by `factors` (H)."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = factors

    def edit_heads(self, mixed: Tensor) -> Tensor:
        return mixed * self.factors[None, :, None, None]


class _Move(nn.Module):
    """Move activations to registers as `move_neurons` does, of neurons that differ from block to block."""

    def __init__(self, mask: Tensor, registers: tuple[int, int]) -> None:
        super().__init__()
        self.mask, self.registers = nn.Parameter(mask, requires_grad=False), registers

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * (1 - self.mask) + largest_in_registers(hidden, self.registers) * self.mask


def _mask(model: ViT, block: int) -> dict[str, Tensor]:
    """Return the weight of `_Move` in a block, (F,), 1 for neurons that move; empty if none moves in any block."""
    neurons = model.config.register_neurons
    mask = model.blocks[block].mlp.fc2.weight.new_zeros(model.config.hidden)
    mask[[index for of, index in neurons if of == block]] = 1.0
    return {"mlp.move.mask": mask} if neurons else {}


def _angles(rotation: tuple[Tensor, ...]) -> Angles | None:
    """Return the positions for a block from the inputs cos and sin of a graph, if it has them."""
    return Angles(rotation[0], rotation[1]) if rotation else None


class _OfBlock(nn.Module):
    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.block, self.prefix = model.blocks[0], len(model.config.prefix)


class _Block(_OfBlock):
    def forward(self, tokens: Tensor, heads: Tensor, *angles: Tensor) -> tuple[Tensor, ...]:
        ops = _Heads(heads)
        out = self.block(tokens, _angles(angles), ops)
        seen = ops.seen[0]
        rows = seen.probabilities[0]  # (H, n, n)
        logits = seen.logits[0]  # (H, n, n)
        lse = logits.logsumexp(-1)  # (H, n)
        means = rows[:, self.prefix :].mean(1), rows[:, :, self.prefix :].mean(2)  # (H, n) each
        return out, seen.queries[0], seen.keys[0], lse, *means


class _Values(_OfBlock):
    """Compute the values of all heads."""

    def forward(self, tokens: Tensor) -> Tensor:
        return project_part(self.block.attn, self.block.enter(tokens), parts=slice(2, 3))[0, 0]  # (H, N, d)


class _Writes(_OfBlock):
    """Compute the contribution of each attended token by each head, from the direct effect of the block's output.

    These are the contributions of `vitviz.analysis.decomposition.decompose` for blocks without norms after attention.
    """

    def forward(self, tokens: Tensor, flow: Tensor, *angles: Tensor) -> tuple[Tensor, ...]:
        attn, flow = self.block.attn, self.block.ls1(flow)  # (1, N, D)
        q, k, v = attn.project(self.block.enter(tokens), _angles(angles))  # (1, H, N, d)
        of_heads = (flow @ attn.proj.weight).unflatten(2, (attn.heads, -1)).transpose(1, 2)  # (1, H, N, d)
        rows = (q @ k.mT * attn.scale).softmax(-1)  # (1, H, N, N)
        bias = flow.new_zeros(1) if attn.proj.bias is None else (flow @ attn.proj.bias).sum(1)
        return ((rows.mT @ of_heads) * v).sum(-1)[0], bias


class _Parts(_OfBlock):
    """Compute the parts of a block, see `vitviz.analysis.block_parts.block_parts`, for all tokens."""

    def forward(self, tokens: Tensor, *angles: Tensor) -> tuple[Tensor, ...]:
        attn, normed = self.block.attn, self.block.norm1(tokens)
        mixed = Explicit().attend(*attn.project(normed, _angles(angles)), attn.scale)
        parts = block_parts(self.block, tokens, mixed)
        return normed[0], *(parts[name] for name in PARTS)


class _Classify(nn.Module):
    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.norm, self.head, self.head_dist, self.pool = model.norm, model.head, model.head_dist, model.attn_pool
        self.projection = model.projection
        self._model = [model]  # in a list, so that other weights are not registered

    def forward(self, tokens: Tensor) -> Tensor:
        model = self._model[0]
        return model.classify(model.finish(tokens), Explicit())


class _Lens(_Classify):
    """Compute the step of `vitviz.analysis.logit_lens` for one block."""

    def forward(self, tokens: Tensor, classes: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        model, classes = self._model[0], classes.long()
        final = model.finish(tokens)
        image = activate(model.classify(final, Explicit())[0], SINGLE)[classes]  # (C) -> (K)
        patches = activate(model.classify(each_alone(model, final)), SINGLE)[:, classes]  # (gh * gw, C) -> (gh * gw, K)
        return image, patches.T, model.norm(tokens)[0]


# Functions of the backward graphs, recorded by running them once.

Backward = Callable[..., tuple[Tensor, ...]]


def _gradient(model: ViT, tokens: Tensor, flow: Tensor, *angles: Tensor) -> tuple[Tensor, ...]:
    entering, ops = tokens.detach().requires_grad_(), Explicit()
    out = model.blocks[0](entering, _angles(angles), ops)
    attention = ops.seen[0].probabilities
    slope, back = torch.autograd.grad(out, [attention, entering], flow)
    return attention[0].detach(), slope[0], back


def _slope(model: ViT, tokens: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    leaving, ops = tokens.detach().requires_grad_(), Explicit()
    score = (model.classify(model.finish(leaving), ops) * weights).sum()
    pool = [seen.probabilities for seen in ops.seen]  # attention of the pooling, if any: (1, H, 1, N)
    slope, *more = torch.autograd.grad(score, [leaving, *pool])
    return slope, *(row.detach()[0, :, 0] for row in (*pool, *more))


class _Rules(AttnLRP):
    """Run AttnLRP's operations with attention as matrix products, because ONNX has no fused backward pass of it."""

    def __init__(self, model: ViT) -> None:
        super().__init__(model, dict.fromkeys(KINDS.values(), 0.0), 0.0, "taylor")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        assert not dropout  # the model is in eval mode
        logits = self.product(torch.matmul, q * scale, k.mT, constant=learned_query)  # (B, H, n, N)
        return self.product(torch.matmul, logits.softmax(dim=-1), v)


class _Direct(Direct):
    """Run `Direct` with attention pooling as plain matrix products, see `_Rules`."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        assert not dropout
        assert learned_query  # only the pooling attends after the last block
        return (q * scale @ k.mT).softmax(dim=-1).detach() @ v


def _relevance(model: ViT, tokens: Tensor, flow: Tensor, *angles: Tensor) -> tuple[Tensor, ...]:
    entering = tokens.detach().requires_grad_()
    return torch.autograd.grad(model.blocks[0](entering, _angles(angles), _Rules(model)), entering, flow)


def _share(model: ViT, rules: type[_Rules | _Direct], tokens: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    leaving, ops = tokens.detach().requires_grad_(), rules(model)
    return torch.autograd.grad((model.classify(model.finish(leaving, ops), ops) * weights).sum(), leaving)


def _value_attention(model: ViT, tokens: Tensor, queries: Tensor, keys: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    attention = BlockTrace(queries[None], keys[None], queries[None, ..., 0]).rows(0, queries.shape[1])
    products = head_products(model.blocks[0], tokens)
    return (norms_of_rows(attention, products, weights[None])[0].float(),)


# Convert functions to files.


def _named(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def _differentiate(function: Backward, inputs: tuple[Tensor, ...], part: Part) -> nn.Module:
    """Convert a function with gradients into a module without them, by recording its operations."""
    from torch._decomp import get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    simpler: Any = get_decompositions([torch.ops.aten.silu_backward])  # other operations have an ONNX equivalent
    with torch.enable_grad():
        graph = make_fx(function, simpler, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    # Also matches detached tensors.
    of = {(tensor.data_ptr(), tensor.shape): name for name, tensor in part.tensors.items()}
    for node in graph.graph.find_nodes(op="get_attr"):
        tensor = getattr(graph, node.target)
        if name := of.get((tensor.data_ptr(), tensor.shape)):  # named by weight, not by order of use
            node.target = name.replace(".", "_")
            setattr(graph, node.target, part.tensors[name])
    graph.recompile()
    return graph


@dataclass(frozen=True, eq=False)
class _Graph:
    """A graph to write: a module, its part, example inputs, and their dynamic axes.

    `signature` names inputs and outputs, for example "tokens weights -> slope".
    """

    name: str
    module: nn.Module
    part: Part
    inputs: tuple[Tensor, ...]
    axes: tuple[dict[int, Any], ...]
    signature: str

    def save(self, path: Path) -> None:
        """Write the graph, with references to weights in a file named `WEIGHTS`."""
        import onnx_ir
        from onnxscript.optimizer import optimize

        takes, gives = (names.split() for names in self.signature.split("->"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # raised inside PyTorch
            exported = torch.export.export(self.module.eval(), self.inputs, dynamic_shapes=self.axes)
            program = torch.onnx.export(
                exported, (), dynamo=True, opset_version=OPSET, optimize=False, verbose=False,
                input_names=takes, output_names=gives,
            )  # fmt: skip
        assert program is not None  # dynamo returns a program
        model, graph = program.model, program.model.graph
        places = {name.replace(".", "_"): (at, tensor) for name, at, tensor in self.part.offsets()}
        weights = [value for name, value in graph.initializers.items() if _plain(name) in places]
        # Weights are inputs while the graph is simplified; otherwise folding would put them into the graph.
        for value in weights:
            del graph.initializers[str(value.name)]
            value.const_value = None
            graph.inputs.append(value)
        optimize(model)
        for value in weights:
            graph.inputs.remove(value)
            at, tensor = places[_plain(str(value.name))]
            value.const_value = onnx_ir.ExternalTensor(
                WEIGHTS, 4 * at, 4 * tensor.numel(), onnx_ir.DataType.FLOAT,
                shape=onnx_ir.Shape(tensor.shape), name=str(value.name),
            )  # fmt: skip
            graph.register_initializer(value)
        onnx_ir.passes.common.ClearMetadataAndDocStringPass()(model)
        onnx_ir.save(model, path)


def _plain(name: str) -> str:
    """Return the name of a weight within its part: `block.attn.qkv.weight` -> `attn_qkv_weight`."""
    return name.removeprefix("block.").replace(".", "_")
