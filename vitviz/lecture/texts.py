"""Read the texts of the lecture: one Markdown file per step and language, which a lecturer may replace.

`vitviz/web/core/steps.js` lists the steps.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from vitviz.errors import VitvizError
from vitviz.extras import extra
from vitviz.lecture.exercises import exercises_given
from vitviz.resources import resource_folder
from vitviz.web import bundle
from vitviz.web.languages import LANGUAGES

_DECLARED = (bundle.HERE / "core" / "steps.js").read_text(encoding="utf-8")
STEPS = tuple(re.findall(r"^  \{ name: '(\w+)'", _DECLARED, re.MULTILINE))
"""The names of the steps in order."""
FILES = tuple(f"{name}.md" for name in STEPS)
MAX_TEXT = 200_000  # bytes
SHAPE = "one heading with # (the title), text, one heading with ## (a question to the audience), and its answer"
_MATHML = """
math mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle merror mpadded mphantom mfenced menclose msub msup msubsup
munder mover munderover mmultiscripts mprescripts none mtable mtr mtd mlabeledtr
xmlns display mathvariant mathsize mathcolor mathbackground width height depth lspace rspace voffset linethickness
displaystyle scriptlevel stretchy fence separator form accent accentunder movablelimits symmetric largeop maxsize
minsize columnalign rowalign columnspacing rowspacing columnlines rowlines frame notation open close separators
linebreak align side columnwidth
"""
MATHML = frozenset(_MATHML.split())  # elements and attributes of formulas
_REFERENCE = re.compile(r"&#x?[0-9A-Fa-f]+;|&(?:lt|gt|amp);")
_FORMULA = re.compile(r"\$(?!\s)((?:\\.|[^$\\])+?)(?<!\s)\$")
_LINE = re.compile(  # within Chinese, and after its punctuation, where a line's end would be shown as a space
    r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])|(?<=[\u3000-\u303f\uff00-\uffef])\n(?=[\w$])"
)


class LectureError(VitvizError):
    """Raised if a text of the lecture is invalid; the message names the file."""


def lecture_given(language: str = "en", folder: Path | None = None) -> dict[str, Any]:
    """Return the data of the lecture for a page: its texts, its exercises, and its initial language.

    Raises:
        LectureError: see `lecture_texts`.
    """
    return {"lang": language, "texts": lecture_texts(folder), "exercises": exercises_given()}


def lecture_texts(folder: Path | None = None) -> dict[str, list[dict[str, str]]]:
    """Return the steps of the lecture in each language as HTML: title, body, question and answer.

    Missing texts are in English.

    Args:
        folder: a lecturer's folder, whose files such as en/pixels.md replace those of vitviz.

    Raises:
        LectureError: for a missing folder, an unexpected file name, a text with the wrong structure, or an invalid
            formula.
    """
    files = _files(resource_folder("lecture")) | ({} if folder is None else _own_files(Path(folder)))
    step = cache(_step)  # several languages can have the same English text
    return {
        language: [step(files.get(f"{language}/{file}", files[f"en/{file}"])) for file in FILES]
        for language in LANGUAGES
    }


def copy_texts(folder: Path, languages: Iterable[str], steps: Iterable[str]) -> list[Path]:
    """Copy bundled texts to a folder, such as en/pixels.md, for a lecturer to change; return their paths.

    Args:
        folder: new, or without these files.
        languages: some of `LANGUAGES`.
        steps: some of `STEPS`.

    Raises:
        LectureError: if one of the files exists; nothing is written then.
    """
    bundled = resource_folder("lecture")
    names = [f"{language}/{step}.md" for language in languages for step in steps]
    if existing := [folder / name for name in names if (folder / name).exists()]:
        raise LectureError(f"Expected a folder without texts, got {existing[0]}. Name another folder, or delete it.")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundled / name, folder / name)
    return [folder / name for name in names]


def _files(folder: Path, pattern: str = "*.md") -> dict[str, Path]:
    """Return the files in a folder by name, such as en/pixels.md."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob(pattern))}


