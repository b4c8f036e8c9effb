"""Log a training run: progress, a table, and TensorBoard events."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vitviz.extras import extra
from vitviz.formatting import percent
from vitviz.progress import bar
from vitviz.writing import write_table

CURVES, EVENTS = "curves.csv", "events"
_EVERY = 20  # steps between points of TensorBoard's curves


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
        progress: show one line per epoch, and the steps as `vitviz.progress.bar`.
    """

    def __init__(self, out: Path, epochs: int, steps: int, classes: int, step: int, *, progress: bool) -> None:
        with extra("train"):
            from tensorboardX.event_file_writer import EventsWriter  # slow to import

        self.out, self.epochs, self.total, self.classes, self.progress = out, epochs, steps, classes, progress
        self._began, self._first, self._stack = time.monotonic(), step, ExitStack()
        self._bar = self._stack.enter_context(bar(None, "training", show=progress, unit=" steps", leave=False))
        (out / EVENTS).mkdir(parents=True, exist_ok=True)
        # In contrast to tensorboardX.SummaryWriter, which writes in a thread, this raises the error of a full disk.
        self._events = EventsWriter(str(out / EVENTS / "events"))
        self._stack.callback(self._events.close)
        if step:
            self._write(step + 1, session_log={"status": "START"})

    def say(self, text: str) -> None:
        """Print a line."""
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
        if number // _EVERY != (number - count) // _EVERY:
            self._add(number, {"train/step_loss": loss, "train/lr": rate})

    def epoch(self, rows: Sequence[Epoch]) -> None:
        """Log the last of these epochs, and write the table of all epochs."""
        row = rows[-1]
        self.say(row.describe(self.epochs, self.classes))
        names = ("loss", "accuracy", "val_loss", "top1", "top5", "images_per_second")
        self._add(row.step, {f"epoch/{name}": getattr(row, name) for name in names})
        lines = [
            {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in asdict(epoch).items()}
            for epoch in rows
        ]
        write_table(self.out / CURVES, [lines[0], *(line.values() for line in lines)])

    def close(self) -> None:
        """Flush and close all outputs."""
        self._stack.close()

    def _add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write numbers by name for TensorBoard."""
        self._write(step, summary={"value": [{"tag": name, "simple_value": x} for name, x in scalars.items()]})
        self._events.flush()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(wall_time=time.time(), step=step, **content))
