"""Compute the answers to the lecture's exercises as their texts define them, from the Python API and the weights."""

from typing import Any

import numpy as np
from js_vectors import head_tensors
from numpy.typing import NDArray
from safetensors.numpy import load

from vitviz.lecture.numbers import token_bytes
from vitviz.view import View

Array = NDArray[np.float64]
WINDOW = 0.05  # relative difference of two mean distances below which they are about equal


def exercise_answers(view: View) -> dict[str, dict[str, Any]]:
    """Return the answers of each step: a number, the index of a choice, and the scores of all patches, (gh * gw).

    The model has a CLS token, learned positions, a classifier of one class, plain attention and a plain MLP.
    """
    config, trace, (rows, columns) = view.model.config, view.trace, view.trace.grid
    side, width, prefix, depth, heads = config.patch_size, config.width, len(trace.prefix), trace.depth, trace.heads
    row, column = rows // 2, columns // 2
    patches, patch, half = rows * columns, row * columns + column, depth // 2
    tokens, token = prefix + patches, prefix + patch
    down, across = np.indices(trace.grid).reshape(2, -1)
    near = np.maximum(abs(down - row), abs(across - column)) <= 1
    distance = np.hypot(down - row, across - column)
    stream = np.stack([trace.stream(block)[0].double().numpy() for block in range(depth)])  # (L, N, D)
    lengths, start, unit = np.linalg.norm(stream, axis=2), stream[0], stream / np.linalg.norm(stream, axis=2)[..., None]
    levels = np.asarray(view.seen()).astype(float)  # (H, W, 3)
    attention = [trace.attentions[block][0].double().numpy()[:, :, prefix:] for block in range(depth)]  # (H, N, n)
    embed, table = view.model.patch_embed.proj, view.model.pos_embed
    filters = embed.weight.detach().double().numpy().reshape(width, -1)
    pixels = cut(view.images[0].double().numpy().transpose(1, 2, 0), side)
    responses = pixels @ filters.T  # (n, D)
    loudest = abs(responses[patch]).argmax()
    places = table[0, -patches:].detach().double().numpy()
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    longest = np.linalg.norm(load(token_bytes(view.model, trace, half, token))["heads"].astype(float), axis=1).argmax()
    queries, keys, _ = head_tensors(view, 0, 0)
    far = [
        np.mean((head[:, token] * distance).sum(1) / head[:, token].sum(1)) for head in (attention[0], attention[-1])
    ]
    inner = heads * trace.head_width
    pairs, matrices = 2 * inner * tokens**2, (4 * width * inner + 2 * width * config.hidden) * tokens
    (_, p), (_, q) = view.predictions(2)
    lens = np.rint(255 * view.lens(view.best(1)).patches[-1, :, :, 0].astype(float)).ravel()
    value = stream[half, token]
    tenth = max(1, patches // 10)
    before = min(half, depth - 2)
    return {
        "question": {"number": max(row, rows - 1 - row, column, columns - 1 - column),
                     "patch": np.where(near, np.nan, attention[0].mean(0)[token])},
        "pixels": {"number": (levels[row * side + side // 2, column * side + side // 2, 0] / 255
                              - view.preprocess.mean[0]) / view.preprocess.std[0],
                   "patch": cut(levels, side).mean(1)},
        "patches": {"number": 3 * side**2, "patch": np.eye(patches)[2 * patches // 5]},
        "embedding": {"number": 3 * side**2 * width, "choice": int(width >= 3 * side**2),
                      "patch": responses[:, loudest]},
        "positions": {"number": tokens, "patch": np.where(near, np.nan, places @ places[patch])},
        "cls": {"number": 100 / tokens, "patch": attention[-1].mean(0)[0]},
        "residual": {"number": lengths[0, token] + np.linalg.norm(stream[1, token] - start[token]),
                     "patch": (unit[-1] * unit[0]).sum(1)[prefix:]},
        "norm": {"number": (value[abs(value).argmax()] - value.mean()) / np.sqrt(value.var() + config.norms.eps),
                 "patch": lengths[half, prefix:]},
        "attention": {"number": (keys @ queries[token]).max() / np.sqrt(trace.head_width),
                      "patch": attention[0][0, token]},
        "projection": {"number": width * inner, "patch": attention[half][longest, token]},
        "mlp": {"number": 2 * width * config.hidden,
                "patch": np.linalg.norm(stream[before + 1] - stream[before], axis=1)[prefix:]},
        "heads": {"number": depth * heads * tokens**2, "patch": attention[-1].mean(0)[token],
                  "choice": 2 if abs(far[0] - far[1]) <= WINDOW * max(far) else int(far[0] < far[1])},
        "cost": {"number": (4 * patches + prefix) ** 2, "choice": int(pairs <= matrices),
                 "patch": attention[-1][0, prefix:].mean(0)},
        "prediction": {"number": np.log(p / q), "patch": lens},
        "training": {"number": np.log(len(view.labels))},
        "explanation": {"number": tenth**2 / patches, "patch": view.explain("rollout").values.ravel()},
        "sinks": {"number": 100 * 3 / tokens},
        "words": {},  # without a captioner
        "closing": {"number": tokens * width},
    }  # fmt: skip


def cut(picture: Array, side: int) -> Array:
    """Cut a picture into patches: (H, W, 3) -> (gh * gw, 3 * side * side)."""
    down, across = picture.shape[0] // side, picture.shape[1] // side
    return picture.reshape(down, side, across, side, 3).transpose(0, 2, 4, 1, 3).reshape(down * across, -1)
