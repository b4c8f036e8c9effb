"""The engine: runs a recipe to its end on any device, in one process or several, and never loses work.

The last weights are what is saved, or their running mean where the recipe has one. No epoch is picked by what it
reached on the validation images: its accuracy would no longer be that of images never seen.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vitviz.devices import best_device, device_named, threads_for
from vitviz.model import ViT
from vitviz.training import TrainingError
from vitviz.training.cache import Rows
from vitviz.training.data import Data
from vitviz.training.depth import Draws, set_dropout, stochastic_depth
from vitviz.training.features import open_answers, open_features
from vitviz.training.feed import Batch, Feed, check_batch
from vitviz.training.log import Epoch, Log
from vitviz.training.measure import Measured, measure
from vitviz.training.parallel import World, world
from vitviz.training.recipes import Recipe
from vitviz.training.result import Outcome, device_words
from vitviz.training.short import network
from vitviz.training.state import STATE, Progress, load_state, save_state
from vitviz.training.step import DTYPES, Learner, what_to_try
from vitviz.training.stopping import Request, Stopped, listening
from vitviz.training.teacher import Teacher
from vitviz.training.thinning import Thinning
from vitviz.training.transfer import fed_as, freeze
from vitviz.weights.checkpoint import fingerprint

__all__ = ["Outcome", "Stopped", "Trainer"]

CACHE = "cache"
_FLUSH = 16  # steps between two looks at a GPU's numbers: each look waits for it


class Trainer:
    """Trains a model by a recipe.

    The model is changed in place: its weights, its dropouts, and which of its parameters learn are the recipe's.

    Args:
        model: a classifier with `pretrained`: fed as the data are, with the data's labels in their order.
        data: opened at the model's image size.
        recipe: all settings.
        out: the folder for state.safetensors, curves.csv, curves.png, events/ and cache/; made where it is missing.
        device: where to train; the best there is by default. Under torchrun every process has its own.
        teacher: a classifier that knows the data's classes, for distillation.
        resume: go on from the state in `out`; begin where there is none.
        save_every: seconds between two states within an epoch.
        progress: a bar on terminals and a line an epoch elsewhere, on standard error.

    Raises:
        TrainingError: if model, data, recipe and teacher do not fit together.
        DeviceError: if there is no such device here.
    """

    def __init__(
        self,
        model: ViT,
        data: Data,
        recipe: Recipe,
        out: str | os.PathLike[str],
        *,
        device: torch.device | str | None = None,
        teacher: ViT | None = None,
        resume: bool = False,
        save_every: float = 180.0,
        progress: bool = True,
    ) -> None:
        self.about = fed_as(model, data)
        if (teacher is None) != (recipe.distill == "none"):
            came = "no teacher came" if teacher is None else "there is a teacher"
            raise TrainingError(f"A teacher and distill='soft' or 'hard' go together; {came}, {recipe.distill!r}.")
        self.model, self.data, self.recipe, self.out = model, data, recipe, Path(out)
        self.device = device_named(None if device is None else str(device))
        if self.device == torch.device("cuda"):
            self.device = best_device()  # each process of a machine has a GPU of its own
        self.teacher = None if teacher is None else Teacher(teacher, self.about)
        self.resume, self.save_every, self.progress = resume, save_every, progress

    def run(self) -> Outcome:
        """Train to the recipe's last epoch.

        Only the first of several processes writes; every one returns the same.

        Raises:
            TrainingError: for settings that do not fit the machine or the saved state; a state in `out` that is not
                to be gone on with; a loss that is no number; a disk that is full.
            Stopped: after Ctrl-C or SIGTERM, with the state saved.
        """
        with ExitStack() as stack:
            here = stack.enter_context(world(self.device))
            stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
            self.model.to(self.device)
            set_dropout(self.model, self.recipe.dropout, self.recipe.path_dropout)
            freeze(self.model, self.recipe.unfreeze_last)
            depth = stack.enter_context(stochastic_depth(self.model))
            gh, gw = self.model.config.grid_of(*self.data.train.size)
            thinning = Thinning(self.recipe.patch_dropout, gh * gw) if self.recipe.patch_dropout else None
            batch = self.recipe.batch // (here.size * self.recipe.accumulate)
            width = max(one.config.width for one in (self.model, self.teacher and self.teacher.model) if one)
            stack.enter_context(threads_for(batch * gh * gw * width, self.device))
            return _Run(self, here, depth, thinning).run()


class _Run:
    """One session of a training, from the state it finds to its end."""

    def __init__(self, asked: Trainer, here: World, depth: Draws | None, thinning: Thinning | None) -> None:
        self.asked, self.here, self.request = asked, here, Request()
        self.began = time.perf_counter()
        self.recipe, self.data, self.device = asked.recipe, asked.data, asked.device
        check_batch(self.recipe, len(self.data.train), here)  # before hours of work for a cache
        self.path = asked.out / STATE
        if here.first:
            asked.out.mkdir(parents=True, exist_ok=True)
        self.settings = self._settings()
        tensors, self.past = self._open()
        trained, rows, answers = self._network(thinning)
        asks = asked.teacher is not None and answers is None
        self.feed = Feed(
            self.data, self.recipe, asked.about.preprocess, self.device, here, rows=rows, answers=answers, asks=asks
        )
        teacher = asked.teacher if asks else None
        draws = [drawn for drawn in (depth, thinning) if drawn is not None]
        self.learner = Learner(asked.model, trained, self.recipe, self.feed.steps, here, draws=draws, teacher=teacher)
        self.total = self.recipe.epochs * self.feed.steps
        self.losses, self.right = torch.full((self.total,), math.nan), torch.zeros(self.total)
        self._take_over(tensors)
        self.step, self.rows = self.past.step, [Epoch(**row) for row in self.past.rows]
        self.pending: list[Tensor] = []  # of steps whose numbers nobody has looked at yet
        self.measured: Measured | None = None
        self.epoch_seconds, self.training_seconds = self.past.epoch_seconds, self.past.training_seconds
        self.epoch_began = time.perf_counter()
        self.training_began: float | None = None  # while no step runs
        self.saved, self.writing = time.perf_counter(), 0.0
        self.saved_at: int | None = None  # the step at whose validation somebody wanted to stop

    # ---- before the first step

    def _settings(self) -> dict[str, Any]:
        """All that the result depends on, beside the numbers in the state."""
        model, teacher = self.asked.model, self.asked.teacher
        frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
        return {
            "recipe": self.recipe.to_dict(),
            "model": model.config.to_dict(),
            "preprocess": self.asked.about.preprocess.to_dict(),
            "labels": list(self.data.labels),
            "data": self.data.fingerprint,
            "frozen": fingerprint(model, frozen) if frozen else None,
            "teacher": None if teacher is None else teacher.fingerprint(),
        }

    def _open(self) -> tuple[dict[str, Tensor], Progress]:
        """The state to go on with, on the first process; the others are told later. What is wrong, all are told."""
        tensors: dict[str, Tensor] = {}
        past, problem = Progress(), ""
        if self.here.first and self.path.exists():
            try:
                if not self.asked.resume:
                    raise TrainingError(
                        f"There is a training in {str(self.asked.out)!r} already. Go on with it (--resume), or choose "
                        "another folder."
                    )
                tensors, past = load_state(self.path, self.settings)
                past = replace(past, sessions=past.sessions + 1)
            except TrainingError as error:
                problem = str(error)
        if problem := self.here.tell(problem):
            raise TrainingError(problem)
        return tensors, Progress.from_dict(self.here.tell(asdict(past)))

    def _network(self, thinning: Thinning | None) -> tuple[nn.Module, tuple[Rows, Rows] | None, Rows | None]:
        """What is trained: the whole model on images, or its tail on what the frozen rest has made of them."""
        model, recipe, folder = self.asked.model, self.recipe, self.asked.out / CACHE
        size = self.data.train.size
        sides = (("train", self.data.train), ("val", self.data.val))
        talks = self.asked.progress and self.here.first
        answers = None
        if self.asked.teacher is not None:
            self.asked.teacher.model.to(self.device)
        if self.asked.teacher is not None and not recipe.augments:
            answers = open_answers(self.asked.teacher, self.data.train, size, folder, name="teacher", progress=talks)
        if recipe.unfreeze_last is None or recipe.augments:
            return network(model, None, None, thinning), None, answers
        cast = DTYPES[recipe.precision]
        train, val = (
            open_features(
                model, split, size, folder, name=name, unfreeze_last=recipe.unfreeze_last, cast=cast, progress=talks
            )
            for name, split in sides
        )
        return network(model, recipe.unfreeze_last, model.config.grid_of(*size)), (train, val), answers

    def _take_over(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a state, in every process."""
        if not self.past.step:
            return
        if self.here.first:
            done = slice(self.past.step)
            self.losses[done], self.right[done] = tensors.pop("log.loss"), tensors.pop("log.right")
            self.learner.restore(tensors)
        else:
            self.learner.blank()
        self.learner.share()
        logged = torch.stack([self.losses, self.right]).to(self.device)  # (2, steps)
        self.here.same([logged])
        self.losses, self.right = logged.cpu()
        if self.past.scaler:
            self.learner.scaler.load_state_dict(dict(self.past.scaler))

    # ---- the epochs

    def run(self) -> Outcome:
        """From where it stands to the end."""
        with Log(
            self.asked.out, self.recipe.epochs, self.rows, self.step, quiet=not self.here.first,
            progress=self.asked.progress,
        ) as self.log:  # fmt: skip
            for note in self._notes():
                self.log.say(note)
            if self.step:
                self.log.say(f"Going on after {self._where()}.")
            with listening() as self.request, closing(self.feed.train(self.step)) as batches:
                for epoch in range(len(self.rows), self.recipe.epochs):
                    self._train(epoch, batches)
                    self._validate(epoch)
            return self._finish()

    def _train(self, epoch: int, batches: Iterator[Batch]) -> None:
        """The steps of an epoch that are not done yet."""
        start = epoch * self.feed.steps
        end = start + self.feed.steps
        self.log.begin(epoch, self.feed.steps, self.step - start)
        self.training_began = time.perf_counter()
        often = 1 if self.device.type == "cpu" else _FLUSH
        while self.step < end:
            self.pending.append(self.learner.learn(next(batches), self.step))
            self.step += 1
            if self.step % often == 0 or self.step == end:
                self._look(start)
        self.training_seconds, self.training_began = self._training(), None
        self.log.validating()

    def _look(self, start: int) -> None:
        """Read the numbers of the last steps, from all processes; stop where they say so; save where it is time."""
        count = len(self.pending)
        asked = self.pending[0].new_tensor([float(self.request.signal), 0.0])
        seen = self.here.total(torch.stack([*self.pending, asked])).cpu()
        self.pending.clear()
        self.losses[self.step - count : self.step] = seen[:-1, 0]
        self.right[self.step - count : self.step] = seen[:-1, 1]
        if not bool(seen[:-1, 0].isfinite().all()):
            raise TrainingError(
                f"The loss is no longer a finite number after {self._where()}. {what_to_try(self.recipe)} "
                f"{self._kept()}"
            )
        accuracy = float(self.right[start : self.step].mean()) / self.recipe.batch
        self.log.steps(
            self.step, seen[:-1, 0].tolist(), self.learner.rate(self.step - 1), accuracy, self._speed(self.step - start)
        )
        if seen[-1, 0] > 0:
            self._stop()
        if time.perf_counter() - self.saved >= self.asked.save_every:
            self._save()

    def _validate(self, epoch: int) -> None:
        """The end of an epoch: measure, log, save."""
        self.measured = found = self._measure()
        steps = slice(epoch * self.feed.steps, (epoch + 1) * self.feed.steps)
        row = Epoch(
            epoch=epoch + 1,
            step=self.step,
            loss=float(self.losses[steps].mean()),
            accuracy=float(self.right[steps].mean()) / self.recipe.batch,
            val_loss=found.loss,
            top1=found.top1,
            top5=found.top5,
            lr=self.learner.rate(self.step - 1),
            images_per_second=self._speed(self.feed.steps),
            seconds=self._epoch_seconds(),
        )
        self.rows.append(row)
        self.epoch_seconds, self.training_seconds, self.epoch_began = 0.0, 0.0, time.perf_counter()
        # A state an epoch, but not where writing it would take more than a twentieth of the time.
        if self.step == self.total or time.perf_counter() - self.saved >= 20 * self.writing:
            self._save()
        self.log.epoch(row, time.perf_counter() - self.began)

    def _measure(self) -> Measured:
        return measure(self.learner.validated, self.feed, self.learner.cast, self._watch)

    def _watch(self, _done: int) -> None:
        """Several processes would have to agree on an end in the middle of a validation: they end after a step, and the
        first one saves what there is, should nobody wait for that.
        """
        if self.request.signal and self.here.size == 1:
            self._stop()
        if self.request.signal and self.saved_at != self.step:
            self.saved_at = self.step
            self._save()

    def _stop(self) -> NoReturn:
        self._save()
        raise Stopped(f"Stopped after {self._where()}; the state is saved in {str(self.path)!r}. Go on with --resume.")

    def _finish(self) -> Outcome:
        found = self.measured or self._measure()
        self.learner.finish()
        model = self.asked.model.eval()
        model.requires_grad_(True)
        return Outcome(
            model=model,
            recipe=self.recipe,
            epochs=tuple(self.rows),
            losses=self.losses,
            top1=found.top1,
            top5=found.top5,
            val_loss=found.loss,
            confusion=found.confusion,
            seconds=self._seconds(),
            device=device_words(self.device),
            processes=self.here.size,
            notes=tuple(self._notes()),
        )

    # ---- what is kept and said

    def _save(self) -> None:
        """Replace the state, on the first process."""
        if not self.here.first:
            return
        began = time.perf_counter()
        self.learner.check_finite()
        progress = Progress(
            step=self.step,
            rows=tuple(row.to_dict() for row in self.rows),
            seconds=self._seconds(),
            epoch_seconds=self._epoch_seconds(),
            training_seconds=self._training(),
            sessions=self.past.sessions,
            scaler=self.learner.scaler.state_dict(),
        )
        logged = {"log.loss": self.losses[: self.step], "log.right": self.right[: self.step]}
        save_state(self.path, self.learner.tensors() | logged, progress, self.settings)
        self.saved = time.perf_counter()
        self.writing = self.saved - began

    def _seconds(self) -> float:
        return self.past.seconds + time.perf_counter() - self.began

    def _training(self) -> float:
        """Seconds that the steps of this epoch have taken, over all sessions."""
        return self.training_seconds + (time.perf_counter() - self.training_began if self.training_began else 0.0)

    def _speed(self, steps: int) -> float:
        """Images a second, when so many steps of this epoch are done."""
        return steps * self.recipe.batch / max(self._training(), 1e-9)

    def _epoch_seconds(self) -> float:
        return self.epoch_seconds + time.perf_counter() - self.epoch_began

    def _where(self) -> str:
        epoch, step = divmod(self.step, self.feed.steps)
        if not step:
            return f"epoch {epoch} of {self.recipe.epochs}"
        return f"step {step} of {self.feed.steps} in epoch {epoch + 1} of {self.recipe.epochs}"

    def _kept(self) -> str:
        return f"The last good state is in {str(self.path)!r}." if self.path.exists() else "No state was saved yet."

    def _notes(self) -> list[str]:
        notes = []
        if self.feed.left_over:
            notes.append(
                f"{self.feed.left_over} of {len(self.data.train):,} training images do not fill a batch of "
                f"{self.recipe.batch} and are left out, others in each epoch."
            )
        if self.feed.rows is not None:
            notes.append("What stays frozen was computed once for every image, so images are not augmented.")
        return notes
