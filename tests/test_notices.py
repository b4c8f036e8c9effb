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
    assert stable(written) != stable(made.replace("| torch |", "| torch2 |"))
    assert stable(written) != stable(made.replace("onnx-ir", "onnx"))


def test_what_is_carried_is_named() -> None:
    text = write_notices.notices()
    for name in ("dinov2-s14-everyday", "church.jpg", "CC0-1.0", "DejaVu", "onnxruntime-web", "| torch |", "research"):
        assert name in text
    assert len([line for line in text.splitlines() if line.startswith("| `examples/")]) == len(
        list((ROOT / "examples").glob("*.jpg"))
    )


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
