"""Define training recipes: all settings except model and data.

Loshchilov and Hutter 2019 (AdamW), 2017 (cosine); Goyal et al. 2017 (warm-up); Szegedy et al. 2016 (label smoothing);
Huang et al. 2016 (stochastic depth); Liu et al. 2022 (PatchDropout); Polyak and Juditsky 1992 (averaged weights); Bao
et al. 2022, "BEiT" (layer-wise learning rates); Mahajan et al. 2018 (square-root sampling); Hinton et al. 2015 and
Touvron et al. 2021 (soft and hard distillation); Müller and Hutter 2021 (TrivialAugment), Cubuk et al. 2020
(RandAugment), Zhong et al. 2020 (random erasing), Zhang et al. 2018 (MixUp), Yun et al. 2019 (CutMix).
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitviz.fields import check_fields
from vitviz.training import TrainingError

AUGMENTATION = ("low_resolution", "resized_crop", "crop_padding", "flip", "policy", "erase", "mixup", "cutmix")
"""Names of the augmentation settings."""
INF, ABOVE_ZERO, BELOW_ONE = math.inf, 1e-30, 0.999999  # for inclusive ranges
TEACHER_SHARE = {"none": 0.0, "soft": 0.1, "hard": 0.5}
"""The teacher's share of the loss, as in the DeiT paper (Touvron et al. 2021, sections 4 and 5.2)."""


def _number(default: Any, least: float, most: float, about: str, kind: type = float, count: int | None = None) -> Any:
    """Return a dataclass field for a number from `least` to `most`, or for `count` of them."""
    return field(default=default, metadata={"range": (least, most), "type": kind, "nargs": count, "help": about})


