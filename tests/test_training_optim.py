"""Groups, rates, running mean, stochastic depth and recipes, each against a computation of its own."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitviz.config import ViTConfig
from vitviz.layers import Block
from vitviz.model import ViT
from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.depth import Draws, set_dropout, stochastic_depth
from vitviz.training.optim import Average, adamw, decays, factor, groups, layer_of, set_rate
from vitviz.training.recipes import RECIPES, Recipe, recipe

pytestmark = pytest.mark.usefixtures("one_thread")


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def settings(model: nn.Module, made: list[dict[str, Any]], key: str) -> dict[str, float]:
    """A setting of each parameter by its name."""
    names = {id(one): name for name, one in model.named_parameters()}
    return {names[id(one)]: group[key] for group in made for one in group["params"]}


# ---- groups


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_groups_are_those_of_timm(decay: float) -> None:
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import param_groups_layer_decay

    sizes = {"patch_size": 4, "depth": 5, "num_classes": 7}
    theirs = VisionTransformer(img_size=8, embed_dim=12, num_heads=3, reg_tokens=2, init_values=0.1, **sizes)
    ours = ViT(
        ViTConfig(image_size=(8, 8), patch_size=4, width=12, heads=3, depth=5, registers=2, layer_scale=0.1, classes=7)
    )
    made = groups(named(ours), ours.config, Recipe(lr=0.01, layer_decay=decay, weight_decay=0.03))
    expected = param_groups_layer_decay(
        theirs, weight_decay=0.03, layer_decay=decay, no_weight_decay_list=theirs.no_weight_decay()
    )
    assert set(named(ours)) == set(named(theirs))
    scales = settings(theirs, expected, "lr_scale")
    assert settings(ours, made, "peak") == pytest.approx({name: 0.01 * scale for name, scale in scales.items()})
    assert settings(ours, made, "weight_decay") == settings(theirs, expected, "weight_decay")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"distillation_token": True, "registers": 2, "layer_scale": 0.1, "qk_norm": True, "mlp": "swiglu"},
        {"pooling": "attention", "width": 20, "heads": 5, "class_token": False},
        {"norm_pre": True, "pooling": "mean", "norm_pooled": True, "positions": "none"},
    ],
)
def test_every_parameter_is_in_one_group_with_its_rate_and_decay(changes: dict[str, Any]) -> None:
    model = tiny.model(**changes)
    rates = Recipe(lr=2e-3, head_lr=5e-2, layer_decay=0.5, weight_decay=0.1)
    made = groups(named(model), model.config, rates)
    peaks, decay = settings(model, made, "peak"), settings(model, made, "weight_decay")
    assert sum(len(group["params"]) for group in made) == len(peaks) == len(named(model))
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
        matrix = name.endswith(("weight",)) and "norm" not in name
        assert decay[name] == (0.1 if matrix else 0.0), name


def test_frozen_parameters_are_in_no_group_and_nothing_is_refused() -> None:
    model = tiny.model()
    learns = {name: one for name, one in named(model).items() if name.startswith("head")}
    made = groups(learns, model.config, Recipe())
    assert [name for group in made for name in group["names"]] == ["head.weight", "head.bias"]
    with pytest.raises(TrainingError, match="frozen"):
        groups({}, model.config, Recipe())
    assert layer_of("patch_embed.proj.weight", model.config) == 0
    assert not decays("pos_embed", torch.zeros(1, 5, 7))


def test_rates_of_groups_keep_their_proportion() -> None:
    model = tiny.model()
    optimiser = adamw(groups(named(model), model.config, Recipe(lr=1.0, layer_decay=0.5)), Recipe(lr=1.0))
    before = [group["lr"] for group in optimiser.param_groups]
    set_rate(optimiser, 0.25)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.25 * one for one in before])


# ---- the rate of a step


@pytest.mark.parametrize(("steps", "warmup", "final"), [(50, 10, 0.0), (37, 5, 0.1), (20, 0, 0.3), (1, 0, 0.0)])
def test_the_schedule_is_that_of_torch(steps: int, warmup: int, final: float) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps - warmup), eta_min=final)
    expected = [(step + 1) / warmup for step in range(warmup)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimiser does not step
        for _ in range(steps - warmup):
            expected.append(optimiser.param_groups[0]["lr"])
            cosine.step()
    assert [factor(step, steps, warmup, final) for step in range(steps)] == pytest.approx(expected)


@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
def test_the_schedule_rises_then_falls_and_stays_within_bounds(steps: int, share: float, final: float) -> None:
    warmup = int(share * steps)
    rates = [factor(step, steps, warmup, final) for step in range(steps)]
    assert all(0.0 < rate <= 1.0 for rate in rates[: warmup + 1])
    assert all(min(final, 1.0) - 1e-12 <= rate <= 1.0 for rate in rates[warmup:])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)


# ---- the running mean


def test_the_running_mean_is_the_one_by_hand() -> None:
    network = nn.Linear(3, 2)
    network.bias.requires_grad_(False)
    average = Average(network, 0.8)
    mean = network.weight.detach().double().clone()
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 40):
        with torch.no_grad():
            network.weight.add_(torch.randn(2, 3, generator=generator))
        average.update(number)
        decay = min(0.8, (1 + number) / (10 + number))
        mean = decay * mean + (1 - decay) * network.weight.detach().double()
    torch.testing.assert_close(average.network.weight.double(), mean, atol=1e-5, rtol=1e-5)
    assert not average.network.training
    assert not any(one.requires_grad for one in average.network.parameters())
    assert average.network.weight.data_ptr() != network.weight.data_ptr()


# ---- stochastic depth


def blocks_called(model: ViT) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def test_a_block_of_which_both_branches_are_dropped_lets_an_image_pass() -> None:
    model = tiny.model(path_dropout=0.6).train()
    x = torch.randn(12, 4, tiny.WIDTH, generator=torch.Generator().manual_seed(0))
    with stochastic_depth(model) as draws:
        assert draws is not None
        draws.draw(3, 12)
        draws.take(slice(0, 12), x.device)
        block = model.blocks[2]
        scales = draws.part[4:6]  # the last block's attention and MLP
        out = block(x)
        assert {round(one, 3) for one in scales.flatten().tolist()} == {0.0, 2.5}
        for index in range(12):
            attention, mlp = scales[:, index]
            mid = x[index : index + 1] + attention * block.attn(block.norm1(x[index : index + 1]))
            expected = mid + mlp * block.mlp(block.norm2(mid))
            torch.testing.assert_close(out[index], expected[0])
        model.eval()
        torch.testing.assert_close(block(x), x + (y := block.attn(block.norm1(x))) + block.mlp(block.norm2(x + y)))
    assert type(model.blocks[2].drop_path).__name__ == "DropPath"


@contextmanager
def drawn(seed: int, count: int) -> Iterator[tuple[ViT, Draws]]:
    """A model in training whose stochastic depth is drawn for a batch of so many."""
    model = tiny.model(path_dropout=0.5).train()
    with stochastic_depth(model) as draws:
        assert draws is not None
        draws.draw(seed, count)
        yield model, draws


def test_a_forward_pass_that_failed_half_way_does_not_shift_the_next() -> None:
    images = tiny.images(6)
    with drawn(7, 6) as (model, draws):
        draws.take(slice(0, 6), images.device)
        whole = model(images)
        model.blocks[1].drop_path(torch.zeros(6, 4, tiny.WIDTH))  # its attention ran, its MLP did not
        draws.take(slice(0, 6), images.device)
        torch.testing.assert_close(model(images), whole)


def test_draws_do_not_depend_on_how_a_step_is_divided() -> None:
    images = tiny.images(6)
    with drawn(7, 6) as (model, draws):
        draws.take(slice(0, 6), images.device)
        whole = model(images)
        draws.draw(7, 6)
        parts = []
        for start in (0, 2, 4):
            draws.take(slice(start, start + 2), images.device)
            parts.append(model(images[start : start + 2]))
        torch.testing.assert_close(torch.cat(parts), whole)
        draws.draw(8, 6)
        draws.take(slice(0, 6), images.device)
        assert not torch.allclose(model(images), whole)


def test_draws_have_the_rate_and_keep_the_mean() -> None:
    model = tiny.model(path_dropout=0.4)
    with stochastic_depth(model) as draws:
        assert draws is not None
        draws.draw(0, 20_000)
        draws.take(slice(0, 20_000), torch.device("cpu"))
        for row, rate in zip(draws.part, [0.0, 0.0, 0.2, 0.2, 0.4, 0.4], strict=True):
            assert float((row == 0).float().mean()) == pytest.approx(rate, abs=0.02)
            assert float(row.mean()) == pytest.approx(1.0, abs=0.03)
    with stochastic_depth(tiny.model()) as none:
        assert none is None


def test_dropouts_are_set_in_modules_and_config() -> None:
    model = tiny.model(path_dropout=0.3, dropout=0.2)
    set_dropout(model, 0.1, 0.4)
    fresh = ViT(tiny.config(path_dropout=0.4, dropout=0.1))
    assert model.config == fresh.config
    rates = [[block.drop_path.rate for block in blocks_called(one)] for one in (model, fresh)]
    assert rates[0] == pytest.approx(rates[1])
    ps = [[one.p for one in vit.modules() if isinstance(one, nn.Dropout)] for vit in (model, fresh)]
    assert ps[0] == ps[1]
    assert set(ps[0]) == {0.1}


# ---- recipes


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_survive_json_and_fit_a_model(name: str) -> None:
    known = RECIPES[name]
    data = json.loads(json.dumps(known.recipe.to_dict()))
    assert Recipe.from_dict(data) == known.recipe
    assert known.recipe.name == name
    assert known.about
    if known.model:
        ViTConfig(**known.model)
    for reached in known.reached:
        assert 0 < reached.top1 <= 1
        assert reached.minutes > 0


def test_a_recipe_is_changed_and_refused() -> None:
    assert recipe("fashion-mnist", epochs=2, lr=0.5) == dataclasses.replace(
        RECIPES["fashion-mnist"].recipe, epochs=2, lr=0.5
    )
    with pytest.raises(TrainingError, match="tiny-cifar10"):
        recipe("nothing")
    with pytest.raises(TrainingError, match="nothing"):
        Recipe.from_dict({"nothing": 1})
    assert Recipe().augments is False
    assert Recipe(augment=Augment(group=4)).augments is False
    assert Recipe(augment=Augment(flip=True)).augments is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 2.5},
        {"batch": True},
        {"lr": 0.0},
        {"lr": math.nan},
        {"lr": "fast"},
        {"head_lr": -1.0},
        {"weight_decay": -0.1},
        {"betas": (0.9,)},
        {"betas": (0.9, 1.0)},
        {"warmup": 31.0},
        {"smoothing": 1.0},
        {"final_lr": 1.1},
        {"ema": 1.0},
        {"layer_decay": 0.0},
        {"layer_decay": 1.1},
        {"accumulate": 3, "batch": 8},
        {"precision": "float8"},
        {"unfreeze_last": -1},
        {"distill": "warm"},
        {"alpha": 0.5},
        {"seed": -1},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(wrong))):
        Recipe(**wrong)
