"""Sensitivity of maps, randomized weights and masks, against captum, SciPy and loops."""

import copy

import numpy as np
import pytest
import scipy.stats
import torch
from captum.metrics import sensitivity_max as captum_sensitivity
from explain_cases import GRID, PATCHES, pictures, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitviz.attribution.attention import rollout
from vitviz.attribution.scores import ExplainError
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.localization import pointing_game, segmentation
from vitviz.evaluation.masking import MaskedModel
from vitviz.evaluation.sanity import model_parts, sanity
from vitviz.evaluation.sensitivity import max_sensitivity, pearson, random_sets, sensitivity_n, spearman
from vitviz.images.geometry import Geometry
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")


def lost(model: ViT, images: Tensor, gone: Tensor, target: int) -> Tensor:
    """What the target's logit loses without each set (R, n) of patches of one image, one run each."""
    parts, first = MaskedModel(model, images), torch.zeros(1, dtype=torch.long)
    whole = parts.unmasked()[0, target]
    return torch.stack([whole - parts.logits(~one[None], first)[0, target] for one in gone])


# ---- sums of scores


def test_sensitivity_n_is_the_correlation_of_sums_and_losses() -> None:
    model, target = small(), 7
    maps = torch.randn(2, *GRID, generator=torch.Generator().manual_seed(0))
    for images in (pictures(2), pictures(1)):  # a map of each image, and two of one
        result = sensitivity_n(model, images, maps, target, sizes=[1, 3, 8], samples=11, seed=5)
        assert result.sizes == (1, 3, 8)
        assert result.correlations.shape == (2, 3)
        for index, correlations in enumerate(result.correlations):
            row, image = maps[index].flatten().numpy(), images[index % len(images)][None]
            for size, found in zip((1, 3, 8), correlations, strict=True):
                gone = random_sets(PATCHES, size, 11, 5 + size)
                assert (gone.sum(1) == size).all()
                sums = [row[one.numpy()].sum() for one in gone]
                expected = np.corrcoef(sums, lost(model, image, gone, target).numpy())[0, 1]
                assert found == pytest.approx(expected, abs=1e-5)
    flat = sensitivity_n(model, images, torch.full((1, *GRID), 0.1), target, sizes=[3], samples=5)
    assert np.isnan(flat.correlations).all()
    model = small(class_token=False, pooling="mean")
    assert sensitivity_n(model, images, maps[:1], 0, samples=2).sizes[0] == 1
    for asked in ({"sizes": []}, {"sizes": [0]}, {"sizes": [PATCHES]}, {"samples": 1}):
        with pytest.raises(EvaluationError, match="sizes" if "sizes" in asked else "at least 2"):
            sensitivity_n(model, images, maps[:1], 0, **asked)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 20))
def test_correlations_are_numpys_and_scipys(seed: int, levels: int) -> None:
    x, y = np.random.default_rng(seed).integers(levels, size=(2, 3, 13)).astype(float)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(pearson(torch.from_numpy(x), torch.from_numpy(y)), expected, atol=1e-5)
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(spearman(torch.from_numpy(x), torch.from_numpy(y)), expected, atol=1e-12)
    assert spearman(torch.arange(7.0)[None], torch.ones(1, 7)).isnan().all()  # a map without order


