"""Write the numbers of the lecture: the steps from a photograph to tokens, the values of a block, a token in a block.

Files have the format of safetensors, which `page/compute/tensors.js` reads. The entry `facts` of their metadata is
JSON.

| file | array | shape |
|---|---|---|
| scene | levels: the model's input before normalization, 0..255 | (3, H, W) |
| | patch embedding's filters; channels: their indices (0 to D - 1); bias | (K, 3, p, p), (K), (K) |
| | positions: added to each patch; for rotary positions, cosine and sine | (gh * gw, D) or (gh * gw, 2 d) |
| | prefix: the tokens in front of the patches, before the first block | (P, D) |
| | lengths: norm of each token that enters a block | (L, N) |
| | start: cosine of each token that enters a block with the same token before the first block | (L, N) |
| | added: norm of what each block but the last adds to each token | (L - 1, N) |
| block | values | (H, N, d) |
| | center, factor: restore the model's keys and queries from the block file | (H, d) each |
| token | stream: the token that enters the block; normed: after the first norm | (D) each |
| | heads: what each head adds to the token, without the projection's bias | (H, D) |
| | attended: what attention adds to the token | (D) |
| | renormed: the sum of token and `attended` after the second norm | (D) |
| | before, after: hidden layer of the MLP, before and after the activation | (M), or (2 M), and (M) |
| | transformed: what the MLP adds to the token | (D) |
| planted | norms: of the patches after the block with the planted neuron | (3, gh * gw) |
| | attention: share of each patch in the attention of a later block | (3, gh * gw) |

From a block file's queries and keys (see `vitviz.web.payload`), the model's are `query / factor * sqrt(d)` and
`key * factor + center`. A file omits arrays that a model does not have; `missing` in its facts gives the reasons.
Shapes: L blocks, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, M width of the
MLP, p patch size.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vitviz.analysis.block_parts import block_parts
from vitviz.analysis.sinks import attention_shares
from vitviz.images.preprocess import Preprocess
from vitviz.lecture.texts import LectureError, lecture_given
from vitviz.model.registers import find_neurons, plant_neurons
from vitviz.model.trace import AttentionTrace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE
from vitviz.phrases import with_phrases
from vitviz.view import View
from vitviz.web.payload import LARGEST_HALF, balance
from vitviz.web.responses import describe_layers, describe_map, describe_rearranged, describe_test

COMPARED = ("rollout", "gae")  # methods that the lecture compares
PLANTED = 3  # number of patches at which the planted neuron fires
ATTRACTS = 0.35  # `attracts` of the planted neuron; its patches then take a quarter of the attention of a layer
MAX_ELEMENTS = 2**21  # maximum number of elements in an array: 4 MB in half precision

Arrays = dict[str, NDArray[Any]]


def lecture_bytes(view: View) -> bytes:
    """Return the file of a scene: pixels, filters, positions and prefix tokens of one photograph and model.

    Raises:
        LectureError: for multi-label classification or regression, which do not use softmax, and for patch embeddings
            that are not filters times pixels of a color photograph.
    """
    view.model.check_converted()
    if view.names_classes and view.model.problem_type != SINGLE:
        raise LectureError(
            "Expected a model that chooses one class of several, because the lecture ends with a softmax, got one of "
            f"{view.model.problem_type}. Choose another model."
        )
    if view.model.config.norms.patch or view.model.config.channels != 3:
        raise LectureError(
            "Expected patch embeddings that are filters times red, green and blue, got a model with a norm after them, "
            f"or {view.model.config.channels} input channels, which the lecture does not show. Choose another model."
        )
    if view.model.config.table.between:
        raise LectureError(
            "Expected positions that are added before the first block, got more between blocks, which the lecture does "
            "not show. Choose another model."
        )
    levels = np.asarray(view.seen()).transpose(2, 0, 1)  # (H, W, 3) -> (3, H, W)
    arrays, facts = _model_arrays(view.model, view.trace.grid)
    arrays |= _stream_arrays(view.trace)
    facts |= _photo_facts(view.preprocess, *view.photo.size)
    return _file({"levels": np.ascontiguousarray(levels), **arrays}, facts)


def model_bytes(model: ViT, preprocess: Preprocess) -> bytes:
    """Return the part of a scene's file that is the same for all photographs of one size."""
    grid = model.config.grid_of(preprocess.height, preprocess.width)
    return _file(*_model_arrays(model, grid))


