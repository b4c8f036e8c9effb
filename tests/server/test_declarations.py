"""Check that one declaration suffices: a toy method, statistic, question and language appear everywhere."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from asking import Site
from offered import ask, new_endpoints, photograph, view_of
from torch import Tensor

from vitviz.analysis.attention_statistics import Rows
from vitviz.analysis.head_statistics import STATISTICS
from vitviz.analysis.statistic import Statistic
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.registry import METHODS
from vitviz.cli.main import main
from vitviz.lecture.exercises import exercise_texts, exercises_given
from vitviz.lecture.texts import lecture_texts
from vitviz.server import arguments as args
from vitviz.server.endpoints import Endpoints
from vitviz.web.choices import choices, in_browser
from vitviz.web.languages import LANGUAGES
from vitviz.web.questions import QUESTIONS, Question

TABLES = Path(__file__).parents[2] / "scripts" / "write_tables.py"
ROWS, COLUMNS = tiny.GRID


def toyness(case: Case) -> Tensor:
    """Return 7 for each token: (B, N)."""
    return torch.full(case.trace.tokens.shape[:2], 7.0)


def toy_share(rows: Rows) -> Tensor:
    """Return 0.5 for each row: (B, H, n)."""
    return torch.full(rows.log.shape[:3], 0.5)


def toys(self: Endpoints, scene: args.SceneId, count: args.Index = 2) -> dict[str, Any]:
    """Return toys.

    Args:
        scene: the id of an open photograph.
        count: number of toys.
    """
    return {"toys": [self._scene(scene).view.trace.depth] * count}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    about = "It is a toy."
    method = Method(function=toyness, title="Toyness", paper="Toy 2026", about=about, cost=1.0, class_specific=False)
    monkeypatch.setitem(METHODS, "toyness", method)
    monkeypatch.setitem(STATISTICS, "toy_share", Statistic(toy_share, "Toy share", "toys", about))
    monkeypatch.setitem(QUESTIONS, "toys", Question(name="toys", waiting="Counting toys", settle=50, light=True))
    monkeypatch.setattr(Endpoints, "toys", toys, raising=False)
    LANGUAGES.append("toy")  # as a file vitviz/web/core/toy.json does; see tests/js/words.test.mjs
    yield
    LANGUAGES.remove("toy")


@pytest.fixture
def site(tmp_path: Path, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path / "page", sources[:1]))) as site:
        yield site


def test_python_finds_new_declarations(site: Site) -> None:
    view = view_of(site.endpoints, ask(site.endpoints, "open", photo=photograph(1))["id"])
    assert (view.explain("toyness").values == 7).all()
    assert (view.heads(["toy_share"])["toy_share"] == 0.5).all()


def test_server_and_programs_find_new_declarations(site: Site) -> None:
    scene = ask(site.endpoints, "open", photo=photograph(1))["id"]
    values = ask(site.endpoints, "explain", scene=scene, method="toyness")["values"]
    assert np.ravel(values).tolist() == [7.0] * (ROWS * COLUMNS)
    assert ask(site.endpoints, "heads", scene=scene, names=["toy_share"])["values"]["toy_share"][0][0] == 0.5
    assert site.endpoints.question("toys", {"scene": scene}).is_light()
    assert site.ask("toys", {"scene": scene, "count": 3})["data"] == {"toys": [tiny.DEPTH] * 3}
    assert "count" in site.ask("toys", {"scene": scene, "count": -1})["error"]["text"]
    listed = site.client.get("/gradio_api/info").json()["named_endpoints"]
    assert [parameter["parameter_name"] for parameter in listed["/toys"]["parameters"]] == ["scene", "count"]


def test_command_line_finds_new_declarations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photo = str(Path(__file__).parents[2] / "examples" / "dog.jpg")
    model = ["--model", "vit-cifar10", "--quiet"]
    assert main(["explain", photo, "--method", "toyness", "--json", *model]) == 0
    assert '"method": "toyness"' in capsys.readouterr().out
    table = tmp_path / "heads.csv"
    assert main(["heads", photo, "--statistics", "toy_share", "-o", str(table), *model]) == 0
    assert "toy_share [toys]" in table.read_text(encoding="utf-8")


def test_page_and_static_site_list_new_declarations() -> None:
    for listed in (choices(), choices(in_browser(METHODS), in_browser(STATISTICS))):
        assert "toyness" in [method["name"] for method in listed["methods"]]
        assert "toy_share" in [statistic["name"] for statistic in listed["statistics"]]
        assert listed["questions"]["toys"] == {"waiting": "Counting toys", "settle": 50}


def test_documents_list_new_declarations() -> None:
    text = runpy.run_path(str(TABLES))["filled"]("names.md")
    assert all(f"| `{name}` |" in text for name in ("toyness", "toy_share", "toys"))


def test_missing_texts_of_a_new_language_are_in_english(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "pixels.md").write_text("# Toy\n\nText.\n\n## Why?\n\nSo.\n", encoding="utf-8")
    texts = lecture_texts(tmp_path)
    assert [own["title"] for own, english in zip(texts["toy"], texts["en"], strict=True) if own != english] == ["Toy"]
    assert exercises_given()["texts"]["toy"] == exercise_texts("en")
