"""Test the registry of attribution methods, targets, and properties of every method on every kind of model."""

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import explain_cases as cases
import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from vitviz.attribution.attention import attention, rollout
from vitviz.attribution.gradient import gae
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.registry import METHODS, attribute, method_named, score_tokens, untouched
from vitviz.attribution.target_specs import class_index, resolve_target
from vitviz.attribution.targets import ExplainError, Target
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
class_specific = pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.class_specific])
GRIDS = [(3, 5), (1, 4), (5, 2), (4, 1)]


def labelled(**changes: Any) -> ViT:
    return cases.known(dtype=torch.float32, **changes)


def explain(
    model: ViT, pixels: Tensor, target: Any, method: str, *, contrast: Any = None, trace: Trace | None = None
) -> Tensor:
    """Return the score of each token: (B, N)."""
    return score_tokens(model, pixels, target, METHODS[method], contrast, trace, cases.FEW.get(method, {}))[1]


def test_the_registry_has_every_method_with_its_options() -> None:
    assert set(METHODS) >= {
        *("attention", "rollout", "value_attention"),
        *("gradient_rollout", "attention_gradcam", "token_gradcam", "gae", "legrad"),
        *("transformer_lrp", "attn_lrp"),
        *("input_gradient", "integrated_gradients", "occlusion", "kernel_shap"),
    }
    for name, method in METHODS.items():
        assert method_named(name) is method
        assert all((method.title, method.paper, method.forwards >= 1))
        assert re.fullmatch(r"[A-Z][a-z ].*\.", method.about)
    assert METHODS["occlusion"].options == {"window": 1, "stride": None, "baseline": "zero", "batch": 16}


@pytest.mark.parametrize(
    ("name", "option", "value", "words"),
    [
        ("lime", "block", 1, "gae.*occlusion.*'lime'"),
        *((name, "contrast", (1, 2), name) for name in ("attention", "rollout", "value_attention")),
        *(("attention", "head", value, re.escape(repr(value))) for value in (5, -1, "sum")),
        ("rollout", "fuse", "median", "'mean', 'max', 'min'.*'median'"),
        ("rollout", "discard", 1.0, r"0 <= discard < 1.*1\.0"),
        ("rollout", "residual", 1.5, r"0\.\.1.*1\.5"),
        ("rollout", "start", 3, r"0\.\.2.*3"),
        ("rollout", "rescale", "rows", "'attention', 'sum', got 'rows'"),
        *(("value_attention", "head", value, "whole number or one of 'sum', 'mean'") for value in ("max", True, None)),
        ("gradient_rollout", "discard", "high", "discard of gradient_rollout to be a number"),
        ("attention_gradcam", "block", 3, r"0\.\.2.*3"),
        ("token_gradcam", "block", -4, "-3.*-4"),
        ("legrad", "start", 1.5, "start of legrad to be a whole number"),
        ("legrad", "blocks", 2, "legrad.*start.*blocks"),
        ("legrad", "pooling", "all", "'tokens'.*'all'"),
        ("transformer_lrp", "start", 3, r"0\.\.2.*start=3"),
        ("attn_lrp", "gamma_mlp", -0.1, "gamma_mlp"),
        ("attn_lrp", "epsilon", -1e-6, "epsilon"),
        ("attn_lrp", "softmax", "linear", "'linear'"),
        ("integrated_gradients", "steps", 0, "steps.*1.*0"),
        ("integrated_gradients", "baseline", "white", "'blur', 'mean', 'zero', 'black', got 'white'"),
        ("occlusion", "window", 4, "3 x 5.*4"),
        ("occlusion", "stride", 3, "stride 3"),
        ("occlusion", "baseline", "black", "mean"),  # needs the preprocessing
        ("kernel_shap", "samples", 16, "17.*16"),
        ("kernel_shap", "superpixel", 5, "two squares"),
    ],
)
def test_invalid_methods_and_options_raise(name: str, option: str, value: Any, words: str) -> None:
    with pytest.raises(ExplainError, match=words):
        attribute(cases.model(), cases.images(), None if option == "contrast" else 3, name, **{option: value})


