"""Test targets: scores and readings against formulas, in methods, tests of maps, heads, lens and interventions."""

import math
from dataclasses import replace
from typing import Any

import explain_cases as cases
import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from image_files import random_rgb
from PIL import Image
from torch import Tensor

import vitviz
from vitviz import Direction, Group, Output, Similarity, Unit
from vitviz.analysis.head_statistics import head_statistics
from vitviz.analysis.interventions import intervene
from vitviz.analysis.logit_lens import logit_lens
from vitviz.attribution.registry import METHODS, attribute, score_tokens
from vitviz.attribution.target_specs import TargetSpec, read_spelling, resolve_target
from vitviz.attribution.targets import ExplainError, Target
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.evaluation.sensitivity import sensitivity_n
from vitviz.model.vit import ViT
from vitviz.outputs import REGRESSION, SEVERAL, SINGLE, ProblemType

pytestmark = pytest.mark.usefixtures("one_thread")
class_specific = pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.class_specific])


def vector(model: ViT, seed: int = 5) -> list[float]:
    return np.random.default_rng(seed).normal(size=model.config.feature_width).tolist()


def specs(model: ViT) -> dict[str, TargetSpec]:
    """Return a target of every kind that a model has."""
    of_features = {"unit": Unit(7), "direction": Direction(vector(model)), "similarity": Similarity(vector(model))}
    return of_features if model.head is None else {"group": Group([3, 5, 11]), "output": Output(4), **of_features}


def by_hand(model: ViT, name: str, images: Tensor) -> Tensor:
    """Return the reading of a target from the model's outputs: (B,), float64."""
    features, against = model.features(images).double(), torch.tensor(vector(model)).double()
    if name == "group":
        return model(images).double().softmax(1)[:, [3, 5, 11]].sum(1)
    if name == "output":
        return model(images).double()[:, 4]
    if name == "unit":
        return features[:, 7]
    if name == "direction":
        return features @ against
    return torch.stack([row @ against / (row.norm() * against.norm()) for row in features])


def scores(model: ViT, images: Tensor, target: Any, method: str) -> Tensor:
    return score_tokens(model, images, target, METHODS[method], None, None, cases.FEW.get(method, {}))[1]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_features_are_the_classifier_input(kind: str) -> None:
    model, images = cases.model(kind), cases.images()
    logits = model.head(model.features(images))
    if model.head_dist is None:
        torch.testing.assert_close(logits, model(images))
    assert model.features(images).shape[1] == model.config.feature_width
    bare = cases.model(kind, classes=0)
    torch.testing.assert_close(bare.features(images), bare(images))


@given(
    st.lists(st.floats(-30, 30), min_size=4, max_size=9),
    st.data(),
    st.sampled_from([SINGLE, SEVERAL, REGRESSION]),
)
def test_scores_and_readings_of_outputs_match_their_formulas(
    logits: list[float], data: st.DataObject, problem_type: ProblemType
) -> None:
    picked = data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=2, max_size=3, unique=True))
    first, second = picked[:2]
    outputs, numbers = torch.tensor([logits], dtype=torch.float64), np.exp(np.array(logits) - max(logits))
    shares = numbers / numbers.sum()
    sigmoid = 1 / (1 + math.exp(-logits[first]))
    of_class = {SINGLE: shares[first], SEVERAL: sigmoid, REGRESSION: logits[first]}[problem_type]
    of_output = sigmoid if problem_type == SEVERAL else logits[first]
    difference = logits[first] - logits[second]
    of_contrast = 1 / (1 + math.exp(-difference)) if problem_type == SINGLE else difference
    expected = {
        "class": ([first], logits[first], of_class),
        "output": ([first], logits[first], of_output),
        "contrast": ([first, second], difference, of_contrast),
    }
    if problem_type == SINGLE:
        score = max(logits) + math.log(sum(numbers[index] for index in picked))
        expected["group"] = (picked, score, sum(shares[index] for index in picked))
    for kind, (points, score, reading) in expected.items():
        target = Target(torch.tensor([points]), kind, problem_type=problem_type)
        assert float(target.score(outputs)) == pytest.approx(score, rel=1e-9, abs=1e-9)
        assert float(target.reading(outputs)) == pytest.approx(reading, rel=1e-9, abs=1e-12)
        in_shares = target.reading_scale == "probability"
        assert not in_shares or 0 <= float(target.reading(outputs)) <= 1 + 1e-12
        relevance = target.relevance(outputs)
        assert float(relevance.min()) >= 0
        assert float(relevance.sum()) == pytest.approx(1.0)


