"""Write build/vectors.json, the reference numbers for the page's scripts in tests/js/*.test.mjs.

The numbers come from the Python code, or from NumPy for short formulas. `make js` runs this file before `node --test`.
"""

import ast
import base64
import dataclasses
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import tiny
import torch
import viewer_pages
import windowed
from numpy.typing import NDArray
from pairwise import pairs
from pictures import photograph
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

import vitviz
from vitviz.analysis.filters import position_similarity
from vitviz.analysis.pairs import Descriptor, compare_patches, patch_descriptors
from vitviz.analysis.pca_basis import fit_pca
from vitviz.analysis.tokens import PERCENTILES, point_up, principal_components
from vitviz.attribution.attention import attention_scores, rollout_matrix, rollout_scores
from vitviz.attribution.registry import METHODS
from vitviz.draw.colors import lut, shades
from vitviz.draw.overlay import overlay, patch_edges
from vitviz.evaluation.faithfulness import rank_patches, tie_order
from vitviz.explorer import Explorer
from vitviz.formatting import percent, unbroken
from vitviz.heatmap import Scale
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.lecture.numbers import lecture_bytes, token_bytes, values_bytes
from vitviz.model.positions import sincos_positions
from vitviz.model.trace import AttentionTrace, Trace
from vitviz.phrases import phrases
from vitviz.server.menu import Menu
from vitviz.settings import Settings
from vitviz.view import View
from vitviz.web.choices import choices, in_browser
from vitviz.web.first_view import sentence
from vitviz.web.languages import LANGUAGES
from vitviz.web.payload import Dtype, block_bytes, descriptor_bytes, rollout_bytes
from vitviz.weights import zoo
from vitviz.weights.checks import CONFIG

OUT = viewer_pages.ROOT / "build" / "vectors.json"
Array = NDArray[Any]
LIMITS: dict[Dtype, float] = {"float32": 1e-6, "float16": 2e-3}  # maximum error of a probability


def packed(value: Any) -> Any:
    """Encode arrays and bytes for JSON; vectors.mjs decodes them."""
    if isinstance(value, bytes):
        return {"$": "file", "data": base64.b64encode(value).decode()}
    array = value.detach().numpy() if isinstance(value, Tensor) else value
    return {"$": array.dtype.str[1:], "data": base64.b64encode(array.tobytes()).decode()}


# ---- attention ----

MODELS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers": {"registers": 3},
    "distillation": {"distillation_token": True},
    "no class token": {"class_token": False, "pooling": "mean"},
    "a high grid, odd head width": {"grid": (5, 2), "head_width": 3, "heads": 2},
}
OUTLIERS: list[dict[str, float]] = [
    {"key_bias": 300.0},
    {"key_bias": 1e5},  # beyond the largest float16
    {"spread": 6.0},  # queries from 0.001 to 1,000
    {"spread": 14.0},  # above the largest float16 in some channels, below the smallest in others
    {"spread": 3.0, "key_bias": -50.0},
]


@cache
def traced(name: str) -> Trace:
    return tiny.trace(batch=2, **MODELS[name]).image(1)


def outliers(key_bias: float = 0.0, gain: float = 1.0, spread: float = 0.0) -> Trace:
    """Return the trace of a model whose keys share a large offset in one channel.

    Queries and keys are multiplied by `gain`. Channels span `spread` orders of magnitude, in opposite order.
    """
    model = tiny.model(registers=3)
    for block in model.blocks:
        weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
        with torch.no_grad():
            size = 10.0 ** torch.linspace(-spread / 2, spread / 2, tiny.HEAD_WIDTH)  # (d,)
            factor = torch.stack([gain * size, gain / size, torch.ones_like(size)])  # queries, keys, values: (3, d)
            shape = (3, tiny.HEADS, tiny.HEAD_WIDTH)
            weight.mul_(factor[:, None].expand(shape).reshape(-1, 1))
            bias.mul_(factor[:, None].expand(shape).reshape(-1))
            bias.view(shape)[1, :, 3] += key_bias
    return model.trace(tiny.images(1))


