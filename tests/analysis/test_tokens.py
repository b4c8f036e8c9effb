"""What the tokens hold after each block: against the model cut short, and against sums written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.logit_lens import logit_lens
from vitviz.analysis.tokens import block_outputs, token_norms, token_pca, token_similarity
from vitviz.attribution.scores import ExplainError
from vitviz.images.preprocess import Preprocess
from vitviz.model.trace import Trace, TraceError
from vitviz.model.vit import Pretrained, ViT

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"registers": 3, "grid": (2, 5)},
    {"class_token": False, "pooling": "mean"},
    {"distillation_token": True},
    {"pooling": "cls+mean", "registers": 1},
    {"pooling": "mean", "norm_pooled": True},
    {"pooling": "cls", "norm_pooled": True},
    {"pooling": "attention", "class_token": False, "width": 20},
    {"pooling": "attention", "registers": 2, "width": 20, "norm_pooled": True},
    {"positions": "rotary", "head_width": 16},
)


def seen(**changes: Any) -> tuple[ViT, Trace]:
    """A model and its trace of one image."""
    return tiny.model(**changes), tiny.trace(batch=1, **changes)


def cut_short(depth: int, **changes: Any) -> ViT:
    """The same model without its last blocks."""
    whole, made = tiny.model(**changes), ViT(tiny.config(**{**changes, "depth": depth})).eval()
    made.load_state_dict({name: value for name, value in whole.state_dict().items() if name in made.state_dict()})
    return made


def pixels(**changes: Any) -> Tensor:
    return tiny.images(1, 1, grid=changes.get("grid", tiny.GRID))


def with_stream(trace: Trace, block: int, change: Any) -> Trace:
    """The trace as if something else had entered a block: `change` is given a copy of its patches (gh * gw, D)."""
    stream = trace.stream(block).clone()
    change(stream[0, len(trace.prefix) :])
    kept = list(trace.kept)
    kept[block] = dataclasses.replace(kept[block], stream=stream)
    return dataclasses.replace(trace, kept=tuple(kept))


# ---- the logit lens


@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_the_lens_reads_what_a_model_cut_short_answers(changes: dict[str, Any]) -> None:
    model, trace = seen(**changes)
    found = logit_lens(model, trace)
    assert found.blocks == (0, 1, 2)
    np.testing.assert_array_equal(found.logits[-1], trace.logits[0].numpy())  # the last is the model's own, exactly
    for depth in (1, 2, 3):
        answer = cut_short(depth, **changes)(pixels(**changes))[0]
        np.testing.assert_allclose(found.logits[depth - 1], answer.numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.probabilities[depth - 1], answer.softmax(0).numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_a_patch_is_read_as_if_it_were_pooled_alone(changes: dict[str, Any]) -> None:
    """Patch by patch: a sequence in which nothing else could be pooled goes through the model's own read-out."""
    model, trace = seen(**changes)
    chosen = (3, 0, 17)
    found = logit_lens(model, trace, chosen)
    assert found.patches.shape == (3, *trace.grid, 3)
    for depth in (1, 2, 3):
        short = cut_short(depth, **changes)
        final = short.trace(pixels(**changes)).tokens[0]  # (N, D)
        for row, column in ((0, 0), (1, 3), (trace.grid[0] - 1, trace.grid[1] - 1)):
            patch = final[len(trace.prefix) + row * trace.grid[1] + column]
            front = list(final[: len(trace.prefix)])
            if model.config.pooling == "cls":
                front[0] = patch
            if model.config.distillation_token:
                front[1] = patch
            sequence = [patch] if model.config.pooling == "attention" else [*front, patch]
            each = short.classify(torch.stack(sequence)[None])[0].softmax(0).numpy()
            np.testing.assert_allclose(found.patches[depth - 1, row, column], each[[*chosen]], rtol=1e-3, atol=1e-6)
            assert found.best[depth - 1, row, column] == each.argmax()
            assert found.best_probability[depth - 1, row, column] == pytest.approx(each.max(), rel=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "cls+mean"])
def test_the_patches_logits_have_the_images_as_their_mean(pooling: str) -> None:
    model, trace = seen(pooling=pooling)
    every = logit_lens(model, trace, range(tiny.CLASSES))
    # The softmax loses each patch's constant; what is left of the logarithms is compared up to it.
    logits = np.log(every.patches.astype(np.float64)).mean((1, 2))  # (L, C)
    expected = every.logits.astype(np.float64)
    difference = logits - expected
    np.testing.assert_allclose(difference - difference.mean(1, keepdims=True), 0.0, atol=1e-4)


