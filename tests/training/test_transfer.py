"""Test starting from another model, freezing, the training network, and cached features."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
import training_cases as cases
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ModelError
from vitviz.model.layers import Block
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.data import Data
from vitviz.training.features import FeatureCache
from vitviz.training.network import MeanLogits, Network, backbone_features, freeze, learning_modules, set_dropout
from vitviz.training.transfer import start_from
from vitviz.weights.checkpoint import load_folder, save
from vitviz.writing import WritingError

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, PATCH = (2, 3), 5
LABELS = ("ox", "fig", "ray")
PREPROCESS = Preprocess(height=10, width=15, mode="crop", resize=12, multiple=5, mean=(0.1, 0.2, 0.3))
KINDS = tiny.KINDS | {"no classifier": {"classes": 0}}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def source(**changes: object) -> ViT:
    model = tiny.model(**({"grid": GRID, "patch": PATCH} | changes))
    labels = tuple(f"class {number}" for number in range(model.config.classes))
    about = {"labels": labels, "class_ids": labels, "licence": "MIT", "source": "somewhere"}
    model.pretrained = Pretrained(name="old", preprocess=PREPROCESS, **about)
    return model


def images(grid: tuple[int, int] = GRID) -> Tensor:
    return tiny.images(4, grid=grid, patch=PATCH)


def final(model: ViT, pixels: Tensor) -> Tensor:
    tokens, grid = model.embed(pixels)
    return model.encode(tokens, model.angles(grid))


@kinds
def test_start_from_copies_all_weights_but_the_head(kind: dict) -> None:
    old = source(**kind)
    before = copy.deepcopy(old.state_dict())
    new = start_from(old, LABELS, name="new")
    assert not new.training
    assert new.config == replace(old.config, classes=3)
    tokens = final(new, images())
    assert tokens.equal(final(old, images()))
    assert new.read_out(tokens).equal(old.read_out(tokens))
    assert new(images()).equal(torch.zeros(4, 3))  # the new head is zero
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 1.0
    assert all(value.equal(before[name]) for name, value in old.state_dict().items())  # no shared memory
    for grid in ((5, 7), (1, 2)):
        size = (grid[0] * PATCH, grid[1] * PATCH)
        new = start_from(old, LABELS, name="new", image_size=size)
        assert (new.config.image_size, new.config.learned_grid) == (size, grid)
        rounding = 1e-5 if old.config.relative_bias else 0.0  # its table was interpolated in another order
        torch.testing.assert_close(final(new, images(grid)), final(old, images(grid)), rtol=0, atol=rounding)
        assert new.pos_embed is None or new.pos_embed.shape[1] == grid[0] * grid[1]
        assert new.pretrained.preprocess == PREPROCESS.shaped(*size)


def test_start_from_records_the_source(tmp_path: Path) -> None:
    new = start_from(source(), LABELS, name="new", class_ids=("n1", "n2", "n3"), data="three folders")
    about = new.pretrained
    assert (about.name, about.labels, about.class_ids) == ("new", LABELS, ("n1", "n2", "n3"))
    assert (about.preprocess, about.licence) == (PREPROCESS, "MIT")
    assert all(part in about.source for part in ("old", "somewhere", "3 classes", "three folders"))
    save(new, tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.pretrained == about
    assert final(loaded, images()).equal(final(new, images()))
    assert start_from(source(), LABELS, name="new", licence="CC0").pretrained.licence == "CC0"
    bare = source()
    bare.pretrained = None
    with pytest.raises(TrainingError, match="preprocess"):
        start_from(bare, LABELS, name="new")
    assert start_from(bare, LABELS, name="new", preprocess=PREPROCESS).pretrained.preprocess == PREPROCESS


@pytest.mark.parametrize("pooling", ["cls", "mean", "cls+mean", "attention"])
@pytest.mark.parametrize("old", [{}, {"pooling": "attention"}], ids=["from cls", "from attention"])
def test_start_from_changes_the_pooling_reproducibly(old: dict, pooling: str) -> None:
    """New weights depend on the seed, and the caller's random state is preserved."""
    first = source(width=35, registers=1, **old)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    new, again, other = (start_from(first, LABELS, name="new", pooling=pooling, seed=seed) for seed in (3, 3, 4))
    assert torch.rand(1).equal(expected)
    assert new.config.pooling == pooling
    assert final(new, images()).equal(final(first, images()))
    assert (new.attn_pool is not None) == (pooling == "attention")
    if pooling == "attention" and old:
        assert all(a.equal(b) for a, b in zip(new.attn_pool.parameters(), first.attn_pool.parameters(), strict=True))
    elif pooling == "attention":
        assert new.attn_pool.latent.equal(again.attn_pool.latent)
        assert not new.attn_pool.latent.equal(other.attn_pool.latent)
        assert bool(new.attn_pool.latent.any())


