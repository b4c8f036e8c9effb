"""Accuracy on a folder: counted right, on what users get, or refused in words."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.validate import Validation, ValidationError, validate

SHADES = (10, 50, 90, 130, 170, 210, 250)
ABOUT = Pretrained(
    name="shades of grey",
    preprocess=Preprocess(mode="native", height=16, width=16, multiple=4, mean=(0, 0, 0), std=(1, 1, 1)),
    labels=tuple(f"shade {shade}" for shade in SHADES),
    class_ids=tuple(f"g{shade}" for shade in SHADES),
)
CONFIG = ViTConfig(image_size=(8, 8), patch_size=4, width=4, depth=1, heads=1, classes=7)


class Shades(ViT):
    """Ranks the classes by how near their shade is to the image's mean: the right answers are known by hand."""

    def __init__(self, about: Pretrained | None = ABOUT) -> None:
        super().__init__(CONFIG, about)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.shapes.append(tuple(images.shape))
        return -(images.mean((1, 2, 3))[:, None] * 255 - torch.tensor(SHADES)).abs()


def photo(path: Path, shade: int, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade,) * 3).save(path)


def test_the_counts_are_those_made_by_hand(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)  # right
    photo(tmp_path / "g10" / "b.png", 52)  # second
    photo(tmp_path / "g10" / "deeper" / "a.png", 125)  # sixth: not among five
    photo(tmp_path / "shade 90" / "a.PNG", 90, (20, 30))  # a label as a folder name
    photo(tmp_path / "g90" / "b.png", 252)  # the same class by its id; fifth
    (tmp_path / "g10" / "notes.txt").write_text("no image")
    (tmp_path / "g50").mkdir()  # an empty class counts for nothing
    (tmp_path / ".cache").mkdir()
    result = validate(Shades(), tmp_path, batch_size=2)
    assert result.labels == ("shade 10", "shade 90")
    assert (result.counts, result.right, result.right5) == ((3, 2), (1, 1), (2, 2))
    assert result.images == 5
    assert result.top1 == pytest.approx(2 / 5)
    assert result.top5 == pytest.approx(4 / 5)
    assert result.per_class == (("shade 10", 3, pytest.approx(1 / 3)), ("shade 90", 2, 0.5))
    assert result.seconds > 0


def test_a_model_in_half_precision_is_validated(tmp_path: Path) -> None:
    for index in range(3):
        photo(tmp_path / "shade 50" / f"{index}.png", 50)
    torch.manual_seed(0)
    model = ViT(CONFIG, ABOUT)
    with torch.no_grad():
        model.head.weight.normal_()
    whole, half = (validate(one, tmp_path) for one in (model, copy.deepcopy(model).bfloat16()))
    assert whole.right5 == half.right5


def test_the_table_reads_like_a_table() -> None:
    result = Validation(
        model="m", labels=("ox", "golf ball"), counts=(1000, 3), right=(500, 2), right5=(1000, 3), seconds=2.0
    )
    assert result.table().splitlines() == [
        "m: 1,003 images in 2.0 s",
        "",
        "class       images     top-1     top-5",
        "ox           1,000    50.00%   100.00%",
        "golf ball        3    66.67%   100.00%",
        "all          1,003    50.05%   100.00%",
    ]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_batches_hold_one_shape_and_lose_no_image(tmp_path: Path, batch_size: int) -> None:
    sizes = [(30, 20), (20, 30), (20, 20), (60, 10), (30, 20), (20, 30), (20, 20)]
    for index, size in enumerate(sizes):
        photo(tmp_path / "g10" / f"{index}.png", 10, size)
        photo(tmp_path / "g250" / f"{index}.png", 250, size)
    model = Shades()
    result = validate(model, tmp_path, batch_size=batch_size)
    assert result.counts == result.right == (7, 7)
    assert sum(shape[0] for shape in model.shapes) == 14
    assert max(shape[0] for shape in model.shapes) <= batch_size
    assert len({shape[2:] for shape in model.shapes}) == 4  # nothing was squashed to another's shape


def test_a_limit_is_spread_over_the_classes(tmp_path: Path) -> None:
    for shade, count in ((10, 5), (50, 2), (90, 9)):
        for index in range(count):
            photo(tmp_path / f"g{shade}" / f"{index}.png", shade)
    assert validate(Shades(), tmp_path, limit=8).counts == (3, 2, 3)
    assert validate(Shades(), tmp_path, limit=1000).counts == (5, 2, 9)


def test_a_training_model_is_given_back_training(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)
    model = Shades().train()
    validate(model, tmp_path)
    assert model.training
    (tmp_path / "g10" / "b.png").write_bytes(b"broken")
    with pytest.raises(ValidationError):
        validate(model, tmp_path)
    assert model.training


