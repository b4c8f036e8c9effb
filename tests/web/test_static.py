"""Compare the static site with Python, in Chromium with a file server and no other network."""

import base64
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
import yaml
from browsing import menu_click, new_page, open_menu
from image_files import ADOBE_D50, SRGB_D50, icc_profile, saved
from offered import photograph
from patience import wait_until
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, Route, expect
from running import CHURCH, DOG, address, axe, complete, expect_first_view, folder, more, ready, upload
from scipy.stats import spearmanr
from site_files import write_files, written_once
from static_site import Site, serve

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.registry import METHODS
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.lecture.numbers import lecture_bytes
from vitviz.lecture.texts import LectureError, lecture_texts
from vitviz.model.vit import Pretrained
from vitviz.site import static
from vitviz.site.onnx import StaticError
from vitviz.site.static import cached_graphs, write_site
from vitviz.view import View
from vitviz.web.choices import in_browser
from vitviz.web.responses import describe_rearranged
from vitviz.weights import zoo
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import ConvertError

pytestmark = pytest.mark.timeout(900)  # tracing the graphs of two models takes minutes on a busy machine
TARGET, GROUP = 3, "group:1,3,5,6,9"
OTHER = {  # parts of DINOv3, SigLIP, RADIO, and CLIP with texts as classes; their graphs differ
    "positions": "rotary", "head_width": 20, "registers": 3, "layer_scale": 0.1, "mlp": "swiglu",
    "pooling": "attention", "class_token": False, "width": 35, "norms": {"final": "none"},
    "projection": 7, "cosine": True,
}  # fmt: skip
SCENE = "vitviz.store.get().scene"
ASK = """async ([name, ask]) => {
    const answer = await vitviz.backend.ask(name, vitviz.store.get().scene, ask);
    return answer instanceof ArrayBuffer ? { bytes: [...new Uint8Array(answer)] } : answer;
}"""
NOISE = """{
    const { prototype } = OffscreenCanvasRenderingContext2D;
    const read = prototype.getImageData;
    prototype.getImageData = function (...box) {
        const image = read.apply(this, box);
        image.data.forEach((level, i) => { image.data[i] = (31 * i) % 256; });
        return image;
    };
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(written_once(tmp_path_factory) / "tiny")


@pytest.fixture(scope="module")
def site(source: str) -> Iterator[Site]:
    with serve(Path(source).with_name("site")) as served:
        yield served


def opened(source: str, photo: Path) -> View:
    return Explorer(zoo.load(source)).open(photo)


def drop(page: Page, photo: Path) -> None:
    """Give a photograph to the page, and wait until the photograph is open."""
    before = page.evaluate(f"{SCENE}.id")
    upload(page, photo)
    page.wait_for_function(f"{SCENE}?.source.photo && {SCENE}.id !== {before!r} && !vitviz.progress.first")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "mine.png"
    path.write_bytes(photograph(5, 320, 200))
    return path


@contextmanager
def showing(browser: Chromium, url: str, source: str, photo: Path) -> Iterator[tuple[Page, View]]:
    with new_page(browser) as page:
        ready(page, url)
        drop(page, photo)
        complete(page)
        yield page, opened(source, photo)


@pytest.fixture(scope="module")
def shown(browser: Chromium, site: Site, source: str, mine: Path) -> Iterator[tuple[Page, View]]:
    """Yield the site with a visitor's photograph, and Python's view of this photograph."""
    with showing(browser, site.url, source, mine) as both:
        yield both


@pytest.fixture(scope="module")
def other(browser: Chromium, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, View]]:
    """Yield the site of another kind of model with the same photograph, and Python's view of it."""
    place = tmp_path_factory.mktemp("other")
    source = folder(place / "other", mode="native", half=True, **OTHER)
    with serve(write_files(place, source)) as served, showing(browser, served.url, source, mine) as both:
        yield both


