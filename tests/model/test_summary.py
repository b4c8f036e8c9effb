"""The table of modules: shapes and counts are the model's own, and the model stays as it was."""

import pytest
import tiny
import torch

from vitviz.model.config import preset
from vitviz.model.summary import rows, summary, totals
from vitviz.model.vit import ViT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("changes", [*tiny.KINDS.values(), {"classes": 0, "position_grid": (3, 5)}], ids=str)
def test_shapes_are_those_of_a_real_run_and_counts_add_up(changes: dict) -> None:
    model, seen = tiny.model(**changes), {}
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: seen.update({name: tuple(output.shape)}))
        for name, module in model.named_modules()
    ]
    model(tiny.images(batch=2))
    for handle in handles:
        handle.remove()
    table = {row.name: row for row in rows(model, batch=2)}
    assert len(table) == len(rows(model, batch=2))  # each module once
    for name, row in table.items():
        assert row.shape == seen[name]
        assert row.kind == type(model.get_submodule(name)).__name__
        assert row.parameters == sum(p.numel() for p in model.get_submodule(name).parameters())
    names = list(table)
    assert names.index("patch_embed") < names.index("blocks.0") < names.index("blocks.2") < names.index("norm")
    free = sum(p.numel() for name, p in model.named_parameters() if "." not in name)
    parts = [name for name in table if name.count(".") == name.startswith("blocks")]
    total = sum(p.numel() for p in model.parameters())
    assert sum(table[name].parameters for name in parts) + free == total
    sums, foot = totals(model), {line.split("  ")[0]: line.split()[1] for line in summary(model).splitlines()[-6:]}
    assert foot["parameters"] == foot["trainable"] == f"{total:,}"
    assert foot["multiply-adds"] == f"{sums['multiply_adds']:,}"
    assert sums["parameter_bytes"] == 4 * total
    model.patch_embed.requires_grad_(False)
    assert totals(model)["trainable"] == total - table["patch_embed"].parameters


def test_every_number_is_printed_and_the_model_is_not_run() -> None:
    model = tiny.model(registers=2).train()
    model.patch_embed.register_forward_hook(lambda *_: pytest.fail("it ran"))
    text = summary(model, batch=3)
    for row in rows(model, batch=3):
        line = next(line for line in text.splitlines() if line.split()[:1] == [row.name])
        assert " x ".join(map(str, row.shape)) in line
        assert " x ".join(map(str, row.input)) in line
        assert f" {row.parameters:,}" in line
        if row.multiply_adds:
            assert line.endswith(f" {row.multiply_adds:,}")
    assert any(line.split()[0] == "reg_token" and "1 x 2 x 19" in line for line in text.splitlines())
    assert model.training


def test_multiply_adds_are_those_of_the_formula_and_of_a_published_model() -> None:
    """A linear layer from a to b over n tokens takes n a b; attention N² d twice for each head."""
    model, batch = tiny.model(registers=2), 3
    config = model.config
    table = {row.name: row for row in rows(model, batch)}
    patches = config.grid[0] * config.grid[1]
    tokens, width, inner = len(config.prefix) + patches, config.width, config.heads * config.head_size
    block = tokens * (4 * width * inner + 2 * width * config.mlp_width) + 2 * tokens**2 * inner
    embed = patches * config.channels * config.patch_size**2 * width
    assert table["blocks.1"].multiply_adds == batch * block
    assert table["patch_embed"].multiply_adds == batch * embed
    everything = batch * (config.depth * block + embed + width * config.classes)
    assert totals(model, batch)["multiply_adds"] == everything
    with torch.device("meta"):
        base = totals(ViT(preset("base")))
    assert base["parameters"] == 86_566_888  # torchvision: 768 more, a position of the class token
    assert round(base["multiply_adds"] / 1e9, 1) == 17.6  # DeiT-B in its paper's table
