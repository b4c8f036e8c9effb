"""Run the training loop on any device, in one or several processes, and save its state.

The result is the last weights, or their running mean if the recipe has one. Selecting an epoch by its validation
accuracy would bias that accuracy.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from vitviz.evaluation import EvaluationError
from vitviz.evaluation.accuracy import Accuracy, measure_accuracy
from vitviz.extras import check_installed, extra
from vitviz.model.devices import best_device, describe_device, device_named, threads_for
from vitviz.model.vit import ViT
from vitviz.training import TrainingError, loaders
from vitviz.training.accelerator import make_accelerator
from vitviz.training.data import Data
from vitviz.training.features import FeatureCache
from vitviz.training.interrupts import Stopped, deferred_interrupts
from vitviz.training.log import Epoch, Log
from vitviz.training.losses import training_loss
from vitviz.training.network import MeanLogits, Network, freeze, mean_logits, set_dropout
from vitviz.training.optim import make_optimizer, running_mean, warmup_then
from vitviz.training.recipes import Recipe
from vitviz.training.state import Progress, find_state, load_state, read_progress, resumable, save_state
from vitviz.training.teachers import Classifier, Teacher
from vitviz.training.transfer import check_fits
from vitviz.weights.checkpoint import fingerprint

check_installed("train", "accelerate", "imagehash", "tensorboardX")  # some are imported after the data has been read
with extra("train"):
    from accelerate.utils import gather_object

CACHE = "cache"
_ALL_PATCHES_FROM = 0.8  # share of the steps after which images keep all patches
_FLUSH = 16  # steps between reads of GPU results, each of which waits for the GPU


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Result of a training run.

    Args:
        model: the last weights, or their running mean if the recipe has one; in eval mode, on its device.
        recipe: the recipe.
        epochs: one log entry per epoch.
        losses: (steps,) float32, mean loss of every step.
        accuracy: accuracy on the validation images.
        seconds: time of training, validation and features, over all sessions.
        device: description such as "CPU, 2 threads" or "NVIDIA H200".
        processes: number of processes.
        notes: sentences for the model card.
    """

    model: ViT
    recipe: Recipe
    epochs: tuple[Epoch, ...]
    losses: Tensor
    accuracy: Accuracy
    seconds: float
    device: str
    processes: int
    notes: tuple[str, ...] = ()


