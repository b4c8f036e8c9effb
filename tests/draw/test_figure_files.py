"""Test the files of figures and the command `vitviz figures`: text stays text, and files are reproducible."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pypdf
import pytest
import tiny
from image_files import random_rgb
from pairwise import alternate
from PIL import Image

import vitviz
from vitviz.cli.main import main
from vitviz.draw.colors import DrawError
from vitviz.draw.figures import KINDS, NAMES, draw, encode, save
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.weights.checkpoint import save as save_model

PHOTO = "two words, $5 of $6.png"  # dollar signs must not start mathematics
MODEL = "Tiny & <small>"
OPTIONS: dict[str, Any] = {"block": 1, "head": 3, "query": (2, 4), "methods": ("rollout", "gae"), "method": "gae"}


def named_model() -> vitviz.ViT:
    config = tiny.config(registers=2, **tiny.SMALL)
    labels = tuple(f"thing {index}" for index in range(config.classes))
    preprocess = Preprocess(height=6, width=10, mode="squash")
    model = vitviz.ViT(config, Pretrained(name=MODEL, preprocess=preprocess, labels=labels)).eval()
    tiny.randomise(model, 5)
    return model


@cache
def view() -> vitviz.View:
    return vitviz.Explorer(named_model()).open(random_rgb(22, 30, 0))


def figure(name: str, **options: Any) -> Any:
    return draw(view(), [name], photo=PHOTO, filters=5, **options, **(OPTIONS if name in KINDS else {}))[name]


@cache
def drawn_once(name: str) -> Any:
    return figure(name)


@cache
def encoded(name: str, form: str) -> bytes:
    return encode(drawn_once(name), form)


def lines_of(name: str) -> list[str]:
    """Return the lines of text outside the axes."""
    return [line for text in drawn_once(name).texts for line in text.get_text().splitlines()]


# --- files -----------------------------------------------------------------------------------------------------------


def check_reproducible(file: bytes) -> None:
    assert not [word for word in (b"CreationDate", b"dc:date", mpl.__version__.encode()) if word in file]


@pytest.mark.parametrize("name", alternate([*NAMES, *KINDS]))
def test_svg_text_stays_text(name: str) -> None:
    svg = encoded(name, "svg")
    assert svg.startswith(b"<?xml")
    check_reproducible(svg)
    elements = ET.fromstring(svg).findall(".//{http://www.w3.org/2000/svg}text")
    words = [element.text or "" for element in elements]
    assert set(lines_of(name)) <= set(words)
    assert PHOTO in " ".join(words)
    assert MODEL in " ".join(words)
    assert all("DejaVu Sans" in element.get("style", "") for element in elements)


@pytest.mark.tier("all")
@pytest.mark.parametrize("name", [*NAMES, *KINDS])
def test_pdf_text_stays_text(name: str) -> None:
    pdf, lines = encoded(name, "pdf"), lines_of(name)
    assert pdf.startswith(b"%PDF")
    check_reproducible(pdf)
    assert b"/FontFile2" in pdf  # TrueType
    assert b"/Type3" not in pdf
    (page,) = pypdf.PdfReader(io.BytesIO(pdf)).pages
    copied = page.extract_text()
    assert set("".join(lines)) - {" "} <= set(copied)
    assert PHOTO in " ".join(copied.split())
    assert lines[0] in " ".join(copied.split())


def test_png_has_print_resolution_and_is_reproducible() -> None:
    drawn = figure("parameters", dark=True)
    file = encode(drawn, "png")
    assert encode(figure("parameters", dark=True), "png") == file
    picture = Image.open(io.BytesIO(file)).convert("RGB")
    wide, high = drawn.get_size_inches()
    np.testing.assert_allclose(picture.size, (300 * wide, 300 * high), atol=1)
    assert picture.getpixel((2, 2)) == picture.getpixel((picture.width - 2, 2)) == (17, 19, 24)


@pytest.mark.tier("all")
def test_figures_ignore_and_keep_the_users_rcparams() -> None:
    files = [("parameters", "svg"), ("features", "svg"), ("shapes", "pdf"), ("patches", "png")]
    expected = [encoded(name, form) for name, form in files]
    user_settings = {
        "font.family": "serif", "font.size": 31, "text.color": "red", "text.parse_math": True, "axes.grid": True,
        "axes.facecolor": "pink", "axes.labelcolor": "red", "axes.labelsize": 30, "axes.unicode_minus": False,
        "axes.spines.top": False, "axes.xmargin": 0.3, "xtick.top": True, "xtick.labeltop": True,
        "xtick.minor.visible": True, "ytick.direction": "in", "ytick.labelsize": 25, "lines.linewidth": 9,
        "patch.linewidth": 9, "image.cmap": "gray", "image.origin": "lower", "image.interpolation": "bilinear",
        "savefig.bbox": "tight", "savefig.facecolor": "red", "savefig.transparent": True, "figure.autolayout": True,
        "svg.fonttype": "path", "svg.hashsalt": "another", "pdf.fonttype": 3,
    }  # fmt: skip
    with mpl.rc_context(user_settings):
        before = dict(mpl.rcParams)
        assert [encode(figure(name), form) for name, form in files] == expected
        assert dict(mpl.rcParams) == before


def test_threads_draw_equal_figures() -> None:
    with ThreadPoolExecutor(4) as threads:
        files = [threads.submit(lambda: encode(figure("parameters"), "svg")) for _ in range(8)]
        assert all(file.result() == encoded("parameters", "svg") for file in files)


@pytest.mark.tier("all")
def test_matplotlib_is_imported_lazily_and_pyplot_never() -> None:
    code = (
        "import sys, numpy as np, vitviz, vitviz.cli.main, vitviz.draw.figures as figures;"
        "assert not any(name.startswith('matplotlib') for name in sys.modules);"
        "model = vitviz.ViT(vitviz.preset('tiny', depth=1, image_size=(32, 32), classes=3));"
        "view = vitviz.Explorer(model).open(np.zeros((40, 40, 3), np.uint8));"
        "figures.encode(figures.draw(view, ['parameters'])['parameters'], 'pdf');"
        "assert 'matplotlib.figure' in sys.modules;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    sources = (Path(vitviz.__file__).parent / "draw").rglob("*.py")
    assert not [path for path in sources if re.search(r"import.*pyplot", path.read_text(encoding="utf-8"))]


def test_half_precision_models_are_drawn() -> None:
    half = vitviz.Explorer(named_model().bfloat16()).open(random_rgb(22, 30, 0))
    drawn = draw(half, ["embedding"])["embedding"]
    (table,) = (axes.images[0].get_array() for axes in drawn.axes if axes.get_label() == "flat")
    expected = half.model.float().patch_embed(half.images)[0].detach().numpy()
    np.testing.assert_allclose(table, expected, atol=0.05)


def test_save_takes_the_format_from_the_file_name(tmp_path: Path) -> None:
    drawn = figure("parameters")
    for name in ("a.svg", "a.PDF", "a.png"):
        save(drawn, tmp_path / name)
        assert (tmp_path / name).read_bytes() == encode(drawn, name[2:].lower())
    with pytest.raises(DrawError, match="png, svg, pdf"):
        save(drawn, tmp_path / "a.jpg")
    with pytest.raises(DrawError, match="poster"):
        draw(view(), ["patches", "poster"])
    assert list(draw(view(), ["parameters", "patches"])) == ["patches", "parameters"]


# --- the shell -------------------------------------------------------------------------------------------------------


Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs `vitviz figures` on a photograph and a tiny model, and returns the output folder."""
    photo, model, out = tmp_path / PHOTO, tmp_path / "tiny", tmp_path / "deep" / "figures"
    Image.fromarray(random_rgb(22, 30, 0)).save(photo)
    save_model(named_model(), model)

    def call(*options: str) -> Path:
        assert main(["figures", str(photo), "--model", str(model), "--device", "cpu", "-o", str(out), *options]) == 0
        return out

    return call


