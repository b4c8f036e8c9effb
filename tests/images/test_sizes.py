"""Other input sizes than the model's own: the preprocessing, the explorer, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairs
from pictures import photograph
from PIL import Image

import vitviz
from vitviz.cli.main import main
from vitviz.explorer import Explorer
from vitviz.images.decoding import MAX_PIXELS, ImageError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained

MODES = ("crop", "squash", "pad", "native")
CHURCH = Path(__file__).parents[2] / "examples" / "church.jpg"
modes = st.sampled_from(MODES)
patches = st.sampled_from([7, 8, 14, 16])

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the preprocessing


@settings(max_examples=40)
@given(
    mode=modes, patch=patches, rows=st.integers(1, 9), columns=st.integers(1, 9), extra=st.none() | st.integers(0, 40),
    w=st.integers(1, 120), h=st.integers(1, 120), data=st.data(),
)  # fmt: skip
def test_any_size_is_cut_into_whole_patches_and_its_own_size_is_itself(
    mode: str, patch: int, rows: int, columns: int, extra: int | None, w: int, h: int, data: st.DataObject
) -> None:
    height, width = rows * patch, columns * patch
    resize = None if extra is None else min(height, width) + extra
    own = Preprocess(height=height, width=width, mode=mode, resize=resize, multiple=patch, mean=(0.1, 0.2, 0.3))
    side = data.draw(st.integers(patch, 12 * patch))
    other = own.at(side, patch)
    assert (other.mode, other.mean, other.std) == (own.mode, own.mean, own.std)
    prepared = other(photograph(w, h))
    geometry = prepared.geometry
    assert geometry.input == other.input_size(w, h) == prepared.pixels.shape[1:]
    assert all(length % patch == 0 for length in geometry.input)
    gh, gw = (length // patch for length in geometry.input)
    if mode == "native":
        assert gh * gw <= 1.34 * (side / patch) ** 2 + 2
        own = replace(own, width=height)  # a budget of pixels has no shape
    else:
        assert abs(max(geometry.input) - side) <= patch / 2
        exact = min(height, width) * side / max(height, width)
        assert abs(min(geometry.input) - exact) <= patch / 2 or min(geometry.input) == patch
    assert own.at(max(own.height, own.width), patch) == own


def test_another_size_sees_the_same_part_of_the_picture() -> None:
    for own in (Preprocess(), Preprocess(resize=256), Preprocess(height=112, resize=150), Preprocess(resize=224)):
        small, large = own(photograph(700, 600)).geometry, own.at(448, 14)(photograph(700, 600)).geometry
        assert (large.input[0], large.input[1]) == (2 * small.input[0], 2 * small.input[1])
        assert large.frame == pytest.approx(small.frame, abs=700 / min(small.input) / 2)  # half a pixel of rounding
    geometry = Preprocess(height=224, width=320, resize=256).at(500, 16)(photograph(900, 800)).geometry
    left, top, right, bottom = geometry.frame
    assert (right - left) / (bottom - top) == pytest.approx(geometry.input[1] / geometry.input[0], rel=0.01)
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx((450, 400), abs=2)


def test_native_keeps_the_shape_and_asks_for_multiples_of_what_the_weights_do() -> None:
    own = Preprocess(mode="native", multiple=14)
    assert own.at(2048, 14).input_size(3000, 3000) == (146 * 14, 146 * 14)
    height, width = own.at(2048, 14).input_size(4000, 3000)
    assert width / height == pytest.approx(4 / 3, rel=0.01)
    assert height * width == pytest.approx(2048**2, rel=0.01)
    for multiple, expected in ((28, 28), (16, 112), (1, 14)):
        assert Preprocess(mode="native", multiple=multiple).at(448, 14).multiple == expected


@pytest.mark.parametrize(("mode", "shape"), pairs(MODES, [(224, 224), (160, 320), (480, 16)]))
def test_sizes_that_make_no_sense_are_refused_and_the_largest_that_is_named_works(
    mode: str, shape: tuple[int, int]
) -> None:
    own = Preprocess(height=shape[0], width=shape[1], mode=mode)
    side: Any
    for side in (15, 0, -3, 2**70, 20_000, 1.5, True, "224"):
        with pytest.raises(ImageError, match=str(side)):
            Preprocess(mode=mode).at(side, 16)
    with pytest.raises(ImageError, match="at most") as refusal:
        own.at(10**9, 16)
    most = int(str(refusal.value).split("at most ")[1].split(",")[0])
    largest = own.at(most, 16)
    assert 0.98 * MAX_PIXELS < largest.height * largest.width <= MAX_PIXELS
    with pytest.raises(ImageError, match=f"at most {most}, got"):
        own.at(most + 1, 16)


# ---- the explorer


@pytest.mark.parametrize(("positions", "mode"), pairs(["learned", "sincos", "rotary", "none"], [*MODES, None]))
def test_models_with_any_positions_run_at_any_size(positions: str, mode: str | None) -> None:
    model = tiny.model(positions=positions, width=20, heads=5, head_width=8, registers=2)
    height, width = model.config.image_size
    if mode is not None:
        own = Preprocess(height=height, width=width, mode=mode, multiple=tiny.PATCH)
        model.pretrained = Pretrained(name="tiny", preprocess=own)
    explorer = Explorer(model)
    for size in (tiny.PATCH, 100, 250):
        view = explorer.open(photograph(163, 127), size=size)
        prepared = explorer.preprocess.at(size, tiny.PATCH)(photograph(163, 127))
        torch.testing.assert_close(view.trace.logits, model(torch.from_numpy(prepared.pixels)[None]).detach())
        assert view.size == prepared.geometry.input == view.geometry.input
        assert view.trace.grid == model.config.grid_of(*view.size)
        assert view.seen().size == (view.size[1], view.size[0])
        heatmap = view.rollout((view.trace.grid[0] - 1, 0))
        assert heatmap.values.shape == view.trace.grid
        assert heatmap.values.sum() + sum(heatmap.prefix_mass.values()) == pytest.approx(1.0, abs=1e-5)
        assert heatmap.overlay().size == (163, 127)
    assert explorer.open(photograph(163, 127)).size == explorer.preprocess.input_size(163, 127)  # nothing stays behind
    explorer.model.register_forward_hook(lambda *_: pytest.fail("it ran"))
    for size in (tiny.PATCH - 1, 10**7):
        with pytest.raises(ImageError, match=str(size)):
            explorer.open(photograph(20, 20), size=size)


LARGE = """
import sys, torch, numpy as np
from pathlib import Path
from vitviz import Explorer, ViT, ViTConfig

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