def test_classes_are_those_named_or_the_most_probable() -> None:
    model, trace = seen()
    order = trace.logits[0].argsort(descending=True)[:5].tolist()
    assert logit_lens(model, trace).classes == tuple(order)
    assert logit_lens(model, trace).names[0] == f"class {order[0]}"
    labels = tuple(f"word {index}" for index in range(tiny.CLASSES))
    model.pretrained = Pretrained(name="tiny", preprocess=Preprocess(), labels=labels)
    found = logit_lens(model, trace, ["Word 7", 2])
    assert (found.classes, found.names) == ((7, 2), ("word 7", "word 2"))
    with pytest.raises(ExplainError, match="parrot"):
        logit_lens(model, trace, ["parrot"])


def test_blocks_whose_successor_was_not_kept_are_left_out() -> None:
    model, images = tiny.model(), tiny.images(1)
    whole, some = logit_lens(model, model.trace(images)), logit_lens(model, model.trace(images, blocks=[1]))
    assert some.blocks == (0, 2)
    np.testing.assert_allclose(some.logits, whole.logits[[0, 2]], rtol=1e-5)
    assert token_norms(model, model.trace(images, blocks=[1])).blocks == (0,)
    with pytest.raises(AnalysisError, match=r"got blocks \[0\]"):
        token_pca(model, model.trace(images, blocks=[0]))


def test_several_images_or_no_classifier_are_refused() -> None:
    model, two = tiny.model(), tiny.trace()
    for ask in (logit_lens, token_pca, token_norms, lambda *of: token_similarity(*of, "cls")):
        with pytest.raises(AnalysisError, match="one image, got 2"):
            ask(model, two)
    bare = tiny.model(classes=0)
    with pytest.raises(AnalysisError, match="classifier, got one without"):
        logit_lens(bare, bare.trace(tiny.images(1)))


# ---- norms


@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_the_stream_after_the_last_block_is_what_was_normed(changes: dict[str, Any]) -> None:
    model, trace = seen(**changes)
    made = list(block_outputs(model, trace))
    assert [block for block, _ in made] == [0, 1, 2]
    torch.testing.assert_close(model.finish(made[-1][1]), trace.tokens, rtol=1e-4, atol=1e-5)
    found = token_norms(model, trace)
    for block, tokens in made:
        lengths = [float(np.sqrt(np.sum(np.square(token)))) for token in tokens[0].double().numpy()]
        np.testing.assert_allclose(found.norms[block], lengths, rtol=1e-5)


def test_long_patches_are_outliers_and_prefix_tokens_never() -> None:
    model, trace = seen(registers=2)

    def lengthen(patches: Tensor) -> None:
        patches[17] *= 40.0
        patches[60] *= 25.0

    found = token_norms(model, with_stream(trace, 1, lengthen))
    assert np.flatnonzero(found.outliers[0]).tolist() == [3 + 17, 3 + 60]
    lengths = found.norms[0, 3:].astype(np.float64)
    middle = np.median(lengths)
    robust = middle + 6.0 * 1.4826 * np.median(np.abs(lengths - middle))
    assert found.thresholds[0] == pytest.approx(max(2.0 * middle, robust), rel=1e-5)
    assert not token_norms(model, trace).outliers.any()

    def spread(patches: Tensor) -> None:
        lengths = torch.linspace(-2.0, 2.0, len(patches)).exp()  # from a seventh to seven times the median
        patches.mul_(lengths[:, None] / patches.norm(dim=1, keepdim=True))

    wide = token_norms(model, with_stream(trace, 1, spread))
    assert wide.norms[0, 3:].max() > 7 * np.median(wide.norms[0, 3:])  # far, but so are its neighbours
    assert not wide.outliers[0].any()
    alike = with_stream(trace, 1, lambda patches: patches.copy_(torch.ones_like(patches)))
    assert not token_norms(model, alike).outliers[0].any()  # longer by nothing is no outlier


# ---- principal components


