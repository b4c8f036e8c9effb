"""Print how many lines of code each package has, as a Markdown table.

A line counts if it has code: blank lines, comments and docstrings are left out. "Python" is vitviz/ and app.py;
"JavaScript" the page's scripts, without third-party ones (vendor/), translations and names of classes; "Tests" the
Python and JavaScript of tests/. scripts/, benchmarks/, examples/ and notebooks/ are not counted.

Usage: python scripts/count_lines.py [--commit REVISION ...]
Each revision is a column before that of the working tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("app.py", "vitviz", "tests")
SPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
TEXTS = re.compile(r"/vendor/|/(en|zh|classes_\w+)\.js$")  # scripts that are not ours, or texts of older revisions


def count_python(source: str) -> int:
    """Return the number of lines with code of a Python module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SPACE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_javascript(source: str) -> int:
    """Return the number of lines with code of a script, whose comments begin a line."""
    code = re.sub(r"^[ \t]*/\*.*?\*/", "", source, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(line.strip()) and not line.strip().startswith("//") for line in code.splitlines())


def row(path: str) -> tuple[str, str] | None:
    """Return the language and the package of a file's lines, or None if they are not counted."""
    name = Path(path)
    if name.suffix not in (".py", ".js", ".mjs") or (name.suffix != ".py" and TEXTS.search(path)):
        return None
    if name.parts[0] == "tests":
        return "Tests", "/".join(name.parts[:-1][:2])
    language, depth = ("Python", 2) if name.suffix == ".py" else ("JavaScript", 3)
    return language, "/".join(name.parts[:-1][:depth]) or "vitviz"


def count(files: dict[str, str]) -> Counter[tuple[str, str]]:
    """Return the lines of code by language and package, given sources by path."""
    counts: Counter[tuple[str, str]] = Counter()
    for path, source in files.items():
        if (place := row(path)) is not None:
            counts[place] += count_python(source) if path.endswith(".py") else count_javascript(source)
            if path.startswith("vitviz/server/") or path == "vitviz/settings.py":
                counts["Python", "of which server and settings"] += count_python(source)
    return counts


def sources(revision: str | None) -> dict[str, str]:
    """Return the sources of a revision, or of the working tree, by path."""
    if revision is None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        return {name: (ROOT / name).read_text("utf-8") for name in names if row(name) and (ROOT / name).is_file()}
    archive = ["git", "archive", "--format=tar", revision, "--", *FOLDERS]
    with tarfile.open(
        fileobj=io.BytesIO(subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout)
    ) as tar:
        return {
            member.name: contents.read().decode()
            for member in tar
            if member.isfile() and row(member.name) and (contents := tar.extractfile(member))
        }


def table(counts: dict[str, Counter[tuple[str, str]]]) -> str:
    """Return the Markdown table of counts by column."""
    lines = [f"| | {' | '.join(counts)} |", f"|---|{'--:|' * len(counts)}"]
    places = sorted({place for column in counts.values() for place in column})
    for language in ("Python", "JavaScript", "Tests"):
        packages = [package for found, package in places if found == language]
        totals = [sum(column[language, p] for p in packages if "of which" not in p) for column in counts.values()]
        lines.append(f"| **{language}** | {' | '.join(f'**{total:,}**' for total in totals)} |")
        packages.sort(key=lambda name: ("of which" in name, name))
        lines.extend(
            f"| {p} | {' | '.join(f'{column[language, p]:,}' for column in counts.values())} |" for p in packages
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--commit", action="append", default=[], metavar="REVISION", help="a column before the working tree's"
    )
    revisions = parser.parse_args().commit
    print(table({name or "working tree": count(sources(name)) for name in [*revisions, None]}))