torch.manual_seed(0)
torch.set_num_threads(1)
config = ViTConfig(image_size=(224, 224), patch_size=16, width=16, depth=2, heads=2, mlp_width=16, classes=5)
explorer = Explorer(ViT(config))
photo = np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), np.uint8)
explorer.open(photo[:224, :224]).rollout()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
view = explorer.open(photo, size=2048)
sums = [map.values.sum() + map.prefix_mass["CLS"] for map in (
    *view.head_maps(0, (100, 27)), *view.head_maps(1), *view.layer_maps("max"), view.rollout(),
)]
print(view.trace.grid, min(sums), max(sums), status("VmHWM") - before, sep="|")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")
def test_2048_pixels_are_answered_within_bounded_memory() -> None:
    """16,385 tokens: one attention matrix of one head is 1 GB, of all four 4 GB."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    grid, least, most, peak = done.stdout.strip().split("|")
    assert grid == "(128, 128)"
    assert (float(least), float(most)) == pytest.approx((1.0, 1.0), abs=1e-4)
    assert int(peak) < 350e6


# ---- the command line


def test_the_command_line_takes_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, model = tmp_path / "look.npz", "vit-cifar10"
    view = vitviz.Explorer(vitviz.load(model)).open(CHURCH, size=48)
    options = [str(CHURCH), "--model", model, "--device", "cpu", "--size"]
    assert main(["explain", *options, "48", "--method", "rollout", "-o", str(out)]) == 0
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["values"], view.rollout().values, atol=1e-6)
    sheet = tmp_path / "sheet.png"
    assert main(["sheet", *options, "48", "-o", str(sheet)]) == 0
    assert np.array_equal(np.asarray(Image.open(sheet)), np.asarray(view.layer_sheet()))
    capsys.readouterr()
    assert main(["predict", *options, "48", "--json"]) == 0
    label, probability = view.predictions(1)[0]
    said = json.loads(capsys.readouterr().out)["images"][0]["predictions"][0]
    assert said == {"label": label, "probability": pytest.approx(probability)}
    assert main(["predict", *options, "3"]) == 2
    assert "got 3" in capsys.readouterr().err