@class_specific
def test_every_method_explains_every_target(method: str) -> None:
    """Scores are finite and differ between targets, also without a classifier; a batch equals single images."""
    offset = list(METHODS).index(method)
    for index, kind in enumerate([*tiny.KINDS][offset % 4 :: 4]):
        model = cases.model(kind, **({"classes": 0} if index % 2 else {}))
        images = cases.images()
        for name in ("group", "direction", "similarity") if model.head else ("direction", "similarity"):
            spec = specs(model)[name]
            together = scores(model, images, spec, method)
            assert bool(together.isfinite().all())
            assert not METHODS[method].signed or together.any()
            cases.close(scores(model, images[1:], spec, method), together[1:], 1e-6)


@class_specific
@torch.no_grad()
def test_targets_that_are_one_class_explain_like_the_class(method: str) -> None:
    """A group of one class, its output, and the direction of its weights have the class's map."""
    model, images = cases.model("class token"), cases.images()
    model.head.bias.zero_()  # relevance passes a bias to the inputs
    expected = scores(model, images, 3, method)
    same = [Group([3]), Output(3)]
    if method != "transformer_lrp":  # which starts from the logit, before the classifier's rule
        same.append(Direction(model.head.weight[3]))
    for spec in same:
        cases.close(scores(model, images, spec, method), expected, 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["class token", "class token and mean", "attention, gated"])
def test_scores_of_additive_methods_sum_to_the_score(kind: str) -> None:
    model, images = cases.model(kind), cases.images()
    for name, spec in specs(model).items():
        target = resolve_target(model, None, spec, batch=2)
        score = target.score(target.outputs(model, images))
        cases.close(scores(model, images, spec, "attn_lrp").sum(1), score, 1e-6)
        if name not in ("group", "similarity") or kind != "class token and mean":
            continue
        blank = target.score(target.outputs(model, torch.zeros_like(images)))
        options = {"steps": 96}
        integrated = score_tokens(model, images, spec, METHODS["integrated_gradients"], None, None, options)[1]
        cases.close(integrated.sum(1), score - blank, 1e-2)


@pytest.mark.parametrize("kind", ["class token", "distillation and register", "attention, gated"])
def test_the_gradient_of_a_similarity_is_that_of_the_cosine(kind: str) -> None:
    model, images = cases.model(kind), cases.images()
    against = torch.tensor(vector(model), dtype=torch.float64)
    pixels = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cosine_similarity(model.features(pixels), against[None]).sum(), pixels)
    expected = slope.abs().unflatten(3, (5, -1)).unflatten(2, (3, -1)).sum((1, 3, 5)).flatten(1)
    prefix = len(model.config.prefix)
    cases.close(scores(model, images, Similarity(vector(model)), "input_gradient")[:, prefix:], expected, 1e-6)


