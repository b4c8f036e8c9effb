"""What a training leaves behind: pictures that show what is true, a card that says it, a folder that loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitviz
from vitviz.card import Facts, card, time_words
from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.outcome import COLUMNS, ROWS, leave, sample
from vitviz.preprocess import Geometry, Preprocess
from vitviz.render.answers import CROSS, GREEN, RED, TICK, Answer, answer_sheet, fitted, mapped, percent
from vitviz.render.colors import OverlayError, Scale, lut
from vitviz.render.confusion import CMAP, GAMMA, confusion_picture
from vitviz.training.data import Data, Split, open_data
from vitviz.training.engine import Outcome
from vitviz.training.recipes import Recipe

# ---- pictures of answers


@settings(max_examples=60)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(48, 200))
def test_a_picture_fits_and_keeps_its_shape(width: int, height: int, side: int) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))
    picture = fitted(photo, side)
    assert max(picture.size) <= side
    assert max(picture.size) > side // 2
    assert abs(min(picture.size) - max(picture.size) * min(width, height) / max(width, height)) <= 1
    if 2 * max(width, height) <= side:  # a small one is enlarged pixel by pixel
        factor = side // max(width, height)
        assert np.array_equal(np.asarray(picture), np.asarray(photo).repeat(factor, 0).repeat(factor, 1))


def test_a_map_lies_where_its_patches_are() -> None:
    values = np.random.default_rng(1).random((4, 8)).astype(np.float32)
    heatmap = vitviz.Heatmap(values, Geometry((32, 16), (16, 32), (0.0, 0.0, 32.0, 16.0)), Image.new("RGB", (32, 16)))
    picture = np.asarray(mapped(heatmap, 128, alpha=1.0))
    colours = lut("magma")[Scale.over([values]).indices(values)]  # (4, 8, 3)
    assert np.array_equal(picture, colours.repeat(16, 0).repeat(16, 1))


def answers(*right: bool | None, label: str = "golf ball", truth: str = "church") -> list[Answer]:
    picture = Image.new("RGB", (64, 64), (90, 90, 90))
    return [Answer((picture, picture), label, 0.87, None if one is None else truth, one) for one in right]


def has(picture: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(picture) == colour).all(-1).any())


@pytest.mark.parametrize("dark", [False, True])
def test_right_and_wrong_differ_in_colour_and_in_a_mark(dark: bool) -> None:
    right, wrong, open_ended = answers(True, False, None)
    assert right.words.startswith(TICK)
    assert wrong.words.startswith(CROSS)
    assert not open_ended.words.startswith((TICK, CROSS))
    for answer, there, not_there in ((right, GREEN, RED), (wrong, RED, GREEN)):
        sheet = answer_sheet([answer], dark=dark, side=64)
        assert has(sheet, there[dark])
        assert not has(sheet, not_there[dark])
    plain = answer_sheet([open_ended], dark=dark, side=64)
    assert not has(plain, GREEN[dark])
    assert not has(plain, RED[dark])


def test_a_sheet_has_its_rows_and_columns_and_long_labels_stay_in_theirs() -> None:
    short = np.asarray(answer_sheet(answers(*[True] * 7, False), columns=4, side=64), np.int16)
    long = np.asarray(answer_sheet([*answers(True, label="x" * 200), *answers(*[True] * 6, False)], columns=4, side=64))
    assert short.shape == long.shape
    grey = (short == 90).all(-1)  # 8 answers of two pictures in 2 rows
    assert grey.sum() == 16 * 64 * 64
    assert len(np.unique(np.flatnonzero(grey.any(1)))) == 2 * 64
    changed = np.flatnonzero((short != long).any((0, 2)))  # columns of pixels
    starts = np.flatnonzero(np.diff(np.r_[False, grey.any(0)].astype(int)) == 1)
    assert changed.max() < starts[2]  # where the second answer begins


def test_sheets_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(OverlayError, match="at least one answer"):
        answer_sheet([])
    with pytest.raises(OverlayError, match="as many pictures"):
        answer_sheet([*answers(True), Answer((Image.new("RGB", (64, 64)),), "a", 0.5)], side=64)
    with pytest.raises(OverlayError, match="64 pixels does not fit into 50"):
        answer_sheet(answers(True), side=50)


def test_probabilities_are_said_without_false_certainty() -> None:
    assert [percent(p) for p in (0.0, 0.004, 0.006, 0.5, 0.994, 0.996, 1.0)] == [
        "<1 %", "<1 %", "1 %", "50 %", "99 %", ">99 %", ">99 %"
    ]  # fmt: skip


# ---- the confusion matrix


def test_cells_have_the_colour_of_their_row_s_share() -> None:
    counts = np.zeros((150, 150), np.int64)  # so many that there are no words in the cells
    counts[0, 149], counts[0, 0] = 3, 1  # three quarters of the first row are taken for the last class
    counts[1, 1] = 5
    picture = np.asarray(confusion_picture(counts, [f"class {i}" for i in range(150)]))
    shades = {share: lut(CMAP[False])[Scale(0, 1).indices(share, GAMMA)] for share in (0.25, 0.75, 1.0)}
    body = picture[:-100]  # without the colour bar
    boxes = {}
    for share, shade in shades.items():
        rows, columns = np.nonzero((body == shade).all(-1))
        assert len(rows) == 64  # one cell of 8 x 8
        boxes[share] = rows.min(), columns.min()
    assert boxes[0.75][0] == boxes[0.25][0] == boxes[1.0][0] - 8  # true classes go down
    assert boxes[0.75][1] == boxes[0.25][1] + 149 * 8  # answers go across
    assert boxes[1.0][1] == boxes[0.25][1] + 8


@pytest.mark.parametrize("classes", [1, 2, 10, 30, 101, 400])
def test_any_number_of_classes_is_drawn(classes: int) -> None:
    counts = np.eye(classes, dtype=np.int64) * 123_456
    labels = ["a label that is far too long to be written in full " * 2] * classes
    picture = confusion_picture(counts, labels, dark=True)
    assert min(picture.size) > 200
    assert max(picture.size) < 2200


@pytest.mark.parametrize(
    ("counts", "labels"),
    [([[1, 2]], ["a"]), ([[1.0]], ["a"]), ([[1]], ["a", "b"]), ([[-1]], ["a"]), (np.zeros((0, 0), int), [])],
)
def test_what_is_no_confusion_matrix_is_refused(counts: object, labels: list[str]) -> None:
    with pytest.raises(OverlayError, match="expected"):
        confusion_picture(counts, labels)  # type: ignore[arg-type]


# ---- which images


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 40), st.integers(0, 9))
def test_images_are_chosen_evenly_and_repeatably(classes: list[int], count: int, seed: int) -> None:
    split = Split(torch.tensor(classes), None, Preprocess(height=4, width=4), torch.zeros(len(classes), 3, 4, 4))
    chosen = sample(split, count, seed)
    assert chosen == sample(split, count, seed)
    assert len(set(chosen)) == len(chosen) == min(count, len(classes))
    assert [classes[index] for index in chosen] == sorted(classes[index] for index in chosen)
    taken = {one: sum(classes[index] == one for index in chosen) for one in set(classes)}
    room = [taken[one] for one in taken if taken[one] < classes.count(one)]
    assert all(most <= least + 1 for least in room for most in taken.values())  # only a small class has fewer


# ---- the folder

LABELS = ("a|b", 'the "red" ones', "green")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Three classes of noise, with names that Markdown and YAML have to be told about."""
    root, rng = tmp_path_factory.mktemp("data") / "noise", np.random.default_rng(0)
    for side, count in (("train", 4), ("val", 11)):
        for name in LABELS:
            (root / side / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (12, 20, 3), np.uint8)
                Image.fromarray(pixels).save(root / side / name / f"{index}.png")
    return open_data(root, size=(16, 16), progress=False)