def test_broken_files_are_all_named(tmp_path: Path) -> None:
    for index in range(4):
        photo(tmp_path / "g10" / f"{index}.png", 10)
    (tmp_path / "g10" / "1.png").write_bytes(b"")
    photo(tmp_path / "g50" / "a.png", 50)
    (tmp_path / "g50" / "b.jpg").write_bytes(b"\xff\xd8 not a JPEG")
    with pytest.raises(ValidationError, match=r"2 files cannot be read as images: g10/1\.png, g50/b\.jpg\."):
        validate(Shades(), tmp_path, batch_size=1)


def test_folders_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"is none\."):
        validate(Shades(), tmp_path / "nowhere")
    with pytest.raises(ValidationError, match=r"found none.*g10, g50"):
        validate(Shades(), tmp_path)
    photo(tmp_path / "g10" / "a.png", 10)
    photo(tmp_path / "cats" / "a.png", 10)
    with pytest.raises(ValidationError, match=r"no classes of this model: cats.*g10, g50"):
        validate(Shades(), tmp_path)


def test_a_label_of_two_classes_names_neither(tmp_path: Path) -> None:
    photo(tmp_path / "crane" / "a.png", 10)
    twice = dataclasses.replace(ABOUT, labels=("crane", "crane", *ABOUT.labels[2:]))
    with pytest.raises(ValidationError, match="no classes of this model: crane"):
        validate(Shades(twice), tmp_path)


def test_models_that_cannot_be_validated_are_refused(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)
    for about in (None, dataclasses.replace(ABOUT, labels=())):
        with pytest.raises(ValidationError, match="classifier"):
            validate(Shades(about), tmp_path)
    for options in ({"batch_size": 0}, {"limit": 0}):
        with pytest.raises(ValidationError, match="at least 1, got 0"):
            validate(Shades(), tmp_path, **options)

    class Broken(Shades):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), 7), float("nan"))

    with pytest.raises(ValidationError, match="NaN"):
        validate(Broken(), tmp_path)


# ---- data sets, and what is taken for what


def idx(path: Path, values: Tensor) -> None:
    """An IDX file of bytes, as MNIST comes."""
    header = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(header + values.to(torch.uint8).numpy().tobytes())


def test_a_named_data_set_is_matched_by_its_classes(tmp_path: Path) -> None:
    labels = tuple("3456789")  # of ten digits this model knows seven, in places of their own
    digits = torch.arange(10)
    shades = torch.tensor([0, 0, 0, *SHADES])
    for half in ("train", "t10k"):
        idx(tmp_path / f"{half}-images-idx3-ubyte", shades[:, None, None].expand(10, 28, 28))
        idx(tmp_path / f"{half}-labels-idx1-ubyte", digits)
    few = dataclasses.replace(ABOUT, labels=labels, class_ids=labels)
    with pytest.raises(ValidationError, match="10 classes of mnist; it lacks 0, 1, 2"):
        validate(Shades(few), "mnist", root=tmp_path)

    class Digits(Shades):
        """Knows the digits in reverse; ranks them by shade, zeros as the first of them."""

        def __init__(self) -> None:
            ViT.__init__(self, dataclasses.replace(CONFIG, classes=10), about)
            self.shapes = []

        def forward(self, images: Tensor) -> Tensor:
            near = -(images.mean((1, 2, 3))[:, None] * 255 - shades).abs() - 1e-3 * torch.arange(10)
            return near.flip(1)

    names = tuple(reversed("0123456789"))
    about = dataclasses.replace(ABOUT, labels=names, class_ids=())
    result = validate(Digits(), "mnist", root=tmp_path, batch_size=3)
    assert result.counts == (1,) * 10
    assert result.labels == names
    assert result.right == (1,) * 7 + (0, 0, 1)  # 2, 1 and 0 are of one shade, and 0 is said
    assert result.mistakes() == [("2", "0", 1), ("1", "0", 1)]
    assert validate(Digits(), "mnist", root=tmp_path, limit=4).images == 4


def test_of_a_folder_with_two_sides_the_validation_side_is_taken(tmp_path: Path) -> None:
    for side, shade in (("train", 10), ("val", 50)):
        photo(tmp_path / side / "g10" / "a.png", shade)
        photo(tmp_path / side / "g50" / "a.png", shade)
    result = validate(Shades(), tmp_path)
    assert result.right == (0, 1)
    with pytest.raises(ValidationError, match="root"):
        validate(Shades(), tmp_path / "val", root=tmp_path)


def test_confusion_has_the_truth_down_and_answers_across(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)
    photo(tmp_path / "g10" / "b.png", 250)  # taken for a class that does not occur in the data
    photo(tmp_path / "g10" / "c.png", 250)
    photo(tmp_path / "g50" / "a.png", 10)
    result = validate(Shades(), tmp_path)
    labels, counts = result.confusion()
    assert labels == ("shade 10", "shade 50", "shade 250")
    assert counts.tolist() == [[1, 0, 2], [1, 0, 0], [0, 0, 0]]
    assert result.mistakes(1) == [("shade 10", "shade 250", 2)]