def _choice(default: bool | str, about: str) -> Any:
    """Return a dataclass field for a flag or a `Literal`."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training settings. The text of each field is also the help of its option.

    Raises:
        TrainingError: if values are out of range or exclude each other.
    """

    name: str = "custom"
    epochs: int = _number(30, 1, INF, "passes over the data; the warm-up scales with them", int)
    batch: int = _number(128, 1, INF, "images per step, over all processes and parts", int)
    lr: float = _number(1e-3, ABOVE_ZERO, INF, "learning rate after warm-up, for a full batch")
    head_lr: float | None = _number(None, ABOVE_ZERO, INF, "learning rate of the classifier (default: the same)")
    layer_decay: float = _number(1.0, ABOVE_ZERO, 1, "learning rate of a block relative to the next block")
    optimizer: Literal["adamw", "adam", "sgd"] = _choice(
        "adamw", "AdamW; Adam, with weight decay in the gradient; or SGD with Nesterov momentum"
    )
    weight_decay: float = _number(0.05, 0, INF, "weight decay, except for biases, norms, scales, tokens and positions")
    betas: tuple[float, float] = _number(
        (0.9, 0.999), 0, BELOW_ONE, "betas of Adam; the first is the momentum of SGD", count=2
    )
    schedule: Literal["cosine", "linear", "constant"] = _choice("cosine", "schedule of the learning rate after warm-up")
    warmup: float = _number(1.0, 0, INF, "epochs of linear warm-up")
    final_lr: float = _number(0.0, 0, 1, "learning rate at the end of the schedule, as a share of --lr")
    balance: float = _number(
        0.0,
        0,
        1,
        "sample a class of n images in proportion to n^(1 - X), with replacement: 0.5: square root, 1: evenly",
    )
    smoothing: float = _number(0.0, 0, BELOW_ONE, "label smoothing: share of the target spread over all classes")
    dropout: float = _number(0.0, 0, BELOW_ONE, "dropout of tokens and branches")
    attention_dropout: float = _number(0.0, 0, BELOW_ONE, "dropout of attention probabilities")
    path_dropout: float = _number(
        0.0, 0, BELOW_ONE, "stochastic depth of the last block, decreasing linearly to the first"
    )
    patch_dropout: float = _number(
        0.0, 0, BELOW_ONE, "share of patches dropped from each image, except in the last fifth"
    )
    ema: float = _number(0.0, 0, BELOW_ONE, "decay of the running mean of the weights, which is saved; 0: none")
    clip: float = _number(1.0, 0, INF, "maximum norm of the gradient; 0: no limit")
    accumulate: int = _number(1, 1, INF, "split each batch into parts to save memory", int)
    precision: Literal["float32", "bfloat16", "float16"] = _choice(
        "float32", "precision of matrix products; weights stay float32"
    )
    compile: bool = _choice(False, "use torch.compile")
    seed: int = _number(0, 0, 9e18, "seed of order, augmentation and dropout", int)
    unfreeze_last: int | None = _number(
        None, 0, INF, "train only the last K blocks and the head (default: everything)", int
    )
    distill: Literal["none", "soft", "hard"] = _choice(
        "none", "learn the teacher's probabilities, or its most probable class"
    )
    alpha: float | None = _number(None, 0, 1, "teacher's share of the loss (default: 0.1 soft, 0.5 hard)")
    temperature: float = _number(3.0, ABOVE_ZERO, INF, "temperature of soft targets")
    low_resolution: float = _number(0.0, 0, 1, "share of images scaled down (to a quarter at most) and up again")
    resized_crop: tuple[float, float] | None = _number(
        None, ABOVE_ZERO, 1, "crop between these shares of the area", count=2
    )
    crop_padding: int = _number(0, 0, INF, "black padding in pixels before a random crop", int)
    flip: bool = _choice(False, "mirror half of the images")
    policy: Literal["none", "trivial", "rand"] = _choice("none", "TrivialAugment Wide or RandAugment")
    erase: float = _number(0.0, 0, 1, "share of images with an erased rectangle")
    augment_together: int = _number(
        1, 1, INF, "images of a batch with the same crop, flip, policy and erasing; more are faster", int
    )
    mixup: float = _number(0.0, 0, INF, "blend pairs of images; alpha of the Beta distribution")
    cutmix: float = _number(0.0, 0, INF, "paste a part of another image; with --mixup, each batch uses one of the two")

    def __post_init__(self) -> None:
        fields = dataclasses.fields(self)
        ranges = {setting.name: setting.metadata["range"] for setting in fields if "range" in setting.metadata}
        check_fields(self, TrainingError, ranges)
        if self.warmup > self.epochs:
            raise TrainingError(f"Expected warmup of at most all {self.epochs} epochs, got {self.warmup}. Shorten it.")
        if self.batch % self.accumulate:
            raise TrainingError(f"Expected accumulate to divide {self.batch}, got {self.accumulate}. Choose a divisor.")
        if self.resized_crop is not None and self.resized_crop[0] > self.resized_crop[1]:
            raise TrainingError(f"Expected resized_crop as (least, most), got {self.resized_crop}. Swap them.")
        if self.resized_crop is not None and self.crop_padding:
            raise TrainingError("Expected crop_padding or resized_crop, got both. Leave one out.")
        if self.schedule == "constant" and self.final_lr:
            raise TrainingError(
                f"Expected no final_lr for a constant schedule, got {self.final_lr:g}. Leave it out, or choose cosine "
                "or linear."
            )
        if self.optimizer == "sgd" and not self.betas[0]:
            raise TrainingError("Expected momentum for SGD, got 0. Raise the first of --betas.")
        if self.alpha and self.distill == "none":
            raise TrainingError("Expected no alpha without a teacher, got one and distill='none'. Choose soft or hard.")
        if self.patch_dropout and self.unfreeze_last is not None and not self.augments:
            raise TrainingError(
                "Expected no patch_dropout for frozen features, which are computed once from all patches, got "
                f"{self.patch_dropout}. Leave it out, or train every block."
            )

    @property
    def augments(self) -> bool:
        """Return whether training images are augmented."""
        return any(getattr(self, name) != getattr(Recipe, name) for name in AUGMENTATION)

    @property
    def teacher_share(self) -> float:
        """Return the teacher's share of the loss, 0..1."""
        return TEACHER_SHARE[self.distill] if self.alpha is None else self.alpha


