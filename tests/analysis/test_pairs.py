"""Test the comparison of two photographs: cosines, mutual matches, the exact split, and a shared PCA basis."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.pairs import Descriptor, PatchSimilarity, compare_patches, patch_descriptors, similarity_parts
from vitviz.analysis.pca_basis import PCABasis, fit_pca
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT

DESCRIPTORS = ("tokens", "queries", "keys", "values")


def pair(seed: int = 0, **changes: Any) -> tuple[ViT, Trace, Trace]:
    """Return a model with the traces of two images of different grids."""
    model = tiny.model(seed, **{**tiny.SMALL, **changes})
    return model, model.trace(tiny.images(1, 1, (3, 5), 2)), model.trace(tiny.images(1, 2, (4, 3), 2))


@torch.no_grad()
def by_hand(model: ViT, trace: Trace, descriptor: Descriptor, block: int) -> Tensor:
    layer, stream = model.blocks[block], trace.stream(block)
    if descriptor == "tokens":
        vectors = model.norm(layer(stream, model.angles(trace.grid)))[0]
    else:
        width = model.config.heads * model.config.head_size
        vectors = layer.attn.qkv(layer.norm1(stream))[0].split(width, dim=1)[DESCRIPTORS.index(descriptor) - 1]
        norm = {"queries": layer.attn.q_norm, "keys": layer.attn.k_norm}.get(descriptor)
        if norm is not None:
            vectors = norm(vectors.unflatten(1, (model.config.heads, -1))).flatten(1)
    return vectors[len(trace.prefix) :]


@pytest.mark.parametrize(
    "kind", ["class token", "registers, rotary", "class token and mean", "mean, no prefix, root-mean-square norms"]
)
@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_cosines_of_descriptors_match_the_block(kind: str, descriptor: Descriptor) -> None:
    model, first, second = pair(**tiny.KINDS[kind])
    for block in (0, 2):
        similarity = compare_patches(model, first, second, descriptor, block)
        one, other = (by_hand(model, trace, descriptor, block) for trace in (first, second))
        expected = torch.cosine_similarity(one[:, None], other[None], dim=2)
        tiny.close(similarity.cosines.reshape(15, 12), expected, 1e-4)
        again = compare_patches(model, second, first, descriptor, block).cosines
        np.testing.assert_allclose(again, similarity.cosines.transpose(2, 3, 0, 1), atol=1e-6)
    itself = compare_patches(model, first, first, descriptor)
    matches = itself.mutual()
    assert len(matches) == 15  # the identity
    assert all(match.first == match.second and match.cosine > 0.9999 for match in matches)


def test_mutual_matches_are_nearest_in_both_directions() -> None:
    table = np.random.default_rng(0).normal(size=(3, 5, 4, 3)).astype(np.float32)
    similarity = PatchSimilarity(table, "tokens", 2)
    expected = {}
    for row, column in np.ndindex(3, 5):
        best = np.unravel_index(table[row, column].argmax(), (4, 3))
        if np.unravel_index(table[:, :, best[0], best[1]].argmax(), (3, 5)) == (row, column):
            expected[row, column] = tuple(map(int, best))
    matches = similarity.mutual()
    assert {match.first: match.second for match in matches} == expected
    assert [match.cosine for match in matches] == sorted((match.cosine for match in matches), reverse=True)
    assert all(table[match.first + match.second] == np.float32(match.cosine) for match in matches)
    assert similarity.mutual(2) == matches[:2]
    with pytest.raises(AnalysisError, match="-1"):
        similarity.mutual(-1)


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["mean, no prefix, root-mean-square norms", "registers, parallel", "mean beside a class token"]
)
def test_parts_of_a_similarity_sum_to_the_cosine(kind: str) -> None:
    model, first, second = pair(**{**tiny.KINDS[kind], "classes": 0})
    one, other = (model.features(tiny.images(1, seed, grid, 2))[0] for seed, grid in ((1, (3, 5)), (2, (4, 3))))
    parts = similarity_parts(model, first, second)
    assert parts.shape == (3, 5, 4, 3)
    assert parts.sum() == pytest.approx(float(torch.cosine_similarity(one, other, dim=0)), abs=1e-4)
    if not model.config.norms.pooled:  # each part is a dot product of two patches
        x, y = first.tokens[0, len(first.prefix) :][7], second.tokens[0, len(second.prefix) :][4]
        assert parts[1, 2, 1, 1] == pytest.approx(float(x @ y / (15 * 12 * one.norm() * other.norm())), abs=1e-6)
    with pytest.raises(AnalysisError, match="pooling 'cls'"):
        similarity_parts(*pair())


def test_unknown_descriptors_and_blocks_raise() -> None:
    model, first, _ = pair()
    with pytest.raises(AnalysisError, match="keys, values, got 'heads'"):
        patch_descriptors(model, first, "heads")
    with pytest.raises(AnalysisError, match=r"block 2.*got blocks \[1\]"):
        patch_descriptors(model, model.trace(tiny.images(1, 1, (3, 5), 2), blocks=[1]), "tokens", 1)


def test_one_basis_colors_several_photographs_and_survives_a_file(tmp_path: Path) -> None:
    model, first, second = pair()
    basis = fit_pca(model, [first, second], "keys", 1, count=4)
    samples = torch.cat([by_hand(model, trace, "keys", 1) for trace in (first, second)]).double().numpy()
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    centered = samples - samples.mean(0)
    _, values, axes = np.linalg.svd(centered, full_matrices=False)
    np.testing.assert_allclose(np.abs((axes[:4] * basis.components).sum(1)), 1.0, rtol=1e-4)
    np.testing.assert_allclose(basis.explained, values[:4] ** 2 / (values**2).sum(), rtol=1e-4)
    scores = samples @ basis.components.T
    low, high = np.percentile(scores, (1, 99), axis=0)
    expected = ((scores - low) / (high - low)).clip(0, 1)[:, :3]
    colors = [basis.colors(model, trace).reshape(-1, 3) for trace in (first, second)]
    np.testing.assert_allclose(np.concatenate(colors), expected, atol=1e-4)
    again = PCABasis.load(basis.save(tmp_path / "basis.npz"))
    for trace in (first, second):
        np.testing.assert_array_equal(again.colors(model, trace), basis.colors(model, trace))
        mask = again.foreground(model, trace)
        assert (mask.shape, mask.dtype) == (trace.grid, bool)
        np.testing.assert_array_equal(mask, basis.scores(model, trace)[..., 0] > basis.threshold)
    (tmp_path / "other.npz").write_bytes(b"x")
    for path, words in ((tmp_path / "other.npz", "other.npz"), (tmp_path / "none.npz", "none")):
        with pytest.raises(AnalysisError, match=words):
            PCABasis.load(path)
    with pytest.raises(AnalysisError, match=r"85 numbers, .* got 95"):
        basis.colors(*pair(head_width=19)[:2])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_foreground_is_what_differs_from_the_border(sign: float) -> None:
    model, trace = tiny.model(), tiny.trace(1)
    expected = np.zeros(tiny.GRID, bool)
    expected[2:5, 3:8] = True
    generator = torch.Generator().manual_seed(0)
    tokens = 0.1 * torch.randn(trace.tokens.shape, generator=generator)
    tokens[..., 7] += 3.0  # the direction of the background
    tokens[0, 1:][torch.from_numpy(expected).flatten(), 4] += 3.0 * sign  # after the class token
    marked = dataclasses.replace(trace, tokens=tokens)
    np.testing.assert_array_equal(fit_pca(model, [marked], "tokens", -1).foreground(model, marked), expected)
