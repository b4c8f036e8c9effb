"""The value-weighted attention against vectors that are written out: one for each head, query and key."""

from __future__ import annotations

from typing import Any

import explain_cases as cases
import pytest
import torch
import vit_torch
from torch import Tensor

from vitviz.attribution.scores import ExplainError
from vitviz.attribution.values import value_attention
from vitviz.model.trace import TraceError

pytestmark = pytest.mark.usefixtures("one_thread")
models = pytest.mark.parametrize("changes", cases.MODELS.values(), ids=cases.MODELS.keys())


def norms(model: Any, image: Tensor, block: int, head: int | str) -> Tensor:
    """(N, N): row i is what each token adds to token i."""
    run = vit_torch.run(model, image)
    vectors = torch.einsum("hij,hjd->hijd", run.attentions[block], run.added[block])
    if head == "sum":
        return vectors.sum(0).norm(dim=-1)
    each = vectors.norm(dim=-1)
    return each.mean(0) if head == "mean" else each[head]


@pytest.mark.parametrize("head", ["sum", "mean", 0, 3])
@pytest.mark.parametrize("block", [-1, 0])
@models
def test_a_row_holds_the_lengths_of_what_is_added(changes: dict, block: int, head: int | str) -> None:
    model, pixels = cases.model(changes), cases.images()
    made, prefix = cases.case(model, pixels), len(model.config.prefix)
    rows = torch.stack([norms(model, image, block, head) for image in pixels])  # (B, N, N)
    for query, expected in (((1, 3), rows[:, prefix + 8]), (0, rows[:, 0]), ("mean", rows[:, prefix:].mean(1))):
        ours = value_attention(made, block=block, head=head, query=query)
        assert ours.dtype == torch.float64
        cases.close(ours, expected, 1e-5)  # attention of a trace is in single precision
    expected = rows[:, 0] if model.config.class_token else rows[:, prefix:].mean(1)
    cases.close(value_attention(made, block=block, head=head), expected, 1e-5)


@pytest.mark.parametrize("changes", [{"positions": "rotary", "head_width": 12, "qk_norm": True}, {"qkv_bias": False}])
def test_what_is_added_by_all_tokens_is_the_output_of_the_attention(changes: dict) -> None:
    """With one token, its length is that of the attention's output less the bias, whatever the kind of model."""
    model = cases.model({"class_token": False, "pooling": "mean", "positions": "none", **changes})
    pixels = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = cases.case(model, pixels)
    block, stream = model.blocks[1], made.trace.stream(1)
    added = block.attn(block.norm1(stream), model.angles((1, 1))) - block.attn.proj.bias
    cases.close(value_attention(made, block=1), added.norm(dim=-1))


def test_in_pieces_and_in_batches_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pixels = cases.model({"registers": 2}), cases.images(3)
    whole = value_attention(cases.case(model, pixels), query="mean")
    monkeypatch.setattr("vitviz.model.trace.CHUNK_BYTES", 4 * 5 * 18 * 7)  # seven rows of one image at a time
    for image in (2, 0, 1):
        alone = value_attention(cases.case(model, pixels[image, None]), query="mean")
        cases.close(alone, whole[image, None])


def test_nothing_is_added_by_heads_whose_output_is_not_read() -> None:
    model = cases.model({})
    with torch.no_grad():
        model.blocks[2].attn.proj.weight[:, 17:34] = 0  # the second head's
    made = cases.case(model, cases.images())
    assert not value_attention(made, head=1).any()
    assert value_attention(made, head=0).any()


def test_a_model_without_classifier_has_it_too() -> None:
    made = cases.case(cases.model({"classes": 0}), cases.images())
    assert value_attention(made).shape == (2, 16)


@pytest.mark.parametrize("head", [5, -1, "max", True, None])
def test_heads_that_do_not_exist_are_refused(head: Any) -> None:
    with pytest.raises(ExplainError, match=r"0\.\.4"):
        value_attention(cases.case(cases.model({}), cases.images()), head=head)


def test_blocks_and_queries_that_do_not_exist_are_refused() -> None:
    made = cases.case(cases.model({}), cases.images())
    with pytest.raises(TraceError, match="3"):
        value_attention(made, block=3)
    with pytest.raises(TraceError, match="3 x 5"):
        value_attention(made, query=(3, 0))
