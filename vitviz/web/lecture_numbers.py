"""Write the numbers of the lecture: the steps from a photograph to tokens, and the values of a block.

Files have the format of safetensors, which `compute/tensors.js` reads. The entry `facts` of their metadata is JSON.

| file | array | shape |
|---|---|---|
| scene | levels: the model's input before normalization, 0..255 | (3, H, W) |
| | patch embedding's filters; channels: their indices (0 to D - 1); bias | (K, 3, p, p), (K), (K) |
| | positions: added to each patch; for rotary positions, cosine and sine | (gh * gw, D) or (gh * gw, 2 d) |
| | prefix: the tokens in front of the patches, before the first block | (P, D) |
| block | values | (H, N, d) |
| | center, factor: restore the model's keys and queries from the block file | (H, d) each |

From a block file's queries and keys (see `vitviz.web.payload`), the model's are `query / factor * sqrt(d)` and
`key * factor + center`. A file omits arrays that a model does not have; `missing` in its facts gives the reasons.
Shapes: H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, p patch size.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from vitviz.images.preprocess import Preprocess
from vitviz.model.trace import Trace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE
from vitviz.view import View
from vitviz.web.lecture_texts import LectureError
from vitviz.web.payload import LARGEST_HALF, balance
from vitviz.web.responses import lecture_answers

MOST = 2**21  # maximum number of elements in an array: 4 MB in half precision

Arrays = dict[str, NDArray[Any]]


def lecture_bytes(view: View) -> bytes:
    """Return the file of a scene: pixels, filters, positions and prefix tokens of one photograph and model.

    Raises:
        LectureError: for multi-label classification or regression, which do not use softmax.
    """
    if view.names_classes and view.model.problem_type != SINGLE:
        raise LectureError(
            "Expected a model that chooses one class of several, because the lecture ends with a softmax, got one of "
            f"{view.model.problem_type}. Choose another model."
        )
    levels = np.asarray(view.seen()).transpose(2, 0, 1)  # (H, W, 3) -> (3, H, W)
    arrays, facts = _model_arrays(view.model, view.trace.grid)
    facts |= _photo_facts(view.preprocess, *view.photo.size)
    return _file({"levels": np.ascontiguousarray(levels), **arrays}, facts)


def model_bytes(model: ViT, preprocess: Preprocess) -> bytes:
    """Return the part of a scene's file that is the same for all photographs of one size."""
    grid = model.config.grid_of(preprocess.height, preprocess.width)
    return _file(*_model_arrays(model, grid))


def lecture_parts(view: View) -> dict[str, bytes]:
    """Return the files, by name, that a lecture without a server needs in addition to the block files."""
    values = {f"values-{block}": values_bytes(view.model, view.trace, block) for block in range(view.trace.depth)}
    return {"lecture": lecture_bytes(view), **values, "answers": lecture_answers(view)}


@torch.no_grad()
def values_bytes(model: ViT, trace: Trace, block: int) -> bytes:
    """Return the file of a block: values in half precision, and how its queries and keys were changed.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        block: index from 0.

    Raises:
        LectureError: for a model that adds a bias to the attention logits.
        TraceError: if the trace has no such block.
    """
    if model.config.relative_bias:
        raise LectureError(
            "Expected logits that are queries times keys, got a model that adds a bias, which this step does not show "
            "yet. Choose another model."
        )
    attention, layer = trace.block(block), model.blocks[block]
    values = project_part(layer.attn, layer.enter(trace.stream(block)), parts=slice(2, 3))[0, 0]  # (H, N, d)
    center, factor = balance(attention.queries[0], attention.keys[0])
    return _file({"values": _half(values), "center": _single(center[:, 0]), "factor": _single(factor[:, 0])}, {})


@torch.no_grad()
def _model_arrays(model: ViT, grid: tuple[int, int]) -> tuple[Arrays, dict[str, Any]]:
    """Return a model's arrays for a grid, and facts about it."""
    config, arrays, missing = model.config, {}, {}
    proj = model.patch_embed.proj
    weight = proj.weight.detach()  # (D, 3, p, p)
    count = max(1, min(len(weight), MOST // weight[0].numel()))
    strongest = weight.flatten(1).norm(dim=1).topk(count).indices.sort().values  # (K,), all filters if they fit
    arrays["filters"], arrays["channels"] = _half(weight[strongest]), strongest.int().cpu().numpy()
    bias = torch.zeros(count) if proj.bias is None else proj.bias[strongest]
    arrays["bias"] = _single(bias)
    if count < len(weight):
        missing["filters"] = (
            f"The model has {len(weight)} filters, too many to send: these are the {count} with the largest norm."
        )
    added = model.positions(grid)  # (1, gh * gw, D)
    angles = model.angles(grid)  # 2 x (gh * gw, d)
    turned = angles is not None and config.positions == "rotary" and not config.rotary_learned
    table = torch.cat(angles, dim=-1) if angles and turned else None if added is None else added[0]
    if table is None:
        missing["positions"] = "This model adds no positions to its tokens."
    elif table.numel() > MOST:
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
        "normPre": config.norm_pre, "missing": missing,
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
