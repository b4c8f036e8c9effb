"""The notebooks run from top to bottom, in a kernel of their own, and show what they say."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from documents import ROOT
from nbclient import NotebookClient
from patience import patience

# As tests/conftest.py does, before timm and transformers import torchvision their own way.
FIRST = "from vitviz.images.torchvision_import import import_torchvision\nimport_torchvision()"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run(path: Path, folder: Path) -> list[str]:
    """Run a notebook in a folder, and return the kinds of all that its cells show."""
    notebook = nbformat.read(path, as_version=4)
    first = nbformat.v4.new_code_cell(FIRST)
    notebook.cells.insert(0, first)
    NotebookClient(notebook, timeout=int(patience(600)), resources={"metadata": {"path": str(folder)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [kind for output in shown for kind in output.get("data", ())]


@pytest.mark.tier("all")
@pytest.mark.timeout(patience(2400))
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    assert "image/png" in run(path, tmp_path)


def test_the_notebooks_are_in_the_documents_and_committed_without_outputs() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        assert f"../notebooks/{path.name}" in page
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