@torch.no_grad()
@pytest.mark.parametrize("classes", [29, 0])
def test_tests_heads_lens_and_interventions_read_the_target(classes: int) -> None:
    model, images = (
        cases.known("mean, no prefix, root-mean-square norms", torch.float64, classes=classes) if classes else None,
        cases.images(1),
    )
    model = model or cases.model("mean, no prefix, root-mean-square norms", classes=0)
    trace = model.trace(images)
    names = ["gradient", "ablation_probability", "ablation_logit"]
    for name, spec in specs(model).items():
        whole = float(by_hand(model, name, images))
        (heatmap,) = attribute(model, images, spec, "token_gradcam")
        (test,) = faithfulness(model, images, heatmap, steps=3, random=2)  # reads the map's target
        assert test.deletion.probabilities[0] == pytest.approx(whole, rel=1e-5, abs=1e-6)
        assert test.target in heatmap.title
        scale = {"group": "probability", "output": "logit", "similarity": "cosine"}.get(name, "value")
        assert test.scale == scale
        assert scale in test.to_pandas().columns
        assert (f"{scale} area" in test.describe()) == (scale != "probability")
        change = intervene(model, images, drop=[(0, 1)], target=spec)
        keep = [index for index in range(15) if index != 1]
        assert change.scale == scale
        assert change.target_before[0] == pytest.approx(whole, rel=1e-5, abs=1e-6)
        without = float(by_hand(without_patches(model, keep), name, images))
        assert change.target_after[0] == pytest.approx(without, rel=1e-5, abs=1e-6)
        lens = logit_lens(model, trace, target=spec)
        assert (lens.scale, lens.readings.shape, lens.patches.shape) == (scale, (3, 1), (3, 3, 5, 1))
        assert lens.readings[-1, 0] == pytest.approx(whole, rel=1e-4, abs=1e-5)
        if name in ("unit", "direction", "output"):  # linear in the mean over the patches
            assert lens.patches[-1].mean() == pytest.approx(whole, rel=1e-4, abs=1e-4)
        statistics = head_statistics(model, trace, names=names, target=spec)
        off = intervene(model, images, heads=[(1, 2)], target=spec)
        drop = off.target_before[0] - off.target_after[0]
        if scale == "probability":
            assert statistics["ablation_probability"][1, 2] == pytest.approx(drop, rel=1e-3, abs=1e-6)
        else:
            assert scale in statistics.missing["ablation_probability"]
            assert statistics["ablation_logit"][1, 2] == pytest.approx(drop, rel=1e-3, abs=1e-6)
        assert statistics["gradient"].min() > 0
        assert statistics.scale in statistics.table()
        assert np.isfinite(sensitivity_n(model, images, heatmap, spec, sizes=[2], samples=4).correlations).all()


def without_patches(model: ViT, keep: list[int]) -> Any:
    """Return a stand-in for the model that runs on some patches only; the model has no prefix."""

    class Cut:
        config, head = model.config, model.head

        def features(self, images: Tensor) -> Tensor:
            tokens, _ = model.embed(images)
            return model.read_out(model.encode(tokens[:, keep], None))

        def __call__(self, images: Tensor) -> Tensor:
            return model.head(self.features(images))

    return Cut()


def test_spellings_name_the_same_target() -> None:
    model = cases.known()
    for spec in [*specs(model).values(), Group(["church", "gas pump"]), Direction(vector(model), "stripes; two")]:
        again = read_spelling(model, str(spec))
        assert isinstance(again, TargetSpec)
        first, second = (resolve_target(model, None, each, batch=2) for each in (spec, again))
        torch.testing.assert_close(first.points, second.points, rtol=1e-7, atol=0)
        assert (first.names, first.kind) == (second.names, second.kind)
        assert resolve_target(model, None, first.spellings[0]).names == first.names[:1]
    assert resolve_target(model, None, Group(["church", 1])).names == ("church or gas pump",)
    assert resolve_target(model, None, torch.tensor(1)).names == ("gas pump",)
    model.pretrained = replace(model.pretrained, groups=(("building", "church", "gas pump"),))
    assert resolve_target(model, None, Group([1, "church"])).names == ("some kind of building",)
    model.pretrained = tiny.known(labels=("group:1,2", *cases.LABELS[1:])).pretrained
    assert resolve_target(model, None, "group:1,2").kind == "class"  # a label, not a group


def test_each_image_of_a_batch_may_have_its_own_reference() -> None:
    model, images = cases.model(), cases.images()
    references = [Similarity(vector(model, seed)) for seed in (1, 2)]
    maps = attribute(model, images, references, "gae")
    for index, reference in enumerate(references):
        (alone,) = attribute(model, images[index : index + 1], reference, "gae")
        np.testing.assert_allclose(maps[index].values, alone.values, rtol=1e-5, atol=1e-8)
    assert maps[0].explained != maps[1].explained
    tests = faithfulness(model, images, maps, steps=2, random=1)
    expected = [float(by_hand_cosine(model, images[i : i + 1], vector(model, i + 1))) for i in range(2)]
    assert [test.deletion.probabilities[0] for test in tests] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ExplainError, match="one kind"):
        attribute(model, images, [Unit(1), Group([1, 2])], "gae")


