"""The static site in Chromium: a file server, no other network, and the numbers that Python has."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from conftest import watch
from offered import photograph
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page, expect
from running import axe, complete, ready, upload
from scipy.stats import spearmanr
from static_site import Quiet, Served

from vitviz.cli.main import main
from vitviz.explorer import Explorer
from vitviz.export.onnx import StaticError
from vitviz.export.static import BROWSER_METHODS, BROWSER_STATISTICS, write_site
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.view import View
from vitviz.web.examples import Example
from vitviz.weights import zoo
from vitviz.weights.checkpoint import save

TARGET = 3
SCENE = "vitviz.store.get().scene"
ASK = """async ([name, ask]) => {
    const found = await vitviz.backend[name](vitviz.store.get().scene, ask);
    return found instanceof ArrayBuffer ? [...new Float32Array(found)] : found;
}"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose inputs keep the shape of the photograph, as a folder."""
    model = tiny.model(pooling="cls+mean", registers=2)
    preprocess = Preprocess(mode="native", height=7 * tiny.PATCH, width=11 * tiny.PATCH, multiple=tiny.PATCH)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="Tiny", preprocess=preprocess, labels=labels)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(model.half().float(), folder)
    return str(folder)


@pytest.fixture(scope="module")
def site(source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("site")
    example = place / "noise.png"
    example.write_bytes(photograph(1000))
    given = [Example(example, "Noise", "It shows nothing")]
    write_site(place / "site", [source], photographs=given, space=True, tell=lambda _: None)
    served = Served(place / "site")
    yield served
    served.server.shutdown()


def opened(source: str, photo: Path) -> View:
    return Explorer(zoo.load(source)).open(photo)


def drop(page: Page, photo: Path) -> None:
    """Give a photograph to the page, and wait until it is there with all its blocks."""
    upload(page, photo)
    page.wait_for_function(f"{SCENE}?.source.photo && !vitviz.progress.first", timeout=90_000)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "mine.png"
    path.write_bytes(photograph(5, 320, 200))
    return path


@pytest.fixture(scope="module")
def shown(browser: Chromium, site: Served, mine: Path) -> Iterator[Page]:
    """The site with a photograph of the visitor's own."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    problems = watch(context)
    page = context.new_page()
    ready(page, site.url)
    drop(page, mine)
    yield page
    context.close()
    assert not problems


def ask(page: Page, name: str, question: dict[str, Any]) -> Any:
    return page.evaluate(ASK, [name, question])


def test_it_opens_alive_without_the_model(page: Page, site: Served) -> None:
    Quiet.asked.clear()
    ready(page, site.url)
    complete(page)
    assert not [path for path in Quiet.asked if "weights" in path or path.endswith(".wasm")]
    expect(page.locator(".vv-predictions ol li").first).to_contain_text("thing")
    before = len(Quiet.asked)
    box = page.locator(".vv-pane canvas").first.bounding_box()
    assert box is not None
    for step in range(5):
        page.mouse.move(box["x"] + 20 + 15 * step, box["y"] + 30)
    assert len(Quiet.asked) == before


def test_an_unseen_photograph_gives_what_python_has(shown: Page, source: str, mine: Path) -> None:
    view = opened(source, mine)
    manifest = shown.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
    assert manifest["grid"] == list(view.trace.grid)
    found = {label: share for label, share, _ in manifest["predictions"]}
    assert found == pytest.approx(dict(view.predictions()), abs=1e-4)
    scale = manifest["photo"]["width"] / view.photo.width
    assert manifest["frame"] == pytest.approx([edge * scale for edge in view.geometry.frame], abs=0.5)
    row = shown.evaluate(
        "() => { const { answers, manifest } = vitviz.scenes.get(vitviz.store.get().scene.id);"
        " return [...answers.map(1, 2, { token: manifest.prefix.length + 4, direction: 'row' })]; }"
    )
    token = len(view.trace.prefix) + 4
    np.testing.assert_allclose(row, view.trace.attention(1)[0, 2, token].numpy(), atol=5e-3)


@pytest.mark.parametrize("method", BROWSER_METHODS)
def test_methods_are_pythons(shown: Page, source: str, mine: Path, method: str) -> None:
    view = opened(source, mine)
    found = ask(shown, "explain", {"method": method, "target": TARGET, "against": None})
    expected = view.explain(method) if method in ("attention", "rollout") else view.explain(method, TARGET)
    values = np.array(found["values"])
    np.testing.assert_allclose(values, expected.values.ravel(), atol=1e-3 * np.abs(expected.values).max())
    assert spearmanr(values, expected.values.ravel()).statistic > 0.999
    assert (found["title"], found["signed"]) == (view.explain(method).title.split(",")[0], expected.signed)


def test_a_contrast_is_pythons(shown: Page, source: str, mine: Path) -> None:
    found = ask(shown, "explain", {"method": "gae", "target": 3, "against": 5})
    expected = opened(source, mine).explain("gae", contrast=(3, 5)).values
    np.testing.assert_allclose(found["values"], expected.ravel(), atol=1e-3 * np.abs(expected).max())


def test_rollout_takes_its_options(shown: Page, source: str, mine: Path) -> None:
    view = opened(source, mine)
    for options in (
        {"fuse": "mean", "discard": 0.5, "residual": 0.3, "start": 1},
        {"fuse": "min", "discard": 0.0, "residual": 0.5, "start": 0},
        {"fuse": "max", "discard": 0.9, "residual": 0.0, "start": 0},
    ):
        found = ask(shown, "rollout", {"token": 0, **options})
        expected = view.rollout("cls", **options).values.ravel()
        np.testing.assert_allclose(found[len(view.trace.prefix) :], expected, atol=1e-4)


def test_heads_and_layers_are_pythons(shown: Page, source: str, mine: Path) -> None:
    view = opened(source, mine)
    found = ask(shown, "heads", {"names": list(BROWSER_STATISTICS[:8])})
    expected = view.heads()
    assert not found["missing"]
    for name, values in found["values"].items():
        np.testing.assert_allclose(values, expected[name], atol=1e-4, err_msg=name)
    lost = ask(shown, "heads", {"names": ["ablation_probability"]})["values"]["ablation_probability"]
    np.testing.assert_allclose(lost, view.heads(["ablation_probability"])["ablation_probability"], atol=1e-4)
    layers, lens, pca = ask(shown, "layers", {}), view.lens(view.best(4)), view.token_pca()
    np.testing.assert_allclose(layers["read"], lens.probabilities[:, list(lens.classes)], atol=1e-4)
    np.testing.assert_allclose(layers["explained"], pca.explained.sum(1), atol=0.01)
    colors = np.frombuffer(base64.b64decode(layers["colors"]), np.uint8).reshape(pca.colors.shape) / 255
    assert np.abs(colors - pca.colors).mean() < 0.03


def test_patches_and_heads_are_really_gone(shown: Page, source: str, mine: Path) -> None:
    view = opened(source, mine)
    change = view.intervene(drop=[(0, 1), (2, 2)], heads=[(2, 4)])
    gone = [1, 2 * view.trace.grid[1] + 2]
    for label, before, after in ask(shown, "intervene", {"patches": gone, "heads": [[2, 4]]})["classes"]:
        index = view.labels.index(label)
        assert (before, after) == pytest.approx((change.before[0, index], change.after[0, index]), abs=1e-4)


def test_a_map_is_tested_by_removing_what_it_names(shown: Page, source: str, mine: Path) -> None:
    view = opened(source, mine)
    (found,) = ask(shown, "faithfulness", {"methods": ["gae"], "target": TARGET, "against": None})
    expected = view.faithfulness(view.explain("gae", TARGET))[0]
    np.testing.assert_allclose(found["deletion"]["y"], expected.deletion.probabilities, atol=1e-3)
    np.testing.assert_allclose(found["insertion"]["y"], expected.insertion.probabilities, atol=1e-3)
    assert found["deletion"]["area"] == pytest.approx(expected.deletion.area, abs=1e-3)
    gain = (found["deletion"]["chance"] - found["deletion"]["area"]) / 2
    gain += (found["insertion"]["area"] - found["insertion"]["chance"]) / 2
    assert found["gain"] == pytest.approx(gain)
    assert found["words"].startswith("Removing the patches")


def test_every_tab_answers_in_light_and_dark(shown: Page) -> None:
    for tab in ("explain", "heads", "layers", "explore"):
        shown.click(f"[role=tab][data-tab={tab}]")
        shown.wait_for_function("!vitviz.progress.first && vitviz.resting()")
        expect(shown.locator("[role=tabpanel]:not([hidden]) .vv-trouble:not([hidden])")).to_have_count(0)
    expect(shown.locator("#notice")).to_be_hidden()
    expect(shown.locator("#size, [data-do=page], #another")).to_have_count(2)  # neither a size nor a model to be named
    expect(shown.locator("#size")).to_be_hidden()
    for _ in range(2):
        assert axe(shown) == []
        shown.click("[data-do=theme]")


def exif_portrait() -> bytes:
    out = io.BytesIO()
    picture = Image.open(io.BytesIO(photograph(3, 200, 120)))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    picture.save(out, "JPEG", quality=95, exif=exif)
    return out.getvalue()


def picture(width: int, height: int, kind: str) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(photograph(4, width, height))).quantize(64).convert("RGB").save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "close"),
    [
        ("portrait.jpg", exif_portrait(), 0.02),
        ("panorama.png", picture(400, 100, "PNG"), 1e-4),
        ("small.gif", picture(30, 40, "GIF"), 1e-4),
    ],
)
def test_odd_photographs(
    page: Page, site: Served, source: str, tmp_path: Path, name: str, data: bytes, close: float
) -> None:
    photo = tmp_path / name
    photo.write_bytes(data)
    ready(page, site.url)
    drop(page, photo)
    manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
    view = opened(source, photo)
    assert manifest["grid"] == list(view.trace.grid)
    assert manifest["photo"]["width"] / manifest["photo"]["height"] == pytest.approx(
        view.photo.width / view.photo.height, rel=0.01
    )
    assert manifest["predictions"][0][1] == pytest.approx(view.predictions(1)[0][1], abs=close)


def test_what_is_no_picture_is_said(page: Page, site: Served, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_bytes(b"hello")
    ready(page, site.url)
    upload(page, tmp_path / "text.jpg")
    expect(page.locator("#notice")).to_contain_text("Expected a picture that this browser can read")


def test_a_damaged_file_is_named(page: Page, site: Served, mine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site.folder, broken)
    (weights,) = broken.glob("models/*/weights.*.bin")
    data = bytearray(weights.read_bytes())
    data[1000] ^= 1
    weights.write_bytes(bytes(data))
    served = Served(broken)
    ready(page, served.url)
    upload(page, mine)
    expect(page.locator("#notice")).to_contain_text(f"{weights.name}")
    served.server.shutdown()


def test_it_works_offline_after_the_first_visit(browser: Chromium, site: Served, mine: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    ready(page, site.url)
    page.evaluate("navigator.serviceWorker.ready.then(() => null)")
    page.wait_for_function("navigator.serviceWorker.controller")
    page.reload()
    ready(page, site.url)
    complete(page)
    drop(page, mine)
    context.set_offline(True)
    ready(page, f"{site.url}?layer=2")
    complete(page)
    drop(page, mine)
    expect(page.locator(".vv-predictions ol li").first).to_contain_text("thing")
    context.close()


def test_the_address_brings_a_photograph_back(shown: Page, site: Served) -> None:
    found = shown.url
    ready(shown, found)
    shown.wait_for_function(f"{SCENE}?.source.photo", timeout=90_000)
    expect(shown.locator("#notice")).to_be_hidden()


def test_the_service_worker_knows_every_file(site: Served) -> None:
    listed = json.loads(
        (site.folder / "service.js").read_text(encoding="utf-8").partition("SITE = ")[2].partition(";")[0]
    )
    for path in listed["files"][1:]:
        assert (site.folder / path).is_file()


def test_a_space_gets_front_matter_and_the_headers_for_threads(site: Served) -> None:
    front = yaml.safe_load((site.folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert front["sdk"] == "static"
    assert front["custom_headers"]["cross-origin-opener-policy"] == "same-origin"
    (weights,) = site.folder.glob("models/*/weights.*.bin")
    assert f"*{weights.suffix} filter=lfs" in (site.folder / ".gitattributes").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "Expected one photograph and one model, or --static DIR"),
        (["a.jpg", "--static", "site"], "Expected --static alone, got a.jpg too"),
        (["a.jpg", "--space"], "Expected one photograph and one model"),
        (["a.jpg", "--model", "a", "--model", "b"], "Expected one photograph and one model"),
    ],
)
def test_the_command_says_what_it_takes(given: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *given]) == 2
    assert words in capsys.readouterr().err


def test_what_cannot_be_exported_is_refused_before_any_work(source: str, tmp_path: Path) -> None:
    def refused(words: str, folder: Path, sources: list[str], **options: Any) -> None:
        with pytest.raises(StaticError, match=words):
            write_site(folder, sources, tell=lambda _: None, **options)
        assert not (folder / "index.html").exists()

    refused("Expected methods that run in a browser", tmp_path / "a", [source], methods=["kernel_shap"])
    (tmp_path / "letter.txt").write_text("mine")
    refused("Expected a new or empty folder", tmp_path, [source])
    for seed, (problem, changes) in enumerate(
        {"rotary positions": {"positions": "rotary", "head_width": 20}, "no named classes": {"classes": 0}}.items()
    ):
        model = tiny.model(**changes)
        labels = tuple(f"thing {i}" for i in range(model.config.classes))
        preprocess = Preprocess(mode="squash", height=91, width=143)
        model.pretrained = Pretrained(name="Odd", preprocess=preprocess, labels=labels)
        save(model, tmp_path / f"model {seed}")
        refused(problem, tmp_path / "b", [str(tmp_path / f"model {seed}")])
