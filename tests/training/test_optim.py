"""Test losses, parameter groups, schedules and recipes against timm and torch, and teachers with other classes."""

import dataclasses
import json
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from timm.task import LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import TrainingError
from vitviz.training.losses import training_loss
from vitviz.training.network import freeze
from vitviz.training.optim import make_optimizer, warmup_then
from vitviz.training.recipes import RECIPES, Recipe
from vitviz.training.teachers import Classifier, Teacher, class_columns

pytestmark = pytest.mark.usefixtures("one_thread")


def by_name(model: nn.Module, groups: Any, key: str) -> dict[str, float]:
    """Return a setting of each parameter by its name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group[key] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("decay", [1.0, 0.7])
def test_parameter_groups_match_timm(decay: float) -> None:
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import param_groups_layer_decay

    theirs = VisionTransformer(
        img_size=8, embed_dim=12, num_heads=3, reg_tokens=2, init_values=0.1, patch_size=4, depth=5, num_classes=7
    )
    sizes = {"image_size": (8, 8), "patch_size": 4, "width": 12, "heads": 3, "depth": 5, "classes": 7}
    ours = ViT(ViTConfig(**sizes, registers=2, layer_scale=0.1))
    groups = make_optimizer(ours, Recipe(lr=0.01, layer_decay=decay, weight_decay=0.03)).param_groups
    expected = param_groups_layer_decay(
        theirs, weight_decay=0.03, layer_decay=decay, no_weight_decay_list=theirs.no_weight_decay()
    )
    scales = by_name(theirs, expected, "lr_scale")
    assert set(scales) == {name for name, _ in ours.named_parameters()}
    assert by_name(ours, groups, "lr") == pytest.approx({name: 0.01 * scale for name, scale in scales.items()})
    assert by_name(ours, groups, "weight_decay") == by_name(theirs, expected, "weight_decay")


@pytest.mark.parametrize("changes", tiny.KINDS.values(), ids=tiny.KINDS)
def test_every_parameter_is_in_one_group_with_its_rate_and_decay(changes: dict[str, Any]) -> None:
    model = tiny.model(**changes)
    groups = make_optimizer(model, Recipe(lr=2e-3, head_lr=5e-2, layer_decay=0.5, weight_decay=0.1)).param_groups
    peaks, decay = by_name(model, groups, "lr"), by_name(model, groups, "weight_decay")
    assert sum(len(group["params"]) for group in groups) == len(peaks) == len(list(model.parameters()))
    depth = model.config.depth
    for name in peaks:
        if name.startswith(("head", "attn_pool")):
            expected = 5e-2
        elif name.startswith("blocks."):
            expected = 2e-3 * 0.5 ** (depth - int(name.split(".")[1]))
        elif name.startswith("norm."):
            expected = 2e-3 * (1.0 if changes.get("norms") == tiny.POOLED else 0.5)
        else:
            expected = 2e-3 * 0.5 ** (depth + 1)
        assert peaks[name] == pytest.approx(expected), name
        assert decay[name] == (0.1 if name.endswith("weight") and "norm" not in name else 0.0), name
    freeze(model, 0)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(by_name(model, make_optimizer(model, Recipe()).param_groups, "lr")) == learning != set(peaks)


@pytest.mark.parametrize(
    ("steps", "warmup", "final"), [(50, 10, 0.0), (37, 5, 0.1), (20, 0, 0.3), (9, 9, 0.2), (1, 0, 0.0)]
)
def test_cosine_schedule_matches_torch(steps: int, warmup: int, final: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warmup), eta_min=final)
    expected = [(step + 1) / warmup for step in range(warmup)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that the optimizer made no step
        for _ in range(steps - warmup):
            expected.append(optimizer.param_groups[0]["lr"])
            cosine.step()
    assert [*map(warmup_then("cosine", steps, warmup, final), range(steps))] == pytest.approx(expected)


def test_other_schedules_and_sgd_follow_the_recipe() -> None:
    line, flat = (warmup_then(name, 20, 4, 0.1) for name in ("linear", "constant"))
    assert [line(step) for step in (0, 3, 4, 12, 20)] == pytest.approx([0.25, 1.0, 1.0, 0.55, 0.1])
    assert [flat(step) for step in (0, 4, 19)] == [0.25, 1.0, 1.0]
    sgd = make_optimizer(tiny.model(), Recipe(optimizer="sgd", lr=0.25, betas=(0.75, 0.5), weight_decay=0.125))
    assert isinstance(sgd, torch.optim.SGD)
    assert {(group["momentum"], group["nesterov"], group["lr"]) for group in sgd.param_groups} == {(0.75, True, 0.25)}
    assert {group["weight_decay"] for group in sgd.param_groups} == {0.0, 0.125}


def test_adam_matches_torch() -> None:
    ours, theirs = tiny.model(), tiny.model()
    recipe = Recipe(optimizer="adam", lr=3e-3, betas=(0.8, 0.99), weight_decay=0.3)
    step = make_optimizer(ours, recipe)
    decayed = [p for name, p in theirs.named_parameters() if name.endswith("weight") and "norm" not in name]
    others = [p for name, p in theirs.named_parameters() if not (name.endswith("weight") and "norm" not in name)]
    groups = [{"params": decayed, "weight_decay": 0.3}, {"params": others}]
    expected = torch.optim.Adam(groups, lr=3e-3, betas=(0.8, 0.99))
    for model, optimizer in ((ours, step), (theirs, expected)):
        model(tiny.images(2)).square().sum().backward()
        optimizer.step()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=0, atol=1e-6)


def test_named_recipes_are_serializable_and_valid() -> None:
    for name, known in RECIPES.items():
        assert Recipe(**json.loads(json.dumps(dataclasses.asdict(known.recipe)))) == known.recipe
        assert known.recipe.name == name
        assert known.about
        assert not known.reached or "version 0.1.0" in known.reached
        if known.model:
            ViTConfig(**known.model)


@pytest.mark.parametrize(
    "invalid",
    [
        *({"epochs": 0}, {"epochs": 2.5}, {"batch": True}, {"lr": 0.0}, {"lr": math.nan}, {"lr": "fast"}),
        *({"head_lr": -1.0}, {"weight_decay": -0.1}, {"betas": (0.9,)}, {"betas": (0.9, 1.0)}, {"warmup": 31.0}),
        *({"smoothing": 1.0}, {"final_lr": 1.1}, {"ema": 1.0}, {"layer_decay": 0.0}, {"layer_decay": 1.1}),
        *({"accumulate": 3, "batch": 8}, {"precision": "float8"}, {"unfreeze_last": -1}, {"distill": "warm"}),
        *({"alpha": 0.5}, {"seed": -1}, {"seed": 2**63}, {"low_resolution": 1.5}, {"balance": -0.5}),
        *({"crop_padding": 1.5}, {"policy": "auto"}, {"erase": "half"}, {"mixup": -1}, {"cutmix": math.inf}),
        *({"resized_crop": (0, 1)}, {"resized_crop": (0.8, 0.5)}, {"resized_crop": (0.5,)}),
        *({"crop_padding": 4, "resized_crop": (0.5, 1.0)}, {"patch_dropout": 0.5, "unfreeze_last": 1}),
    ],
)
def test_invalid_settings_are_refused(invalid: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(invalid))):
        Recipe(**invalid)


B, C = 5, 7
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def logits(seed: int) -> Tensor:
    return 3 * torch.randn(B, C, generator=torch.Generator().manual_seed(seed))


def near(loss: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert float(loss) == pytest.approx(float(expected), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_matches_the_formula(smoothing: float) -> None:
    targets = logits(2).softmax(1)  # rows sum to 1, as after mixup
    smoothed = (1 - smoothing) * targets + smoothing / C
    expected = -(smoothed * ((logits(0) + logits(1)) / 2).log_softmax(1)).sum(1).mean()
    near(training_loss((logits(0), logits(1)), targets, Recipe(smoothing=smoothing)), expected)
    half = training_loss((logits(0).bfloat16(),), targets, Recipe())
    near(half, training_loss((logits(0).bfloat16().float(),), targets, Recipe()), 1e-7)
    assert half.dtype == torch.float32


class Fixed(nn.Module):
    """Model for a timm task, with fixed logits and no normalization."""

    pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    num_classes, in_chans, distilled_training = C, 3, False

    def __init__(self, *heads: Tensor) -> None:
        super().__init__()
        self.heads = heads

    def set_distilled_training(self, enable: bool = True) -> None:
        self.distilled_training = enable

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.heads if self.distilled_training else self.heads[0]


def test_distillation_losses_match_timm() -> None:
    assert [Recipe(distill=kind).teacher_share for kind in ("hard", "soft")] == [0.5, 0.1]  # DeiT's
    assert Recipe(distill="soft", alpha=0.0).teacher_share == 0.0
    classes = torch.tensor([3, 0, 6, 6, 1])
    images, targets = torch.zeros(B, 3, 4, 4), F.one_hot(classes, C).float()
    known = {"criterion": nn.CrossEntropyLoss(), "task_loss_weight": 0.6, "verbose": False}
    task = LogitDistillationTask(Fixed(logits(0)), Fixed(logits(9)), temperature=4.0, **known)
    recipe = Recipe(distill="soft", alpha=0.4, temperature=4.0)
    near(training_loss((logits(0),), targets, recipe, logits(9)), task(images, classes)["loss"])
    for kind in ("soft", "hard"):
        student = Fixed(logits(0), logits(1))
        task = TokenDistillationTask(student, Fixed(logits(9)), distill_type=kind, temperature=2.0, **known)
        recipe = Recipe(distill=kind, alpha=0.4, temperature=2.0)
        loss = training_loss((logits(0), logits(1)), targets, recipe, logits(9))
        near(loss, task(images, classes)["loss"])


def record(*labels: str, ids: tuple[str, ...] = (), **changes: Any) -> Pretrained:
    return Pretrained(name="some", preprocess=replace(Preprocess(), **changes), labels=labels, class_ids=ids)


LABELS = ("ox", "Church", "tench", "fig", "ray")


def test_teachers_return_logits_of_the_students_classes() -> None:
    """Teachers may be any network, with their own input size and normalization."""
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    about = record(*LABELS, mean=MEAN, std=STD, height=10, width=15, mode="squash")
    vit = tiny.model(3, grid=(2, 3), patch=5, classes=5)
    vit.pretrained = record(*LABELS, mean=MEAN, std=STD)
    images = torch.rand(2, 3, 10, 15)
    inputs = (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    for model, expected in ((vit, vit(inputs)), (Classifier(conv, about), conv.eval()(inputs))):
        teacher = Teacher(model, record("church", "ox"))
        outputs = teacher(images)
        assert not outputs.requires_grad
        torch.testing.assert_close(outputs, expected[:, [1, 0]].detach(), rtol=1e-4, atol=1e-5)
        flat = torch.full((1, 3, 35, 40), 0.3)  # resized to the teacher's size
        torch.testing.assert_close(teacher(flat), teacher(flat[:, :, :10, :15]), rtol=1e-4, atol=1e-4)
    before = teacher.fingerprint()
    with torch.no_grad():
        conv[0].weight[0, 0, 0, 0] += 1
    assert teacher.fingerprint() != before


def test_teacher_classes_are_matched_by_id_then_label() -> None:
    known = record("crane", "crane", "ox", ids=("n1", "n2", "n3"))
    assert class_columns(known, record("b", "a", ids=("n3", "n2"))) == [2, 1]
    assert class_columns(known, record("x", "y", "z", ids=("n1", "n2", "n3"))) == [0, 1, 2]
    assert class_columns(known, record("OX")) == [2]
    with pytest.raises(TrainingError, match="'crane'"):  # ambiguous
        class_columns(known, record("crane", "ox"))
    with pytest.raises(TrainingError, match="'fig'"):
        class_columns(known, record("ox", "fig", ids=("n3", "n9")))
    assert class_columns(known, record("ox", ids=("ox",))) == [2]  # a folder named after the label
    assert class_columns(record("b", "aquarium_fish"), record("aquarium fish")) == [1]
    headless = tiny.model(classes=0)
    headless.pretrained = record()
    for model in (tiny.model(), headless):
        with pytest.raises(TrainingError):
            Teacher(model, record("a", "b"))