def saved_lecture(view: View, texts: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the arguments `lecture` and `texts` of `vitviz.web.scene.saved_page`.

    Args:
        view: from `Explorer.open`.
        texts: folder with a lecturer's own texts.

    Raises:
        LectureError: for invalid texts, and for models that the lecture does not show.
    """
    given = lecture_given(folder=None if texts is None else Path(texts))
    return {"lecture": lecture_parts(view), "texts": given}


def lecture_parts(view: View) -> dict[str, bytes]:
    """Return the files, by name, that a lecture without a server needs in addition to the block files."""
    model, trace = view.model, view.trace
    files = {**site_files(view), "answers": lecture_answers(view)}
    middle = trace.token((trace.grid[0] // 2, trace.grid[1] // 2))  # the patch that the lecture starts with
    for block in range(trace.depth):
        files[f"token-{block}-{middle}"] = token_bytes(model, trace, block, middle)
    return files


def site_files(view: View) -> dict[str, bytes]:
    """Return the files, by name, of an example of a static site."""
    files = {"lecture": lecture_bytes(view)}
    if view.trace.depth > 1 and not view.model.config.test_registers:
        files["planted"] = planted_bytes(view)
    values = {f"values-{block}": values_bytes(view.model, view.trace, block) for block in range(view.trace.depth)}
    return {**files, **values}


@torch.no_grad()
def values_bytes(model: ViT, trace: AttentionTrace, block: int) -> bytes:
    """Return the file of a block: values in half precision, and how its queries and keys were changed.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        block: index from 0.

    Raises:
        LectureError: for a model with a relative position bias or talking heads.
        TraceError: if the trace has no such block.
    """
    model.check_converted()
    if not model.config.plain_attention:
        raise LectureError(
            "Expected attention logits that are queries times keys of one head, got a model with a relative position "
            "bias or talking heads, which this step does not show yet. Choose another model."
        )
    attention, layer = trace.block(block), model.blocks[block]
    values = project_part(layer.attn, layer.enter(trace.stream(block)), parts=slice(2, 3))[0, 0]  # (H, N, d)
    center, factor = balance(attention.queries[0], attention.keys[0])
    return _file({"values": _half(values), "center": _single(center[:, 0]), "factor": _single(factor[:, 0])}, {})


@torch.no_grad()
def token_bytes(model: ViT, trace: AttentionTrace, block: int, token: int) -> bytes:
    """Return the file of one token in one block.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        block, token: indices from 0.

    Raises:
        LectureError: for a model whose blocks have another form.
        TraceError: if the trace has no such block.
    """
    model.check_converted()
    if not model.config.plain_blocks or model.config.register_neurons:  # these move activations between tokens
        raise LectureError(
            "Expected blocks of the form x + attention(norm(x)), then x + MLP(norm(x)), got a model of another form, "
            "which this step does not show yet. Choose another model."
        )
    attention, layer, stream = trace.block(block), model.blocks[block], trace.stream(block)
    normed = layer.norm1(stream)  # (1, N, D)
    values = project_part(layer.attn, normed, parts=slice(2, 3))[0]  # (1, H, N, d)
    mixed = attention.rows(token, token + 1).to(values) @ values  # (1, H, 1, N) @ (1, H, N, d) -> (1, H, 1, d)
    parts = block_parts(layer, stream[:, token : token + 1], mixed)
    own = {"stream": _single(stream[0, token]), "normed": _single(normed[0, token])}
    return _file({**own, **{name: _half(part[..., 0, :]) for name, part in parts.items()}}, {})


@torch.no_grad()
def planted_bytes(view: View) -> bytes:
    """Return the file of bright spots: numbers of a copy of the model with a planted neuron, and of its repair.

    Each array has a row for the model as it is, one with the neuron, and one with a test-time register in addition.

    Raises:
        LectureError: for models of one layer, with test-time registers, which would take what the neuron writes, or
            with a norm after the MLP, which bounds it.
    """
    model, trace = view.model, view.trace
    model.check_converted()
    if model.config.norms.post or model.config.test_registers or trace.depth < 2:
        raise LectureError(
            "Expected a model of several layers without test-time registers, whose MLPs add to the tokens directly, "
            "got one of another form, in which this step cannot plant a neuron. Choose another model."
        )
    block = trace.depth // 3
    neuron = int(model.blocks[block].mlp.fc2.weight.norm(dim=0).argmin())  # the one that writes least
    planted, (tokens,) = plant_neurons(model, view.images, block, [neuron], patches=PLANTED, attracts=ATTRACTS)
    of_planted = planted.trace(view.images)
    found = [(each.block, each.index) for each in find_neurons(planted, of_planted)]
    traces = [trace, of_planted, planted.with_registers(1, found).trace(view.images)]
    shares = [attention_shares(each)[:, -trace.grid[0] * trace.grid[1] :] for each in traces]  # (L, gh * gw)
    places = [token - len(trace.prefix) for token in sorted(tokens)]
    later = block + 1 + int(shares[1][block + 1 :, places].sum(1).argmax())
    outputs = [each.logits.float().softmax(-1) for each in traces if each.logits is not None]  # 3 x (1, C)
    best = view.best(1) if view.names_classes else []
    facts = {
        "block": block, "neuron": neuron, "later": later, "places": places,
        "register": float(attention_shares(traces[2])[later, len(trace.prefix)]),
        "classes": [[view.labels[index], *(float(output[0, index]) for output in outputs)] for index in best],
    }  # fmt: skip
    norms = torch.stack([each.stream(block + 1)[0].norm(dim=-1)[len(each.prefix) :] for each in traces])
    attention = np.array([share[later] for share in shares], np.float32)
    return _file({"norms": _single(norms), "attention": attention}, facts)


def _stream_arrays(trace: AttentionTrace) -> Arrays:
    """Return lengths and cosines that show how the tokens change from block to block."""
    streams = [trace.stream(block)[0].float() for block in range(trace.depth)]  # L x (N, D)
    lengths = torch.stack([stream.norm(dim=1) for stream in streams])
    start = torch.stack([cosine_similarity(stream, streams[0], dim=1) for stream in streams])
    added = [(after - before).norm(dim=1) for before, after in pairwise(streams)]
    return {
        "lengths": _single(lengths), "start": _single(start),
        "added": _single(torch.stack(added) if added else lengths[:0]),
    }  # fmt: skip


@torch.no_grad()
def _model_arrays(model: ViT, grid: tuple[int, int]) -> tuple[Arrays, dict[str, Any]]:
    """Return a model's arrays for a grid, and facts about it."""
    config, arrays, missing = model.config, {}, {}
    proj = model.patch_embed.proj
    weight = proj.weight.detach()  # (D, 3, p, p)
    count = max(1, min(len(weight), MAX_ELEMENTS // weight[0].numel()))
    strongest = weight.flatten(1).norm(dim=1).topk(count).indices.sort().values  # (K,), all filters if they fit
    arrays["filters"], arrays["channels"] = _half(weight[strongest]), strongest.int().cpu().numpy()
    bias = torch.zeros(count) if proj.bias is None else proj.bias[strongest]
    arrays["bias"] = _single(bias)
    if count < len(weight):
        missing["filters"] = (
            f"The model has {len(weight)} filters, too many to send: these are the {count} with the largest norm."
        )
    added = model.positions(grid)  # (1, gh * gw, D)
    angles = model.angles(grid)
    rotation = angles.rotation if angles and config.positions == "rotary" else None  # 2 x (gh * gw, d)
    table = torch.cat(rotation, dim=-1) if rotation else None if added is None else added[0]
    if table is None:
        missing["positions"] = "This model adds no positions to its tokens."
    elif table.numel() > MAX_ELEMENTS:
        missing["positions"] = "There are too many positions to show at this input size. Choose a smaller one."
    else:
        arrays["positions"] = _half(table)
    starts = [token[0] for token in (model.cls_token, model.dist_token, model.reg_token) if token is not None]
    if starts:
        arrays["prefix"] = _single(torch.cat(starts))  # (P, D)
    else:
        missing["prefix"] = "This model has no tokens in front of the patches."
    facts = {
        "patch": config.patch_size, "grid": list(grid), "width": config.width,
        "heads": config.heads, "headWidth": config.head_size, "depth": config.depth, "hidden": config.hidden,
        "classes": config.classes, "pooling": config.pooling, "positionKind": config.position_kind,
        "learnedGrid": list(config.learned_grid) if config.learned else None,
        "normPre": config.norms.pre, "activation": config.mlp if config.gated else config.activation,
        "epsilon": config.norms.eps, "missing": missing,
    }  # fmt: skip
    return arrays, facts


def _photo_facts(preprocess: Preprocess, width: int, height: int) -> dict[str, Any]:
    """Return the preprocessing of a photograph of this size."""
    (rw, rh), (left, top), (high, wide) = preprocess.plan(width, height)
    return {
        "photo": [width, height], "resized": [rw, rh], "at": [left, top], "input": [high, wide],
        "mode": preprocess.mode, "interpolation": preprocess.interpolation,
        "mean": list(preprocess.mean), "std": list(preprocess.std),
    }  # fmt: skip


def _single(values: Tensor) -> NDArray[Any]:
    return values.detach().float().cpu().contiguous().numpy()


def _half(values: Tensor) -> NDArray[Any]:
    """Return numbers in half precision, or in single precision if they are too large."""
    fits = float(values.abs().max()) <= LARGEST_HALF
    return _single(values).astype(np.float16 if fits else np.float32)


def _file(arrays: Arrays, facts: dict[str, Any]) -> bytes:
    return save(arrays, {"facts": json.dumps(facts)})


def lecture_answers(view: View) -> bytes:
    """Return answers to the lecture's questions for a page without a server, as JSON: {"name", "ask", "answer"}.

    The answers are the layers and, for a model with named classes, the compared maps with their tests, and predictions
    from shuffled patches and without positions.
    """
    answers: list[dict[str, Any]] = [{"name": "layers", "ask": {}, "answer": describe_layers(view)}]
    if view.names_classes:
        (best,) = view.best(1)
        maps = [view.explain(COMPARED[0]), view.explain(COMPARED[1], best)]
        for name, target, heatmap in zip(COMPARED, (None, best), maps, strict=True):
            ask = {"method": name, "target": target, "against": None}
            answers.append({"name": "explain", "ask": ask, "answer": describe_map(heatmap)})
        tests = [describe_test(test) for test in view.faithfulness(maps, best)]
        both = {"methods": list(COMPARED), "target": best, "against": None}
        answers.append({"name": "faithfulness", "ask": both, "answer": tests})
        for shuffle, positions in ((1, True), (0, False), (1, False)):
            ask = {"shuffle": shuffle, "positions": positions}
            answers.append({"name": "rearrange", "ask": ask, "answer": describe_rearranged(view, shuffle, positions)})
    return json.dumps([with_phrases(answer) for answer in answers], allow_nan=False).encode()
