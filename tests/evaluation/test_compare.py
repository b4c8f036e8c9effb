"""Test the comparison of two models: predictions, heads, maps and the report."""

import base64
import copy
import itertools
import re
from pathlib import Path

import data_files
import numpy as np
import pytest
import tiny
import torch
import windowed

from vitviz.attribution.registry import attribute
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.compare import Comparison, compare
from vitviz.export.compare_report import write_comparison
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.model.ops import Record
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")


def model(seed: int = 0, **changes: object) -> ViT:
    return tiny.known(seed, labels=("ox", "golf ball", "church"), **tiny.SMALL, **{"classes": 3, **changes})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for index in range(4):
        data_files.photo(tmp_path / "photos" / f"{index}.png", 30, 18, seed=index)
    return tmp_path / "photos"


@torch.no_grad()
def with_lora(before: ViT, block: int, part: str, seed: int, rank: int = 2) -> ViT:
    """Return a copy with a random low-rank update of one linear layer of one block's attention."""
    after, generator = copy.deepcopy(before), torch.Generator().manual_seed(seed)
    weight = getattr(after.blocks[block].attn, part).weight
    down, up = (torch.randn(*size, generator=generator) for size in ((rank, weight.shape[1]), (weight.shape[0], rank)))
    weight += 0.3 * up @ down / weight.shape[1] ** 0.5
    return after


@pytest.mark.parametrize("part", ["qkv", "proj"])
@pytest.mark.parametrize("block", range(tiny.DEPTH))
def test_heads_of_a_low_rank_update_are_ranked_first(block: int, part: str, photos: Path) -> None:
    before = model()
    found = compare(before, with_lora(before, block, part, seed=block), photos, method="rollout", progress=False)
    assert len(found.heads) == tiny.DEPTH * tiny.HEADS
    assert {head.block for head in found.heads[: tiny.HEADS]} == {block}
    assert min(head.own for head in found.heads[: tiny.HEADS]) > 1e-4
    assert max(abs(head.own) for head in found.heads[tiny.HEADS :]) < 1e-9
    earlier = [abs(head.run) for head in found.heads if head.block < block]
    assert max(earlier, default=0.0) < 1e-9  # later layers read other tokens
    assert f"{found.heads[0].block + 1}.{found.heads[0].head + 1}" in found.describe()


def alignment(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the unbiased HSIC of samples (n, D) with linear kernels, by its definition (Song et al. 2012)."""
    x, y = first @ first.T, second @ second.T
    i, j, k, m = torch.tensor([*itertools.permutations(range(len(first)), 4)]).T
    return float((x[i, j] * (y[i, j] + y[k, m] - 2 * y[i, k])).mean())


def test_changes_match_unbiased_cka_of_what_heads_add(photos: Path) -> None:
    before, after = model(), model(1)
    found = compare(before, after, photos, method="rollout", limit=2, progress=False)
    sums = torch.zeros(3, dtype=torch.float64)
    for photo in found.photographs:
        pixels = torch.from_numpy(before.pretrained.preprocess(decode(photos / photo.image)).pixels)[None]
        added = []
        for vit in (before, after):
            tokens, grid = vit.embed(pixels)
            with torch.no_grad():
                vit.encode(tokens, vit.angles(grid), ops=(record := Record()))
            weight = vit.blocks[2].attn.proj.weight.detach().double().unflatten(1, (tiny.HEADS, -1))[:, 3]  # (D, d)
            added.append(record.heads[2][0, 3].double() @ weight.T)
        sums += torch.tensor([alignment(added[i], added[j]) for i, j in ((0, 1), (0, 0), (1, 1))])
    (change,) = (head.run for head in found.heads if (head.block, head.head) == (2, 3))
    assert change == pytest.approx(1 - float(sums[0] / (sums[1] * sums[2]).sqrt()), abs=1e-6)


def test_predictions_maps_and_distances_are_those_of_each_model(photos: Path) -> None:
    before, after = model(), model(1)
    found = compare(before, after, photos, method="gae", progress=False)
    for photo in found.photographs:
        pixels = torch.from_numpy(before.pretrained.preprocess(decode(photos / photo.image)).pixels)[None]
        answer = int(before(pixels).argmax())
        assert photo.answers == (before.pretrained.labels[answer], after.pretrained.labels[int(after(pixels).argmax())])
        maps = [attribute(vit, pixels, answer, "gae")[0].values.clip(0) for vit in (before, after)]
        shares = [scores / max(scores.sum(), 1e-30) for scores in maps]
        np.testing.assert_allclose(photo.difference, 15 * (shares[1] - shares[0]), atol=1e-4)
    assert sum(count for *_, count in found.flips) == sum(photo.flipped for photo in found.photographs)
    same = compare(before, before, photos, method="rollout", progress=False)
    assert not same.flips
    assert same.scale == 1.0
    assert "No head changed." in same.describe()
    assert all(head.distances[0] == head.distances[1] for head in same.heads)


def test_models_with_different_numbers_of_layers_are_compared_without_heads(photos: Path) -> None:
    found = compare(model(), model(1, depth=2), photos, method="rollout", progress=False)
    assert found.heads == ()
    assert "one model has 3 layers" in found.describe()
    larger = compare(model(), model(1, image_size=(28, 30)), photos, method="rollout", progress=False)
    assert "different numbers of tokens" in larger.describe()
    assert {row[2] for row in larger.cells()[1:]} == {"–"}
    (photos / "broken.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"photos/broken\.png"):
        compare(model(), model(1), photos, progress=False)
    vit = windowed.small(classes=3)
    vit.pretrained = Pretrained(name="tiny", preprocess=model().pretrained.preprocess, labels=("ox", "ball", "church"))
    with pytest.raises(EvaluationError, match="windows"):
        compare(model(), vit, photos, progress=False)
    with pytest.raises(EvaluationError, match="limit"):
        compare(model(), model(), photos, limit=0, progress=False)


def test_reports_link_to_both_models_in_two_panes(photos: Path, tmp_path: Path) -> None:
    found: Comparison = compare(model(), model(1), photos, method="rollout", progress=False)
    path = tmp_path / "report.html"
    write_comparison(path, found, model().pretrained.preprocess, models=("before & co", "after"))
    text = path.read_text(encoding="utf-8")
    assert text.count("?tab=why&amp;model=before+%26+co&amp;model2=after&amp;pane=1&amp;difference=1") == 4
    assert "Heads that changed" in text
    levels = [base64.b64decode(data) for data in re.findall(r'data-map="([^"]*)"', text)]
    assert len(levels) == 4
    assert {len(each) for each in levels} == {15}
