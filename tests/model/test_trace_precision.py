"""Rows of attention sum to 1, and those of a model in double precision are as precise as it, where logits are large."""

from __future__ import annotations

import pytest
import tiny
import torch

from vitviz.model.vit import ViT


def large_logits(dtype: torch.dtype) -> ViT:
    """Return a model whose keys share an offset, as those of DINOv2 do: logits of 40 and more."""
    model = tiny.model()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 6.0
            block.attn.qkv.bias.view(3, -1)[1] += 30.0
    return model.to(dtype)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-7)])
def test_rows_sum_to_one_and_columns_agree_with_them(dtype: torch.dtype, close: float) -> None:
    trace = large_logits(dtype).trace(tiny.images(1).to(dtype))
    logits = [trace.block(block).queries.double() @ trace.block(block).keys.double().mT for block in range(trace.depth)]
    assert max(float(one.abs().max()) for one in logits) > 40
    for block, exact in enumerate(logits):
        rows = trace.attention(block)
        assert float((rows.double().sum(-1) - 1).abs().max()) < 5e-7
        torch.testing.assert_close(rows.double(), exact.softmax(-1), atol=close, rtol=0)
        torch.testing.assert_close(trace.row(block, (1, 2)), rows[:, :, trace.token((1, 2))], atol=close, rtol=0)
        torch.testing.assert_close(trace.column(block, "cls"), rows[..., 0], atol=close, rtol=0)
