"""A trunk's rows on disk: never an old file, never half a one, and gone on with after a stop."""

import copy
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from feature_cases import COUNT, DEPTH, GRID, PATCH, SIZE, everything, inputs, model, rows, split
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from vitviz.model import ViT
from vitviz.training import TrainingError, cache
from vitviz.training.cache import Rows
from vitviz.training.data import Split, fitted
from vitviz.training.features import Tail, Whole, open_answers, open_features, trunk
from vitviz.training.teacher import Teacher

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rows_are_numpys_own_file_in_order(tmp_path: Path) -> None:
    of = model()
    kept = rows(of, tmp_path, 2, dtype=torch.float16)
    there = np.load(kept.path)
    assert there.dtype == np.float16
    assert there.shape == (COUNT, 7, tiny.WIDTH)
    assert len(kept) == COUNT
    assert kept.bytes == there.nbytes
    np.testing.assert_array_equal(everything(kept).numpy(), there.astype(np.float32))
    chosen = torch.tensor([7, 0, 7, 10, 3])
    assert kept.read(chosen).equal(everything(kept)[chosen])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".lock", ".npy"]


@given(st.lists(st.integers(0, COUNT - 1), max_size=20))
def test_any_rows_come_in_the_order_in_which_they_are_asked_for(chosen: list[int]) -> None:
    array = np.arange(COUNT * 6, dtype=np.float16).reshape(COUNT, 2, 3)
    read = Rows(Path("none"), SIZE, array).read(torch.tensor(chosen, dtype=torch.long))
    assert read.equal(torch.from_numpy(array.astype(np.float32))[torch.tensor(chosen, dtype=torch.long)])


def test_what_is_there_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model()
    first = rows(of, tmp_path, 1)
    monkeypatch.setattr(cache, "_fill", lambda *_: pytest.fail("computed again"))
    assert rows(of, tmp_path, 1).path == first.path


def edited(of: ViT, name: str) -> ViT:
    other = copy.deepcopy(of)
    with torch.no_grad():
        other.get_parameter(name).flatten()[0] += 1e-3
    return other


def test_rows_of_anything_else_are_another_file(tmp_path: Path) -> None:
    of = model()
    fed = copy.deepcopy(of)
    fed.pretrained = replace(of.pretrained, preprocess=replace(of.pretrained.preprocess, mean=(0.0, 0.0, 0.0)))
    wide = replace(split(), preprocess=fitted((10, 15), "crop"))
    settings = {"name": "train", "dtype": torch.float32, "batch": 4}
    paths = [
        rows(of, tmp_path, 1).path,
        rows(edited(of, "patch_embed.proj.bias"), tmp_path, 1).path,
        rows(edited(of, "blocks.1.attn.qkv.weight"), tmp_path, 1).path,
        rows(edited(of, "cls_token"), tmp_path, 1).path,
        rows(fed, tmp_path, 1).path,
        rows(of, tmp_path, 2).path,
        rows(of, tmp_path, 0).path,
        rows(of, tmp_path, 1, dtype=torch.float16).path,
        rows(of, tmp_path, 1, seed=1).path,
        rows(model(norm_eps=0.1), tmp_path, 1).path,
        open_features(of, wide, SIZE, tmp_path, unfreeze_last=1, **settings).path,
        open_features(of, wide, (15, 10), tmp_path, unfreeze_last=1, **settings).path,
        open_features(of, split(0, 10), SIZE, tmp_path, unfreeze_last=1, **settings).path,
    ]
    assert len(set(paths)) == len(paths)


def test_rows_stay_good_while_only_the_tail_is_another(tmp_path: Path) -> None:
    of = model()
    first = rows(of, tmp_path, 1).path
    for other in (
        edited(of, "blocks.2.attn.qkv.weight"),
        edited(of, "norm.weight"),
        edited(of, "head.bias"),
        model(dropout=0.5, path_dropout=0.1),
    ):
        assert rows(other, tmp_path, 1).path == first
    assert rows(edited(of, "norm.weight"), tmp_path, 0).path != rows(of, tmp_path, 0).path


