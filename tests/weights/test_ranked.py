"""Test that the result of an arena beside weights gives a model its default method, everywhere."""

import json
from pathlib import Path

import pytest
import tiny

import vitviz
from vitviz.attribution.registry import DEFAULT, METHODS, WITHOUT_CLASS, default_methods
from vitviz.evaluation.standings import Standings
from vitviz.resources import example
from vitviz.web.scene import Scene
from vitviz.weights.checkpoint import ARENA, CheckpointError, fingerprint, save
from vitviz.weights.zoo import folder_of

BUNDLED = [name for name in vitviz.bundled() if (folder_of(name) / ARENA).is_file()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny.known(**tiny.SMALL), tmp_path / "model")
    return tmp_path / "model"


def test_best_method_beside_weights_is_the_default_in_python_and_on_the_page(folder: Path) -> None:
    plain = vitviz.load(folder)
    assert default_methods(plain) == (DEFAULT, WITHOUT_CLASS)
    (folder / ARENA).write_text(json.dumps({"method": "attn_lrp"}))
    for source in (folder, folder / "model.safetensors"):
        model = vitviz.load(source)
        assert default_methods(model) == ("attn_lrp", DEFAULT, WITHOUT_CLASS)
        view = vitviz.Explorer(model).open(example("dog"))
        assert view.explain().title.startswith(METHODS["attn_lrp"].title)
        assert vitviz.attribute(model, view.images)[0].title.startswith(METHODS["attn_lrp"].title)
        assert Scene(view).manifest("x")["methods"] == ["attn_lrp", DEFAULT, WITHOUT_CLASS]


def test_results_of_other_weights_and_unknown_methods_are_not_used(folder: Path) -> None:
    (folder / ARENA).write_text(json.dumps({"method": "of a plug-in that is not installed"}))
    assert default_methods(vitviz.load(folder)) == (DEFAULT, WITHOUT_CLASS)
    save(tiny.known(1, **tiny.SMALL), folder)
    assert not (folder / ARENA).exists()
    (folder / ARENA).write_text(json.dumps({"method": 3}))
    with pytest.raises(CheckpointError, match="name of a method"):
        vitviz.load(folder)


@pytest.mark.parametrize("name", BUNDLED)
def test_results_of_bundled_models_are_those_of_their_weights(name: str) -> None:
    result = Standings.load(folder_of(name) / ARENA)
    model = vitviz.load(name)
    assert result.settings["weights"] == fingerprint(model)
    assert default_methods(model)[0] == result.method
