"""Test circuits on models of which few parts matter, and runs with means against hooks."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.circuits import Runs, mean_outputs
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for index in range(12):
        small = Image.fromarray(random.integers(0, 255, (3, 4, 3), dtype=np.uint8))
        small.resize((143, 91)).save(folder / f"{index}.png")
    return folder


@torch.no_grad()
def keep_only(model: ViT, heads: set[tuple[int, int]], mlps: set[int]) -> None:
    """Set the output weights of all other heads and MLPs to zero."""
    for index, block in enumerate(model.blocks):
        for head in range(tiny.HEADS):
            if (index, head) not in heads:
                block.attn.proj.weight[:, head * tiny.HEAD_WIDTH : (head + 1) * tiny.HEAD_WIDTH] = 0.0
        if index not in mlps:
            block.mlp.fc2.weight.zero_()


def test_circuit_is_the_parts_that_matter(folder: Path, tmp_path: Path) -> None:
    model = tiny.known(seed=3)
    keep_only(model, {(0, 1), (2, 3)}, {1})
    found = vitviz.circuit(model, folder, 5, keep=0.99, progress=False)
    assert {*found.heads} | {("MLP", block) for block in found.mlps} == {(0, 1), (2, 3), ("MLP", 1)}
    assert (found.size, found.parts, found.found, found.measured) == (3, 18, 6, 6)
    assert found.faithfulness.value == pytest.approx(1.0, abs=1e-4)
    assert found.completeness.value == pytest.approx(0.0, abs=1e-4)
    assert found.random_faithfulness.value < 0.9
    assert found.random_faithfulness.low <= found.random_faithfulness.value <= found.random_faithfulness.high
    assert "2 heads and 1 MLP of 18 parts" in found.describe()
    found.save(tmp_path / "circuit.csv")
    assert (tmp_path / "circuit.csv").read_text().split() == ["layer,part", "1,2", "3,4", "2,MLP"]


@torch.no_grad()
def test_runs_with_means_match_hooks() -> None:
    model, images = tiny.model(seed=2), tiny.images(4)
    means = mean_outputs(model, [images[:2], images[2:]])
    runs = Runs(model, [images[:2], images[2:]], means, None, (3, 1))
    mask = runs.all.clone()
    mask[0, 2] = mask[1, tiny.HEADS] = 0.0  # head 3 of layer 1, MLP of layer 2
    part = slice(2 * tiny.HEAD_WIDTH, 3 * tiny.HEAD_WIDTH)

    def mean_of_head(_module: torch.nn.Module, given: tuple[torch.Tensor]) -> torch.Tensor:
        changed = given[0].clone()
        changed[..., part] = given[0][..., part].mean(0)
        return changed

    hooks = [
        model.blocks[0].attn.proj.register_forward_pre_hook(mean_of_head),
        model.blocks[1].mlp.register_forward_hook(lambda _module, _given, out: means[1][1].expand_as(out)),
    ]
    logits = model(images)
    for hook in hooks:
        hook.remove()
    tiny.close(runs.scores(mask), logits[:, 3] - logits[:, 1])
    tiny.close(runs.own, (model(images)[:, 3] - model(images)[:, 1]))


def test_slopes_are_derivatives_of_the_mean_score() -> None:
    model, images, step = tiny.model(seed=2), tiny.images(2), 1e-2
    runs = Runs(model, [images], mean_outputs(model, [images]), None, (3, 1))
    slopes = runs.slopes(runs.all)
    for place in ((0, 1), (2, tiny.HEADS)):
        less, more = runs.all.clone(), runs.all.clone()
        less[place] -= step
        more[place] += step
        measured = float((runs.scores(more) - runs.scores(less)).mean()) / (2 * step)
        assert float(slopes[place]) == pytest.approx(measured, rel=1e-2, abs=1e-4)


def test_refused_circuits(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="preprocessing"):
        vitviz.circuit(tiny.model(), folder)
    with pytest.raises(AnalysisError, match="between 0 and 1"):
        vitviz.circuit(tiny.known(), folder, keep=1.5)
    with pytest.raises(AnalysisError, match="seed from 0 on"):
        vitviz.circuit(tiny.known(), folder, seed=-1)
    with pytest.raises(AnalysisError, match="at least 4 photographs"):
        vitviz.circuit(tiny.known(), folder, limit=2)
    with pytest.raises(AnalysisError, match="folder"):
        vitviz.circuit(tiny.known(), 3)
