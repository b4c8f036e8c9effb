"""Test accuracy on folders and named data sets against manual counts."""

import copy
import dataclasses
from pathlib import Path

import data_files
import numpy as np
import pytest
import scipy.special
import torch
from PIL import Image
from torch import Tensor

from vitviz.evaluation import EvaluationError
from vitviz.evaluation.accuracy import Accuracy, measure_accuracy, validate
from vitviz.images.folders import DataError
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")
SHADES = (10, 50, 90, 130, 170, 210, 250)
ABOUT = Pretrained(
    name="shades of grey",
    preprocess=Preprocess(mode="native", height=16, width=16, multiple=4, mean=(0, 0, 0), std=(1, 1, 1)),
    labels=tuple(f"shade {shade}" for shade in SHADES),
    class_ids=tuple(f"g{shade}" for shade in SHADES),
)
CONFIG = ViTConfig(image_size=(8, 8), patch_size=4, width=4, depth=1, heads=1, classes=7)


class Shades(ViT):
    """Model that ranks classes by the distance of their shade to the image's mean."""

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


def test_accuracy_and_confusion_match_counts_by_hand(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)  # first
    photo(tmp_path / "g10" / "b.png", 52)  # second
    photo(tmp_path / "g10" / "deeper" / "a.png", 125)  # sixth
    photo(tmp_path / "shade 90" / "a.PNG", 90, (20, 30))  # first; a label as a folder name
    photo(tmp_path / "g90" / "b.png", 252)  # fifth; the same class by its id
    (tmp_path / "g10" / "notes.txt").write_text("no image")
    (tmp_path / "g50").mkdir()  # an empty class is ignored
    (tmp_path / ".cache").mkdir()
    result = validate(Shades(), tmp_path, batch_size=2)
    assert (result.images, result.top1, result.top5) == (5, 2 / 5, 4 / 5)
    assert result.per_class == (("shade 10", 3, 1 / 3, 2 / 3), ("shade 90", 2, 1 / 2, 1.0))
    distances = np.abs(np.array([10, 52, 125, 90, 252])[:, None] - SHADES)
    expected = scipy.special.logsumexp(-distances, axis=1) + distances[range(5), [0, 0, 0, 2, 2]]
    assert result.loss == pytest.approx(expected.mean(), rel=1e-5)
    assert result.seconds > 0
    labels, counts = result.confusion()  # rows: true classes; columns: predicted classes, with or without images
    assert labels == ("shade 10", "shade 50", "shade 90", "shade 130", "shade 250")
    assert counts.tolist() == [[1, 1, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 1], [0] * 5, [0] * 5]
    assert result.mistakes(1)[0][2] == 1
    # Images are converted to the precision of the model.
    torch.manual_seed(0)
    model = ViT(CONFIG, ABOUT)
    with torch.no_grad():
        model.head.weight.normal_()
    single, half = (validate(network, tmp_path) for network in (model, copy.deepcopy(model).bfloat16()))
    np.testing.assert_array_equal(single.in_top5, half.in_top5)


def test_the_table_aligns_columns_and_formats_shares() -> None:
    true = np.repeat([0, 1], [1000, 3])
    predicted = np.where(np.arange(1003) % 2 == 0, true, 1 - true)
    arrays = {"true": true, "predicted": predicted, "in_top5": true == true, "losses": np.zeros(1003)}
    result = Accuracy(model="m", labels=("ox", "golf ball"), seconds=2.0, **arrays)
    assert result.table().splitlines() == [
        "m: 1,003 images in 2.0 s",
        "",
        "class      images    top-1  top-5",
        "ox          1,000  50.00 %  100 %",
        "golf ball       3  66.67 %  100 %",
        "all         1,003  50.05 %  100 %",
    ]
    assert result.mistakes(1) == [("ox", "golf ball", 500)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_batches_have_one_shape_and_all_images(tmp_path: Path, batch_size: int) -> None:
    sizes = [(30, 20), (20, 30), (20, 20), (60, 10), (30, 20), (20, 30), (20, 20)]
    for index, size in enumerate(sizes):
        photo(tmp_path / "g10" / f"{index}.png", 10, size)
        photo(tmp_path / "g250" / f"{index}.png", 250, size)
    model = Shades()
    result = validate(model, tmp_path, batch_size=batch_size)
    assert [row[1:3] for row in result.per_class] == [(7, 1.0), (7, 1.0)]
    assert sum(shape[0] for shape in model.shapes) == 14
    assert max(shape[0] for shape in model.shapes) <= batch_size
    assert len({shape[2:] for shape in model.shapes}) == 4  # images keep their shape


def test_a_limit_is_spread_over_the_classes_and_the_second_split_is_used(tmp_path: Path) -> None:
    for shade, count in ((10, 5), (50, 2), (90, 9)):
        for index in range(count):
            photo(tmp_path / "val" / f"g{shade}" / f"{index}.png", shade)
            photo(tmp_path / "train" / f"g{shade}" / f"{index}.png", 250)  # must not be read
    for limit, counts in ((8, [3, 2, 3]), (1000, [5, 2, 9])):
        result = validate(Shades(), tmp_path, limit=limit)
        assert [count for _, count, *_ in result.per_class] == counts
        assert result.top1 == 1.0
    with pytest.raises(EvaluationError, match="root"):
        validate(Shades(), tmp_path / "val", root=tmp_path)


def test_all_broken_files_are_named_and_training_mode_is_restored(tmp_path: Path) -> None:
    for index in range(4):
        photo(tmp_path / "g10" / f"{index}.png", 10)
    model = Shades().train()
    validate(model, tmp_path)
    assert model.training
    (tmp_path / "g10" / "1.png").write_bytes(b"")
    photo(tmp_path / "g50" / "a.png", 50)
    (tmp_path / "g50" / "b.jpg").write_bytes(b"\xff\xd8 not a JPEG")
    with pytest.raises(DataError, match=r"g10/1\.png, g50/b\.jpg"):
        validate(model, tmp_path, batch_size=1)
    assert model.training


def test_unknown_class_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="subfolder"):
        validate(Shades(), tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"got none.*shade 10"):
        validate(Shades(), tmp_path)
    photo(tmp_path / "g10" / "a.png", 10)
    photo(tmp_path / "crane" / "a.png", 10)
    with pytest.raises(DataError, match=r"crane.*shade 10"):
        validate(Shades(), tmp_path)
    ambiguous = dataclasses.replace(ABOUT, labels=("crane", "crane", *ABOUT.labels[2:]))
    with pytest.raises(DataError, match="got crane"):
        validate(Shades(ambiguous), tmp_path)


