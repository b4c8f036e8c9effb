"""Check that one declaration of a question or a language appears everywhere; test_plugins.py checks methods."""

import runpy
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tiny
from asking import Site
from offered import ask, new_endpoints, photograph

from vitviz.lecture.exercises import exercise_texts, exercises_given
from vitviz.lecture.texts import lecture_texts
from vitviz.server import arguments as args
from vitviz.server.endpoints import Endpoints
from vitviz.web.choices import choices
from vitviz.web.languages import LANGUAGES
from vitviz.web.questions import QUESTIONS, Question

TABLES = Path(__file__).parents[2] / "scripts" / "write_tables.py"


def toys(self: Endpoints, scene: args.SceneId, count: args.Index = 2) -> dict[str, Any]:
    """Return toys.

    Args:
        scene: the id of an open photograph.
        count: number of toys.
    """
    return {"toys": [self._scene(scene).view.trace.depth] * count}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(QUESTIONS, "toys", Question(name="toys", waiting="Counting toys", settle=50, light=True))
    monkeypatch.setattr(Endpoints, "toys", toys, raising=False)
    LANGUAGES.append("toy")  # as a file vitviz/web/core/toy.json does; see tests/js/words.test.mjs
    yield
    LANGUAGES.remove("toy")


@pytest.fixture
def site(tmp_path: Path, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path / "page", sources[:1]))) as site:
        yield site


def test_server_and_programs_find_a_new_question(site: Site) -> None:
    scene = ask(site.endpoints, "open", photo=photograph(1))["id"]
    assert site.endpoints.question("toys", {"scene": scene}).is_light()
    assert site.ask("toys", {"scene": scene, "count": 3})["data"] == {"toys": [tiny.DEPTH] * 3}
    assert "count" in site.ask("toys", {"scene": scene, "count": -1})["error"]["text"]
    listed = site.client.get("/gradio_api/info").json()["named_endpoints"]
    assert [parameter["parameter_name"] for parameter in listed["/toys"]["parameters"]] == ["scene", "count"]
    assert choices()["questions"]["toys"] == {"waiting": "Counting toys", "settle": 50}
    assert "| `toys` |" in runpy.run_path(str(TABLES))["filled"]("names.md")


def test_missing_texts_of_a_new_language_are_in_english(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "pixels.md").write_text("# Toy\n\nText.\n\n## Why?\n\nSo.\n", encoding="utf-8")
    texts = lecture_texts(tmp_path)
    assert [own["title"] for own, english in zip(texts["toy"], texts["en"], strict=True) if own != english] == ["Toy"]
    assert exercises_given()["texts"]["toy"] == exercise_texts("en")