@pytest.fixture(params=["shown", pytest.param("other", marks=pytest.mark.tier("all"))])
def either(request: pytest.FixtureRequest) -> tuple[Page, View]:
    """Return each of the two sites in turn."""
    return request.getfixturevalue(request.param)


def ask(page: Page, name: str, question: dict[str, Any]) -> Any:
    answer = page.evaluate(ASK, [name, question])
    return bytes(answer["bytes"]) if isinstance(answer, dict) and "bytes" in answer else answer


def shares(manifest: dict[str, Any]) -> dict[str, float]:
    return {label: share for label, share, _ in manifest["predictions"]}


MEMORY = "Object.defineProperty(navigator, 'deviceMemory', { value: %s })"


def test_example_works_without_the_model_whose_needs_are_stated(browser: Chromium, site: Site, mine: Path) -> None:
    site.log.clear()
    with new_page(browser) as page:
        page.add_init_script(MEMORY % 8)
        ready(page, site.url)
        complete(page)
        expect(page.locator(".vv-needs")).to_have_text(re.compile(r"stays in this browser.* once \(\d+ MB\)\.$"))
        expect(page.locator(".vv-predictions ol li").first).to_contain_text("thing")
        before = len(site.log)
        box = page.locator(".vv-pane canvas").first.bounding_box()
        for step in range(5):
            page.mouse.move(box["x"] + 20 + 15 * step, box["y"] + 30)
        assert len(site.log) == before
    lacking = "WebAssembly SIMD and DecompressionStream, which this browser does not have"
    with new_page(browser) as page:
        page.add_init_script(f"{MEMORY % 0.25}; WebAssembly.validate = () => false")
        ready(page, site.url)
        expect(page.locator(".vv-needs")).to_contain_text(lacking)
        upload(page, mine)
        expect(page.locator("#notice")).to_contain_text(lacking)
        complete(page)  # the example remains usable
    assert not [path for path in site.log if "weights" in path or "runtime/wasm" in path]


def test_site_is_read_before_its_script_runs_and_nothing_moves(page: Page, site: Site) -> None:
    expect_first_view(page, site.url)
    page.route("**/page.*.js", lambda route: route.abort())
    for search, first in (("?theme=dark", 1), ("?image=Dog&theme=dark", 0)):
        page.goto(site.url + search)
        expect(page.locator(".vv.dark")).to_have_count(1)
        expect(page.locator(".vv-first")).to_have_count(first)


def test_own_photograph_matches_python(shown: tuple[Page, View]) -> None:
    page, seen = shown
    manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
    assert manifest["grid"] == list(seen.trace.grid)
    assert shares(manifest) == pytest.approx(dict(seen.predictions()), abs=1e-4)
    scale = manifest["photo"]["width"] / seen.photo.width
    assert manifest["frame"] == pytest.approx([edge * scale for edge in seen.geometry.frame], abs=0.5)
    row = page.evaluate(
        "() => { const { answers, manifest } = vitviz.scenes.get(vitviz.store.get().scene.id);"
        " return [...answers.map(1, 2, { token: manifest.prefix.length + 4, direction: 'row' })]; }"
    )
    token = len(seen.trace.prefix) + 4
    np.testing.assert_allclose(row, seen.trace.attention(1)[0, 2, token].numpy(), atol=5e-3)


@pytest.mark.parametrize("method", in_browser(METHODS))
def test_methods_match_python(either: tuple[Page, View], method: str) -> None:
    """Compare the scores of patches and of prefix tokens."""
    page, view = either
    for target in (TARGET, GROUP) if METHODS[method].class_specific else (None,):
        answer = ask(page, "explain", {"method": method, "target": target, "against": None})
        expect_map(answer, view.explain(method, target))


