"""Recipes: everything that a training is made with beside the model and the data, as plain data.

Loshchilov and Hutter 2019 (AdamW), 2017 (cosine); Goyal et al. 2017 (warm-up); Szegedy et al. 2016 (label smoothing);
Huang et al. 2016 (stochastic depth); Polyak and Juditsky 1992 (averaged weights); Bao et al. 2022, "BEiT" (layer-wise
learning rates).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vitviz.training import TrainingError
from vitviz.training.augment import Augment
from vitviz.training.losses import Distill, Objective

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Args:
        name: for people and for the model card.
        epochs: how often each training image is seen.
        batch: images of one step, of all processes and all accumulated parts together.
        lr: the learning rate after warm-up, for a step of `batch` images.
        head_lr: that of the classifier; `None` for the same.
        weight_decay: of AdamW. Biases, norms, layer scales, prefix tokens and positions have none.
        betas: of AdamW.
        warmup: epochs, whole or not, in which the rate grows linearly from zero.
        final_lr: the rate at the end of the cosine, as a share of `lr`.
        smoothing: label smoothing, the share of the target that is spread over all classes.
        augment: what is done to training images.
        path_dropout: stochastic depth of the last block; that of block i grows linearly from zero.
        patch_dropout: the share of its patches that each training image goes without, until the last fifth of the
            training; see `vitviz.training.thinning`.
        dropout: of tokens and branches.
        ema: decay of the running mean of the weights that is validated and saved; 0 for none.
        clip: the longest that the gradient of all weights together may be; 0 for any.
        layer_decay: the rate of each block is so many times that of the next one; 1 for the same.
        accumulate: the parts that a process runs its share of a batch in, for less memory.
        precision: of matrix products and attention; weights and their updates stay float32.
        compile: whether `torch.compile` makes the model faster after a slow start.
        seed: what all randomness comes from: order, augmentation, dropout.
        unfreeze_last: how many of the last blocks learn beside the classifier; 0 for a frozen backbone, `None` for
            everything. What stays frozen is computed once where there is no augmentation.
        distill: what is learnt from a teacher, if anything.
        alpha: the teacher's share of the loss; `None` for DeiT's.
        temperature: of a teacher's soft targets.

    Raises:
        TrainingError: for values that make no sense.
    """

    name: str = "custom"
    epochs: int = 30
    batch: int = 128
    lr: float = 1e-3
    head_lr: float | None = None
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: float = 1.0
    final_lr: float = 0.0
    smoothing: float = 0.0
    augment: Augment = field(default_factory=Augment)
    path_dropout: float = 0.0
    patch_dropout: float = 0.0
    dropout: float = 0.0
    ema: float = 0.0
    clip: float = 1.0
    layer_decay: float = 1.0
    accumulate: int = 1
    precision: Precision = "float32"
    compile: bool = False
    seed: int = 0
    unfreeze_last: int | None = None
    distill: Distill = "none"
    alpha: float | None = None
    temperature: float = 3.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate"):
            _check_whole(name, getattr(self, name), 1)
        _check_whole("seed", self.seed, 0)
        if self.seed >= 2**63:
            raise TrainingError(f"seed: expected a whole number below 2^63, got {self.seed}.")
        object.__setattr__(self, "betas", tuple(self.betas))  # JSON knows lists only
        if len(self.betas) != 2:
            raise TrainingError(f"betas: expected two numbers, such as (0.9, 0.999), got {self.betas}.")
        _check_number("lr", self.lr, above=0.0)
        if self.head_lr is not None:
            _check_number("head_lr", self.head_lr, above=0.0)
        for name in ("weight_decay", "warmup", "clip"):
            _check_number(name, getattr(self, name))
        for name in ("smoothing", "path_dropout", "patch_dropout", "dropout", "ema"):
            _check_number(name, getattr(self, name), below=1.0)
        for beta in self.betas:
            _check_number("betas", beta, below=1.0)
        _check_number("final_lr", self.final_lr, most=1.0)
        _check_number("layer_decay", self.layer_decay, above=0.0, most=1.0)
        if self.warmup > self.epochs:
            raise TrainingError(f"warmup: expected at most all {self.epochs} epochs, got {self.warmup}.")
        if self.precision not in get_args(Precision):
            raise TrainingError(f"precision: expected one of {get_args(Precision)}, got {self.precision!r}.")
        if self.batch % self.accumulate:
            raise TrainingError(
                f"accumulate: expected a number that divides the batch of {self.batch}, got {self.accumulate}."
            )
        if self.unfreeze_last is not None:
            _check_whole("unfreeze_last", self.unfreeze_last, 0)
            if self.patch_dropout and not self.augments:
                raise TrainingError(
                    f"patch_dropout: what stays frozen is computed once, from all patches; expected 0, got "
                    f"{self.patch_dropout}. Leave it out, or let every block learn."
                )
        self.objective()  # which checks its own

    @property
    def augments(self) -> bool:
        """Whether a training image looks different in each epoch."""
        return self.augment != Augment(group=self.augment.group)

    def objective(self) -> Objective:
        """The loss that this recipe makes small."""
        return Objective(smoothing=self.smoothing, distill=self.distill, alpha=self.alpha, temperature=self.temperature)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` wrote. Unknown names are refused."""
        known = {one.name for one in dataclasses.fields(cls)}
        if unknown := sorted(set(data) - known):
            raise TrainingError(f"Unknown settings of a recipe {unknown}: expected only {sorted(known)}.")
        return cls(**{**data, **({"augment": _augment(data["augment"])} if "augment" in data else {})})


def _augment(value: Augment | Mapping[str, Any]) -> Augment:
    if isinstance(value, Augment):
        return value
    settings: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
    return Augment(**settings)


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TrainingError(f"{name}: expected a whole number of at least {least}, got {value!r}.")


def _check_number(
    name: str, value: object, *, above: float | None = None, below: float | None = None, most: float = math.inf
) -> None:
    """Refuse what is no finite number, at least 0 or above `above`, and below `below` or at most `most`."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if fits:
        assert isinstance(value, (int, float))
        fits = (value >= 0 if above is None else value > above) and (value <= most if below is None else value < below)
    if not fits:
        low = "at least 0" if above is None else f"above {above:g}"
        high = f" and below {below:g}" if below is not None else (f" and at most {most:g}" if most < math.inf else "")
        raise TrainingError(f"{name}: expected a number {low}{high}, got {value!r}.")


# ---- named ones


@dataclass(frozen=True)
class Reached:
    """What a recipe reached, and where: top-1 of the last weights on the validation split, 0..1."""

    top1: float
    minutes: float
    machine: str
    command: str
    seed: int = 0

    def __str__(self) -> str:
        """For people: "81.05 % in 1.4 minutes"."""
        return f"{100 * self.top1:.2f} % in {self.minutes:g} minutes"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A recipe by name.

    Args:
        recipe: what to train with.
        about: a sentence for people.
        data: the data it was made for.
        model: fields of `ViTConfig` that it was made for, beside the data's image size and classes; empty for a
            recipe that starts from a pretrained model.
        reached: measured results; empty where nobody has run it to its end.
    """

    recipe: Recipe
    about: str
    data: str
    model: Mapping[str, Any] = field(default_factory=dict)
    reached: tuple[Reached, ...] = ()


_EPYC = "two cores of an AMD EPYC, torch 2.13.0 on the CPU"


def _known(
    name: str,
    about: str,
    data: str,
    model: Mapping[str, Any] | None = None,
    reached: tuple[Reached, ...] = (),
    **changes: Any,
) -> Known:
    return Known(recipe=Recipe(name=name, **changes), about=about, data=data, model=model or {}, reached=reached)


_CIFAR: dict[str, Any] = {"image_size": (32, 32), "patch_size": 4}
_CIFAR_MEAN = {**_CIFAR, "class_token": False, "pooling": "mean"}
_SMALL_STEPS: dict[str, Any] = {
    "batch": 64, "smoothing": 0.1, "path_dropout": 0.1, "ema": 0.9995, "precision": "bfloat16"
}  # fmt: skip

_ALL = (
    _known(
        "tiny-cifar10",
        "The tutorial's size, from scratch on two cores: 4 blocks of width 48.",
        "cifar10",
        {**_CIFAR, "width": 48, "depth": 4, "heads": 4},
        (
            Reached(
                0.764,
                42.8,
                _EPYC,
                "OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m vitviz train --data cifar10 --recipe tiny-cifar10 "
                "--out models/tiny",
            ),
        ),
        epochs=60,
        batch=128,
        lr=2e-3,
        warmup=5.0,
        ema=0.999,
        augment=Augment(crop_padding=4, flip=True),
    ),
    _known(
        "vit-cifar10",
        "A plain ViT from scratch, small enough for two cores: 6 blocks of width 192.",
        "cifar10",
        {**_CIFAR_MEAN, "width": 192, "depth": 6, "heads": 6, "positions": "sincos"},
        (
            Reached(
                0.8231,
                234.1,
                _EPYC,
                "OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m vitviz train --data cifar10 --recipe vit-cifar10 "
                "--out models/vit-cifar10",
            ),
        ),
        epochs=50,
        lr=1e-3,
        warmup=2.0,
        augment=Augment(crop_padding=4, flip=True, policy="rand"),
        **_SMALL_STEPS,
    ),
    _known(
        "vit-cifar10-more",
        "Further, --from a model that vit-cifar10 made: a second cosine, with images mixed.",
        "cifar10",
        reached=(
            Reached(
                0.8421,
                91.3,
                _EPYC,
                "OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m vitviz train --data cifar10 "
                "--from models/vit-cifar10 --recipe vit-cifar10-more --seed 1 --out models/vit-cifar10-more",
            ),
        ),
        epochs=32,
        lr=6e-4,
        warmup=1.0,
        augment=Augment(crop_padding=4, flip=True, policy="rand", mixup=0.2, cutmix=1.0),
        **_SMALL_STEPS,
    ),
    _known(
        "vit-cifar10-gpu",
        "The same, larger, for longer, with the augmentation that so few images need: wants a GPU.",
        "cifar10",
        {**_CIFAR_MEAN, "width": 256, "depth": 7, "heads": 4},
        epochs=200,
        batch=512,
        lr=1e-3,
        warmup=10.0,
        smoothing=0.1,
        path_dropout=0.1,
        ema=0.9995,
        augment=Augment(crop_padding=4, flip=True, policy="trivial", erase=0.25, mixup=0.2, cutmix=1.0),
    ),
    _known(
        "fashion-mnist",
        "Two blocks of width 8 on 7 x 7 patches: minutes on any laptop.",
        "fashion-mnist",
        {
            "image_size": (28, 28),
            "patch_size": 4,
            "width": 8,
            "depth": 2,
            "heads": 2,
            "positions": "sincos",
        },
        (Reached(0.8105, 1.4, _EPYC, "vitviz train --data fashion-mnist --recipe fashion-mnist --out models/fashion"),),
        epochs=5,
        batch=128,
        lr=5e-3,
        warmup=0.5,
        weight_decay=0.0,
    ),
    _known(
        "head",
        "A new classifier on a frozen pretrained backbone, whose features are computed once.",
        "a folder of one's own",
        reached=(
            Reached(0.96, 2.5, _EPYC, "vitviz train --data three --from frozen --freeze backbone --out models/three"),
        ),
        epochs=5,
        batch=16,
        lr=1e-2,
        warmup=0.5,
        weight_decay=0.0,
        unfreeze_last=0,
    ),
    _known(
        "finetune",
        "The last four blocks of a pretrained model, gently, so that its attention stays object-shaped.",
        "imagenette",
        reached=(
            Reached(
                0.9712,
                43.3,
                _EPYC,
                "vitviz train --data imagenette --from frozen --recipe finetune --feed-as-source --precision bfloat16 "
                "--out tuned",
            ),
        ),
        epochs=3,
        batch=32,
        lr=5e-5,
        head_lr=1e-3,
        warmup=0.3,
        layer_decay=0.75,
        unfreeze_last=4,
    ),
)

RECIPES: dict[str, Known] = {known.recipe.name: known for known in _ALL}


def recipe(name: str, **changes: Any) -> Recipe:
    """The recipe of that name, with any field changed.

    >>> recipe("fashion-mnist", epochs=2).epochs
    2

    Raises:
        TrainingError: if there is none of that name, or a value makes no sense.
    """
    if name not in RECIPES:
        raise TrainingError(f"Unknown recipe {name!r}: expected one of {', '.join(RECIPES)}.")
    return dataclasses.replace(RECIPES[name].recipe, **changes)