def components(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of samples (n, D) by a singular value decomposition: (3, D), and shares of the variance (3,)."""
    _, values, axes = np.linalg.svd(samples - samples.mean(0), full_matrices=False)
    return axes[:3], values[:3] ** 2 / (values**2).sum()


def normed(model: ViT, trace: Trace) -> np.ndarray:
    """Patches after the final norm: (L, gh * gw, D)."""
    first = len(trace.prefix)
    return np.stack([model.norm(x)[0, first:].detach().double().numpy() for _, x in block_outputs(model, trace)])


@pytest.mark.parametrize("changes", [{}, {"registers": 2, "grid": (2, 5)}, {"class_token": False, "pooling": "mean"}])
def test_colours_are_scores_of_components_between_percentiles(changes: dict[str, Any]) -> None:
    model, trace = seen(**changes)
    found, patches = token_pca(model, trace), normed(model, trace)
    assert found.colors.shape == (3, *trace.grid, 3)
    assert not token_norms(model, trace).outliers.any()
    before = None
    for block in range(3):
        axes, shares = components(patches[block])
        cosines = np.abs((axes * found.components[block]).sum(1))
        np.testing.assert_allclose(cosines, 1.0, rtol=1e-5)
        np.testing.assert_allclose(found.explained[block], shares, rtol=1e-5)
        scores = patches[block] @ found.components[block].T.astype(np.float64)
        low, high = np.percentile(scores, (1, 99), axis=0)
        expected = ((scores - low) / (high - low)).clip(0, 1)
        np.testing.assert_allclose(found.colors[block].reshape(-1, 3), expected, atol=1e-4)
        if before is None:
            assert ((found.components[block].astype(np.float64) ** 3).sum(1) > 0).all()
        else:
            assert (np.diag(np.corrcoef(before.T, scores.T)[:3, 3:]) > 0).all()
        before = scores


@pytest.mark.parametrize("seed", range(6))
def test_colours_do_not_flip_between_images_of_one_kind(seed: int) -> None:
    """A little noise on the image changes the colours a little, also where a free sign could turn them round."""
    model = tiny.model(seed)
    image = tiny.images(1, seed)
    noise = 1e-4 * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed))
    first, second = (token_pca(model, model.trace(x)).colors for x in (image, image + noise))
    assert np.abs(first - second).mean() < 0.02


def test_outliers_take_neither_the_components_nor_the_scale() -> None:
    model, trace = seen()
    odd = np.arange(77) % 9 == 4

    def spoil(patches: Tensor) -> None:
        patches[odd] = 0.01 * patches[odd]
        patches[odd, 2] = 1e4  # long, and in a direction of their own

    spoiled = with_stream(trace, 1, spoil)
    assert token_norms(model, spoiled).outliers[0, 1:].tolist() == odd.tolist()
    found, patches = token_pca(model, spoiled), normed(model, spoiled)[0]
    axes, shares = components(patches[~odd])
    np.testing.assert_allclose(np.abs((axes * found.components[0]).sum(1)), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.explained[0], shares, rtol=1e-5)
    scores = patches @ found.components[0].T.astype(np.float64)
    low, high = np.percentile(scores[~odd], (1, 99), axis=0)
    np.testing.assert_allclose(found.colors[0].reshape(-1, 3), ((scores - low) / (high - low)).clip(0, 1), atol=1e-4)


def test_fewer_than_three_dimensions_are_grey() -> None:
    model, trace = seen(grid=(1, 2))
    found = token_pca(model, trace)
    assert (found.explained[:, 0] > 0.999).all()
    np.testing.assert_array_equal(found.explained[:, 1:], 0.0)
    np.testing.assert_array_equal(found.colors[..., 1:], 0.5)
    one = token_pca(*seen(grid=(1, 1)))
    np.testing.assert_array_equal(one.colors, 0.5)


# ---- likeness


@pytest.mark.parametrize("query", ["cls", (2, 3), 0, 40])
def test_similarity_is_the_cosine_after_the_final_norm(query: Any) -> None:
    model, trace = seen(registers=2)
    found = token_similarity(model, trace, query)
    index = trace.token(query)
    for block, stream in block_outputs(model, trace):
        tokens = model.norm(stream)[0].detach().double().numpy()
        for other, token in enumerate(tokens):
            cosine = token @ tokens[index] / np.sqrt((token @ token) * (tokens[index] @ tokens[index]))
            assert found[block, other] == pytest.approx(cosine, abs=1e-5)
    np.testing.assert_allclose(found[:, index], 1.0, rtol=1e-5)
    with pytest.raises(AnalysisError, match="mean"):
        token_similarity(model, trace, "mean")
    with pytest.raises(TraceError, match="inside the 7 x 11 grid"):
        token_similarity(model, trace, (7, 0))