def by_hand_cosine(model: ViT, images: Tensor, against: list[float]) -> Tensor:
    with torch.no_grad():
        return F.cosine_similarity(model.features(images), torch.tensor(against, dtype=torch.float64)[None])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: Group([]), "at least one class in a group, got none"),
        (lambda _: Group(["church", 3, 0]), "got 0 twice"),
        (lambda _: Group(["castle", 3]), "castle"),
        (lambda _: Group([0] * 30_000), "at most 29 classes, got 30000"),
        (lambda _: "9" * 5_000, "a class among"),
        (lambda _: Direction([1.0, 2.0]), "19 numbers, .* got 2"),
        (lambda _: Similarity([1.0, 2.0]), "19 numbers, .* got 2"),
        (lambda _: Direction([0.0] * 19), "only zeros"),
        (lambda _: Similarity([math.nan] * 19), "NaN"),
        (lambda _: Direction([1e30] * 19), r"got 1e\+30\. Scale it"),
        (lambda _: Direction([1e-30] * 19), r"got 1e-30\. Scale it"),
        (lambda _: Direction("stripes"), "list of numbers"),
        (lambda _: Unit(19), r"0\.\.18.*19"),
        (lambda _: "unit:x", "whole number.*'x'"),
        (lambda _: "direction:1,b", "separated by commas"),
        (lambda _: Similarity(opened(tiny.known(1))), "another model"),
    ],
)
def test_targets_that_do_not_fit_raise(make: Any, words: str) -> None:
    model = cases.known()
    with pytest.raises(ExplainError, match=words):
        resolve_target(model, None, make(model), batch=1)


@pytest.mark.parametrize("scale", [1e30, 1e38, 1e-30])
def test_similarity_does_not_depend_on_the_length_of_the_reference(scale: float) -> None:
    """Squares of these numbers overflow, or vanish, in single precision."""
    model, reference = cases.known(), np.linspace(-1, 1, 19)
    plain, scaled = (resolve_target(model, None, Similarity(factor * reference)) for factor in (1, scale))
    torch.testing.assert_close(scaled.points, plain.points)
    assert float(plain.points.norm()) == pytest.approx(1)


def test_targets_that_a_model_lacks_raise() -> None:
    several = cases.known()
    several.pretrained = vitviz.Pretrained(
        name="several", preprocess=several.pretrained.preprocess, problem_type=SEVERAL
    )
    with pytest.raises(ExplainError, match=r"softmax.*multi_label"):
        resolve_target(several, None, Group([1, 2]))
    for spec in (Group([1, 2]), Output(1), 3):
        with pytest.raises(ExplainError, match=r"classifier.*Similarity\(view\)"):
            resolve_target(cases.model(classes=0), None, spec)


def photograph(seed: int = 0) -> Image.Image:
    return Image.fromarray(random_rgb(90, 70, seed))


def opened(model: ViT) -> vitviz.View:
    return vitviz.Explorer(model).open(photograph())


def test_a_view_explains_its_similarity_to_another_without_a_classifier() -> None:
    model = tiny.known(labels=(), classes=0)
    explorer = vitviz.Explorer(model)
    first, second = (explorer.open(photograph(seed)) for seed in (1, 2))
    heatmap = first.explain("occlusion", Similarity(second, "the second"))
    assert heatmap.title == "Occlusion, for the similarity to the second (cosine)"
    assert heatmap.unit == "cosine"  # the unit of a color bar
    (test,) = first.faithfulness(heatmap, steps=2, random=1)
    cosine = float(first.features @ second.features / np.linalg.norm(first.features) / np.linalg.norm(second.features))
    assert test.deletion.probabilities[0] == pytest.approx(cosine, abs=1e-5)
    assert first.explain(**heatmap.question).values == pytest.approx(heatmap.values, abs=1e-5)
    assert first.explain("gae", Similarity(first)).values.any()
