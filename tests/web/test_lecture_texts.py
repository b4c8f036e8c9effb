"""The lecture's texts: a lecturer's own take their place, and formulas become MathML of an allow-list."""

from __future__ import annotations

import os
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest
import viewer_pages

from vitviz.web.lecture import FILES, MATHML, LectureError, lecture_texts

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


def texts_with(folder: Path, text: str, name: str = "en/1-pixels.md") -> dict[str, list[dict[str, str]]]:
    """The lecture's texts with one of a lecturer's own."""
    path = folder / name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return lecture_texts(folder)


def body(folder: Path, formula: str) -> str:
    return texts_with(folder, f"# Title\n\nBody ${formula}$ here.\n\n## Question?\n\nAnswer.\n")["en"][0]["body"]


def test_a_lecturers_texts_take_the_place_of_the_ones_here(tmp_path: Path) -> None:
    text = "# One\n\nTwo *words*, <b>$a_1$</b>.\n\n## Three?\n\nFour![](http://x.example/a.png)\n"
    own, here = texts_with(tmp_path, text, f"zh/{FILES[2]}"), lecture_texts()
    third = own["zh"][2]
    assert (third["title"], third["question"]) == ("One", "Three?")
    assert "<em>words</em>" in third["body"]
    assert "<msub>" in third["body"]
    assert "&lt;b&gt;" in third["body"]  # no HTML of the file's own
    assert "<img" not in third["answer"]  # and nothing that would be fetched
    assert own["en"] == here["en"]
    assert [step for step in range(8) if own["zh"][step] != here["zh"][step]] == [2]
    assert "Three?" in viewer_pages.view().html(lecture=True, texts=tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("en/9-more.md", "# A\n\nB\n\n## C\n\nD\n", "9-more.md"),
        ("en/1-pixels.md", "No heading.\n", "other headings"),
        ("en/1-pixels.md", "# A\n\nB\n\n## C\n", "no answer"),
        ("en/1-pixels.md", "# A\n\n## C\n\nD\n", "no text"),
        ("en/1-pixels.md", "# A\n\n$x_1_2$\n\n## C\n\nD\n", "x_1_2"),
        ("en/notes.txt", "# A\n", "Put one there"),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(LectureError, match="Expected") as found:
        texts_with(tmp_path, text, name)
    assert said in str(found.value)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attributes)}


@pytest.mark.parametrize("formula", SCRIPTS)
def test_a_formula_holds_no_other_element_than_mathml(formula: str, tmp_path: Path) -> None:
    found: set[str] = set()
    with suppress(LectureError):  # a formula of other elements is refused
        found = Elements(body(tmp_path, formula)).found
    assert found <= MATHML | {"p"}


def test_formulas_of_the_lecture_are_still_there(tmp_path: Path) -> None:
    found = body(tmp_path, r"a < b,\ \frac{q k^\top}{\sqrt{d}} \cdot \text{share} & \alpha")
    assert all(part in found for part in ("<mo>&lt;</mo>", "<mfrac>", "α", "share"))
    assert "&amp;#x" not in found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_devices_and_endless_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "en").mkdir()
    path = tmp_path / "en" / "1-pixels.md"
    for make, words in (
        (os.mkfifo, "regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "regular file"),
        (lambda path: path.write_text("x" * 300_000), "200 kB"),
    ):
        make(path)
        with pytest.raises(LectureError, match=words):
            lecture_texts(tmp_path)
        path.unlink()