@pytest.mark.parametrize(
    ("old", "labels", "changes", "error"),
    [
        ({"classes": 3}, LABELS, {"keep_head": True}, TrainingError),
        ({"classes": 3}, ("class 0", "class 1", "class 2"), {"keep_head": True, "pooling": "mean"}, TrainingError),
        ({"pooling": "mean", "class_token": False}, LABELS, {"pooling": "cls"}, ModelError),
        ({}, LABELS, {"image_size": (11, 15)}, ModelError),
    ],
)
def test_start_from_refuses_mismatches(old: dict, labels: tuple[str, ...], changes: dict, error: type) -> None:
    with pytest.raises(error, match="same 3 classes" if "keep_head" in changes else None):
        start_from(source(**old), labels, name="new", **changes)


@pytest.mark.parametrize("antialias", [False, True])
def test_interpolated_positions_match_timm(antialias: bool) -> None:
    old = source(grid=(7, 11), table={"antialias": antialias})
    new = start_from(old, LABELS, name="new", image_size=(15, 20))
    how = {"num_prefix_tokens": 0, "interpolation": "bicubic", "antialias": antialias}
    expected = resample_abs_pos_embed(old.pos_embed, [3, 4], [7, 11], **how)
    torch.testing.assert_close(new.pos_embed, expected, rtol=1e-6, atol=1e-6)


def test_start_from_keeps_separate_position_grids_and_heads() -> None:
    """DINOv2 has 37 x 37 positions for 16 x 16 patches. Half precision is converted to float32."""
    old = source(table={"grid": (5, 7)}, classes=3).half()
    for size in (None, old.config.image_size, (20, 20)):
        new = start_from(old, old.pretrained.labels, name="new", image_size=size, keep_head=True)
        assert new.config.table.grid == (5, 7)
        for name, parameter in new.named_parameters():
            assert parameter.dtype == torch.float32
            assert parameter.equal(old.state_dict()[name].float())


def learning(model: ViT, last: int | None) -> set[str]:
    freeze(model, last)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("kind", [*KINDS.values(), {"depth": 11}], ids=str)
def test_freeze_leaves_the_last_parts_trainable(kind: dict) -> None:
    """With eleven blocks, the names of block 1 and block 10 have a common prefix."""
    model = start_from(source(**kind), LABELS, name="new")
    depth = model.config.depth
    heads = {"head"} | ({"head_dist"} if "distillation_token" in kind else set())
    pool = {"attn_pool"} if kind.get("pooling") == "attention" else set()
    norm = {"norm"} if pool and kind.get("norms") == tiny.POOLED else set()
    assert set(learning_modules(model, 0)) == heads | pool | norm
    assert set(learning_modules(model, 2)) == heads | pool | {"norm", f"blocks.{depth - 2}", f"blocks.{depth - 1}"}
    every = {name for name, _ in model.named_parameters()}
    assert learning(model, None) == every
    for last in (0, depth, depth - 1, 1):
        names, blocks = learning(model, last), tuple(f"blocks.{index}." for index in range(depth - last, depth))
        assert {name for name in names if name.startswith("blocks")} == {
            name for name in every if name.startswith(blocks)
        }
        assert not {"cls_token", "pos_embed", "patch_embed.proj.weight", "reg_token", "norm_pre.weight"} & names


# --- the training network, from images or cached features


