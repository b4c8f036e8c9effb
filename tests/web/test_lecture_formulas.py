"""What the formula renderer writes is MathML of an allow-list, whatever stands in a lecturer's text."""

from __future__ import annotations

import os
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vitviz.web.lecture import MATHML, LectureError, lecture_texts

TEXT = "# Title\n\nBody $FORMULA$ here.\n\n## Question?\n\nAnswer.\n"
SCRIPTS = [
    r"\text{<img src=x onerror=alert(1)>}",
    r"\text{<img/src='x'/onerror='alert(1)'>}",
    r"\mathrm{<script>alert(1)</script>}",
    r"\text{&lt;script&gt;alert(1)&lt;/script&gt;}",
    r"\text{&#60;img src=x onerror=alert(1)&#62;}",
    r"\text{</math><svg onload=alert(1)>}",
    r"\href{javascript:alert(1)}{x}",
    r"\color{red' onclick='alert(1)}x",
]


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attributes)}


def body(folder: Path, formula: str) -> str:
    (folder / "en").mkdir(exist_ok=True)
    (folder / "en" / "1-pixels.md").write_text(TEXT.replace("FORMULA", formula), encoding="utf-8")
    return lecture_texts(folder)["en"][0]["body"]


@pytest.mark.parametrize("formula", SCRIPTS)
def test_a_formula_holds_no_other_element_than_mathml(formula: str, tmp_path: Path) -> None:
    found = set()
    with suppress(LectureError):  # a formula of other elements is refused
        found = Elements(body(tmp_path, formula)).found
    assert found <= MATHML | {"p"}


def test_formulas_of_the_lecture_are_still_there(tmp_path: Path) -> None:
    found = body(tmp_path, r"a < b,\ \frac{q k^\top}{\sqrt{d}} \cdot \text{share} & \alpha")
    assert "<mo>&lt;</mo>" in found
    assert "<mfrac>" in found
    assert "α" in found
    assert "share" in found
    assert "&amp;#x" not in found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_devices_and_endless_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "en").mkdir()
    path = tmp_path / "en" / "1-pixels.md"
    os.mkfifo(path)
    with pytest.raises(LectureError, match="regular file"):
        lecture_texts(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(LectureError, match="regular file"):
        lecture_texts(tmp_path)
    path.unlink()
    path.write_text("x" * 300_000)
    with pytest.raises(LectureError, match="200 kB"):
        lecture_texts(tmp_path)