class Trainer:
    """Train a model with a recipe, once.

    The model is changed in place: weights, dropouts, and which parameters require gradients.

    Args:
        model: a classifier with `pretrained` that has the data's preprocessing and labels.
        data: data opened at the model's image size.
        recipe: all settings.
        out: folder for state/, curves.csv, events/ and cache/; created if missing.
        device: device to train on; by default the best one. Under torchrun, each process has its own.
        teacher: a classifier that knows the data's classes, for distillation.
        resume: continue from the state in `out`, if there is one.
        save_every: seconds between saved states.
        progress: show a bar on terminals, or one line per epoch elsewhere, on standard error.
        on_epoch: called after each epoch with all log entries, in the main process.

    Raises:
        TrainingError: if model, data, recipe, device and teacher do not fit together.
        DeviceError: if the device does not exist.
    """

    def __init__(
        self,
        model: ViT,
        data: Data,
        recipe: Recipe,
        out: str | os.PathLike[str],
        *,
        device: torch.device | str | None = None,
        teacher: ViT | Classifier | None = None,
        resume: bool = False,
        save_every: float = 180.0,
        progress: bool = True,
        on_epoch: Callable[[Sequence[Epoch]], object] = lambda _rows: None,
    ) -> None:
        about = check_fits(model, data)
        if (teacher is None) != (recipe.distill == "none"):
            raise TrainingError(
                f"Expected a teacher for distill='soft' or 'hard' only, got {'none' if teacher is None else 'one'} for "
                f"{recipe.distill!r}. Change one of the two."
            )
        self.device = device_named(None if device is None else str(device))
        if self.device == torch.device("cuda"):
            self.device = best_device()  # each process of a machine has its own GPU
        if recipe.precision == "float16" and self.device.type == "cpu":
            raise TrainingError("Expected a GPU for precision float16, got the CPU. Choose bfloat16 or float32.")
        self.model, self.data, self.recipe, self.out = model, data, recipe, Path(out)
        self.name, self.preprocess, self.grid = about.name, about.preprocess, model.config.grid_of(*data.train.size)
        self.teacher = None if teacher is None else Teacher(teacher, about)
        self.resume, self.save_every, self.show, self.on_epoch = resume, save_every, progress, on_epoch

    def run(self) -> Outcome:
        """Train to the recipe's last epoch.

        Only the main process writes; all processes return the same result.

        Raises:
            TrainingError: if the processes do not divide the batch, a state in `out` does not match, the
                loss is not finite, or the disk is full.
            Stopped: after Ctrl-C or SIGTERM, with the state saved.
        """
        model, recipe = self.model, self.recipe
        with ExitStack() as stack:
            stack.enter_context(resumable(self.out))
            self.accelerator = make_accelerator(self.device, recipe)
            processes, rank = self.accelerator.num_processes, self.accelerator.process_index
            stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
            torch.manual_seed(recipe.seed + rank)
            set_dropout(model.to(self.device), recipe.dropout, recipe.path_dropout, recipe.attention_dropout)
            if self.teacher is not None:
                self.teacher.model.to(self.device)
            freeze(model, recipe.unfreeze_last)
            tokens = recipe.batch // (processes * recipe.accumulate) * math.prod(self.grid)
            width = max(model.config.width, self.teacher.width if self.teacher else 0)
            stack.enter_context(threads_for(tokens * width, self.device))
            stack.callback(self.__dict__.pop, "batches", None)  # this ends the loader's workers
            self._prepare(loaders.StepSampler(recipe, self.data.train.classes, 0, rank, processes))
            self.interrupt = stack.enter_context(deferred_interrupts())
            self.log = None
            if self.accelerator.is_main_process:
                classes = len(self.data.labels)
                self.log = Log(self.out, recipe.epochs, self.total, classes, self.progress.step, progress=self.show)
                stack.callback(self.log.close)
                resumed = [f"Continuing after {self._position()}."] if self.progress.step else []
                for note in [*self._notes(), *resumed]:
                    self.log.say(note)
            accuracy = None
            for epoch in range(len(self.progress.epochs), recipe.epochs):
                self._train(epoch)
                accuracy = self._validate()
                self._end_epoch(epoch, accuracy)
            accuracy = accuracy or self._validate()  # if a finished run is resumed
            if self.average is not None:
                self.network.load_state_dict(self.average.module.state_dict())
            return Outcome(
                model=model.eval().requires_grad_(True),
                recipe=recipe,
                epochs=tuple(self._epochs()),
                losses=torch.tensor(self.progress.losses),
                accuracy=accuracy,
                seconds=self.progress.seconds,
                device=describe_device(self.device),
                processes=processes,
                notes=tuple(self._notes()),
            )

    # ---- before the first step

    def _prepare(self, sampler: loaders.StepSampler) -> None:
        """Prepare the steps, and load a state."""
        model, recipe, data = self.model, self.recipe, self.data
        self.clock = self.saved = time.perf_counter()
        self.steps, self.total = sampler.steps, sampler.steps * recipe.epochs
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self.settings = {  # everything except the state that the result depends on
            "recipe": asdict(recipe),
            "model": model.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "labels": list(data.labels),
            "data": data.fingerprint,
            "frozen": fingerprint(model, frozen) if frozen else None,
            "teacher": None if self.teacher is None else self.teacher.fingerprint(),
        }
        folder = find_state(self.out, resume=self.resume)
        self.progress = read_progress(folder, self.settings) if folder else Progress()
        self.accelerator.wait_for_everyone()  # until all have searched, before one process writes
        self.features = self._open_cache()
        self.network = Network(model, recipe.unfreeze_last if self.features else None, self.grid, recipe.patch_dropout)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.average = running_mean(self.network, recipe.ema) if recipe.ema else None
        optimizer = make_optimizer(model, recipe)
        warmup = round(recipe.warmup * self.steps)
        self.lr_share = warmup_then(recipe.schedule, self.total, warmup, recipe.final_lr)
        self.scheduler = LambdaLR(optimizer, self.lr_share)
        self.peak_lr: float = max(group["initial_lr"] for group in optimizer.param_groups)
        compiled: Any = torch.compile(self.network) if recipe.compile else self.network
        self.prepared, self.optimizer = self.accelerator.prepare(compiled, optimizer)
        self.accelerator.register_for_checkpointing(self.scheduler, *([self.average] if self.average else []))
        if folder:
            load_state(self.accelerator, folder)
        self.mix = loaders.mixing(recipe, len(data.labels))
        train, val = self.features or (None, None)
        transform = None if train else loaders.augmentation(recipe, data.train.size)
        sampler.start = self.progress.step
        self.batches = iter(
            loaders.Images(data.train, train, transform, recipe.augment_together).load(sampler, self.device)
        )
        keys = loaders.validation_keys(len(data.val), recipe, sampler.rank, sampler.processes)
        self.val_batches = loaders.Images(data.val, val).load(keys, self.device)

    def _open_cache(self) -> tuple[FeatureCache, FeatureCache] | None:
        """Compute frozen features in the main process, if neither images nor the frozen part change."""
        last, precision = self.recipe.unfreeze_last, self.recipe.precision
        if last is None or self.recipe.augments or self.teacher is not None:
            return None
        cast = None if precision == "float32" else getattr(torch, precision)
        with self.accelerator.main_process_first():
            show = self.show and self.accelerator.is_main_process
            cache = partial(FeatureCache, self.model, self.data, unfreeze_last=last, cast=cast, progress=show)
            train, val = (cache(name, self.out / CACHE) for name in ("train", "val"))
        return train, val

    # ---- the epochs

    def _train(self, epoch: int) -> None:
        """Run the remaining steps of an epoch."""
        start, end = epoch * self.steps, (epoch + 1) * self.steps
        if self.log:
            self.log.begin(epoch, self.steps, self.progress.step - start)
        self.prepared.train()
        self._tick()
        every = 1 if self.device.type == "cpu" else _FLUSH
        pending: list[Tensor] = []
        for step in range(self.progress.step, end):
            if step >= round(self.total * _ALL_PATCHES_FROM):
                self.network.patches_kept = self.network.patches
            pending.append(self._step())
            if (step + 1) % every == 0 or step + 1 == end:
                self._read(pending, start)
                pending.clear()

    def _step(self) -> Tensor:
        """Run one step and return this process's mean loss and accuracy, (2,), on the device."""
        parts, clip = self.recipe.accumulate, self.recipe.clip
        seen = torch.zeros(2, device=self.device)
        for _ in range(parts):
            inputs, targets = self.mix(*self._load(next(self.batches)))  # targets: (k, C), rows that sum to 1
            teacher_logits = None
            if self.teacher is not None:
                with self.accelerator.autocast():
                    teacher_logits = self.teacher(inputs)
            with self.accelerator.accumulate(self.prepared):
                heads = self.prepared(self._normalize(inputs))
                loss = training_loss(heads, targets, self.recipe, teacher_logits)
                self.accelerator.backward(loss)  # divides by the number of parts
                if clip and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.parameters, clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
            right = (mean_logits(heads).argmax(dim=1) == targets.argmax(dim=1)).float().mean()
            seen += torch.stack([loss.detach(), right]) / parts
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return seen

    def _load(self, batch: loaders.Loaded) -> loaders.Loaded:
        """Return a batch on the device: images (k, 3, H, W) in 0..1, or features, and classes (k,)."""
        inputs, classes = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        return inputs if self.features else inputs.float().div_(255), classes

    def _normalize(self, inputs: Tensor) -> Tensor:
        """Return the network's input: normalized images, or unchanged features."""
        return inputs if self.features else loaders.normalize(inputs, self.preprocess)

    def _read(self, pending: Sequence[Tensor], epoch_start: int) -> None:
        """Read the results of the last steps of all processes; save and stop if due."""
        due = time.perf_counter() - self.saved >= self.save_every
        flags = torch.tensor([self.interrupt.is_set(), due], dtype=torch.float32, device=self.device)
        *steps, (stops, saves) = self.accelerator.reduce(torch.stack([*pending, flags]), "mean").tolist()
        self._tick(training=True)
        self.progress.step += len(steps)
        losses, right = zip(*steps, strict=True)
        self.progress.losses += losses
        self.progress.right += right
        if not all(map(math.isfinite, losses)):
            self._fail("loss")
        if self.log:
            speed = self._speed(self.progress.step - epoch_start)
            self.log.steps(self.progress.step, len(steps), losses[-1], self._lr(), speed)
        if stops:
            self._stop()
        if saves:
            self._save()

    def _validate(self) -> Accuracy:
        """Measure the accuracy on all validation images, divided between processes."""

        def batches() -> Iterator[loaders.Loaded]:
            for batch in self.val_batches:
                if self.interrupt.is_set() and self.accelerator.num_processes == 1:
                    self._stop()  # several processes can agree on stopping only after a step
                images, classes = self._load(batch)
                yield self._normalize(images), classes

        def gather(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            gathered = gather_object([tuple(tensor.cpu() for tensor in results)])
            return tuple(torch.cat(parts) for parts in zip(*gathered, strict=True))

        network = MeanLogits(self.network if self.average is None else self.average.module)
        try:
            with self.accelerator.autocast():
                return measure_accuracy(network, batches(), self.data.labels, gather=gather, model=self.name)
        except EvaluationError:
            self._fail("logits of validation images")

    def _end_epoch(self, epoch: int, accuracy: Accuracy) -> None:
        """Log an epoch, and save after the last one."""
        self._tick()
        progress, steps = self.progress, slice(epoch * self.steps, (epoch + 1) * self.steps)
        row = Epoch(
            epoch=epoch + 1,
            step=progress.step,
            loss=sum(progress.losses[steps]) / self.steps,
            accuracy=sum(progress.right[steps]) / self.steps,
            val_loss=accuracy.loss,
            top1=accuracy.top1,
            top5=accuracy.top5,
            lr=self._lr(),
            images_per_second=self._speed(self.steps),
            seconds=progress.epoch_seconds,
        )
        progress.epochs.append(asdict(row))
        progress.epoch_seconds = progress.training_seconds = 0.0
        if progress.step == self.total:
            self._save()
        if self.log:
            self.log.epoch(self._epochs())
            self.on_epoch(self._epochs())

    # ---- state and messages

    def _save(self) -> None:
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters):
            self._fail("weights")
        save_state(self.accelerator, self.out, self.progress, self.settings)
        self.saved = time.perf_counter()

    def _stop(self) -> NoReturn:
        self._tick()
        self._save()
        raise Stopped(
            f"Stopped after {self._position()}; the state is saved in {str(self.out)!r}. Continue with --resume."
        )

    def _fail(self, what: str) -> NoReturn:
        raise TrainingError(
            f"Expected finite {what}, got NaN or infinity after {self._position()}. Try a lower learning rate (--lr "
            f"{self.recipe.lr / 3:.1g}), more --warmup, --clip 1 or --precision float32. The last good state is in "
            f"{str(find_state(self.out) or 'no folder: none was saved yet')!r}."
        )

    def _tick(self, *, training: bool = False) -> None:
        """Add the time since the last call to the progress."""
        now = time.perf_counter()
        self.progress.seconds += now - self.clock
        self.progress.epoch_seconds += now - self.clock
        self.progress.training_seconds += (now - self.clock) * training
        self.clock = now

    def _lr(self) -> float:
        """Return the maximum learning rate of the last step."""
        return self.peak_lr * self.lr_share(self.progress.step - 1)

    def _speed(self, steps: int) -> float:
        """Return images per second after this number of steps of the epoch."""
        return steps * self.recipe.batch / max(self.progress.training_seconds, 1e-9)

    def _epochs(self) -> list[Epoch]:
        return [Epoch(**row) for row in self.progress.epochs]

    def _position(self) -> str:
        epoch, step = divmod(self.progress.step, self.steps)
        done = f"step {step} of {self.steps} in epoch {epoch + 1}" if step else f"epoch {epoch}"
        return f"{done} of {self.recipe.epochs}"

    def _notes(self) -> list[str]:
        notes, left_over = [], len(self.data.train) % self.recipe.batch
        if left_over and not self.recipe.balance:
            notes.append(
                f"{left_over} of {len(self.data.train):,} training images do not fill a batch of {self.recipe.batch} "
                "and are left out, different ones in each epoch."
            )
        if self.features:
            notes.append("The frozen part's features were computed once per image, so images are not augmented.")
        return notes
