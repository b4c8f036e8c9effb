"""Settings of any field and any value end in a model that takes photographs, or in an error of the loader."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import checkpoint_folders
import hf_cases
import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import random_rgb
from PIL import Image
from weight_files import TIMM, state_of, written

import vitviz
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.transformers_folder import load_transformers_folder

pytestmark = pytest.mark.usefixtures("one_thread")

ODD: list[Any] = [None, True, False, "x", -1, 0, 1, 2, 3, 5, 7, 8, 4096, 10**9, 10**30, -0.5, 0.0, 1e-320, 0.5, 1.0]
ODD += [1e300, math.nan, math.inf, [], [1], [7, 7], [5, 10], [10**9, 5], [0, 0], [0.5, 0.5, 0.5], [1e-320, 1.0, 1.0]]
ODD += [[0.0, 1.0, 1.0], [1e300, 1.0, 1.0], {}, {"a": 1}, {"height": 13, "width": 13}, {"shortest_edge": 10**5}]
ODD += ["mean", "rotary", "sincos", "none", "attention", "cls+mean", "swiglu", "pad", "native", "crop", "squash"]
PHOTO = Image.fromarray(random_rgb(60, 92))


def assert_takes_photographs(model: ViT) -> None:
    assert model.pretrained is not None
    height, width = model.pretrained.preprocess.input_size(*PHOTO.size)
    assert model.config.grid_of(height, width)
    if height * width <= 100 * 100 and model.config.channels == 3:
        prepared = model.pretrained.preprocess(PHOTO)
        with torch.no_grad():
            assert model(torch.from_numpy(prepared.pixels)[None]).isfinite().all()


FIELDS = [("model", field.name) for field in dataclasses.fields(ViTConfig)]
FIELDS += [("preprocess", field.name) for field in dataclasses.fields(Preprocess)]


@pytest.mark.parametrize(("part", "name"), FIELDS)
def test_any_value_in_a_folder_of_ours(tmp_path: Path, part: str, name: str) -> None:
    save(checkpoint_folders.model(), tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    for value in ODD:
        data = json.loads(text)
        data[part][name] = value
        (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
        try:
            model = load_folder(tmp_path)
        except CheckpointError:
            continue
        assert_takes_photographs(model)


@pytest.fixture(scope="module", params=["ViT", "DINOv2-gated", "DINOv3", "CLIP", "SigLIP"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    hf_cases.CASES[request.param].build().save_pretrained(path)
    size = {"height": 44, "width": 44}
    hf.CLIPImageProcessor(size={"shortest_edge": 50}, crop_size=size).save_pretrained(path)
    for name in ("config.json", "preprocessor_config.json"):
        (path / name).rename(path / f"whole {name}")
    return path


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_a_folder_of_transformers(folder: Path, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(["config.json", "preprocessor_config.json"]))
    for name in ("config.json", "preprocessor_config.json"):
        content = json.loads((folder / f"whole {name}").read_text(encoding="utf-8"))
        if name == changed:
            for key in data.draw(st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=2)):
                content[key] = data.draw(st.sampled_from(ODD))
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    try:
        model = load_transformers_folder(folder)
    except CheckpointError:
        return
    assert_takes_photographs(model)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_attention_heads": 4}, "multiple of 4 heads, got 35"),
        ({"head_dim": -7}, "head_width"),
        ({"image_size": [44 * 10**6, 44 * 10**6]}, "there is none|of shape|pixels"),
    ],
)
def test_sizes_of_transformers_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    theirs = hf_cases.CASES["ViT"].build()
    theirs.save_pretrained(tmp_path)
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(ConvertError, match=text):
        vitviz.load(tmp_path)


def test_a_single_file_whose_width_does_not_divide_into_heads_is_refused(tmp_path: Path) -> None:
    build, family = TIMM["siglip"]
    state = state_of(build())
    weight = state["patch_embed.proj.weight"]
    state["patch_embed.proj.weight"] = torch.cat([weight, weight[-1:]])
    with pytest.raises(ConvertError, match="divisible by 5 heads"):
        vitviz.load(written(state, tmp_path, ".safetensors"), family=family, heads=5)


@pytest.mark.parametrize(
    ("mode", "name", "value"),
    [("squash", "height", 12), ("crop", "width", 13), ("native", "multiple", 3), ("squash", "std", [1e-320, 1.0, 1.0])],
)
def test_an_input_that_patches_do_not_fill_is_refused(tmp_path: Path, mode: str, name: str, value: Any) -> None:
    save(checkpoint_folders.model(), tmp_path)
    changes = {"mode": mode, "multiple": 5, name: value}
    checkpoint_folders.edit_config(tmp_path, lambda config: config["preprocess"].update(changes))
    with pytest.raises(CheckpointError, match=r"multiples of the patch|std"):
        load_folder(tmp_path)
