"""Find small evidence: a few patches that alone keep a prediction, and a few whose removal changes it.

A set is 1-minimal if it no longer works after any one of its patches is left out. Smaller sets may exist: to find the
smallest, one has to try almost all sets. The search is delta debugging (Zeller and Hildebrandt 2002, "Simplifying and
Isolating Failure-Inducing Input", algorithm ddmin), which needs no assumption about the model. It starts from the first
patches in the order of a map that work, and it tests only complements, because 1-minimality needs no others. Patches
are removed from the sequence, not painted over.

Shapes: n = gh x gw patches, K patches of a set, R sets, C classes.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.attribution.registry import score_patches
from vitviz.attribution.target_specs import Contrast, TargetOf, reads_features, resolve_target
from vitviz.attribution.targets import Target
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import Floats, Maps, flat_maps, rank_patches
from vitviz.evaluation.masking import MaskedModel
from vitviz.fields import check_arguments
from vitviz.formatting import counted, percent, short_repr
from vitviz.model.edits import Edits
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE

METHOD = "attn_lrp"
"""Method whose order the search starts from by default."""
SETS = 3
"""Default maximum number of disjoint sets that alone keep the prediction."""
NOT_MINIMAL = "not yet minimal"
BATCH_TOKENS = 2048  # tokens that run together in the search
PASSES = 150.0  # forward passes of a search on a typical photograph, for the progress bar
REMOVAL_PASSES = 400.0  # of the search for a set whose removal changes the prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificate:
    """Results of leaving out each patch of a set, from one run of the model each, without the code of the search.

    Args:
        probability: the target's probability for the whole set.
        works: whether the whole set works.
        without: (K,), the target's probability if a patch is left out of the set, in the order of the set's patches;
            NaN if no patch would be left for a model that pools only patches.
        still: (K,) bools, whether the set still works then.
    """

    probability: float
    works: bool
    without: Floats
    still: NDArray[np.bool_]

    __repr__ = short_repr

    @property
    def minimal(self) -> bool:
        """Return whether the set works, and no longer if any one of its patches is left out."""
        return self.works and not self.still.any()


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchSet:
    """Patches that alone keep a prediction, or whose removal changes it.

    Args:
        patches: (row, column) of each patch, the most relevant first.
        probability: the target's probability with only these patches, or without these patches.
        answer: the label that the model then predicts; empty without labels, with several labels per image, and for a
            contrast.
        certificate: results of leaving out each patch; `None` if the search stopped before.
    """

    patches: tuple[tuple[int, int], ...]
    probability: float
    answer: str = ""
    certificate: Certificate | None = None

    __repr__ = short_repr

    @property
    def minimal(self) -> bool:
        """Return whether the set is certified to be 1-minimal."""
        return self.certificate is not None and self.certificate.minimal


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """Small sets of patches on which a prediction rests.

    Args:
        target: display name of the target.
        keep: probability that the sets keep; `None` if they keep the target the predicted one.
        probability: the target's probability for the whole image.
        grid: (gh, gw).
        sets: disjoint sets, each of which alone keeps the prediction; the first one found first.
        change: a set without which the prediction changes; `None` if the search found none.
        finished: whether the search ended by itself.
    """

    target: str
    keep: float | None
    probability: float
    grid: tuple[int, int]
    sets: tuple[PatchSet, ...] = ()
    change: PatchSet | None = None
    finished: bool = False

    __repr__ = short_repr

    def describe(self) -> str:
        """Return the result as sentences: "These 11 of 256 patches alone still say cat: 91 %; ..."."""
        words = [_describe_kept(found, self) for found in self.sets[:1]]
        if further := self.sets[1:]:
            sizes = " and ".join(str(len(found.patches)) for found in further)
            open_sets = "" if all(found.minimal for found in further) else f" ({NOT_MINIMAL})"
            so, patches = "does" if len(further) == 1 else "do", "patch" if sizes == "1" else "patches"
            words.append(f"So {so} {counted(len(further), 'further disjoint set')}, of {sizes} {patches}{open_sets}.")
        if self.change is not None:
            words.append(_describe_change(self.change, self))
        return " ".join(words)


def _describe_kept(found: PatchSet, evidence: Evidence) -> str:
    count, probability = len(found.patches), percent(found.probability, 2)
    if not count:
        return f"Without any patch, the model still says {evidence.target}: {probability}."
    these, says, keeps = ("", "says", "keeps") if count == 1 else ("These ", "say", "keep")
    total = evidence.grid[0] * evidence.grid[1]
    if evidence.keep is None:
        kept = f"alone still {says} {evidence.target}: {probability}"
    else:
        kept = f"alone {keeps} {evidence.target} at or above {percent(evidence.keep, 2)}: {probability}"
    end = "; no patch can be left out." if found.minimal else f" ({NOT_MINIMAL})."
    if found.certificate is not None and np.isnan(found.certificate.without).any():
        end = "; the model cannot run without any patch."
    return f"{these}{count} of {total} patches {kept}{end}"


def _describe_change(found: PatchSet, evidence: Evidence) -> str:
    count, probability = len(found.patches), percent(found.probability, 2)
    these, back = ("this patch", "it") if count == 1 else (f"these {count} patches", "any one of them")
    if evidence.keep is not None:
        changed, again = f"keep {evidence.target} only at {probability}", f"at least {percent(evidence.keep, 2)} again"
    elif found.answer and found.answer != evidence.target:
        changed = f"say {found.answer} instead of {evidence.target}, which has {probability}"
        again = f"they say {evidence.target} again"
    else:
        changed, again = f"no longer say {evidence.target}: {probability}", f"they say {evidence.target} again"
    end = f"; with {back} back, {again}." if found.minimal else f" ({NOT_MINIMAL})."
    return f"Without {these}, the others {changed}{end}"


@check_arguments(EvaluationError)
def evidence(
    model: ViT, images: Tensor, target: TargetOf | None = None, *, seconds: float | None = None, **options: Any
) -> Evidence:
    """Return small sets of patches on which a prediction rests; see `search`, whose last result this is.

    >>> import torch, vitviz
    >>> from vitviz.evaluation.evidence import evidence
    >>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10)).eval()
    >>> found = evidence(model, torch.zeros(1, 3, 64, 64))
    >>> found.finished, all(patches.minimal for patches in found.sets)
    (True, True)

    Args:
        model, images, target: as for `search`, with its `options`.
        seconds: stop after the first result that takes longer; its last set is then "not yet minimal".

    Raises:
        EvaluationError, ExplainError: as for `search`.
    """
    if seconds is not None and not seconds >= 0:  # or NaN
        raise EvaluationError(f"Expected seconds from 0 on, got {seconds}. Leave it out to search to the end.")
    began = time.monotonic()
    results = search(model, images, target, **options)
    result = next(results)
    while not result.finished and (seconds is None or time.monotonic() - began < seconds):
        result = next(results)
    return result


@check_arguments(EvaluationError)
def search(
    model: ViT,
    images: Tensor,
    target: TargetOf | None = None,
    *,
    contrast: Contrast | None = None,
    keep: float | None = None,
    sets: int = SETS,
    heatmap: Maps | None = None,
    seed: int = 0,
) -> Iterator[Evidence]:
    """Yield the evidence after each step of the search, so that a caller can show it and stop at any time.

    The first result has the first patches of the map that work (greedy). The search then makes this set 1-minimal,
    finds sets disjoint from those before, until none is found, and last a set whose removal changes the prediction,
    which takes longest, because the model then sees most patches. Each finished set has a certificate.

    Args:
        model: converted model in eval mode with a classifier; not changed.
        images: (1, channels, H, W) normalised pixels.
        target: a class, group or output, see `resolve_target`; by default the predicted class.
        contrast: (A, B) instead of a target.
        keep: keep at least this probability of the target; by default, the target has to stay the predicted one.
        sets: maximum number of disjoint sets.
        heatmap: map whose order the search starts from; by default that of AttnLRP.
        seed: seed of the order of equal scores.

    Raises:
        EvaluationError: if the model cannot run without some patches, for several images or a target without a
            probability, or if the whole image does not keep the prediction.
        ExplainError: if a target does not exist.
    """
    rule = _rule(model, images, target, contrast, keep, sets)
    return _steps(rule, _order(rule, heatmap, seed), sets)


@check_arguments(EvaluationError)
def find_set(
    model: ViT,
    images: Tensor,
    target: TargetOf | None = None,
    *,
    contrast: Contrast | None = None,
    keep: float | None = None,
    apart: Collection[tuple[int, int]] = (),
    removes: bool = False,
    heatmap: Maps | None = None,
    seed: int = 0,
) -> Iterator[PatchSet]:
    """Yield ever smaller sets of one kind, the last one with its certificate; nothing if the search finds none.

    Args:
        model, images, target, contrast, keep, heatmap, seed: as for `search`.
        apart: (row, column) of the patches that may not be in the set, such as those of sets found before.
        removes: search for a set whose removal changes the prediction, instead of one that alone keeps it.

    Raises:
        EvaluationError, ExplainError: as for `search`.
    """
    rule = replace(_rule(model, images, target, contrast, keep), removes=removes)
    used = {row * rule.masked.grid[1] + column for row, column in apart}
    return _find(rule, [patch for patch in _order(rule, heatmap, seed) if patch not in used])


def _order(rule: "_Rule", heatmap: Maps | None, seed: int) -> list[int]:
    """Return all patches, the most relevant first, by a map or by AttnLRP."""
    masked = rule.masked
    if heatmap is None:
        heatmap = score_patches(masked.model, masked.images, rule.target, METHOD)
    order: list[int] = rank_patches(flat_maps(heatmap, masked)[0], seed)[0].tolist()
    return order


def _rule(
    model: ViT, images: Tensor, target: TargetOf | None, contrast: Contrast | None, keep: float | None, sets: int = 1
) -> "_Rule":
    """Check the arguments of `search`, and return what makes a set work."""
    if not model.removes_patches:
        raise EvaluationError(
            "Expected a model that can run without some patches, got one that runs as it is. Test a map "
            "by painting over patches: view.faithfulness(heatmap)."
        )
    if len(images) != 1 or sets < 1:
        raise EvaluationError(
            f"Expected one image and sets of at least 1, got {counted(len(images), 'image')} and {sets}. Search "
            "for each image separately, for at least one set."
        )
    masked = MaskedModel(model, images, features=reads_features(model, target))
    whole = masked.unmasked()  # (1, C)
    resolved = resolve_target(model, whole, target, contrast)
    assert resolved is not None  # MaskedModel checked that there is a classifier
    if resolved.reading_scale != "probability" or not 0.0 < (0.5 if keep is None else keep) <= 1.0:
        raise EvaluationError(
            f"Expected a target with a probability, and keep above 0 and up to 1, got a {resolved.reading_scale} and "
            f"{keep}. Choose a class and such a probability."
        )
    rule = _Rule(masked, resolved, keep)
    if not rule.keeps(whole).all():
        has = f"{percent(float(resolved.reading(whole)[0]))} of {resolved.description} for the whole image"
        expected = "a target that the model predicts" if keep is None else f"at least {percent(keep)}"
        raise EvaluationError(f"Expected {expected}, got {has}. Pass a keep below it, or choose another class.")
    return rule


@dataclass(frozen=True, eq=False)
class _Rule:
    """What makes a set of patches work.

    Args:
        masked: the model on one image.
        target: the target, of one image.
        keep: probability to keep; `None` to stay predicted.
        removes: whether a set works if the prediction changes without it, instead of being kept by it alone.
    """

    masked: MaskedModel
    target: Target
    keep: float | None
    removes: bool = False

    def keeps(self, outputs: Tensor) -> Tensor:
        """Return whether logits keep the prediction: (R, C) -> (R,) bools."""
        target = self.target.repeat(len(outputs))
        return target.predicted(outputs) if self.keep is None else target.reading(outputs) >= self.keep

    def works(self, outputs: Tensor) -> Tensor:
        """Return whether sets with these logits work: (R, C) -> (R,) bools."""
        return ~self.keeps(outputs) if self.removes else self.keeps(outputs)

    def visible(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """Return the patches that the model sees: R sets -> (R, n) bools."""
        chosen = torch.zeros(len(sets), self.masked.patches, dtype=torch.bool)
        for row, patches in zip(chosen, sets, strict=True):
            row[list(patches)] = True
        return ~chosen if self.removes else chosen

    def test(self, sets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return whether sets work, (R,) bools, and by how much, (R,): probabilities, negative for removal.

        Sets that leave too few patches for the model do not work.
        """
        visible = self.visible(sets)
        runs = visible.sum(1) >= self.masked.least
        works, margins = torch.zeros(len(sets), dtype=torch.bool), torch.zeros(len(sets), dtype=torch.float64)
        if runs.any():
            outputs = self.masked.outputs(visible[runs], torch.zeros(int(runs.sum()), dtype=torch.long))
            works[runs], margins[runs] = self.works(outputs), self.target.repeat(len(outputs)).reading(outputs)
        return works, -margins if self.removes else margins