def test_models_that_cannot_be_validated_are_refused(tmp_path: Path) -> None:
    photo(tmp_path / "g10" / "a.png", 10)

    class Broken(Shades):
        def forward(self, images: Tensor) -> Tensor:
            return torch.full((len(images), 7), float("nan"))

    for message, model, options in [
        ("classifier", Shades(None), {}),
        ("classifier", Shades(dataclasses.replace(ABOUT, labels=())), {}),
        ("at least 1, got", Shades(), {"batch_size": 0}),
        ("at least 1, got", Shades(), {"limit": 0}),
        ("NaN", Broken(), {}),
    ]:
        with pytest.raises(EvaluationError, match=message):
            validate(model, tmp_path, **options)


def test_classes_of_named_data_sets_are_matched_by_name(tmp_path: Path) -> None:
    labels = tuple("3456789")  # the model knows seven of ten digits
    digits = torch.arange(10)
    shades = torch.tensor([0, 0, 0, *SHADES])
    for half in ("train", "t10k"):
        for kind, values in (("images-idx3", shades[:, None, None].expand(10, 28, 28)), ("labels-idx1", digits)):
            (tmp_path / f"{half}-{kind}-ubyte").write_bytes(data_files.idx(values.byte().numpy()))
    fewer = dataclasses.replace(ABOUT, labels=labels, class_ids=labels)
    with pytest.raises(EvaluationError, match="10 classes of mnist, got one that lacks 0, 1, 2"):
        validate(Shades(fewer), "mnist", root=tmp_path)

    class Digits(Shades):
        """Model whose classes are the digits in reverse, ranked by shade and then by digit."""

        def __init__(self) -> None:
            ViT.__init__(self, dataclasses.replace(CONFIG, classes=10), about)
            self.shapes = []

        def forward(self, images: Tensor) -> Tensor:
            near = -(images.mean((1, 2, 3))[:, None] * 255 - shades).abs() - 1e-3 * torch.arange(10)
            return near.flip(1)

    names = tuple(reversed("0123456789"))
    about = dataclasses.replace(ABOUT, labels=names, class_ids=())
    result = validate(Digits(), "mnist", root=tmp_path, batch_size=3)
    # 2, 1 and 0 have the same shade, and 0 is predicted.
    assert [row[:3] for row in result.per_class] == [(name, 1, float(name not in "12")) for name in names]
    assert result.mistakes() == [("2", "0", 1), ("1", "0", 1)]
    assert validate(Digits(), "mnist", root=tmp_path, limit=4).images == 4


def test_gathered_batches_of_processes_are_counted() -> None:
    inputs = torch.tensor(SHADES).float().repeat(3)[:, None, None, None].expand(-1, 3, 4, 4) / 255
    true = torch.arange(7).repeat(3)
    data = [(inputs[start : start + 4], true[start : start + 4]) for start in range(0, 21, 4)]
    calls: list[tuple[int, float]] = []
    network = Shades().train()
    single = measure_accuracy(network, data, ABOUT.labels, progress=lambda *args: calls.append(args), model="shades")
    assert network.training
    assert (single.images, single.top1, single.model) == (21, 1.0, "shades")
    assert calls == [(done, 1.0) for done in (4, 8, 12, 16, 20, 21)]
    double = measure_accuracy(Shades(), data, ABOUT.labels, gather=lambda batch: tuple(x.repeat(2) for x in batch))
    assert double.images == 42
    assert double.loss == pytest.approx(single.loss)
    assert double.confusion()[1].tolist() == (6 * np.eye(7, dtype=int)).tolist()
    with pytest.raises(EvaluationError, match="at least one batch"):
        measure_accuracy(Shades(), [], ABOUT.labels)
