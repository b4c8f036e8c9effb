"""Test that planted neurons of outliers are found exactly, and that registers take their norms."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tiny
import torch
from torch import Tensor

import vitviz
from vitviz.analysis.sinks import sinks
from vitviz.analysis.tokens import token_norms
from vitviz.errors import VitvizError
from vitviz.images.decoding import decode
from vitviz.lecture.numbers import planted_bytes, site_files
from vitviz.lecture.texts import LectureError
from vitviz.model.config import ModelError
from vitviz.model.edits import Edits
from vitviz.model.registers import find_neurons, plant_neurons, without_neurons
from vitviz.model.vit import ViT
from vitviz.resources import examples
from vitviz.site import onnx
from vitviz.weights.checkpoint import save

pytestmark = pytest.mark.usefixtures("one_thread")
PLANTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers, rotary": tiny.KINDS["registers, rotary"],
    "gated": {"mlp": "swiglu"},
    "parallel, mean": {"class_token": False, "pooling": "mean", "parallel": True},
    "positions between blocks, distillation": {"distillation_token": True, "table": {"between": True}},
}
CASES = [(list(PLANTED)[seed % len(PLANTED)], seed) for seed in range(20)]


def planted(kind: str, seed: int) -> tuple[ViT, Tensor, set[tuple[int, int]], set[int]]:
    """Return a model, an image, the planted neurons (block, index) and the outlying patches."""
    model, images = tiny.model(seed, depth=4, **PLANTED[kind]), tiny.images(1, seed)
    block, count = seed % 3, 1 + seed % 3
    neurons = torch.randperm(model.config.hidden, generator=torch.Generator().manual_seed(seed))[:count].tolist()
    model, (patches,) = plant_neurons(model, images, block, neurons, patches=1 + seed % 4, seed=seed)
    return model, images, {(block, index) for index in neurons}, patches


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_planted_neurons_are_found_exactly_and_registers_take_the_norms(kind: str, seed: int) -> None:
    model, images, neurons, patches = planted(kind, seed)
    trace = model.trace(images)
    found = sinks(model, trace)
    block = min(block for block, _ in neurons)
    assert {(neuron.block, neuron.index) for neuron in found.neurons} == neurons  # precision and recall 1
    assert {sink.token for sink in found.sinks if sink.block == block} == patches
    assert sum(neuron.share for neuron in found.neurons) == pytest.approx(1.0, abs=0.2)
    tiny.close(found.change.logits_after, without_neurons(model, neurons)(images))
    tiny.close(found.change.logits_before, model(images))

    repaired = model.with_registers(2, sorted(neurons))
    after, prefix = repaired.trace(images), len(repaired.config.prefix)
    assert after.prefix[-2:] == tuple(f"register {model.config.registers + i}" for i in (1, 2))
    norms = token_norms(repaired, after)
    assert not norms.outliers.any()
    ordinary = sorted(set(range(77)) - {patch - len(trace.prefix) for patch in patches})
    others = token_norms(model, trace).norms[block, len(trace.prefix) :][ordinary]
    assert norms.norms[block, prefix:].max() <= 1.2 * others.max()
    assert norms.norms[block, prefix - 2] > 5 * np.median(norms.norms[block, prefix:])
    tiny.close(repaired(images), after.logits, 1e-4)
    keep = torch.arange(11, 55)[None]
    tiny.close(repaired(images, Edits(keep=keep)), repaired.trace(images, edits=Edits(keep=keep)).logits, 1e-4)


def test_without_the_neurons_of_one_block() -> None:
    model, images = tiny.model(depth=4), tiny.images(1)
    planted = {0: [3, 7], 1: [5]}
    for block, neurons in planted.items():
        model, _ = plant_neurons(model, images, block, neurons, seed=block)
    trace, whole = model.trace(images), sinks(model, model.trace(images))
    for block, neurons in planted.items():

        def silence(_module: object, entering: tuple[Tensor], of: list[int] = neurons) -> Tensor:
            return entering[0].index_fill(-1, torch.tensor(of), 0.0)

        handle = model.blocks[block].mlp.fc2.register_forward_pre_hook(silence)
        expected = model(images)
        handle.remove()
        found = sinks(model, trace, block=block)
        tiny.close(found.change.logits_after, expected)
        assert (found.neurons, found.sinks) == (whole.neurons, whole.sinks)
    assert not torch.allclose(torch.as_tensor(found.change.logits_after), torch.as_tensor(whole.change.logits_after))
    with pytest.raises(VitvizError, match=r"got 2. Choose one of \[0, 1\]"):
        sinks(model, trace, block=2)
    with pytest.raises(VitvizError, match="omit block="):
        sinks(tiny.model(), tiny.model().trace(images), block=0)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_without_neurons_a_register_changes_only_the_attention_to_it(kind: str) -> None:
    """Check that every kind of model takes registers, and that the last block's key is the only difference."""
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images(1)
    repaired = model.with_registers(1, [])
    assert (repaired.config.registers, repaired.config.test_registers) == (model.config.registers + 1, 1)
    trace, before = repaired.trace(images), model.trace(images)
    prefix = len(before.prefix)
    tiny.close(trace.stream(0)[:, prefix + 1 :], before.stream(0)[:, prefix:])
    logits, expected = trace.block(0).logits(prefix + 1, prefix + 2), before.block(0).logits(prefix, prefix + 1)
    rest = torch.cat([logits[..., :prefix], logits[..., prefix + 1 :]], dim=-1)
    tiny.close(rest, expected, 1e-4)
    assert repaired.head.weight.data_ptr() == model.head.weight.data_ptr()  # weights are shared


