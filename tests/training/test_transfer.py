"""A model made from another: what is kept, what is new, what it says of itself, and what of it learns."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ModelError
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.losses import training_loss
from vitviz.training.network import Network, freeze, learning_modules
from vitviz.training.recipes import Recipe
from vitviz.training.transfer import resized, start_from
from vitviz.weights.checkpoint import load_folder, save

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, PATCH = (2, 3), 5
LABELS = ("ox", "fig", "ray")
FEED = Preprocess(height=10, width=15, mode="crop", resize=12, multiple=5, mean=(0.1, 0.2, 0.3))
KINDS = {
    "class token": {},
    "registers, cls+mean": {"pooling": "cls+mean", "registers": 3},
    "mean": {"pooling": "mean", "class_token": False},
    "attention pooling": {"pooling": "attention", "norm_pooled": True, "width": 35},
    "rotary": {"positions": "rotary", "head_width": 12},
    "sines, pre-norm": {"positions": "sincos", "width": 20, "norm_pre": True},
    "distillation token": {"distillation_token": True},
    "no classifier": {"classes": 0},
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def source(seed: int = 0, **changes: object) -> ViT:
    made = tiny.model(seed, **({"grid": GRID, "patch": PATCH} | changes))
    labels = tuple(f"class {number}" for number in range(made.config.classes))
    made.pretrained = Pretrained(
        name="old", preprocess=FEED, labels=labels, class_ids=labels, licence="MIT", source="somewhere"
    )
    return made


def images(grid: tuple[int, int] = GRID) -> Tensor:
    return tiny.images(4, grid=grid, patch=PATCH)


def final(model: ViT, some: Tensor) -> Tensor:
    tokens, grid = model.embed(some)
    return model.encode(tokens, model.angles(grid))


# --- a new head


@kinds
def test_everything_but_the_head_is_the_sources(kind: dict) -> None:
    old = source(**kind)
    before = copy.deepcopy(old.state_dict())
    new = start_from(old, LABELS, name="new")
    assert not new.training
    assert new.config == replace(old.config, classes=3)
    assert final(new, images()).equal(final(old, images()))
    read = final(new, images())
    assert new.read_out(read).equal(old.read_out(read))
    assert new(images()).equal(torch.zeros(4, 3))  # a head of zeros: no class is preferred
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 1.0
    assert all(value.equal(before[name]) for name, value in old.state_dict().items())  # a copy shares nothing


def test_the_record_says_what_it_was_made_from(tmp_path: Path) -> None:
    new = start_from(source(), LABELS, name="new", class_ids=("n1", "n2", "n3"), data="three folders")
    about = new.pretrained
    assert (about.name, about.labels, about.class_ids) == ("new", LABELS, ("n1", "n2", "n3"))
    assert about.preprocess == FEED
    assert about.licence == "MIT"
    for word in ("old", "somewhere", "3 classes", "three folders"):
        assert word in about.source
    save(new, tmp_path)
    again = load_folder(tmp_path)
    assert again.pretrained == about
    assert final(again, images()).equal(final(new, images()))
    assert start_from(source(), LABELS, name="new", licence="CC0").pretrained.licence == "CC0"


def test_a_source_without_a_record_needs_preprocessing() -> None:
    bare = source()
    bare.pretrained = None
    with pytest.raises(TrainingError, match="preprocess"):
        start_from(bare, LABELS, name="new")
    assert start_from(bare, LABELS, name="new", preprocess=FEED).pretrained.preprocess == FEED


def test_half_precision_is_trained_in_float32() -> None:
    new = start_from(source().half(), LABELS, name="new")
    assert {parameter.dtype for parameter in new.parameters()} == {torch.float32}
    assert new.cls_token.equal(source().cls_token.half().float())


def test_the_callers_random_numbers_stay() -> None:
    old = source(width=35)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    start_from(old, LABELS, name="new", pooling="attention", seed=3)
    assert torch.rand(1).equal(expected)


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls+mean", "attention"])
@pytest.mark.parametrize("old", [{}, {"pooling": "attention"}], ids=["from cls", "from attention"])
def test_another_pooling(old: dict, pooling: str) -> None:
    sizes = {"width": 35, "registers": 1, **old}
    first = source(**sizes)
    new = start_from(first, LABELS, name="new", pooling=pooling)
    assert new.config.pooling == pooling
    assert final(new, images()).equal(final(first, images()))
    assert (new.attn_pool is not None) == (pooling == "attention")
    if pooling == "attention" and old:
        assert all(a.equal(b) for a, b in zip(new.attn_pool.parameters(), first.attn_pool.parameters(), strict=True))
    elif pooling == "attention":
        weights = [start_from(first, LABELS, name="new", pooling=pooling, seed=n).attn_pool.latent for n in (0, 0, 1)]
        assert weights[0].equal(weights[1])
        assert not weights[0].equal(weights[2])
        assert bool(weights[0].any())


@pytest.mark.parametrize("labels", [(), ("ox",)])
def test_one_class_is_none(labels: tuple[str, ...]) -> None:
    with pytest.raises(TrainingError):
        start_from(source(), labels, name="new")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TrainingError):
        start_from(source(), LABELS, name="new", class_ids=("n1", "n2"))
    with pytest.raises(ModelError):
        start_from(source(pooling="mean", class_token=False), LABELS, name="new", pooling="cls")
    with pytest.raises(ModelError):
        start_from(source(), LABELS, name="new", image_size=(11, 15))


# --- another size


@kinds
@pytest.mark.parametrize("grid", [(5, 7), (1, 2)])
def test_at_another_size_it_sees_what_the_source_would(kind: dict, grid: tuple[int, int]) -> None:
    old = source(**kind)
    size = (grid[0] * PATCH, grid[1] * PATCH)
    new = start_from(old, LABELS, name="new", image_size=size)
    assert new.config.image_size == size
    assert new.config.learned_grid == grid
    assert final(new, images(grid)).equal(final(old, images(grid)))
    if new.pos_embed is not None:
        assert new.pos_embed.shape[1] == grid[0] * grid[1]  # a patch, a position that is its own
    assert (new.pretrained.preprocess.height, new.pretrained.preprocess.width) == size


@pytest.mark.parametrize("antialias", [False, True])
def test_positions_are_interpolated_as_timm_does(antialias: bool) -> None:
    old = source(grid=(7, 11), position_antialias=antialias)
    new = start_from(old, LABELS, name="new", image_size=(15, 20))
    expected = resample_abs_pos_embed(
        old.pos_embed, [3, 4], [7, 11], num_prefix_tokens=0, interpolation="bicubic", antialias=antialias
    )
    torch.testing.assert_close(new.pos_embed, expected, rtol=1e-6, atol=1e-6)


def test_a_table_of_another_grid_stays_at_the_native_size() -> None:
    """DINOv2 has 37 x 37 positions and is fed 16 x 16 patches: nothing is lost where nothing has to be."""
    old = source(position_grid=(5, 7))
    for size in (None, old.config.image_size):
        new = start_from(old, LABELS, name="new", image_size=size)
        assert new.config.position_grid == (5, 7)
        assert new.pos_embed.equal(old.pos_embed)
    other = start_from(old, LABELS, name="new", image_size=(20, 20))
    assert other.config.position_grid == (5, 7)
    assert other.pos_embed.equal(old.pos_embed)


def test_a_head_is_kept_for_the_same_classes_only() -> None:
    old = source(classes=3)
    labels = old.pretrained.labels
    new = start_from(old, labels, name="new", keep_head=True)
    assert new(images()).equal(old(images()))
    for wrong, pooling in ((LABELS, None), (labels, "mean")):
        with pytest.raises(TrainingError, match="same 3 classes"):
            start_from(old, wrong, name="new", pooling=pooling, keep_head=True)


@pytest.mark.parametrize(
    ("settings", "size", "expected"),
    [
        ({"mode": "crop", "resize": 256, "height": 224, "width": 224}, (112, 112), (112, 112, 128)),
        ({"mode": "crop", "resize": 224, "height": 224, "width": 224}, (99, 131), (99, 131, 99)),
        ({"mode": "squash"}, (28, 42), (28, 42, None)),
        ({"mode": "native", "multiple": 14}, (140, 140), (140, 140, None)),
    ],
)
def test_preprocessing_at_another_size(settings: dict, size: tuple[int, int], expected: tuple) -> None:
    new = resized(Preprocess(**settings), size)
    assert (new.height, new.width, new.resize) == expected
    assert (new.mean, new.mode) == (Preprocess().mean, settings["mode"])


# --- what learns


def frozen(model: ViT, last: int | None) -> set[str]:
    freeze(model, last)
    return {name for name, one in model.named_parameters() if one.requires_grad}


@kinds
def test_what_learns_is_what_is_last(kind: dict) -> None:
    model = start_from(source(**kind), LABELS, name="new")
    heads = {"head"} | ({"head_dist"} if "distillation_token" in kind else set())
    pool = {"attn_pool"} if "attention" in str(kind) else set()
    assert set(learning_modules(model, 0)) == heads | pool | ({"norm"} if pool else set())
    assert set(learning_modules(model, 2)) == heads | pool | {"norm", "blocks.1", "blocks.2"}
    assert len(frozen(model, None)) == len(list(model.parameters()))
    for last in (0, 1, 3):
        names = frozen(model, last)
        assert {name for name in names if name.startswith("blocks.")} == {
            name
            for name, _ in model.named_parameters()
            for at in range(3 - last, 3)
            if name.startswith(f"blocks.{at}.")
        }
        assert not {"cls_token", "pos_embed", "patch_embed.proj.weight", "reg_token", "norm_pre.weight"} & set(names)


def test_ten_blocks_are_not_confused_with_one() -> None:
    model = source(depth=11)
    names = frozen(model, 10)
    assert not any(name.startswith("blocks.0.") for name in names)
    assert {name.split(".")[1] for name in names if name.startswith("blocks.")} == {str(at) for at in range(1, 11)}


@kinds
def test_frozen_parts_stay_and_the_others_learn(kind: dict) -> None:
    model = start_from(source(**kind), LABELS, name="new")
    names = frozen(model, 1)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01, weight_decay=0.1)
    targets = torch.eye(3)[[0, 1, 2, 0]]
    network, losses = Network(model, None, GRID), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = training_loss(network(images()), targets, Recipe())
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[0] == pytest.approx(np.log(3), abs=1e-5)  # a head of zeros begins at chance
    assert losses[-1] < 0.3
    assert {name for name, value in model.state_dict().items() if not value.equal(before[name])} == names
