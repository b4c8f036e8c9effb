"""Test rules that no linter checks: unsafe loading, errors and docstrings, and files that must agree."""

import ast
import doctest
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from documents import ROOT, text_of

import vitviz
from vitviz.export import SPACE_CARD

TEXT = {".py", ".md", ".toml", ".txt", ".json", ".js", ".css", ".html", ".sh", ".yml", ".yaml", ".cfg", ""}

# Local folders and package hosts, written in pieces so that this file does not contain them.
PRIVATE = ["/" + "work/", "/" + "tmp/plan", "/" + "opt/wheels", "/" + "opt/pypi", "/" + "root/"]
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "registry.npm" + "js.org"]


@cache
def files() -> list[Path]:
    """Return every committed or committable file."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


@cache
def trees(*tops: str) -> dict[str, ast.Module]:
    """Return the syntax trees of the Python files under `tops`."""
    paths = [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in tops]
    assert len(paths) > len(tops)
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def unchecked_loads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield calls that skip the checks of weights; ruff bans other unsafe calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            flags = {word.arg for word in node.keywords if ast.unparse(word.value) == "False"}
            if "weights_only" in flags or ("strict" in flags and ast.unparse(node.func) != "zip"):
                yield node.lineno, ast.unparse(node)


def docstring_problems(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings whose first paragraph has no full stop; ruff checks that they exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            paragraph = (ast.get_docstring(node) or ".").split("\n\n")[0].rstrip()
            if paragraph[-1] not in ".:?!":
                yield getattr(node, "lineno", 1), f"no full stop: {paragraph[:60]}"


def error_problems(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield errors whose message is not "Expected X, got Y. Do Z."."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
            continue
        text, kind = message(node.exc.args[0]), ast.unparse(node.exc.func)
        ours = kind.endswith("Error") and kind != "AttributeError"  # `__getattr__` must raise AttributeError
        template = r"(Expected .*|\{\}[,;] )\bgot\b.*[.:] ?(\S.*[.}]|\{\})$"
        if text is not None and ours and not re.match(template, text, re.DOTALL):
            yield node.lineno, f"not 'Expected X, got Y. Do Z.': {text[:60]}"


def message(node: ast.expr) -> str | None:
    """Return the text of a message with {} for inserted values; None if it is not a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


RULES = {
    unchecked_loads: ("vitviz", "app.py", "scripts", "benchmarks"),
    docstring_problems: ("vitviz",),
    error_problems: ("vitviz",),
}


@pytest.mark.parametrize("rule", RULES)
def test_code_follows_the_rules(rule) -> None:
    problems = [f"{path}:{line}: {what}" for path, tree in trees(*RULES[rule]).items() for line, what in rule(tree)]
    assert problems == []


def test_texts_name_no_private_folder_or_package_host_and_style_sheets_keep_to_120_columns() -> None:
    texts = [path for path in files() if path.suffix in TEXT]
    assert {".css", ".html", ".py"} <= {path.suffix for path in texts}
    wrong = []
    for path in texts:
        styled = path.suffix in {".css", ".html"}  # linters check the other languages
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = [word for word in (*PRIVATE, *HOSTS) if word in line] + ["too long"] * (styled and len(line) > 120)
            wrong += [f"{path.relative_to(ROOT)}:{number}: {word}" for word in words]
    assert wrong == []


PACKAGE = Path(vitviz.__file__).parent
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_run(path: Path) -> None:
    parts = ["vitviz", *path.relative_to(PACKAGE).with_suffix("").parts]
    result = doctest.testmod(importlib.import_module(".".join(part for part in parts if part != "__init__")))
    assert result.failed == 0  # examples that need a download are marked +SKIP
    assert {"__init__", "config", "vit", "explorer"} <= {path.stem for path in WITH_EXAMPLES}


def test_the_front_matter_of_the_readme_fits_the_requirements() -> None:
    """A Hugging Face Space reads both files; if they differ, it installs an untested version of gradio."""
    _, front, _ = text_of("README.md").split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["sdk"] == "gradio"
    assert f"\ngradio=={card['sdk_version']}\n" in text_of("requirements.txt")
    assert (ROOT / card["app_file"]).name == "app.py"
    assert (ROOT / card["app_file"]).is_file()
    assert 0 < len(card["short_description"]) <= 60
    assert yaml.safe_load(SPACE_CARD).items() <= card.items()


def test_the_version_is_in_the_changelog_and_the_citation_is_well_formed() -> None:
    about = yaml.safe_load(text_of("CITATION.cff"))
    assert about["license"] == "Apache-2.0"
    assert f"\n## [{vitviz.__version__}]" in text_of("CHANGELOG.md")


def test_ci_runs_test_and_test_all() -> None:
    commands = [line for line in text_of(".ci/run").splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test", "make test-all"]
    assert re.search(
        r"^test: .* lint\n.* types js > .*\n.* pytest .*\n\twait \$\$checks \|\| ", text_of("Makefile"), re.MULTILINE
    )