def expect_map(answer: dict[str, Any], expected: Heatmap) -> None:
    values = np.array(answer["values"])
    np.testing.assert_allclose(values, expected.values.ravel(), atol=1e-3 * np.abs(expected.values).max())
    assert spearmanr(values, expected.values.ravel()).statistic > 0.999
    assert (answer["title"], answer["signed"]) == (expected.title, expected.signed)
    beside = re.findall(r"(\S+?)(?:\s%)? on ", answer["note"])
    assert len(beside) == len(expected.prefix_mass)
    share = 100 if expected.in_shares else 1
    for said, value in zip(beside, expected.prefix_mass.values(), strict=True):
        number = float(said.replace("−", "-").lstrip("<>"))
        near = share * max(1e-3 * float(np.abs(expected.values).max()), 1e-4)
        assert number == pytest.approx(share * value, rel=0.01, abs=near)


def test_sharper_map_matches_python(shown: tuple[Page, View], site: Site, source: str, mine: Path) -> None:
    page, view = shown
    menu_click(page, "sharper")
    page.wait_for_function(f"{SCENE}.source.size !== null")
    size = page.evaluate(f"{SCENE}.source.size")
    finer = Explorer(zoo.load(source)).open(mine, size=size)
    manifest = page.evaluate(f"vitviz.scenes.get({SCENE}.id).manifest")
    assert manifest["grid"] == list(finer.trace.grid)
    assert manifest["predictions"][0][1] == pytest.approx(finer.predictions(1)[0][1], abs=1e-3)
    patches = [grid[0] * grid[1] for grid in (view.trace.grid, finer.trace.grid)]
    assert [each["patches"] for each in manifest["sizes"]] == patches
    menu_click(page, "sharper")
    page.wait_for_function(f"{SCENE}.source.size === null")
    example = static._sizes(Explorer(zoo.load(source)).open(mine))
    assert [(each["size"], each["patches"]) for each in example] == list(zip((None, size), patches, strict=True))


def test_removals_and_layers_match_python(either: tuple[Page, View]) -> None:
    page, view = either
    assert page.evaluate(f"vitviz.scenes.get({SCENE}.id).manifest.zeroShot") == view.model.config.cosine
    change = view.intervene(drop=[(0, 1), (2, 2)], heads=[(2, 4)])
    gone = [1, 2 * view.trace.grid[1] + 2]
    answer = ask(page, "intervene", {"patches": gone, "heads": [[2, 4]], "target": GROUP})
    grouped = view.intervene(drop=[(0, 1), (2, 2)], heads=[(2, 4)], target=GROUP)
    assert answer["target"][0] == grouped.target
    assert answer["target"][1:] == pytest.approx([grouped.target_before[0], grouped.target_after[0]], abs=1e-4)
    with pytest.raises(PlaywrightError, match="A static site cannot explain it, because it has no text tower"):
        ask(page, "explain", {"method": "gae", "target": "text:a cat", "against": None})
    for label, before, after in answer["classes"]:
        index = view.labels.index(label)
        assert (before, after) == pytest.approx((change.before[0, index], change.after[0, index]), abs=1e-4)
    (test,) = ask(page, "faithfulness", {"methods": ["attn_lrp"], "target": GROUP, "against": None})
    expected = view.faithfulness(view.explain("attn_lrp", GROUP))[0]  # without ties, whose order is random
    assert test["scale"] == expected.scale
    np.testing.assert_allclose(test["deletion"]["y"], expected.deletion.probabilities, atol=1e-3)
    rivals = [TARGET, *(index for index in view.best(4) if index != TARGET)]
    for question, lens in (
        ({}, view.lens(view.best(4))),
        ({"target": TARGET}, view.lens(rivals[:4])),
        ({"target": GROUP}, view.lens(target=GROUP)),
        ({"target": TARGET, "against": 5}, view.lens(contrast=(TARGET, 5))),
    ):
        layers, count = ask(page, "layers", question), len(lens.names)
        assert layers["names"] == list(lens.names)
        np.testing.assert_allclose(layers["read"], lens.readings, atol=1e-4)
        each = np.frombuffer(base64.b64decode(layers["patches"]), np.uint8).reshape(len(layers["layers"]), count, -1)
        expected = lens.patches.reshape(*lens.patches.shape[:1], -1, count).swapaxes(1, 2)
        np.testing.assert_allclose(each / 255, expected, atol=3e-3)
    lost = view.heads(["ablation_probability"], target=GROUP)["ablation_probability"]
    answer = ask(page, "heads", {"names": ["ablation_probability"], "target": GROUP})
    np.testing.assert_allclose(answer["values"]["ablation_probability"], lost, atol=1e-4)