def test_class_index_accepts_an_index_or_a_label() -> None:
    model = labelled()
    assert class_index(model, 17) == 17
    assert class_index(model, "church") == class_index(model, " Church ") == 0
    assert class_index(model, "Gas Pump") == 1
    assert class_index(model, "17") == 17
    numbers = [str(count) for count in range(29, 0, -1)]
    model.pretrained = dataclasses.replace(model.pretrained, labels=(*numbers[:-2], "A", "a"))
    assert class_index(model, "28") == 1  # by label, not by index
    assert (class_index(model, "A"), class_index(model, "a")) == (27, 28)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (29, r"0\.\.28.*29"),
        (-1, r"0\.\.28.*-1"),
        ("castle", "church, gas pump.*'castle'"),
        ("crane", r"'crane'.*\[2, 28\]"),
        (True, "True"),
        (1.5, r"1\.5"),
    ],
)
def test_unknown_classes_raise(named: Any, words: str) -> None:
    with pytest.raises(ExplainError, match=words):
        class_index(labelled(), named)
    with pytest.raises(ExplainError, match="no labels"):
        class_index(tiny.model(), "church")


def test_targets_of_a_batch_are_resolved_to_classes() -> None:
    model = labelled()
    logits = torch.zeros(3, 29)
    logits[[0, 1, 2], [5, 0, 5]] = 1.0
    for target, classes in [
        (None, [5, 0, 5]), (4, [4, 4, 4]), ("church", [0, 0, 0]), ([3, "gas pump", 28], [3, 1, 28]),
        (torch.tensor([9, 8, 7]), [9, 8, 7]),
    ]:  # fmt: skip
        resolved = resolve_target(model, logits, target)
        assert (resolved.kind, resolved.points[:, 0].tolist()) == ("class", classes)
    assert resolve_target(model, logits, None).description == "thing 5, church"
    with pytest.raises(ExplainError, match="3 images, got 2"):
        resolve_target(model, logits, [1, 2])


def test_a_contrast_is_the_difference_of_two_logits() -> None:
    model = labelled()
    logits = torch.randn(3, 29, generator=torch.Generator().manual_seed(0))
    resolved = resolve_target(model, logits, contrast=("church", 4))
    assert resolved.description == "church rather than thing 4"
    torch.testing.assert_close(resolved.score(logits), logits[:, 0] - logits[:, 4])
    each = Target(torch.tensor([[3, 0], [1, 0], [2, 5]]), "contrast")
    assert each.repeat(2).points.tolist() == [[3, 0], [3, 0], [1, 0], [1, 0], [2, 5], [2, 5]]
    for wrong, fact in (((3, 3), "3"), ((3, "castle"), "castle")):
        with pytest.raises(ExplainError, match=fact):
            resolve_target(model, logits, contrast=wrong)
    with pytest.raises(ExplainError, match="both"):
        resolve_target(model, logits, 3, (1, 2))


def test_attribute_records_method_class_and_options() -> None:
    model, pixels = labelled(registers=2), cases.pictures(2)
    maps = attribute(model, pixels, ["gas pump", 3], "legrad", start=1)
    assert [heatmap.classes for heatmap in maps] == [(1,), (3,)]
    assert [heatmap.title for heatmap in maps] == [f"LeGrad, for {name}" for name in ("gas pump", "thing 3")]
    for heatmap in maps:
        assert (heatmap.signed, heatmap.unit, heatmap.grid) == (False, "score", (3, 5))
        assert heatmap.question == {"method": "legrad", "target": heatmap.classes[0], "start": 1, "pooling": "model"}
        assert [*heatmap.prefix_mass] == ["CLS", "register 1", "register 2"]
        assert heatmap.overlay().size == (10, 6)  # a gray picture of the input
    (heatmap, _) = attribute(model, pixels, contrast=(4, 0), method="occlusion")
    assert (heatmap.classes, heatmap.signed) == ((4, 0), True)
    assert heatmap.title == "Occlusion, for thing 4 rather than church"
    assert heatmap.question == {"method": "occlusion", "contrast": (4, 0), **METHODS["occlusion"].options}
    predicted = model(pixels).argmax(1).tolist()
    assert [heatmap.classes for heatmap in attribute(model, pixels)] == [(index,) for index in predicted]
    case = Case(model, pixels, Target(torch.tensor([[3], [8]])), model.trace(pixels))
    expected = gae(case)[:, 3:].unflatten(1, (3, 5)).detach().numpy()
    np.testing.assert_allclose(np.stack(attribute(model, pixels, [3, 8], "gae")), expected, rtol=1e-5, atol=1e-7)


