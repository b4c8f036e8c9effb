"""Test multi-label models and regression: predictions match transformers, and maps and tests follow them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hf_cases import CASES
from image_files import random_rgb
from PIL import Image
from timm_models import shaken
from torch import nn

import vitviz
from vitviz.analysis.decomposition import decompose
from vitviz.analysis.head_statistics import head_statistics
from vitviz.cli.main import main
from vitviz.draw.figures import charts, drawing
from vitviz.draw.figures.maps import FigureOptions
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.accuracy import validate
from vitviz.lecture.numbers import lecture_bytes
from vitviz.lecture.texts import LectureError
from vitviz.site.onnx import StaticError, check_exportable
from vitviz.training import TrainingError
from vitviz.training.transfer import start_from
from vitviz.view import View
from vitviz.web.responses import describe_layers, describe_test
from vitviz.web.scene import Scene
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError

pytestmark = pytest.mark.usefixtures("one_thread")

PHOTO = Image.fromarray(random_rgb(90, 70))
NAMES = {"several": {0: "cat", 1: "dog", 2: "fox"}, "value": {0: "age in years"}, "values": {0: "x", 1: "y"}}
TYPES = {"several": "multi_label_classification", "value": None, "values": "regression"}


def opened(kind: str) -> tuple[Any, View]:
    """Return a transformers classifier and a view; with a single value, problem_type is unset, as before training."""
    case = CASES["ViT-classifier"].build()
    settings = case.config.to_dict() | {"id2label": NAMES[kind], "num_labels": len(NAMES[kind])}
    settings |= {"label2id": {name: index for index, name in NAMES[kind].items()}, "problem_type": TYPES[kind]}
    model = shaken(type(case)(type(case.config)(**settings))).eval()
    with torch.no_grad():
        bias = {"several": [4.0, 2.5, -2.0], "value": [40.0], "values": [-7.0, 1234.5]}[kind]
        model.classifier.weight.mul_(0.1)
        model.classifier.bias.copy_(torch.tensor(bias))
    return model, vitviz.Explorer(model).open(PHOTO)


@torch.no_grad()
def outputs(theirs: Any, images: torch.Tensor, kind: str) -> torch.Tensor:
    logits: torch.Tensor = theirs(images).logits
    return logits.sigmoid() if kind == "several" else logits


@torch.no_grad()
@pytest.mark.parametrize("kind", NAMES)
def test_predictions_match_transformers(kind: str, tmp_path: Path) -> None:
    theirs, view = opened(kind)
    expected = outputs(theirs, view.images, kind)[0].tolist()
    predicted = dict(view.predictions())
    assert [predicted[name] for name in NAMES[kind].values()] == pytest.approx(expected, abs=1e-4)
    assert list(predicted) == list(NAMES[kind].values())  # labels by probability, values in the order of outputs
    theirs.save_pretrained(tmp_path / "theirs")
    save(vitviz.load(tmp_path / "theirs"), tmp_path / "ours")
    for model in (vitviz.load(tmp_path / "theirs"), load_folder(tmp_path / "ours")):
        assert dict(vitviz.Explorer(model).open(PHOTO).predictions()) == pytest.approx(predicted)


def test_predictions_are_described_by_problem_type() -> None:
    several, value = opened("several")[1].describe(), opened("value")[1]
    assert several.startswith("Of 3 labels: cat ")
    assert ", dog " in several
    assert "fox" not in several
    ((name, number),) = value.predictions()
    assert Scene(value).summary == value.describe() == f"age in years: {number:.2f}"
    manifest = Scene(value).manifest("one")
    assert (manifest["problemType"], manifest["predictions"]) == ("regression", [[name, number, 0]])


@pytest.mark.parametrize("kind", NAMES)
def test_methods_explain_the_logit_and_tests_show_the_prediction(kind: str) -> None:
    """The gradient is the gradient of transformers' logit, by default of the first output."""
    theirs, view = opened(kind)
    images = view.images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(theirs(images).logits[0, 0], images)
    patch = view.model.config.patch_size
    expected = slope.abs().sum(1)[0].unflatten(0, (-1, patch)).unflatten(2, (-1, patch)).sum((1, 3))  # (gh, gw)
    np.testing.assert_allclose(view.explain("input_gradient", 0).values, expected.numpy(), rtol=1e-3)
    heatmap = view.explain("gae")
    assert heatmap.classes == (0,)
    (test,) = view.faithfulness(heatmap)
    whole = float(outputs(theirs, view.images, kind)[0, 0])
    assert test.deletion.probabilities[0] == test.insertion.probabilities[-1] == pytest.approx(whole, abs=1e-4)
    assert np.ptp(test.deletion.probabilities) > 0  # a softmax of one output is always 1
    assert math.isnan(test.positive) == (kind != "several")
    assert "only" not in test.describe()
    assert describe_test(test)["deletion"]["y"][0] == pytest.approx(whole, rel=1e-3)
    if kind == "several":
        with pytest.raises(EvaluationError, match="Expected one label to test"):
            view.faithfulness(view.explain("gae", contrast=("cat", "dog")))
    elif kind == "values":
        (test,) = view.faithfulness(view.explain("gae", contrast=("x", "y")))
        (x, y) = (value for _, value in view.predictions())
        assert test.deletion.probabilities[0] == pytest.approx(x - y, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", NAMES)
def test_lens_interventions_ablations_and_parts_agree_with_the_prediction(kind: str) -> None:
    theirs, view = opened(kind)
    expected, lens, layers = outputs(theirs, view.images, kind), view.lens(), describe_layers(view)
    torch.testing.assert_close(torch.from_numpy(lens.probabilities[-1]), expected[0], rtol=1e-4, atol=1e-4)
    assert layers["read"][-1] == pytest.approx([expected[0, index].item() for index in lens.classes], rel=1e-3)
    bounds = (0, 1) if kind == "several" else (lens.patches.min(), lens.patches.max())
    assert tuple(layers["range"]) == pytest.approx(bounds, rel=1e-3)
    change = view.intervene(heads=[(0, 1)])
    np.testing.assert_allclose(change.before, expected.numpy(), rtol=1e-4, atol=1e-4)
    statistics = head_statistics(view.model, view.trace, names=["ablation_probability", "ablation_logit"])
    if kind == "several":
        lost = statistics.samples["ablation_probability"][0, 0, 1]
        assert lost == pytest.approx(change.before[0, 0] - change.after[0, 0], abs=1e-5)
    else:
        assert "values, not probabilities" in statistics.missing["ablation_probability"]
    parts = decompose(view.model, view.trace, 0)
    assert parts.total == pytest.approx(theirs(view.images).logits[0, 0].item(), rel=1e-4)


def test_single_output_is_a_value_unless_a_problem_type_is_passed() -> None:
    sizes = {"embed_dim": 60, "depth": 2, "num_heads": 5, "img_size": 48}
    theirs = shaken(timm.create_model("vit_tiny_patch16_224", **sizes)).eval()
    theirs.head = nn.Linear(60, 1)
    view = vitviz.Explorer(theirs).open(PHOTO)
    with torch.no_grad():
        expected = theirs(view.images)[0, 0].item()
    assert view.predictions() == [("value", pytest.approx(expected, abs=1e-5))]
    model = vitviz.load(theirs, labels=["cat"], problem_type="multi_label_classification")
    ((label, share),) = vitviz.Explorer(model).open(PHOTO).predictions()
    assert (label, share) == ("cat", pytest.approx(1 / (1 + math.exp(-expected)), abs=1e-5))
    with pytest.raises(CheckpointError, match="Expected problem_type"):
        vitviz.load(theirs, problem_type="sigmoid")


@pytest.mark.parametrize("kind", NAMES)
def test_unsupported_uses_of_a_problem_type_are_refused(kind: str, tmp_path: Path) -> None:
    _, view = opened(kind)
    kinds = r"(multi_label_classification|regression)"
    with pytest.raises(StaticError, match=kinds):
        check_exportable(view.model)
    with pytest.raises(LectureError, match=kinds):
        lecture_bytes(view)
    with pytest.raises(EvaluationError, match=kinds):
        validate(view.model, tmp_path)
    if len(view.labels) > 1:
        with pytest.raises(TrainingError, match="chooses one of the same"):
            start_from(view.model, view.labels, name="mine", keep_head=True)


@pytest.mark.parametrize("kind", ["several", "value"])
def test_figures_and_commands_follow_the_problem_type(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, view = opened(kind)
    options = FigureOptions(method="gae")
    curves, lens = charts.curves(view, options), charts.lens(view, options)
    texts = [axes.get_ylabel() for figure in (curves, lens) for axes in figure.axes]
    assert any("%" in text for text in texts) == (kind == "several")
    words = [text.get_text() for axes in drawing.shapes(view).axes for text in axes.texts]
    assert ("sigmoid, the most probable" if kind == "several" else "values") in words
    theirs.save_pretrained(tmp_path / "model")
    PHOTO.save(tmp_path / "photo.png")
    arguments = ["--model", str(tmp_path / "model"), str(tmp_path / "photo.png")]
    capsys.readouterr()
    main(["predict", *arguments])
    assert view.describe() in capsys.readouterr().out
    main(["lens", *arguments])
    assert ("%" in capsys.readouterr().out) == (kind == "several")
    main(["predict", "--json", "-o", str(tmp_path / "out"), *arguments])
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert set(image["predictions"][0]) == {"label", "probability" if kind == "several" else "value"}
    assert (tmp_path / "out" / "photo.png").is_file()
    main(["predict", *arguments, "--problem-type", "single_label_classification"])
    assert ("Best match among 3 classes" in capsys.readouterr().out) == (kind == "several")
