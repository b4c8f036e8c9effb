"""Figures as files and from a shell: words stay words, equal figures are equal bytes, refusals are sentences."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
import tiny
from image_files import random_rgb
from PIL import Image

import vitviz
from vitviz.cli.main import main
from vitviz.draw.colors import DrawError
from vitviz.draw.figures import FORMATS, NAMES, draw, encode, save
from vitviz.draw.figures.page import wrap
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.weights.checkpoint import save as save_model

NAME = "two words, $5 of $6.png"  # no mathematics
OWN = "Tiny & <small>"


def named_model() -> vitviz.ViT:
    config = tiny.config(registers=2)
    labels = tuple(f"thing {index}" for index in range(config.classes))
    preprocess = Preprocess(height=91, width=143, mode="squash")
    model = vitviz.ViT(config, Pretrained(name=OWN, preprocess=preprocess, labels=labels)).eval()
    tiny.randomise(model, 5)
    return model


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / NAME
    Image.fromarray(random_rgb(110, 150, 0)).save(path)
    return path


@pytest.fixture(scope="module")
def view(photo: Path) -> vitviz.View:
    return vitviz.Explorer(named_model()).open(photo)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(named_model(), path)
    return str(path)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form"), [*((name, "svg") for name in NAMES), ("shapes", "png"), ("shapes", "pdf")])
def test_equal_figures_are_equal_bytes_without_a_date(view: vitviz.View, name: str, form: str) -> None:
    first, second = (encode(draw(view, [name], photo=NAME, filters=5)[name], form) for _ in range(2))
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form])
    for word in (b"CreationDate", b"dc:date", mpl.__version__.encode()):
        assert word not in first
    other = encode(draw(view, [name], photo="another.jpg", filters=5)[name], form)
    assert other != first


def test_a_picture_is_large_enough_for_print(view: vitviz.View) -> None:
    drawn = draw(view, ["parameters"], dark=True)["parameters"]
    picture = Image.open(BytesIO(encode(drawn, "png"))).convert("RGB")
    wide, high = drawn.get_size_inches()
    np.testing.assert_allclose(picture.size, (300 * wide, 300 * high), atol=1)
    assert picture.getpixel((2, 2)) == picture.getpixel((picture.width - 2, 2)) == (17, 19, 24)


@pytest.mark.parametrize("name", NAMES)
def test_words_of_an_svg_are_words(view: vitviz.View, name: str) -> None:
    drawn = draw(view, [name], photo=NAME, filters=5)[name]
    tree = ET.fromstring(encode(drawn, "svg"))
    elements = tree.findall(".//{http://www.w3.org/2000/svg}text")
    words = [element.text or "" for element in elements]
    for line in (line for text in drawn.texts for line in text.get_text().splitlines()):
        assert line in words
    everything = " ".join(words)
    assert NAME in everything
    assert OWN in everything
    assert all("DejaVu Sans" in element.get("style", "") for element in elements)


@pytest.mark.parametrize("name", NAMES)
def test_words_of_a_pdf_are_words_in_embedded_type(view: vitviz.View, name: str) -> None:
    drawn = draw(view, [name], photo=NAME, filters=5)[name]
    file = encode(drawn, "pdf")
    assert b"/FontFile2" in file  # TrueType
    assert b"/Type3" not in file
    packed = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", file, re.DOTALL)
    streams = [zlib.decompressobj().decompress(stream) for stream in packed if stream[:1] == b"\x78"]
    shown = sum(len(re.findall(rb"T[jJ]\b", stream)) for stream in streams if b"CMapName" not in stream)
    assert shown >= len(drawn.texts)
    assert letters(streams) >= set("".join(text.get_text() for text in drawn.texts)) - {" ", "\n"}


def letters(streams: list[bytes]) -> set[str]:
    """What can be copied out of a PDF: the letters that its ToUnicode tables name."""
    tables = [stream.decode() for stream in streams if b"CMapName" in stream]
    assert tables
    lists = [several for table in tables for several in re.findall(r"<\w+>\s+<\w+>\s+\[([^\]]*)\]", table)]
    codes = [code for several in lists for code in re.findall(r"<(\w+)>", several)]
    return set("".join(bytes.fromhex(code).decode("utf-16-be") for code in codes))


def test_a_persons_settings_change_nothing_and_are_not_changed(view: vitviz.View) -> None:
    def files() -> dict[tuple[str, str], bytes]:
        return {
            (form, name): encode(figure, form)
            for form in FORMATS
            for name, figure in draw(view, NAMES if form == "svg" else ["shapes", "positions"], filters=3).items()
        }

    expected = files()
    strange = {
        "font.family": "serif",
        "font.size": 31,
        "text.color": "red",
        "text.parse_math": True,
        "axes.grid": True,
        "axes.facecolor": "pink",
        "axes.labelcolor": "red",
        "axes.labelsize": 30,
        "axes.unicode_minus": False,
        "axes.spines.top": False,
        "axes.xmargin": 0.3,
        "xtick.top": True,
        "xtick.labeltop": True,
        "xtick.minor.visible": True,
        "ytick.direction": "in",
        "ytick.labelsize": 25,
        "lines.linewidth": 9,
        "patch.linewidth": 9,
        "image.cmap": "gray",
        "image.origin": "lower",
        "image.interpolation": "bilinear",
        "savefig.bbox": "tight",
        "savefig.facecolor": "red",
        "savefig.transparent": True,
        "figure.autolayout": True,
        "svg.fonttype": "path",
        "svg.hashsalt": "another",
        "pdf.fonttype": 3,
    }
    with mpl.rc_context(strange):
        before = dict(mpl.rcParams)
        assert files() == expected
        assert dict(mpl.rcParams) == before


def test_threads_draw_what_one_draws(view: vitviz.View) -> None:
    expected = encode(draw(view, ["shapes"])["shapes"], "svg")
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(lambda: encode(draw(view, ["shapes"])["shapes"], "svg")) for _ in range(8)]
        assert all(answer.result() == expected for answer in asked)


def test_nothing_is_imported_before_it_is_needed_and_pyplot_never() -> None:
    code = (
        "import sys, numpy as np, vitviz, vitviz.cli.main, vitviz.draw.figures as figures;"
        "assert not any(name.startswith('matplotlib') for name in sys.modules);"
        "model = vitviz.ViT(vitviz.preset('tiny', depth=1, image_size=(32, 32), classes=3));"
        "view = vitviz.Explorer(model).open(np.zeros((40, 40, 3), np.uint8));"
        "[figures.encode(figure, 'pdf') for figure in figures.draw(view).values()];"
        "assert 'matplotlib.figure' in sys.modules;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_half_precision_is_drawn(photo: Path) -> None:
    view = vitviz.Explorer(named_model().bfloat16()).open(photo)
    drawn = draw(view)["embedding"]
    (table,) = (one.images[0].get_array() for one in drawn.axes if one.get_label() == "flat")
    expected = view.model.float().patch_embed(view.images)[0].detach().numpy()
    np.testing.assert_allclose(table, expected, atol=0.05)


def test_save_knows_the_format_by_the_name(view: vitviz.View, tmp_path: Path) -> None:
    figure = draw(view, ["parameters"])["parameters"]
    for name in ("a.svg", "a.PDF", "a.png"):
        save(figure, tmp_path / name)
        assert (tmp_path / name).read_bytes() == encode(figure, name[2:].lower())
    with pytest.raises(DrawError, match="png, svg, pdf"):
        save(figure, tmp_path / "a.jpg")
    with pytest.raises(DrawError, match="poster"):
        draw(view, ["patches", "poster"])
    assert list(draw(view, ["parameters", "patches"])) == ["patches", "parameters"]


# --- words -----------------------------------------------------------------------------------------------------------


def test_lines_are_broken_where_they_may() -> None:
    assert wrap("a picture of 16 × 16 patches", 7, 0.75) == ["a picture of", "16 × 16", "patches"]
    assert re.fullmatch(r"x+…", *wrap("x" * 300, 7, 2.0))


# --- the shell -------------------------------------------------------------------------------------------------------


def test_the_command_writes_what_python_draws(
    folder: str, photo: Path, view: vitviz.View, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "figures"
    options = ["--model", folder, "--device", "cpu", "-o", str(out)]
    assert main(["figures", str(photo), *options]) == 0
    said = capsys.readouterr().out.splitlines()
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{name}.png" for name in NAMES)
    for name, figure in draw(view, photo=NAME).items():
        assert (out / f"{name}.png").read_bytes() == encode(figure, "png")
        assert any(line.endswith(str(out / f"{name}.png")) for line in said)
    options += ["--format", "svg"]
    assert main(["figures", str(photo), *options, "--only", "features", "--dark", "--filters", "3"]) == 0
    mine = draw(view, ["features"], photo=NAME, dark=True, filters=3)["features"]
    assert (out / "features.svg").read_bytes() == encode(mine, "svg")
    assert len(list(out.iterdir())) == len(NAMES) + 1
    assert main(["figures", str(photo), *options, "--only", "shapes", "--size", "39"]) == 0
    assert "(3, 26, 39)" in (out / "shapes.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["--only", "poster"], "poster"),
        (["--filters", "0"], "at least 1"),
        (["-o", "taken"], "taken"),
        (["-o", "taken/below"], "taken"),
        (["--size", "3"], "one patch"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    changes: list[str],
    named: str,
    folder: str,
    photo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert main(["figures", str(photo), "--model", folder, "--device", "cpu", *changes]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(("vitviz: ", "Error: "))
    assert named in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "a file"
    assert main(["figures", "nobody.jpg", "--model", folder]) == 2
    assert main(["figures", str(photo), "--format", "gif"]) == 2
