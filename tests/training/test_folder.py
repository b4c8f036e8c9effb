"""Test the output folder of a training run: pictures, model card, and a model that loads."""

from dataclasses import fields
from pathlib import Path

import data_files
import numpy as np
import pytest
import torch
import training_cases as cases
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import has
from PIL import Image

import vitviz
from vitviz.draw.colors import Theme
from vitviz.draw.sheet import fit_photo
from vitviz.evaluation.accuracy import Accuracy
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.training.data import Data, open_data
from vitviz.training.folder import COLUMNS, ROWS, sample, save_training
from vitviz.training.log import Epoch
from vitviz.training.loop import Outcome
from vitviz.training.model_card import model_card
from vitviz.training.recipes import Recipe


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 40), st.integers(0, 9))
def test_sample_is_even_over_classes_and_reproducible(classes: list[int], count: int, seed: int) -> None:
    split = cases.split(torch.zeros(len(classes), 3, 4, 4), torch.tensor(classes))
    chosen = sample(split, count, seed)
    assert chosen == sample(split, count, seed)
    assert len(set(chosen)) == len(chosen) == min(count, len(classes))
    assert [classes[index] for index in chosen] == sorted(classes[index] for index in chosen)
    counts = {label: sum(classes[index] == label for index in chosen) for label in set(classes)}
    room = [count for label, count in counts.items() if count < classes.count(label)]
    assert all(most <= least + 1 for least in room for most in counts.values())  # only a small class has fewer images


LABELS = ("a|b", 'the "red" ones', "green")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Return three classes of noise images, with names that Markdown and YAML must escape."""
    root = data_files.folder(tmp_path_factory.mktemp("data") / "noise", dict.fromkeys(LABELS, (4, 11)))
    return open_data(root, size=(16, 16), progress=False)


def outcome(data: Data, seed: int = 0) -> Outcome:
    """Return an outcome like that of the training loop, with known numbers."""
    config = ViTConfig(image_size=(16, 16), patch_size=4, width=8, depth=2, heads=2, classes=3)
    torch.manual_seed(seed)
    about = Pretrained(
        name="noise: a test",
        preprocess=data.preprocess((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        labels=data.labels,
        class_ids=data.class_ids,
        licence='Our own: see "terms" #2',
    )
    model = ViT(config, about).eval()
    torch.nn.init.normal_(model.head.weight)
    confusion = np.array([[11, 0, 0], [2, 8, 1], [0, 3, 8]])
    true, predicted = (np.repeat(axis.ravel(), confusion.ravel()) for axis in np.indices((3, 3)))
    losses = np.full(33, 0.5)
    accuracy = Accuracy(labels=data.labels, true=true, predicted=predicted, in_top5=true == true, losses=losses)
    row = Epoch(**{field.name: 1 for field in fields(Epoch)})
    return Outcome(
        model=model, recipe=Recipe(seed=3), epochs=(row,), losses=torch.zeros(0), accuracy=accuracy, seconds=4000.0,
        device="a slide rule", processes=2, notes=("Seven images of an epoch are left over.",),
    )  # fmt: skip


@pytest.mark.usefixtures("one_thread")
def test_training_folder_has_model_and_pictures(data: Data, tmp_path: Path) -> None:
    trained = outcome(data)
    files = save_training(trained, data, tmp_path, command="vitviz train --data noise", before=outcome(data, 1).model)
    assert set(files) == {path.name for path in tmp_path.iterdir()}
    again, images = vitviz.load(tmp_path), torch.rand(2, 3, 16, 16)
    assert torch.equal(again(images), trained.model(images))
    assert again.pretrained == trained.model.pretrained
    assert all(Image.open(tmp_path / name).size > (400, 300) for name in files if name.endswith(".png"))
    explorer, chosen = vitviz.Explorer(trained.model), sample(data.val, ROWS * COLUMNS, trained.recipe.seed)
    answers = [explorer.open(data.val.samples.paths[index]).best(1)[0] for index in chosen]
    right = sum(answer == int(data.val.classes[index]) for answer, index in zip(answers, chosen, strict=True))
    assert 0 < right < len(chosen)
    sheet = Image.open(tmp_path / "sheet.png")
    assert has(sheet, Theme.of(False).right)
    assert has(sheet, Theme.of(False).wrong)
    pixels, first = np.asarray(sheet), np.asarray(fit_photo(data.val.picture(chosen[0]), 128))
    top, left = np.argwhere((pixels == first[0, 0]).all(-1))[0]
    assert np.array_equal(pixels[top : top + first.shape[0], left : left + first.shape[1]], first)


def test_model_card_front_matter_has_licence_and_results(data: Data) -> None:
    trained = outcome(data)
    facts = {"command": "vitviz train", "size": 1234, "base": "hf:owner/model", "pictures": {}}
    _, head, _body = model_card(trained, data, **facts).split("---\n", 2)
    said = yaml.safe_load(head)
    assert said["license"] == "other"
    assert said["license_name"] == 'Our own: see "terms" #2'
    assert said["base_model"] == "owner/model"
    (result,) = said["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "name": "top-1", "value": pytest.approx(27 / 33, abs=1e-6)}]
    read = ModelCard(model_card(trained, data, **facts)).data  # parsed like Hugging Face does
    assert (read.license, read.base_model, read.model_name) == ("other", "owner/model", trained.model.pretrained.name)
    assert [result.metric_value for result in read.eval_results] == [pytest.approx(27 / 33, abs=1e-6)]
    trained.model.pretrained = Pretrained(name="x", preprocess=Preprocess(), labels=LABELS, licence="Apache-2.0")
    assert yaml.safe_load(model_card(trained, data, **facts).split("---\n", 2)[1])["license"] == "apache-2.0"


def test_model_card_contains_everything_to_reproduce(data: Data) -> None:
    pictures = {"a.png": "words [x]"}
    text = model_card(outcome(data), data, command="vitviz train --data noise", size=44_000_000, pictures=pictures)
    for wanted in (
        "vitviz train --data noise", "seed 3", "a slide rule, 2 processes", "66.7 minutes",
        f"vitviz {vitviz.__version__}",
        f"torch {torch.__version__}", "44 MB", "81.82 %", "cross entropy 0.5000", 'Our own: see "terms" #2',
        "12 training images", "33 validation images", "Seven images", "from scratch", "![words \\[x\\]](a.png)",
    ):  # fmt: skip
        assert wanted in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "%" in line]
    assert rows == ["| a\\|b | 11 | 100 % |", "| green | 11 | 72.73 % |", '| the "red" ones | 11 | 72.73 % |']
    assert all(f"| {name} |" in text for name in ("weight_decay", "crop_padding", "mixup", "layer_decay"))
