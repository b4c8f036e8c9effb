"""A map is asked again of another photograph, and a site is exported where nothing can be cached: both are said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tiny

import vitviz
from vitviz.cli.main import main
from vitviz.export import numbers
from vitviz.export.onnx import StaticError
from vitviz.export.runtime import runtime_files
from vitviz.export.static import cached_graphs


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    view = vitviz.Explorer("vit-cifar10").open(vitviz.example("koala"))
    return numbers.save(view, view.attention(), tmp_path / "map.csv", model="vit-cifar10")


def test_another_photograph_is_called_another_one(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(saved), "--photo", str(vitviz.example("koala"))]) == 0
    assert main(["replay", str(saved), "--photo", str(vitviz.example("church"))]) == 2
    assert re.search(
        r"Expected the photograph koala\.jpg as it was, got another one: its pixels", capsys.readouterr().err
    )


def test_a_file_of_the_page_cannot_tell_and_says_so(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, table = saved.read_text(encoding="utf-8").partition("\n")
    record = json.loads(head.removeprefix("# "))
    record["photo"]["pixels"] = None  # the browser has no checksum
    saved.write_text(f"# {json.dumps(record)}\n{table}", encoding="utf-8")
    for name, words in (("koala", False), ("church", True)):
        assert main(["replay", str(saved), "--photo", str(vitviz.example(name))]) == int(words)
        assert ("this may be another one" in capsys.readouterr().out) == words


def test_a_home_that_cannot_be_written_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("no folder")  # root may write into any folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for work in (runtime_files, lambda: cached_graphs(tiny.model())):
        with pytest.raises(StaticError, match=r"Expected a cache that can be written at .*home/vitviz.*XDG_CACHE_HOME"):
            work()
