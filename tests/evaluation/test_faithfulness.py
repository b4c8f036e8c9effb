"""Insertion and deletion: against sequences shortened by hand, and numbers on paper."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from explain_cases import GRID, PATCH, PATCHES, pictures, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.attribution.baselines import baseline_images, pixel_mask
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import (
    Curve,
    Faithfulness,
    area,
    faithfulness,
    random_orders,
    rank_patches,
    visible_counts,
)
from vitviz.evaluation.masking import MaskedModel
from vitviz.images.preprocess import Preprocess
from vitviz.model.edits import Edits
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")
kinds = pytest.mark.parametrize("kind", tiny.KINDS)


def voting(**changes: Any) -> ViT:
    """A model whose blocks add nothing: its logits are the mean of what each patch says by itself."""
    model = small(class_token=False, pooling="mean", **changes)
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.attn.proj, block.mlp.fc2):
                part.weight.zero_()
                part.bias.zero_()
    return model


def votes(model: ViT, images: Tensor) -> np.ndarray:
    """What each patch says by itself: (B, n, C)."""
    with torch.no_grad():
        return model.head(model.norm(model.embed(images)[0])).double().numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# ---- parts of images


@kinds
def test_removed_patches_make_a_shorter_sequence(kind: str) -> None:
    model, images = small(**tiny.KINDS[kind]), pictures(2)
    generator = torch.Generator().manual_seed(3)
    shown = torch.rand(40, PATCHES, generator=generator) < torch.rand(40, 1, generator=generator)
    shown[:, 4] = True
    shown[0] = True  # all: the model itself
    image = torch.randint(2, (40,), generator=generator)
    masked = MaskedModel(model, images)
    with torch.no_grad():
        expected = [
            model(images[int(i)][None], Edits(keep=row.nonzero().T))[0] for row, i in zip(shown, image, strict=True)
        ]
        torch.testing.assert_close(masked.logits(shown, image), torch.stack(expected).double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(masked.unmasked(), model(images).double(), rtol=1e-5, atol=1e-5)
    # Where the answer is read from patches, one stays.
    (result,) = faithfulness(model, images[:1], torch.rand(1, *GRID), 0, random=1)
    least = int("mean" in model.config.pooling or not model.config.prefix)
    assert result.insertion.fractions[0] == pytest.approx(least / PATCHES)
    assert result.deletion.fractions[-1] == pytest.approx(1 - least / PATCHES)
    if least:
        with pytest.raises(EvaluationError, match="at least one visible patch"):
            masked.logits(torch.zeros(1, PATCHES, dtype=torch.bool), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("baseline", ["blur", "mean", "zero", "black"])
def test_painted_patches_are_painted_over(baseline: str) -> None:
    model, images = small(class_token=False, pooling="mean"), pictures(2)
    side = GRID[0] * PATCH, GRID[1] * PATCH
    preprocess = Preprocess(mode="squash", height=side[0], width=side[1], mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    model.pretrained = Pretrained(name="tiny", preprocess=preprocess)
    shown = torch.rand(9, PATCHES, generator=torch.Generator().manual_seed(0)) < 0.5
    shown[0] = False  # of what is painted over, everything may be
    image = torch.arange(9) % 2
    logits = MaskedModel(model, images, baseline).logits(shown, image)
    mask = pixel_mask(~shown.unflatten(1, GRID), PATCH)
    with torch.no_grad():
        expected = model(torch.where(mask, baseline_images(model, images[image], baseline), images[image])).double()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_equal_parts_run_once() -> None:
    model, calls = small(), []
    shown = torch.zeros(12, PATCHES, dtype=torch.bool)
    shown[:, 0] = True
    shown[5:, 1] = True
    image = torch.tensor([0] * 10 + [1] * 2)
    logits = MaskedModel(model, pictures(2)).logits(shown, image, lambda done, of: calls.append((done, of)))
    assert calls[-1] == (3, 3)
    assert logits[:5].unique(dim=0).shape[0] == logits[5:10].unique(dim=0).shape[0] == 1
    assert not torch.equal(logits[9], logits[10])


# ---- what curves are made of: orders of patches, steps, areas


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_ranking_falls_and_shuffles_what_is_equal(seed: int, levels: int) -> None:
    scores = torch.randint(levels, (3, 41), generator=torch.Generator().manual_seed(seed)).double()
    order = rank_patches(scores, seed)
    assert torch.equal(order.sort(dim=1).values, torch.arange(41).expand(3, -1))
    assert (scores.gather(1, order).diff(dim=1) <= 0).all()
    flat = rank_patches(torch.full((2, 41), 0.1, dtype=torch.float64), seed)
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], torch.arange(41))
    place = flat[0].argsort()
    for one, row in zip(order, scores, strict=True):
        for level in row.unique():
            same = one[row[one] == level]  # the patches of this score, in the order in which they come
            assert (place[same].diff() > 0).all()


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 1))
def test_steps_go_from_everything_to_the_least(patches: int, steps: int, least: int) -> None:
    counts = visible_counts(patches, steps, least)
    assert counts[0] == patches
    assert counts[-1] == least
    assert counts == sorted(set(counts), reverse=True)
    assert len(counts) <= steps + 1
    assert max(-np.diff(counts), default=0) <= patches / steps + 1


def test_steps_may_be_given() -> None:
    assert visible_counts(20, [0.5, 0.05], 0) == [20, 10, 1, 0]
    assert visible_counts(20, 4, 1) == [20, 15, 10, 5, 1]
    for wrong in (0, -1, [], [1.5], [float("nan")]):
        with pytest.raises(EvaluationError):
            visible_counts(20, wrong, 0)


def test_areas_are_those_on_paper() -> None:
    x = np.array([0.0, 0.25, 1.0])
    # trapezoids: a quarter of the width at 0.75, three quarters at 0.25
    assert area(x, [1.0, 0.5, 0.0]) == pytest.approx(0.375)
    assert area(x / 2, [1.0, 0.5, 0.0]) == pytest.approx(0.375)  # half the range, the same mean height
    assert area(x, [True, True, False]) == pytest.approx(0.25 + 0.375)
    np.testing.assert_allclose(area(x, [[2.0, 2.0, 2.0], [0.0, 0.0, 4.0]]), [2.0, 1.5])
    assert area(np.array([0.0]), [0.7]) == pytest.approx(0.7)


def made(kind: str, ours: list[float], chance: list[list[float]]) -> Curve:
    many = np.array(chance)
    return Curve(
        kind=kind,
        fractions=np.array([0.0, 1.0]),
        probabilities=np.array(ours),
        correct=np.array(ours) > 0.5,
        random=many,
        random_correct=many > 0.5,
    )


def test_a_curve_compares_itself_with_chance() -> None:
    chance = [[1.0, 0.0], [1.0, 0.4], [0.8, 0.0]]  # areas 0.5, 0.7, 0.4
    low, high = made("deletion", [1.0, 0.0], chance), made("insertion", [1.0, 0.3], chance)
    assert (low.area, high.area) == (0.5, 0.65)
    np.testing.assert_allclose(low.random_areas, [0.5, 0.7, 0.4])
    assert low.random_area == pytest.approx(1.6 / 3)
    assert low.gain == pytest.approx(1.6 / 3 - 0.5)
    assert high.gain == pytest.approx(0.65 - 1.6 / 3)
    assert (low.beaten, high.beaten) == (1, 2)
    assert [one.tolist() for one in low.band] == [[0.8, 0.0], [1.0, 0.4]]
    both = Faithfulness(deletion=low, insertion=high, baseline="remove", target="church")
    assert both.gain == pytest.approx((0.65 - 0.5) / 2)
    assert both.n == 3
    words = both.describe()
    assert "1 of 3" in words
    assert "2 of 3" in words
    assert "area 0.50 against 0.53 (0.40-0.70)" in words
    assert "church" in words
    sure, lost = made("deletion", [0.5, 0.0], chance), made("insertion", [0.0, 0.1], chance)
    words = Faithfulness(deletion=sure, insertion=lost, baseline="zero", target="church").describe()
    assert "faster than all 3 random orders" in words
    assert "faster than none of 3 random orders" in words


# ---- curves of images


def test_curves_of_a_vote_are_those_worked_out_by_hand() -> None:
    model, images = voting(), pictures()
    scores = np.random.default_rng(0).normal(size=PATCHES)
    said, target = votes(model, images)[0], 11  # (n, C)
    (result,) = faithfulness(model, images, scores.reshape(1, *GRID), target, steps=5, random=3, seed=4)
    order = np.argsort(-scores)
    removed, shown = [0, 3, 6, 9, 12, 14], [1, 3, 6, 9, 12, 15]  # one patch stays: this model reads nothing else
    np.testing.assert_allclose(result.deletion.fractions, np.array(removed) / 15)
    np.testing.assert_allclose(result.insertion.fractions, np.array(shown) / 15)
    deletion = np.array([said[order[count:]].mean(0) for count in removed])  # (S, C)
    insertion = np.array([said[order[:count]].mean(0) for count in shown])
    for curve, logits in ((result.deletion, deletion), (result.insertion, insertion)):
        np.testing.assert_allclose(curve.probabilities, softmax(logits)[:, target], atol=1e-6)
        np.testing.assert_array_equal(curve.correct, logits.argmax(1) == target)
    # Random orders: what they do to deletion, their reverses do to insertion.
    for index, one in enumerate(random_orders(PATCHES, 3, 4).numpy()):
        reverse = one[::-1]
        gone = softmax(np.array([said[reverse[count:]].mean(0) for count in removed]))[:, target]
        came = softmax(np.array([said[one[:count]].mean(0) for count in shown]))[:, target]
        np.testing.assert_allclose(result.deletion.random[index], gone, atol=1e-6)
        np.testing.assert_allclose(result.insertion.random[index], came, atol=1e-6)
    np.testing.assert_allclose(result.deletion.random_areas, result.insertion.random_areas)
    assert result.gain == pytest.approx((result.insertion.area - result.deletion.area) / 2)


def test_negative_perturbation_is_insertion_read_backwards() -> None:
    """Chefer et al. 2021 remove the least relevant patches first."""
    model, images = voting(), pictures()
    said, scores = votes(model, images)[0], np.random.default_rng(1).normal(size=PATCHES)
    target = int(said.mean(0).argmax())
    (result,) = faithfulness(model, images, scores.reshape(1, *GRID), target, steps=15, random=1)
    rising = np.argsort(scores)
    for order, found in ((rising, result.negative), (rising[::-1], result.positive)):
        right = [float(said[order[gone:]].mean(0).argmax() == target) for gone in range(PATCHES)]
        assert found == pytest.approx(area(np.arange(PATCHES) / PATCHES, right))


def test_the_target_is_scored_and_not_what_comes_out_on_top() -> None:
    model, images, maps = small(), pictures(), torch.rand(1, *GRID)
    with torch.no_grad():
        logits, blank = (model(pixels).double() for pixels in (images, torch.zeros_like(images)))
    top, other = int(logits.argmax()), int(logits.argmin())
    for target in (top, other):
        (result,) = faithfulness(model, images, maps, target, random=1)
        assert result.deletion.probabilities[0] == pytest.approx(float(logits.softmax(1)[0, target]), abs=1e-6)
        assert result.deletion.correct[0] == (target == top)
    (default,) = faithfulness(model, images, maps, random=1)
    assert default.deletion.probabilities[0] == pytest.approx(float(logits.softmax(1).max()), abs=1e-6)
    (why,) = faithfulness(model, images, maps, contrast=(other, top), random=1)
    a, b = logits[0, other], logits[0, top]
    assert why.deletion.probabilities[0] == pytest.approx(float(a.exp() / (a.exp() + b.exp())), abs=1e-6)
    assert not why.deletion.correct[0]
    (painted,) = faithfulness(model, images, maps, top, baseline="zero", random=1)
    assert painted.deletion.probabilities[-1] == pytest.approx(float(blank.softmax(1)[0, top]), abs=1e-6)
    assert "there is little to take away" in faithfulness(model, images, maps, other, random=1)[0].describe()


@kinds
def test_batches_change_nothing(kind: str) -> None:
    """Several images with a map each, or several maps of one image: the same as one by one, whatever the read-out."""
    model, images = small(**tiny.KINDS[kind]), pictures(3)
    maps = torch.rand(3, *GRID, generator=torch.Generator().manual_seed(5))
    targets = [3, 3, 17]
    together = faithfulness(model, images, maps, targets, random=3, seed=2, steps=4)
    for index, result in enumerate(together):
        one = images[index : index + 1]
        (alone,) = faithfulness(model, one, maps[index : index + 1], targets[index], random=3, seed=2, steps=4)
        assert_same(result, alone)
        assert result.target == f"class {targets[index]}"
        assert np.isfinite(result.deletion.probabilities).all()
    several = faithfulness(model, images[:1], maps, 3, random=3, seed=2, steps=4)
    assert_same(several[0], together[0])
    np.testing.assert_allclose(several[1].deletion.random, several[0].deletion.random, atol=1e-6)


def assert_same(first: Faithfulness, second: Faithfulness) -> None:
    for kind in ("deletion", "insertion"):
        ours, expected = getattr(first, kind), getattr(second, kind)
        for name in ("fractions", "probabilities", "random"):
            np.testing.assert_allclose(
                getattr(ours, name), getattr(expected, name), atol=2e-5, err_msg=f"{kind} {name}"
            )


def test_the_seed_decides_and_repeats() -> None:
    model, images, maps = small(), pictures(), torch.rand(1, *GRID)
    state = torch.random.get_rng_state()
    first, again, other = (faithfulness(model, images, maps, 3, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(random_orders(41, 5, 7)[:2], random_orders(41, 2, 7))
    assert len(random_orders(41, 5, 7).unique(dim=0)) == 5
    np.testing.assert_array_equal(first.deletion.random, again.deletion.random)
    assert not np.allclose(first.deletion.random[:, 3], other.deletion.random[:, 3])
    np.testing.assert_allclose(first.deletion.probabilities, other.deletion.probabilities, atol=1e-6)


BROKEN = small()
BROKEN.head.bias.data[0] = float("nan")


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (EvaluationError, "NaN", {"model": BROKEN}),
        (EvaluationError, r"\(maps, 3, 5\)", {"maps": torch.rand(1, 5, 3)}),
        (EvaluationError, r"got \(3, 5\)", {"maps": torch.rand(*GRID)}),
        (EvaluationError, "finite", {"maps": torch.full((1, *GRID), float("nan"))}),
        (EvaluationError, "Expected maps", {"maps": torch.zeros(0)}),
        (EvaluationError, "2 images", {"images": pictures(2), "maps": torch.rand(3, *GRID)}),
        (EvaluationError, "at least one", {"random": 0}),
        (EvaluationError, "steps", {"steps": 0}),
        (AnalysisError, "eval", {"model": small().train()}),
    ],
)
def test_invalid_faithfulness_arguments_are_refused(error: type, words: str, changes: dict[str, Any]) -> None:
    asked = {"model": small(), "images": pictures(), "maps": torch.rand(1, *GRID), "target": 0, **changes}
    with pytest.raises(error, match=words):
        faithfulness(**asked)
