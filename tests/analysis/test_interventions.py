"""Test interventions against manual edits, and baseline images against their definitions."""

import functools
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import tiny
import torch
from scipy.ndimage import gaussian_filter
from tiny import close

import vitviz
from vitviz.analysis import AnalysisError
from vitviz.analysis.interventions import Drop, Swap, intervene, patch
from vitviz.attribution.baselines import BLUR, baseline_images, pixel_mask
from vitviz.attribution.targets import ExplainError
from vitviz.images.preprocess import Preprocess
from vitviz.model.edits import Cut, EditError, Edits

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE = tiny.PATCH
GREY = Preprocess(height=91, width=143, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1))
PREFIXES = [{}, {"class_token": False, "pooling": "mean"}, {"registers": 3, "pooling": "cls+mean"}]


known = functools.partial(tiny.known, preprocess=GREY)


def test_change_ranks_classes_by_probability_or_by_absolute_change() -> None:
    model, images = known(), tiny.images()
    change = intervene(model, images, heads=[(0, 1), (2, 3)])
    before = model(images).detach().double().numpy()
    after = model(images, Edits(heads={(0, 1): "zero", (2, 3): "zero"})).detach().double().numpy()
    close(change.logits_before, before)
    close(change.logits_after, after)
    old, new = (torch.from_numpy(logits).softmax(1).numpy() for logits in (before, after))
    close(change.before, old)
    close(change.after, new)
    gains = new[1] - old[1]
    first = change.top(1000, image=1)
    assert [moved.index for moved in first] == sorted(range(tiny.CLASSES), key=lambda c: -new[1][c])
    assert change.top(2, 1) == first[:2]
    top = change.top(4, image=1, by="change")
    assert [*change.to_pandas(1, by="change")["index"][:4]] == [moved.index for moved in top]
    assert [moved.index for moved in top] == sorted(range(tiny.CLASSES), key=lambda c: -abs(gains[c]))[:4]
    for moved in top:
        assert moved.label == f"thing {moved.index}"
        assert type(moved.before) is type(moved.after) is float
        assert moved.change == pytest.approx(gains[moved.index], abs=1e-6)
    assert len(change.top(1000)) == tiny.CLASSES
    assert change.top(0) == ()
    assert intervene(tiny.model(), images).top(1)[0].label == ""
    for image in (-1, 2):
        with pytest.raises(AnalysisError, match=r"0\.\.1"):
            change.top(3, image)
    with pytest.raises(AnalysisError, match="'probability', 'change'"):
        change.top(by="after")
    known_logits = torch.randn(tiny.BATCH, tiny.CLASSES)  # known logits are not computed again
    close(intervene(model, images, before=known_logits).logits_before, known_logits)


@pytest.mark.parametrize("changes", PREFIXES, ids=str)
def test_no_intervention_keeps_logits_and_drop_removes_patches(changes: dict) -> None:
    model, images = known(**changes), tiny.images()
    state = torch.random.get_rng_state()
    change = intervene(model, images, swap=Swap(images, (0, 0, 26, 26)), drop=())
    assert np.array_equal(change.logits_before, change.logits_after)
    assert all(moved.change == 0.0 for moved in change.top())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    keep = [i for i in range(77) if i not in (3, 11 * 6 + 10, 11 * 2)]
    change = intervene(model, images, drop=[(0, 3), (6, 10), (2, 0), (2, 0)])
    close(change.logits_after, model(images, Edits(keep=torch.tensor([keep]))))
    assert np.abs(change.logits_after - change.logits_before).max() > 1e-3
    if model.config.pooling == "cls":  # the classifier reads no patches
        all_patches = [(row, column) for row in range(7) for column in range(11)]
        no_patch = torch.zeros(1, 0, dtype=torch.long)
        close(intervene(model, images, drop=all_patches).logits_after, model(images, Edits(keep=no_patch)))


def test_baselines_have_the_named_color() -> None:
    model, images = known(), tiny.images()
    black = baseline_images(model, images, "black")
    photo = black * torch.tensor(GREY.std)[:, None, None] + torch.tensor(GREY.mean)[:, None, None]
    close(photo, torch.zeros_like(images), 1e-6)
    mean = baseline_images(model, images, "mean")
    close(mean[1, :, 5, 7], images[1].flatten(1).sum(1) / images[1, 0].numel())
    assert torch.equal(mean[..., 0, 0], mean[..., 90, 142])
    assert not baseline_images(model, images, "zero").any()
    mask = torch.zeros(1, 2, 3, dtype=torch.bool)  # covers the pixels of its patches
    mask[0, 1, 2] = True
    expected = torch.zeros(1, 1, 8, 12, dtype=torch.bool)
    expected[..., 4:, 8:] = True
    assert torch.equal(pixel_mask(mask, 4), expected)