def test_attention_and_rollout_of_a_trace_match_attribute() -> None:
    model, pixels = labelled(registers=2), cases.pictures(2)
    trace = model.trace(pixels)
    for maps, expected_maps in (
        (attribute(model, pixels, method="rollout", query=(1, 2), discard=0.3), rollout(trace, (1, 2), discard=0.3)),
        (attribute(model, pixels, method="attention", head=2), attention(trace, head=2)),
    ):
        for heatmap, expected in zip(maps, expected_maps, strict=True):
            np.testing.assert_array_equal(heatmap.values, expected.values)
            for name in ("title", "question", "prefix_mass"):
                assert getattr(heatmap, name) == getattr(expected, name)
            assert heatmap.classes == ()


@each_method
def test_images_of_a_batch_do_not_mix(method: Method) -> None:
    """Scores are finite, and the same for one image, a batch, any order and single precision; on any grid."""
    for index, kind in enumerate(tiny.KINDS):
        grid = GRIDS[(index + list(METHODS).index(method.name)) % len(GRIDS)]
        model, pixels, targets = cases.model(kind), tiny.images(3, index, grid, 2).double(), [3, 7, 2]
        together = explain(model, pixels, targets, method.name)
        prefix = len(model.config.prefix)
        assert together.shape == (3, prefix + grid[0] * grid[1])
        assert method.family != "perturbation" or not together[:, :prefix].any()
        assert torch.isfinite(together).all()
        assert method.signed or float(together.min()) >= 0
        reversed_batch = explain(model, pixels.flip(0), targets[::-1], method.name)
        cases.close(reversed_batch.flip(0), together, 1e-6)
        alone = explain(model, pixels[:1], targets[0], method.name)
        cases.close(alone, together[:1], 1e-6)
        single_precision = explain(cases.model(kind, torch.float32), pixels[:1].float(), targets[0], method.name)
        assert single_precision.dtype == torch.float32
        cases.close(single_precision, together[:1], 5e-3)


@class_specific
def test_a_class_with_zero_head_weights_gets_zero_scores(method: str) -> None:
    """Check that other classes get scores. Relevance methods keep a bias in the logit, equal for all patches."""
    nonzero = []
    for kind in tiny.KINDS:
        model = cases.model(kind)
        with torch.no_grad():
            for head in (model.head, model.head_dist):
                if head is not None:
                    head.weight[5] = 0
                    head.bias[5] *= METHODS[method].family == "relevance"
        scores = explain(model, cases.images(), [5, 3], method)
        if method == "attn_lrp":  # divides the bias equally, between prefix tokens if there are any
            assert len(scores[0].unique()) <= 2
        else:
            assert not scores[0].any()
        nonzero.append(bool(scores[1].any()))
    assert sum(nonzero) > len(nonzero) / 2  # Grad-CAM is 0 where everything is negative


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.signed])
def test_signed_scores_of_a_contrast_are_the_difference(method: str) -> None:
    model, pixels = cases.model("registers, rotary"), cases.images()
    first, second = (explain(model, pixels, label, method) for label in (5, 11))
    contrast = explain(model, pixels, None, method, contrast=(5, 11))
    cases.close(contrast, first - second, 1e-5)
    assert float(contrast.min()) < 0 < float(contrast.max())