def outcome(data: Data, seed: int = 0) -> Outcome:
    """As the engine would give it, with numbers of our own."""
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
    confusion = torch.tensor([[11, 0, 0], [2, 8, 1], [0, 3, 8]])
    found = {"top1": 27 / 33, "top5": 1.0, "val_loss": 0.5, "confusion": confusion, "seconds": 4000.0}
    where = {"device": "a slide rule", "processes": 2, "notes": ("Seven images of an epoch are left over.",)}
    return Outcome(model=model, recipe=Recipe(seed=3), epochs=(), losses=torch.zeros(0), **found, **where)


@pytest.mark.usefixtures("one_thread")
def test_the_folder_has_the_model_and_its_pictures(data: Data, tmp_path: Path) -> None:
    made = outcome(data)
    files = leave(made, data, tmp_path / "out", command="vitviz train --data noise", before=outcome(data, 1).model)
    assert set(files) == {path.name for path in (tmp_path / "out").iterdir()}
    again = vitviz.load(tmp_path / "out")
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(again(images), made.model(images))
    assert again.pretrained == made.model.pretrained
    for name in files:
        if name.endswith(".png"):
            assert Image.open(tmp_path / "out" / name).size > (400, 300)


@pytest.mark.usefixtures("one_thread")
def test_the_sheet_shows_what_the_model_says(data: Data, tmp_path: Path) -> None:
    made = outcome(data)
    leave(made, data, tmp_path)
    explorer = vitviz.Explorer(made.model)
    chosen = sample(data.val, ROWS * COLUMNS, made.recipe.seed)
    right = 0
    for index in chosen:
        said = explorer.open(data.val.paths[index]).best(1)[0]
        right += said == int(data.val.classes[index])
    assert 0 < right < len(chosen)
    sheet = Image.open(tmp_path / "sheet.png")
    assert has(sheet, GREEN[False])
    assert has(sheet, RED[False])
    lines = np.asarray(sheet)
    first = fitted(data.val.picture(chosen[0]), 128)
    place = np.argwhere((lines == np.asarray(first)[0, 0]).all(-1))[0]
    assert np.array_equal(lines[place[0] : place[0] + first.height, place[1] : place[1] + first.width], first)


