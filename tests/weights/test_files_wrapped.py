"""One file of weights as people really write it: wrapped, in another precision, named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm_models import vit
from torch import nn
from weight_files import SQUARE, TIMM, State, assert_equal, state_of, written

import vitviz
from vitviz.cli.main import main
from vitviz.weights.checks import ConvertError
from vitviz.weights.files import NESTS

pytestmark = pytest.mark.usefixtures("one_thread")


WRAPPED: dict[str, Callable[[State], Any]] = {
    **{nest: (lambda state, nest=nest: {nest: state, "epoch": 3, "lr": [0.1, None]}) for nest in NESTS},
    "two deep": lambda state: {"state_dict": {"model": state}},
    "teacher first": lambda state: {"student": {"a": torch.zeros(2)}, "teacher": state, "model": {"b": torch.zeros(1)}},
    "module.": lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
    "module.backbone.": lambda state: {"model": {f"module.backbone.{name}": tensor for name, tensor in state.items()}},
    "_orig_mod.": lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
    "parameters": lambda state: {name: nn.Parameter(tensor) for name, tensor in state.items()},
    "half": lambda state: {name: tensor.half().float() for name, tensor in state.items()},
    "not contiguous": lambda state: {
        name: tensor.t().clone().t() if tensor.ndim == 2 else tensor for name, tensor in state.items()
    },
    "with a projection head": lambda state: {
        "teacher": {f"backbone.{name}": tensor for name, tensor in state.items()}
        | {"dino_head.mlp.0.weight": torch.zeros(2, 3)}
    },
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_wrappers_are_taken_off(tmp_path: Path, wrap: str) -> None:
    theirs = vit(**SQUARE, num_classes=0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.half().float())
    path = tmp_path / "weights.pth"
    torch.save(WRAPPED[wrap](state_of(theirs)), path)
    model = vitviz.load(path, heads=5)
    assert_equal(model, theirs)
    assert model.pretrained is not None
    assert ("weights under" in model.pretrained.source) == (
        wrap in NESTS or "teacher" in wrap or wrap in ("two deep", "module.backbone.", "with a projection head")
    )


def test_a_prefix_that_one_tensor_lacks_stays(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in state_of(vit(**SQUARE)).items()}
    with pytest.raises(ConvertError, match="Expected names that timm"):
        vitviz.load(written(state | {"norm2.weight": torch.zeros(2)}, tmp_path, ".pt"), heads=5)
    classifier = {f"backbone.{name}": tensor for name, tensor in state_of(vit(**SQUARE, num_classes=0)).items()}
    with pytest.raises(ConvertError, match="Expected names that timm"):  # not dropped in silence
        vitviz.load(written(classifier | {"head.weight": torch.zeros(3, 60)}, tmp_path, ".pt"), heads=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = vit(**SQUARE)
    state = {name: tensor.to(dtype) for name, tensor in state_of(theirs).items()}
    theirs.load_state_dict(state)
    for suffix in (".pt", ".bin", ".safetensors"):
        model = vitviz.load(written(state, tmp_path, suffix), heads=5)
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
        assert_equal(model, theirs)


# --- the command line


def test_the_command_line_passes_family_and_heads_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(state_of(TIMM["clip"][0]()), tmp_path, ".pt")
    assert main(["summary", "--model", str(path), "--heads", "5"]) == 2
    assert "--family" in capsys.readouterr().err
    assert main(["summary", "--model", str(path), "--heads", "5", "--family", "clip"]) == 0
    assert main(["summary", "--heads", "5"]) == 2
    assert "brings its own settings" in capsys.readouterr().err
