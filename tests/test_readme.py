"""README's first examples run from an empty folder, and its comments are what they print."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

import pytest
from documents import ROOT, blocks

import vitviz
from vitviz.cli.main import main
from vitviz.server import pages, server
from vitviz.server.settings import Settings
from vitviz.web.examples import examples

SHIPPED = {"vitviz", "IPython"}  # IPython comes with any notebook


def test_the_python_example_runs_anywhere_and_says_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    predictions = re.search(r"view\.predictions\(k=5\)  # \[(.*), \.\.\.\]", code)
    assert predictions is not None
    for said, (label, probability) in zip(
        ast.literal_eval(f"[{predictions[1]}]"), names["view"].predictions(), strict=False
    ):
        assert (label, round(probability, 2)) == said
    assert f'view.describe()  # "{names["view"].describe()}"' in code


def test_examples_are_found_by_their_names() -> None:
    assert vitviz.example("Church") == vitviz.example("church") == ROOT / "examples" / "church.jpg"
    assert {vitviz.example(one.name) for one in examples()} == {one.path for one in examples()}
    with pytest.raises(ValueError, match=r"Expected one of the examples .*church.*, got 'tower'\. Choose one of them"):
        vitviz.example("tower")


def test_all_extras_hold_what_the_notebooks_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    chosen = re.findall(r"\w+", re.search(r"\[(.*)\]", extras["all"][0])[1])
    listed = [*project["dependencies"], *(one for name in chosen for one in extras[name])]
    packages = {re.match(r"[\w-]+", one)[0].lower() for one in listed} | {"pil"}  # Pillow's module
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
        modules = set(re.findall(r"^(?:from|import) (\w+)", lines, re.MULTILINE)) - SHIPPED
        assert {name for name in modules if name.lower() not in packages} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("options", "default"),
    [
        (["--model", "mine", "--model", "other"], "mine"),
        (["--model", "mine", "--default", "other"], "other"),
        (["--default", "other"], "other"),
        ([], ""),
    ],
)
def test_the_page_opens_with_the_model_that_the_command_names(
    options: list[str], default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Settings] = []
    monkeypatch.delenv("VITVIZ_DEFAULT", raising=False)
    monkeypatch.setattr(pages, "build", lambda allowed, texts: opened.append(allowed))
    monkeypatch.setattr(server, "launch", lambda *args, **options: None)
    assert main(["app", *options]) == 0
    assert [one.default for one in opened] == [default]
