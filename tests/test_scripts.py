"""Test scripts and their results: example photographs, notices, tables of the everyday model."""

import csv
import io
import json
import re
import sys
from dataclasses import replace
from email.message import Message
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

ROOT = Path(__file__).parents[1]
SCRIPTS, EXAMPLES = ROOT / "scripts", ROOT / "examples"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "checkpoints")]

import count_lines  # noqa: E402
import everyday_head  # noqa: E402
import write_notices  # noqa: E402
from make_examples import ITEMS, LONGER_SIDE, SKIMAGE, Example, photograph, source  # noqa: E402

# ---- example photographs

INDEX = json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8"))


def test_index_files_and_table_agree() -> None:
    names = [entry["file"] for entry in INDEX]
    assert len(names) == 8
    assert sorted(names) == sorted(path.name for path in EXAMPLES.glob("*.jpg"))
    listed = [(entry["file"], entry["label"], tuple(entry["classes"])) for entry in INDEX]
    assert listed == [(item.file, item.label, item.classes) for item in ITEMS]
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    for item, row in zip(ITEMS, rows, strict=True):
        with Image.open(EXAMPLES / item.file) as image:
            pixels = f"{image.width} × {image.height}"
        facts = (item.file, item.label, *item.classes, item.author, item.licence, item.package, item.member, pixels)
        assert all(fact in row for fact in facts)
        assert item.licence in {"CC0-1.0", "public domain"}


def test_photographs_are_plain_jpegs_of_a_useful_size() -> None:
    labels, sizes = [entry["label"] for entry in INDEX], []
    assert len(set(labels)) == len(labels)
    assert all(5 <= len(label) <= 80 for label in labels)  # screen readers read them aloud
    for entry in INDEX:
        with Image.open(EXAMPLES / entry["file"]) as image:
            image.load()
            sizes.append(image.size)
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert 400 <= max(image.size) <= LONGER_SIDE
            assert len(image.getexif()) == 0
            assert not {"exif", "icc_profile", "comment", "xmp", "photoshop"} & set(image.info)
    assert {width > height for width, height in sizes} == {True, False}  # portrait and landscape
    assert sum(path.stat().st_size for path in EXAMPLES.iterdir()) <= 2 * 2**20


@pytest.mark.parametrize("item", [item for item in ITEMS if item.package == SKIMAGE], ids=lambda item: item.name)
def test_script_reproduces_the_picture(item: Example) -> None:
    """Compare only photographs from scikit-image, which the tests install; others need a Debian package."""
    file, _ = photograph(source(item, Path("unused")))
    with Image.open(EXAMPLES / item.file) as committed, Image.open(io.BytesIO(file)) as again:
        assert committed.size == again.size
        difference = max(abs(a - b) for a, b in zip(committed.tobytes(), again.tobytes(), strict=True))
    assert difference <= 2  # libjpeg versions round differently


# ---- notices about third-party work


