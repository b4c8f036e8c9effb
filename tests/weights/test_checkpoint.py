"""Check that saved folders load unchanged, failed saves leave files intact, and damaged folders are refused."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import hf_cases
import pytest
import tiny
import torch
import transformers as hf
from image_files import random_rgb
from PIL import Image
from safetensors.torch import load_file, save_file
from timm_models import TIMM, state_of, written

import vitviz
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import checkpoint, zoo
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import MAX_JSON_BYTES, CheckpointError
from vitviz.weights.from_transformers import convert_transformers
from vitviz.weights.transformers_folder import about_transformers

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("ash", "birch", "cedar")
SIZES: dict[str, Any] = {"image_size": (10, 15), "patch_size": 5, "width": 14, "depth": 3, "heads": 2, "mlp_width": 11}
CONFIG = ViTConfig(**SIZES, classes=3, registers=2, layer_scale=0.5)
ABOUT = Pretrained(
    name="Bäume",
    preprocess=Preprocess(height=10, width=15, mode="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
    labels=LABELS,
    class_ids=("n1", "n2", "n3"),
    licence="MIT",
    source="a test",
    sure_above=0.27,
    known_above=-1.5,
    groups=(("tree with needles", "birch", "cedar"),),
)


def small_model() -> ViT:
    model = ViT(CONFIG, ABOUT)
    tiny.randomise(model, 7)
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(small_model(), tmp_path / "model")
    return tmp_path / "model"


def test_models_load_by_name_and_by_path(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path))
    (tmp_path / "not a checkpoint").mkdir()
    assert zoo.bundled() == ["model"]
    for source in ("model", folder, str(folder)):
        assert zoo.load(source).pretrained == ABOUT
    for unknown in ("resnet50", "keras:vit_small", "", "no such/folder"):
        with pytest.raises(CheckpointError, match=f"got {unknown!r}. Bundled models: model"):
            zoo.load(unknown)
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path / "gone"))
    assert zoo.bundled() == []
    with pytest.raises(CheckpointError, match="gone"):
        zoo.load("model")


def test_saved_model_loads_equal_in_each_precision(folder: Path) -> None:
    model = small_model()
    torch.manual_seed(3)
    again = load_folder(folder)
    assert torch.equal(
        torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3))
    )  # loading draws no random numbers
    assert (again.config, again.pretrained, again.training) == (CONFIG, ABOUT, False)
    assert {(parameter.requires_grad, parameter.device.type) for parameter in again.parameters()} == {(True, "cpu")}
    again(torch.randn(2, 3, 10, 15)).sum().backward()  # the weights are trainable
    assert all(parameter.grad is not None for parameter in again.parameters())
    model.pretrained = replace(ABOUT, sure_above=None, known_above=None, groups=())
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        save(model, folder, dtype=dtype)
        settings = json.loads((folder / "config.json").read_text())
        assert not {"sure_above", "known_above", "groups"} & settings.keys()
        again = load_folder(folder)
        assert again.pretrained == model.pretrained
        for name, tensor in model.state_dict().items():
            assert again.state_dict()[name].dtype is torch.float32
            assert torch.equal(again.state_dict()[name], tensor.to(dtype).float()), name


@pytest.mark.parametrize("changes", [*tiny.KINDS.values(), {"classes": 0, "table": {"grid": (3, 4)}}], ids=str)
def test_every_kind_of_config_survives_saving(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny.model(**tiny.SMALL, **changes)
    preprocess = Preprocess(height=6, width=10, multiple=2)
    labels = tuple(str(index) for index in range(model.config.classes))
    model.pretrained = Pretrained(name="x", preprocess=preprocess, labels=labels)
    save(model, tmp_path)
    again = load_folder(tmp_path)
    assert (again.config, again.pretrained) == (model.config, model.pretrained)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


# The settings of `tiny.KINDS` as commit 33a13e6 wrote them; without defaults, except in the first.
FORMAT_1 = json.loads((Path(__file__).parent / "format_1.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", FORMAT_1)
def test_folders_of_format_1_load(tmp_path: Path, kind: str) -> None:
    model = tiny.known(**tiny.KINDS[kind])
    save(model, tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"format": 1, "model": FORMAT_1[kind] | {"windows": None}}), "utf-8")
    assert load_folder(tmp_path).config == model.config
    for name, value, text in (("windows", {"size": 7}, "Load the original"), ("norm_eps", "x", "norms.eps")):
        broken = {"format": 1, "model": FORMAT_1[kind] | {name: value}}
        path.write_text(json.dumps(settings | broken), "utf-8")
        assert_refused(tmp_path, text)


def test_config_has_few_fields() -> None:
    assert len(dataclasses.fields(ViTConfig)) <= 36


def test_save_replaces_files_unless_it_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    with torch.no_grad():
        model.norm.bias.add_(1.0)
    save(model, folder)
    assert torch.equal(load_folder(folder).norm.bias, model.norm.bias)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == ["config.json", "model.safetensors"]
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}  # compared with the default permissions below
    (folder / "plain").touch()
    assert modes == {(folder / "plain").stat().st_mode & 0o777}
    (folder / "plain").unlink()

    def full(*_args: object, **_options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(small_model(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_save_refuses_models_that_would_not_load(tmp_path: Path) -> None:
    model = small_model()
    for about, words in (
        (None, r"Set model\.pretrained"),
        (replace(ABOUT, labels=LABELS[:2]), "labels for each of 3 classes, got 2"),
        (replace(ABOUT, preprocess=Preprocess()), "multiples of 5 pixels, got 224 x 224"),
    ):
        model.pretrained = about
        with pytest.raises(CheckpointError, match=words):
            save(model, tmp_path)
    model = small_model()
    with torch.no_grad():
        model.norm.bias[1] = 1e6  # finite here, infinite in half precision
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["ours", "transformers", ".safetensors", ".pt"])
def test_overwriting_a_file_does_not_change_the_loaded_model(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    if kind.startswith("."):
        path = written(state_of(TIMM["vit"]()), tmp_path, kind)
        model = vitviz.load(path, heads=5)
    else:
        save(small_model(), tmp_path) if kind == "ours" else hf_cases.saved(hf_cases.CASES["ViT"], tmp_path)
        model = vitviz.load(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with path.open("r+b") as file:
        file.seek(-path.stat().st_size // 2, os.SEEK_END)
        file.write(b"\x11" * (path.stat().st_size // 2))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    os.truncate(path, 0)  # a mapped tensor would end the process with SIGBUS
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


# --- refusals; test_hostile.py covers hostile weights files
HUGE = 10**15
REMOVED = object()
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {"format": 3}, "format 1 or 2, got 3"),
    ("", {"labels": REMOVED}, r"missing: \['labels'\]"),
    ("", {"extra": 1}, r"unknown: \['extra'\]"),
    ("", {"labels": ["ash"]}, "labels for each of 3 classes, got 1"),
    ("", {"class_ids": ["n1", "n2"]}, "class_ids for each of 3 classes, got 2"),
    ("", {"sure_above": "often"}, "sure_above to be a number or None, got 'often'"),
    ("", {"sure_above": 27}, "sure_above as a probability, got 27"),
    ("", {"groups": [["tree", "ash"]]}, r"at least two labels, got \('tree', 'ash'\)"),
    ("", {"groups": [["tree", "ash", "oak"]]}, "at least two labels, got"),
    ("", {"name": None}, "name to be text, got None"),
    ("", {"model": []}, "settings as a mapping, got \\[\\]"),
    ("preprocess", {"mode": "squash", "height": 12}, "in multiples of 5 pixels"),
    ("preprocess", {"mode": "native", "multiple": 3}, "in multiples of 5 pixels"),
    ("model", {"colour": "blue"}, "colour"),
    ("model", {"width": "14"}, "width to be a whole number of at least 1, got '14'"),
    # settings that contradict the weights, some of them huge
    ("model", {"depth": HUGE}, "blocks"),
    ("model", {"depth": 2}, "Expected 2 blocks .*got 3"),
    ("model", {"width": HUGE * 2, "mlp_width": None}, "other shapes|too large for any memory"),
    ("model", {"mlp_width": HUGE}, r"fc1.bias \(expected \(1000000000000000,\), got \(11,\)"),
    ("model", {"heads": HUGE, "head_width": 7}, "other shapes: .*attn"),
    ("model", {"table": {"grid": [HUGE, HUGE]}}, "too large for any memory"),
    ("model", {"patch_size": 5 * HUGE, "image_size": [5 * HUGE, 5 * HUGE]}, "image_size of at most"),
    ("model", {"registers": 3}, r"reg_token \(expected \(1, 3, 14\), got \(1, 2, 14\)\)"),
    ("model", {"mlp_width": 13}, "other shapes: .* and 6 more"),
    ("model", {"layer_scale": None}, "unexpected tensors: blocks.0.ls1.gamma, .* and 3 more"),
    ("model", {"distillation_token": True}, "missing tensors: dist_token"),
]  # fmt: skip


def assert_refused(folder: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize(("part", "changes", "text"), REFUSED)
def test_invalid_settings_are_refused(folder: Path, part: str, changes: dict[str, Any], text: str) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings = config[part] if part else config
    settings.update(changes)
    for name in (name for name in changes if changes[name] is REMOVED):
        del settings[name]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert_refused(folder, text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("norm.weight"), r"missing tensors: norm\.weight"),
        (lambda s: s.update(extra=torch.zeros(2)), "unexpected tensors: extra"),
        (lambda s: s.update({"norm.weight": torch.zeros(15)}), r"norm\.weight \(expected \(14,\), got \(15,\)\)"),
        (lambda s: s.update({"norm.weight": torch.zeros(14, dtype=torch.int8)}), r"got torch.int8 in 'norm\.weight'"),
        (lambda s: s["norm.weight"].__setitem__(3, float("nan")), r"NaN or infinity in norm\.weight"),
        (lambda s: s.clear(), "Expected 3 blocks .*got 0"),
    ],
)
def test_weights_that_contradict_the_config_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], text: str
) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    assert_refused(folder, text)


def test_missing_and_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    assert_refused(tmp_path / "nowhere", "Expected a checkpoint folder")
    assert_refused(config, "Expected a checkpoint folder")
    whole = config.read_bytes()
    number = '{"format": ' + "1" * 5000 + "}"
    for text in ("", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', number, "\0", '{"a": "\xff"}'):
        config.write_text(text, encoding="latin-1")
        assert_refused(folder, r"Expected (a )?JSON|in format 1 or 2")
    config.write_bytes(bytes(MAX_JSON_BYTES + 1))
    assert_refused(folder, "Expected at most 10,485,760 bytes")
    config.write_bytes(whole)
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_refused(folder, "cut short|damaged")
    weights.unlink()
    torch.save({}, folder / "pytorch_model.bin")  # never opened
    assert_refused(folder, r"has no model\.safetensors")
    config.unlink()
    assert_refused(folder, r"has no config\.json")


# --- any value of any setting either gives a model that accepts photographs or raises CheckpointError

ODD: list[Any] = [None, True, False, "x", -1, 0, 1, 2, 3, 5, 7, 8, 4096, 10**9, 10**30, -0.5, 0.0, 1e-320, 0.5, 1.0]
ODD += [1e300, math.nan, math.inf, [], [1], [7, 7], [5, 10], [10**9, 5], [0, 0], [0.5, 0.5, 0.5], [1e-320, 1.0, 1.0]]
ODD += [[0.0, 1.0, 1.0], [1e300, 1.0, 1.0], {}, {"a": 1}, {"height": 13, "width": 13}, {"shortest_edge": 10**5}]
ODD += ["mean", "rotary", "sincos", "none", "attention", "cls+mean", "swiglu", "pad", "native", "crop", "squash"]
PHOTO = Image.fromarray(random_rgb(60, 92))


def assert_takes_photographs(model: ViT) -> None:
    height, width = model.pretrained.preprocess.input_size(*PHOTO.size)
    assert model.config.grid_of(height, width)
    if height * width <= 100 * 100 and model.config.channels == 3:
        prepared = model.pretrained.preprocess(PHOTO)
        with torch.no_grad():
            assert model(torch.from_numpy(prepared.pixels)[None]).isfinite().all()


@pytest.mark.tier("all")
@pytest.mark.parametrize(("part", "fields"), [("model", ViTConfig), ("preprocess", Preprocess)])
def test_any_config_value_loads_or_raises_checkpoint_error(tmp_path: Path, part: str, fields: Any) -> None:
    save(small_model(), tmp_path)
    data = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for field, value in product(dataclasses.fields(fields), ODD):
        changed = data | {part: data[part] | {field.name: value}}
        (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        with suppress(CheckpointError):
            assert_takes_photographs(load_folder(tmp_path))


@pytest.mark.tier("all")
@hf_cases.each_case
def test_any_transformers_setting_loads_or_raises_checkpoint_error(case: hf_cases.Case) -> None:
    """Each case tests a subset of the values."""
    state, model = hf_cases.files_of(case)
    processor = hf.CLIPImageProcessor(size={"shortest_edge": 50}, crop_size={"height": 44, "width": 44}).to_dict()
    tower = model.get("vision_config", {})
    tried = [(model | {name: value}, processor) for name in model for value in ODD]
    tried += [(model | {"vision_config": tower | {name: value}}, processor) for name in tower for value in ODD]
    tried += [(model, processor | {name: value}) for name in processor for value in ODD]
    parts = [("size", "shortest_edge"), ("size", "height"), ("crop_size", "height")]
    tried += [(model, processor | {name: {part: value}}) for name, part in parts for value in ODD]
    for config, preprocessor in tried[list(hf_cases.CASES.values()).index(case) :: 2 * len(hf_cases.CASES)]:
        with suppress(CheckpointError):
            about = about_transformers(config, preprocessor, "a")
            assert_takes_photographs(convert_transformers(state, config, about))