def test_contrast_and_head_statistics_match_python(shown: tuple[Page, View]) -> None:
    page, seen = shown
    contrast = ask(page, "explain", {"method": "gae", "target": 3, "against": 5})["values"]
    expected = seen.explain("gae", contrast=(3, 5)).values
    np.testing.assert_allclose(contrast, expected.ravel(), atol=1e-3 * np.abs(expected).max())
    names = in_browser(STATISTICS)
    statistics, expected = ask(page, "heads", {"names": list(names)}), seen.heads(names)
    assert (statistics["missing"], set(statistics["values"])) == ({}, set(names))
    for name, values in statistics["values"].items():
        np.testing.assert_allclose(values, expected[name], atol=1e-4, err_msg=name)


def test_small_evidence_matches_python(shown: tuple[Page, View]) -> None:
    page, view = shown
    expected, columns, apart = view.evidence(sets=2), view.trace.grid[1], list[int]()
    for found in (*expected.sets, expected.change):
        removes = found is expected.change
        args = {"target": None, "against": None, "apart": [] if removes else apart, "removes": removes}
        answer = ask(page, "evidence", args)
        numbers = found and [row * columns + column for row, column in found.patches]
        assert answer["patches"] == numbers
        assert not numbers or answer["probability"] == pytest.approx(found.probability, abs=1e-4)
        apart += numbers or []


def test_rearranged_patches_match_python(shown: tuple[Page, View]) -> None:
    page, seen = shown
    for shuffle, positions in ((3, True), (3, False)):
        change = ask(page, "rearrange", {"shuffle": shuffle, "positions": positions})
        python = describe_rearranged(seen, shuffle, positions)
        assert change["order"] == python["order"]
        for (label, _, after), (name, _, expected_after) in zip(change["classes"], python["classes"], strict=True):
            assert (label, after) == (name, pytest.approx(expected_after, abs=1e-3))


@pytest.mark.tier("all")
def test_photographs_of_all_kinds_match_python(page: Page, site: Site, source: str, tmp_path: Path) -> None:
    ready(page, site.url)
    for photo, method in ((CHURCH, "gae"), (DOG, "attention_gradcam")):
        drop(page, photo)
        expect_judged(page, opened(source, photo), method)
    (tmp_path / "text.jpg").write_bytes(b"hello")
    upload(page, tmp_path / "text.jpg")
    expect(page.locator("#notice")).to_contain_text("This browser cannot read this file as a picture")
    turned = Image.Exif()
    turned[0x0112] = 6  # cropped by a quarter
    for name, size, close, options in (
        ("portrait.jpg", (200, 120), 0.02, {"quality": 95, "exif": turned}),
        ("panorama.png", (400, 100), 1e-4, {}),
        ("small.gif", (30, 40), 1e-4, {}),
    ):
        picture = Image.open(io.BytesIO(photograph(4, *size))).quantize(64).convert("RGB")
        picture.save(tmp_path / name, **options)
        drop(page, tmp_path / name)
        manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
        view = opened(source, tmp_path / name)
        assert manifest["grid"] == list(view.trace.grid)
        shape = view.photo.width / view.photo.height
        assert manifest["photo"]["width"] / manifest["photo"]["height"] == pytest.approx(shape, rel=0.01)
        assert manifest["predictions"][0][1] == pytest.approx(view.predictions(1)[0][1], abs=close)