def _own_files(folder: Path) -> dict[str, Path]:
    """Return a lecturer's files by name."""
    known = {f"{language}/{file}" for language in LANGUAGES for file in FILES}
    files = {
        name: path
        for name, path in _files(folder, "*").items()
        if not (path.is_dir() and path.suffix != ".md") and not path.name.startswith(".")
    }
    if not files:
        raise LectureError(f"Expected a folder with texts such as en/{FILES[0]}, got {folder}. Put one there.")
    if unknown := [name for name in files if name not in known]:
        raise LectureError(
            f"Expected texts named {', '.join(FILES)} in the folders {' and '.join(LANGUAGES)}, "
            f"got {unknown[0]} in {folder}. Rename it or move it away."
        )
    return files


def _step(path: Path) -> dict[str, str]:
    """Return one text as HTML."""
    try:
        if not path.is_file():  # reading a pipe or device could block forever
            raise LectureError(f"Expected a text as a regular file, got {path}, a pipe or a folder. Save it as a file.")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT + 1)
        if len(data) > MAX_TEXT:
            raise LectureError(f"Expected a text of at most {MAX_TEXT // 1000} kB, got {path} with more. Shorten it.")
        text = _LINE.sub("", data.decode("utf-8").replace("\r\n", "\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise LectureError(f"Expected a text in UTF-8, got {path} ({error}). Save it as UTF-8.") from error
    tokens = _markdown().parse(text)
    heads = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    if [tokens[place].tag for place in heads] != ["h1", "h2"] or heads[0] != 0:
        raise LectureError(f"Expected {SHAPE}, got other headings in {path}. Change the headings.")
    body, answer = tokens[3 : heads[1]], tokens[heads[1] + 3 :]
    if not (body and answer):
        raise LectureError(f"Expected {SHAPE}, got no {'answer' if body else 'text'} in {path}. Add it.")
    parts = {"title": tokens[1:2], "body": body, "question": tokens[heads[1] + 1 : heads[1] + 2], "answer": answer}
    try:
        return {name: _markdown().renderer.render(part, _markdown().options, {}) for name, part in parts.items()}
    except FormulaError as error:
        raise LectureError(f"Expected formulas in LaTeX between two $, got {error} in {path}. Fix it.") from error


def _mathml(element: Element) -> str:
    """Return a formula as HTML with only the elements and attributes of `MATHML`; texts are escaped.

    Raises:
        FormulaError: for an element or attribute that `MATHML` lacks.
    """
    unknown = [name for name in (element.tag, *element.attrib) if name not in MATHML]
    if unknown:
        raise FormulaError(unknown[0])
    named = "".join(f' {name}="{_escaped(value)}"' for name, value in element.attrib.items())
    children = "".join(_mathml(child) + _escaped(child.tail) for child in element)
    return f"<{element.tag}{named}>{_escaped(element.text)}{children}</{element.tag}>"


def _escaped(text: str | None) -> str:
    """Escape a text for HTML. The renderer of the text writes non-ASCII characters as references."""
    return html.escape(_REFERENCE.sub(lambda match: html.unescape(match[0]), text or ""))


class FormulaError(VitvizError):
    """Raised if a formula is invalid."""


@cache
def _markdown() -> Any:
    """Return the converter from Markdown to HTML: without raw HTML and pictures, and with formulas as MathML."""
    with extra("app"):
        from latex2mathml.converter import convert_to_element
        from markdown_it import MarkdownIt

    def parse(state: Any, silent: bool) -> bool:
        match = _FORMULA.match(state.src, state.pos, state.posMax)
        if match is None:
            return False
        if not silent:
            state.push("formula", "math", 0).content = match[1]
        state.pos = match.end()
        return True

    def render(_: Any, tokens: Any, place: int, *_more: Any) -> str:
        latex = tokens[place].content
        try:
            return _mathml(convert_to_element(latex))
        except Exception as error:  # the package's errors have no common base class
            formula = f"${latex}$ ({type(error).__name__})"
            raise FormulaError(formula) from error

    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    reader.inline.ruler.before("escape", "formula", parse)
    reader.add_render_rule("formula", render)
    return reader
