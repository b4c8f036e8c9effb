"""Test the command that writes the lecture's texts, and refusals of a lecturer's texts before any work."""

import sys
from pathlib import Path

import pytest

from vitviz.cli.main import main
from vitviz.lecture.texts import STEPS, lecture_texts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "texts"


def test_lecture_writes_all_texts_to_change(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lecture", "texts", "--lang", "en", "zh"]) == 0
    assert f"{2 * len(STEPS)} texts -> texts" in capsys.readouterr().out
    assert lecture_texts(folder) == lecture_texts()
    path = folder / "en" / f"{STEPS[1]}.md"
    path.write_text(path.read_text(encoding="utf-8").replace("# ", "# My ", 1), encoding="utf-8")
    assert lecture_texts(folder)["en"][1]["title"].startswith("My ")


def test_lecture_overwrites_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folder / "en" / "heads.md"
    own.parent.mkdir(parents=True)
    own.write_text("mine", encoding="utf-8")
    assert main(["lecture", "texts"]) == 2
    assert str(Path("texts", "en", "heads.md")) in capsys.readouterr().err
    assert [path.read_text(encoding="utf-8") for path in folder.rglob("*.md")] == ["mine"]
    assert main(["lecture", "texts", "--steps", "mlp", "cost", "--quiet"]) == 0
    assert {path.stem for path in folder.rglob("*.md")} == {"heads", "mlp", "cost"}


@pytest.mark.parametrize(("option", "value"), [("--lang", "fr"), ("--steps", "softmax")])
def test_lecture_refuses_unknown_names(
    folder: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lecture", "texts", option, value]) == 2
    assert value in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["en/softmax.md", "fr/pixels.md", "en/pixels.txt", "pixels.md"])
def test_wrong_names_are_refused_before_any_work(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("# A\n\nB\n\n## C\n\nD\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "vitviz.page", None)  # builds the page
    for command in (
        ["app", "--lecture", "texts"],
        ["export", "missing.jpg", "--lecture", "--texts", "texts"],
        ["export", "--static", "site", "--model", "missing", "--texts", "texts"],
    ):
        assert main(command) == 2
        assert f"got {name} in texts" in capsys.readouterr().err, command
