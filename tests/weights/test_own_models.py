"""Models that people build themselves: preprocessing that they give, rectangular inputs, wrappers around a model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_from_torchvision
import timm
import torch
from hf_cases import CASES
from image_files import random_rgb
from PIL import Image
from timm.data import create_transform
from timm_models import shaken
from torch import Tensor, nn
from transformers import PreTrainedModel

import vitviz
from vitviz.images.limits import ImageError
from vitviz.weights.checks import ConvertError

pytestmark = pytest.mark.usefixtures("one_thread")

SIDES = (192, 320)
PHOTOS = [Image.fromarray(random_rgb(*size)) for size in ((400, 300), (300, 400), (640, 360), (900, 250), (213, 355))]


def timm_model(**changes: Any) -> Any:
    sizes = {"embed_dim": 60, "depth": 2, "num_heads": 5, "img_size": 48}
    return shaken(timm.create_model("vit_tiny_patch16_224", **sizes | changes)).eval()


def about(source: Any, **options: Any) -> vitviz.Pretrained:
    facts = vitviz.load(source, **options).pretrained
    assert facts is not None
    return facts


# --- preprocessing that is given


@pytest.mark.parametrize(
    "cfg", [{"crop_mode": "squash", "crop_pct": 0.9}, {"interpolation": "random"}, {"mean": None, "crop_pct": None}]
)
def test_given_preprocessing_stands_for_what_the_model_says(cfg: dict[str, Any]) -> None:
    theirs = timm_model(num_classes=3)
    theirs.pretrained_cfg.update(cfg)
    with pytest.raises(ConvertError, match=r"preprocess=\.\.\."):
        vitviz.load(theirs)
    own = vitviz.Preprocess(height=48, width=48, mode="pad")
    facts = about(theirs, preprocess=own)
    assert facts.preprocess == own
    assert facts.labels == ("class 0", "class 1", "class 2")
    assert "pretrained_cfg" not in facts.source
    assert about(theirs, preprocess="half").preprocess.mean == (0.5, 0.5, 0.5)
    assert about(theirs, preprocess=timm_model().pretrained_cfg).preprocess.interpolation == "bicubic"


# --- rectangular inputs


@torch.no_grad()
def test_a_rectangular_model_of_timm_sees_what_timm_shows_it() -> None:
    theirs = timm_model(img_size=SIDES, num_classes=3)
    explorer = vitviz.Explorer(vitviz.load(theirs))
    config = timm.data.resolve_model_data_config(theirs, use_test_size=True) | {"input_size": (3, *SIDES)}
    transform: Any = create_transform(**config)
    for photo in PHOTOS:
        view, expected = explorer.open(photo), transform(photo)
        assert view.size == SIDES
        torch.testing.assert_close(view.images[0], expected, rtol=0, atol=1e-6)
        want: Tensor = theirs(expected[None]).softmax(1)[0]
        found = dict(view.predictions(3))
        assert [found[label] for label in view.labels] == pytest.approx(want.tolist(), abs=1e-5)


@pytest.mark.parametrize("words", ["imagenet", "clip", "half", None])
def test_the_usual_preprocessing_keeps_the_shape_of_the_input(words: str | None) -> None:
    theirs = timm_model(img_size=SIDES, num_classes=3)
    theirs.pretrained_cfg = None
    facts = about(theirs, preprocess=words)
    assert (facts.preprocess.height, facts.preprocess.width) == SIDES
    view = vitviz.Explorer(vitviz.load(theirs, preprocess=words)).open(PHOTOS[0])
    assert view.trace.grid == (12, 20)
    assert view.trace.tokens.shape[1] == 1 + 12 * 20


def test_a_rectangular_model_of_transformers_keeps_its_shape(tmp_path: Path) -> None:
    case = CASES["ViT-classifier"].build()
    settings = case.config.to_dict() | {"image_size": [44, 76]}
    theirs = type(case)(type(case.config)(**settings)).eval()
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        facts = about(source)
        assert (facts.preprocess.height, facts.preprocess.width) == (44, 76)


def test_what_a_crop_covers_follows_the_size_and_is_at_least_the_input() -> None:
    own = vitviz.Preprocess(height=192, width=320, resize=(213, 355))
    half = own.at(160, 16)
    assert (half.height, half.width, half.resize) == (96, 160, (106, 178))
    assert "covers 213 x 355" in own.describe()
    assert vitviz.Preprocess.from_dict(own.to_dict()) == own
    seen = own(PHOTOS[0]).pixels
    assert np.isfinite(seen).all()
    with pytest.raises(ImageError, match="at least that of the 192 x 320 input"):
        vitviz.Preprocess(height=192, width=320, resize=(192, 319))


# --- wrappers


class Wrapper(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class OwnModel(PreTrainedModel):
    config_class = type(CASES["ViT-classifier"].build().config)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vit = CASES["ViT"].build()


@pytest.mark.parametrize(
    ("wrapper", "path"),
    [
        (Wrapper(backbone=timm_model(), fc=nn.Linear(60, 3)), "model.backbone"),
        (Wrapper(net=Wrapper(encoder=test_from_torchvision.tiny())), "model.net.encoder"),
        (Wrapper(encoder=CASES["ViT-classifier"].build()), "model.encoder"),
        (nn.Sequential(timm_model(), nn.Linear(1000, 3)), "model[0]"),
        (OwnModel(CASES["ViT-classifier"].build().config), "model.vit"),
    ],
    ids=["timm", "torchvision", "transformers", "sequence", "own class of transformers"],
)
def test_a_wrapper_is_told_which_attribute_to_load(wrapper: Any, path: str) -> None:
    with pytest.raises(ConvertError) as refused:
        vitviz.load(wrapper)
    assert str(refused.value).endswith(f"Load the model that it holds: vitviz.load({path}).")
    assert vitviz.load(eval(path, {"model": wrapper})).config.depth > 1


def test_a_wrapper_around_two_models_or_none_is_told_nothing_of_the_kind() -> None:
    for wrapper in (Wrapper(student=timm_model(), teacher=timm_model()), nn.Linear(2, 3)):
        with pytest.raises(ConvertError, match="Save its state dict"):
            vitviz.load(wrapper)
