"""The registry of attribution methods, what they are asked about, and that they leave everything as it was."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import explain_cases as cases
import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vitviz.attribution.attention import rollout
from vitviz.attribution.gradient import gae
from vitviz.attribution.inputs import Case, Method, Target, class_index, resolve_target
from vitviz.attribution.registry import METHODS, attribute, method_named, untouched
from vitviz.attribution.scores import ExplainError, TokenScores
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
FEW: dict[str, dict[str, Any]] = {"kernel_shap": {"samples": 80}, "integrated_gradients": {"steps": 2}}
LABELS = ("church", "gas pump", "crane", *(f"thing {index}" for index in range(3, 28)), "crane")
"""Of the 29 classes of a tiny model; "crane" is a bird and a machine."""


def labelled(**changes: Any) -> ViT:
    model = tiny.model(**cases.SMALL, **changes)
    model.pretrained = Pretrained(name="tiny", preprocess=Preprocess(height=6, width=10), labels=LABELS)
    return model


def images(batch: int = 2) -> Tensor:
    return tiny.images(batch, **cases.SMALL)


def whole(scores: TokenScores) -> Tensor:
    return torch.cat([scores.prefix, scores.patches.flatten(1)], dim=1)


# ---- the registry


def test_every_method_that_people_compare_is_there() -> None:
    assert set(METHODS) >= {
        *("attention", "rollout", "value_attention"),
        *("gradient_rollout", "attention_gradcam", "token_gradcam", "gae", "legrad"),
        *("transformer_lrp", "attn_lrp"),
        *("input_gradient", "integrated_gradients", "occlusion", "kernel_shap"),
    }


@each_method
def test_a_method_says_what_it_is_and_what_it_takes(method: Method) -> None:
    assert METHODS[method.name] is method is method_named(method.name)
    for words in (method.title, method.paper, method.about):
        assert words == words.strip() != ""
    assert any(str(year) in method.paper for year in range(2013, 2030))
    assert method.about.endswith(".")
    assert method.cost >= 1


def test_options_are_those_of_the_function() -> None:
    rollout = {"query": None, "fuse": "mean", "discard": 0.0, "residual": 0.5, "start": 0, "rescale": "attention"}
    assert METHODS["rollout"].options == rollout
    assert METHODS["occlusion"].options == {"window": 1, "stride": None, "baseline": "zero", "batch": 16}
    assert METHODS["gae"].options == {}


def test_a_method_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ExplainError) as caught:
        attribute(labelled(), images(), method="lime")
    for fact in ("'lime'", "gae", "occlusion"):
        assert fact in str(caught.value)


# ---- what is asked about


def test_a_class_is_named_by_index_or_label() -> None:
    model = labelled()
    assert class_index(model, 17) == 17
    assert class_index(model, "church") == class_index(model, " Church ") == 0
    assert class_index(model, "Gas Pump") == 1
    assert class_index(model, "17") == 17
    assert model.pretrained is not None
    numbers = [str(count) for count in range(29, 0, -1)]
    model.pretrained = dataclasses.replace(model.pretrained, labels=(*numbers[:-2], "A", "a"))
    assert class_index(model, "28") == 1  # its label, not its place
    assert (class_index(model, "A"), class_index(model, "a")) == (27, 28)


@pytest.mark.parametrize(
    ("named", "facts"),
    [
        (29, ["0..28", "29"]),
        (-1, ["0..28", "-1"]),
        ("castle", ["'castle'", "church", "gas pump"]),
        ("crane", ["'crane'", "[2, 28]"]),
        (True, ["True"]),
        (1.5, ["1.5"]),
    ],
)
def test_classes_that_do_not_exist_are_refused(named: Any, facts: list[str]) -> None:
    with pytest.raises(ExplainError) as caught:
        class_index(labelled(), named)
    for fact in facts:
        assert fact in str(caught.value)


def test_a_model_without_labels_says_so() -> None:
    with pytest.raises(ExplainError, match="no labels"):
        class_index(tiny.model(), "church")


def test_targets_of_a_batch() -> None:
    model = labelled()
    logits = torch.zeros(3, 29)
    logits[[0, 1, 2], [5, 0, 5]] = 1.0

    def classes(target: Any) -> list[int]:
        found = resolve_target(model, logits, target)
        assert found is not None
        assert found.against is None
        return found.classes.tolist()

    assert classes(None) == [5, 0, 5]
    assert classes(4) == [4, 4, 4]
    assert classes("church") == [0, 0, 0]
    assert classes([3, "gas pump", 28]) == [3, 1, 28]
    assert classes(torch.tensor([9, 8, 7])) == [9, 8, 7]
    assert resolve_target(model, logits, None).description == "thing 5, church"
    with pytest.raises(ExplainError, match="3 images, got 2"):
        classes([1, 2])


def test_a_contrast_is_the_difference_of_two_logits() -> None:
    model = labelled()
    logits = torch.randn(3, 29, generator=torch.Generator().manual_seed(0))
    found = resolve_target(model, logits, contrast=("church", 4))
    assert found.description == "church rather than thing 4"
    torch.testing.assert_close(found.score(logits), logits[:, 0] - logits[:, 4])
    each = Target(torch.tensor([3, 1, 2]), torch.tensor([0, 0, 5]))
    assert each.repeat(2).classes.tolist() == [3, 3, 1, 1, 2, 2]
    assert each.repeat(2).against.tolist() == [0, 0, 0, 0, 5, 5]
    for wrong, fact in (((3, 3), "3"), ((3, "castle"), "castle")):
        with pytest.raises(ExplainError, match=fact):
            resolve_target(model, logits, contrast=wrong)
    with pytest.raises(ExplainError, match="both"):
        resolve_target(model, logits, 3, (1, 2))


def test_a_model_without_classifier_has_no_target() -> None:
    model = tiny.model(classes=0)
    assert resolve_target(model, None) is None
    for named in ({"target": 1}, {"contrast": (1, 2)}):
        with pytest.raises(ExplainError, match="classifier"):
            resolve_target(model, None, **named)


# ---- attribute


def test_an_answer_carries_what_was_asked() -> None:
    model = labelled(registers=2)
    scores = attribute(model, images(), "gas pump", "legrad", start=1)
    assert (scores.method, scores.target, scores.signed) == ("legrad", "gas pump", False)
    assert scores.options == {"start": 1, "pooling": "model"}
    assert scores.names == ("CLS", "register 1", "register 2")
    assert (scores.patches.shape, scores.prefix.shape) == ((2, 3, 5), (2, 3))
    scores = attribute(model, images(), contrast=(4, 0), method="occlusion")
    assert (scores.target, scores.signed) == ("thing 4 rather than church", True)
    assert scores.options == dict(METHODS["occlusion"].options)
    assert attribute(model, images(), method="rollout").target == ""
    predicted = model(images()).argmax(1)
    assert attribute(model, images()).target == ", ".join(dict.fromkeys(LABELS[int(index)] for index in predicted))


def test_an_answer_is_what_the_method_says() -> None:
    model, pixels = labelled(), images()
    trace = model.trace(pixels)
    case = Case(model, pixels, Target(torch.tensor([3, 8])), trace)
    torch.testing.assert_close(whole(attribute(model, pixels, [3, 8], "gae")), gae(case))
    ours = attribute(model, pixels, method="rollout", query=(1, 2), discard=0.3)
    torch.testing.assert_close(whole(ours), whole(rollout(trace, (1, 2), discard=0.3)))


@pytest.mark.parametrize("name", ["attention", "rollout", "value_attention", "gae", "legrad", "token_gradcam"])
def test_a_trace_that_is_there_is_read(name: str) -> None:
    """Methods that read it need no second look at the pixels."""
    model, pixels = labelled(), images()
    trace = model.trace(pixels)
    expected = attribute(model, pixels, [3, 8], name)
    given = attribute(model, torch.zeros_like(pixels), [3, 8], name, trace=trace)
    torch.testing.assert_close(whole(given), whole(expected))


def test_options_that_a_method_does_not_have_are_refused_with_those_it_has() -> None:
    with pytest.raises(ExplainError) as caught:
        attribute(labelled(), images(), 3, "legrad", blocks=2)
    for fact in ("legrad", "blocks", "start"):
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gradient_rollout", {"discard": "high"}),
        ("legrad", {"start": "x"}),
        ("legrad", {"start": 1.5}),
        ("occlusion", {"window": True}),
    ],
)
def test_options_that_are_no_numbers_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ExplainError, match=rf"{next(iter(options))} of \w+ as a.* number"):
        attribute(labelled(), images(), 3, name, **options)


@pytest.mark.parametrize("name", ["attention", "rollout", "value_attention"])
def test_what_is_the_same_for_every_class_cannot_tell_two_apart(name: str) -> None:
    with pytest.raises(ExplainError, match=name):
        attribute(labelled(), images(), method=name, contrast=(1, 2))


# ---- everything is left as it was


class Breaks(nn.Linear):
    """A classifier that answers a few times, and then no more."""

    def __init__(self, like: nn.Linear, answers: int) -> None:
        super().__init__(like.in_features, like.out_features)
        self.load_state_dict(like.state_dict())
        self.answers = answers

    def forward(self, tokens: Tensor) -> Tensor:
        self.answers -= 1
        if self.answers < 0:
            raise ArithmeticError("no more answers")
        return super().forward(tokens)


def state(model: ViT) -> Iterator[Any]:
    """Whatever a method might leave changed."""
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
def test_a_method_leaves_everything_as_it_was(method: Method, answers: int) -> None:
    model, pixels = labelled(), images()
    model.head = Breaks(model.head, answers)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 > 0)
    given, before = pixels.clone(), list(state(model))
    broken = False
    try:
        attribute(model, pixels, [3, 8], method.name, **FEW.get(method.name, {}))
    except ArithmeticError:
        broken = True
    assert torch.equal(pixels, given)
    assert (pixels.requires_grad, pixels.grad) == (False, None)
    assert list(state(model)) == before
    if answers == 1:
        # The attention family reads the trace; attention propagated by layers of its own may not ask the classifier.
        assert broken or not method.class_specific or method.family == "relevance"
    if answers > 3:
        assert not broken


def test_the_next_random_number_is_the_one_it_would_have_been() -> None:
    model, pixels = labelled(), images()
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    attribute(model, pixels, 3, "kernel_shap", samples=80)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("breaks", [False, True])
def test_whatever_is_drawn_inside_is_drawn_from_a_copy(breaks: bool) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    try:
        with untouched():
            torch.rand(3)
            np.random.rand(3)  # noqa: NPY002
            if breaks:
                raise ArithmeticError
    except ArithmeticError:
        assert breaks
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


# ---- invariants

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5)).filter(lambda grid: grid != (1, 1))
POOLING = [
    {},
    {"registers": 2},
    {"distillation_token": True},
    {"class_token": False, "pooling": "mean"},
    {"pooling": "cls+mean"},
    {"class_token": False, "registers": 1, "pooling": "attention", "width": 20},
    {"positions": "rotary", "head_width": 12},
]


@settings(max_examples=60)
@given(
    st.sampled_from(list(METHODS)), st.sampled_from(POOLING), SHAPES, st.integers(1, 3), st.integers(0, 99), st.data()
)
def test_any_model_any_grid_any_batch(
    name: str, changes: dict, grid: tuple[int, int], batch: int, seed: int, data: st.DataObject
) -> None:
    """Finite, of the right shape, not negative unless signed, one image as in a batch, in any order."""
    method, options = METHODS[name], FEW.get(name, {})
    model = tiny.model(seed, grid=grid, patch=2, **changes).double()
    pixels = tiny.images(batch, seed + 1, grid, 2).double()
    target = data.draw(st.lists(st.integers(0, 28), min_size=batch, max_size=batch))
    scores = attribute(model, pixels, target, name, **options)
    assert scores.patches.shape == (batch, *grid)
    assert scores.prefix.shape == (batch, len(model.config.prefix))
    assert torch.isfinite(whole(scores)).all()
    assert method.signed or float(whole(scores).min()) >= 0
    order = data.draw(st.permutations(range(batch)))
    turned = attribute(model, pixels[order], [target[index] for index in order], name, **options)
    cases.close(whole(turned), whole(scores)[order], 1e-5)
    one = data.draw(st.integers(0, batch - 1))
    alone = attribute(model, pixels[one, None], target[one], name, **options)
    cases.close(whole(alone), whole(scores)[one, None], 1e-5)


@settings(max_examples=25)
@given(st.sampled_from([m.name for m in METHODS.values() if m.class_specific]), st.integers(0, 28), st.integers(0, 99))
def test_a_class_that_reads_nothing_gets_nothing(name: str, label: int, seed: int) -> None:
    model = tiny.model(seed, **cases.SMALL)
    with torch.no_grad():
        model.head.weight[label], model.head.bias[label] = 0, 0
    scores = attribute(model, tiny.images(2, seed, **cases.SMALL), label, name, **FEW.get(name, {}))
    assert not whole(scores).any()
