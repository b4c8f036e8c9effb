"""Test that running a module finds its windows, against the formulas of the papers, and attention against timm's."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import timm
import torch
import transformers as hf
from timm.models.davit import DaVit
from timm.models.gcvit import GlobalContextVit
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr
from timm.models.tiny_vit import TinyVit
from tiny import shaken
from torch import Tensor, nn

import vitviz
from vitviz.images.bands import RGB
from vitviz.weights.captured import Captured, CaptureError
from vitviz.weights.layouts import windows_of
from vitviz.weights.tokens import parts_of

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS: dict[str, Any] = {"num_classes": 7}
MODELS: dict[str, Callable[[], Any]] = {
    "MaxViT": lambda: timm.create_model("test_maxvit", num_classes=7),
    "CoAtNet": lambda: timm.create_model("test_coatnet", num_classes=7),
    "Swin v2 CR": lambda: SwinTransformerV2Cr(
        img_size=(48, 32), patch_size=2, embed_dim=12, depths=(2, 2), num_heads=(2, 3), window_size=4, **WIDTHS
    ),
    "DaViT": lambda: DaVit(
        depths=(1, 1), embed_dims=(16, 24), num_heads=(2, 3), window_size=5, **WIDTHS
    ),
    "GCViT": lambda: GlobalContextVit(
        img_size=64, embed_dim=8, depths=(1, 2, 1, 1), num_heads=(1, 2, 2, 4), **WIDTHS
    ),
    "TinyViT": lambda: TinyVit(
        embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4), window_sizes=(2, 4, 3, 2),
        **WIDTHS,
    ),
    "hybrid": lambda: timm.create_model(
        "vit_tiny_r_s16_p8_224", img_size=64, depth=2, embed_dim=24, num_heads=3, num_classes=7
    ),
}  # fmt: skip
SIZES = {"DaViT": (40, 80), "TinyViT": (64, 64), "GCViT": (64, 64)}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_attention_of_mixed_models_matches_timm(name: str) -> None:
    theirs = shaken(MODELS[name]())
    if name in SIZES:
        theirs.img_size = SIZES[name]
    for module in theirs.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with pytest.warns(UserWarning, match="runs as it is"):
        ours = vitviz.load(theirs, labels=[*"abcdefg"], preprocess="half")
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    trace = ours.trace(images)
    assert isinstance(trace, Captured)
    shapes, original, expected = {trace.call(block).shape for block in trace.blocks}, Tensor.softmax, list[Tensor]()

    def softmax(logits: Tensor, *args: Any, **named: Any) -> Tensor:
        result = original(logits, *args, **named)
        if (*result.shape,) in shapes:
            expected.append(result)
        return result

    with mock.patch.object(Tensor, "softmax", softmax):
        logits = theirs(images)
    assert len(expected) == trace.depth
    for block, reference in enumerate(expected):
        own = trace.attentions[block]
        torch.testing.assert_close(getattr(own, "probabilities", own), reference, rtol=0, atol=2e-5)
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-5)
    row = trace.row(0, (0, 1))
    torch.testing.assert_close(row.sum(2), torch.ones(row.shape[:2]), rtol=0, atol=1e-3)
    view = vitviz.Explorer(ours).open(vitviz.example("dog"))
    assert view.rollout().values.shape == ours.config.grid == trace.grid
    assert view.heads().table()
    if name in ("GCViT", "CoAtNet"):  # queries come from the input of a stage; blocks merge tokens
        with pytest.raises(CaptureError, match="also takes another path"):
            view.explain("gae")
    else:
        torch.testing.assert_close(ours.classify(trace.tokens), logits, rtol=0, atol=1e-5)
        tokens = ours.run_from_start(trace.streams[0], ours.angles(trace.grid))
        torch.testing.assert_close(tokens, logits, rtol=0, atol=1e-5)


SWIN: dict[str, Any] = {"patch_size": 2, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 3), "window_size": 4}
OF_TRANSFORMERS: dict[str, Callable[[], Any]] = {
    "Pixio": lambda: hf.PixioModel(
        hf.PixioConfig(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8, n_cls_tokens=3
        )
    ),
    "Donut": lambda: hf.DonutSwinModel(hf.DonutSwinConfig(**SWIN, image_size=32)),
    "Swin2SR": lambda: hf.Swin2SRModel(hf.Swin2SRConfig(**SWIN | {"patch_size": 1}, image_size=16)),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
@torch.no_grad()
def test_models_of_transformers_that_run_as_they_are_match_eager(name: str) -> None:
    theirs = shaken(OF_TRANSFORMERS[name]())
    theirs.set_attn_implementation("eager")
    with pytest.warns(UserWarning, match="runs as it is"):
        ours = vitviz.load(theirs, preprocess="half")
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    trace, expected = ours.trace(images), theirs(images, output_attentions=True).attentions
    own = [getattr(attention, "probabilities", attention) for attention in trace.attentions]
    chosen = own if len(expected) == len(own) else own[1::2]  # transformers returns the last block of each stage
    for attention, reference in zip(chosen, expected, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=2e-5)
    assert ours.config.prefix == (("CLS", "CLS 2", "CLS 3") if name == "Pixio" else ())


def hiera() -> Any:
    sizes: dict[str, Any] = {"embed_dim": 12, "depths": [2, 2, 2], "num_heads": [1, 2, 4], "num_query_pool": 2}
    sizes |= {"masked_unit_attention": [True, True, False], "masked_unit_size": [4, 4], "image_size": [64, 64]}
    return shaken(hf.HieraForImageClassification(hf.HieraConfig(**sizes, num_labels=7, attn_implementation="eager")))


def mobilevit() -> Any:
    sizes = {"hidden_sizes": [12, 16, 20], "neck_hidden_sizes": [4, 8, 8, 8, 12, 12, 16], "image_size": 128}
    theirs = shaken(hf.MobileViTForImageClassification(hf.MobileViTConfig(**sizes, num_labels=7)))
    for module in theirs.modules():  # else images hardly matter after a few layers
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        theirs.train()(torch.randn(2, 3, 128, 128))
    return theirs.eval()


def places_in_hiera(theirs: Any, stage: int, windows: int, count: int) -> Tensor:
    """Return the window and the index there of each token of a stage, by transformers' own order: (2, n)."""
    numbers = theirs.hiera.encoder.reroll(torch.arange(float(count))[None, :, None], stage).flatten().long()
    return torch.stack([numbers % windows, numbers // windows])


@pytest.mark.parametrize("build", [hiera, mobilevit])
def test_windows_of_tokens_in_another_order(build: Callable[[], Any]) -> None:
    """Hiera pools queries over 2 x 2 tokens; MobileViT attends between equal positions of its patches of 2 x 2."""
    theirs = build()
    with pytest.warns(UserWarning, match="runs as it is"):
        ours = vitviz.load(theirs, labels=[*"abcdefg"])
    assert ours.pretrained.preprocess.bands == (RGB if build is hiera else RGB[::-1])
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    original, seen = Tensor.softmax, list[Tensor]()

    def kept(result: Tensor) -> Tensor:
        seen.append(result)
        return result

    with torch.no_grad():
        trace = ours.trace(images)
        with mock.patch.object(Tensor, "softmax", lambda *args, **named: kept(original(*args, **named))):
            logits = theirs(images).logits
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-5)
    for block, attention in enumerate(seen):
        rows, columns = grid = trace.grid_in(block)
        row, column = (place.flatten() for place in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
        if build is hiera:  # (B, H, W, Mq, M)
            pooled, windows = attention.shape[3] < attention.shape[4], attention.shape[2]
            stage = block // 2
            keys = places_in_hiera(theirs, stage - pooled, windows, rows * columns)
            queries = places_in_hiera(theirs, stage, windows, rows * columns // 4 if pooled else rows * columns)
            queries = queries[:, row // 2 * (columns // 2) + column // 2] if pooled else queries
        else:  # (B * W, H, M, M)
            attention = attention.unflatten(0, (2, 4)).transpose(1, 2)
            keys = queries = torch.stack([row % 2 * 2 + column % 2, row // 2 * (columns // 2) + column // 2])
        expected = attention[:, :, queries[0][:, None], queries[1][:, None], keys[1]]  # (B, H, n, n)
        expected = expected * (queries[0][:, None] == keys[0])
        torch.testing.assert_close(trace.attentions[block].dense(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(trace.row(block, (1, 2)), expected[:, :, columns + 2], rtol=0, atol=2e-5)
    view = vitviz.Explorer(ours).open(vitviz.example("dog"))
    assert view.rollout().values.shape == ours.config.grid == trace.grid
    assert view.heads().table()
    assert np.isfinite(view.explain("occlusion").values).all()
    for method in ("gae", "gradient_rollout", "attention_gradcam", "legrad", "token_gradcam"):
        if build is mobilevit:  # its convolutions bypass the blocks
            with pytest.raises(CaptureError, match="also takes another path"):
                view.explain(method)
        else:
            assert np.isfinite(view.explain(method).values).all()


def test_windows_are_those_of_the_paper() -> None:
    swin = SwinTransformer(
        img_size=(24, 32), patch_size=2, embed_dim=12, depths=(2, 2), num_heads=(2, 3), window_size=4
    )
    parts = parts_of(swin.eval())
    assert parts is not None
    found = windows_of(swin, parts, torch.zeros(1, 3, 24, 32))
    assert found is not None
    grid, layouts = found
    assert (grid, [layout.grid for layout in layouts]) == ((12, 16), [(12, 16)] * 2 + [(6, 8)] * 2)
    assert [layout.merges for layout in layouts] == [False, False, True, False]
    numbers = torch.arange(12 * 16).view(12, 16)
    for layout, shift in zip(layouts[:2], (0, 2), strict=True):  # the second block shifts by half a window
        rolled = numbers.roll((-shift, -shift), (0, 1))
        windows = rolled.unfold(0, 4, 4).unfold(1, 4, 4).flatten(2).flatten(0, 1)  # (W, M)
        assert layout.members.equal(windows)
        assert (layout.side, layout.spacing) == ((4, 4), (1, 1))


def test_windows_found_in_inference_mode_serve_gradients() -> None:
    swin = SwinTransformer(img_size=24, patch_size=2, embed_dim=12, depths=(2,), num_heads=(2,), window_size=4).eval()
    images = torch.ones(1, 3, 24, 24)
    with torch.inference_mode():
        vitviz.capture(swin, images)
    trace = vitviz.capture(swin, images, grad=True)
    rows = trace.layouts[1].split(torch.ones(1, 144, requires_grad=True))
    (slope,) = torch.autograd.grad(trace.output[0, 0] + rows.square().sum(), trace.calls[1].attentions)
    assert trace.attendable(1, slope).shape == slope.shape


def test_grid_attention_of_maxvit_is_spread_over_the_image() -> None:
    model = timm.create_model("test_maxvit").eval()  # windows and grids of 5 x 5 in 40 x 40 tokens
    parts = parts_of(model)
    assert parts is not None
    found = windows_of(model, parts, torch.zeros(1, 3, 160, 160))
    assert found is not None
    block, spread = found[1][:2]
    assert block.members[0].view(5, 5)[:, 0].tolist() == [0, 40, 80, 120, 160]
    assert spread.members[0].view(5, 5)[:, 0].tolist() == [0, 320, 640, 960, 1280]
    assert (block.spacing, spread.spacing) == ((1, 1), (8, 8))


def test_blocks_that_mix_tokens_before_attention_are_not_drawn() -> None:
    swin = SwinTransformer(img_size=24, patch_size=2, embed_dim=12, depths=(1,), num_heads=(2,), window_size=4).eval()
    swin.layers[0].blocks[0].norm1 = nn.AvgPool2d(3, 1, 1)  # over rows, columns and channels
    parts = parts_of(swin)
    assert parts is not None
    assert windows_of(swin, parts, torch.zeros(1, 3, 24, 24)) is None
