"""Test measures of maps: insertion and deletion against shortened sequences, the rest against captum and SciPy."""

import copy
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tiny
import torch
from captum.metrics import sensitivity_max as captum_sensitivity
from explain_cases import GRID, PATCH, PATCHES, pictures, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.attribution.baselines import baseline_images, pixel_mask
from vitviz.attribution.registry import score_patches
from vitviz.attribution.targets import ExplainError
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import (
    BOTH,
    RANDOM,
    Curve,
    Faithfulness,
    area,
    center_map,
    chance_in_both,
    faithfulness,
    random_orders,
    rank_patches,
    visible_counts,
)
from vitviz.evaluation.localization import pointing_game, segmentation
from vitviz.evaluation.masking import MaskedModel
from vitviz.evaluation.sanity import model_parts, sanity
from vitviz.evaluation.sensitivity import max_sensitivity, random_sets, sensitivity_n
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.model.correlation import pearson, spearman
from vitviz.model.edits import Edits
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
kinds = pytest.mark.parametrize("kind", tiny.KINDS)


def partial_logits(model: ViT, images: Tensor, patches: Any) -> np.ndarray:
    """Return the logits of one image with only these patches: (C,)."""
    with torch.no_grad():
        return model(images, Edits(keep=torch.as_tensor(np.sort(patches)).reshape(1, -1)))[0].double().numpy()


@kinds
def test_masked_logits_match_shorter_sequences(kind: str) -> None:
    model, images = small(**tiny.KINDS[kind]), pictures(2)
    generator = torch.Generator().manual_seed(3)
    visible = torch.rand(20, PATCHES, generator=generator) < torch.rand(20, 1, generator=generator)
    visible[:, 4] = True
    visible[0] = True  # the whole image
    image = torch.randint(2, (20,), generator=generator)
    masked = MaskedModel(model, images)
    rows = zip(image, visible.numpy(), strict=True)
    expected = [partial_logits(model, images[index, None], row.nonzero()) for index, row in rows]
    np.testing.assert_allclose(masked.outputs(visible, image), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(masked.unmasked(), model(images).detach().double(), rtol=1e-5, atol=1e-5)
    # A model that pools patches keeps one patch.
    (result,) = faithfulness(model, images[:1], torch.rand(1, *GRID), 0, random=1)
    least = int("mean" in model.config.pooling or not model.config.prefix)
    assert result.insertion.fractions[0] == pytest.approx(least / PATCHES)
    assert result.deletion.fractions[-1] == pytest.approx(1 - least / PATCHES)
    if least:
        with pytest.raises(EvaluationError, match="at least one visible patch"):
            masked.outputs(torch.zeros(1, PATCHES, dtype=torch.bool), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("baseline", ["blur", "mean", "zero", "black"])
def test_masked_logits_match_painted_images(baseline: str) -> None:
    images = pictures(2)
    height, width = images.shape[2:]
    preprocess = Preprocess(mode="squash", height=height, width=width, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    model = tiny.known(preprocess=preprocess, **tiny.SMALL, class_token=False, pooling="mean")
    visible = torch.rand(9, PATCHES, generator=torch.Generator().manual_seed(0)) < 0.5
    visible[0] = False  # all patches may be painted over
    image = torch.arange(9) % 2
    logits = MaskedModel(model, images, baseline).outputs(visible, image)
    mask = pixel_mask(~visible.unflatten(1, GRID), PATCH)
    with torch.no_grad():
        expected = model(torch.where(mask, baseline_images(model, images[image], baseline), images[image])).double()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_equal_masks_run_once() -> None:
    model, calls = small(), []
    visible = torch.zeros(12, PATCHES, dtype=torch.bool)
    visible[:, 0] = True
    visible[5:, 1] = True
    image = torch.tensor([0] * 10 + [1] * 2)
    logits = MaskedModel(model, pictures(2)).outputs(visible, image, lambda *args: calls.append(args))
    assert calls[-1] == (3, 3)
    assert logits[:5].unique(dim=0).shape[0] == logits[5:10].unique(dim=0).shape[0] == 1
    assert not torch.equal(logits[9], logits[10])


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_rank_patches_sorts_by_score_and_shuffles_ties(seed: int, levels: int) -> None:
    scores = torch.randint(levels, (3, 41), generator=torch.Generator().manual_seed(seed)).double()
    order = rank_patches(scores, seed)
    flat = rank_patches(torch.full((2, 41), 0.1, dtype=torch.float64), seed)
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], torch.arange(41))
    assert [row.tolist() for row in order] == [np.lexsort((flat[0].argsort(), -row)).tolist() for row in scores]


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 1))
def test_visible_counts_decrease_from_all_patches_to_the_least(patches: int, steps: int, least: int) -> None:
    counts = visible_counts(patches, steps, least)
    assert counts[0] == patches
    assert counts[-1] == least
    assert counts == sorted(set(counts), reverse=True)
    assert len(counts) <= steps + 1
    assert max(-np.diff(counts), default=0) <= patches / steps + 1


