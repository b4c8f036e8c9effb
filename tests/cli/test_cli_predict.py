"""`vitviz predict` over files and folders: everything is looked at, what is broken is named, nothing is overwritten."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from PIL import Image
from running import CHURCH, folder
from safetensors.torch import save_file

import vitviz
from vitviz.cli import predict
from vitviz.cli.main import main
from vitviz.cli.predict import find_photos
from vitviz.formatting import percent


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photographs in a folder, one below it, and a file that is no image."""
    root = tmp_path / "photos"
    (root / "deep").mkdir(parents=True)
    for index, name in enumerate(("a.png", "b.jpg", "b.png", "deep/c.png")):
        Image.effect_noise((60 + 20 * index, 70), 40 + 30 * index).convert("RGB").save(root / name)
    (root / "notes.txt").write_text("no image")
    return root


def run(model: str, *more: str) -> int:
    return main(["predict", *more, "--model", model, "--device", "cpu"])


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_walked_and_a_broken_file_is_named(
    model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = photos / "deep" / "broken.jpg", tmp_path / "out"
    broken.write_bytes(b"\xff\xd8 no more")
    monkeypatch.setattr(predict, "ON_A_SHEET", 3)
    assert run(model, str(photos), "-o", str(out), "-k", "2") == 2  # one is broken
    printed = capsys.readouterr()
    assert str(broken) in printed.err
    assert "1 of 5" in printed.err
    assert below(out) == {"a.png", "b.png", "b.png.png", "deep/c.png", "sheet-1.png", "sheet-2.png"}
    sizes = [Image.open(out / f"sheet-{number}.png").size for number in (1, 2)]
    assert sizes[0][0] > sizes[1][0]  # three beside each other, and one
    explorer = vitviz.Explorer(vitviz.load(model))
    for name in ("a.png", "b.jpg", "b.png", "deep/c.png"):
        view = explorer.open(photos / name)
        label, share = view.predictions(1)[0]
        summary, first = printed.out.split(f"{photos / name}\n")[1].splitlines()[:2]
        assert summary == f"  {view.describe()}"
        assert first.split("%")[1].strip() == label
        assert first.startswith(percent(share).rjust(10))
    assert run(model, str(photos), str(CHURCH), "--json", "-k", "3") == 2
    answers = json.loads(capsys.readouterr().out)["images"]
    names = ["a.png", "b.jpg", "b.png", "broken.jpg", "c.png", CHURCH.name]
    assert [Path(answer["photo"]).name for answer in answers] == names
    assert ["error" in answer for answer in answers] == [name == "broken.jpg" for name in names]
    assert [len(answer.get("predictions", [])) for answer in answers] == [3, 3, 3, 0, 3, 3]
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", broken, tmp_path / "nowhere.jpg"):
        assert run(model, str(path), "-o", str(tmp_path / "none")) == 2
        assert path.name in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


class Terminal(io.StringIO):
    """What people see on a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_folder_s_progress_is_for_terminals_alone(
    model: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, str(photos)) == 0
    assert capsys.readouterr().err == ""  # no terminal
    for options, seen in (([], True), (["--quiet"], False)):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        assert run(model, str(photos), *options) == 0
        assert ("/4 [" in terminal.getvalue()) is seen


def test_json_of_one_photograph_from_a_file_or_standard_input(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, str(CHURCH), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (image,) = answer["images"]
    assert answer["model"] == model
    assert set(image) == {"photo", "input_size", "summary", "classes", "sure_above", "predictions"}
    assert answer["input_size"] == image["input_size"]
    assert image["summary"].startswith(f"Closest of {image['classes']} classes: thing")
    assert image["sure_above"] is None
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(CHURCH.read_bytes())))
    assert run(model, "-", "--json", "-o", str(tmp_path / "out")) == 0
    image["photo"] = "-"
    assert json.loads(capsys.readouterr().out) == answer
    assert below(tmp_path / "out") == {"stdin.png", "sheet.png"}
    sure = folder(tmp_path / "sure", about={"sure_above": 1.0})
    assert run(sure, str(CHURCH), "-k", "1") == 0
    assert "Not sure: perhaps thing " in capsys.readouterr().out
    assert run(sure, str(CHURCH), "-k", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"][0]["sure_above"] == 1.0


def test_a_second_run_reads_no_picture_of_the_first_and_overwrites_no_photograph(
    model: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: (photos / name).read_bytes() for name in below(photos)}
    for arguments in ([str(path), "-o", str(photos)] for path in (photos, photos / "a.png", photos / "b.jpg")):
        assert run(model, *arguments) == 2
        assert "-o" in capsys.readouterr().err
    assert {name: (photos / name).read_bytes() for name in below(photos)} == before
    out = photos / "out"
    assert run(model, str(photos), "-o", str(out)) == 0
    first = below(out)
    assert run(model, str(photos), "-o", str(out)) == 0
    assert below(out) == first


def test_pictures_of_several_folders_do_not_collide(photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    shutil.copy(photos / "a.png", other / "sheet.png")
    shutil.copy(photos / "a.png", other / "A.png")
    found = find_photos([str(photos), str(other), str(CHURCH), str(photos / "a.png")], tmp_path / "out")
    names = [str(one.picture).casefold() for one in found]
    assert len(set(names)) == len(names) == 4 + 6 + 1  # a.png was there already
    assert {"photos/a.png", "other/a.png", "church.png"} <= set(names)
    alone = find_photos([str(other)], tmp_path / "out")
    assert "sheet.png" not in {str(one.picture) for one in alone}


def test_labels_and_preprocessing_of_a_file_that_lacks_them_are_assumed_aloud_or_given(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, names = tmp_path / "mine.safetensors", tmp_path / "names.txt"
    made = tiny.model(image_size=(32, 32), patch_size=8)
    save_file(made.state_dict(), alone)
    names.write_text("\n".join(f"own {index}" for index in range(made.config.classes)), encoding="utf-8")
    kind, photo = ("--family", "vit", "--heads", str(made.config.heads)), str(photos / "a.png")
    assert run(str(alone), photo, *kind) == 0
    said = capsys.readouterr().err
    assert "preprocessing: " in said
    assert "labels: class 0, class 1" in said
    assert run(str(alone), photo, *kind, "--labels", str(names), "--preprocess", "half", "--json") == 0
    said = capsys.readouterr()
    assert "preprocessing" not in said.err
    assert "own " in json.dumps(json.loads(said.out)["images"][0])
    assert run(str(alone), photo, *kind, "--labels", str(tmp_path / "none.txt")) == 2
    assert "none.txt" in capsys.readouterr().err
