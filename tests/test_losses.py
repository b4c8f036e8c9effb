"""Losses against NumPy and against timm's tasks, and a teacher that knows other classes than its student."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.task import LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn

from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.training import TrainingError
from vitviz.training.features import Whole, normalised
from vitviz.training.losses import (
    Objective,
    hard_distillation,
    one_hot,
    predicted,
    soft_cross_entropy,
    soft_distillation,
)
from vitviz.training.teacher import Teacher, class_columns

pytestmark = pytest.mark.usefixtures("one_thread")
B, C = 5, 7


def logits(seed: int, count: int = C) -> Tensor:
    return 3 * torch.randn(B, count, generator=torch.Generator().manual_seed(seed))


def mixed(seed: int = 0) -> Tensor:
    """Targets as mixup makes them: rows that sum to 1."""
    return torch.rand(B, C, generator=torch.Generator().manual_seed(seed)).softmax(1)


def near(one: Tensor | float, other: Tensor | float, tolerance: float = 1e-5) -> None:
    assert float(one) == pytest.approx(float(other), rel=tolerance, abs=tolerance)


def numpy(*tensors: Tensor) -> list[NDArray]:
    return [tensor.double().numpy() for tensor in tensors]


# --- cross entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_soft_cross_entropy_is_its_formula(smoothing: float) -> None:
    z, t = numpy(logits(0), mixed())
    t = (1 - smoothing) * t + smoothing / C
    expected = -(t * log_softmax(z, axis=1)).sum(1).mean()
    near(soft_cross_entropy(logits(0), mixed(), smoothing), expected)


def test_class_numbers_are_a_case_of_probabilities() -> None:
    classes = torch.tensor([3, 0, 6, 6, 1])
    targets = one_hot(classes, C)
    assert targets.shape == (B, C)
    assert targets.argmax(1).equal(classes)
    near(soft_cross_entropy(logits(1), targets), F.cross_entropy(logits(1), classes))
    near(soft_cross_entropy(logits(1), targets, 0.2), LabelSmoothingCrossEntropy(0.2)(logits(1), classes))
    near(soft_cross_entropy(logits(1), mixed()), SoftTargetCrossEntropy()(logits(1), mixed()))


def test_losses_of_half_precision_are_computed_in_float32() -> None:
    z = logits(2).bfloat16()
    near(soft_cross_entropy(z, mixed()), soft_cross_entropy(z.float(), mixed()), 1e-7)
    assert soft_cross_entropy(z, mixed()).dtype == torch.float32
    assert soft_distillation(z, z, 2.0).dtype == hard_distillation(z, z).dtype == torch.float32


# --- distillation


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_soft_distillation_is_hintons_formula(temperature: float) -> None:
    zs, zt = numpy(logits(0), logits(1))
    q = softmax(zt / temperature, axis=1)
    kl = (q * (np.log(q) - log_softmax(zs / temperature, axis=1))).sum(1)  # (B,)
    near(soft_distillation(logits(0), logits(1), temperature), temperature**2 * kl.mean())


def test_soft_distillation_keeps_the_size_of_gradients_at_high_temperatures() -> None:
    """Hinton et al. 2015, equation 4: where T is much larger than centred logits, these are matched: (zs - zt) / C."""
    student, teacher = (z - z.mean(1, keepdim=True) for z in (logits(0), logits(1)))
    student.requires_grad_()
    soft_distillation(student, teacher, 1000.0).backward()
    torch.testing.assert_close(B * student.grad, ((student - teacher) / C).detach(), rtol=0.02, atol=1e-3)


@given(st.floats(0.3, 20.0), st.integers(0, 1000), st.integers(0, 1000), st.floats(-50, 50))
def test_distillation_is_zero_only_where_nothing_is_left_to_learn(t: float, one: int, two: int, shift: float) -> None:
    near(soft_distillation(logits(one) + shift, logits(one), t), 0.0, 1e-4)
    assert (float(soft_distillation(logits(one), logits(two), t)) > 1e-4) == (one != two)


def test_hard_distillation_takes_the_teachers_word() -> None:
    near(hard_distillation(logits(0), logits(1)), F.cross_entropy(logits(0), logits(1).argmax(1)))
    near(hard_distillation(logits(0), 5 * logits(1) + 2), hard_distillation(logits(0), logits(1)), 1e-7)


# --- what a step makes small


def test_without_a_teacher_the_prediction_is_trained() -> None:
    heads = (logits(0), logits(1))
    objective = Objective(smoothing=0.1)
    near(objective(heads, mixed()), soft_cross_entropy((logits(0) + logits(1)) / 2, mixed(), 0.1))
    near(objective(heads[:1], mixed()), soft_cross_entropy(logits(0), mixed(), 0.1))


@pytest.mark.parametrize("heads", [(logits(0),), (logits(0), logits(1))], ids=["one head", "distillation token"])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_teachers_share(heads: tuple[Tensor, ...], kind: str) -> None:
    objective = Objective(smoothing=0.1, distill=kind, alpha=0.3, temperature=2.0)
    true = soft_cross_entropy(heads[0], mixed(), 0.1)
    taught = soft_distillation(heads[-1], logits(9), 2.0) if kind == "soft" else hard_distillation(heads[-1], logits(9))
    near(objective(heads, mixed(), logits(9)), 0.7 * true + 0.3 * taught)


def test_shares_are_deits_where_nobody_says() -> None:
    assert Objective(distill="hard").share == 0.5
    assert Objective(distill="soft").share == 0.1
    assert Objective(distill="soft").temperature == 3.0
    assert Objective(distill="soft", alpha=0.0).share == 0.0


class Fixed(nn.Module):
    """What a task of timm takes for a model: logits whatever the image is, and no normalisation."""

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
    classes = torch.tensor([3, 0, 6, 6, 1])
    images, targets = torch.zeros(B, 3, 4, 4), one_hot(classes, C)
    known = {"criterion": nn.CrossEntropyLoss(), "task_loss_weight": 0.6, "verbose": False}
    one = LogitDistillationTask(Fixed(logits(0)), Fixed(logits(9)), temperature=4.0, **known)(images, classes)["loss"]
    near(Objective(distill="soft", alpha=0.4, temperature=4.0)((logits(0),), targets, logits(9)), one)
    for kind in ("soft", "hard"):
        student = Fixed(logits(0), logits(1))
        task = TokenDistillationTask(student, Fixed(logits(9)), distill_type=kind, temperature=2.0, **known)
        loss = Objective(distill=kind, alpha=0.4, temperature=2.0)((logits(0), logits(1)), targets, logits(9))
        near(loss, task(images, classes)["loss"])


def test_each_head_learns_from_its_own_teacher() -> None:
    """With hard targets of other classes, the gradient of the class head comes from the label alone."""
    heads = tuple(logits(seed).requires_grad_() for seed in (0, 1))
    Objective(distill="hard")(heads, mixed(), logits(9)).backward()
    for head, target in zip(heads, (mixed(), one_hot(logits(9).argmax(1), C)), strict=True):
        torch.testing.assert_close(head.grad, (head.detach().softmax(1) - target) / (2 * B))


@pytest.mark.parametrize(
    "settings",
    [
        {"smoothing": -0.1},
        {"smoothing": 1.5},
        {"distill": "soft", "alpha": 1.01},
        {"distill": "soft", "temperature": 0.0},
        {"distill": "soft", "temperature": float("nan")},
        {"distill": "softly"},
        {"alpha": 0.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict) -> None:
    with pytest.raises(TrainingError):
        Objective(**settings)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(TrainingError, match="one_hot"):
        soft_cross_entropy(logits(0), torch.tensor([3, 0, 6, 6, 1]))
    with pytest.raises(TrainingError, match=r"\(5, 7\).*\(5, 8\)"):
        soft_distillation(logits(0), logits(0, 8), 1.0)
    with pytest.raises(TrainingError):
        Objective()((logits(0),), mixed(), logits(1))
    with pytest.raises(TrainingError):
        Objective(distill="soft")((logits(0),), mixed())


# --- a teacher


def record(*labels: str, ids: tuple[str, ...] = (), **changes: tuple[float, ...]) -> Pretrained:
    return Pretrained(name="some", preprocess=replace(Preprocess(), **changes), labels=labels, class_ids=ids)


LABELS = ("ox", "Church", "tench", "fig", "ray")


def teacher_model() -> ViT:
    model = tiny.model(3, grid=(2, 3), patch=5, classes=5)
    model.pretrained = record(*LABELS, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    return model


def pixels(height: int, width: int) -> Tensor:
    return torch.randint(0, 256, (2, 3, height, width), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_a_teacher_answers_in_its_students_classes() -> None:
    teacher = Teacher(teacher_model(), record("church", "ox"))
    images = pixels(10, 15)
    fed = (images.double().numpy() / 255 - np.array([[[0.1]], [[0.2]], [[0.3]]])) / np.array(
        [[[0.5]], [[0.6]], [[0.7]]]
    )
    expected = teacher_model()(torch.from_numpy(fed).float())[:, [1, 0]]
    answer = teacher(images)
    assert not answer.requires_grad
    torch.testing.assert_close(answer, expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(teacher(images.float()), answer)  # as mixup makes them


def test_a_teacher_of_another_size_scales_the_pixels() -> None:
    teacher = Teacher(teacher_model(), record(*LABELS))
    flat = torch.full((1, 3, 35, 40), 77, dtype=torch.uint8)
    torch.testing.assert_close(teacher(flat), teacher(flat[:, :, :10, :15]), rtol=1e-4, atol=1e-4)
    assert teacher(pixels(35, 40)).shape == (2, 5)


def test_classes_are_found_by_id_before_label() -> None:
    known = record("crane", "crane", "ox", ids=("n1", "n2", "n3"))
    assert class_columns(known, record("b", "a", ids=("n3", "n2"))).tolist() == [2, 1]
    assert class_columns(known, record("x", "y", "z", ids=("n1", "n2", "n3"))) is None
    assert class_columns(known, record("OX")).tolist() == [2]
    with pytest.raises(TrainingError, match="'crane'"):  # which of the two?
        class_columns(known, record("crane", "ox"))
    with pytest.raises(TrainingError, match="'n9'"):  # another ox, as its id says
        class_columns(known, record("ox", "crane", ids=("n9", "n1")))
    assert class_columns(known, record("ox", ids=("ox",))).tolist() == [2]  # a folder of one's own
    assert class_columns(record("b", "aquarium_fish"), record("aquarium fish")).tolist() == [1]


def test_a_teacher_without_a_classifier_is_refused() -> None:
    with pytest.raises(TrainingError):
        Teacher(tiny.model(), record("a", "b"))
    model = tiny.model(classes=0)
    model.pretrained = record()
    with pytest.raises(TrainingError):
        Teacher(model, record("a", "b"))


def test_a_teachers_fingerprint_tells_teachers_apart() -> None:
    first = Teacher(teacher_model(), record(*LABELS)).fingerprint()
    assert first == Teacher(teacher_model(), record(*LABELS)).fingerprint()
    fed = teacher_model()
    fed.pretrained = record(*LABELS, mean=(0.0, 0.0, 0.0))
    others = [Teacher(fed, record(*LABELS)), Teacher(teacher_model(), record("ox", "ray"))]
    assert len({first, *(one.fingerprint() for one in others)}) == 3


def test_a_student_learns_what_its_teacher_says() -> None:
    """Labels that are always the same and a teacher that tells images apart: the student of the latter does too."""
    torch.manual_seed(0)
    student = tiny.model(0, grid=(2, 3), patch=5, classes=5, distillation_token=True)
    student.pretrained = record(*LABELS)
    teacher = Teacher(teacher_model(), student.pretrained)
    seen = torch.randint(0, 256, (16, 3, 10, 15), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    with torch.no_grad():
        teacher.model.head.bias -= teacher(seen).mean(0)
    said = teacher(seen)
    assert len(said.argmax(1).unique()) > 1
    targets = one_hot(torch.zeros(16, dtype=torch.long), 5)
    objective, whole = Objective(distill="hard"), Whole(student)
    optimiser = torch.optim.Adam(whole.parameters(), lr=3e-3)
    images = normalised(seen, student.pretrained.preprocess)
    for _ in range(60):
        optimiser.zero_grad()
        objective(whole(images), targets, said).backward()
        optimiser.step()
    first, second = whole(images)
    assert first.argmax(1).equal(targets.argmax(1))
    assert second.argmax(1).equal(said.argmax(1))
    torch.testing.assert_close(predicted((first, second)), student(images))
