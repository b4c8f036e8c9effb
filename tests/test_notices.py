"""The notices about other people's work are those of the packages, photographs and weights that are here."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import write_notices  # noqa: E402


def stable(text: str) -> list[str]:
    """The lines; of packages without an exact version, whose next one may say it otherwise, the name and the extra."""
    pins = re.findall(r"^([\w-]+)==", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    _, _, table = text.partition("| package |")
    loose = {line for line in table.splitlines() if line.startswith("| ") and line.split()[1] not in pins}
    return [line.rsplit("|", 3)[0] if line in loose else line for line in text.splitlines()]


def test_the_notices_are_current() -> None:
    written, made = write_notices.FILE.read_text(encoding="utf-8"), write_notices.notices()
    assert stable(written) == stable(made), "run scripts/write_notices.py"
    for name, other in (("| torch |", "| torch2 |"), ("onnx-ir", "onnx")):
        assert stable(written) != stable(made.replace(name, other))
    for name in ("dinov2-s14-everyday", "CC0-1.0", "DejaVu", "onnxruntime-web", "| torch |", "research"):
        assert name in made
    named = {line.split("`")[1] for line in made.splitlines() if line.startswith("| `examples/")}
    assert {Path(name).name for name in named} == {path.name for path in (ROOT / "examples").glob("*.jpg")}


@pytest.mark.parametrize(
    ("said", "licence"),
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
def test_a_licence_by_name(said: dict[str, str], licence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from email.message import Message

    about = Message()
    for name, value in said.items():
        about[name] = value
    monkeypatch.setattr(write_notices, "metadata", lambda _: about)
    assert write_notices.licence("some") == licence