@dataclass(frozen=True, kw_only=True)
class KnownRecipe:
    """Named recipe.

    Args:
        recipe: the settings.
        about: a description in one sentence.
        model: fields of `ViTConfig`, except the data's image size and classes; empty for a recipe that starts from a
            pretrained model.
        reached: top-1 of the last weights on the validation images, with the conditions; empty if the recipe has not
            been run completely. The commands are in docs/training.md.
    """

    recipe: Recipe
    about: str
    model: Mapping[str, Any] = field(default_factory=dict)
    reached: str = ""


_CIFAR: dict[str, Any] = {"image_size": (32, 32), "patch_size": 4}
_CIFAR_MEAN = {**_CIFAR, "class_token": False, "pooling": "mean"}
_CROP_FLIP: dict[str, Any] = {"crop_padding": 4, "flip": True}
_REGULARIZED: dict[str, Any] = {"smoothing": 0.1, "path_dropout": 0.1, "ema": 0.9995}
_SMALL_STEPS: dict[str, Any] = {"batch": 64, "precision": "bfloat16", "policy": "rand", **_CROP_FLIP, **_REGULARIZED}
_V010 = "version 0.1.0 on two cores of an AMD EPYC"

_ALL = (
    KnownRecipe(
        recipe=Recipe(name="tiny-cifar10", epochs=60, batch=128, lr=2e-3, warmup=5.0, ema=0.999, **_CROP_FLIP),
        about="A small ViT from scratch, on two cores: 4 blocks of width 48.",
        model={**_CIFAR, "width": 48, "depth": 4, "heads": 4},
        reached=f"76.40 % in 43 minutes, {_V010}",
    ),
    KnownRecipe(
        recipe=Recipe(name="vit-cifar10", epochs=50, lr=1e-3, warmup=2.0, **_SMALL_STEPS),
        about="A plain ViT from scratch, on two cores: 6 blocks of width 192.",
        model={**_CIFAR_MEAN, "width": 192, "depth": 6, "heads": 6, "positions": "sincos"},
        reached=f"82.31 % in 3.9 hours, {_V010}",
    ),
    KnownRecipe(
        recipe=Recipe(name="vit-cifar10-more", epochs=32, lr=6e-4, warmup=1.0, mixup=0.2, cutmix=1.0, **_SMALL_STEPS),
        about="Continue --from a model of vit-cifar10: a second cosine schedule with mixed images.",
        reached=f"84.21 % in 1.5 hours, {_V010}",
    ),
    KnownRecipe(
        recipe=Recipe(
            name="vit-cifar10-gpu", epochs=200, batch=512, lr=1e-3, warmup=10.0, policy="trivial", erase=0.25,
            augment_together=8, mixup=0.2, cutmix=1.0, precision="bfloat16", **_CROP_FLIP, **_REGULARIZED,
        ),
        about="A larger ViT, trained longer with stronger augmentation, on a GPU.",
        model={**_CIFAR_MEAN, "width": 256, "depth": 7, "heads": 4},
    ),
    KnownRecipe(
        recipe=Recipe(name="fashion-mnist", epochs=5, batch=128, lr=5e-3, warmup=0.5, weight_decay=0.0),
        about="Two blocks of width 8 on 7 × 7 patches: about a minute on a laptop.",
        model={"image_size": (28, 28), "patch_size": 4, "width": 8, "depth": 2, "heads": 2, "positions": "sincos"},
        reached=f"81.05 % in 1.4 minutes, {_V010}",
    ),
    KnownRecipe(
        recipe=Recipe(name="head", epochs=5, batch=16, lr=1e-2, warmup=0.5, weight_decay=0.0, unfreeze_last=0),
        about="A new classifier on a frozen pretrained backbone; its features are computed once.",
        reached=f"96.00 % on three classes of 75 images in 2.5 minutes, {_V010}",
    ),
    KnownRecipe(
        recipe=Recipe(
            name="finetune", epochs=3, batch=32, lr=5e-5, head_lr=1e-3, warmup=0.3, layer_decay=0.75, unfreeze_last=4
        ),
        about="The last four blocks of a pretrained model at a low rate, which preserves its attention.",
        reached=f"97.12 % on Imagenette in 43 minutes, {_V010}",
    ),
)  # fmt: skip

RECIPES: dict[str, KnownRecipe] = {known.recipe.name: known for known in _ALL}
