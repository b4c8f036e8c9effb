"""Parse documents: Python and shell blocks, links and anchors. Also used by scripts/draw_guide.py."""

import re
import shlex
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parents[1]
_PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOL = _PYPROJECT["project"], _PYPROJECT["tool"]
CARDS = ("checkpoints/**/README.md", "examples/README.md", "benchmarks/README.md")
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for glob in ("*.md", "docs/**/*.md", *CARDS) for path in ROOT.glob(glob))
GUIDE = [name for name in DOCUMENTS if name.startswith("docs/guide/")]
# Import torchvision as tests/conftest.py does, before timm and transformers import it directly.
FIRST = "from vitviz.images.torchvision_import import import_torchvision\nimport_torchvision()"

_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def text_of(document: str) -> str:
    """Return a document, by its path from the root."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return [code for name, code in _BLOCK.findall(text_of(document)) if name == language]


def prose(document: str) -> str:
    return _BLOCK.sub("", text_of(document))


def python_blocks(document: str) -> list[str]:
    """Return a document's Python blocks, with a bundled model as FOLDER, and an example as the photo.jpg of a card."""
    placeholders = {'"FOLDER"': '"vit-cifar10"'}
    if document not in GUIDE:
        placeholders['"photo.jpg"'] = 'vitviz.example("church")'
    return [
        reduce(lambda text, name: text.replace(name, placeholders[name]), placeholders, code)
        for code in blocks(document, "python")
    ]


def run_python(document: str) -> dict[str, Any]:
    """Run a document's Python blocks in the working directory; return their variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(python_blocks(document), 1):
        exec(compile(code, f"{document}, block {number}", "exec"), names)
    return names


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
