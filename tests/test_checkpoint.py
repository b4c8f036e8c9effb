"""Checkpoint folders: what is saved comes back, and what is damaged or hostile is refused in words."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import skimage.data
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vitviz.config import ViTConfig
from vitviz.image import decode
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.weights import checkpoint, zoo
from vitviz.weights.checkpoint import CheckpointError, load_folder, save

LABELS = ("ash", "birch", "cedar")
CONFIG = ViTConfig(
    image_size=(10, 15), patch_size=5, width=14, depth=3, heads=2, mlp_width=11, classes=3, registers=2, layer_scale=0.5
)
ABOUT = Pretrained(
    name="Bäume",
    preprocess=Preprocess(height=10, width=15, mode="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
    labels=LABELS,
    class_ids=("n1", "n2", "n3"),
    licence="MIT",
    source="a test",
)


def tiny(config: ViTConfig = CONFIG, about: Pretrained | None = ABOUT) -> ViT:
    torch.manual_seed(7)
    model = ViT(config, about)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny(), tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


# --- there and back


def test_what_is_saved_comes_back(folder: Path) -> None:
    model, again = tiny(), load_folder(folder)
    assert again.config == CONFIG
    assert again.pretrained == ABOUT
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert {parameter.device.type for parameter in again.parameters()} == {"cpu"}
    images = torch.randn(2, 3, 10, 15)
    assert torch.equal(again(images), model(images))
    again(images).sum().backward()  # the weights are real parameters
    assert all(parameter.grad is not None for parameter in again.parameters())


@given(
    heads=st.integers(1, 3),
    head_width=st.none() | st.integers(1, 5),
    depth=st.integers(1, 3),
    registers=st.integers(0, 2),
    classes=st.integers(0, 3),
    class_token=st.booleans(),
    distillation_token=st.booleans(),
    positions=st.sampled_from(["learned", "sincos", "none"]),
    layer_scale=st.none() | st.just(0.1),
    qkv_bias=st.booleans(),
    position_grid=st.none() | st.just((3, 4)),
)
def test_every_kind_of_model_comes_back(tmp_path_factory: pytest.TempPathFactory, **options: Any) -> None:
    pooling = "cls+mean" if options["class_token"] else "mean"
    config = ViTConfig(image_size=(6, 9), patch_size=3, width=options["heads"] * 4, pooling=pooling, **options)
    labels = tuple("abc"[: config.classes])
    model = tiny(config, Pretrained(name="x", preprocess=Preprocess(), labels=labels))
    folder = tmp_path_factory.mktemp("model")
    save(model, folder)
    again = load_folder(folder)
    assert again.config == config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny()
    save(model, tmp_path, dtype=dtype)
    again = load_folder(tmp_path)
    for name, tensor in model.state_dict().items():
        assert again.state_dict()[name].dtype is torch.float32
        assert torch.equal(again.state_dict()[name], tensor.to(dtype).float()), name


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_folder(folder)
    assert torch.equal(torch.rand(2), expected)


def test_saving_again_replaces_and_leaves_nothing_behind(folder: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.norm.bias.add_(1.0)
    save(model, folder)
    assert torch.equal(load_folder(folder).norm.bias, model.norm.bias)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_an_interrupted_save_keeps_the_old_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError("No space left on device")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(tiny(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_both_files_can_be_read_by_others_alike(folder: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    (folder / "plain").touch()
    assert modes == {(folder / "plain").stat().st_mode & 0o777}


def test_saving_what_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Set model\.pretrained"):
        save(tiny(about=None), tmp_path)
    short = tiny()
    short.pretrained = Pretrained(name="x", preprocess=Preprocess(), labels=LABELS[:2])
    with pytest.raises(CheckpointError, match="labels for each of 3 classes, got 2"):
        save(short, tmp_path)
    model = tiny()
    with torch.no_grad():
        model.norm.bias[1] = 1e6  # finite here, infinite in half precision
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


# --- the config


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(format=2), "format 1, got 2"),
        (lambda c: c.pop("format"), "format 1, got None"),
        (lambda c: c.pop("labels"), r"missing: \['labels'\]"),
        (lambda c: c.update(extra=1), r"unknown: \['extra'\]"),
        (lambda c: c.update(labels=["ash"]), "labels for each of 3 classes, got 1"),
        (lambda c: c.update(class_ids=["n1", "n2"]), "class_ids for each of 3 classes, got 2"),
        (lambda c: c.update(labels=["ash", "birch", 3]), "labels: expected"),
        (lambda c: c.update(name=None), "name: expected str, got None"),
        (lambda c: c.update(model=[]), "model: expected dict"),
        (lambda c: c.update(preprocess="crop"), "preprocess: expected dict"),
        (lambda c: c["preprocess"].update(mode="stretch"), "stretch"),
        (lambda c: c["preprocess"].update(zoom=2), "zoom"),
        (lambda c: c["model"].update(colour="blue"), "colour"),
        (lambda c: c["model"].update(width="14"), "width: expected int, got '14'"),
        (lambda c: c["model"].update(width=True), "width: expected int, got True"),
        (lambda c: c["model"].update(width=14.0), "width: expected int"),
        (lambda c: c["model"].update(depth=-1), "depth"),
        (lambda c: c["model"].update(image_size=[10, "15"]), "image_size: expected"),
        (lambda c: c["model"].update(image_size=[10, 15, 20]), "image_size: expected"),
        (lambda c: c["model"].update(image_size=[10, 16]), "16"),
        (lambda c: c["model"].update(position_grid=[0, 3]), "position_grid: expected a whole number"),
        (lambda c: c["model"].update(head_width=0), "head_width: expected a whole number"),
        (lambda c: c["model"].update(mlp_width=-11), "mlp_width: expected a whole number"),
        (lambda c: c["model"].update(pooling="max"), "pooling: expected"),
        (lambda c: c["model"].update(class_token=1), "class_token: expected bool"),
        (lambda c: c["model"].update(layer_scale="big"), "layer_scale: expected"),
        (lambda c: c["model"].update(norm_eps=float("nan")), "not JSON: NaN is not a number"),
        (lambda c: c["model"].update(layer_scale=float("inf")), "not JSON: Infinity is not a number"),
    ],
)
def test_a_config_that_says_nonsense_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    edit_config(folder, change)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', '{"format": ' + "1" * 5000 + "}", "\0"]
)
def test_a_config_that_is_not_one_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"not JSON|in format 1"):
        load_folder(folder)


def test_a_config_in_another_encoding_or_far_too_long_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(CheckpointError, match="not JSON"):
        load_folder(folder)
    with (folder / "config.json").open("wb") as file:
        file.truncate(checkpoint.MAX_CONFIG_BYTES + 1)
    with pytest.raises(CheckpointError, match="bytes long"):
        load_folder(folder)


# --- the weights

HUGE = 10**15


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"depth": HUGE}, "blocks"),
        ({"depth": 2}, "expected 2 blocks, got 3"),
        ({"width": HUGE * 2, "mlp_width": None}, "ask for a matrix of"),
        ({"mlp_width": HUGE}, "mlp_width and width ask for a matrix of 1000000000000000 x 14"),
        ({"heads": HUGE, "head_width": 7}, "heads and head_width"),
        ({"head_width": HUGE}, "heads and head_width"),
        ({"channels": HUGE}, "channels and patch_size"),
        ({"registers": HUGE}, "registers"),
        ({"position_grid": [HUGE, HUGE]}, "position_grid"),
        ({"image_size": [5 * HUGE, 5 * HUGE]}, "position_grid"),
        ({"patch_size": 5 * HUGE, "image_size": [5 * HUGE, 5 * HUGE]}, "patch_size"),
        ({"registers": 3}, r"reg_token \(expected \(1, 3, 14\), got \(1, 2, 14\)\)"),
        ({"mlp_width": 13}, "other shapes: .* and 6 more"),
        ({"layer_scale": None}, "tensors too many: blocks.0.ls1.gamma, .* and 3 more"),
        ({"distillation_token": True}, "tensors missing: dist_token"),
    ],
)
def test_a_config_that_the_weights_do_not_bear_out_is_refused(folder: Path, sizes: dict[str, Any], text: str) -> None:
    edit_config(folder, lambda c: c["model"].update(sizes))
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


def test_a_hundred_million_labels_would_need_a_file_that_long(folder: Path) -> None:
    edit_config(folder, lambda c: (c["model"].update(classes=1000), c.update(labels=["x"] * 1000, class_ids=[])))
    with pytest.raises(CheckpointError, match="classes and width ask for a matrix of 1000 x 14"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("norm.weight"), r"tensors missing: norm\.weight"),
        (lambda s: s.update(extra=torch.zeros(2)), "tensors too many: extra"),
        (lambda s: s.update({"norm.weight": torch.zeros(15)}), r"norm\.weight \(expected \(14,\), got \(15,\)\)"),
        (lambda s: s.update({"norm.weight": torch.zeros(14, dtype=torch.int8)}), r"got I8 in 'norm\.weight'"),
        (lambda s: s["norm.weight"].__setitem__(3, float("nan")), r"NaN or infinity in norm\.weight"),
        (lambda s: s["head.bias"].__setitem__(0, float("-inf")), r"NaN or infinity in head\.bias"),
        (lambda s: s.update({"norm.bias": torch.full((14,), 1e300, dtype=torch.float64)}), r"infinity in norm\.bias"),
        (lambda s: s.clear(), "expected 3 blocks, got 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], text: str
) -> None:
    edit_weights(folder, change)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


def header(data: object, length: int | None = None) -> bytes:
    text = json.dumps(data).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "damaged"),
        (b"\x00" * 7, "damaged"),
        (b"PK\x03\x04" + b"\x00" * 60, "damaged|cut short"),  # a zip, as torch.save writes
        (b"\x80\x02}q\x00." + b"." * 60, "cut short"),  # a pickle
        (header({}, 2 * 2**30), "a header of 2,147,483,648 bytes"),
        (header({}, 2**64 - 1), "a header of"),
        (header([1, 2, 3]), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [14], "data_offsets": [0, 56]}}), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [-14], "data_offsets": [0, 56]}}) + b"\0" * 56, "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(folder: Path, content: bytes, text: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.999])
def test_a_truncated_file_is_refused(folder: Path, keep: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"cut short|damaged"):
        load_folder(folder)


def test_a_pickle_beside_the_config_is_never_opened(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        load_folder(folder)


def test_a_missing_folder_or_config_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_folder(folder / "config.json")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_folder(folder)


# --- by name


def test_models_by_name_and_by_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(folder.parent))
    (folder.parent / "not a checkpoint").mkdir()
    assert zoo.bundled() == ["model"]
    for source in ("model", folder, str(folder)):
        assert zoo.load(source).pretrained == ABOUT
    for unknown in ("resnet50", "keras:vit_small", "", "no such/folder"):
        with pytest.raises(CheckpointError, match=f"Unknown model {unknown!r}.*Bundled models: model"):
            zoo.load(unknown)


def test_without_any_checkpoint_the_error_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path / "gone"))
    assert zoo.bundled() == []
    with pytest.raises(CheckpointError, match=r"no checkpoint was found in .*gone"):
        zoo.load("model")


# --- the bundled model

BUNDLED = "dinov2-s14-imagenette"


def test_the_bundled_model_is_small_and_has_its_card() -> None:
    folder = zoo.CHECKPOINTS / BUNDLED
    assert BUNDLED in zoo.bundled()
    assert (folder / "model.safetensors").stat().st_size <= 46e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    model = zoo.load(BUNDLED)
    assert model.pretrained is not None
    for label in model.pretrained.labels:
        assert label in card


@pytest.fixture(scope="module")
def bundled() -> ViT:
    return zoo.load(BUNDLED)


def test_the_bundled_model_takes_photographs_of_any_shape(bundled: ViT) -> None:
    about = bundled.pretrained
    assert about is not None
    assert len(about.labels) == len(about.class_ids) == bundled.config.classes == 10
    for photo in (skimage.data.chelsea(), skimage.data.rocket()[:, 200:400]):
        pixels = torch.from_numpy(about.preprocess(decode(photo)).pixels)[None]
        with torch.no_grad():
            logits = bundled(pixels)
            trace = bundled.trace(pixels, blocks=[-1])
        assert logits.shape == (1, 10)
        torch.testing.assert_close(trace.logits, logits, rtol=0, atol=1e-4)
        assert 200 <= trace.grid[0] * trace.grid[1] <= 300


def test_the_bundled_model_recognises_a_parachute_and_a_golf_ball(bundled: ViT) -> None:
    """Drawings, made here: a striped canopy with lines in a blue sky, and a dimpled white ball on grass."""
    from PIL import Image, ImageDraw

    sky = Image.new("RGB", (400, 300), (90, 150, 220))
    draw = ImageDraw.Draw(sky)
    for index, colour in enumerate(["red", "white", "red", "white", "red", "white"]):
        draw.pieslice((120, 40, 280, 180), 180 + index * 30, 210 + index * 30, fill=colour)
        draw.line((133 + index * 27, 110, 200, 230), fill="black")
    draw.ellipse((194, 228, 206, 256), fill="black")
    grass = Image.new("RGB", (300, 300), (50, 130, 40))
    draw = ImageDraw.Draw(grass)
    draw.ellipse((90, 90, 210, 210), fill=(240, 240, 240))
    for x in range(100, 205, 13):
        for y in range(100, 205, 13):
            if (x - 150) ** 2 + (y - 150) ** 2 < 52**2:
                draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=(205, 205, 205))
    about = bundled.pretrained
    assert about is not None
    for image, label in ((sky, "parachute"), (grass, "golf ball")):
        with torch.no_grad():
            logits = bundled(torch.from_numpy(about.preprocess(image).pixels)[None])
        assert about.labels[int(logits.argmax())] == label
