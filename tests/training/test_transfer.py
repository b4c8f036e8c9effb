"""A model made from another: what is kept and new, what it says of itself, what of it learns; and the network."""

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
from vitviz.training.transfer import resized, start_from
from vitviz.weights.checkpoint import load_folder, save

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, PATCH = (2, 3), 5
LABELS = ("ox", "fig", "ray")
FEED = Preprocess(height=10, width=15, mode="crop", resize=12, multiple=5, mean=(0.1, 0.2, 0.3))
KINDS = tiny.KINDS | {"no classifier": {"classes": 0}}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def source(**changes: object) -> ViT:
    model = tiny.model(**({"grid": GRID, "patch": PATCH} | changes))
    labels = tuple(f"class {number}" for number in range(model.config.classes))
    about = {"labels": labels, "class_ids": labels, "licence": "MIT", "source": "somewhere"}
    model.pretrained = Pretrained(name="old", preprocess=FEED, **about)
    return model


def images(grid: tuple[int, int] = GRID) -> Tensor:
    return tiny.images(4, grid=grid, patch=PATCH)


def final(model: ViT, pixels: Tensor) -> Tensor:
    tokens, grid = model.embed(pixels)
    return model.encode(tokens, model.angles(grid))


@kinds
def test_all_but_the_head_is_the_sources_also_at_another_size(kind: dict) -> None:
    old = source(**kind)
    before = copy.deepcopy(old.state_dict())
    new = start_from(old, LABELS, name="new")
    assert not new.training
    assert new.config == replace(old.config, classes=3)
    read = final(new, images())
    assert read.equal(final(old, images()))
    assert new.read_out(read).equal(old.read_out(read))
    assert new(images()).equal(torch.zeros(4, 3))  # a head of zeros: no class is preferred
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 1.0
    assert all(value.equal(before[name]) for name, value in old.state_dict().items())  # a copy shares nothing
    for grid in ((5, 7), (1, 2)):
        size = (grid[0] * PATCH, grid[1] * PATCH)
        new = start_from(old, LABELS, name="new", image_size=size)
        assert (new.config.image_size, new.config.learned_grid) == (size, grid)
        assert final(new, images(grid)).equal(final(old, images(grid)))
        assert new.pos_embed is None or new.pos_embed.shape[1] == grid[0] * grid[1]  # a patch, a position of its own
        assert (new.pretrained.preprocess.height, new.pretrained.preprocess.width) == size


def test_the_record_says_what_it_was_made_from(tmp_path: Path) -> None:
    new = start_from(source(), LABELS, name="new", class_ids=("n1", "n2", "n3"), data="three folders")
    about = new.pretrained
    assert (about.name, about.labels, about.class_ids) == ("new", LABELS, ("n1", "n2", "n3"))
    assert (about.preprocess, about.licence) == (FEED, "MIT")
    assert all(word in about.source for word in ("old", "somewhere", "3 classes", "three folders"))
    save(new, tmp_path)
    again = load_folder(tmp_path)
    assert again.pretrained == about
    assert final(again, images()).equal(final(new, images()))
    assert start_from(source(), LABELS, name="new", licence="CC0").pretrained.licence == "CC0"
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
    first = source(width=35, registers=1, **old)
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


def test_what_does_not_fit_is_refused() -> None:
    for labels, more in (((), {}), (("ox",), {}), (LABELS, {"class_ids": ("n1", "n2")})):
        with pytest.raises(TrainingError):
            start_from(source(), labels, name="new", **more)
    for old, more in (({"pooling": "mean", "class_token": False}, {"pooling": "cls"}), ({}, {"image_size": (11, 15)})):
        with pytest.raises(ModelError):
            start_from(source(**old), LABELS, name="new", **more)


@pytest.mark.parametrize("antialias", [False, True])
def test_positions_are_interpolated_as_timm_does(antialias: bool) -> None:
    old = source(grid=(7, 11), position_antialias=antialias)
    new = start_from(old, LABELS, name="new", image_size=(15, 20))
    expected = resample_abs_pos_embed(
        old.pos_embed, [3, 4], [7, 11], num_prefix_tokens=0, interpolation="bicubic", antialias=antialias
    )
    torch.testing.assert_close(new.pos_embed, expected, rtol=1e-6, atol=1e-6)


def test_a_table_of_another_grid_stays() -> None:
    """DINOv2 has 37 x 37 positions and is fed 16 x 16 patches: nothing is lost where nothing has to be."""
    old = source(position_grid=(5, 7))
    for size in (None, old.config.image_size, (20, 20)):
        new = start_from(old, LABELS, name="new", image_size=size)
        assert new.config.position_grid == (5, 7)
        assert new.pos_embed.equal(old.pos_embed)


def test_a_head_is_kept_for_the_same_classes_only() -> None:
    old = source(classes=3)
    labels = old.pretrained.labels
    assert start_from(old, labels, name="new", keep_head=True)(images()).equal(old(images()))
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


def learning(model: ViT, last: int | None) -> set[str]:
    freeze(model, last)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@kinds
