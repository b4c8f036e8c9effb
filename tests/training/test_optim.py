"""Parameter groups, learning rates, the running mean and recipes, each against a computation of its own."""

import dataclasses
import json
import math
import warnings
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.training import TrainingError
from vitviz.training.network import freeze
from vitviz.training.optim import make_optimizer, warmup_then
from vitviz.training.recipes import RECIPES, Recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def by_name(model: nn.Module, groups: Any, key: str) -> dict[str, float]:
    """Return a setting of each parameter by its name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group[key] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_groups_are_those_of_timm(decay: float) -> None:
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import param_groups_layer_decay

    theirs = VisionTransformer(
        img_size=8, embed_dim=12, num_heads=3, reg_tokens=2, init_values=0.1, patch_size=4, depth=5, num_classes=7
    )
    sizes = {"image_size": (8, 8), "patch_size": 4, "width": 12, "heads": 3, "depth": 5, "classes": 7}
    ours = ViT(ViTConfig(**sizes, registers=2, layer_scale=0.1))
    groups = make_optimizer(ours, Recipe(lr=0.01, layer_decay=decay, weight_decay=0.03)).param_groups
    expected = param_groups_layer_decay(
        theirs, weight_decay=0.03, layer_decay=decay, no_weight_decay_list=theirs.no_weight_decay()
    )
    scales = by_name(theirs, expected, "lr_scale")
    assert set(scales) == {name for name, _ in ours.named_parameters()}
    assert by_name(ours, groups, "lr") == pytest.approx({name: 0.01 * scale for name, scale in scales.items()})
    assert by_name(ours, groups, "weight_decay") == by_name(theirs, expected, "weight_decay")


@pytest.mark.parametrize(
    "changes",
    [
        {"distillation_token": True, "registers": 2, "layer_scale": 0.1, "qk_norm": True, "mlp": "swiglu"},
        {"pooling": "attention", "width": 20, "heads": 5, "class_token": False},
        {"norm_pre": True, "pooling": "mean", "norm_pooled": True, "positions": "none"},
    ],
)
def test_every_parameter_is_in_one_group_with_its_rate_and_decay(changes: dict[str, Any]) -> None:
    model = tiny.model(**changes)
    groups = make_optimizer(model, Recipe(lr=2e-3, head_lr=5e-2, layer_decay=0.5, weight_decay=0.1)).param_groups
    peaks, decay = by_name(model, groups, "lr"), by_name(model, groups, "weight_decay")
    assert sum(len(group["params"]) for group in groups) == len(peaks) == len(list(model.parameters()))
    depth = model.config.depth
    for name in peaks:
        if name.startswith(("head", "attn_pool")):
            expected = 5e-2
        elif name.startswith("blocks."):
            expected = 2e-3 * 0.5 ** (depth - int(name.split(".")[1]))
        elif name.startswith("norm."):
            expected = 2e-3 * (1.0 if changes.get("norm_pooled") else 0.5)
        else:
            expected = 2e-3 * 0.5 ** (depth + 1)
        assert peaks[name] == pytest.approx(expected), name
        assert decay[name] == (0.1 if name.endswith("weight") and "norm" not in name else 0.0), name
    freeze(model, 0)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(by_name(model, make_optimizer(model, Recipe()).param_groups, "lr")) == learning != set(peaks)


@pytest.mark.parametrize(
    ("steps", "warmup", "final"), [(50, 10, 0.0), (37, 5, 0.1), (20, 0, 0.3), (9, 9, 0.2), (1, 0, 0.0)]
)
def test_the_cosine_schedule_is_that_of_torch(steps: int, warmup: int, final: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warmup), eta_min=final)
    expected = [(step + 1) / warmup for step in range(warmup)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer does not step
        for _ in range(steps - warmup):
            expected.append(optimizer.param_groups[0]["lr"])
            cosine.step()
    assert [*map(warmup_then("cosine", steps, warmup, final), range(steps))] == pytest.approx(expected)


def test_other_schedules_and_sgd_are_torchs() -> None:
    line, flat = (warmup_then(name, 20, 4, 0.1) for name in ("linear", "constant"))
    assert [line(step) for step in (0, 3, 4, 12, 20)] == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1])
    assert [flat(step) for step in (0, 4, 19)] == [0.25, 1.0, 1.0]
    sgd = make_optimizer(tiny.model(), Recipe(optimizer="sgd", lr=0.25, betas=(0.75, 0.5), weight_decay=0.125))
    assert isinstance(sgd, torch.optim.SGD)
    assert {(group["momentum"], group["nesterov"], group["lr"]) for group in sgd.param_groups} == {(0.75, True, 0.25)}
    assert {group["weight_decay"] for group in sgd.param_groups} == {0.0, 0.125}


def test_named_recipes_survive_json_and_fit_a_model() -> None:
    for name, known in RECIPES.items():
        assert Recipe(**json.loads(json.dumps(dataclasses.asdict(known.recipe)))) == known.recipe
        assert known.recipe.name == name
        assert known.about
        assert not known.reached or "version 0.1.0" in known.reached
        if known.model:
            ViTConfig(**known.model)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"epochs": 0}, {"epochs": 2.5}, {"batch": True}, {"lr": 0.0}, {"lr": math.nan}, {"lr": "fast"}),
        *({"head_lr": -1.0}, {"weight_decay": -0.1}, {"betas": (0.9,)}, {"betas": (0.9, 1.0)}, {"warmup": 31.0}),
        *({"smoothing": 1.0}, {"final_lr": 1.1}, {"ema": 1.0}, {"layer_decay": 0.0}, {"layer_decay": 1.1}),
        *({"accumulate": 3, "batch": 8}, {"precision": "float8"}, {"unfreeze_last": -1}, {"distill": "warm"}),
        *({"alpha": 0.5}, {"seed": -1}, {"seed": 2**63}, {"low_resolution": 1.5}, {"balance": -0.5}),
        *({"crop_padding": 1.5}, {"policy": "auto"}, {"erase": "half"}, {"mixup": -1}, {"cutmix": math.inf}),
        *({"resized_crop": (0, 1)}, {"resized_crop": (0.8, 0.5)}, {"resized_crop": (0.5,)}),
        *({"crop_padding": 4, "resized_crop": (0.5, 1.0)}, {"patch_dropout": 0.5, "unfreeze_last": 1}),
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(wrong))):
        Recipe(**wrong)