def test_visible_counts_follow_shares() -> None:
    assert visible_counts(20, [0.5, 0.05], 0) == [20, 10, 1, 0]
    assert visible_counts(20, 4, 1) == [20, 15, 10, 5, 1]
    for invalid in (0, -1, [], [1.5], [float("nan")]):
        with pytest.raises(EvaluationError):
            visible_counts(20, invalid, 0)


def test_area_follows_the_trapezoid_rule() -> None:
    x = np.array([0.0, 0.25, 1.0])
    # trapezoids: a quarter of the width at 0.75, three quarters at 0.25
    assert area(x, [1.0, 0.5, 0.0]) == pytest.approx(0.375)
    assert area(x / 2, [1.0, 0.5, 0.0]) == pytest.approx(0.375)  # half the range has the same mean height
    assert area(x, [True, True, False]) == pytest.approx(0.25 + 0.375)
    np.testing.assert_allclose(area(x, [[2.0, 2.0, 2.0], [0.0, 0.0, 4.0]]), [2.0, 1.5])
    assert area(np.array([0.0]), [0.7]) == pytest.approx(0.7)


def curve(kind: str, probabilities: list[float], random: list[list[float]]) -> Curve:
    shares, chance = np.array(probabilities), np.array(random)
    others = {"correct": shares > 0.5, "random_correct": chance > 0.5, "center": np.array([0.9, 0.3])}
    return Curve(kind=kind, fractions=np.array([0.0, 1.0]), probabilities=shares, random=chance, **others)


def test_curves_are_compared_with_random_orders() -> None:
    chance = [[1.0, 0.0], [1.0, 0.4], [0.8, 0.0]]  # areas 0.5, 0.7, 0.4
    low, high = curve("deletion", [1.0, 0.0], chance), curve("insertion", [1.0, 0.3], chance)
    assert (low.area, high.area) == (0.5, 0.65)
    np.testing.assert_allclose(low.random_areas, [0.5, 0.7, 0.4])
    assert low.gain == pytest.approx(1.6 / 3 - 0.5)
    assert high.gain == pytest.approx(0.65 - 1.6 / 3)
    assert (low.beaten, high.beaten) == (1, 2)
    assert [end.tolist() for end in low.band] == [[0.8, 0.0], [1.0, 0.4]]
    result = Faithfulness(deletion=low, insertion=high, baseline="remove", target="church")
    assert result.gain == pytest.approx((0.65 - 0.5) / 2)
    assert result.n == 3
    for phrase in ("1 of 3", "2 of 3", "area 0.50 against 0.53 (0.40-0.70)", "church", "the areas 0.60 and 0.60"):
        assert phrase in result.describe()
    best, worst = curve("deletion", [0.5, 0.0], chance), curve("insertion", [0.0, 0.1], chance)
    text = Faithfulness(deletion=best, insertion=worst, baseline="zero", target="church").describe()
    assert "faster than all 3 random orders" in text
    assert "faster than none of 3 random orders" in text


@pytest.mark.parametrize(
    ("orders", "deletion", "insertion", "words"),
    [
        (6, 1, 1, "better than chance"),  # as measured
        (6, 1, 0, "not show"),  # one map in seven
        (5, 1, 1, "not show"),  # up to 1 / 12
        (18, 0, 1, "not show"),
        (19, 0, 1, "Insertion is better than chance"),  # one map in twenty
        (19, 1, 0, "Deletion is better than chance"),
        (19, 1, 1, "in both comparisons in about 2.5 % of the tests"),
        (99, 0, 0, "not show"),
    ],
)
def test_certain_words_need_a_probability_of_at_most_5_percent(
    orders: int, deletion: int, insertion: int, words: str
) -> None:
    chance = [[0.5, 0.5]] * orders
    curves = {
        kind: curve(kind, [0.6, 0.6] if beats == (kind == "insertion") else [0.4, 0.4], chance)
        for kind, beats in (("deletion", deletion), ("insertion", insertion))
    }
    result = Faithfulness(**curves, baseline="remove", target="church")
    assert words in result.describe()
    assert result.verdict.better == (deletion == insertion == 1 and orders > 5)