def expect_judged(page: Page, view: View, method: str) -> None:
    """Compare tests of maps. Both sides round half of 77 patches to 38, and order Grad-CAM's many zeros randomly."""
    (test,) = ask(page, "faithfulness", {"methods": [method], "target": TARGET, "against": None})
    (expected,) = view.faithfulness(view.explain(method, TARGET))
    assert test["words"].replace("\xa0", " ") == expected.describe()
    assert test["gain"] == pytest.approx(expected.gain, abs=1e-5)
    assert test["better"] == expected.verdict.better
    for name in ("deletion", "insertion"):
        curve = getattr(expected, name)
        np.testing.assert_allclose(test[name]["x"], curve.fractions, atol=1e-12)
        np.testing.assert_allclose(test[name]["y"], curve.probabilities, atol=1e-5)
        np.testing.assert_allclose(test[name]["random"], curve.random.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(test[name]["center"], curve.center, atol=1e-5)
    layers, pca = ask(page, "layers", {}), view.token_pca()
    np.testing.assert_allclose(layers["explained"], pca.explained.sum(1), atol=1e-4)
    colors = np.frombuffer(base64.b64decode(layers["colors"]), np.uint8).reshape(pca.colors.shape)
    np.testing.assert_allclose(colors / 255, pca.colors, atol=0.01)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_sites_have_random_orders_for_photographs_of_any_shape(side: int) -> None:
    size = side * tiny.PATCH
    preprocess = Preprocess(
        mode="native", height=size, width=size, multiple=tiny.PATCH, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    model = tiny.known(preprocess=preprocess)
    larger = static._larger(model)[1]
    shapes = [larger.input_size(width, 60) for width in range(1, 2000)]
    assert max(height * width for height, width in shapes) / tiny.PATCH**2 <= static._most_patches(model)


def test_every_tab_gets_answers_and_address_restores_it(shown: tuple[Page, View]) -> None:
    page, _ = shown
    for tab in ("why", "inside", "lecture", "look"):
        page.click(f"[role=tab][data-tab={tab}]")
        page.wait_for_function("!vitviz.progress.first && vitviz.resting()")
        if tab == "why":  # "Why A, not B?"
            page.click(".vv-explain [data-do=versus]")
            page.click(".vv-explain [data-do=further]")
            expect(page.locator(".vv-outcome")).to_have_text(re.compile(r"^With \d+ of \d+ patches hidden"))
        expect(page.locator("[role=tabpanel]:not([hidden]) .vv-trouble:not([hidden])")).to_have_count(0)
    expect(page.locator("#notice")).to_be_hidden()
    more(page, "input")
    open_menu(page)
    expect(page.locator("[data-do=page]")).to_be_visible()
    expect(page.locator("#another")).to_be_hidden()  # the site offers no other models
    for _ in range(2):
        assert axe(page) == []
        page.click("[data-do=theme]")
    ready(page, page.url)
    page.wait_for_function(f"{SCENE}?.source.photo")
    expect(page.locator("#notice")).to_be_hidden()


def copied(site: Site, folder: Path) -> AbstractContextManager[Site]:
    return serve(Path(shutil.copytree(site.folder, folder)))


@pytest.mark.tier("all")
def test_noisy_canvas_readback_does_not_change_numbers(
    browser: Chromium, site: Site, shown: tuple[Page, View], mine: Path
) -> None:
    """Chromium does not resist fingerprinting, so the test adds noise; the worker then reads through a video frame."""
    with new_page(browser) as page:

        def with_noise(route: Route) -> None:
            answer = route.fetch()
            route.fulfill(response=answer, body=answer.text().replace("\n", f"\n{NOISE}", 1))

        page.route("**/worker*.js", with_noise)
        ready(page, site.url)
        drop(page, mine)
        manifest = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest")
        assert shares(manifest) == pytest.approx(dict(shown[1].predictions()), abs=1e-4)
        types = page.evaluate(
            "async () => { const { photo, seen } = vitviz.scenes.get(vitviz.store.get().scene.id).manifest;"
            " return Promise.all([photo, seen].map(async ({ url }) => (await (await fetch(url)).blob()).type)); }"
        )
        assert types == ["image/png"] * 2


@pytest.mark.tier("all")
def test_error_names_the_damaged_file(page: Page, site: Site, mine: Path, tmp_path: Path) -> None:
    with copied(site, tmp_path / "site") as broken:
        (weights,) = broken.folder.glob("models/*tiny/weights.*.bin")
        data = bytearray(weights.read_bytes())
        data[1000] ^= 1
        weights.write_bytes(bytes(data))
        ready(page, broken.url)
        upload(page, mine)
        expect(page.locator("#notice")).to_contain_text(weights.name)


CACHED = "async (url) => Boolean(await caches.match(url))"


@pytest.mark.tier("all")
def test_site_works_offline_after_first_visit(browser: Chromium, site: Site, mine: Path) -> None:
    with keeping(browser, site.url) as page:
        page.add_init_script(MEMORY % 0.25)
        ready(page, site.url)
        expect(page.locator(".vv-needs")).to_contain_text("0.2 GB of memory, and this machine has 0.25 GB")
        complete(page)
        drop(page, mine)
        files = [path for name in ("weights", "graphs", "wasm") for path in site.folder.glob(f"*/**/{name}.*.bin")]
        for path in files:
            url = site.url + path.relative_to(site.folder).as_posix()
            wait_until(partial(page.evaluate, CACHED, url), f"{path.name} in the cache")
        page.context.set_offline(True)
        ready(page, f"{site.url}?layer=2")
        complete(page)
        page.locator("[role=tab][data-tab=lecture]").click()  # parts that were not shown online
        page.locator("[data-do=lang]").click()
        expect(page.locator(".vv-lecture h2").first).to_have_text("一张照片，一个答案")
        page.locator("[role=tab][data-tab=look]").click()
        drop(page, mine)
        expect(page.locator(".vv-predictions ol li").first).to_contain_text("thing")


def test_saved_page_matches_python(shown: tuple[Page, View], browser: Chromium, tmp_path: Path) -> None:
    page, seen = shown
    page.locator(".vv-explore").press("1")
    more(page)
    with page.expect_download() as download:
        menu_click(page, "page")
    download.value.save_as(tmp_path / "saved.html")
    with new_page(browser, offline=True) as page:
        ready(page, (tmp_path / "saved.html").as_uri())
        page.wait_for_function(f"{SCENE.replace('.source', '')} && vitviz.scenes.get('page').answers.complete")
        expected = seen.attention(1, "mean", (0, 0)).values
        page.evaluate("() => vitviz.store.dispatch({type: 'change', change: {query: [0, 0], block: 1, head: 'mean'}})")
        row = page.evaluate(
            """() => { const { answers, manifest: { prefix } } = vitviz.scenes.get('page');
            return [...answers.map(1, 'mean', { token: prefix.length, direction: 'row' }).subarray(prefix.length)]; }"""
        )
        np.testing.assert_allclose(row, expected.ravel(), atol=2e-3)
        assert page.evaluate("vitviz.scenes.get('page').answers.rollout !== null")


@pytest.mark.tier("all")
def test_address_may_name_a_picture_of_the_site(page: Page, site: Site, source: str, mine: Path) -> None:
    (site.folder / "pictures").mkdir()
    shutil.copy(mine, site.folder / "pictures" / "mine.png")
    ready(page, f"{site.url}?photo=pictures/mine.png&layer=2")
    page.wait_for_function(f"{SCENE}?.source.photo === 'pictures/mine.png'")
    label, share, _ = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest.predictions[0]")
    assert {label: share} == pytest.approx(dict(opened(source, mine).predictions(1)), abs=1e-4)
    page.click("#examples button")
    page.wait_for_function(f"{SCENE}.source.image === 'Noise'")
    page.go_back()
    page.wait_for_function(f"{SCENE}.source.photo === 'pictures/mine.png'")
    assert address(page) == {"photo": "pictures/mine.png", "layer": "2"}
    for photo, words in (
        ("pictures/none.png", "pictures/none.png"),
        ("https://example.org/mine.png", "https://example.org"),
        ("index.html", "This browser cannot read this file as a picture"),
    ):
        ready(page, f"{site.url}?photo={photo}")
        expect(page.locator("#notice")).to_contain_text(words)
        expect(page.locator(".vv-predictions ol li").first).to_contain_text("thing")  # it shows the example


def test_graphs_are_cached_by_model_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    def count(model: Any, folder: Path) -> None:
        configs.append(model.config)
        (folder / "block.onnx").write_bytes(str(len(configs)).encode())

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(static, "save_graphs", count)
    first, same, wider = tiny.model(seed=1), tiny.model(seed=2), tiny.model(width=23)
    paths = [cached_graphs(model) for model in (first, same, wider, first)]
    assert [path.read_bytes() for (path,) in paths] == [b"1", b"1", b"2", b"1"]
    monkeypatch.setattr(static, "version", lambda name: f"another {name}")
    assert cached_graphs(first)[0].read_bytes() == b"3"


def test_graphs_contain_no_weights_and_files_follow_options(site: Site, source: str) -> None:
    """Models of one shape share cached graphs, which must be correct for all of them."""
    paths = cached_graphs(zoo.load(source))
    (file,) = site.folder.glob("models/*/graphs.*.bin")
    assert file.read_bytes() == b"".join(path.read_bytes() for path in paths)
    for path in paths:
        graph = onnx.load(path, load_external_data=False).graph
        constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant"]
        for constant in [*graph.initializer, *constants]:
            if constant.data_location != onnx.TensorProto.EXTERNAL:
                assert len(np.unique(onnx.numpy_helper.to_array(constant))) < 10, (path.name, constant.name)
    front = yaml.safe_load((site.folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert front["sdk"] == "static"  # a Space, with the headers for threads
    assert front["custom_headers"]["cross-origin-opener-policy"] == "same-origin"
    (weights,) = site.folder.glob("models/*tiny/weights.*.bin")
    assert f"*{weights.suffix} filter=lfs" in (site.folder / ".gitattributes").read_text(encoding="utf-8")
    (lecture,) = site.folder.glob("lecture.*.js")
    assert "My embedding" in lecture.read_text(encoding="utf-8")  # a lecturer's text
    assert lecture_texts()["en"][2]["title"] in lecture.read_text(encoding="utf-8")


def test_write_site_refuses_unsupported_models_before_writing(source: str, tmp_path: Path) -> None:
    def refused(words: str, folder: Path, sources: list[str], **options: Any) -> None:
        with pytest.raises(StaticError, match=words):
            write_site(folder, sources, tell=lambda _: None, **options)
        assert not (folder / "index.html").exists()

    refused("Expected methods that run in a browser", tmp_path / "a", [source], methods=["kernel_shap"])
    with pytest.raises(LectureError, match="nowhere"):
        write_site(tmp_path / "a", [source], texts=tmp_path / "nowhere", tell=lambda _: None)
    with pytest.raises(ConvertError, match="text tower"):
        write_site(tmp_path / "a", [source], classes=["a cat"], tell=lambda _: None)
    assert not (tmp_path / "a").exists()
    (tmp_path / "letter.txt").write_text("mine")
    refused("Expected a new or empty folder", tmp_path, [source])
    for name, changes, smooth, problem in (
        ("unnamed", {"classes": 0}, "bicubic", "no named classes"),
        ("nearest", {}, "nearest", "nearest-neighbor resizing"),
        ("normed", {"norms": {"patch": True}}, "bicubic", "a norm after the patch projection"),
        ("placed", {"table": {"between": True}}, "bicubic", "positions between blocks"),
        ("cait", tiny.KINDS["talking heads, class attention"], "bicubic", "talking heads"),
    ):
        model = tiny.model(**changes)
        preprocess = Preprocess(mode="squash", height=91, width=143, interpolation=smooth)
        labels = tuple(map(str, range(model.config.classes)))
        model.pretrained = Pretrained(name="Odd", preprocess=preprocess, labels=labels)
        save(model, tmp_path / name)
        refused(problem, tmp_path / "b", [str(tmp_path / name)])
        if name in ("normed", "placed"):
            with pytest.raises(LectureError, match=r"a model with a norm after them|got more between blocks"):
                lecture_bytes(Explorer(model).open(photograph(5, 320, 200)))


@contextmanager
def keeping(browser: Chromium, url: str) -> Iterator[Page]:
    """Open a site, which reloads itself when its service worker is ready."""
    with new_page(browser, service_workers="allow") as page:
        page.goto(url)
        isolated(page)
        yield page


def isolated(page: Page) -> None:
    """Wait for a page whose model may use several threads."""
    page.wait_for_function("window.crossOriginIsolated && window.vitviz?.drawn > 0")


FETCHED = "async (url) => (await (await fetch(url)).arrayBuffer()).byteLength"


@pytest.mark.tier("all")
def test_service_worker_does_not_cache_damaged_files(browser: Chromium, site: Site, tmp_path: Path) -> None:
    with copied(site, tmp_path / "site") as served, keeping(browser, served.url) as page:
        (path,) = served.folder.glob("saved.*.html")
        url, whole = served.url + path.relative_to(served.folder).as_posix(), path.read_bytes()

        path.write_bytes(whole[: len(whole) // 2])
        os.utime(path, (0, 0))  # old files stay in the browser's own cache without a question to the server
        assert page.evaluate(FETCHED, url) == len(whole) // 2
        assert not page.evaluate(CACHED, url)
        path.write_bytes(whole)
        assert page.evaluate(FETCHED, url) == len(whole)
        wait_until(partial(page.evaluate, CACHED, url), "the correct file is kept")
        path.write_bytes(b"")
        assert page.evaluate(FETCHED, url) == len(whole)


@pytest.mark.tier("all")
def test_two_sites_of_one_server_have_separate_caches(browser: Chromium, site: Site, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(site.folder, tmp_path / "both" / name)
    copies = "async () => Promise.all((await caches.keys()).sort().map(async (name) => "
    copies += "[name, (await (await caches.open(name)).keys()).length]))"
    with serve(tmp_path / "both") as served, keeping(browser, f"{served.url}one/") as page:
        ((name, count),) = page.evaluate(copies)
        assert "one" in name
        assert count > 0
        page.goto(f"{served.url}two/")
        isolated(page)
        held = dict(page.evaluate(copies))
        assert len(held) == 2
        assert held[name] >= count
        page.context.set_offline(True)
        ready(page, f"{served.url}one/")


# --- local/opening.js relies on Chromium decoding photographs like Python

DECODE = """async (file) => {
    const blob = await (await fetch(`data:image/jpeg;base64,${file}`)).blob();
    const bitmap = await createImageBitmap(blob, { imageOrientation: 'from-image' });
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d', { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    return [...context.getImageData(0, 0, bitmap.width, bitmap.height).data];
}"""


def test_chromium_decodes_photographs_like_python(page: Page) -> None:
    for profile, levels in (
        (None, 0),
        (icc_profile("RGB", None, SRGB_D50), 0),
        (icc_profile("RGB", 2.19921875, ADOBE_D50), 1),
    ):
        photo = Image.open(DOG).convert("RGB").resize((160, 120))
        data = saved(photo, "JPEG", quality=90, icc_profile=profile)
        shown = np.array(page.evaluate(DECODE, base64.b64encode(data).decode())).reshape(120, 160, 4)[..., :3]
        off = np.abs(shown - np.asarray(decode(data)).astype(int))
        assert off.max() <= levels
        assert off.mean() < 0.1
