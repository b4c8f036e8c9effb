"""The table of modules: shapes and counts are the model's own, and the model stays as it was."""

import pytest
import tiny
import torch

from vitviz.model.summary import rows, summary

SETTINGS = [
    {},
    {"class_token": False, "pooling": "mean"},
    {"registers": 2, "distillation_token": True, "layer_scale": 0.1, "pooling": "cls+mean", "path_dropout": 0.1},
    {"positions": "none", "classes": 0, "position_grid": (3, 5)},
    {"positions": "sincos", "width": 20},
]


@pytest.mark.parametrize("changes", SETTINGS)
def test_shapes_are_those_of_a_real_run(changes: dict) -> None:
    model, seen = tiny.model(**changes), {}
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: seen.update({name: tuple(output.shape)}))
        for name, module in model.named_modules()
    ]
    model(tiny.images(batch=2))
    for handle in handles:
        handle.remove()
    table = rows(model, batch=2)
    assert len({row.name for row in table}) == len(table)  # each module once
    for row in table:
        assert row.shape == seen[row.name]
        assert row.kind == type(model.get_submodule(row.name)).__name__
    names = [row.name for row in table]
    assert names.index("patch_embed") < names.index("blocks.0") < names.index("blocks.2") < names.index("norm")


@pytest.mark.parametrize("changes", SETTINGS)
def test_counts_add_up(changes: dict) -> None:
    model = tiny.model(**changes)
    table = {row.name: row for row in rows(model)}
    for name, row in table.items():
        assert row.parameters == sum(p.numel() for p in model.get_submodule(name).parameters())
    free = sum(p.numel() for name, p in model.named_parameters() if "." not in name)
    parts = ["patch_embed", "norm", *(f"blocks.{i}" for i in range(tiny.DEPTH)), *(["head"] if model.head else [])]
    parts += ["head_dist"] if model.head_dist else []
    total = sum(p.numel() for p in model.parameters())
    assert sum(table[name].parameters for name in parts) + free == total
    assert summary(model).splitlines()[-1].split()[-1] == f"{total:,}"


def test_every_number_is_printed() -> None:
    model = tiny.model(registers=2)
    text = summary(model, batch=3)
    for row in rows(model, batch=3):
        line = next(line for line in text.splitlines() if line.split()[:1] == [row.name])
        assert " x ".join(map(str, row.shape)) in line
        assert line.endswith(f" {row.parameters:,}")
    assert any(line.split()[0] == "reg_token" and "1 x 2 x 19" in line for line in text.splitlines())


def test_the_model_is_not_run_and_not_changed() -> None:
    model, calls = tiny.model().train(), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    handle = model.patch_embed.register_forward_hook(lambda *_: calls.append(1))
    state = torch.get_rng_state()
    summary(model)
    handle.remove()
    assert not calls
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