def test_blur_is_gaussian_with_rescaled_border() -> None:
    images, sigma = tiny.images()[:, :, :26, :39].double(), BLUR * SIDE
    blur = functools.partial(gaussian_filter, sigma=(0, 0, sigma, sigma), mode="constant", truncate=9.0)
    close(baseline_images(known(), images, "blur"), blur(images.numpy()) / blur(np.ones(images.shape)), 1e-10)


def test_one_image_is_swapped_into_all() -> None:
    model, images, others = known(), tiny.images(), tiny.images(seed=9)
    before = images.clone(), others.clone()
    change = intervene(model, images, swap=Swap(others[:1], (0, 0, 143, 91)))
    close(change.logits_after, model(others[:1]).expand(2, -1))
    close(change.logits_before, model(images))
    assert torch.equal(images, before[0])
    assert torch.equal(others, before[1])


@pytest.mark.parametrize("mode", get_args(Drop))
def test_combined_interventions_match_manual_edits(mode: str) -> None:
    model, images, others = known(registers=1), tiny.images(), tiny.images(seed=9)
    cuts = [Cut(block=1, queries=(0,), keys=(2, 3)), Cut(block=-1, head=2, queries=(5,), keys=(0,))]
    heads, drop = {(0, 4): "mean", (-2, 1): "zero"}, [(1, 1), (3, 3), (6, 0)]
    mixed = images.clone()
    mixed[..., 13:39, :26] = others[..., 13:39, :26]
    mask = torch.zeros(2, 7, 11, dtype=torch.bool)
    for row, column in drop:
        mask[:, row, column] = True
    if mode == "remove":
        keep = torch.tensor([[i for i in range(77) if i not in (12, 36, 66)]])
    else:
        behind = baseline_images(model, mixed, mode)  # baselines come from the swapped images
        keep, mixed = None, torch.where(pixel_mask(mask, SIDE), behind, mixed)
    swap = Swap(others, (0, 13, 26, 39))
    for dropped in (drop, [list(place) for place in drop]):  # lists too, as from JSON
        change = intervene(model, images, heads=heads, cuts=cuts, drop=dropped, mode=mode, swap=swap)
        close(change.logits_after, model(mixed, Edits(heads=heads, cuts=cuts, keep=keep)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop": [(7, 0)]}, r"7 x 11.*\(7, 0\)"),
        ({"drop": [(0, -1)]}, r"7 x 11.*\(0, -1\)"),
        ({"drop": [(0, 0)], "mode": "white"}, "'remove', 'blur', .*'black'.*'white'"),
        ({"swap": Swap(torch.zeros(1, 3, 26, 26), (0, 0, 13, 13))}, r"\(2, 3, 91, 143\).*\(1, 3, 26, 26\)"),
        ({"heads": [(3, 0)]}, r"block.*0\.\.2.*3"),
        ({"heads": [[3, 0]]}, r"block.*0\.\.2.*3"),
        *(
            ({"swap": Swap(tiny.images(), box)}, f"multiples of 13.*{re.escape(str(box))}")
            for box in [(0, 0, 20, 26), (-13, 0, 13, 13), (130, 78, 156, 91), (26, 0, 26, 13), (39, 13, 26, 0)]
        ),
    ],
)
def test_invalid_interventions_raise(options: dict, words: str) -> None:
    with pytest.raises((AnalysisError, EditError), match=words):
        intervene(known(), tiny.images(), **options)


def test_models_that_cannot_predict_raise() -> None:
    all_patches = [(row, column) for row in range(7) for column in range(11)]
    for error, words, model, options in [
        (AnalysisError, "classifier", tiny.model(classes=0), {}),
        (AnalysisError, r"eval\(\)", tiny.model().train(), {}),
        (ExplainError, "mean and std", tiny.model(), {"drop": [(0, 0)], "mode": "black"}),
        (EditError, "at least one patch", known(class_token=False, pooling="mean"), {"drop": all_patches}),
    ]:
        with pytest.raises(error, match=words):
            intervene(model, tiny.images(), **options)
    with pytest.raises(ExplainError, match="'white'"):
        baseline_images(known(), tiny.images(), "white")


