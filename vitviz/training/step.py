"""One step of training: forward, backward, update; and all that a state has to hold of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitviz.model import ViT
from vitviz.training import TrainingError
from vitviz.training.feed import Batch, seed_of
from vitviz.training.losses import predicted
from vitviz.training.optim import Average, adamw, factor, groups, set_rate
from vitviz.training.parallel import World
from vitviz.training.recipes import Recipe

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Drawn(Protocol):
    """What a step draws at random, for all of its images at once."""

    def draw(self, seed: int, images: int, done: float, /) -> None:
        """For all images of a step, when so much of the training is done: 0..1."""

    def take(self, images: slice, device: torch.device, /) -> None:
        """Those images of the step are next."""


class Learner:
    """A network, what moves its weights, and their running mean.

    Args:
        model: whose parameters learn, where `requires_grad` says so.
        network: of the model: a batch's inputs -> logits (k, C) of each classifier.
        recipe: all settings.
        steps: of one epoch.
        world: this process among others.
        draws: what is random in a step beside the images, each from a seed of its own.
        teacher: pixels (k, 3, H, W) from 0 to 255 -> logits (k, C).
    """

    def __init__(
        self,
        model: ViT,
        network: nn.Module,
        recipe: Recipe,
        steps: int,
        world: World,
        *,
        draws: Sequence[Drawn] = (),
        teacher: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.recipe, self.world, self.draws, self.teacher = recipe, world, draws, teacher
        self.network, self.device = network, model.norm.weight.device
        self.named = {name: one for name, one in model.named_parameters() if one.requires_grad}
        world.same([one.detach() for one in model.parameters()])
        self.optimiser = adamw(groups(self.named, model.config, recipe), recipe)
        self.average = Average(network, recipe.ema) if recipe.ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "float16")
        self.total, self.warmup = recipe.epochs * steps, round(recipe.warmup * steps)
        self._objective = recipe.objective()
        self._parameters: list[Tensor] = list(self.named.values())
        config = model.config
        self._drops = bool(config.dropout or config.attention_dropout)
        self._runs: nn.Module = network
        if recipe.compile:
            self._runs = torch.compile(network)  # type: ignore[assignment]
        if world.size > 1:
            self._runs = DistributedDataParallel(self._runs, gradient_as_bucket_view=True)

    @property
    def validated(self) -> nn.Module:
        """The network that is validated and saved: with the running mean of the weights, where there is one."""
        return self.network if self.average is None else self.average.network

    def cast(self) -> AbstractContextManager[Any]:
        """Within, matrix products and attention have the recipe's precision."""
        dtype = DTYPES[self.recipe.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def rate(self, number: int) -> float:
        """The learning rate of a step, counted from 0: that of the largest group."""
        share = factor(number, self.total, self.warmup, self.recipe.final_lr)
        peak: float = max(group["peak"] for group in self.optimiser.param_groups)
        return share * peak

    def learn(self, batch: Batch, number: int) -> Tensor:
        """One step. `number` counts from 0 through all epochs.

        Returns:
            (2,), on the device: this process's share of the loss, and how many of its images were answered rightly.
        """
        parts = self.recipe.accumulate
        size = len(batch) // parts
        seen = torch.zeros(2, device=self.device)
        self.network.train()
        for salt, drawn in enumerate(self.draws, 1):
            drawn.draw(seed_of(self.recipe.seed, number, -salt), self.recipe.batch, number / self.total)
        for index in range(parts):
            part = batch if parts == 1 else batch.part(slice(index * size, (index + 1) * size))
            with self._alone(index + 1 < parts):
                seen += self._backward(part, number, self.world.rank * parts + index)
        set_rate(self.optimiser, factor(number, self.total, self.warmup, self.recipe.final_lr))
        if self.recipe.clip:
            self.scaler.unscale_(self.optimiser)
            torch.nn.utils.clip_grad_norm_(self._parameters, self.recipe.clip, foreach=True)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(number + 1)
        return seen

    def _backward(self, part: Batch, number: int, index: int) -> Tensor:
        """Gradients of one part, of so many in all processes; its share of the loss and its right answers: (2,)."""
        if self._drops:
            torch.manual_seed(seed_of(self.recipe.seed, number, index))
        for drawn in self.draws:
            drawn.take(slice(index * len(part), (index + 1) * len(part)), self.device)
        answers = part.answers
        if answers is None and self.teacher is not None:
            assert part.pixels is not None  # the feed keeps them for a teacher that asks
            with self.cast():
                answers = self.teacher(part.pixels)
        with self.cast():
            heads = self._runs(part.inputs)
        loss = self._objective(heads, part.targets, answers)
        share = loss / self.recipe.accumulate
        self.scaler.scale(share).backward()
        with torch.no_grad():
            right = (predicted(heads).argmax(dim=1) == part.targets.argmax(dim=1)).sum()
            return torch.stack([share.detach() / self.world.size, right.to(share.dtype)])

    def _alone(self, more: bool) -> AbstractContextManager[Any]:
        """While more parts of a step follow, processes need not exchange gradients."""
        if more and isinstance(self._runs, DistributedDataParallel):
            return self._runs.no_sync()
        return nullcontext()

    # ---- what a state holds

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, by name: weights, their mean, the optimiser's moments."""
        held = {f"weights.{name}": one.detach() for name, one in self.named.items()}
        held |= {f"average.{name}": one for name, one in self._means().items()}
        for name, one in self.named.items():
            held |= {f"{key}.{name}": value for key, value in self.optimiser.state[one].items()}
        return held

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave.

        Raises:
            TrainingError: if there is another number of them, or they have other shapes.
        """
        self.blank()
        mine = self.tensors()
        wrong = sorted(set(mine) ^ set(tensors)) or [n for n in mine if mine[n].shape != tensors[n].shape]
        if wrong:
            raise TrainingError(
                f"The saved state does not fit this model: {wrong[0]!r} and {len(wrong) - 1} more tensors are missing, "
                "too many, or shaped otherwise. Resume with the version of vitviz that began this training."
            )
        for name, one in mine.items():
            one.copy_(tensors[name])

    def blank(self) -> None:
        """Room for the optimiser's moments, which it makes itself at a parameter's first gradient."""
        for one in self._parameters:
            moments = {key: torch.zeros_like(one, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
            self.optimiser.state[one] = {"step": torch.zeros((), device=one.device), **moments}

    def share(self) -> None:
        """Give every process the first one's numbers."""
        self.world.same(list(self.tensors().values()))

    @torch.no_grad()
    def finish(self) -> None:
        """Give the model the weights that were validated."""
        for name, mean in self._means().items():
            self.named[name].copy_(mean)

    def check_finite(self) -> None:
        """Refuse weights that are no numbers: they must not replace a good state.

        Raises:
            TrainingError: with what to try.
        """
        norms = torch.stack(torch._foreach_norm(self._parameters))
        if not bool(norms.isfinite().all()):
            raise TrainingError(f"The weights are no longer finite. {what_to_try(self.recipe)}")

    def _means(self) -> dict[str, Tensor]:
        return {} if self.average is None else dict(zip(self._order, self.average.means, strict=True))

    @property
    def _order(self) -> list[str]:
        """The model's name of each parameter that learns, in the network's order."""
        names = {id(one): name for name, one in self.named.items()}
        return [names[id(one)] for one in self.network.parameters() if one.requires_grad]


def what_to_try(recipe: Recipe) -> str:
    """What helps against a loss that is no number."""
    tries = [f"a lower learning rate (--lr {recipe.lr / 3:.1g})"]
    if recipe.warmup < 5:
        tries.append(f"more warm-up (--warmup {max(1.0, 2 * recipe.warmup):g})")
    if recipe.clip == 0 or recipe.clip > 1:
        tries.append("clipped gradients (--clip 1)")
    if recipe.precision != "float32":
        tries.append("--precision float32")
    return f"Try {', '.join(tries[:-1])}{' or ' if len(tries) > 1 else ''}{tries[-1]}."
