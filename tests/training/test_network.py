"""The network that is trained is the model: from images, from cached features, with fewer tokens in the last block."""

from pathlib import Path

import pytest
import tiny
import torch
import training_cases as cases
from torch import nn

from vitviz.model.layers import Block
from vitviz.model.vit import ViT
from vitviz.training import TrainingError
from vitviz.training.data import Data
from vitviz.training.features import FeatureCache
from vitviz.training.network import MeanLogits, Network, backbone_features, freeze, set_dropout

pytestmark = pytest.mark.usefixtures("one_thread")
GRID, PATCH = (2, 3), 5


def model(**changes: object) -> ViT:
    return tiny.model(0, grid=GRID, patch=PATCH, classes=5, **changes)


@pytest.mark.parametrize("kind", tiny.KINDS.values(), ids=tiny.KINDS)
def test_logits_and_gradients_are_the_models(kind: dict) -> None:
    images = tiny.images(4, grid=GRID, patch=PATCH)
    for last in (None, 3, 1, 0):
        vit = model(**kind)
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
    vit, images = model(registers=2, positions="rotary", head_width=12), tiny.images(4, grid=GRID, patch=PATCH)
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
    vit = model(depth=3)
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