@pytest.mark.parametrize("orders", [1, 5, 6, 9, 19])
def test_probability_in_both_curves_is_largest_if_one_area_determines_the_other(orders: int) -> None:
    """Count random orders between the two areas of all orders of nine patches whose weights add up."""
    weights = np.linspace(1.0, 2.0, 9) ** 3
    places = np.random.default_rng(0).permuted(np.tile(np.arange(9), (20_000, 1)), axis=1)
    areas = np.sort((weights * places).sum(1))  # the reverse of an order has the area 8 * weights.sum() - area
    rank, reverse = (np.searchsorted(areas, ends) / len(areas) for ends in (areas, 8 * weights.sum() - areas))
    measured = (np.maximum(rank - reverse, 0) ** orders).mean()
    assert measured == pytest.approx(1 / (2 * (orders + 1)), rel=0.1)
    assert chance_in_both(orders) == pytest.approx(min(measured, BOTH if orders >= RANDOM else 1), rel=0.1)


def test_the_map_of_the_centre_is_the_second_baseline() -> None:
    middle = center_map((3, 5))
    assert middle.tolist() == [[-20, -8, -4, -8, -20], [-16, -4, 0, -4, -16], [-20, -8, -4, -8, -20]]
    (result,) = faithfulness(small(), pictures(), middle[None], 3, random=1)
    for each in (result.deletion, result.insertion):
        np.testing.assert_array_equal(each.center, each.probabilities)
        assert each.center_area == each.area


def test_curves_match_sequences_shortened_by_hand() -> None:
    model, images = small(class_token=False, pooling="mean"), pictures()
    scores = np.random.default_rng(0).normal(size=PATCHES)
    (result,) = faithfulness(model, images, scores.reshape(1, *GRID), 11, steps=5, random=3, seed=4)
    removed, visible = [0, 3, 6, 9, 12, 14], [1, 3, 6, 9, 12, 15]  # the model pools patches, so one stays visible

    def check(curve: Curve, probabilities: np.ndarray, counts: list[int], parts: list[np.ndarray]) -> np.ndarray:
        """Check the steps of a curve, and return the logits of the parts (S, C)."""
        logits = np.stack([partial_logits(model, images, part) for part in parts])
        np.testing.assert_allclose(curve.fractions, np.array(counts) / PATCHES)
        np.testing.assert_allclose(probabilities, scipy.special.softmax(logits, axis=1)[:, 11], atol=1e-6)
        return logits

    order = np.argsort(-scores)
    for curve, counts, parts in (
        (result.deletion, removed, [order[count:] for count in removed]),
        (result.insertion, visible, [order[:count] for count in visible]),
    ):
        logits = check(curve, curve.probabilities, counts, parts)
        np.testing.assert_array_equal(curve.correct, logits.argmax(1) == 11)
    # Insertion uses each random order, deletion its reverse.
    for index, order in enumerate(random_orders(PATCHES, 3, 4).numpy()):
        check(result.deletion, result.deletion.random[index], removed, [order[::-1][count:] for count in removed])
        check(result.insertion, result.insertion.random[index], visible, [order[:count] for count in visible])
    np.testing.assert_allclose(result.deletion.random_areas, result.insertion.random_areas)
    assert result.gain == pytest.approx((result.insertion.area - result.deletion.area) / 2)


def test_negative_perturbation_is_reversed_insertion() -> None:
    """Chefer et al. 2021 remove the least relevant patches first."""
    model, images = small(class_token=False, pooling="mean"), pictures()
    scores, target = np.random.default_rng(1).normal(size=PATCHES), int(model(images).argmax())
    (result,) = faithfulness(model, images, scores.reshape(1, *GRID), target, steps=15, random=1)
    ascending = np.argsort(scores)
    for order, share in ((ascending, result.negative), (ascending[::-1], result.positive)):
        correct = [partial_logits(model, images, order[removed:]).argmax() == target for removed in range(PATCHES)]
        assert share == pytest.approx(area(np.arange(PATCHES) / PATCHES, correct))