def _steps(rule: _Rule, order: list[int], sets: int) -> Iterator[Evidence]:
    """Yield the evidence after each step; see `search`."""
    masked, whole = rule.masked, rule.masked.unmasked()
    result = Evidence(
        target=rule.target.description, keep=rule.keep, probability=float(rule.target.reading(whole)[0]),
        grid=masked.grid,
    )  # fmt: skip
    remaining = order
    for _ in range(sets):
        done, found = result.sets, None
        for found in _find(rule, remaining):
            result = replace(result, sets=(*done, found))
            yield result
        if found is None or not found.patches:  # after the empty set, all further sets would be empty
            break
        used = {row * masked.grid[1] + column for row, column in found.patches}
        remaining = [patch for patch in remaining if patch not in used]
    for change in _find(replace(rule, removes=True), order):
        result = replace(result, change=change)
        yield result
    yield replace(result, finished=True)


def _find(rule: _Rule, order: list[int]) -> Iterator[PatchSet]:
    """Yield ever smaller sets that work, the last one with its certificate; nothing if no first patches work."""
    patches = _first(rule, order)
    if patches is None:
        return
    yield _described(rule, patches)
    while True:
        for smaller in _minimize(rule, patches):
            patches = smaller
            yield _described(rule, patches)
        certificate = _certify(rule, patches)
        spare = certificate.still.nonzero()[0]
        if not len(spare):
            break
        patches = [*patches[: spare[0]], *patches[spare[0] + 1 :]]  # a batch and a single run differ by rounding
    yield replace(_described(rule, patches), certificate=certificate)


