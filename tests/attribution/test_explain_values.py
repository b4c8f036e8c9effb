"""The value-weighted attention against vectors that are written out: one for each head, query and key."""

from __future__ import annotations

import functools

import explain_cases as cases
import pytest
import reference_vit as reference
import tiny
import torch
from pairwise import pairs
from torch import Tensor

from vitviz.attribution.values import value_attention

pytestmark = pytest.mark.usefixtures("one_thread")


@functools.cache
def vectors(kind: str, block: int) -> Tensor:
    """What each token j adds to each token i through each head: (B, H, i, j, D)."""
    model = cases.model(kind)
    run, p = reference.run(model, cases.images()), reference.parameters(model)
    name = f"blocks.{range(3)[block]}."
    weight = p[name + "attn.proj.weight"].unflatten(1, (tiny.HEADS, -1))  # (D, H, d)
    added = torch.einsum("bhjd,ohd->bhjo", run.values[block], weight) * p.get(name + "ls1.gamma", 1.0)
    return run.attentions[block].tensor.detach()[..., None] * added[:, :, None]


@pytest.mark.parametrize(("head", "block", "kind"), pairs(["sum", "mean", 0, 3], [-1, 0], list(tiny.KINDS)))
def test_a_row_holds_the_lengths_of_what_is_added(head: int | str, block: int, kind: str) -> None:
    model = cases.model(kind)
    made, prefix, each = cases.case(model, cases.images()), len(model.config.prefix), vectors(kind, block)
    lengths = each.norm(dim=-1)  # (B, H, N, N)
    rows = {"sum": each.sum(1).norm(dim=-1), "mean": lengths.mean(1)}.get(head)
    rows = lengths[:, head] if rows is None else rows
    for query, expected in (
        ((1, 3), rows[:, prefix + 8]),
        (0, rows[:, 0]),
        ("mean", rows[:, prefix:].mean(1)),
        (None, rows[:, 0] if model.config.class_token else rows[:, prefix:].mean(1)),
    ):
        ours = value_attention(made, block=block, head=head, query=query)
        assert ours.dtype == torch.float64
        cases.close(ours, expected, 1e-5)  # attention of a trace is in single precision


def test_in_pieces_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cases.case(cases.model("registers, rotary"), cases.images(3))
    whole = value_attention(made, query="mean")
    monkeypatch.setattr("vitviz.model.trace.CHUNK_BYTES", 4 * 5 * 18 * 7)  # seven rows of one image at a time
    cases.close(value_attention(made, query="mean"), whole)