def test_curves_score_the_target_or_contrast() -> None:
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
    assert "so it cannot fall much" in faithfulness(model, images, maps, other, random=1)[0].describe()
    with torch.no_grad():
        model.head.bias[other] -= 12  # its probability is below 0.01 %, and its areas would read "0.00 against 0.00"
    text = faithfulness(model, images, maps, other, random=1)[0].describe()
    assert text.startswith("This test cannot judge the map: for the whole image, the probability of")
    assert "< 0.01 %" in text
    assert "0.00" not in text


@kinds
def test_batches_match_single_images_and_maps(kind: str) -> None:
    """A batch is several images with one map each, or several maps of one image."""
    model, images = small(**tiny.KINDS[kind]), pictures(3)
    maps = torch.rand(3, *GRID, generator=torch.Generator().manual_seed(5))
    targets = [3, 3, 17]
    options = {"random": 3, "seed": 2, "steps": 4}
    batch = faithfulness(model, images, maps, targets, **options)
    for index, result in enumerate(batch):
        (single,) = faithfulness(model, images[index, None], maps[index, None], targets[index], **options)
        assert_same(result, single)
        assert result.target == f"class {targets[index]}"
        assert np.isfinite(result.deletion.probabilities).all()
    of_one_image = faithfulness(model, images[:1], maps, 3, **options)
    assert_same(of_one_image[0], batch[0])
    np.testing.assert_allclose(of_one_image[1].deletion.random, of_one_image[0].deletion.random, atol=1e-6)


def assert_same(first: Faithfulness, second: Faithfulness) -> None:
    for kind in ("deletion", "insertion"):
        for name in ("fractions", "probabilities", "random"):
            actual, expected = (getattr(getattr(result, kind), name) for result in (first, second))
            np.testing.assert_allclose(actual, expected, atol=2e-5, err_msg=f"{kind} {name}")


def test_random_orders_depend_only_on_the_seed() -> None:
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
    ("message", "changes"),
    [
        ("NaN", {"model": BROKEN}),
        (r"\(maps, 3, 5\)", {"maps": torch.rand(1, 5, 3)}),
        (r"got \(3, 5\)", {"maps": torch.rand(*GRID)}),
        ("finite", {"maps": torch.full((1, *GRID), float("nan"))}),
        ("Expected maps", {"maps": torch.zeros(0)}),
        ("2 images", {"images": pictures(2), "maps": torch.rand(3, *GRID)}),
        ("at least one", {"random": 0}),
        ("steps", {"steps": 0}),
        ("eval", {"model": small().train()}),
    ],
)
def test_invalid_faithfulness_arguments_are_refused(message: str, changes: dict[str, Any]) -> None:
    arguments = {"model": small(), "images": pictures(), "maps": torch.rand(1, *GRID), "target": 0, **changes}
    with pytest.raises((EvaluationError, AnalysisError), match=message):
        faithfulness(**arguments)


# ---- sums of scores, noise, random weights


def test_sensitivity_n_correlates_sums_and_drops() -> None:
    model, target = small(), 7
    maps = torch.randn(2, *GRID, generator=torch.Generator().manual_seed(0))
    for images in (pictures(2), pictures(1)):  # a map of each image, and two maps of one image
        result = sensitivity_n(model, images, maps, target, sizes=[1, 3, 8], samples=11, seed=5)
        assert result.sizes == (1, 3, 8)
        assert result.correlations.shape == (2, 3)
        for index, correlations in enumerate(result.correlations):
            row, image = maps[index].flatten().numpy(), images[index % len(images)][None]
            for size, correlation in zip((1, 3, 8), correlations, strict=True):
                removed = random_sets(PATCHES, size, 11, 5 + size)
                assert (removed.sum(1) == size).all()
                sums = [row[patches].sum() for patches in removed.numpy()]
                logits = [partial_logits(model, image, (~patches).nonzero())[target] for patches in removed]
                assert correlation == pytest.approx(np.corrcoef(sums, np.negative(logits))[0, 1], abs=1e-5)
    flat = sensitivity_n(model, images, torch.full((1, *GRID), 0.1), target, sizes=[3], samples=5)
    assert np.isnan(flat.correlations).all()
    model = small(class_token=False, pooling="mean")
    assert sensitivity_n(model, images, maps[:1], 0, samples=2).sizes[0] == 1
    for invalid in ({"sizes": []}, {"sizes": [0]}, {"sizes": [PATCHES]}, {"samples": 1}):
        with pytest.raises(EvaluationError, match="sizes" if "sizes" in invalid else "at least 2"):
            sensitivity_n(model, images, maps[:1], 0, **invalid)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 20))
