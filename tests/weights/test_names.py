"""Every model of timm with attention, by name, matches timm or is refused with a message."""

import inspect
from contextlib import suppress
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from vitviz.weights.checks import CheckpointError
from vitviz.weights.from_timm import convert_timm

pytestmark = [pytest.mark.tier("names"), pytest.mark.usefixtures("one_thread")]

SMALL: list[dict[str, Any]] = [{"depth": 2, "embed_dim": 60, "num_heads": 5}, {"depth": 2}, {}]  # the first that works


def has_attention(module: str) -> bool:
    """Return whether a module of timm's models defines or imports an attention layer."""
    source = inspect.getsource(__import__(f"timm.models.{module}", fromlist=[module]))
    return "Attention" in source or "Attn" in source


MODULES = [name for name in timm.list_modules() if has_attention(name)]
NAMES = [name for module in MODULES for name in timm.list_models(module=module)]


def build(name: str) -> nn.Module:
    """Return a model with random weights, as small as possible."""
    for sizes in SMALL:
        with suppress(TypeError, RuntimeError, AssertionError, ValueError, IndexError, AttributeError, KeyError):
            return timm.create_model(name, pretrained=False, **sizes).eval()
    raise AssertionError(f"timm cannot build {name}")


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_model_matches_timm_or_is_refused(name: str, record_property: Any) -> None:
    theirs, refusal = build(name), ""
    try:
        ours = convert_timm(theirs)
    except CheckpointError as error:
        refusal = str(error)
    record_property("refusal", refusal)
    if refusal:
        assert refusal.startswith("Expected")
        return
    images: Tensor = torch.randn(1, ours.config.channels, *ours.config.image_size)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
