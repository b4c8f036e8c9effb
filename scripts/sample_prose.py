"""Draw passages from two commits, shuffled and unlabelled, for a reader who judges their style.

    python scripts/sample_prose.py NEW OLD --out FOLDER

writes FOLDER/sample.md for the reader and FOLDER/key.csv, which gives the source of each passage. 150 passages are
from NEW and 75 from OLD; the hash of NEW is the seed.
"""

import argparse
import ast
import csv
import io
import random
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

CONTEXT = 5  # lines after a passage's first, and before it for comments
DRAWN = {"NEW": 150, "OLD": 75}
SUFFIXES = (".py", ".js", ".md")
LEFT_OUT = re.compile(r"vendor/|CODE_OF_CONDUCT|THIRD_PARTY_NOTICES|scripts/sample_prose")

Passage = tuple[int, int]  # the first line and the one after the last, from 0


def git(*arguments: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def python_passages(text: str) -> Iterator[Passage]:
    """Yield the docstrings, comments and help texts of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            yield max(docstring.lineno - 3, 0), docstring.end_lineno or docstring.lineno
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield node.value.lineno - 2, node.value.end_lineno or node.value.lineno
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if (
            token.type == tokenize.COMMENT
            and len(token.string) > 30
            and not re.match(r"#!|# (noqa|type)", token.string)
        ):
            yield max(token.start[0] - 1 - CONTEXT, 0), token.start[0] + CONTEXT


def script_passages(text: str) -> Iterator[Passage]:
    """Yield the comments of a JavaScript file."""
    for match in re.finditer(r"/\*\*.*?\*/|(?<!:)// .{27,}", text, re.DOTALL):
        first = text[: match.start()].count("\n")
        yield max(first - 1, 0), first + match[0].count("\n") + 1 + CONTEXT


def document_passages(text: str) -> Iterator[Passage]:
    """Yield paragraphs, list items and table rows outside code blocks."""
    code = False
    for number, line in enumerate(text.splitlines()):
        if line.startswith("```"):
            code = not code
        elif not code and len(line.split()) > 6:
            yield max(number - 2, 0), number + 3


READERS = {".py": python_passages, ".js": script_passages, ".md": document_passages}


def passages(commit: str) -> list[tuple[str, int, str]]:
    """Return every passage of a commit: its file, its first line and its text."""
    drawn = []
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        if path.endswith(SUFFIXES) and not LEFT_OUT.search(path):
            text = git("show", f"{commit}:{path}")
            lines = text.splitlines()
            for first, end in READERS[Path(path).suffix](text):
                drawn.append((path, first + 1, "\n".join(lines[first:end][:24])))
    return drawn


def main() -> None:
    """Write the sample and its key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    commits = {"NEW": git("rev-parse", options.new).strip(), "OLD": git("rev-parse", options.old).strip()}
    generator = random.Random(commits["NEW"])
    sample = [
        (side, *passage)
        for side, commit in commits.items()
        for passage in generator.sample(passages(commit), DRAWN[side])
    ]
    generator.shuffle(sample)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "key.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "side", "path", "line"])
        rows.writerows([number, side, path, line] for number, (side, path, line, _) in enumerate(sample, 1))
    (options.out / "sample.md").write_text(
        "\n".join(f"## {number}\n\n```\n{text}\n```\n" for number, (*_, text) in enumerate(sample, 1))
    )


if __name__ == "__main__":
    main()
