"""The short last block: the same logits and the same gradients as the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import nn

from vitviz.model import ViT
from vitviz.training.features import Tail, Whole, trunk
from vitviz.training.short import ShortTail, ShortWhole, network, tokens_read

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled, registers, layer scale": {"distillation_token": True, "registers": 2, "layer_scale": 0.1},
    "rotary, normed queries and keys, no biases": {
        "positions": "rotary",
        "head_width": 12,
        "qk_norm": True,
        "qkv_bias": False,
        "mlp": "swiglu",
        "registers": 3,
    },
    "normed after pooling": {"norm_pooled": True, "norm_pre": True},
    "read at all tokens": {"pooling": "cls+mean"},
    "mean": {"pooling": "mean", "class_token": False},
    "attention pooling": {"pooling": "attention", "width": 20, "class_token": False},
}


def gradients(model: ViT, run: nn.Module, inputs: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The logits of each classifier, and the gradient of a loss that weighs every one of them differently."""
    model.zero_grad()
    logits = run(inputs)
    generator = torch.Generator().manual_seed(0)
    sum((one * torch.randn(one.shape, generator=generator)).sum() for one in logits).backward()
    return [one.detach() for one in logits], {
        name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None
    }


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("last", [None, 0, 1, 2])
def test_logits_and_gradients_are_those_of_the_model(changes: dict[str, Any], last: int | None) -> None:
    model = tiny.model(**changes).double().train()
    inputs = tiny.images().double()
    if last is None:
        pair, short = Whole(model), network(model, None, None)
        assert isinstance(short, ShortWhole)
    else:
        inputs = trunk(model, inputs, last)
        pair, short = Tail(model, last, tiny.GRID), network(model, last, tiny.GRID)
        assert isinstance(short, ShortTail)
    expected, found = gradients(model, pair, inputs), gradients(model, short, inputs)
    torch.testing.assert_close(found[0], expected[0], atol=1e-9, rtol=1e-9)
    assert found[1].keys() == expected[1].keys()
    for name, one in expected[1].items():
        torch.testing.assert_close(found[1][name], one, atol=1e-9, rtol=1e-7, msg=name)


def test_less_is_computed() -> None:
    """The MLP of the last block sees the tokens that are read, and no others."""
    seen: dict[str, tuple[int, ...]] = {}
    for name, changes in MODELS.items():
        model = tiny.model(**changes)
        hook = model.blocks[-1].mlp.register_forward_pre_hook(
            lambda _, args, name=name: seen.update({name: args[0].shape})
        )
        ShortWhole(model)(tiny.images())
        hook.remove()
        prefix, patches = len(model.config.prefix), tiny.GRID[0] * tiny.GRID[1]
        count = tokens_read(model.config)
        assert seen[name][1] == (prefix + patches if count is None else count)
    assert seen["plain"][1] == 1
    assert seen["distilled, registers, layer scale"][1] == 2
