"""Test the terms of a logit against the trace, the writing against decompositions, and cuts against edited runs."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.decomposition import decompose
from vitviz.analysis.edges import edge, position_means
from vitviz.attribution.target_specs import Output
from vitviz.attribution.targets import ExplainError
from vitviz.model.edits import Cut, Edits
from vitviz.model.trace import TraceError
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = {
    "registers, rotary": "frequencies",
    "learned positions and rotations": "frequencies",
    "class token and mean": "channels",
    "attention, distillation, norms after": "channels",
    "talking heads, class attention": "channels",
}
"""Kinds whose logits are not sums over modes."""


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_terms_sum_to_the_logit_of_the_trace(kind: str) -> None:
    model = tiny.model(**tiny.KINDS[kind])
    trace, query, key = model.trace(tiny.images(1)), (2, 3), (5, 1)
    found = edge(model, trace, 1, 2, query, key)
    logits = trace.block(1).logits(found.query, found.query + 1)[0, 2, 0].double()
    assert found.parts == PARTS.get(kind, "modes")
    assert found.logit == pytest.approx(float(logits[found.key] - logits.mean()), abs=1e-5)
    assert found.terms.sum() + found.bias == pytest.approx(found.logit, abs=1e-5)
    assert found.attention == pytest.approx(float(tiny.dense(trace, 1)[0, 2, found.query, found.key]), abs=1e-6)
    parts = decompose(model, trace)
    total = sum(edge(model, trace, 2, 3, token, key).writes for token in range(trace.tokens.shape[1]))
    assert total == pytest.approx(parts.tokens[2, 3, found.key], abs=1e-6)


def test_modes_are_singular_and_the_bias_is_that_of_the_queries() -> None:
    model = tiny.model()
    trace = model.trace(tiny.images(1))
    found = edge(model, trace, 1, 2, "cls", 7)
    x = model.blocks[1].norm1(trace.stream(1))[0].detach().double().numpy()
    d, attn = tiny.HEAD_WIDTH, model.blocks[1].attn
    weight = attn.qkv.weight.detach().double().numpy().reshape(3, tiny.HEADS, d, -1)[:, 2]
    relative = x[7] - x.mean(0)
    u, values, v = np.linalg.svd(weight[0].T @ weight[1])
    np.testing.assert_allclose(found.terms, (d**-0.5 * (x[0] @ u) * values * (v @ relative))[:d], atol=1e-6)
    bias = attn.qkv.bias.detach().double().numpy().reshape(3, tiny.HEADS, d)[0, 2]
    assert found.bias == pytest.approx(d**-0.5 * bias @ weight[1] @ relative, abs=1e-6)
    assert edge(tiny.model(qkv_bias=False), trace, 1, 2, "cls", 7).bias == pytest.approx(0.0, abs=1e-9)


def test_cut_is_the_exact_change_of_the_score() -> None:
    model, images = tiny.model(), tiny.images(1)
    trace = model.trace(images)
    key = int(trace.attention(1)[0, 2, 0].argmax())
    found, cut = (
        edge(model, trace, 1, 2, "cls", key, target=Output(4), cut=True),
        Cut(block=1, head=2, queries=0, keys=key),
    )
    with torch.no_grad():
        change = model(images, Edits(cuts=[cut]))[0, 4] - model(images)[0, 4]
    assert found.cut == pytest.approx(float(change), abs=1e-5)
    assert abs(found.cut) > 1e-4
    assert (found.target, found.scale) == ("the logit of class 4", "logit")


def test_refused_edges() -> None:
    model = tiny.model(classes=0)
    trace = model.trace(tiny.images(1))
    found = edge(model, trace, 1, 2, "cls", 7)
    assert (found.writes, found.cut, found.position, found.target) == (None, None, None, "")
    with pytest.raises(AnalysisError, match="mean"):
        edge(model, trace, 1, 2, "mean", 7)
    with pytest.raises(ExplainError, match="head among"):
        edge(model, trace, 1, 9, "cls", 7)
    with pytest.raises(TraceError, match="7 x 11"):
        edge(model, trace, 1, 2, "cls", (7, 0))


def test_positions_alone_explain_equal_photographs(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (91, 143, 3), dtype=np.uint8)
    for name in "ab":
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    model = tiny.known(registers=1)
    model.position_means = position_means(model, tmp_path, progress=False)
    assert model.position_means.shape == (tiny.DEPTH, 79, tiny.WIDTH)
    view = vitviz.Explorer(model).open(pixels)
    found = view.edge(2, 1, [2, 3], "register 1")
    assert found.position == pytest.approx(found.logit, abs=1e-5)  # every photograph is the mean
    save(model, tmp_path / "saved")
    loaded = load_folder(tmp_path / "saved")
    tiny.close(loaded.position_means, model.position_means, 1e-3)
    other = vitviz.Explorer(loaded).open(pixels, size=26 * 7)  # another grid, to which the means are resized
    assert other.trace.grid != view.trace.grid
    assert np.isfinite(other.edge(2, 1, (2, 3), "cls").position)
    model.position_means = model.position_means[:1]
    save(model, tmp_path / "wrong")
    with pytest.raises(CheckpointError, match="means of shape"):
        load_folder(tmp_path / "wrong")