def block_case(
    name: str, trace: Trace, block: int, dtype: Dtype, tokens: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return a block's file, and rows and columns (T, H, N) of its attention, for all tokens by default."""
    exact = (trace.attention(block) if trace.windowed else tiny.dense(trace, block))[0].numpy()  # (H, N, N)
    heads, count = exact.shape[:2]
    tokens = tokens or list(range(count))
    sizes = {"heads": heads, "tokens": count, "block": block}
    sizes |= {} if trace.windowed else {"width": trace.head_width}
    return {
        "name": f"{name}, block {block}, {dtype}", "file": block_bytes(trace, block, dtype), "limit": LIMITS[dtype],
        "sizes": {**sizes, "prefix": len(trace.prefix), "grid": trace.grid_in(block)}, "tokens": tokens,
        "rows": exact[:, tokens].swapaxes(0, 1).astype(np.float32),
        "columns": exact[:, :, tokens].transpose(2, 0, 1).astype(np.float32), "fused": [],
    }  # fmt: skip


def fused_case(trace: Trace, block: int, how: Any) -> dict[str, Any]:
    """Return rows (N, N) as Python fuses them, and columns by hand: the mean, or softmax of the extreme logarithm."""
    exact, prefix, count = tiny.dense(trace, block)[0].numpy(), len(trace.prefix), trace.tokens.shape[1]
    extreme = {"mean": exact.mean, "max": exact.max, "min": exact.min}[how](0)  # float64: nothing underflows here
    columns = (extreme / extreme.sum(-1, keepdims=True)).T.astype(np.float32)  # (N, N)
    return {
        "how": how,
        "rows": np.stack([attention_scores(trace, block, how, token)[0].numpy() for token in range(count)]),
        "columns": columns,
        "meanRow": attention_scores(trace, block, how, "mean")[0].numpy(),
        "meanColumn": columns[prefix:].mean(0),
    }


def tiny_blocks() -> Iterator[dict[str, Any]]:
    for name, block in product(MODELS, range(tiny.DEPTH)):
        trace = traced(name)
        block_trace = trace.block(block)
        queries, keys = block_trace.queries[0], block_trace.keys[0]  # (H, N, d)
        sent = {"queries": queries, "keys": keys, "lse": (queries.double() @ keys.double().mT).logsumexp(-1)}
        means = {"meanRow": trace.row(block, "mean")[0], "meanColumn": trace.column(block, "mean")[0]}
        fused = [fused_case(trace, block, how) for how in ("mean", "max", "min")]
        for dtype in LIMITS:
            case = {**block_case(name, trace, block, dtype), **means, "fused": fused}
            yield {**case, "sent": sent} if dtype == "float32" else case


@cache
def swin(**changes: Any) -> AttentionTrace:
    model = windowed.small(img_size=(16, 24), **changes)
    return model.trace(torch.randn(1, 3, 16, 24, generator=torch.Generator().manual_seed(7)))


def windowed_blocks() -> Iterator[dict[str, Any]]:
    """Yield blocks with windows: shifted, merged, padded, and without windows in between (SAM)."""
    for name, changes in (("Swin", {}), ("SAM", windowed.LIKE_SAM)):
        trace = swin(**changes)
        for block in range(trace.depth):
            count = trace.attention(block).shape[-1]
            means = {"meanRow": trace.row(block, "mean")[0], "meanColumn": trace.column(block, "mean")[0]}
            fused = []
            for how in ("mean", "max", "min"):
                rows = torch.cat([attention_scores(trace, block, how, token) for token in range(count)])  # (N, N)
                of_patches = {"meanRow": rows.mean(0), "meanColumn": rows.mean(1)}
                fused.append({"how": how, "rows": rows, "columns": rows.T.contiguous(), **of_patches})
            for dtype in LIMITS:
                yield {**block_case(name, trace, block, dtype), **means, "fused": fused}


def real_blocks() -> Iterator[dict[str, Any]]:
    """Yield all blocks of the bundled model, with the token of the sharpest attention, where rounding matters most."""
    trace = Explorer(vitviz.load("dinov2-s14-imagenette")).open(viewer_pages.CHURCH).trace
    for block in range(trace.depth):
        exact = tiny.dense(trace, block)[0]
        count = exact.shape[1]
        peak = int(exact.amax(0).argmax()) % count
        yield block_case("DINOv2", trace, block, "float16", [0, peak, 1 + count // 2, *range(1, count, 37)])


# ---- functions that return the same values as Python's ----

PATCHES = (3, 7)  # different primes reveal a swapped axis
PREFIX = ["CLS", "distillation", "register 1", "register 2"]
Call = dict[str, Any]


def call(function: str, args: Any, expected: Any, atol: float = 0.0, rtol: float = 0.0, written: Any = ()) -> Call:
    """Return a call of "folder/module.function", with its result, and the arrays that it writes, by argument index.

    `expected` is None for nothing, null and NaN.
    """
    return {
        "function": function, "args": args, "expected": expected, "atol": atol, "rtol": rtol, "written": dict(written),
    }  # fmt: skip


def rgba(picture: Image.Image) -> Array:
    return np.asarray(picture.convert("RGBA"))


def prepared(width: int, height: int, **settings: Any) -> Geometry:
    return Preprocess(**{"height": 48, "width": 112, **settings})(photograph(width, height)).geometry


GEOMETRIES = {
    "crop, wide": prepared(131, 67, mode="crop"),
    "crop, high": prepared(67, 131, mode="crop"),
    "squash": prepared(101, 83, mode="squash"),
    "pad": prepared(59, 97, mode="pad"),
    "native": prepared(113, 71, mode="native", multiple=16),
    "between pixels": Geometry((120, 90), (48, 112), (20.3, 11.7, 101.8, 80.6)),
    "edges on pixel centres": Geometry((30, 9), (48, 112), (1.5, 0.5, 22.5, 6.5)),
    "patches below a pixel": Geometry((5, 2), (48, 112), (-1.0, 0.2, 4.4, 1.9)),
    "nothing seen": Geometry((40, 30), (48, 112), (50.0, 40.0, 90.0, 60.0)),
    "an edge missed by rounding": Geometry((130, 140), (48, 112), (20.1, 20.1, 114.7, 114.7)),
    "large": Geometry((393, 201), (48, 112), (28.0, 16.7, 363.8, 183.1)),
}


def plain(geometry: Geometry) -> dict[str, Any]:
    """Return a geometry in the page's format."""
    return {"image": geometry.image, "frame": geometry.frame}


def rollout_calls() -> Iterator[Call]:
    changed_options = {"fuse": "max", "discard": 0.5, "residual": 0.25, "start": 1}
    for (name, options), half in product(
        (
            ("registers", {}),
            ("no class token", {}),
            ("registers", changed_options),
            ("Swin", {}),
            ("Swin", {"start": 2}),
        ),
        (0, 1),
    ):
        trace, limit = (swin() if name == "Swin" else traced(name)), (1e-6, 2e-3)[half]
        count, prefix = trace.tokens.shape[1], len(trace.prefix)
        matrix = rollout_matrix(trace, **options)[0].numpy()  # (rows, N)
        grid = trace.entered_grid(options.get("start", 0))
        page = {
            "rows": count,
            "tokens": matrix.shape[1],
            "start": options.get("start", 0),
            "prefix": prefix,
            "grid": grid,
        }
        file = rollout_bytes(trace, ("float32", "float16")[half], **options)
        yield call("web/compute/payload.parseRollout", [file], {**page, "matrix": matrix}, atol=half * 2.0**-12)

        sent = matrix.astype((np.float32, np.float16)[half]).astype(np.float32)
        page = {**page, "matrix": sent}
        out, out_column = (np.full(side, 77, np.float32) for side in (matrix.shape[1], count))
        means = {"Row": rollout_scores(trace, "mean", **options)[0].numpy(), "Column": matrix[:, prefix:].mean(1)}
        for kind, mean in means.items():
            empty = np.full(len(mean), 77, np.float32)
            patches = [prefix, {"Row": count, "Column": matrix.shape[1]}[kind]]
            yield call(f"web/compute/rollout.rollout{kind}", [page, patches, empty], None, limit, written={2: mean})
        shares = sent.astype(np.float64) / sent.sum(1, dtype=np.float64, keepdims=True)
        for token in (0, prefix, 23, count - 1):
            row, one = rollout_scores(trace, token, **options)[0].numpy(), [token, token + 1]
            for expected, atol in ((row, limit), (shares[token], 1e-7)):  # only shares sum to exactly 1
                yield call("web/compute/rollout.rolloutRow", [page, one, out], None, atol, written={2: expected})
            column = {2: matrix[:, token]}
            yield call("web/compute/rollout.rolloutColumn", [page, one, out_column], None, limit, written=column)


def similarity_calls() -> Iterator[Call]:
    model = tiny.model(**tiny.SMALL)
    traces = [model.trace(tiny.images(1, seed, grid, 2)) for seed, grid in ((1, (3, 5)), (2, (4, 3)))]
    for descriptor, half in product(get_args(Descriptor), (0, 1)):
        expected, pages = compare_patches(model, *traces, descriptor), []
        for trace in traces:
            vectors = normalize(patch_descriptors(model, trace, descriptor, expected.block), dim=-1)
            sizes = {"tokens": vectors.shape[0], "width": vectors.shape[1], "block": expected.block}
            pages.append({**sizes, "grid": trace.grid, "vectors": vectors})
            file = descriptor_bytes(model, trace, descriptor, expected.block, ("float32", "float16")[half])
            yield call("web/compute/payload.parseDescriptors", [file], pages[-1], atol=(1e-6, 1e-3)[half])
        if half:
            continue
        matches = [dataclasses.asdict(match) for match in expected.mutual()]
        yield call("web/compute/similarity.mutual", pages, matches, atol=1e-6)
        basis = fit_pca(model, traces, descriptor, expected.block)
        fitted = {
            "components": [
                {"axis": axis, "share": float(share)}
                for axis, share in zip(basis.components, basis.explained, strict=True)
            ],
            "low": basis.low, "high": basis.high, "threshold": basis.threshold,
            "scores": [[*basis.scores(model, trace).reshape(-1, 3).T] for trace in traces],
        }  # fmt: skip
        yield call("web/compute/pca_basis.fitBasis", [pages, PERCENTILES], fitted, atol=1e-4)
        row, out = expected.cosines[1, 3].ravel(), np.full(12, 77, np.float32)
        yield call("web/compute/similarity.cosines", [pages[0], 8, pages[1], out], None, 1e-6, written={3: row})


def preprocess_calls() -> Iterator[Call]:
    sizes = ((90, 60), (61, 97), (224, 224), (30, 40), (300, 75), (17, 400), (1, 9))
    filters = ("bilinear", "bicubic", "lanczos")
    special: dict[str, dict[str, Any]] = {
        "cover": {"mode": "crop", "resize": (61, 79)},
        "tall": {"mode": "crop", "height": 70, "width": 56},
        "squash and crop": {"mode": "squash", "resize": (61, 79)},
    }
    for mode, size, interpolation in pairs(("crop", "squash", "pad", "native", *special), sizes, filters):
        settings = {"height": 56, "width": 70, **special.get(mode, {"mode": mode})}
        preprocess = Preprocess(**settings, multiple=14, interpolation=interpolation)
        photo = photograph(*size)
        prepared_photo, args = preprocess(photo), [preprocess.to_dict(), rgba(photo), *size]
        height, width = prepared_photo.geometry.input
        shape = {"height": height, "width": width, "frame": prepared_photo.geometry.frame}
        yield call("web/compute/image.prepare", args, shape, atol=1e-9, rtol=1e-12)
        yield call("web/compute/image.prepare", args, {"pixels": prepared_photo.pixels}, atol=1e-5)
    preprocess, photo = Preprocess(mode="squash", height=20, width=30), photograph(30, 20)
    restored = {"pixels": preprocess(photo).pixels, "height": 20, "width": 30}
    yield call("web/compute/image.restore", [preprocess.to_dict(), restored], rgba(photo))


def points(geometry: Geometry) -> list[tuple[float, float]]:
    """Return points on every edge, one floating-point step beside it, at pixel corners and centres, and outside."""
    on = [geometry.patch_box(row, column, PATCHES)[:2] for row, column in np.ndindex(PATCHES)]
    beside = [(np.nextafter(x, -9e9), np.nextafter(y, 9e9)) for x, y in on]
    width, height = geometry.image
    spread = np.random.default_rng(3).uniform((-9, -9), (width + 9, height + 9), (60, 2)).tolist()
    (x0, y0, x1, y1), (xm, ym) = geometry.seen, (width / 2, height / 2)
    ends = [(x0, ym), (x1, ym), (xm, y0), (xm, y1)]
    corners = [(0, 0), (width, height), (width - 1, height - 1), (0.5, 0.5), (x0, y0), (x1, y1)]
    return [(float(x), float(y)) for x, y in [*on, *beside, *spread, *corners, *ends]]


def geometry_calls() -> Iterator[Call]:
    for geometry in GEOMETRIES.values():
        page = plain(geometry)
        xs, ys = patch_edges(geometry, PATCHES)
        yield call("web/compute/geometry.seenBox", [page], geometry.seen)
        yield call("web/compute/geometry.patchEdges", [page, PATCHES], {"xs": xs.tolist(), "ys": ys.tolist()})
        for patch in np.ndindex(PATCHES):
            yield call("web/compute/geometry.patchBox", [page, *patch, PATCHES], geometry.patch_box(*patch, PATCHES))
        for x, y in points(geometry):
            yield call("web/compute/geometry.patchAt", [page, x, y, PATCHES], geometry.patch_at(x, y, PATCHES))
    tokens: dict[Any, int] = {"cls": 0, "register 2": 3, "mean": -1, "register 3": -1}
    for query, token in {**tokens, (0, 0): 4, (2, 6): 24, (1, 2): 13, (3, 0): -1, (0, 7): -1}.items():
        yield call("web/compute/geometry.tokenOf", [query, PREFIX, PATCHES], token)


def same_place_calls() -> Iterator[Call]:
    """Yield, for patches of one model, the patch of another model at the same place in the photograph."""
    grid, full_geometry = (7, 15), prepared(150, 70, mode="native", multiple=10)
    source = {"geometry": plain(full_geometry), "grid": grid}
    yield call("web/compute/geometry.samePlace", [[3, 9], source, source], [3, 9])
    nothing = {"geometry": plain(GEOMETRIES["nothing seen"]), "grid": PATCHES}
    yield call("web/compute/geometry.samePlace", [[3, 9], source, nothing], [0, 0])
    for partial in (prepared(150, 70, mode=mode) for mode in ("crop", "pad", "squash")):
        left, top, right, bottom = partial.seen
        target = {"geometry": plain(partial), "grid": PATCHES}
        for patch in np.ndindex(grid):
            x0, y0, x1, y1 = full_geometry.patch_box(*patch, grid)
            x = min(max((x0 + x1) / 2, left), right - 1e-3)
            y = min(max((y0 + y1) / 2, top), bottom - 1e-3)
            yield call("web/compute/geometry.samePlace", [patch, source, target], partial.patch_at(x, y, PATCHES))


def statistic_calls() -> Iterator[Call]:
    """Yield statistics of a row that sums to 1, with some exact zeros and two equal patches."""
    prefix, grid = len(PREFIX), (5, 7)
    count = prefix + grid[0] * grid[1]
    wide = np.random.default_rng(0).exponential(size=count)
    wide[[6, 20]], wide[[11, 30]] = 0.0, 4.0
    row = (wide / wide.sum()).astype(np.float32)
    exact, patches = row.astype(np.float64), row[prefix:].astype(np.float64)

    kinds = np.array([1, 3, 2, 2], np.uint8)
    yield call("web/compute/statistics.prefixKinds", [PREFIX], kinds)
    for query in (9, 0, -1):
        masses = [patches.sum(), exact[0], exact[2] + exact[3], exact[1], exact[query] if query >= 0 else np.nan]
        args = [row, kinds, query, np.full(5, 77.0)]
        yield call("web/compute/statistics.masses", args, None, atol=1e-12, written={3: np.array(masses)})

    for k, signed in product((1, 5, 12, 99), (False, True)):
        values = row - np.float32(0.05 if signed else 0.0)
        order = np.argsort(-np.abs(values[prefix:]) if signed else -values[prefix:], kind="stable")[:k]
        out = np.full(k, 77, np.int32)
        written = np.concatenate([order, out[len(order) :]]).astype(np.int32)
        args = [values, prefix, count, signed, out]
        yield call("web/compute/statistics.topPatches", args, len(order), written={4: written})

    for start, stop in ((0, count), (prefix, count), (8, 9)):
        share = exact[start:stop][exact[start:stop] > 0] / exact[start:stop].sum()
        entropy = -(share * np.log(share)).sum()
        relative = entropy / np.log(stop - start) if stop - start > 1 else 0.0
        yield call("web/compute/statistics.entropy", [row, start, stop], entropy, atol=1e-12)
        yield call("web/compute/statistics.share", [entropy, stop - start], relative, atol=1e-12)
    yield call("web/compute/statistics.entropy", [np.full(32, 0.01, np.float32), 0, 32], np.log(32), atol=1e-6)
    yield call("web/compute/statistics.entropy", [np.zeros(9, np.float32), 0, 9], None)

    on_cls, halved = np.eye(1, count, dtype=np.float32)[0], row.copy()
    halved[prefix:] /= 2
    halved[0] += halved[prefix:].sum()  # more attention on CLS does not change the distance among patches
    rows, columns = np.indices(grid)
    for r, c in ((0, 0), (4, 6), (2, 3)):
        distance = (patches.reshape(grid) / patches.sum() * np.hypot(rows - r, columns - c)).sum()
        for values, atol in ((row, 1e-12), (halved, 1e-6)):
            yield call("web/compute/statistics.meanDistance", [values, prefix, grid, [r, c]], distance, atol)
    for values, patch in ((row, None), (on_cls, [0, 0])):
        yield call("web/compute/statistics.meanDistance", [values, prefix, grid, patch], None)


LOOKS: dict[str, dict[str, Any]] = {
    "blocks": {"unseen": False},
    "smooth": {"unseen": False, "smooth": True},
    "hatched": {"alpha": 0.3},
    "with a grid": {"grid": True, "alpha": 0.8},
    "smooth, grey, with everything": {"smooth": True, "gray": True, "grid": True, "query": (1, 4), "gamma": 0.6},
    "a query in the corner": {"query": (0, 0), "alpha": 0.0},
    "signed": {"signed": True, "cmap": "RdBu_r", "alpha": 1.0, "smooth": True},
    "an outlier patch": {"beyond": 9.0},
    "a signed outlier patch": {"beyond": -9.0, "signed": True, "cmap": "RdBu_r"},
    "a given scale": {"scale": Scale(0.2, 0.6), "cmap": "magma"},
}


def limits_of(scale: Scale) -> dict[str, Any]:
    return {"vmin": scale.vmin, "vmax": scale.vmax, "signed": scale.signed}


def color_calls() -> Iterator[Call]:
    random = np.random.default_rng(5)
    values = np.concatenate([random.normal(size=400), np.linspace(-1, 1, 511), [-9, 9, 0]]).astype(np.float32)
    halves = np.arange(255, dtype=np.float32) + 0.5  # exactly between two colours: rounded to the even one
    for numbers, signed, gamma, limits in [
        (values, False, 1.0, (-0.7, 1.3)), (values, False, 0.4, (-0.7, 1.3)), (values, False, 2.0, (0.0, 1.0)),
        (values, True, 1.0, (-1.0, 1.0)), (values, True, 0.5, (-1.3, 1.3)), (values, False, 1.0, (0.2, 0.2)),
        (values, True, 0.3, (0.0, 0.0)), (values, False, 1.0, (-1.0, 1.0)), (halves, False, 1.0, (0.0, 255.0)),
    ]:  # fmt: skip
        scale = Scale(*limits, "fixed", signed)
        for start in (0, 20):  # 20: the values of a later head
            expected = scale.indices(numbers[start:], gamma)
            args = [numbers, limits_of(scale), gamma, np.full(len(expected), 77, np.uint8), start]
            yield call("web/draw/color.indices", args, None, written={3: expected})
    table = lut("viridis")
    page = np.insert(table, 3, 255, axis=1).view("<u4").ravel()
    gray = (table @ [0.2126, 0.7152, 0.0722])[:, None]  # (256, 1), as grayscale() of CSS has it
    faded = np.floor(table + 0.6 * (gray - table) + 0.5).astype(np.uint8)
    yield call("web/draw/color.packed", [table], page)
    yield call("web/draw/color.faded", [page], np.insert(faded, 3, 255, axis=1).view("<u4").ravel())
    index = np.array([0, 255, 128, 3], np.uint8)
    yield call("web/draw/color.shades", [index], shades(index).view("<u4").ravel())
    yield call("web/draw/color.colorGrid", [index, page, np.full(4, 77, np.uint32)], None, written={2: page[index]})
    maps = [np.array([0.1, -0.4, 0.2], np.float32), np.array([0.3, 0.0], np.float32)]
    for signed in (False, True):
        expected = limits_of(Scale.over([scores[None] for scores in maps], "shared", signed))
        yield call("web/draw/color.scaleOver", [maps, signed], expected)


def sentence_calls() -> Iterator[Call]:
    """Yield what the first view of a page says about a token without a place, from peaked to even rows."""
    random = np.random.default_rng(7)
    for number in range(60):
        grid = ((1, 1), (2, 5), (7, 11))[number % 3]
        row = np.exp(8 * random.random() * random.random(2 + grid[0] * grid[1]) ** random.integers(1, 9))
        row[:2] *= random.choice([0, 1, 99])
        row /= row.sum()
        spread = -(row[row > 0] * np.log(row[row > 0])).sum() / np.log(len(row))
        about = {"prefix": 2, "grid": grid, "patch": None, "spread": spread}
        yield call("web/compute/sentence.sentence", [row, about], sentence(row, 2, grid))


def picture_calls() -> Iterator[Call]:
    """Yield every style over every geometry, then other grids."""
    for geometry, look in product(GEOMETRIES.values(), LOOKS.values()):
        values = np.random.default_rng(2).random(PATCHES).astype(np.float32)
        values -= 0.5 if look.get("signed") else 0.0
        values[1, 3] = look.get("beyond", values[1, 3])
        yield picture_call(geometry, values, **{key: look[key] for key in look if key != "beyond"})
    for grid in ((1, 1), (16, 16), (37, 50)):
        values = np.random.default_rng(4).random(grid).astype(np.float32)
        yield picture_call(GEOMETRIES["crop, wide"], values, smooth=True, grid=True, query=(0, 0))


def picture_call(geometry: Geometry, values: Array, cmap: str = "viridis", **look: Any) -> Call:
    photo = photograph(*geometry.image)
    picture = rgba(overlay(photo, values, geometry, cmap=cmap, **look))
    options = {key: limits_of(value) if key == "scale" else value for key, value in look.items()}
    args = [rgba(photo), values, values.shape, plain(geometry), lut(cmap), options]
    return call("../tests/js/picture.overlay", args, picture, atol=1)


def format_calls() -> Iterator[Call]:
    for index in range(4097):  # many are halfway between two rounded values
        yield call("web/compute/format.percent", [index / 4096], unbroken(percent(index / 4096)))
    for name, function in (("percent", "percent"), ("prediction", "describePrediction")):
        for *args, text in json.loads((viewer_pages.ROOT / f"tests/{name}_cases.json").read_text(encoding="utf-8")):
            if args[0] is not None:  # JSON has no number that is not finite
                yield call(f"web/compute/format.{function}", args, unbroken(text))


# ---- the static site ----

SPECTRA = ((1.0, 0.9999, 0.96), (1.0, 1.0 - 1e-6, 0.5), (5.0, 1.0, 0.999), (1.0, 0.9))  # the last has two dimensions


def zip_calls() -> Iterator[Call]:
    """Compare with zipfile, byte by byte; it writes the flag for UTF-8 only if a name needs it."""
    files = {"é.npy": np.arange(300, dtype=np.uint8), "图.npy": np.zeros(0, np.uint8)}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.create_system = 0
            archive.writestr(entry, data.tobytes())
            entry.external_attr = 0  # no permissions in the directory, which is written last
    yield call("web/compute/zip.zip", [files], np.frombuffer(whole.getvalue(), np.uint8))


def site_calls() -> Iterator[Call]:
    ties = tie_order(300, 7).tolist()
    for patches in (1, 77, 300):
        yield call("site/worker/orders.orderOf", [ties, patches], tie_order(patches, 7).tolist())
        scores = torch.arange(patches).remainder(5).double()[None]  # many are equal
        yield call("site/worker/orders.rankPatches", [scores[0], ties], rank_patches(scores, 7)[0].tolist())
    for count, width in ((40, 23), (23, 40)):
        for spectrum in SPECTRA:
            samples = tiny_samples(count, width, spectrum)
            axes, shares = principal_components(samples)
            axes = point_up(axes)
            expected = [{"axis": axis, "share": float(share)} for axis, share in zip(axes, shares, strict=True)]
            yield call("web/compute/components.principalComponents", [list(samples)], expected, atol=1e-7)


def tiny_samples(count: int, width: int, spectrum: tuple[float, ...]) -> Tensor:
    """Return samples (n, D) of mean 0 with these first variances, up to a factor; more follow if there are three."""
    generator = torch.Generator().manual_seed(3)
    more = (0.4 * 0.9 ** np.arange(15)).tolist() if len(spectrum) == 3 else []
    values = torch.tensor([*spectrum, *more], dtype=torch.float64)
    random = torch.randn(count, len(values), generator=generator, dtype=torch.float64)
    left = torch.linalg.qr(random - random.mean(0))[0]
    right = torch.linalg.qr(torch.randn(width, len(values), generator=generator, dtype=torch.float64))[0]
    return (left * values.sqrt()) @ right.T  # (n, k) @ (k, D)


# ---- the lecture ----

BLOCK, HEAD, PATCH = 1, 3, (2, 5)


def head_tensors(view: View, block: int, head: int) -> tuple[Array, Array, Array]:
    """Return queries before the scale, keys and values (N, d) of a head, from the model's weights alone."""
    layer, (heads, width) = view.model.blocks[block], (view.trace.heads, view.trace.head_width)
    stream = view.trace.stream(block)[0].double().numpy()  # (N, D)
    norm, qkv = layer.norm1, layer.attn.qkv
    gamma, beta, weight, bias = (t.detach().double().numpy() for t in (norm.weight, norm.bias, qkv.weight, qkv.bias))
    centered = stream - stream.mean(1, keepdims=True)
    normed = centered / np.sqrt((centered**2).mean(1, keepdims=True) + norm.eps) * gamma + beta
    every = (normed @ weight.T + bias).reshape(len(stream), 3, heads, width)  # (N, 3, H, d)
    return every[:, 0, head], every[:, 1, head], every[:, 2, head]


def lecture() -> dict[str, Any]:
    view = viewer_pages.view()
    model, trace, grid = view.model, view.trace, view.trace.grid
    token = len(trace.prefix) + PATCH[0] * grid[1] + PATCH[1]
    left, top, right, bottom = view.geometry.frame
    seen = (min(right, view.photo.width) - max(left, 0)) * (min(bottom, view.photo.height) - max(top, 0))
    with torch.no_grad():
        embedded = model.patch_embed(view.images)[0].unflatten(0, grid)  # (gh, gw, D)
    queries, keys, values = head_tensors(view, BLOCK, HEAD)
    dots = keys @ queries[token]  # (N, d) @ (d,) -> (N,)
    powers = np.exp(dots / np.sqrt(trace.head_width))
    weights = powers / powers.sum()
    return {
        "lecture": lecture_bytes(view), "block": block_bytes(trace, BLOCK), "values": values_bytes(model, trace, BLOCK),
        "head": HEAD, "patch": PATCH, "token": token, "input": view.size, "grid": grid, "pixels": view.images,
        "kept": seen / (view.photo.width * view.photo.height), "scale": view.size[1] / (right - left),
        "embedded": embedded[PATCH], "map": embedded[..., 4], "similar": position_similarity(model, grid)[PATCH],
        "sines": sincos_positions(grid, 20), "prefix": trace.stream(0)[0, : len(trace.prefix)],
        "query": queries[token], "dots": dots, "weights": weights, "row": trace.row(BLOCK, token)[0, HEAD],
        "sum": weights @ values, "largestValue": float(np.abs(values).max()),
        "parts": token_bytes(model, trace, BLOCK, token), "blockAt": BLOCK,
        "normed": model.blocks[BLOCK].norm1(trace.stream(BLOCK))[0, token].detach(),
        "added": float((trace.stream(BLOCK + 1) - trace.stream(BLOCK))[0, token].norm()),
    }  # fmt: skip


def lectures_with_gaps() -> dict[str, Any]:
    files: dict[str, Any] = {}
    for positions in ("none", "rotary"):
        model = tiny.model(positions=positions, head_width=8, class_token=False, pooling="mean", patch_bias=False)
        view = Explorer(model).open(viewer_pages.photograph(200, 170))
        files[positions], angles = lecture_bytes(view), model.angles(view.trace.grid)
    cos, sin = (table.numpy() for table in angles.rotation)
    turned = np.arctan2(sin, cos)
    return {**files, "similar": np.cos(turned - turned[9]).mean(1)}


# ---- texts that the page translates ----


def sent() -> dict[str, int]:
    """Return the keys of the texts that Python sends to the page, with their numbers of values.

    These are the phrases in the code, and those declared with a method, a statistic, a question or a model.
    """
    tips = [entry.tip for _, entries in Menu(Settings()).groups for entry in entries]
    keys = {each["key"]: len(each["values"]) for each in phrases((choices(), tips)).values()}
    for path in (viewer_pages.ROOT / "vitviz").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name("Phrase"), args=[ast.Constant(str(key)), _, *values]):
                    keys[key] = sum(map(_count, values))
    return keys


def _count(argument: ast.expr) -> int:
    """Return the number of values in a call's argument; ten in `*values`, whose number the code does not show."""
    match argument:
        case ast.Starred(ast.Tuple(elements)):
            return len(elements)
        case ast.Starred():
            return 10
    return 1


def labels() -> Iterator[str]:
    """Yield the classes of the bundled models, and the groups of these."""
    for name in zoo.bundled():
        about = json.loads((zoo.folder_of(name) / CONFIG).read_text(encoding="utf-8"))
        yield from (*about["labels"], *(group[0] for group in about.get("groups", ())))


def vectors() -> dict[str, Any]:
    numbers = [*rollout_calls(), *similarity_calls(), *preprocess_calls(), *geometry_calls()]
    return {
        "blocks": [*tiny_blocks(), *windowed_blocks(), *real_blocks()],
        "outliers": [block_case(str(kind), outliers(**kind), 1, "float16") for kind in OUTLIERS],
        "calls": [
            *numbers,
            *same_place_calls(),
            *statistic_calls(),
            *color_calls(),
            *sentence_calls(),
            *picture_calls(),
            *format_calls(),
            *zip_calls(),
            *site_calls(),
        ],
        "viridis": lut("viridis"),
        "lecture": lecture(),
        "lecturesWithGaps": lectures_with_gaps(),
        "inBrowser": in_browser(METHODS),
        "sent": sent(),
        "labels": sorted(set(labels())),
        "languages": LANGUAGES,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(vectors(), default=packed, allow_nan=False))
