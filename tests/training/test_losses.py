"""Losses against NumPy and against timm's tasks, and a teacher that knows other classes than its student."""

from dataclasses import replace

import pytest
import tiny
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import log_softmax
from timm.task import LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn

from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.losses import training_loss
from vitviz.training.recipes import Recipe
from vitviz.training.teachers import Classifier, Teacher, class_columns

pytestmark = pytest.mark.usefixtures("one_thread")
B, C = 5, 7
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def logits(seed: int, count: int = C) -> Tensor:
    return 3 * torch.randn(B, count, generator=torch.Generator().manual_seed(seed))


def mixed(seed: int = 0) -> Tensor:
    """Targets as mixup makes them: rows that sum to 1."""
    return torch.rand(B, C, generator=torch.Generator().manual_seed(seed)).softmax(1)


def near(one: Tensor | float, other: Tensor | float, tolerance: float = 1e-5) -> None:
    assert float(one) == pytest.approx(float(other), rel=tolerance, abs=tolerance)


def numpy(*tensors: Tensor) -> list[NDArray]:
    return [tensor.double().numpy() for tensor in tensors]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_is_its_formula(smoothing: float) -> None:
    z, t = numpy((logits(0) + logits(1)) / 2, mixed())
    t = (1 - smoothing) * t + smoothing / C
    expected = -(t * log_softmax(z, axis=1)).sum(1).mean()
    near(training_loss((logits(0), logits(1)), mixed(), Recipe(smoothing=smoothing)), expected)
    half = training_loss((logits(0).bfloat16(),), mixed(), Recipe())
    near(half, training_loss((logits(0).bfloat16().float(),), mixed(), Recipe()), 1e-7)
    assert half.dtype == torch.float32


class Fixed(nn.Module):
    """What a task of timm takes for a model: logits whatever the image is, and no normalization."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    num_classes, in_chans = C, 3

    def __init__(self, *answers: Tensor) -> None:
        super().__init__()
        self.answers = answers
        self.distilled_training = False

    def set_distilled_training(self, enable: bool = True) -> None:
        self.distilled_training = enable

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.answers if self.distilled_training else self.answers[0]


def test_the_loss_is_timms() -> None:
    assert [Recipe(distill=kind).teacher_share for kind in ("hard", "soft")] == [0.5, 0.1]  # DeiT's
    assert Recipe(distill="soft", alpha=0.0).teacher_share == 0.0
    classes = torch.tensor([3, 0, 6, 6, 1])
    images, targets = torch.zeros(B, 3, 4, 4), F.one_hot(classes, C).float()
    known = {"criterion": nn.CrossEntropyLoss(), "task_loss_weight": 0.6, "verbose": False}
    one = LogitDistillationTask(Fixed(logits(0)), Fixed(logits(9)), temperature=4.0, **known)(images, classes)["loss"]
    near(training_loss((logits(0),), targets, Recipe(distill="soft", alpha=0.4, temperature=4.0), logits(9)), one)
    for kind in ("soft", "hard"):
        student = Fixed(logits(0), logits(1))
        task = TokenDistillationTask(student, Fixed(logits(9)), distill_type=kind, temperature=2.0, **known)
        recipe = Recipe(distill=kind, alpha=0.4, temperature=2.0)
        loss = training_loss((logits(0), logits(1)), targets, recipe, logits(9))
        near(loss, task(images, classes)["loss"])


# --- a teacher


def record(*labels: str, ids: tuple[str, ...] = (), **changes: tuple[float, ...]) -> Pretrained:
    return Pretrained(name="some", preprocess=replace(Preprocess(), **changes), labels=labels, class_ids=ids)


LABELS = ("ox", "Church", "tench", "fig", "ray")


def teacher_model() -> ViT:
    model = tiny.model(3, grid=(2, 3), patch=5, classes=5)
    model.pretrained = record(*LABELS, mean=MEAN, std=STD)
    return model


def pixels(height: int, width: int) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_a_teacher_answers_in_its_students_classes() -> None:
    """It is a network of any kind, fed at its own size in its own way."""
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    about = record(*LABELS, mean=MEAN, std=STD)
    about = replace(about, preprocess=replace(about.preprocess, height=10, width=15, mode="squash"))
    images = pixels(10, 15) / 255
    fed = (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    network = Classifier(conv, about)
    for model, expected in ((teacher_model(), teacher_model()(fed)), (network, conv.eval()(fed))):
        teacher = Teacher(model, record("church", "ox"))
        answer = teacher(images)
        assert not answer.requires_grad
        torch.testing.assert_close(answer, expected[:, [1, 0]].detach(), rtol=1e-4, atol=1e-5)
        flat = torch.full((1, 3, 35, 40), 0.3)  # of another size: scaled
        torch.testing.assert_close(teacher(flat), teacher(flat[:, :, :10, :15]), rtol=1e-4, atol=1e-4)
        assert teacher(pixels(35, 40) / 255).shape == (2, 2)
    before = teacher.fingerprint()
    with torch.no_grad():
        conv[0].weight[0, 0, 0, 0] += 1
    assert teacher.fingerprint() != before


def test_classes_are_found_by_id_before_label() -> None:
    known = record("crane", "crane", "ox", ids=("n1", "n2", "n3"))
    assert class_columns(known, record("b", "a", ids=("n3", "n2"))) == [2, 1]
    assert class_columns(known, record("x", "y", "z", ids=("n1", "n2", "n3"))) == [0, 1, 2]
    assert class_columns(known, record("OX")) == [2]
    with pytest.raises(TrainingError, match="'crane'"):  # which of the two?
        class_columns(known, record("crane", "ox"))
    with pytest.raises(TrainingError, match="'fig'"):
        class_columns(known, record("ox", "fig", ids=("n3", "n9")))
    assert class_columns(known, record("ox", ids=("ox",))) == [2]  # a folder of one's own
    assert class_columns(record("b", "aquarium_fish"), record("aquarium fish")) == [1]


def test_a_teacher_without_a_classifier_is_refused() -> None:
    headless = tiny.model(classes=0)
    headless.pretrained = record()
    for model in (tiny.model(), headless):
        with pytest.raises(TrainingError):
            Teacher(model, record("a", "b"))
