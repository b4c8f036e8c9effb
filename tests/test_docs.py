"""Documents: their examples run, the files they name exist, and pictures of the architecture are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import vitviz
from vitviz.attribution import registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def examples(document: str) -> list[str]:
    """Return the Python examples of a document."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example photographs, where what an example writes does not lie about."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", ["README.md", "docs/analysis.md", "docs/faithfulness.md"])
def test_examples_run(document: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples(document)
    exec(compile(code, document, "exec"), {})
    assert "nan" not in capsys.readouterr().out


def as_module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a contributor would save under this name, held to the project's style."""
    path = f"{name.replace('.', '/')}.py"
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", path, "-"]
    checked = subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, path, "exec"), vars(module))
    return module


def test_the_method_of_the_guide_works_and_holds(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, test = examples("CONTRIBUTING.md")
    added = as_module("vitviz.attribution.saliency", method, monkeypatch)
    as_module("tests.attribution.test_saliency", test, monkeypatch).test_saliency_is_the_slope_of_the_score()
    monkeypatch.setitem(registry.METHODS, "token_saliency", added.METHODS[0])
    view = vitviz.Explorer(vitviz.load("vit-cifar10"), device="cpu").open("examples/dog.jpg")
    heatmap = view.explain("token_saliency", "dog")
    assert heatmap.values.shape == view.trace.grid
    assert heatmap.values.min() >= 0
    assert view.faithfulness(heatmap)[0].describe()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_documents_name_exists(document: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"`((?:vitviz|tests|docs|scripts|benchmarks)/[\w./-]*)`", text)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    missing = [path for path in named if not (ROOT / path).exists()]
    missing += [link for link in links if not ((ROOT / document).parent / link).exists()]
    assert missing == []


def test_the_pictures_are_those_of_the_code(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "draw_architecture.py", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    fresh = sorted(tmp_path.glob("*.svg"))
    assert len(fresh) == 2
    for picture in fresh:
        drawn = (ROOT / "docs" / picture.name).read_text(encoding="utf-8")
        assert drawn == picture.read_text(encoding="utf-8"), "make architecture"