def files(folder: Path) -> Split:
    """Three photographs on disk."""
    for index in range(3):
        path = folder / "ox" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(index).integers(0, 256, (17, 13, 3), np.uint8)
        Image.fromarray(image).save(path)
    paths = tuple(sorted(folder.rglob("*.png")))
    return Split(torch.zeros(3, dtype=torch.long), paths, fitted(SIZE, "squash"))


@pytest.mark.parametrize("looked_at", [1, 16])  # the first alone, whose pixels do not change; all
def test_changed_photographs_are_computed_again(
    looked_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_LOOKED_AT", looked_at)
    of, one = model(), files(tmp_path / "a")
    settings = {"name": "val", "unfreeze_last": 1, "dtype": torch.float32}
    first = open_features(of, one, SIZE, tmp_path, **settings)
    assert open_features(of, one, SIZE, tmp_path, **settings).path == first.path
    Image.fromarray(np.zeros((17, 13, 3), np.uint8)).save(one.paths[1])
    second = open_features(of, one, SIZE, tmp_path, **settings)
    assert second.path != first.path
    assert [a.equal(b) for a, b in zip(everything(first), everything(second), strict=True)] == [True, False, True]
    other = replace(one, preprocess=fitted(SIZE, "crop"))
    assert open_features(of, other, SIZE, tmp_path, **settings).path not in (first.path, second.path)


def test_caching_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    of = model(dropout=0.5)
    of.train()
    of.blocks[1].eval()
    kept = rows(of, tmp_path, 1)
    assert [block.training for block in of.blocks] == [True, False, True]
    assert of.training
    assert everything(kept)[:4].equal(trunk(of.eval(), inputs(split(), of)[:4], 1))


def test_a_faster_trunk_is_another_file_and_nearly_the_same_rows(tmp_path: Path) -> None:
    of = model()
    exact, fast = rows(of, tmp_path, 1), rows(of, tmp_path, 1, cast=torch.bfloat16)
    assert exact.path != fast.path
    assert not everything(exact).equal(everything(fast))
    assert float((everything(exact) - everything(fast)).norm() / everything(exact).norm()) < 0.01


def test_a_callers_autocast_does_not_change_what_is_kept(tmp_path: Path) -> None:
    of = model()
    with torch.autocast("cpu", torch.bfloat16):
        inside = rows(of, tmp_path / "inside", 1)
    assert everything(inside).equal(everything(rows(of, tmp_path / "outside", 1)))


def test_what_half_precision_cannot_hold_is_refused(tmp_path: Path) -> None:
    of = model()
    with torch.no_grad():
        of.cls_token += 1e6
    with pytest.raises(TrainingError, match=r"float16.*--freeze none"):
        rows(of, tmp_path, 1, dtype=torch.float16)
    assert rows(of, tmp_path, 1).array.max() > 65504


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    of = model()
    for wrong in ({"dtype": torch.bfloat16}, {"batch": 0}):
        with pytest.raises(TrainingError):
            rows(of, tmp_path, 1, **wrong)
    for last in (-1, DEPTH + 1, True):
        with pytest.raises(TrainingError):
            rows(of, tmp_path, last)
        with pytest.raises(TrainingError):
            Tail(of, last, GRID)
    of.pretrained = None
    with pytest.raises(TrainingError):
        rows(of, tmp_path, 1)
    blind = tiny.model(grid=GRID, patch=PATCH, classes=0)
    for make in (Whole, lambda one: Tail(one, 1, GRID)):
        with pytest.raises(TrainingError):
            make(blind)


# --- stopped, and gone on with


def stop_after(batches: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the pixels of a split fail after so many batches; a list of the first image of each batch that was read."""
    asked: list[int] = []
    pixels = Split.pixels

    def some(self: Split, indices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        if len(indices) > 1 and int(indices[1]) == int(indices[0]) + 1 and len(indices) <= 4:
            asked.append(int(indices[0]))
            if len(asked) > batches:
                raise error
        return pixels(self, indices, size)

    monkeypatch.setattr(Split, "pixels", some)
    return asked


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model()
    whole = rows(of, tmp_path / "whole", 1).path.read_bytes()
    with monkeypatch.context() as patch:
        stop_after(2, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            rows(of, tmp_path, 1)
    (part,) = tmp_path.glob("*.part")
    assert not list(tmp_path.glob("*.npy"))
    part.write_bytes(part.read_bytes() + b"half a row")  # what a killed process may leave
    asked = stop_after(99, KeyboardInterrupt(), monkeypatch)
    assert rows(of, tmp_path, 1).path.read_bytes() == whole
    assert asked == [8]
    assert not part.exists()


def test_an_unfinished_file_that_is_another_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model()
    whole = rows(of, tmp_path, 1).path
    expected = whole.read_bytes()
    for junk in (b"", b"\x93NUMPY", b"x" * 5000):
        whole.rename(whole.with_suffix(".old"))
        whole.with_suffix(".part").write_bytes(junk)
        assert rows(of, tmp_path, 1).path.read_bytes() == expected


KILLED = """
import sys, time
sys.path.insert(0, "tests")
import torch
from pathlib import Path
import feature_cases
from vitviz.training.data import Split
from vitviz.training.features import open_features
pixels = Split.pixels
def slowly(self, indices, size=None):
    time.sleep(0.05)
    return pixels(self, indices, size)
Split.pixels = slowly
one = feature_cases.split(0, 160)
open_features(
    feature_cases.model(), one, feature_cases.SIZE, Path(sys.argv[1]), name="train", unfreeze_last=1, batch=4
)
print("done")
"""


def run_slowly(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for(folder: Path, least: int) -> Path:
    for _ in range(2000):
        if parts := [path for path in folder.glob("*.part") if path.stat().st_size > least]:
            return parts[0]
        time.sleep(0.02)
    raise AssertionError("nothing was written")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_a_second_process_waits(tmp_path: Path) -> None:
    """Kill -9 in the middle; then two processes at once: one goes on, both end with the one file."""
    first = run_slowly(tmp_path)
    part = wait_for(tmp_path, 5000)
    first.send_signal(signal.SIGKILL)
    first.wait()
    was = part.read_bytes()
    assert len(was) > 5000
    both = [run_slowly(tmp_path), run_slowly(tmp_path)]
    assert [one.communicate()[0].strip() for one in both] == ["done", "done"]
    (made,) = tmp_path.glob("*.npy")
    rows_before = (len(was) - 128) // (4 * 7 * tiny.WIDTH * 2) * (4 * 7 * tiny.WIDTH * 2)
    assert made.read_bytes()[: 128 + rows_before] == was[: 128 + rows_before]
    of, one = model(), split(0, 160)
    expected = trunk(of, inputs(one, of), 1)
    torch.testing.assert_close(torch.from_numpy(np.load(made)).float(), expected, rtol=2e-3, atol=2e-3)


def test_a_disk_that_is_too_small_is_said_before_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = model()
    old = rows(of, tmp_path, 2)
    usage = type("Usage", (), {"free": cache.LEAST_FREE + 100})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(TrainingError, match="1 other file"):
        rows(of, tmp_path, 1)
    assert rows(of, tmp_path, 2).path == old.path  # what is there needs no room


FULL = """
import resource, signal, sys
sys.path.insert(0, "tests")
import torch
from pathlib import Path
import feature_cases
from vitviz.training import TrainingError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    feature_cases.rows(feature_cases.model(), Path(sys.argv[1]), 1)
except TrainingError as error:
    print("refused:", error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes on Windows")
def test_a_disk_that_fills_up_leaves_what_is_there(tmp_path: Path) -> None:
    """The system refuses to write more than 4,000 bytes into a file, as a full disk does."""
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.startswith("refused:")
    assert "Make room" in run.stdout
    (part,) = tmp_path.glob("*.part")
    assert part.stat().st_size == 4000
    of = model()
    assert rows(of, tmp_path, 1).path.read_bytes() == rows(of, tmp_path / "other", 1).path.read_bytes()


# --- a teacher's answers


def test_a_teachers_answers_are_kept_too(tmp_path: Path) -> None:
    student = model()
    teacher = Teacher(model(5), student.pretrained)
    kept = open_answers(teacher, split(), SIZE, tmp_path, name="train", batch=4)
    expected = teacher(split().pixels(torch.arange(COUNT), SIZE))
    torch.testing.assert_close(everything(kept), expected, rtol=1e-5, atol=1e-5)
    other = open_answers(Teacher(model(6), student.pretrained), split(), SIZE, tmp_path, name="train")
    assert other.path != kept.path