@pytest.mark.parametrize("name", NAMES)
def test_the_command_writes_the_figure_of_draw(name: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = run("--only", name, "--format", "svg", "--filters", "5")
    assert (out / f"{name}.svg").read_bytes() == encoded(name, "svg")
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(out / f"{name}.svg"))


def test_the_command_draws_the_whole_path_by_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.draw.figures.draw", lambda _view, only, **_: dict.fromkeys(only, figure("parameters")))
    assert sorted(path.name for path in run("--format", "svg").iterdir()) == sorted(f"{name}.svg" for name in NAMES)


def test_the_command_takes_theme_and_input_size(run: Run) -> None:
    out = run("--only", "parameters", "--dark")  # as png
    assert (out / "parameters.png").read_bytes() == encode(figure("parameters", dark=True), "png")
    assert len(list(out.iterdir())) == 1
    run("--only", "shapes", "--size", "14", "--format", "svg")
    assert "(3, 8, 14)" in (out / "shapes.svg").read_text(encoding="utf-8")


def test_the_command_takes_kinds_layer_head_and_target(run: Run) -> None:
    options = ("--layer", "2", "--head", "3", "--target", "thing 3", "--format", "pdf")
    out = run("--kind", "overlay", "decomposition", *options)
    assert sorted(path.name for path in out.iterdir()) == ["decomposition.pdf", "overlay.pdf"]
    assert "thing 3" in pypdf.PdfReader(out / "decomposition.pdf").pages[0].extract_text()


@pytest.mark.tier("all")
def test_the_command_takes_width_bare_and_chosen_filters(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("--kind", "path", "prediction", "rollout-sheet", "--only", "flattened")
    out = run(*kinds, "--filter", "4", "2", "--width", "column", "--bare", "--format", "svg")
    assert "Feature map 4, flattened" in capsys.readouterr().out  # the caption is printed for use in a document
    options: dict[str, Any] = {"photo": PHOTO, "filters": [3, 1], "width": "column", "bare": True}
    for name in ("flattened", "prediction"):
        assert (out / f"{name}.svg").read_bytes() == encode(draw(view(), [name], **options)[name], "svg")
    width = re.search(r'width="([\d.]+)pt"', (out / "rollout-sheet.svg").read_text(encoding="utf-8"))
    assert width is not None
    assert float(width[1]) == 72 * 3.25
    assert main(["figures", "x.png", "--width", "wide"]) == 2
    assert "column or page" in capsys.readouterr().err