def stable(text: str) -> list[str]:
    """Return the lines; for packages without an exact version, only name and extra, because the rest can change."""
    pins = re.findall(r"^([\w-]+)==", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    _, _, table = text.partition("| package |")
    loose = {line for line in table.splitlines() if line.startswith("| ") and line.split()[1] not in pins}
    return [line.rsplit("|", 3)[0] if line in loose else line for line in text.splitlines()]


def test_the_notices_are_current() -> None:
    written, fresh = write_notices.FILE.read_text(encoding="utf-8"), write_notices.notices()
    assert stable(written) == stable(fresh), "run scripts/write_notices.py"
    for name, changed in (("| torch |", "| torch2 |"), ("onnx-ir", "onnx")):
        assert stable(written) != stable(fresh.replace(name, changed))
    for name in ("dinov2-s14-everyday", "CC0-1.0", "DejaVu", "onnxruntime-web", "| torch |", "research"):
        assert name in fresh
    named = {line.split("`")[1] for line in fresh.splitlines() if line.startswith("| `examples/")}
    assert {Path(name).name for name in named} == {path.name for path in (ROOT / "examples").glob("*.jpg")}


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MIT", "License": "text"}, "MIT"),
        ({"License": "BSD"}, "BSD"),
        (
            {"License": "Copyright 2023\nall of it", "Classifier": "License :: OSI Approved :: MIT License"},
            "MIT License",
        ),
        ({"License": "Copyright 2023\nall of it"}, "see the licence in its files"),
    ],
)
def test_licence_is_read_from_metadata(fields: dict[str, str], licence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    about = Message()
    for name, value in fields.items():
        about[name] = value
    monkeypatch.setattr(write_notices, "metadata", lambda _: about)
    assert write_notices.licence("some") == licence


# ---- the everyday model: its threshold and tables


def test_sure_predictions_are_right_and_rare_on_unknown_pictures() -> None:
    torch.manual_seed(3)
    classes = torch.randint(10, (3000,))
    logits = torch.randn(3000, 10) + 3 * torch.rand(3000, 1) * F.one_hot(classes, 10)
    folds = torch.arange(3000) % len(everyday_head.FOLDS)
    answers = everyday_head.Answers(logits, classes, folds, {"held-out classes": torch.randn(500, 10)})
    hotter = replace(answers, logits=3 * logits)
    assert everyday_head.temperature(hotter) == pytest.approx(3 * everyday_head.temperature(answers), rel=0.06)
    sure_above, known_above = everyday_head.thresholds(answers)

    def sure(logits: torch.Tensor) -> torch.Tensor:
        return logits.softmax(1).amax(1) >= sure_above

    assert answers.right[sure(logits)].double().mean() >= everyday_head.RIGHT
    assert 0 < sure(answers.unknown["held-out classes"]).double().mean() <= everyday_head.SURE_OF_UNKNOWN
    assert sure(logits).double().mean() > 0.1
    called = [
        float(everyday_head.unknown(logits[folds == fold], known_above).double().mean())
        for fold in range(len(everyday_head.FOLDS))
    ]
    assert 0.9 * everyday_head.CALLED_UNKNOWN < max(called) <= everyday_head.CALLED_UNKNOWN


LEFT_OUT, UNKNOWN = "left out", "unknown"


def rows(name: str) -> list[dict[str, str]]:
    with (SCRIPTS / "checkpoints" / "everyday" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


TRAINS = {row["folder"]: row["class"] for row in rows("classes.csv")}
CLASSES = {*TRAINS.values()} - {LEFT_OUT, UNKNOWN}


def test_labelled_photographs_are_numerous_and_unknown_ones_are_of_no_class() -> None:
    images = {row["folder"]: int(row["images"]) for row in rows("wild_labels.csv")}
    known = [row["folder"] for row in rows("wild_labels.csv") if row["answers"] != UNKNOWN]
    unknown = [folder for folder, trained in TRAINS.items() if trained == UNKNOWN]
    for folders, least, photographs in ((known, 190, 1250), (unknown, 24, 120)):
        assert len(folders) >= least
        assert sum(images[folder] for folder in folders) >= photographs
    assert not CLASSES & {*unknown}


@pytest.mark.parametrize("name", ["wild_labels.csv", "own_labels.csv"])
def test_right_answers_are_classes_and_the_own_class_is_the_first(name: str) -> None:
    for row in rows(name):
        answers = row["answers"].split("|")
        assert answers == [UNKNOWN] or {*answers} <= CLASSES
        if TRAINS[row["folder"]] in CLASSES:
            assert answers[0] == TRAINS[row["folder"]]


def test_groups_hold_classes_and_earlier_groups() -> None:
    earlier: set[str] = set()
    for row in rows("groups.csv"):
        members = row["members"].split("|")
        assert len(members) == len({*members}) >= 2
        assert {member for member in members if not member.startswith("[")} <= CLASSES
        assert {member[1:-1] for member in members if member.startswith("[")} <= earlier
        earlier.add(row["group"])


# ---- lines of code


def test_lines_of_code_leave_out_comments_and_docstrings() -> None:
    python = (
        '"""Module."""\n\nimport os  # why\n\n# how\n\ndef f():\n    """Return.\n\n    More.\n    """\n    return "c"\n'
    )
    script = (
        "// why\n\n/* how\n and what */\nimport x from 'y';\n\n/** Return. */\nconst url = 'http://a'; // an address\n"
    )
    assert count_lines.count_python(python) == 3  # import, def, return
    assert count_lines.count_javascript(script) == 2
    files = {"vitviz/web/core/zh.js": script, "vitviz/web/core/url.js": script, "vitviz/server/api.py": python}
    assert count_lines.count(files) == {
        ("JavaScript", "vitviz/web/core"): 2,
        ("Python", "vitviz/server"): 3,
        ("Python", "of which server and settings"): 3,
    }