def test_max_sensitivity_is_captums_and_the_papers() -> None:
    model, images = small(), pictures(2)
    state = torch.random.get_rng_state()
    found = max_sensitivity(model, images, 7, "rollout", radius=0.1, samples=3, seed=8, fuse="max")
    assert torch.equal(state, torch.random.get_rng_state())
    pixels = []

    def explain(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor]:
        pixels.append(inputs if isinstance(inputs, Tensor) else inputs[0])
        return (rollout(model.trace(pixels[-1]), fuse="max").patches,)

    with torch.random.fork_rng():
        torch.manual_seed(8)
        direct = captum_sensitivity(explain, images, perturb_radius=0.1, n_perturb_samples=3)
    np.testing.assert_allclose(found, direct.numpy(), rtol=1e-5)
    noisy = rollout(model.trace(pixels[1]), fuse="max").patches.flatten(1).unflatten(0, (2, 3))
    plain = rollout(model.trace(images), fuse="max").patches.flatten(1)
    largest = (noisy - plain[:, None]).norm(dim=2).amax(1) / plain.norm(dim=1)
    np.testing.assert_allclose(found, largest.numpy(), rtol=1e-5)
    assert (max_sensitivity(model, images, 7, "rollout", radius=1e-7, samples=2) < found).all()
    with pytest.raises(EvaluationError):
        max_sensitivity(model, images, 7, "rollout", radius=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_max_sensitivity_of_a_model_in_half_precision(dtype: torch.dtype) -> None:
    found = max_sensitivity(small().to(dtype), pictures(2).to(dtype), 7, "gae", radius=0.1, samples=2)
    assert np.isfinite(found).all()
    assert (found > 0).all()


# ---- weights made random


def test_each_stage_randomizes_one_more_part() -> None:
    """Each stage is made again by hand on a model of its own."""
    model, images = small(), pictures(2)
    changed = copy.deepcopy(model)
    original = rollout(model.trace(images)).patches.flatten(1).numpy()
    result = sanity(model, images, 7, "rollout", seed=3)
    assert all(map(torch.equal, model.parameters(), changed.parameters()))
    assert result.parts == ("head", "block 2", "block 1", "block 0", "embedding")
    for stage, (name, found) in enumerate(zip(result.parts, result.ranks, strict=True)):
        generator = torch.Generator().manual_seed(3 + stage)
        with torch.no_grad():
            for weights in model_parts(changed)[name]:
                noise = torch.randn(weights.shape, generator=generator)
                weights.copy_(weights.mean() + (weights - weights.mean()).square().mean().sqrt() * noise)
        now = rollout(changed.trace(images)).patches.flatten(1).numpy()
        expected = [scipy.stats.spearmanr(*maps).statistic for maps in zip(original, now, strict=True)]
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_every_weight_belongs_to_one_part() -> None:
    for changes in ({}, {"registers": 1, "distillation_token": True}, {"class_token": False, "pooling": "attention"}):
        model = small(**{"heads": 1, **changes}, norm_pre=True)
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


def test_the_class_stays_the_one_that_was_predicted_at_first() -> None:
    model, images = small(), pictures(2)
    tops = model(images).argmax(1)
    assert tops[0] != tops[1]
    first = sanity(model, images, None, "input_gradient")
    np.testing.assert_allclose(first.ranks, sanity(model, images, tops, "input_gradient").ranks)
    np.testing.assert_allclose(
        max_sensitivity(model, images, None, "input_gradient", samples=2),
        max_sensitivity(model, images, tops.tolist(), "input_gradient", samples=2),
    )
    # With hardly any noise hardly anything moves, unless an image is asked about the class of another.
    assert (max_sensitivity(model, images, tops, "input_gradient", samples=3, radius=1e-6) < 1e-3).all()


# ---- masks

GEOMETRIES = [
    Geometry(image=(40, 30), input=(6, 10), frame=(0.0, 0.0, 40.0, 30.0)),  # the whole photograph
    Geometry(image=(53, 31), input=(6, 10), frame=(7.3, 2.9, 44.1, 28.2)),  # a part of it
    Geometry(image=(17, 29), input=(6, 10), frame=(-11.5, 0.0, 36.8, 29.0)),  # padded on both sides
]


def example(geometry: Geometry, seed: int, levels: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    width, height = geometry.image
    return generator.integers(levels, size=GRID).astype(float), generator.random((height, width)) < 0.4


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=["whole", "part", "padded"])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_segmentation_is_counted_pixel_by_pixel(geometry: Geometry, seed: int) -> None:
    values, mask = example(geometry, seed)
    seen, thing = [], []
    for y in range(geometry.image[1]):
        for x in range(geometry.image[0]):
            if (patch := geometry.patch_at(x + 0.5, y + 0.5, GRID)) is not None:
                seen.append(values[patch])
                thing.append(mask[y, x])
    scores, truth = np.array(seen), np.array(thing)
    result = segmentation(values, geometry, mask)
    assert result.share == pytest.approx(truth.mean())
    above = scores > scores.mean()
    assert result.iou == pytest.approx((above & truth).sum() / (above | truth).sum())
    assert result.background_iou == pytest.approx((~above & ~truth).sum() / (~above | ~truth).sum())
    assert result.accuracy == pytest.approx((above == truth).mean())
    levels = np.unique(scores)[::-1]
    precision, last = 0.0, 0.0
    for level in levels:
        recall = (truth & (scores >= level)).sum() / truth.sum()
        precision += (recall - last) * truth[scores >= level].mean()
        last = recall
    assert result.average_precision == pytest.approx(precision)


def test_a_flat_map_finds_nothing() -> None:
    geometry = GEOMETRIES[0]
    mask = np.zeros((30, 40), bool)
    mask[10:20, 8:24] = True  # patches (1, 1) and (1, 2) exactly
    flat = segmentation(np.full(GRID, 0.1), geometry, mask)
    assert flat.iou == 0
    assert flat.average_precision == pytest.approx(flat.share) == pytest.approx(2 / 15)


def test_the_pointing_game() -> None:
    geometry, values = GEOMETRIES[0], np.zeros(GRID)
    values[1, 2] = values[2, 2] = 3  # the first in reading order: its middle is the pixel (20, 15)
    mask = np.zeros((30, 40), bool)
    mask[15, 20] = True
    assert pointing_game(values, geometry, mask)
    away = np.zeros_like(mask)
    away[12, 16] = True  # 3 up and 4 to the left
    assert not pointing_game(values, geometry, away)
    assert not pointing_game(values, geometry, away, tolerance=4.9)
    assert pointing_game(values, geometry, away, tolerance=5)
    padded, everything = GEOMETRIES[2], np.ones((29, 17), bool)
    corner = np.zeros(GRID)
    corner[0, 0] = 1  # shows padding alone
    assert not pointing_game(corner, padded, everything, tolerance=100)
    corner[0, 1] = 2  # part of it is padding: the middle of the rest counts
    assert pointing_game(corner, padded, everything)


def test_masks_that_do_not_fit_are_refused() -> None:
    values, mask = example(GEOMETRIES[0], 0)
    for wrong in (mask.T, mask.astype(int), mask[None]):
        with pytest.raises(EvaluationError, match=r"mask of bools \(30, 40\)"):
            segmentation(values, GEOMETRIES[0], wrong)
    with pytest.raises(EvaluationError, match="finite"):
        pointing_game(np.full(GRID, np.nan), GEOMETRIES[0], mask)
    for blank in (np.zeros_like(mask), np.ones_like(mask)):
        with pytest.raises(EvaluationError, match="some of the pixels"):
            segmentation(values, GEOMETRIES[0], blank)
