"""What a training shows while it runs, and leaves behind: a bar or lines, a table, curves, TensorBoard's events."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitviz.training import TrainingError

CURVES, PICTURE, EVENTS = "curves.csv", "curves.png", "events"
_EVERY = 20  # steps between two points of TensorBoard's curves
_NARROW = 30  # seconds between two drawings of the curves


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch as it is logged: a row of curves.csv.

    Args:
        epoch: counted from 1.
        step: steps that are done by its end.
        loss, accuracy: means over the training images of the epoch, as they were seen: augmented, and while the
            weights moved. With mixed images the class with the larger share counts.
        val_loss, top1, top5: on the validation images, with the running mean of the weights where there is one.
        lr: learning rate of the last step.
        images_per_second: in training, all processes together.
        seconds: of training and validation.
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

    def words(self, epochs: int) -> str:
        """The row as a line for people."""
        return (
            f"epoch {self.epoch} of {epochs}: loss {self.loss:.4f}, accuracy {self.accuracy:.2%}; validation loss "
            f"{self.val_loss:.4f}, top-1 {self.top1:.2%}, top-5 {self.top5:.2%}; lr {self.lr:.2g}, "
            f"{self.images_per_second:,.0f} images/s, {self.seconds:.1f} s"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


class Log:
    """Writes for one process; `quiet` for all that are not the first.

    Args:
        out: the folder.
        epochs: of the whole training.
        rows: of epochs that are done.
        step: where a training goes on; TensorBoard forgets what was logged behind it.
        quiet: write nothing at all.
        progress: a bar on terminals, a line an epoch elsewhere.
    """

    def __init__(
        self, out: Path, epochs: int, rows: Sequence[Epoch], step: int, *, quiet: bool, progress: bool
    ) -> None:
        self.out, self.epochs, self.rows, self.quiet = out, epochs, list(rows), quiet
        self._talks = progress and not quiet
        self._bar: Any = None
        self._drawn = 0.0
        self._events = None if quiet else _events(out / EVENTS, step)
        if self.rows and not quiet:
            self._write()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, words: str) -> None:
        """A line for people."""
        if self._talks:
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()

    def begin(self, epoch: int, steps: int, done: int) -> None:
        """An epoch's bar, on a terminal; epochs count from 0."""
        if self._talks and sys.stderr.isatty():
            from tqdm import tqdm

            words = f"epoch {epoch + 1}/{self.epochs}"
            self._bar = tqdm(total=steps, initial=done, desc=words, unit="step", leave=False, dynamic_ncols=True)

    def steps(self, number: int, losses: Sequence[float], rate: float, accuracy: float, speed: float) -> None:
        """Some steps are done, `number` of them through all epochs; `losses` are of the last ones."""
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"loss {losses[-1]:.4f}, accuracy {accuracy:.2%}, lr {rate:.2g}, {speed:,.0f} images/s", refresh=False
            )
            self._bar.update(len(losses))
        if self._events is not None and number // _EVERY != (number - len(losses)) // _EVERY:
            self._events.add_scalar("train/step_loss", losses[-1], number)
            self._events.add_scalar("train/lr", rate, number)

    def validating(self) -> None:
        """The bar's work is done."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def epoch(self, row: Epoch, seconds: float) -> None:
        """An epoch is done and validated, so many seconds after the beginning."""
        self.rows.append(row)
        if self.quiet:
            return
        self.say(row.words(self.epochs))
        try:
            self._write()
            if row.epoch == self.epochs or seconds - self._drawn > _NARROW:
                draw(self.rows, self.out / PICTURE)
                self._drawn = seconds
        except OSError as error:
            raise TrainingError(
                f"The curves could not be written to {str(self.out)!r}: {error}. The state is there: make room, then "
                "go on with --resume."
            ) from error
        assert self._events is not None
        for name in ("loss", "accuracy", "val_loss", "top1", "top5", "images_per_second"):
            self._events.add_scalar(f"epoch/{name}", getattr(row, name), row.step)

    def close(self) -> None:
        """Write what is not written yet."""
        self.validating()
        if self._events is None:
            return
        try:
            self._events.close()
        except OSError as error:  # what the training itself ended with matters more
            self.say(f"TensorBoard's last events could not be written: {error}.")

    def _write(self) -> None:
        text = io.StringIO()
        table = csv.DictWriter(text, [one.name for one in dataclasses.fields(Epoch)], lineterminator="\n")
        table.writeheader()
        table.writerows(_rounded(row.to_dict()) for row in self.rows)
        beside = self.out / f"{CURVES}.new"
        beside.write_text(text.getvalue(), encoding="utf-8")
        os.replace(beside, self.out / CURVES)


def draw(rows: Sequence[Epoch], path: Path) -> None:
    """Loss and accuracy over epochs, of training and validation, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    at = [row.epoch for row in rows]
    style = {"marker": "o", "markersize": 3.0} if len(rows) < 20 else {}
    left, right = figure.subplots(1, 2)
    left.plot(at, [row.loss for row in rows], "--", color="#555555", label="training", **style)
    left.plot(at, [row.val_loss for row in rows], "-", color="#0b62a4", label="validation", **style)
    left.set(xlabel="epoch", ylabel="loss")
    right.plot(at, [100 * row.accuracy for row in rows], "--", color="#555555", label="training", **style)
    right.plot(at, [100 * row.top1 for row in rows], "-", color="#0b62a4", label="validation, top-1", **style)
    right.set(xlabel="epoch", ylabel="accuracy in %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    beside = path.with_name(f".{path.name}.new")
    figure.savefig(beside, format="png")
    os.replace(beside, path)


def _events(folder: Path, step: int) -> Any:
    """TensorBoard's writer. It is imported here because that takes a while, and only trainings want it."""
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