# ---- the card


def test_the_card_s_front_matter_is_yaml_with_the_numbers(data: Data) -> None:
    made = outcome(data)
    facts = Facts(version="9.9", command="vitviz train", size=1234, base="hf:owner/model", pictures={})
    _, head, _body = card(made, data, facts).split("---\n", 2)
    said = yaml.safe_load(head)
    assert said["license"] == "other"
    assert said["license_name"] == 'Our own: see "terms" #2'
    assert said["base_model"] == "owner/model"
    (result,) = said["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "name": "top-1", "value": pytest.approx(27 / 33, abs=1e-6)}]
    made.model.pretrained = Pretrained(name="x", preprocess=Preprocess(), labels=LABELS, licence="Apache-2.0")
    assert yaml.safe_load(card(made, data, facts).split("---\n", 2)[1])["license"] == "apache-2.0"


def test_the_card_says_what_is_needed_to_do_it_again(data: Data) -> None:
    facts = Facts(version="9.9", command="vitviz train --data noise", size=44_000_000, pictures={"a.png": "words [x]"})
    text = card(outcome(data), data, facts)
    for wanted in (
        "vitviz train --data noise", "seed 3", "a slide rule, 2 processes", "66.7 minutes", "vitviz 9.9",
        f"torch {torch.__version__}", "44 MB", "81.82 %", "cross entropy 0.5000", 'Our own: see "terms" #2',
        "12 images to train on", "33 to validate on", "Seven images", "from scratch", "![words \\[x\\]](a.png)",
    ):  # fmt: skip
        assert wanted in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "%" in line]
    assert rows == ["| a\\|b | 11 | 100.00 % |", "| green | 11 | 72.73 % |", '| the "red" ones | 11 | 72.73 % |']
    assert all(f"| {name} |" in text for name in ("weight_decay", "crop_padding", "mixup", "layer_decay"))


def test_a_time_is_said_as_people_say_it() -> None:
    assert [time_words(seconds) for seconds in (4, 600, 7200)] == ["4 s", "10.0 minutes", "2.0 hours"]
