"""Test the arena: tasks with known evidence, rows that a later run continues, and the ranking."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import tiny
import torch

from vitviz.attribution.registry import score_patches
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.arena import arena
from vitviz.evaluation.best_order import best_maps
from vitviz.evaluation.evaluate import evaluate
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.evaluation.hand_set import GRID, PATCH, hand_set, picture
from vitviz.evaluation.sensitivity import order_consistency
from vitviz.evaluation.shortcuts import MARKS, fit, mark, with_head
from vitviz.evaluation.standings import Standings, kendall, standings
from vitviz.evaluation.tasks import HAND_SET, LOCATED, MOSAICS, compose
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["rollout", "gae"]
FAST = {"steps": 3, "random": 2, "progress": False, "limit": 4}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with eight photographs of two classes."""
    for index in range(8):
        data_files.photo(tmp_path / "photos" / ("ox", "church")[index % 2] / f"{index}.png", 30, 20, seed=index)
    return tmp_path / "photos"


def model(**changes: Any) -> ViT:
    return tiny.known(0, labels=("ox", "golf ball", "church"), **tiny.SMALL, **{"classes": 3, **changes})


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_arena_measures_every_task_and_evaluate_continues_its_rows(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "arena.jsonl"
    result = arena(model(), photos, NAMES, out=out, **FAST)
    assert {row.method for row in result.rows} == {*NAMES}
    assert set(result.kept) | set(result.left_out) == {*LOCATED}  # tasks without confirmed evidence are listed
    assert result.photographs == 4
    before = out.read_text()
    again = arena(model(), photos, NAMES, out=out, **FAST)
    assert out.read_text() == before  # nothing is computed again
    assert again.describe() == result.describe()
    evaluation = evaluate(model(), photos, NAMES, out=out, **FAST)
    assert out.read_text() == before
    assert {row.method for row in evaluation.rows} == {*NAMES, "random"}


def test_hand_set_model_reads_only_red_and_green_patches() -> None:
    vit, random = hand_set(), np.random.default_rng(3)
    images, red = picture(random)
    colors = images[0, :, ::PATCH, ::PATCH]  # (3, gh, gw)
    assert np.array_equal(red[::PATCH, ::PATCH], colors[0] > 0)
    attention = vit.trace(images).attentions[0][0, :, 0, 1:].unflatten(1, GRID)  # (H, gh, gw)
    assert attention[0][colors[2] > 0].sum() == pytest.approx(1, abs=1e-3)  # the first head sees blue
    assert attention[1][(colors[0] + colors[1]) > 0].sum() == pytest.approx(1, abs=1e-3)
    plain = vit(images)
    for color, changes in (("red", True), ("green", True), ("blue", False)):
        removed = images.clone()
        removed[:, ["red", "green", "blue"].index(color)] = 0
        assert bool((vit(removed) - plain).abs().max() > 1) is changes, color


def test_hand_set_model_ranks_methods_right(photos: Path) -> None:
    """Only class-specific methods find the red evidence; attention also goes to blue and green patches."""
    names = ["attention", "rollout", "value_attention", "gae", "attn_lrp", "legrad"]
    result = arena(model(), photos, names, **{**FAST, "limit": 1})
    mass = {row.method: row.numbers[HAND_SET] for row in result.rows}
    for name in ("gae", "attn_lrp", "legrad"):
        assert mass[name] > 0.95, mass
    assert mass["value_attention"] == pytest.approx(0.5, abs=0.05)  # blue patches have zero values
    for name in ("attention", "rollout"):
        assert mass[name] < 0.3, mass


def test_mosaic_has_each_photograph_in_whole_patches() -> None:
    vit = model()  # 3 x 5 patches of 2 pixels
    first, second = torch.zeros(1, 3, 6, 10), torch.ones(1, 3, 6, 10)
    for quarter, (y, x) in enumerate(
        [(slice(0, 2), slice(0, 4)), (slice(0, 2), slice(4, 10)), (slice(2, 6), slice(0, 4))]
    ):
        mosaic, pixels = compose(vit, first, second, quarter)
        expected = np.zeros((6, 10), bool)
        expected[y, x] = True
        assert np.array_equal(pixels, expected)
        assert np.array_equal(mosaic[0, 0] == 0, expected)


@pytest.mark.parametrize("kind", MARKS)
def test_mark_changes_exactly_its_pixels(kind: str) -> None:
    images = 0.1 * torch.randn(1, 3, 28, 36, generator=torch.Generator().manual_seed(0))
    marked, pixels = mark(kind, images, 4, np.random.default_rng(5))
    assert np.array_equal((marked != images).any(1)[0].numpy(), pixels)
    assert pixels.reshape(7, 4, 9, 4).mean((1, 3)).tolist() == pixels[::4, ::4].tolist()  # whole patches
    assert 0 < pixels.mean() < 0.9


def test_linear_probe_finds_a_shifted_feature_and_shares_the_models_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    vit = model()
    features = torch.randn(40, vit.config.feature_width, generator=generator).double()
    classes = torch.arange(40) % 2
    features[classes == 1, 3] += 9
    weight, bias = fit(features, classes)
    assert (features @ weight.T + bias).argmax(1).tolist() == classes.tolist()
    assert int((weight[1] - weight[0]).abs().argmax()) == 3
    changed = with_head(vit, weight, bias)
    images = tiny.images(2, grid=(3, 5), patch=2)
    tiny.close(changed(images), vit.features(images).double() @ weight.T + bias, 1e-4)
    assert changed.blocks[0].attn.qkv.weight is vit.blocks[0].attn.qkv.weight
    assert vit.config.classes == 3
    assert score_patches(changed, images, 1, "gae").shape == (2, 3, 5)


def test_order_consistency_follows_the_algorithm_of_the_paper() -> None:
    vit, images = model(), tiny.images(1, grid=(3, 5), patch=2)
    scores = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).double()
    found = order_consistency(vit, images, scores, 1, groups=4, baseline="mean")
    whole = vit(images).softmax(1)[0, 1].item()
    for result, values in zip(found, scores.flatten(1), strict=True):
        groups = values.argsort(descending=True).tensor_split(4)
        sums, drops = [float(values[group].sum()) for group in groups], []
        for group in groups:
            painted = images.clone()
            for patch in group.tolist():
                y, x = patch // 5 * 2, patch % 5 * 2
                painted[0, :, y : y + 2, x : x + 2] = images.mean((2, 3))[0, :, None, None]
            drops.append(whole - vit(painted).softmax(1)[0, 1].item())
        weights = [(sums[i] - sums[j]) * (1 if drops[i] >= drops[j] else -1) for i in range(4) for j in range(i + 1, 4)]
        assert result == pytest.approx(sum(weights) / sum(map(abs, weights)), abs=1e-5)
    assert order_consistency(vit, images, torch.zeros(1, 3, 5), 1, groups=4) == 0


