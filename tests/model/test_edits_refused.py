"""Edits that do not fit, and other precisions and devices."""

from __future__ import annotations

import pytest
import tiny
import torch
from edit_cases import KINDS, close, everything

from vitviz.model.edits import Cut, EditError, Edits

# ---- other precisions and devices


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.03), (torch.bfloat16, 0.2), (torch.float64, 1e-4)])
@pytest.mark.parametrize("changes", [{}, KINDS["CLS and registers, rotary"]], ids=["learned", "rotary"])
def test_other_precisions_stay_close(changes: dict, dtype: torch.dtype, tolerance: float) -> None:
    model, images = tiny.model(**changes), tiny.images()
    edits = everything(len(model.config.prefix))
    expected = model(images, edits)
    with torch.autocast("cpu", torch.bfloat16):
        close(model(images, edits), expected, 0.2)
        close(model.trace(images, edits=Edits(cuts=edits.cuts)).logits, model(images, Edits(cuts=edits.cuts)), 0.2)
    model, images = model.to(dtype), images.to(dtype)
    result = model(images, edits)
    assert result.dtype == dtype
    close(result, expected, tolerance)
    part = Edits(heads=edits.heads, cuts=edits.cuts)
    trace = model.trace(images, edits=part)
    close(trace.logits, model(images, part), tolerance)
    close(trace.attention(1).sum(-1), torch.ones(trace.attention(1).shape[:-1]), 5e-3)


def test_a_compiled_model_takes_edits() -> None:
    model, images = tiny.model(depth=2, registers=1), tiny.images()
    edits = everything(2)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        close(compiled(images), model(images))
        close(compiled(images, edits), model(images, edits))
        close(torch.compile(model, backend="eager", fullgraph=True)(images), model(images))


PART = Edits(heads=everything(4).heads, cuts=everything(4).cuts)


@pytest.mark.parametrize("edits", [everything(4), PART], ids=["everything", "heads and cuts"])
def test_edits_go_where_the_model_is(edits: Edits) -> None:
    """On "meta" tensors hold no numbers, but arithmetic with a tensor of the CPU is refused, as on a GPU."""
    model, images = tiny.model(**KINDS["CLS and registers, rotary"]).to("meta"), tiny.images().to("meta")
    with pytest.raises(RuntimeError, match="device"):
        images + torch.zeros_like(images, device="cpu")
    assert model(images, edits).is_meta


@pytest.mark.cuda
def test_a_gpu_gives_the_same() -> None:
    model, images = tiny.model(**KINDS["CLS and registers, rotary"]), tiny.images()
    edits = everything(4)
    expected = model(images, edits)
    close(model.cuda()(images.cuda(), edits).cpu(), expected, 1e-3)
    close(model.trace(images.cuda(), edits=PART).logits.cpu(), model.cpu()(images, PART), 1e-3)


# ---- what does not fit


@pytest.mark.parametrize(
    ("edits", "facts"),
    [
        (lambda: Edits(heads={(3, 0): "zero"}), ["block", "0..2", "-3..-1", "3"]),
        (lambda: Edits(heads={(-4, 0): "zero"}), ["block", "-4"]),
        (lambda: Edits(heads={(0, 5): "mean"}), ["head", "0..4", "5"]),
        (lambda: Edits(heads={(0, -1): "mean"}), ["head", "0..4", "-1"]),
        (lambda: Edits(heads={(2, 1): "mean", (-1, 1): "zero"}), ["(-1, 1)", "'zero'", "'mean'"]),
        (lambda: Edits(cuts=[Cut(block=7, keys=(0,))]), ["block", "0..2", "7"]),
        (lambda: Edits(cuts=[Cut(head=5, keys=(0,))]), ["head", "0..4", "5"]),
        (lambda: Edits(cuts=[Cut(queries=(78,), keys=(0,))]), ["token", "0..77", "78"]),
        (lambda: Edits(cuts=[Cut(queries=(0,), keys=(-1,))]), ["token", "0..77", "-1"]),
        (lambda: Edits(cuts=[Cut(block=1, head=2, queries=(6,))]), ["token 6", "block 1", "head 2", "zero"]),
        (lambda: Edits(cuts=[Cut(queries=(77,))], keep=torch.tensor([[65, 76]])), ["token 77", "block 0", "every"]),
        (lambda: Edits(keep=torch.tensor([[3, 77]])), ["0..76", "77"]),
        (lambda: Edits(keep=torch.tensor([[1], [2], [3]])), ["batch", "2", "(3, 1)"]),
    ],
)  # fmt: skip
def test_what_this_model_does_not_have_is_named(edits: object, facts: list[str]) -> None:
    made = edits()
    for run in (tiny.model(), lambda images, edits: tiny.model().trace(images, edits=edits)):
        with pytest.raises(EditError) as caught:
            run(tiny.images(), made)
        assert all(fact in str(caught.value) for fact in facts), str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Edits(heads={(0, 1): "off"}),
        lambda: Edits(heads={3: "zero"}),
        lambda: Edits(heads={(0, 1.5): "zero"}),
        lambda: Edits(cuts=[(0, 1)]),
        lambda: Cut(block=True),
        lambda: Cut(queries=("cls",)),
        lambda: Cut(keys="cls"),
        lambda: Edits(keep=[[1, 2]]),
        lambda: Edits(keep=torch.tensor([1, 2])),
        lambda: Edits(keep=torch.tensor([[1.0, 2.0]])),
        lambda: Edits(keep=torch.ones(1, 77, dtype=torch.bool)),
        lambda: Edits(keep=torch.tensor([[-1, 2]])),
        lambda: Edits(keep=torch.tensor([[4, 2], [3, 3]])),
        lambda: Edits(heads={(0, 1): "zero"}) | Edits(heads={(0, 1): "mean"}),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make: object) -> None:
    with pytest.raises(EditError, match=r"[Ee]xpected .*got"):
        make()
