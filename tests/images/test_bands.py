"""Check models with one channel and with many bands, in Python and on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from timm_models import FAMILIES
from viewer_pages import photograph

import vitviz
from vitviz.cli.main import main
from vitviz.images.decoding import decode
from vitviz.lecture.numbers import lecture_bytes
from vitviz.lecture.texts import LectureError
from vitviz.site.onnx import StaticError, check_exportable
from vitviz.web.scene import Scene
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import CheckpointError

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("blue", "green", "red", "red edge", "near infrared")
SETTINGS = vitviz.Preprocess(
    height=91, width=143, mode="squash", interpolation="bilinear", bands=NAMES, mean=(0.1, 0.2, 0.3, 0.4, 0.5),
    std=(0.5, 0.6, 0.7, 0.8, 0.9),
)  # fmt: skip
CUBE = np.random.default_rng(4).integers(0, 3000, (91, 143, 5), dtype=np.uint16)


def banded() -> vitviz.ViT:
    model = tiny.model(channels=5)
    labels = tuple(map(str, range(model.config.classes)))
    model.pretrained = vitviz.Pretrained(name="Bands", preprocess=SETTINGS, labels=labels)
    return model


def test_model_of_one_channel_reads_the_brightness_of_photographs() -> None:
    theirs = FAMILIES["vit of one colour"]()
    theirs.pretrained_cfg = {"num_classes": 29, "mean": (0.4, 0.5, 0.6), "std": (0.1, 0.2, 0.3)}
    theirs.pretrained_cfg |= {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"}
    model, photo = vitviz.load(theirs), decode(photograph(5, 320, 200))
    view = vitviz.Explorer(model).open(photo)
    height, width = model.config.image_size
    grey = np.asarray(photo.convert("L").resize((width, height), Image.Resampling.BICUBIC), np.float32) / 255
    torch.testing.assert_close(view.images[0, 0], torch.from_numpy((grey - 0.5) / 0.2))
    with torch.no_grad():
        torch.testing.assert_close(view.trace.logits, theirs(view.images), rtol=0, atol=1e-4)
    assert view.photo == photo
    np.testing.assert_allclose(np.asarray(view.seen()), 255 * grey[..., None].repeat(3, 2), atol=1)
    assert "of grey, 15 x 35 pixels" in model.pretrained.assumed[-1]


def test_array_of_bands_is_normalised_by_band_and_shown_as_chosen_bands(tmp_path: Path) -> None:
    explorer = vitviz.Explorer(banded())
    view = explorer.open(CUBE)
    expected = (CUBE / 65535 - np.array(SETTINGS.mean)) / SETTINGS.std
    np.testing.assert_allclose(view.images[0], expected.transpose(2, 0, 1), atol=1e-5)
    shuffled = vitviz.Bands(CUBE[:, :, ::-1], NAMES[::-1])
    torch.testing.assert_close(explorer.open(shuffled).images, view.images)
    np.save(tmp_path / "cube.npy", CUBE)
    torch.testing.assert_close(explorer.open(tmp_path / "cube.npy").images, view.images)
    assert (np.asarray(view.photo) == np.rint(CUBE[:, :, 2::-1] / 257)).all()
    explorer.preprocess = replace(SETTINGS, shown=("near infrared",))
    view = explorer.open((CUBE / 100).astype(np.float32))
    assert np.asarray(view.photo)[..., 0].max() == np.asarray(view.seen()).max() == 255  # stretched
    assert view.attention().values.shape == view.trace.grid
    assert "reads arrays with the bands blue, green, red, red edge, near infrared" in Scene(view).caveat
    assert view.explain("gae").values.shape == view.trace.grid


def test_saved_models_keep_their_bands_and_commands_choose_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(banded(), tmp_path / "model")
    assert vitviz.load(tmp_path / "model").pretrained.preprocess == SETTINGS
    np.save(tmp_path / "cube.npy", CUBE)
    Image.new("RGB", (60, 50)).save(tmp_path / "photo.png")
    options = ["--model", str(tmp_path / "model")]
    assert main(["predict", str(tmp_path / "cube.npy"), "--json", "--bands", "near infrared,red,green", *options]) == 0
    assert json.loads(capsys.readouterr().out)["images"][0]["predictions"]
    assert main(["predict", str(tmp_path / "photo.png"), *options]) != 0
    assert "the bands blue, green, red, red edge, near infrared, got a photograph" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "cube.npy"), "--bands", "thermal", *options]) != 0
    assert "bands blue, green, red, red edge, near infrared to show, got thermal" in capsys.readouterr().err


def test_unfit_bands_are_refused() -> None:
    explorer = vitviz.Explorer(banded())
    for array, words in (
        (CUBE[:, :, :4], "5.*bands blue"),
        (CUBE.astype(np.int32), "uint8, uint16 or finite floats, got int32"),
        (np.full((50, 60, 5), np.nan), "finite floats"),
    ):
        with pytest.raises(vitviz.ImageError, match=words):
            explorer.open(array)
    with pytest.raises(vitviz.ImageError, match="without red edge"):
        explorer.open(vitviz.Bands(CUBE[:, :, :3], NAMES[:3]))
    with pytest.raises(vitviz.ImageError, match="for each band, got 3"):
        vitviz.Preprocess(bands=NAMES)
    with pytest.raises(StaticError, match="5 input channels"):
        check_exportable(explorer.model)
    with pytest.raises(LectureError, match="5 input channels"):
        lecture_bytes(explorer.open(CUBE))
    with pytest.raises(CheckpointError, match="Expected preprocessing of 5 channels"):
        vitviz.load(banded(), preprocess=vitviz.Preprocess(mode="squash", height=91, width=143))
