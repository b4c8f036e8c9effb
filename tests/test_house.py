"""Rules of the house that no linter knows: what the code must not do, what the files must agree on."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".js", ".css", ".html", ".sh", ".yml", ".yaml", ".cfg", ""}

# Pieces, so that this file does not name them: a machine's own folders, and the hosts that packages come from.
PRIVATE = ["/" + "work/", "/" + "tmp/plan", "/" + "opt/wheels", "/" + "opt/pypi", "/" + "root/"]
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "registry.npm" + "js.org"]


def files() -> list[Path]:
    """Every file that is or would be committed."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def sources(*tops: str) -> list[Path]:
    """The Python files among them under `tops`."""
    wanted = [path for path in files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in tops]
    assert wanted
    return wanted


def forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of everything that may hide a mistake or run a stranger's code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            flags = {word.arg for word in node.keywords if ast.unparse(word.value) == "False"}
            called = ast.unparse(node.func)
            if "strict" in flags and called != "zip":
                yield node.lineno, "strict=False"
            if "weights_only" in flags:
                yield node.lineno, "weights_only=False"
            if called in {"eval", "exec"}:
                yield node.lineno, called
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                if name.split(".")[0] in {"pickle", "dill", "joblib", "cloudpickle", "shelve", "marshal"}:
                    yield node.lineno, name


def test_nothing_hides_mistakes_or_runs_strangers_code() -> None:
    paths = sources("vitviz", "app.py", "scripts", "benchmarks")
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]
    found = [f"{path.relative_to(ROOT)}:{line}: {what}" for path, tree in trees for line, what in forbidden(tree)]
    assert found == []


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("model.load_state_dict(state, strict=False)", "strict=False"),
        ("torch.load(path, weights_only=False)", "weights_only=False"),
        ("try:\n    f()\nexcept:\n    pass", "bare except"),
        ("def f():\n    import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("eval(text)", "eval"),
    ],
)
def test_what_is_forbidden_is_seen(code: str, what: str) -> None:
    assert [name for _, name in forbidden(ast.parse(code))] == [what]


def test_what_is_allowed_passes() -> None:
    code = "zip(a, b, strict=False)\nmodel.eval()\ntorch.load(p, weights_only=True)\ntry: f()\nexcept ValueError: g()"
    assert list(forbidden(ast.parse(code))) == []


def test_no_file_names_a_machine_of_ours_or_a_package_host() -> None:
    texts = [path for path in files() if path.suffix in TEXT]
    assert len(texts) > 20
    found = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {word}" for word in [*PRIVATE, *HOSTS] if word in line]
    assert found == []


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Public classes and functions of a module without a docstring; `@overload`s share that of what they overload."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            overload = any(ast.unparse(mark).split(".")[-1] == "overload" for mark in node.decorator_list)
            if not node.name.startswith("_") and not overload and not ast.get_docstring(node):
                yield node.name


def test_every_public_name_has_a_docstring() -> None:
    found = []
    for path in sources("vitviz"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT)
        found += [str(name)] if not ast.get_docstring(tree) else []
        found += [f"{name}: {public}" for public in undocumented(tree)]
    assert found == []


def test_a_missing_docstring_is_seen() -> None:
    tree = ast.parse('def f(): ...\ndef _g(): ...\n@overload\ndef h(): ...\nclass A: ...\nclass B:\n    """B."""')
    assert list(undocumented(tree)) == ["f", "A"]


def test_the_front_matter_of_the_readme_fits_the_requirements() -> None:
    """A Hugging Face Space reads both; where they differ it installs another gradio than the one that was tested."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, matter, _ = text.split("---\n", 2)
    card = yaml.safe_load(matter)
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert text.startswith("---\n")
    assert card["sdk"] == "gradio"
    assert str(card["sdk_version"]) == pins["gradio"]
    assert (ROOT / card["app_file"]).name == "app.py"
    assert (ROOT / card["app_file"]).is_file()
    assert card["license"] == "apache-2.0"
    assert 0 < len(card["short_description"]) <= 60
    assert {"title", "emoji", "colorFrom", "colorTo"} <= set(card)


def test_the_version_is_in_the_changelog() -> None:
    tree = ast.parse((ROOT / "vitviz" / "__init__.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    version = ast.literal_eval(assigned["__version__"])
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_one_command_runs_everything() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test: .*\blint types js$", makefile, re.MULTILINE)


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
