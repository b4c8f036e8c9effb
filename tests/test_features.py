"""The tail of a model on what its trunk left on disk: the same answers, and the same learning."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_cases import COUNT, DEPTH, GRID, SIZE, everything, inputs, model, rows, split
from PIL import Image

from vitviz.preprocess import Preprocess
from vitviz.training.features import Tail, Whole, normalised, trunk
from vitviz.training.losses import Objective, one_hot, predicted
from vitviz.training.transfer import freeze

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = {
    "class token": {},
    "registers, cls+mean": {"pooling": "cls+mean", "registers": 3},
    "mean": {"pooling": "mean", "class_token": False},
    "mean, norm after pooling": {"pooling": "mean", "norm_pooled": True},
    "attention pooling": {"pooling": "attention", "class_token": False, "width": 35},
    "attention pooling, norm after it": {"pooling": "attention", "norm_pooled": True, "width": 35},
    "rotary, registers": {"positions": "rotary", "head_width": 12, "registers": 2},
    "sines, pre-norm": {"positions": "sincos", "width": 20, "norm_pre": True},
    "distillation token": {"distillation_token": True},
    "distillation token, mean, norm after pooling": {
        "distillation_token": True,
        "pooling": "mean",
        "norm_pooled": True,
    },
    "gated, layer scale": {"mlp": "swiglu", "layer_scale": 0.3, "qk_norm": True},
    "dropout": {"dropout": 0.3, "attention_dropout": 0.3, "path_dropout": 0.5},
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
lasts = pytest.mark.parametrize("last", range(DEPTH + 1))


def test_pixels_are_normalised_as_photographs_are() -> None:
    settings = Preprocess(height=10, width=15, mode="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    pixels = split().pixels(torch.tensor([3]), SIZE)
    expected = settings(Image.fromarray(pixels[0].permute(1, 2, 0).numpy())).pixels
    for given_as in (pixels, pixels.float()):
        np.testing.assert_allclose(normalised(given_as, settings)[0].numpy(), expected, rtol=1e-6, atol=1e-6)


@kinds
@lasts
def test_tail_after_trunk_is_the_model(kind: dict, last: int, tmp_path: Path) -> None:
    of = model(**kind)
    expected = of(inputs(split(), of))
    kept = rows(of, tmp_path, last, batch=COUNT)
    tail = Tail(of, last, GRID).eval()
    with torch.no_grad():
        answers = tail(everything(kept))
    assert len(answers) == (2 if "distillation_token" in kind else 1)
    # The same numbers but for how matrices lie in memory, which decides the order of sums.
    torch.testing.assert_close(predicted(answers), expected, rtol=1e-6, atol=1e-6)
    half = rows(of, tmp_path, last, dtype=torch.float16)
    assert half.bytes == kept.bytes / 2
    with torch.no_grad():
        torch.testing.assert_close(predicted(tail(everything(half))), expected, rtol=0.02, atol=0.02)


@kinds
def test_the_whole_model_gives_each_heads_logits(kind: dict) -> None:
    of = model(**kind)
    images = inputs(split(), of)
    heads = Whole(of)(images)
    assert predicted(heads).equal(of(images))
    if of.head_dist is not None:
        token = of.trace(images).tokens[:, of.config.prefix.index("distillation")]
        torch.testing.assert_close(heads[1], of.head_dist(token))


@kinds
@pytest.mark.parametrize("last", [0, 1, DEPTH])
def test_training_the_tail_is_training_the_model(kind: dict, last: int) -> None:
    """The same gradients for the same parameters, under the same names, and no other parameter has any."""
    of = model(**kind)
    images, targets = inputs(split(), of), one_hot(split().classes, 5)
    names = freeze(of, last)
    Objective()(Whole(of)(images), targets).backward()
    expected = {name: parameter.grad.clone() for name, parameter in of.named_parameters() if parameter.grad is not None}
    of.zero_grad()
    tail = Tail(of, last, GRID)
    assert {name for name, _ in tail.named_parameters()} == set(names) == set(expected)
    assert all(parameter is of.get_parameter(name) for name, parameter in tail.named_parameters())
    Objective()(tail.eval()(trunk(of, images, last)), targets).backward()
    for name, parameter in tail.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_the_tail_learns_and_the_trunk_stays(tmp_path: Path) -> None:
    of = model(registers=1, pooling="cls+mean", dropout=0.1)
    before = copy.deepcopy(of.state_dict())
    freeze(of, 1)
    tail, targets = Tail(of, 1, GRID).train(), one_hot(split().classes, 5)
    kept = everything(rows(of, tmp_path, 1))
    optimiser = torch.optim.AdamW(tail.parameters(), lr=0.01)
    torch.manual_seed(0)
    for _ in range(60):
        optimiser.zero_grad()
        Objective()(tail(kept), targets).backward()
        optimiser.step()
    of.eval()
    assert of(inputs(split(), of)).argmax(1).equal(split().classes)
    changed = {name for name, value in of.state_dict().items() if not value.equal(before[name])}
    assert {name.rpartition(".")[0].split(".")[0] for name in changed} == {"blocks", "norm", "head"}
    assert {name.split(".")[1] for name in changed if name.startswith("blocks.")} == {"2"}
    assert rows(of, tmp_path, 1).path == rows(of, tmp_path, 1).path  # what was learnt does not make the rows old
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_a_tail_can_be_copied_and_compiled() -> None:
    of = model(positions="rotary", head_width=12)
    seen = trunk(of, inputs(split(), of), 2)
    tail = Tail(of, 2, GRID).eval()
    other = copy.deepcopy(tail)
    with torch.no_grad():
        expected = predicted(tail(seen))
        of.head.bias += 1.0
        assert predicted(other(seen)).equal(expected)
        torch.testing.assert_close(predicted(tail(seen)), expected + 1.0)
        compiled = torch.compile(tail, backend="eager")
        torch.testing.assert_close(predicted(compiled(seen)), expected + 1.0)
