"""Test windowed models, which run as they are, against their libraries and their attention against dense matrices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.models.swin_transformer as tv
import transformers as hf
from PIL import Image
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer_sam import VisionTransformerSAM
from tiny import shaken
from torch import Tensor
from windowed import small

import vitviz
from vitviz.analysis.decomposition import decompose
from vitviz.analysis.head_statistics import STATISTICS, head_statistics
from vitviz.analysis.interventions import intervene
from vitviz.attribution.attention import rollout_matrix
from vitviz.attribution.baselines import baseline_images
from vitviz.attribution.registry import METHODS
from vitviz.attribution.targets import ExplainError
from vitviz.draw import figures
from vitviz.errors import VitvizError
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.explorer import Explorer
from vitviz.film.film import film_of
from vitviz.lecture.numbers import lecture_bytes, token_bytes, values_bytes
from vitviz.model.config import ModelError
from vitviz.model.edits import Edits
from vitviz.model.trace import TraceError
from vitviz.site.onnx import check_exportable
from vitviz.training.transfer import start_from
from vitviz.web.payload import block_bytes, count_bytes, rollout_bytes
from vitviz.weights import checkpoint
from vitviz.weights.captured import Captured
from vitviz.weights.windows import SparseAttention

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES: dict[str, Any] = {"patch_size": 2, "embed_dim": 12, "depths": (2, 2, 1), "num_heads": (2, 3, 4)}
TIMM = SIZES | {"img_size": 48, "window_size": (6, 4, 6), "mlp_ratio": 2.5, "num_classes": 7}
HF = SIZES | {"image_size": 48, "window_size": 6, "mlp_ratio": 2.5, "num_labels": 7, "attn_implementation": "eager"}
V2 = {"pretrained_window_sizes": (7, 0, 3)}


def torchvision_swin(**parts: Any) -> Any:
    return tv.SwinTransformer([2, 2], 12, [2, 2, 1], [2, 3, 4], [6, 6], mlp_ratio=2.5, num_classes=7, **parts)


LIBRARIES: dict[str, Callable[[], Any]] = {
    "timm v1": lambda: SwinTransformer(**TIMM),
    "timm v1, padded": lambda: SwinTransformer(**TIMM | {"img_size": 40}),
    "timm v1, padded to a window": lambda: SwinTransformer(**TIMM | {"always_partition": True, "img_size": 24}),
    "timm v2": lambda: SwinTransformerV2(**TIMM, **V2),
    "torchvision v1": torchvision_swin,
    "torchvision v2": lambda: torchvision_swin(block=tv.SwinTransformerBlockV2, downsample_layer=tv.PatchMergingV2),
    "transformers v1": lambda: hf.SwinForImageClassification(hf.SwinConfig(**HF)),
    "transformers v2": lambda: hf.Swinv2ForImageClassification(hf.Swinv2Config(**HF, **V2)),
}

# Windows of 3 x 3 tokens with padding, and block 1 without windows, in a grid of 5 x 5 tokens, or 4 x 7 below.
SAM: dict[str, Any] = {"window_size": 3, "global_attn_indexes": [1], "num_channels": 2, "qkv_bias": False}
SAM |= {"output_channels": 11, "attn_implementation": "eager"}
SAM |= {"hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 20, "patch_size": 4}
VITDET = SAM | {"window_block_indices": [0, 2], "use_relative_position_embeddings": True, "pretrain_image_size": 24}
VITDET = {name: value for name, value in VITDET.items() if name != "global_attn_indexes"}
TIMM_SAM: dict[str, Any] = {"img_size": (20, 28), "patch_size": 4, "in_chans": 2, "embed_dim": 15, "depth": 3}
TIMM_SAM |= {"num_heads": 3, "window_size": 3, "global_attn_indexes": (1,), "use_rel_pos": True, "num_classes": 7}
PADDED: dict[str, Callable[[], Any]] = {
    "timm": lambda: VisionTransformerSAM(**TIMM_SAM, neck_chans=11),
    "timm, other parts": lambda: VisionTransformerSAM(
        **TIMM_SAM, neck_chans=None, use_abs_pos=False, qk_norm=True, init_values=0.5, pre_norm=True
    ),
    "transformers": lambda: hf.SamVisionModel(hf.SamVisionConfig(**SAM)),
    "transformers, whole": lambda: hf.SamModel(hf.SamConfig(vision_config=SAM, attn_implementation="eager")),
    "transformers, high quality": lambda: hf.SamHQVisionModel(hf.SamHQVisionConfig(**SAM | {"use_rel_pos": False})),
    "ViTDet": lambda: hf.VitDetModel(hf.VitDetConfig(**VITDET)),
    "ViTDet without windows": lambda: hf.VitDetModel(hf.VitDetConfig(**VITDET | {"window_block_indices": []})),
    "plain ViTDet": lambda: hf.VitDetBackbone(
        hf.VitDetConfig(**VITDET | {"window_size": 0, "use_relative_position_embeddings": False})
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
@torch.no_grad()
def test_swin_matches_its_library(name: str) -> None:
    theirs: Any = shaken(LIBRARIES[name]())
    expected: list[Tensor] = []
    with pytest.warns(UserWarning, match="runs as it is"):
        ours = vitviz.load(theirs)
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    trace = ours.trace(images)
    for module in theirs.modules():
        if "timm" in name and hasattr(module, "attn_drop"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda _module, _given, out: expected.append(out))
    out = theirs(images, output_attentions=True) if "transformers" in name else theirs(images)
    blocks = list(range(5))
    if "transformers" in name:
        expected, out, blocks = out.attentions, out.logits, [1, 3, 4]  # the last block of each stage
    assert len(expected) == (0 if "torchvision" in name else len(blocks)), "torchvision does not return attention"
    for block, reference in zip(blocks[: len(expected)], expected, strict=True):
        torch.testing.assert_close(trace.attentions[block].probabilities, reference, rtol=0, atol=2e-5)
        assert reference.std() > 1e-3  # not uniform
    assert len(trace.attentions) == 5
    for logits in (ours(images), trace.logits):
        torch.testing.assert_close(logits, out, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", PADDED)
@torch.no_grad()
def test_sam_and_vitdet_match_their_library(name: str) -> None:
    theirs: Any = shaken(PADDED[name]())
    encoder, expected = getattr(theirs, "vision_encoder", theirs), []
    with pytest.warns(UserWarning, match="runs as it is"):
        ours = vitviz.load(theirs)
    for size in (ours.config.image_size, (16, 28))[: 1 if "transformers" in name else 2]:  # SAM takes one size there
        images = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(1))
        trace = ours.trace(images)
        hooks = []
        for module in theirs.modules():
            if "timm" in name and hasattr(module, "attn_drop"):
                module.fused_attn = False
                hook = module.attn_drop.register_forward_hook(lambda _module, _given, out: expected.append(out))
                hooks.append((module, hook))
        expected.clear()
        out = encoder(images) if "timm" in name else encoder(images, output_attentions=True)
        tokens = theirs.forward_features(images) if "timm" in name else None
        if tokens is None:
            tokens = out.feature_maps[-1] if "plain" in name else out.last_hidden_state
        torch.testing.assert_close(trace.tokens, tokens.flatten(2).mT, rtol=0, atol=1e-5)
        logits = out if "timm" in name else tokens.mean((2, 3))
        torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-5)
        for attention, reference in zip(trace.attentions, (expected or out.attentions)[:3], strict=True):
            own = getattr(attention, "probabilities", attention)
            torch.testing.assert_close(own, reference.reshape(own.shape), rtol=0, atol=2e-5)
            assert reference.std() > 1e-3
        for module, hook in hooks:
            module.fused_attn = True
            hook.remove()


def test_swin_that_reads_the_maximum_is_refused_with_the_reason() -> None:
    with pytest.raises(VitvizError, match="if its classifier reads the mean"):
        vitviz.load(SwinTransformer(**TIMM | {"global_pool": "max"}).eval())


each_kind = pytest.mark.parametrize("kind", ["Swin", "SAM"])


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 48, 32, generator=torch.Generator().manual_seed(7))


def test_the_sparse_matrix_holds_what_a_block_reads() -> None:
    model = small()
    trace = model.trace(images())
    angles = model.angles(trace.grid)
    for block, (side, grid) in enumerate([(4, (24, 16))] * 2 + [(2, (12, 8))] * 2):
        attention, shift = trace.attentions[block], side // 2 * (block % 2)
        dense, tokens = attention.dense(), grid[0] * grid[1]
        assert attention.shape == dense.shape == (2, 2 + block // 2, tokens, tokens)
        row, column = np.indices(grid).reshape(2, -1)
        windows = np.stack([(row - shift) // side, (column - shift) // side])  # in the image, without wrapping around
        together = torch.from_numpy((windows[:, :, None] == windows[:, None]).all(0))
        assert torch.equal(dense[0, 0] > 1e-30, together)
        torch.testing.assert_close(dense.sum(-1), torch.ones_like(dense[..., 0]), rtol=0, atol=5e-5)  # of 16 bits
        query = (grid[0] // 2, 3)
        token = query[0] * grid[1] + query[1]
        torch.testing.assert_close(attention.row(query), dense[:, :, token])
        torch.testing.assert_close(attention.row(), dense.mean(2))
        torch.testing.assert_close(trace.column(block, query), dense[..., token])
        torch.testing.assert_close(trace.image(1).attention(block)[0], dense[1])
        if not trace.layouts[block].merges:  # outputs that change with one input token are those that attend to it
            changed = trace.stream(block).clone()
            changed[:, token] += torch.randn(changed.shape[2], generator=torch.Generator().manual_seed(2))
            difference = model.blocks[block](changed, angles) - model.blocks[block](trace.stream(block), angles)
            differs = difference[0].ne(0).any(-1)
            assert not differs[~together[token]].any()
            assert differs[dense[0, :, :, token].amax(0) > 1e-3].all()


def test_padding_gets_the_rest_of_a_row() -> None:
    model = small("SAM")
    trace = model.trace(images())
    row, column = np.indices((24, 16)).reshape(2, -1)
    windows = np.stack([row // 5, column // 5])
    whole = torch.from_numpy((row < 20) & (column < 15))  # of tokens in windows without padding
    statistics = head_statistics(model, trace, names=["entropy"])
    for block, attention in enumerate(trace.attentions):
        dense = attention.dense()
        assert attention.shape == dense.shape == (2, 2, 384, 384)
        torch.testing.assert_close(trace.image(1).attention(block)[0], dense[1])
        if block == 2:
            assert trace.block(block).probabilities is None, "queries and keys are smaller"
        together = torch.from_numpy((windows[:, :, None] == windows[:, None]).all(0)) | (block == 2)
        assert torch.equal(dense[0, 0] > 1e-30, together)
        full = whole | (block == 2)
        sums = dense.sum(-1)
        torch.testing.assert_close(sums[..., full], torch.ones_like(sums[..., full]))
        assert block == 2 or sums[..., ~full].mean() < 0.9
        token = 17 * 16 + 15  # in a window with padding
        for query, weights in (((17, 15), torch.eye(384)[token]), ("mean", torch.full((384,), 1 / 384))):
            for result in (attention.row(query), trace.row(block, query)):
                torch.testing.assert_close(result, torch.einsum("q,bhqk->bhk", weights, dense))
            for result in (attention.column(query), trace.column(block, query)):
                torch.testing.assert_close(result, torch.einsum("k,bhqk->bhq", weights, dense))
        entropy = torch.special.entr(dense[:, :, full]).sum(-1).mean(-1)
        np.testing.assert_allclose(statistics.samples["entropy"][:, block], entropy, rtol=1e-4)
    with torch.no_grad():
        angles = model.angles(trace.grid)
        entered = trace.stream(2).detach()
        torch.testing.assert_close(model.encode(entered, angles, start=2), trace.tokens)


def merging(grid: tuple[int, int]) -> Tensor:
    """Return the mean of 2 x 2 tokens as a matrix (n, 4 n)."""
    rows, columns = grid
    matrix = torch.zeros(rows, columns, 2 * rows, 2 * columns)
    for row in range(rows):
        for column in range(columns):
            matrix[row, column, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 0.25
    return matrix.reshape(rows * columns, -1)


def dense_product(trace: Captured, matrices: list[Tensor]) -> Tensor:
    """Multiply a matrix (B, n, n) of each block, and the merging of tokens."""
    product = torch.eye(matrices[0].shape[1]).expand_as(matrices[0])
    for block, matrix in enumerate(matrices):
        layout = trace.layouts[block]
        product = matrix @ (merging(layout.grid) @ product if layout.merges else product)
    return product


@pytest.mark.parametrize(
    ("fuse", "residual", "kind"), [("mean", 0.5, "Swin"), ("max", 0.3, "Swin"), ("mean", 0.5, "SAM")]
)
def test_rollout_is_the_dense_product_with_merging(fuse: str, residual: float, kind: str) -> None:
    trace = small(kind).trace(images())
    matrices = []
    for attention in trace.attentions:
        fused = getattr(torch, {"mean": "mean", "max": "amax"}[fuse])(attention.dense(), dim=1)
        fused = fused / fused.sum(-1, keepdim=True) if fuse == "max" else fused
        matrices.append((1 - residual) * fused + residual * torch.eye(fused.shape[1]))
    product = dense_product(trace, matrices)
    columns = trace.grid_in(-1)[1]
    torch.testing.assert_close(rollout_matrix(trace, fuse=fuse, residual=residual), product, rtol=0, atol=1e-6)
    for query, row in (((3, 5), product[:, 3 * columns + 5]), (None, product.mean(1))):
        maps = vitviz.rollout(trace, query, fuse=fuse, residual=residual)
        for heatmap, expected in zip(maps, row, strict=True):
            np.testing.assert_allclose(heatmap.values, expected.view(24, 16), atol=1e-6)
        assert maps[0].title.endswith("(stage 2)") == (kind == "Swin")
        assert maps[0].query == (query if kind == "SAM" else None)


@each_kind
def test_gradient_methods_match_dense_formulas(kind: str) -> None:
    model, pixels, label = small(kind), images(1), 3
    trace = model.trace(pixels, grad=True)
    attentions = [attention.probabilities for attention in trace.attentions]
    slopes = torch.autograd.grad(trace.logits[0, label], attentions)

    def dense(block: int, matrices: Tensor) -> Tensor:
        layout = trace.layouts[block]
        places = torch.stack([layout.members // layout.grid[1], layout.members % layout.grid[1]], dim=2)  # (W, M, 2)
        apart = (places[:, :, None] - places[:, None]).abs() >= torch.tensor(layout.side)  # joined by a shift only
        inside = layout.members < layout.tokens
        apart = apart.any(3) & inside[:, :, None] & inside[:, None]
        return SparseAttention(matrices.masked_fill(apart[:, None], 0.0), layout, trace.weights).dense()

    with torch.no_grad():
        attended = [dense(block, attention) for block, attention in enumerate(attentions)]
        gradients = [dense(block, slope) for block, slope in enumerate(slopes)]
        eyes = [torch.eye(matrix.shape[-1]) for matrix in attended]
        pairs = list(zip(attended, gradients, strict=True))
        added = [eye + (a * g).clamp(0).mean(1) for eye, (a, g) in zip(eyes, pairs, strict=True)]
        scores = {"gae": dense_product(trace, added) - dense_product(trace, [eye[None] for eye in eyes])}
        rolled = [0.5 * (a * g).mean(1).clamp(0) + 0.5 * eye for eye, (a, g) in zip(eyes, pairs, strict=True)]
        rolled = [matrix / matrix.sum(-1, keepdim=True) for matrix in rolled]
        scale = [0.5 / (0.5 * (a * g).mean(1).clamp(0).sum(-1) + 0.5) for a, g in pairs]
        skipped = dense_product(trace, [torch.diag_embed(each) for each in scale])
        if kind == "Swin":  # else a row's sum contains the padding's share
            scores["gradient_rollout"] = dense_product(trace, rolled) - skipped
        expected = {name: matrix.mean(1) for name, matrix in scores.items()}
        row, slope = attended[1].mean(2), gradients[1].mean(2)  # (1, H, n), of the mean over queries
        expected["attention_gradcam"] = (row * slope.mean(-1, keepdim=True)).mean(1).clamp(0)
    for name, reference in expected.items():
        options = {"block": 1} if name == "attention_gradcam" else {}
        (heatmap,) = vitviz.attribute(model, pixels, label, name, **options)
        assert heatmap.grid == (24, 16)
        assert reference.std() > 0
        np.testing.assert_allclose(heatmap.values, reference.view(24, 16), atol=2e-7, rtol=2e-3)
    (legrad,) = vitviz.attribute(model, pixels, label, "legrad", start=3)
    expected = gradients[3].clamp(0).mean((1, 2)).view(trace.grid_in(-1))
    np.testing.assert_allclose(legrad.values, expected, atol=1e-7, rtol=2e-3)
    assert ("Layers 3 to 4 only" in vitviz.attribute(model, pixels, label, "legrad")[0].estimate) == (kind == "Swin")
    assert vitviz.attribute(model, pixels, label, "token_gradcam")[0].values.any()


def test_a_view_names_the_stage_and_refuses_other_queries() -> None:
    view = Explorer(small()).open(np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8))
    heatmap = view.attention(2, head=1, query=(3, 5))
    assert heatmap.title == "Layer 3 (stage 2), head 2, from patch row 4, column 6"
    assert heatmap.query == (3, 5)
    np.testing.assert_allclose(heatmap.values, view.trace.attentions[2].row((3, 5))[0, 1].view(12, 8))
    left, top, right, bottom = heatmap.geometry.patch_box(3, 5, heatmap.grid)  # of the 2 x 2 patches that it merges
    first, last = (heatmap.geometry.patch_box(*patch, view.trace.grid) for patch in ((6, 10), (7, 11)))
    assert (left, top, right, bottom) == pytest.approx((*first[:2], *last[2:]))
    assert len(view.head_maps(1)) == 2
    assert len(view.head_maps(2)) == 3
    assert view.head_sheet(2).size
    assert view.layer_sheet().size
    for query, words in (("cls", "'mean', the mean over all queries"), ((12, 0), r"12 x 8 grid \(stage 2\)")):
        with pytest.raises(TraceError, match=words):
            view.attention(3, query=query)
    with pytest.raises(ExplainError, match=r"0\.\.1"):
        view.attention(0, head=2)
    for name, method in METHODS.items():
        if method.not_captured:
            with pytest.raises(ExplainError, match=method.not_captured):
                view.explain(name)


def test_statistics_are_those_of_the_dense_matrices() -> None:
    model = small()
    trace = model.trace(images())
    statistics = head_statistics(model, trace, names=STATISTICS)
    assert statistics.stages == (1, 1, 2, 2)
    assert statistics.heads == (2, 2, 3, 3)
    assert [row[:3] for row in statistics.rows()][3:5] == [[1, 1, 1], [2, 2, 0]]
    assert "stage" in statistics.table().splitlines()[0]
    assert set(statistics.missing) >= {"gradient", "mass_cls"}
    for index, attention in enumerate(trace.attentions):
        dense, (rows, columns) = attention.dense().double(), attention.windows.grid
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
        distance = (dense * torch.cdist(places, places)).sum(-1).mean(-1)
        count = dense.shape[1]
        np.testing.assert_allclose(statistics.samples["distance"][:, index, :count], distance, rtol=1e-4)
        entropy = torch.special.entr(dense).sum(-1).mean(-1)
        np.testing.assert_allclose(statistics.samples["entropy"][:, index, :count], entropy, rtol=1e-4)
        assert np.isnan(statistics.samples["distance"][:, index, count:]).all()
    one = head_statistics(model, trace, names=["mass_self"], query=(9, 4))
    token = 9 * 16 + 4
    np.testing.assert_allclose(one.samples["mass_self"][:, 1, :2], trace.attention(1)[:, :, token, token], rtol=1e-5)


def test_hidden_patches_are_those_of_the_last_stage() -> None:
    model, pixels = small(), images(1)
    painted = pixels.clone()
    painted[..., 4:8, 8:12] = baseline_images(model, pixels, "blur", 4)[..., 4:8, 8:12]
    change = intervene(model, pixels, drop=[(1, 2)], mode="blur")
    with torch.no_grad():
        np.testing.assert_allclose(change.after, model(painted).softmax(-1), rtol=1e-5)
    fine = np.random.default_rng(0).random((24, 16))
    coarse = fine.reshape(12, 2, 8, 2).mean((1, 3))
    options: dict[str, Any] = {"baseline": "blur", "steps": 3, "random": 2}
    (of_fine,), (of_coarse,) = (faithfulness(model, pixels, maps[None], 1, **options) for maps in (fine, coarse))
    np.testing.assert_allclose(of_fine.deletion.probabilities, of_coarse.deletion.probabilities)


@each_kind
def test_estimated_size_of_a_saved_page_counts_windows(kind: str) -> None:
    trace = small(kind).trace(images(1))
    files = [*(block_bytes(trace, block) for block in trace.blocks), rollout_bytes(trace)]
    assert count_bytes(trace, rollout=True) == sum(map(len, files))


@pytest.mark.parametrize("kind", ["Swin", "Swin v2"])
def test_other_sizes_must_fit_the_windows(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    larger = torch.randn(1, 3, 64, 32)
    settings = [(part, dict(vars(part))) for part in model.module.modules()]
    torch.testing.assert_close(model(larger), model.trace(larger).logits)
    assert all(vars(part) == before for part, before in settings)
    with pytest.raises(ModelError, match="52 x 32 pixels"):
        model(torch.randn(1, 3, 52, 32))
    with pytest.raises(VitvizError, match="runs as it is"):
        checkpoint.save(model, tmp_path)


@pytest.mark.parametrize("kind", ["Swin", "Swin v2", "SAM"])
def test_decomposition_sums_to_the_score(kind: str) -> None:
    model = small(kind)
    trace = model.trace(images(1))
    parts = decompose(model, trace, contrast=(3, 1))
    expected = float(trace.logits[0, 3] - trace.logits[0, 1])
    terms = [parts.start, parts.constant, *parts.heads.flat, *parts.mlps, *parts.biases]
    assert abs(sum(terms) - expected) <= 1e-4 * max(map(abs, terms))
    np.testing.assert_allclose(parts.tokens.sum(2), parts.heads, atol=1e-9)


def test_everything_else_refuses_windowed_models() -> None:
    model = small()
    view = Explorer(model).open(Image.new("RGB", (80, 60)))
    assert view.faithfulness(view.rollout(), steps=2, random=1)[0].baseline == "blur"  # the default of these models
    others: list[Callable[[], object]] = [
        lambda: view.html(lecture=True),
        lambda: lecture_bytes(view),
        lambda: values_bytes(model, view.trace, 1),
        lambda: token_bytes(model, view.trace, 1, 3),
        lambda: check_exportable(model),
        lambda: figures.draw(view, ["heads"]),
        lambda: film_of(view),
        lambda: start_from(model, name="new", labels=("a", "b")),
        lambda: model(view.images, Edits(heads={(0, 1): "zero"})),
        lambda: view.intervene(drop=[(0, 0)]),
        view.lens,
        view.token_pca,
        lambda: view.compare(view),
    ]
    for other in others:
        with pytest.raises(VitvizError, match=r"runs as it is|with windows \(Swin, SAM\)"):
            other()
    assert "<iframe" in view._repr_html_()
