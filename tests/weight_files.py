"""Single files of weights in timm's names, for the tests that load them: which families, written how, equal to what."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.layers import LayerNorm
from timm_models import FAMILIES, ROTARY
from torch import Tensor, nn

from vitviz.model.vit import ViT

State = dict[str, Tensor]
PIXELS = 35  # the tiny models of timm see 7 x 7 patches of 5
SQUARE: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-6)}
EPS5: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-5)}
DINOV3: dict[str, Any] = ROTARY | EPS5 | {"rope_temperature": 100.0}


def state_of(model: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def written(state: State, folder: Path, suffix: str) -> Path:
    path = folder / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=suffix != ".bin")  # .bin: as torch wrote before 1.6
    return path


@torch.no_grad()
def assert_equal(model: ViT, theirs: Callable[[Tensor], Tensor], side: int = PIXELS) -> None:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(5))
    expected = theirs(images)
    assert expected[0].std() > 1e-2
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-4)
    assert not model.training


def of(family: str, **changes: Any) -> Callable[[], nn.Module]:
    """A family of `timm_models` as it is published: of squares, with its usual epsilons and rotations."""
    rotary = "dinov3" in family
    usual = EPS5 | {"rope_temperature": 100.0} if rotary else EPS5 if "clip" in family else SQUARE
    return partial(FAMILIES[family], **(usual | changes))


# Name: the model, and the family that has to be named because names and shapes do not tell it.
TIMM: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    **{name: (of(name), None) for name in ("vit", "vit without a classifier", "vit without biases", "qk norm")},
    **{name: (of(name), None) for name in ("deit", "deit3", "dinov2", "dinov2 giant")},
    "dinov2 with registers": (of("dinov2 with registers", reg_tokens=4), None),
    "mae, fine-tuned": (of("gap with a class token"), None),
    "gap with registers": (of("gap", fc_norm=False), None),
    "gap": (of("gap, norm before", fc_norm=None), "vit"),
    "clip": (of("clip with exact gelu"), "clip"),
    "clip, quick gelu": (of("clip"), "clip-quickgelu"),
    "siglip": (of("siglip with exact gelu"), "siglip"),
    "siglip 2": (of("siglip"), "siglip-tanh"),
    "siglip gap": (of("gap, norm before", act_layer="gelu_tanh"), "siglip-tanh"),
    "dinov3": (of("dinov3", num_classes=0), None),
    "dinov3 with biases": (of("dinov3 with biases", global_pool="avg"), None),
    "dinov3 swiglu": (of("dinov3 swiglu"), None),
}
