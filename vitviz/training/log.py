"""Log a training run: progress bar or lines, a table, and TensorBoard events."""

import csv
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from vitviz.extras import extra
from vitviz.formatting import percent

CURVES, EVENTS = "curves.csv", "events"
_EVERY = 20  # steps between points of TensorBoard's curves
LINE_SECONDS = 30  # maximum time between lines without a terminal


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Log entry of one epoch, a row of curves.csv.

    Args:
        epoch: number of the epoch, from 1.
        step: completed steps at its end.
        loss, accuracy: means over the augmented training images during the epoch. For mixed images, the class with the
            larger share counts.
        val_loss, top1, top5: on the validation images, with the running mean of the weights if the recipe has one.
        lr: maximum learning rate of the last step.
        images_per_second: training speed of all processes together.
        seconds: time of training and validation.
    """

    epoch: int
    step: int
    loss: float
    accuracy: float
    val_loss: float
    top1: float
    top5: float
    lr: float
    images_per_second: float
    seconds: float

    def describe(self, epochs: int, classes: int) -> str:
        """Return the row as text, without top-5 for five classes or fewer."""
        top5 = f", top-5 {percent(self.top5, 4)}" if classes > 5 else ""
        return (
            f"epoch {self.epoch} of {epochs}: loss {self.loss:.4f}, accuracy {percent(self.accuracy, 4)}; validation "
            f"loss {self.val_loss:.4f}, top-1 {percent(self.top1, 4)}{top5}; "
            f"lr {self.lr:.2g}, {self.images_per_second:,.0f} images/s, {self.seconds:.1f} s"
        )


class Log:
    """Log of a training run, for the main process.

    Args:
        out: output folder.
        epochs, steps, classes: totals of the training run.
        step: first step of a resumed run; later TensorBoard events are discarded.
        progress: show a bar on terminals, or one line per epoch and about every `LINE_SECONDS` elsewhere.
    """

    def __init__(self, out: Path, epochs: int, steps: int, classes: int, step: int, *, progress: bool) -> None:
        with extra("train"):
            from tensorboardX import SummaryWriter  # slow to import

        self.out, self.epochs, self.total, self.classes, self.progress = out, epochs, steps, classes, progress
        self._began, self._first, self._last_line = time.monotonic(), step, time.monotonic()
        self._bar = tqdm(disable=None if progress else True, unit="step", leave=False)
        self._events = SummaryWriter(str(out / EVENTS), purge_step=step + 1 if step else None)

    def say(self, text: str) -> None:
        """Print a line."""
        self._last_line = time.monotonic()
        if self.progress:
            self._bar.write(text, file=sys.stderr)

    def _left(self, number: int) -> str:
        """Estimate the remaining time from the speed of this session."""
        seconds = (time.monotonic() - self._began) / max(1, number - self._first) * (self.total - number)
        return str(tqdm.format_interval(seconds))

    def begin(self, epoch: int, steps: int, done: int) -> None:
        """Start the bar of an epoch; epochs count from 0."""
        self._bar.reset(steps)
        self._bar.set_description(f"epoch {epoch + 1}/{self.epochs}", refresh=False)
        self._bar.update(done)

    def steps(self, number: int, count: int, loss: float, rate: float, speed: float) -> None:
        """Log that the last `count` of `number` steps are done."""
        words = f"loss {loss:.4f}, lr {rate:.2g}, {speed:,.0f} images/s, {self._left(number)} left"
        self._bar.set_postfix_str(words, refresh=False)
        self._bar.update(count)
        if self._bar.disable and time.monotonic() - self._last_line > LINE_SECONDS:
            self.say(f"step {number:,} of {self.total:,}: {words}")
        if number // _EVERY != (number - count) // _EVERY:
            self._events.add_scalar("train/step_loss", loss, number)
            self._events.add_scalar("train/lr", rate, number)

    def epoch(self, rows: Sequence[Epoch]) -> None:
        """Log the last of these epochs, and write the table of all epochs."""
        row = rows[-1]
        self.say(row.describe(self.epochs, self.classes))
        for name in ("loss", "accuracy", "val_loss", "top1", "top5", "images_per_second"):
            self._events.add_scalar(f"epoch/{name}", getattr(row, name), row.step)
        lines = [
            {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in asdict(epoch).items()}
            for epoch in rows
        ]
        beside = self.out / f"{CURVES}.new"
        with beside.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, lines[0], lineterminator="\n")
            table.writeheader()
            table.writerows(lines)
        os.replace(beside, self.out / CURVES)

    def close(self) -> None:
        """Flush and close all outputs."""
        self._bar.close()
        self._events.close()