def _first(rule: _Rule, order: list[int]) -> list[int] | None:
    """Return the first patches of the order that work: by doubling their number, then by bisection."""
    most = len(order) - (rule.masked.least if rule.removes else 0)
    sizes = [0, *(2**power for power in range(most.bit_length()) if 2**power < most), most]
    fails = -1
    for size in sizes:
        if rule.test([order[:size]])[0].all():
            break
        fails = size
    else:
        return None
    while size - fails > 1:
        middle = (size + fails) // 2
        size, fails = (middle, fails) if rule.test([order[:middle]])[0].all() else (size, middle)
    return order[:size]


def _minimize(rule: _Rule, patches: list[int]) -> Iterator[list[int]]:
    """Yield ever smaller sets that work, by ddmin; the last one is 1-minimal.

    As many parts as possible of those that can be left out are left out at once.
    """
    parts, margins = min(2, len(patches)), dict[tuple[int, ...], float]()
    while patches:
        pieces = [piece.tolist() for piece in torch.tensor(patches).tensor_split(parts)]
        spare = _spare(rule, pieces, margins)
        if spare:
            counts = sorted({*(2**power for power in range(len(spare).bit_length())), len(spare)})
            smaller = [_joined(pieces, {*spare[:count]}) for count in counts]
            largest = max(index for index, ok in enumerate(rule.test(smaller)[0].tolist()) if ok or not index)
            patches = smaller[largest]
            parts = min(len(patches), max(2, parts - counts[largest]))
            yield patches
        elif parts == len(patches):
            return
        else:
            parts = min(len(patches), 2 * parts)