def test_the_last_parts_learn_and_the_others_stay(kind: dict) -> None:
    model = start_from(source(**kind), LABELS, name="new")
    heads = {"head"} | ({"head_dist"} if "distillation_token" in kind else set())
    pool = {"attn_pool"} if kind.get("pooling") == "attention" else set()
    assert set(learning_modules(model, 0)) == heads | pool | ({"norm"} if pool and "norm_pooled" in kind else set())
    assert set(learning_modules(model, 2)) == heads | pool | {"norm", "blocks.1", "blocks.2"}
    every = {name for name, _ in model.named_parameters()}
    assert learning(model, None) == every
    for last in (0, 3, 1):
        names, blocks = learning(model, last), tuple(f"blocks.{index}." for index in range(3 - last, 3))
        assert {name for name in names if "blocks" in name} == {name for name in every if name.startswith(blocks)}
        assert not {"cls_token", "pos_embed", "patch_embed.proj.weight", "reg_token", "norm_pre.weight"} & names


def test_ten_blocks_are_not_confused_with_one() -> None:
    names = learning(source(depth=11), 10)
    assert {name.split(".")[1] for name in names if name.startswith("blocks.")} == {str(at) for at in range(1, 11)}


# --- the network that learns, from images or cached features


@pytest.mark.parametrize("kind", tiny.KINDS.values(), ids=tiny.KINDS)
def test_logits_and_gradients_are_the_models(kind: dict) -> None:
    images = tiny.images(4, grid=GRID, patch=PATCH)
    for last in (None, 3, 1, 0):
        vit = source(**kind)
        freeze(vit, last)
        inputs = images if last is None else backbone_features(vit, images, last)
        network = Network(vit, last, GRID)
        logits = MeanLogits(network)(inputs)
        torch.testing.assert_close(logits, vit(images), rtol=1e-4, atol=1e-4)
        learn = [parameter for parameter in vit.parameters() if parameter.requires_grad]
        ours, plain = (torch.autograd.grad(some.square().sum(), learn) for some in (logits, vit(images)))
        for gradient, expected in zip(ours, plain, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)
        if last == 1:  # with features, only what learns is part of the network
            assert {id(parameter) for parameter in network.parameters()} == {id(parameter) for parameter in learn}


def test_patch_dropout_leaves_patches_out_in_training_only() -> None:
    vit, images = source(registers=2, positions="rotary", head_width=12), tiny.images(4, grid=GRID, patch=PATCH)
    shapes: list[torch.Size] = []
    vit.blocks[0].register_forward_hook(lambda _module, args, _out: shapes.append(args[0].shape))
    network = Network(vit, None, GRID, patch_dropout=0.5).train()
    first, second = network(images)[0], network(images)[0]
    assert not first.equal(second)  # other patches each time
    network.eval()
    torch.testing.assert_close(network(images)[0], vit(images))
    network.train().patches_kept = network.patches
    torch.testing.assert_close(network(images)[0], vit(images))
    assert [shape[1] for shape in shapes] == [6, 6, 9, 9, 9, 9]
    assert Network(vit, None, GRID, patch_dropout=0.99).patches_kept == 1


def test_dropouts_are_set_in_modules_and_config() -> None:
    vit = source(depth=3)
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


def test_features_are_computed_once_and_go_on_after_a_stop(tmp_path: Path, data: Data) -> None:
    vit = cases.model(data)
    tiny.randomise(vit, 0)
    batches: list[int] = []
    vit.patch_embed.register_forward_hook(lambda _module, args, _out: batches.append(len(args[0])))
    first = cached(vit, data, tmp_path)
    assert batches == [1, 64, 64, 22]  # one image tells the shape
    assert cached(vit, data, tmp_path).equal(first)
    assert batches[4:] == [1]
    (path,) = tmp_path.iterdir()
    path.with_suffix(".part").write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 3])  # 75 images and a bit
    path.unlink()
    assert cached(vit, data, tmp_path).equal(first)
    assert batches[5:] == [1, 64, 11]  # 75 are there
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    pixels = data.train.read(torch.arange(150)).float() / 255
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (cases.MEAN, cases.STD))
    torch.testing.assert_close(first, backbone_features(vit, (pixels - mean) / std, 1), atol=5e-3, rtol=5e-3)
    assert vit.training  # as it was


def test_other_numbers_are_another_file(tmp_path: Path, data: Data) -> None:
    vit = cases.model(data)
    cached(vit, data, tmp_path)
    with torch.no_grad():
        vit.head.weight += 1  # which is no part of the backbone
    cached(vit, data, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    with torch.no_grad():
        vit.cls_token += 1
    cached(vit, data, tmp_path)
    cached(vit, data, tmp_path, last=2)
    cached(vit, data, tmp_path, cast=torch.bfloat16)
    cached(vit, cases.data(train=150, seed=1), tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_features_that_do_not_fit_are_refused(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    vit = cases.model(data)
    monkeypatch.setattr("os.replace", full)
    for offset, words in ((0, "Make room"), (1e6, "from image 0 on")):  # float16 ends at 65,504
        with torch.no_grad():
            vit.cls_token += offset
        with pytest.raises(TrainingError, match=words):
            cached(vit, data, tmp_path)