@pytest.mark.parametrize("kind", [*tiny.KINDS.values(), {"projection": 7, "cosine": True}], ids=str)
def test_network_matches_the_models_logits_and_gradients(kind: dict) -> None:
    for last in (None, 3, 1, 0):
        vit = source(**kind)
        freeze(vit, last)
        network = Network(vit, last, GRID)
        logits = MeanLogits(network)(images() if last is None else backbone_features(vit, images(), last))
        torch.testing.assert_close(logits, vit(images()), rtol=1e-4, atol=1e-4)
        trained = [parameter for parameter in vit.parameters() if parameter.requires_grad]
        pair = (torch.autograd.grad(output.square().sum(), trained) for output in (logits, vit(images())))
        for gradient, expected in zip(*pair, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)
        if last == 1:  # with features, the network has only trained parameters
            assert {id(parameter) for parameter in network.parameters()} == {id(parameter) for parameter in trained}


def test_patch_dropout_applies_in_training_only() -> None:
    vit = source(registers=2, positions="rotary", head_width=12)
    tokens: list[int] = []
    vit.blocks[0].register_forward_hook(lambda _module, args, _out: tokens.append(args[0].shape[1]))
    network = Network(vit, None, GRID, patch_dropout=0.5).train()
    assert not network(images())[0].equal(network(images())[0])  # different patches in each pass
    network.eval()
    torch.testing.assert_close(network(images())[0], vit(images()))
    network.train().patches_kept = network.patches
    torch.testing.assert_close(network(images())[0], vit(images()))
    assert tokens == [6, 6, 9, 9, 9, 9]
    assert Network(vit, None, GRID, patch_dropout=0.99).patches_kept == 1


def test_dropouts_are_set_in_modules_and_config() -> None:
    vit = source()
    set_dropout(vit, 0.1, 0.4, 0.3)
    assert (vit.config.dropout, vit.config.path_dropout, vit.config.attention_dropout) == (0.1, 0.4, 0.3)
    assert {block.attn.attention_dropout for block in vit.blocks} == {0.3}
    rates = [block.drop_path.rate for block in vit.blocks if isinstance(block, Block)]
    assert rates == pytest.approx([0.0, 0.2, 0.4])
    assert {module.p for module in vit.modules() if isinstance(module, nn.Dropout)} == {0.1}


def cached(vit: ViT, data: Data, folder: Path, last: int = 1, **changes: object) -> torch.Tensor:
    settings = {"unfreeze_last": last, "cast": None, "progress": False, **changes}
    return FeatureCache(vit, data, "train", folder, **settings).read(torch.arange(len(data.train)))


@pytest.fixture
def data() -> Data:
    return cases.data(train=150)


def test_features_are_computed_once_and_resumed(tmp_path: Path, data: Data) -> None:
    vit = cases.model(data)
    tiny.randomise(vit, 0)
    batches: list[int] = []
    vit.patch_embed.register_forward_hook(lambda _module, args, _out: batches.append(len(args[0])))
    first = cached(vit, data, tmp_path)
    assert batches == [1, 64, 64, 22]  # the first image gives the shape
    assert cached(vit, data, tmp_path).equal(first)
    assert batches[4:] == [1]
    (path,) = tmp_path.iterdir()
    path.with_suffix(".part").write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 3])  # 75 rows and 3 bytes
    path.unlink()
    assert cached(vit, data, tmp_path).equal(first)
    assert batches[5:] == [1, 64, 11]  # 75 rows are reused
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    expected = backbone_features(vit, cases.normalized(data.train), 1)
    torch.testing.assert_close(first, expected, atol=5e-3, rtol=5e-3)
    assert vit.training  # unchanged


def test_feature_files_depend_on_model_and_data(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = cases.model(data)
    cached(vit, data, tmp_path)
    with torch.no_grad():
        vit.head.weight += 1  # not part of the backbone
    cached(vit, data, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    with torch.no_grad():
        vit.cls_token += 1
    for settings in ({}, {"last": 2}, {"cast": torch.bfloat16}):
        cached(vit, data, tmp_path, **settings)
    cached(vit, cases.data(train=150, seed=1), tmp_path)
    assert len(list(tmp_path.iterdir())) == 5

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    vit = cases.model(data, seed=1)
    monkeypatch.setattr("os.replace", full)
    for offset, error in ((0, WritingError), (1e6, TrainingError)):  # the largest float16 is 65,504
        with torch.no_grad():
            vit.cls_token += offset
        with pytest.raises(error):
            cached(vit, data, tmp_path)
