"""Configure Sphinx, which makes a site of the documents and docstrings: `make docs`.

The root of the repository is the source folder, so that a link from one document to another is the same on the site and
in the repository.
"""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import vitviz  # noqa: E402

project, author, version = "vitviz", "The vitviz contributors", vitviz.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    *("docs/**", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *("checkpoints/*/README.md", "examples/README.md", "benchmarks/README.md"),
]
exclude_patterns = [".*", "build", "dist", "tests", "vitviz", "data", "runs", "out"]
suppress_warnings = ["toc.not_included"]  # model cards and the like are reached by links
myst_heading_anchors = 4

html_theme, html_title = "furo", "vitviz"
html_show_sphinx = html_show_copyright = html_copy_source = False

default_role = "code"  # docstrings write `name`
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
maximum_signature_line_length = 88


def convert_tables(*event: Any) -> None:
    """Turn tables of a docstring, which are Markdown's, into those of reStructuredText."""
    lines: list[str] = event[-1]
    converted: list[str] = []
    for line in lines:
        if not line.startswith("|"):
            converted.append(line)
        elif not line.startswith("|---"):
            if not converted[-1].startswith("     - "):  # a table begins
                converted += [".. list-table::", "   :header-rows: 1", ""]
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            converted += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    lines[:] = converted


def lead_to_first_document(app: Sphinx, error: Exception | None) -> None:
    """Write the page at the site's root."""
    if error is None:
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>vitviz</title>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect both."""
    app.connect("autodoc-process-docstring", convert_tables)
    app.connect("build-finished", lead_to_first_document)