@pytest.mark.parametrize("returned", [None, lambda scores: scores[:, 1:], lambda scores: scores[0]])
def test_scores_of_a_plugin_that_are_not_one_for_each_token_are_refused(returned: Any) -> None:
    def without_prefix(case: Case) -> Any:
        return returned and returned(gae(case))

    method = dataclasses.replace(METHODS["gae"], function=without_prefix)
    with pytest.raises(ExplainError, match="without_prefix to return a score for each token"):
        attribute(cases.model(), cases.images(), 1, method)


@class_specific
def test_a_model_without_classifier_has_no_target(method: str) -> None:
    model = cases.model(classes=0)
    with pytest.raises(ExplainError, match="value_attention"):
        explain(model, cases.images(), None, method)
    for named in ({"target": 1}, {"contrast": (1, 2)}):
        with pytest.raises(ExplainError, match="classifier"):
            resolve_target(model, None, **named)
    assert resolve_target(model, None) is None
    assert explain(model, cases.images(), None, "value_attention").any()


@each_method
def test_given_trace_is_used_and_unchanged(method: Method) -> None:
    """Check that only perturbation and LRP run the model on pixels again, and the trace gets no gradients."""
    model, pixels = labelled(), cases.pictures(2)
    trace = model.trace(pixels)
    expected = explain(model, pixels, [3, 8], method.name)
    if method.family not in ("perturbation", "relevance"):
        pixels = torch.zeros_like(pixels)
    torch.testing.assert_close(explain(model, pixels, [3, 8], method.name, trace=trace), expected)
    assert not any(trace.stream(block).requires_grad for block in range(3))
    assert not trace.tokens.requires_grad


def state(model: ViT) -> Iterator[Any]:
    yield torch.get_rng_state().tolist()
    yield [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]  # noqa: NPY002
    yield random.getstate()
    yield torch.is_grad_enabled()
    yield [module.training for module in model.modules()]
    yield [sorted(vars(module)) for module in model.modules()]
    yield [(len(module._forward_hooks), len(module._backward_hooks)) for module in model.modules()]
    for parameter in model.parameters():
        yield parameter.requires_grad, parameter.grad, parameter.data_ptr(), parameter._version, parameter.is_leaf


@pytest.mark.parametrize("answers", [99_999, 1, 3], ids=["works", "breaks at once", "breaks midway"])
@each_method
def test_methods_leave_all_state_unchanged(method: Method, answers: int) -> None:
    model, pixels = labelled(), cases.pictures(2)
    expected = explain(model, pixels, [3, 8], method.name)
    calls = itertools.count(1)

    def break_off(*_: Any) -> None:
        if next(calls) > answers:
            raise ArithmeticError("interrupted by the test")

    hook = model.head.register_forward_hook(break_off)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 > 0)
    original, before, scores = pixels.clone(), list(state(model)), None
    try:
        scores = explain(model, pixels, [3, 8], method.name)
    except ArithmeticError:
        assert answers < 4
    assert torch.equal(pixels, original)
    assert (pixels.requires_grad, pixels.grad) == (False, None)
    assert list(state(model)) == before
    if answers == 1:
        # Methods without a class read the trace, and relevance methods need not call the classifier's module.
        assert scores is None or not method.class_specific or method.family == "relevance"
    if scores is not None:  # methods also work with frozen weights under no_grad
        torch.testing.assert_close(scores, expected)
        with torch.no_grad():
            hook.remove()
            frozen = explain(model.requires_grad_(False), pixels, [3, 8], method.name)
        assert not frozen.requires_grad
        torch.testing.assert_close(frozen, expected)


def test_untouched_restores_random_generators() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with contextlib.suppress(ArithmeticError), untouched():
        torch.rand(3), np.random.rand(3)  # noqa: NPY002
        raise ArithmeticError
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