def test_greedy_orders_beat_random_ones() -> None:
    vit, images = hand_set(), picture(np.random.default_rng(0))[0]
    maps = best_maps(vit, images, 0, "remove")
    deletion, insertion = faithfulness(vit, images, maps, 0, random=30)
    assert deletion.deletion.beats_all
    assert insertion.insertion.beats_all
    red = images[0, 0, ::PATCH, ::PATCH].numpy() > 0
    assert set(np.flatnonzero(red)) <= set(maps[0].ravel().argsort()[-9:])  # the first round removes nine patches


def records(scores: dict[str, float], noise: float, count: int = 40) -> tuple[dict[str, list[str]], dict[Any, Any]]:
    """Return keys and records of photographs on which each method has the given score, plus noise."""
    keys = [str(index) for index in range(count)]
    rows: dict[Any, Any] = {}
    for index, key in enumerate(keys):
        rows["removal", key, "random"] = {"deletion": 0.5, "insertion": 0.5}
        rows["best", key, "greedy"] = {"deletion": 0.0, "insertion": 1.0}
        for place, (name, score) in enumerate(scores.items()):
            gain = score / 2 + noise * (-1) ** (index + place)
            rows["removal", key, name] = {"gain": gain, "seconds": 0.1}
            rows["consistency", key, name] = {"consistency": score}
    return {"removal": keys, "best": keys, "consistency": keys}, rows


@pytest.mark.parametrize(
    ("scores", "noise", "sentence"),
    [
        ({"gae": 0.9, "rollout": 0.2}, 0.01, "All other methods are significantly worse."),
        ({"attn_lrp": 0.9, "attention": 0.899}, 0.2, "attention is not significantly worse and 3.6 times faster."),
        ({"gae": 0.9, "attn_lrp": 0.899}, 0.2, "Not significantly worse: attn_lrp."),
    ],
)
def test_summary_names_the_best_method_and_those_not_significantly_worse(
    scores: dict[str, float], noise: float, sentence: str
) -> None:
    images, rows = records(scores, noise)
    result = standings([*scores], images, rows, {"seed": 0}, {})
    assert result.method == max(scores, key=lambda name: scores[name])
    assert sentence in result.describe()
    assert "40 photographs" in result.describe()
    assert "fewer than 30" in standings([*scores], *records(scores, noise, 6), {"seed": 0}, {}).describe()
    assert (
        standings(["gae"], *records({"gae": 0.9}, noise), {"seed": 0}, {}).describe().endswith("40 photographs: gae.")
    )
    assert "no method can be named" in standings([*scores], *records(scores, noise, 5), {"seed": 0}, {}).describe()


def test_result_is_written_and_read_without_the_rows(tmp_path: Path) -> None:
    images, rows = records({"gae": 0.9, "rollout": 0.2}, 0.1)
    result = standings(["rollout", "gae"], images, rows, {"seed": 0, "weights": "abc"}, {"kernel_shap": "slow"})
    result.save(tmp_path / "arena.json")
    assert json.loads((tmp_path / "arena.json").read_text())["method"] == "gae"
    loaded = Standings.load(tmp_path / "arena.json")
    assert loaded.markdown() == result.markdown()
    assert loaded == replace(result, records=(), kept={})
    assert "What it does not mean" in result.markdown().splitlines()[0]
    assert "kernel_shap (slow)" in result.table()
    assert result.table().index("consistency: order consistency") < result.table().index("gae")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(EvaluationError, match="arena"):
        Standings.load(tmp_path / "other.json")


def test_kendall_counts_pairs_in_the_same_order() -> None:
    assert kendall(np.arange(4.0), np.arange(4.0)) == 1
    assert kendall(np.arange(4.0), -np.arange(4.0)) == -1
    assert kendall(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(1 / 3)


def test_mosaics_need_two_classes_and_marks_need_four_photographs(photos: Path) -> None:
    for path in (photos / "ox").iterdir():
        path.unlink()
    for path in sorted((photos / "church").iterdir())[1:]:
        path.unlink()
    result = arena(model(), photos, NAMES, **FAST)
    assert result.left_out[MOSAICS].startswith("Expected photographs of two classes")
    assert set(MARKS) <= set(result.left_out)
    assert result.photographs == 1
