"""Test logit lens, tokens, positions and patch filters against the reference model and NumPy."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
from torch import Tensor

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.filters import patch_filters, position_similarity
from vitviz.analysis.logit_lens import logit_lens
from vitviz.analysis.tokens import block_outputs, token_norms, token_pca, token_similarity
from vitviz.attribution.targets import ExplainError
from vitviz.model.trace import Trace, TraceError
from vitviz.model.vit import ViT
from vitviz.resources import DEFAULT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def everyday() -> vitviz.Explorer:
    return vitviz.Explorer(vitviz.load(DEFAULT))


def seen(**changes: Any) -> tuple[ViT, Trace]:
    return tiny.model(**changes), tiny.trace(batch=1, **changes)


def with_stream(trace: Trace, block: int, change: Any) -> Trace:
    """Return the trace with another input of a block: `change` edits a copy of its patches (gh * gw, D)."""
    stream = trace.stream(block).clone()
    change(stream[0, len(trace.prefix) :])
    states = list(trace.states)
    states[block] = dataclasses.replace(states[block], stream=stream)
    return dataclasses.replace(trace, states=tuple(states))


@pytest.mark.parametrize("kind", tiny.KINDS)
@torch.no_grad()
def test_logit_lens_matches_truncated_models(kind: str) -> None:
    """Check the outputs of blocks, and that each patch is classified as if no other patch could be pooled."""
    model, trace = seen(**tiny.KINDS[kind], grid=(2, 5))
    images, prefix, chosen = tiny.images(1, grid=(2, 5)), len(trace.prefix), (3, 0, 17)
    lens, norms = logit_lens(model, trace, chosen), token_norms(model, trace).norms
    outputs = list(block_outputs(model, trace))
    assert lens.blocks == (0, 1, 2)
    assert lens.patches.shape == (3, *trace.grid, 3)
    np.testing.assert_array_equal(lens.logits[-1], trace.logits[0].numpy())  # the last reading is the prediction
    for depth in (1, 2, 3):
        with torch.enable_grad():
            truncated = reference.run(model, images, depth=depth)
        leaving = truncated.leaving[-1].detach()
        assert outputs[depth - 1][0] == depth - 1
        tiny.close(outputs[depth - 1][1], leaving, 1e-4)
        np.testing.assert_allclose(norms[depth - 1], leaving[0].norm(dim=1), rtol=1e-4)
        logits, final = truncated.logits.tensor.detach()[0], truncated.final.tensor.detach()[0].float()
        np.testing.assert_allclose(lens.logits[depth - 1], logits, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(lens.probabilities[depth - 1], logits.softmax(0), rtol=1e-3, atol=1e-6)
        for row, column in ((0, 0), (1, 3), (1, 4)):
            patch = final[prefix + row * 5 + column]
            front = list(final[:prefix])
            if model.config.pooling == "cls":
                front[0] = patch
            if model.config.distillation_token:
                front[trace.prefix.index("distillation")] = patch
            sequence = [patch] if model.config.pooling == "attention" else [*front, patch]
            if model.config.pooling == "attention" and model.config.distillation_token:
                continue  # two classifiers read different tokens
            probabilities = model.classify(torch.stack(sequence)[None])[0].softmax(0).numpy()
            patches = lens.patches[depth - 1, row, column]
            np.testing.assert_allclose(patches, probabilities[[*chosen]], rtol=1e-3, atol=1e-6)
            assert lens.best[depth - 1, row, column] == probabilities.argmax()
            assert lens.best_probability[depth - 1, row, column] == pytest.approx(probabilities.max(), rel=1e-3)


def test_lens_classes_are_named_or_most_probable() -> None:
    model, trace = seen()
    order = trace.logits[0].argsort(descending=True)[:5].tolist()
    assert logit_lens(model, trace).classes == tuple(order)
    assert logit_lens(model, trace).names[0] == f"class {order[0]}"
    model.pretrained = tiny.known().pretrained
    lens = logit_lens(model, trace, ["Thing 7", 2])
    assert (lens.classes, lens.names) == ((7, 2), ("thing 7", "thing 2"))
    with pytest.raises(ExplainError, match="parrot"):
        logit_lens(model, trace, ["parrot"])


def test_blocks_whose_successor_was_not_kept_are_left_out() -> None:
    model, images = tiny.model(), tiny.images(1)
    full, partial = logit_lens(model, model.trace(images)), logit_lens(model, model.trace(images, blocks=[1]))
    assert partial.blocks == (0, 2)
    np.testing.assert_allclose(partial.logits, full.logits[[0, 2]], rtol=1e-5)
    assert token_norms(model, model.trace(images, blocks=[1])).blocks == (0,)
    with pytest.raises(AnalysisError, match=r"got blocks \[0\]"):
        token_pca(model, model.trace(images, blocks=[0]))


def test_several_images_or_no_classifier_raise() -> None:
    model, two = tiny.model(), tiny.trace()
    for ask in (logit_lens, token_pca, token_norms, lambda *of: token_similarity(*of, "cls")):
        with pytest.raises(AnalysisError, match="one image, got 2"):
            ask(model, two)
    bare = tiny.model(classes=0)
    with pytest.raises(AnalysisError, match="classifier, got one without"):
        logit_lens(bare, bare.trace(tiny.images(1)))


def test_outliers_are_patches_with_large_norms() -> None:
    model, trace = seen(registers=2)

    def lengthen(patches: Tensor) -> None:
        patches[17] *= 40.0
        patches[60] *= 25.0

    norms = token_norms(model, with_stream(trace, 1, lengthen))
    assert np.flatnonzero(norms.outliers[0]).tolist() == [3 + 17, 3 + 60]
    lengths = norms.norms[0, 3:].astype(np.float64)
    middle = np.median(lengths)
    robust = middle + 6.0 * 1.4826 * np.median(np.abs(lengths - middle))
    assert norms.thresholds[0] == pytest.approx(max(2.0 * middle, robust), rel=1e-5)
    assert not token_norms(model, trace).outliers.any()

    def spread(patches: Tensor) -> None:
        lengths = torch.linspace(-2.0, 2.0, len(patches)).exp()  # from 1/7 to 7 times the median
        patches.mul_(lengths[:, None] / patches.norm(dim=1, keepdim=True))

    wide = token_norms(model, with_stream(trace, 1, spread))
    assert wide.norms[0, 3:].max() > 7 * np.median(wide.norms[0, 3:])  # a wide distribution has no outliers
    assert not wide.outliers[0].any()
    alike = with_stream(trace, 1, lambda patches: patches.copy_(torch.ones_like(patches)))
    assert not token_norms(model, alike).outliers[0].any()  # equal norms are no outliers


def check_colors(model: ViT, trace: Trace, usual: np.ndarray) -> None:
    """Assert components and colors of all blocks, by a decomposition of the `usual` patches (L, n) of all blocks."""
    pca, layers = token_pca(model, trace), []
    for (_, stream), kept in zip(block_outputs(model, trace), usual, strict=True):
        patches = model.norm(stream)[0, len(trace.prefix) :].detach().double().numpy()
        patches -= patches[kept].mean(0)
        layers.append(patches / np.sqrt((patches[kept] ** 2).sum(1).mean()))
    _, _, axes = np.linalg.svd(np.concatenate([layer[kept] for layer, kept in zip(layers, usual, strict=True)]))
    np.testing.assert_allclose(np.abs((axes[:3] * pca.components).sum(1)), 1.0, rtol=1e-5)
    for layer, kept, colors, explained in zip(layers, usual, pca.colors, pca.explained, strict=True):
        scores = layer @ pca.components.T.astype(np.float64)
        np.testing.assert_allclose(explained, (scores[kept] ** 2).sum(0) / (layer[kept] ** 2).sum(), rtol=1e-4)
        low, high = np.percentile(scores[kept], (1, 99), axis=0)
        np.testing.assert_allclose(colors.reshape(-1, 3), ((scores - low) / (high - low)).clip(0, 1), atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"registers": 2, "grid": (2, 5)}, {"class_token": False, "pooling": "mean"}])
def test_colors_are_scores_of_components_between_percentiles(changes: dict[str, Any]) -> None:
    model, trace = seen(**changes)
    pca = token_pca(model, trace)
    assert pca.colors.shape == (3, *trace.grid, 3)
    assert not token_norms(model, trace).outliers.any()
    assert ((pca.components.astype(np.float64) ** 3).sum(1) > 0).all()
    check_colors(model, trace, np.ones((3, trace.grid[0] * trace.grid[1]), bool))


@pytest.mark.parametrize("name", ["church", "dog", "koala", "hedgehog"])
def test_a_film_of_the_colors_has_no_sign_flip(name: str, everyday: vitviz.Explorer) -> None:
    """Check that patches keep their colors from block to block; with a basis for each block, some steps had 0.0."""
    colors = everyday.open(vitviz.example(name)).token_pca().colors.reshape(12, -1, 3)
    for before, after in itertools.pairwise(colors):
        assert (np.diag(np.corrcoef(before.T, after.T)[:3, 3:]) > 0.8).all()


@pytest.mark.parametrize("seed", range(6))
def test_colors_do_not_flip_between_similar_images(seed: int) -> None:
    """Check that small noise changes the colors little, although signs of components are arbitrary."""
    model, image = tiny.model(seed), tiny.images(1, seed)
    noise = 1e-4 * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed))
    first, second = (token_pca(model, model.trace(x)).colors for x in (image, image + noise))
    assert np.abs(first - second).mean() < 0.02


def test_pca_and_its_scale_exclude_outliers() -> None:
    model, trace = seen()
    odd = np.arange(77) % 9 == 4

    def spoil(patches: Tensor) -> None:
        patches[odd] = 0.01 * patches[odd]
        patches[odd, 2] = 1e4  # large norms in one direction

    spoiled = with_stream(trace, 1, spoil)
    assert token_norms(model, spoiled).outliers[0, 1:].tolist() == odd.tolist()
    check_colors(model, spoiled, np.stack([~odd, np.ones(77, bool), np.ones(77, bool)]))


def test_missing_dimensions_are_grey() -> None:
    model, images = tiny.model(grid=(1, 2)), tiny.images(1, grid=(1, 2))
    pca = token_pca(model, model.trace(images, blocks=[2]))  # two patches after each of two blocks: two dimensions
    np.testing.assert_allclose(pca.explained[:, :2].sum(1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(pca.explained[:, 2], 0.0)
    np.testing.assert_array_equal(pca.colors[..., 2], 0.5)
    np.testing.assert_array_equal(token_pca(*seen(grid=(1, 1))).colors, 0.5)


@pytest.mark.parametrize("query", ["cls", (2, 3), 0, 40])
def test_similarity_is_the_cosine_after_the_final_norm(query: Any) -> None:
    model, trace = seen(registers=2)
    similarity, index = token_similarity(model, trace, query), trace.token(query)
    for block, stream in block_outputs(model, trace):
        tokens = model.norm(stream)[0].detach().double()
        tiny.close(similarity[block], torch.cosine_similarity(tokens, tokens[index][None], dim=1))
    np.testing.assert_allclose(similarity[:, index], 1.0, rtol=1e-5)
    with pytest.raises(AnalysisError, match="mean"):
        token_similarity(model, trace, "mean")
    with pytest.raises(TraceError, match="inside the 7 x 11 grid"):
        token_similarity(model, trace, (7, 0))


# ---- positions and patch filters


@pytest.mark.parametrize(
    ("changes", "grid"),
    [({}, (3, 5)), ({"positions": "sincos", "width": 20, "grid": (3, 4)}, None), ({"grid": (2, 3)}, None)],
)
def test_position_similarity_is_pairwise_cosine(changes: dict[str, Any], grid: tuple[int, int] | None) -> None:
    model = tiny.model(**changes)
    similarity = position_similarity(model, grid)
    rows, columns = grid or model.config.grid
    table = model.positions((rows, columns))[0].detach().double().numpy()  # (gh * gw, D)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    tiny.close(similarity, (unit @ unit.T).reshape(rows, columns, rows, columns))
    assert np.abs(similarity).max() <= 1.0


def test_patch_filters_match_svd() -> None:
    model = tiny.model()
    weights = model.patch_embed.proj.weight.detach().double().numpy()  # (D, 3, p, p)
    filters = patch_filters(model, 7)
    samples = weights.reshape(tiny.WIDTH, -1)
    _, values, axes = np.linalg.svd(samples - samples.mean(0), full_matrices=False)
    np.testing.assert_allclose(filters.explained, values[:7] ** 2 / (values**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(np.abs((filters.components.reshape(7, -1) * axes[:7]).sum(1)), 1.0, rtol=1e-5)
    assert ((filters.components.astype(np.float64) ** 3).sum((1, 2, 3)) > 0).all()
    for picture, component in zip(filters.pictures, filters.components, strict=True):
        tiny.close(picture, 0.5 + component.transpose(1, 2, 0) / (2 * np.abs(component).max()))
        assert min(picture.min(), 1 - picture.max()) == pytest.approx(0.0, abs=1e-6)


def test_filters_of_one_picture_have_one_component() -> None:
    """Check that if all filters are multiples of one picture, it is the only component."""
    model = tiny.model()
    picture = torch.randn(3, tiny.PATCH, tiny.PATCH, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        strengths = torch.linspace(-1.0, 2.0, tiny.WIDTH)
        model.patch_embed.proj.weight.copy_(strengths[:, None, None, None] * picture)
    filters = patch_filters(model, 3)
    np.testing.assert_allclose(filters.explained, [1.0, 0.0, 0.0], atol=1e-5)
    unit = (picture / picture.norm()).numpy()
    np.testing.assert_allclose(np.abs((filters.components[0] * unit).sum()), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(filters.pictures[1:], 0.5)  # zero weights are grey


def test_filters_of_one_channel_are_grey_and_invalid_arguments_are_refused() -> None:
    grey = patch_filters(tiny.model(channels=1), 100)
    assert grey.components.shape == (tiny.WIDTH, 1, tiny.PATCH, tiny.PATCH)
    np.testing.assert_array_equal(grey.pictures[..., 0], grey.pictures[..., 2])
    with pytest.raises(AnalysisError, match="1 or 3 channels"):
        patch_filters(tiny.model(channels=5))
    with pytest.raises(AnalysisError, match="3 and 0"):
        patch_filters(tiny.model(), 0)
    for positions in ("rotary", "none"):
        with pytest.raises(AnalysisError, match="learned or sine-cosine"):
            position_similarity(tiny.model(positions=positions, head_width=16))
    with pytest.raises(AnalysisError, match="at least 1 x 1"):
        position_similarity(tiny.model(), (0, 3))