def test_correlations_match_scipy(seed: int, levels: int) -> None:
    x, y = np.random.default_rng(seed).integers(levels, size=(2, 3, 13)).astype(float)
    for ours, theirs, tolerance in ((pearson, scipy.stats.pearsonr, 1e-5), (spearman, scipy.stats.spearmanr, 1e-12)):
        expected = [theirs(a, b).statistic for a, b in zip(x, y, strict=True)]
        np.testing.assert_allclose(ours(torch.from_numpy(x), torch.from_numpy(y)), expected, atol=tolerance)
    assert spearman(torch.arange(7.0)[None], torch.ones(1, 7)).isnan().all()  # a constant map


def test_max_sensitivity_matches_captum_and_the_formula() -> None:
    model, images = small(), pictures(2)
    state = torch.random.get_rng_state()
    sensitivities = max_sensitivity(model, images, 7, "rollout", radius=0.1, samples=3, seed=8, fuse="max")
    assert torch.equal(state, torch.random.get_rng_state())
    pixels = []

    def explain(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor]:
        pixels.append(inputs if isinstance(inputs, Tensor) else inputs[0])
        return (score_patches(model, pixels[-1], method="rollout", fuse="max"),)

    with torch.random.fork_rng():
        torch.manual_seed(8)
        direct = captum_sensitivity(explain, images, perturb_radius=0.1, n_perturb_samples=3)
    np.testing.assert_allclose(sensitivities, direct.numpy(), rtol=1e-5)
    noisy = score_patches(model, pixels[1], method="rollout", fuse="max").flatten(1).unflatten(0, (2, 3))
    plain = score_patches(model, images, method="rollout", fuse="max").flatten(1)
    largest = (noisy - plain[:, None]).norm(dim=2).amax(1) / plain.norm(dim=1)
    np.testing.assert_allclose(sensitivities, largest.numpy(), rtol=1e-5)
    assert (max_sensitivity(model, images, 7, "rollout", radius=1e-7, samples=2) < sensitivities).all()
    with pytest.raises(EvaluationError):
        max_sensitivity(model, images, 7, "rollout", radius=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_max_sensitivity_takes_half_precision(dtype: torch.dtype) -> None:
    sensitivities = max_sensitivity(small().to(dtype), pictures(2).to(dtype), 7, "gae", radius=0.1, samples=2)
    assert np.isfinite(sensitivities).all()
    assert (sensitivities > 0).all()


def test_sanity_stages_match_randomization_by_hand() -> None:
    model, images = small(), pictures(2)
    changed = copy.deepcopy(model)
    original = score_patches(model, images, method="rollout").flatten(1).numpy()
    result = sanity(model, images, 7, "rollout", seed=3)
    assert all(map(torch.equal, model.parameters(), changed.parameters()))
    assert result.parts == ("head", "block 2", "block 1", "block 0", "embedding")
    for stage, (name, ranks) in enumerate(zip(result.parts, result.ranks, strict=True)):
        generator = torch.Generator().manual_seed(3 + stage)
        with torch.no_grad():
            for weights in model_parts(changed)[name]:
                noise = torch.randn(weights.shape, generator=generator)
                weights.copy_(weights.mean() + (weights - weights.mean()).square().mean().sqrt() * noise)
        current = score_patches(changed, images, method="rollout").flatten(1).numpy()
        expected = [scipy.stats.spearmanr(*maps).statistic for maps in zip(original, current, strict=True)]
        np.testing.assert_allclose(ranks, expected, atol=1e-3)


def test_every_weight_belongs_to_one_part() -> None:
    for changes in ({}, {"registers": 1, "distillation_token": True}, {"class_token": False, "pooling": "attention"}):
        model = small(**{"heads": 1, **changes}, norms={"pre": True})
        parts = model_parts(model)
        listed = [id(weights) for part in parts.values() for weights in part]
        assert sorted(listed) == sorted(id(weights) for weights in model.parameters())
        assert id(model.head.weight) in {id(weights) for weights in parts["head"]}
        assert id(model.norm_pre.weight) in {id(weights) for weights in parts["embedding"]}
        assert all(parts.values())


def test_sanity_describes_its_result_and_refuses_unknown_methods() -> None:
    model, images = small(), pictures()
    result = sanity(model, images, None, "rollout")
    assert f"{result.ranks[-1].mean():.2f}" in result.describe()
    with pytest.raises(ExplainError):
        sanity(model, images, method="nonsense")
    assert sanity(small(classes=0), images, method="rollout").parts[0] == "head"


def test_the_target_is_the_class_predicted_before_changes() -> None:
    model, images = small(), pictures(2)
    predicted = model(images).argmax(1)
    assert predicted[0] != predicted[1]
    first = sanity(model, images, None, "input_gradient")
    np.testing.assert_allclose(first.ranks, sanity(model, images, predicted, "input_gradient").ranks)
    np.testing.assert_allclose(
        max_sensitivity(model, images, None, "input_gradient", samples=2),
        max_sensitivity(model, images, predicted.tolist(), "input_gradient", samples=2),
    )
    # Small noise changes little, unless images get each other's class.
    assert (max_sensitivity(model, images, predicted, "input_gradient", samples=3, radius=1e-6) < 1e-3).all()


# ---- masks

GEOMETRIES = [
    Geometry(image=(40, 30), input=(6, 10), frame=(0.0, 0.0, 40.0, 30.0)),  # the whole photograph
    Geometry(image=(53, 31), input=(6, 10), frame=(7.3, 2.9, 44.1, 28.2)),  # a part
    Geometry(image=(17, 29), input=(6, 10), frame=(-11.5, 0.0, 36.8, 29.0)),  # padded on both sides
]


def example(geometry: Geometry, seed: int, levels: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    width, height = geometry.image
    return generator.integers(levels, size=GRID).astype(float), generator.random((height, width)) < 0.4


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["whole", "part", "padded"])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_segmentation_matches_counts_by_pixel(geometry: Geometry, seed: int) -> None:
    values, mask = example(geometry, seed)
    pixels = [(x, y, geometry.patch_at(x + 0.5, y + 0.5, GRID)) for y, x in np.ndindex(mask.shape)]
    pairs = [(values[patch], mask[y, x]) for x, y, patch in pixels if patch is not None]
    scores, truth = map(np.array, zip(*pairs, strict=True))
    result = segmentation(values, geometry, mask)
    assert result.share == pytest.approx(truth.mean())
    above = scores > scores.mean()
    assert result.iou == pytest.approx((above & truth).sum() / (above | truth).sum())
    assert result.background_iou == pytest.approx((~above & ~truth).sum() / (~above | ~truth).sum())
    assert result.accuracy == pytest.approx((above == truth).mean())
    precision = previous = 0.0
    for level in np.unique(scores)[::-1]:
        recall = (truth & (scores >= level)).sum() / truth.sum()
        precision += (recall - previous) * truth[scores >= level].mean()
        previous = recall
    assert result.average_precision == pytest.approx(precision)
    flat = segmentation(np.full(GRID, 0.1), geometry, mask)
    assert flat.iou == 0
    assert flat.average_precision == pytest.approx(flat.share)


def test_pointing_game_uses_the_strongest_patch_and_the_tolerance() -> None:
    geometry, values = GEOMETRIES[0], np.zeros(GRID)
    values[1, 2] = values[2, 2] = 3  # the first in reading order has its center at pixel (20, 15)
    mask = np.zeros((30, 40), bool)
    mask[15, 20] = True
    assert pointing_game(values, geometry, mask)
    away = np.zeros_like(mask)
    away[12, 16] = True  # 3 up and 4 to the left
    assert not pointing_game(values, geometry, away)
    assert not pointing_game(values, geometry, away, tolerance=4.9)
    assert pointing_game(values, geometry, away, tolerance=5)
    padded, full_mask = GEOMETRIES[2], np.ones((29, 17), bool)
    corner = np.zeros(GRID)
    corner[0, 0] = 1  # only padding
    assert not pointing_game(corner, padded, full_mask, tolerance=100)
    corner[0, 1] = 2  # partly padding: the center of the rest counts
    assert pointing_game(corner, padded, full_mask)


def test_masks_that_do_not_fit_are_refused() -> None:
    values, mask = example(GEOMETRIES[0], 0)
    for invalid in (mask.T, mask.astype(int), mask[None]):
        with pytest.raises(EvaluationError, match=r"mask of bools \(30, 40\)"):
            segmentation(values, GEOMETRIES[0], invalid)
    with pytest.raises(EvaluationError, match="finite"):
        pointing_game(np.full(GRID, np.nan), GEOMETRIES[0], mask)
    for blank in (np.zeros_like(mask), np.ones_like(mask)):
        with pytest.raises(EvaluationError, match="some of the pixels"):
            segmentation(values, GEOMETRIES[0], blank)