def _spare(rule: _Rule, pieces: list[list[int]], margins: dict[tuple[int, ...], float]) -> list[int]:
    """Return indices of pieces without which the set works, the best first; empty if there are none.

    Pieces run in batches until some are found: untested ones first, the least relevant of them before others, then
    those that failed least in a larger set. `margins` keeps the last result of each piece.
    """
    order = sorted(range(len(pieces)), key=lambda index: (-margins.get(tuple(pieces[index]), np.inf), -index))
    seen = int(rule.visible([_joined(pieces, {0})]).sum())
    size = max(1, BATCH_TOKENS // (seen + 1))
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        works, results = rule.test([_joined(pieces, {index}) for index in batch])
        margins |= {tuple(pieces[index]): margin for index, margin in zip(batch, results.tolist(), strict=True)}
        if works.any():
            return [batch[place] for place in results.argsort(descending=True).tolist() if works[place]]
    return []


def _joined(pieces: list[list[int]], without: set[int]) -> list[int]:
    """Return the patches of all pieces except those at the indices `without`."""
    return [patch for index, piece in enumerate(pieces) if index not in without for patch in piece]


def _described(rule: _Rule, patches: list[int]) -> PatchSet:
    """Return a set with the model's answer."""
    outputs = rule.masked.outputs(rule.visible([patches]), torch.zeros(1, dtype=torch.long))  # (1, C)
    about = rule.masked.model.pretrained
    one_class = rule.target.problem_type == SINGLE and rule.target.kind in ("class", "group")
    labels = about.labels if about is not None and one_class else ()
    return PatchSet(
        patches=tuple((patch // rule.masked.grid[1], patch % rule.masked.grid[1]) for patch in patches),
        probability=float(rule.target.reading(outputs)[0]),
        answer=labels[int(outputs.argmax())] if labels else "",
    )


def _certify(rule: _Rule, patches: list[int]) -> Certificate:
    """Run the model once with the set and once without each of its patches, by `Edits` instead of `MaskedModel`."""
    runs: list[tuple[float, bool]] = []
    masked = rule.masked
    for left_out in (None, *patches):
        chosen = {*patches} - {left_out}
        seen = [patch for patch in range(masked.patches) if (patch in chosen) != rule.removes]
        if len(seen) < masked.least:
            runs.append((float("nan"), False))
            continue
        with torch.no_grad():
            kept = torch.tensor(seen, dtype=torch.long, device=masked.images.device)[None]  # (1, K)
            outputs = masked.model(masked.images, Edits(keep=kept)).cpu().double()  # (1, C)
        runs.append((float(rule.target.reading(outputs)[0]), bool(rule.works(outputs)[0])))
    (probability, works), *others = runs
    return Certificate(
        probability=probability,
        works=works,
        without=np.array([value for value, _ in others]),
        still=np.array([still for _, still in others], dtype=bool),
    )
