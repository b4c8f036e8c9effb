"""Parse documents: Python and shell blocks, links and anchors. Also used by scripts/draw_guide.py."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CARDS = ("checkpoints/*/README.md", "examples/README.md", "benchmarks/README.md")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for glob in ("*.md", "docs/**/*.md", *CARDS) for path in ROOT.glob(glob))

_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def text_of(document: str) -> str:
    """Return a document, by its path from the root."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return [code for name, code in _BLOCK.findall(text_of(document)) if name == language]


def prose(document: str) -> str:
    return _BLOCK.sub("", text_of(document))


def run_python(document: str) -> dict[str, Any]:
    """Run a document's Python blocks in the working directory, FOLDER as a bundled model; return their variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(blocks(document, "python"), 1):
        code = code.replace('"FOLDER"', '"vit-cifar10"')
        exec(compile(code, f"{document}, block {number}", "exec"), names)
    return names


def link_examples(folder: Path) -> None:
    """Link the files that the documents' examples read: `examples/`, `photo.jpg` and `other.jpg`."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "photo.jpg").symlink_to(ROOT / "examples" / "church.jpg")
    (folder / "other.jpg").symlink_to(ROOT / "examples" / "dog.jpg")


def commands(document: str) -> Iterator[list[str]]:
    """Yield the commands of the shell blocks as words, without leading variables."""
    for code in blocks(document, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            for command in line.split(" && "):
                words = shlex.split(command, comments=True)
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield words


def links(document: str) -> list[tuple[Path, str]]:
    """Return the links of a document inside the repository: each path, and its anchor or ""."""
    source = ROOT / document
    matches = _LINK.findall(prose(document))
    return [((source.parent / path).resolve() if path else source, anchor) for path, anchor in matches]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    slugs: set[str] = set()
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        copies = (slug if count == 0 else f"{slug}-{count}" for count in range(len(headings)))
        slugs.add(next(copy for copy in copies if copy not in slugs))
    return slugs