def test_methods_explain_a_repaired_model() -> None:
    model, images, neurons, _ = planted("plain", 0)
    repaired = model.with_registers(1, sorted(neurons))
    logit = float(repaired(images)[0, 3].detach())
    for method in ("attn_lrp", "transformer_lrp", "gae", "rollout"):
        (heatmap,) = vitviz.attribute(repaired, images, 3, method)
        assert np.isfinite(heatmap.values).all()
        if method == "attn_lrp":
            assert heatmap.values.sum() + sum(heatmap.prefix_mass.values()) == pytest.approx(logit, abs=1e-3)
    parts = vitviz.Explorer(repaired).open(np.zeros((91, 143, 3), np.uint8)).decompose(3)
    assert np.isfinite(parts.total)


def test_load_adds_registers_for_neurons_of_the_example_photographs(tmp_path: Path) -> None:
    model = tiny.known(depth=4)
    photographs = [torch.from_numpy(model.pretrained.preprocess(decode(path)).pixels) for path in examples()]
    model, _ = plant_neurons(model, torch.stack(photographs), 1, [4, 9], seed=3)
    save(model, tmp_path / "model")
    loaded = vitviz.load(tmp_path / "model", registers=1)
    assert loaded.config.register_neurons == ((1, 4), (1, 9))
    save(loaded, tmp_path / "repaired")
    again, images = vitviz.load(tmp_path / "repaired"), tiny.images(1)
    assert again.config == loaded.config
    tiny.close(again(images), loaded(images))
    assert vitviz.Explorer(again).open(vitviz.example("cat")).sinks().neurons == ()
    with pytest.raises(ModelError, match="Start from the original"):
        again.with_registers()
    view = vitviz.Explorer(again).open(vitviz.example("cat"))
    assert "planted" not in site_files(view)  # its registers would take what the planted neuron writes
    with pytest.raises(LectureError, match="without test-time registers"):
        planted_bytes(view)


def test_graphs_of_a_static_site_move_the_neurons(tmp_path: Path) -> None:
    model = tiny.known(**tiny.SMALL, depth=3).with_registers(2, [(0, 4), (0, 7), (1, 5)]).requires_grad_(False)
    onnx.check_exportable(model)
    trace, graph = model.trace(tiny.images(1, **tiny.SMALL)), tmp_path / "block.onnx"
    next(each for each in onnx._graphs(copy.deepcopy(model)) if each.name == "block").save(graph)
    for block, part in enumerate(onnx.parts(model)[1:-1]):
        weights = b"".join(tensor.numpy().tobytes() for _, _, tensor in part.offsets())
        (tmp_path / onnx.WEIGHTS).write_bytes(weights)
        given = {"tokens": trace.stream(block).numpy(), "heads": np.ones(model.config.heads, np.float32)}
        (out,) = onnxruntime.InferenceSession(graph).run(["out"], given)
        tiny.close(torch.from_numpy(out), model.blocks[block](trace.stream(block), None), 1e-4)


def test_refused_registers() -> None:
    model = tiny.known()
    with pytest.raises(ModelError, match="this model needs no registers"):
        model.with_registers()
    with pytest.raises(ModelError, match="Name the neurons"):
        tiny.model().with_registers()
    for neurons in ([(2, 0)], [(0, 23)]):  # the last block; one neuron too many
        with pytest.raises(VitvizError, match="register_neurons"):
            model.with_registers(1, neurons)
    with pytest.raises(ModelError, match="at least one register"):
        model.with_registers(0, [(0, 0)])
    normed = tiny.model(norms={"post": True})
    with pytest.raises(ModelError, match="norm before the sum"):
        find_neurons(normed, normed.trace(tiny.images(1)))


def test_sinks_of_a_model_without_outliers() -> None:
    view = vitviz.Explorer(tiny.known()).open(np.zeros((91, 143, 3), np.uint8))
    found = view.sinks()
    assert (found.neurons, found.change) == ((), None)
    np.testing.assert_allclose(found.attention.sum(1), 1.0)
    np.testing.assert_allclose(found.written.sum(1), 1.0)
    mean = view.trace.attention(1)[0].mean((0, 1))
    tiny.close(found.attention[1], mean / mean.sum())
    values = view.model.blocks[1].attn
    x = view.model.blocks[1].norm1(view.trace.stream(1))
    v = x @ values.qkv.weight[2 * 5 * 17 :].T + values.qkv.bias[2 * 5 * 17 :]  # (1, N, H * d)
    parts = torch.einsum("nhd,khd->nhk", v[0].unflatten(1, (5, 17)), values.proj.weight.unflatten(1, (5, 17)))
    sizes = (view.trace.attention(1)[0].sum(1).T * parts.norm(dim=-1)).sum(1).detach()  # (N,)
    tiny.close(found.written[1], sizes / sizes.sum())
