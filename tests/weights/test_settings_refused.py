"""Settings of any field and any value end in a model that takes photographs, or in an error of the loader."""

import dataclasses
import json
import math
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import checkpoint_folders
import hf_cases
import pytest
import torch
import transformers as hf
from image_files import random_rgb
from PIL import Image

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError
from vitviz.weights.from_transformers import convert_transformers
from vitviz.weights.transformers_folder import about_transformers

pytestmark = pytest.mark.usefixtures("one_thread")

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


@pytest.mark.parametrize(("part", "fields"), [("model", ViTConfig), ("preprocess", Preprocess)])
def test_any_value_in_a_folder_of_ours(tmp_path: Path, part: str, fields: Any) -> None:
    save(checkpoint_folders.model(), tmp_path)
    data = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for field, value in product(dataclasses.fields(fields), ODD):
        changed = data | {part: data[part] | {field.name: value}}
        (tmp_path / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        with suppress(CheckpointError):
            assert_takes_photographs(load_folder(tmp_path))


@hf_cases.each_case
def test_any_value_in_the_files_of_transformers(case: hf_cases.Case) -> None:
    """Each case tries some of the odd values, all cases together each value under many names."""
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
