"""The examples in docstrings run and give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import vitviz

PACKAGE = Path(vitviz.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_are_true(path: Path) -> None:
    parts = ["vitviz", *path.relative_to(PACKAGE).with_suffix("").parts]
    result = doctest.testmod(importlib.import_module(".".join(part for part in parts if part != "__init__")))
    assert result.failed == 0  # those that need a download are marked +SKIP


def test_there_are_examples_to_run() -> None:
    assert {"__init__", "config", "vit", "explorer"} <= {path.stem for path in FILES}