def test_order_matters_only_with_positions() -> None:
    model, images = tiny.model().double(), tiny.images(1).double()
    grid = model.check(images)
    order = torch.randperm(grid[0] * grid[1], generator=torch.Generator().manual_seed(0)).tolist()
    moved = torch.empty_like(images)
    for place, moving in enumerate(order):
        (to_row, to_column), (row, column) = divmod(place, grid[1]), divmod(moving, grid[1])
        side = model.config.patch_size
        tile = images[..., row * side : (row + 1) * side, column * side : (column + 1) * side]
        moved[..., to_row * side : (to_row + 1) * side, to_column * side : (to_column + 1) * side] = tile
    close(intervene(model, images, order=order).logits_after, model(moved).detach())
    shuffled, ordered = (intervene(model, images, order=o, positions=False).logits_after for o in (order, None))
    close(shuffled, ordered)
    assert np.abs(ordered - model(images).detach().numpy()).max() > 1e-3
    with pytest.raises(AnalysisError, match="each patch"):
        intervene(model, images, order=[0, 0, 1])


# ---- patches from another photograph


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_patch_with_itself_changes_nothing_and_the_whole_stream_gives_the_other_logits(kind: str) -> None:
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images()
    trace = model.trace(images)
    first, second = trace.image(0), trace.image(1)
    everything = {"heads": [(0, 1), (-1, 2)], "blocks": [1], "tokens": [(1, (2, 3)), (2, 0)]}
    close(patch(model, first, first, **everything, stream=2).logits_after, first.logits, 1e-4)
    for stream in range(tiny.DEPTH):
        change = patch(model, first, second, stream=stream)
        close(change.logits_before, first.logits, 1e-4)
        close(change.logits_after, second.logits, 1e-4)
    assert np.abs(patch(model, first, second, **everything).logits_after - first.logits.detach().numpy()).max() > 1e-3


@torch.no_grad()
def test_patches_replace_heads_blocks_and_tokens() -> None:
    model, images = tiny.model(), tiny.images()
    trace, part = model.trace(images), slice(2 * tiny.HEAD_WIDTH, 3 * tiny.HEAD_WIDTH)
    first, second = trace.image(0), trace.image(1)

    def swapped(module: torch.nn.Module, given: tuple[torch.Tensor]) -> torch.Tensor:
        changed = given[0].clone()
        changed[0, :, part] = given[0][1, :, part]
        return changed

    hook = model.blocks[1].attn.proj.register_forward_pre_hook(swapped)
    expected = model(images)[:1]
    hook.remove()
    close(patch(model, first, second, heads=[(1, 2)], target=3).logits_after, expected)
    stream = trace.stream(1).clone()
    stream[0, 1 + 2 * 11 + 3] = stream[1, 1 + 2 * 11 + 3]
    close(patch(model, first, second, tokens=[(1, (2, 3))]).logits_after, model.run(stream, None, start=1)[:1])
    added = trace.stream(2)[:1] - trace.stream(1)[:1]
    stream = trace.stream(1)[1:] + added
    close(patch(model, second, first, blocks=[1]).logits_after, model.run(stream, None, start=2))


def test_view_patches_from_a_photograph_of_another_shape() -> None:
    model, pixels = tiny.known(), np.random.default_rng(0).integers(0, 255, (91, 143, 3), dtype=np.uint8)
    model.pretrained = replace(
        model.pretrained, preprocess=Preprocess(height=91, width=143, mode="native", multiple=13)
    )
    explorer = vitviz.Explorer(model)
    view, tall = explorer.open(pixels), explorer.open(np.transpose(pixels, (1, 0, 2)).copy())
    assert view.trace.grid != tall.trace.grid
    squashed = Preprocess(height=view.size[0], width=view.size[1], mode="squash")(tall.photo).pixels
    close(view.patch(tall, stream=0).logits_after, model(torch.from_numpy(squashed)[None]), 1e-4)
    with pytest.raises(AnalysisError, match="same grid"):
        patch(model, view.trace, tall.trace, stream=0)
    with pytest.raises(AnalysisError, match="got none"):
        view.patch(view)
    with pytest.raises(EditError, match="block among"):
        view.patch(view, blocks=[9])
    with pytest.raises(vitviz.VitvizError, match="same model"):
        view.patch(vitviz.Explorer(tiny.known()).open(pixels), stream=0)
