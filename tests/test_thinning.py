"""PatchDropout: which patches an image goes without, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import training_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitviz.model import ViT
from vitviz.training import TrainingError
from vitviz.training.recipes import Recipe
from vitviz.training.short import ShortWhole
from vitviz.training.thinning import WHOLE_FROM, Thinning

PATCHES = tiny.GRID[0] * tiny.GRID[1]
HERE = torch.device("cpu")


def thinned(rate: float, count: int, seed: int = 3, patches: int = PATCHES) -> Thinning:
    """Drawn for a step of so many images, of which all are next."""
    thinning = Thinning(rate, patches)
    thinning.draw(seed, count)
    thinning.take(slice(None), HERE)
    return thinning


def without(model: ViT, image: Tensor, kept: list[int]) -> Tensor:
    """Logits (1, C) of an image of which only these patches exist."""
    prefix = len(model.config.prefix)
    tokens, grid = model.embed(image)
    kept = sorted(kept)
    left = [*range(prefix), *(prefix + patch for patch in kept)]
    angles = model.angles(grid)
    if angles is not None:
        angles = angles[0][kept], angles[1][kept]
    tokens = tokens[:, left]
    for block in model.blocks:
        tokens = block(tokens, angles)
    return model.classify(model.finish(tokens))


@pytest.mark.parametrize(
    "changes", [{}, {"pooling": "mean", "registers": 2}, {"positions": "rotary", "head_width": 16}], ids=str
)
def test_an_image_is_seen_without_the_patches_that_were_drawn(changes: dict[str, Any]) -> None:
    model, images = tiny.model(**changes), tiny.images(4)
    thinning = thinned(0.7, 4)
    assert thinning.part is not None
    (logits,) = ShortWhole(model, thinning).train()(images)
    for index, kept in enumerate(thinning.part.tolist()):
        torch.testing.assert_close(logits[index : index + 1], without(model, images[index : index + 1], kept))
    assert len({tuple(kept) for kept in thinning.part.tolist()}) == 4  # every image goes without others


def test_predictions_see_every_patch() -> None:
    model, images = tiny.model(), tiny.images(3)
    (logits,) = ShortWhole(model, thinned(0.7, 3)).eval()(images)
    torch.testing.assert_close(logits, model(images))


@given(rate=st.floats(0.01, 0.99), patches=st.integers(1, 90), images=st.integers(1, 7), cut=st.integers(0, 7))
def test_what_an_image_keeps_does_not_depend_on_how_a_step_is_divided(
    rate: float, patches: int, images: int, cut: int
) -> None:
    thinning = thinned(rate, images, patches=patches)
    assert thinning.part is not None
    whole = thinning.part
    assert whole.shape == (images, max(1, round((1 - rate) * patches)))
    assert all(len(set(one)) == len(one) and set(one) <= set(range(patches)) for one in whole.tolist())
    parts = []
    for part in (slice(0, cut), slice(cut, images)):
        thinning.take(part, HERE)
        parts.append(thinning.part)
    assert torch.cat(parts).equal(whole)  # type: ignore[arg-type]


def test_every_patch_is_left_out_equally_often() -> None:
    thinning = thinned(0.6, 20_000)
    assert thinning.part is not None
    often = thinning.part.flatten().bincount(minlength=PATCHES) / 20_000
    torch.testing.assert_close(often, torch.full((PATCHES,), round(0.4 * PATCHES) / PATCHES), atol=0.02, rtol=0)


def test_the_last_fifth_of_a_training_sees_whole_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = ShortWhole.forward

    def record(self: ShortWhole, images: Tensor) -> tuple[Tensor, ...]:
        hook = self.model.blocks[0].register_forward_pre_hook(lambda _, asked: seen.append(asked[0].shape[1]))
        try:
            return forward(self, images)
        finally:
            hook.remove()
            if not self.training:
                assert seen.pop() == 17

    monkeypatch.setattr(ShortWhole, "forward", record)
    cases.train(tmp_path, cases.recipe(patch_dropout=0.75))  # 18 steps; 16 patches, of which 4 stay
    first = next(step for step in range(18) if step / 18 >= WHOLE_FROM)
    assert seen == [5] * first + [17] * (18 - first)


def test_what_is_computed_once_goes_without_nothing() -> None:
    with pytest.raises(TrainingError, match=r"patch_dropout: .*expected 0, got 0\.5"):
        Recipe(patch_dropout=0.5, unfreeze_last=2)
    with pytest.raises(TrainingError, match="patch_dropout"):
        Recipe(patch_dropout=1.0)
