"""Test small evidence on grids of 12 patches, where all sets can be tried, and its certificates."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch
import windowed
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import vitviz
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.evidence import Certificate, Evidence, PatchSet, evidence, search
from vitviz.model.edits import Edits
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, PATCHES = (3, 4), 12
KINDS = ("class token", "mean, no prefix, root-mean-square norms", "registers, rotary")
SUBSETS = torch.tensor([*itertools.product([False, True], repeat=PATCHES)])  # (4096, 12)


@cache
def case(seed: int, kind: str = "class token") -> tuple[ViT, Tensor]:
    """Return a model and an image of 12 patches."""
    return tiny.model(seed, grid=GRID, patch=2, **tiny.KINDS[kind]), tiny.images(1, seed, GRID, 2)


def run(model: ViT, images: Tensor, shown: Tensor) -> Tensor:
    """Return the probabilities of sets of shown patches, (R, 12) -> (R, C); NaN if the model needs a patch."""
    out = torch.full((len(shown), tiny.CLASSES), torch.nan, dtype=torch.float64)
    least = int(not model.config.prefix)
    for count in range(least, PATCHES + 1):
        rows = (shown.sum(1) == count).nonzero().flatten()
        if len(rows):
            keep = shown[rows].nonzero()[:, 1].reshape(len(rows), count)
            with torch.no_grad():
                out[rows] = model(images.expand(len(rows), -1, -1, -1), Edits(keep=keep)).double().softmax(1)
    return out


def minimal_sets(works: Tensor) -> set[int]:
    """Return the numbers of the 1-minimal sets of `SUBSETS`, of which `works` (4096,) do."""
    bits = [1 << place for place in range(PATCHES)]
    return {
        number for number in works.nonzero().flatten().tolist()
        if not any(works[number ^ bit] for bit in bits if number & bit)
    }  # fmt: skip


def number_of(found: PatchSet) -> int:
    """Return the number of a set in `SUBSETS`."""
    return sum(1 << (PATCHES - 1 - row * GRID[1] - column) for row, column in found.patches)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 40), kind=st.sampled_from(KINDS), share=st.sampled_from([None, 0.5, 0.9]))
def test_sets_are_among_the_minimal_sets_of_an_exhaustive_search(seed: int, kind: str, share: float | None) -> None:
    model, images = case(seed, kind)
    probabilities = run(model, images, SUBSETS)  # (4096, C)
    whole = probabilities[-1]
    target = int(whole.argmax())
    keep = None if share is None else share * float(whole[target])
    keeps = probabilities.argmax(1) == target if keep is None else probabilities[:, target] >= keep
    runs = ~probabilities[:, 0].isnan()
    found = evidence(model, images, keep=keep)
    kept, changing = minimal_sets(keeps & runs), minimal_sets((~keeps & runs).flip(0))  # the complements, reversed
    assert found.finished
    assert all(each.minimal and number_of(each) in kept for each in found.sets)
    assert found.change is None or (found.change.minimal and number_of(found.change) in changing)
    patches = [patch for each in found.sets for patch in each.patches]
    assert len(patches) == len({*patches})


def test_excess_over_the_smallest_sets() -> None:
    excess = []
    for seed in range(12):
        model, images = case(seed)
        probabilities = run(model, images, SUBSETS)
        keep = 0.9 * float(probabilities[-1].max())
        smallest = SUBSETS[probabilities[:, int(probabilities[-1].argmax())] >= keep].sum(1).min()
        excess.append(len(evidence(model, images, keep=keep, sets=1).sets[0].patches) - int(smallest))
    assert min(excess) >= 0
    assert np.mean(excess) <= 1.0, excess


def test_removal_may_leave_only_the_patch_that_a_model_needs() -> None:
    model, images = case(0, "mean, no prefix, root-mean-square norms")
    single = run(model, images, torch.eye(PATCHES, dtype=torch.bool)[[11]])[0]
    target = int(single.argmin())
    others = run(model, images, SUBSETS)[:, target]
    others = others[~others.isnan() & (others > single[target])]
    keep = float(others.min() + single[target]) / 2  # lower than with every other set that the search can reach
    order = np.arange(PATCHES, 0, -1, dtype=float).reshape(GRID)
    *_, found = search(model, images, target, keep=keep, heatmap=order[None], sets=1)
    assert found.change is not None
    assert len(found.change.patches) <= PATCHES - 1


def test_certificates_match_single_runs() -> None:
    model, images = case(8)
    keep = 0.9 * float(run(model, images, SUBSETS[-1:]).max())
    found = evidence(model, images, keep=keep)
    target = int(run(model, images, SUBSETS[-1:]).argmax())
    for each, hidden in [*((kept, False) for kept in found.sets), *([(found.change, True)] if found.change else [])]:
        assert each.certificate is not None
        for index, left_out in enumerate((None, *each.patches)):
            shown = torch.zeros(1, *GRID, dtype=torch.bool)
            for row, column in {*each.patches} - {left_out}:
                shown[0, row, column] = True
            probability = run(model, images, (~shown if hidden else shown).flatten(1))[0, target]
            stored = each.certificate.without[index - 1] if index else each.certificate.probability
            assert stored == pytest.approx(float(probability), abs=1e-6)
            assert (probability >= keep) == (hidden if index else not hidden)


def test_stopped_search_is_not_yet_minimal() -> None:
    model, images = case(8)
    keep = 0.9 * float(run(model, images, SUBSETS[-1:]).max())
    first, *_, last = search(model, images, keep=keep)
    stopped = evidence(model, images, keep=keep, seconds=0)
    assert stopped.sets[0].patches == first.sets[0].patches
    assert not stopped.finished
    assert not stopped.sets[0].minimal
    assert "not yet minimal" in stopped.describe()
    assert last.finished
    assert "not yet minimal" not in last.describe()


def test_sentences() -> None:
    kept, whole = PatchSet(patches=((0, 1), (2, 3)), probability=0.912), {"target": "cat", "probability": 0.99}
    assert Evidence(keep=None, grid=GRID, sets=(kept,), **whole).describe() == (
        "These 2 of 12 patches alone still say cat: 91 % (not yet minimal)."
    )
    assert Evidence(keep=0.8, grid=GRID, sets=(kept,), **whole).describe() == (
        "These 2 of 12 patches alone keep cat at or above 80 %: 91 % (not yet minimal)."
    )
    alone = Certificate(probability=0.09, works=True, without=np.array([np.nan]), still=np.array([False]))
    single = PatchSet(patches=((0, 1),), probability=0.09, certificate=alone)
    assert Evidence(keep=None, grid=GRID, sets=(single,), **whole).describe() == (
        "1 of 12 patches alone still says cat: 9.0 %; the model cannot run without any patch."
    )
    instead = replace(kept, answer="dog", probability=0.2)
    words = Evidence(keep=None, grid=GRID, sets=(kept, kept, kept), change=instead, **whole).describe()
    assert words.endswith(
        " So do 2 further disjoint sets, of 2 and 2 patches (not yet minimal). Without these 2 patches, the others say "
        "dog instead of cat, which has 20 % (not yet minimal)."
    )
    single = replace(kept, patches=((0, 1),))
    words = Evidence(keep=None, grid=GRID, sets=(kept, single), **whole).describe()
    assert words.endswith(" So does 1 further disjoint set, of 1 patch (not yet minimal).")
    model, images = case(8)
    words = evidence(model, images, keep=0.9 * float(run(model, images, SUBSETS[-1:]).max())).describe()
    assert "no patch can be left out." in words


def test_view_finds_and_draws_evidence() -> None:
    view = vitviz.Explorer(tiny.known(grid=GRID, patch=2)).open(Image.effect_noise((80, 60), 90).convert("RGB"))
    found = view.evidence(sets=1)
    assert [each.patches for each in found.sets] == [
        each.patches for each in evidence(view.model, view.images, sets=1).sets
    ]
    photo = np.asarray(view.photo).astype(int)
    shown, hidden = (np.asarray(view.show_patches([(1, 2)], without=without)).astype(int) for without in (False, True))
    patch = np.zeros((60, 80), bool)
    patch[20:40, 40:60] = True
    assert np.array_equal(shown[patch], photo[patch])
    assert np.array_equal(hidden[~patch], photo[~patch])
    assert shown[~patch].mean() < 0.3 * photo[~patch].mean()
    assert hidden[patch].mean() < 0.3 * photo[patch].mean()
    with pytest.raises(vitviz.VitvizError, match="inside the 3 x 4 grid"):
        view.show_patches([(3, 0)])


def test_what_cannot_be_searched_is_refused() -> None:
    model, images = case(0)
    with pytest.raises(EvaluationError, match="a target that the model predicts"):
        evidence(model, images, int(model(images).argmin()))
    with pytest.raises(EvaluationError, match="at least 99"):
        evidence(model, images, keep=0.99)
    with pytest.raises(EvaluationError, match="above 0 and up to 1"):
        evidence(model, images, keep=0.0)
    with pytest.raises(EvaluationError, match="probability"):
        evidence(model, images, "output:3")
    with pytest.raises(EvaluationError, match="one that runs as it is"):
        evidence(windowed.small(), torch.zeros(1, 3, 48, 32))
    with pytest.raises(EvaluationError, match="one image"):
        evidence(model, images.repeat(2, 1, 1, 1))
