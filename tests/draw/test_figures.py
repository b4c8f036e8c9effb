"""Figures of the path a picture takes: the model's numbers, words that can be read, files that are the same twice."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import tiny
import torch
from figure_words import texts, visible, words_are_inside_and_apart
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import FancyArrowPatch
from pictures import photograph

import vitviz
from vitviz.analysis.filters import patch_filters, position_similarity
from vitviz.draw.colors import DrawError, Theme
from vitviz.draw.figures import NAMES, draw
from vitviz.draw.figures.confusion import GAMMA, confusion
from vitviz.draw.figures.counts import counts
from vitviz.draw.figures.drawing import format_shape, route
from vitviz.draw.figures.layouts import layout
from vitviz.draw.figures.maps import FigureOptions
from vitviz.draw.figures.page import ACCENTS, DIVERGING
from vitviz.draw.figures.paper import inside, rollout_sheet
from vitviz.draw.figures.places import SHOWN, every
from vitviz.draw.figures.tokens import features
from vitviz.draw.overlay import overlay
from vitviz.draw.sheet import fit_photo, rescale
from vitviz.formatting import percent
from vitviz.model.positions import sincos_positions

# Every kind of model: tokens in front, positions, pooling, shapes of the grid.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 7, "layer_scale": 0.1, "pooling": "cls+mean"},
    "rotary": {"positions": "rotary", "head_width": 16, "registers": 2, "qk_norm": True, "mlp": "swiglu"},
    "siglip": {"class_token": False, "pooling": "attention", "heads": 1, "activation": "gelu_tanh"},
    "sincos": {"positions": "sincos", "width": 20, "class_token": False, "pooling": "mean", "norm_pooled": True},
    "none": {"positions": "none", "class_token": False, "pooling": "mean"},
    "distilled": {"distillation_token": True, "norm_pre": True, "grid": (11, 3)},
    "panorama": {"grid": (2, 37), "classes": 0, "position_grid": (3, 5)},
    "one patch": {"grid": (1, 1), "patch": 3, "width": 4, "depth": 1, "heads": 1},
    "large": {"grid": (37, 41), "patch": 2, "width": 96, "heads": 12, "mlp_width": 3072, "classes": 1000},
}
# `make test` draws a figure in the cases that change it most, `make test-all` in the others.
LAID_OUT = {
    "patches": ("panorama", "one patch", "large"),
    "features": ("registers", "large"),
    "flattened": ("panorama", "one patch", "large"),
    "embedding": ("plain", "large"),
    "positions": ("registers", "rotary", "siglip", "none", "panorama", "large"),
    "shapes": ("registers", "rotary", "siglip", "distilled", "panorama", "large"),
    "parameters": ("siglip", "panorama", "one patch", "large"),
}
NAME = "two words and $5 of $6.jpg"  # no mathematics


@cache
def view(case: str) -> vitviz.View:
    return vitviz.Explorer(tiny.model(3, **CASES[case])).open(photograph(150, 110))


@cache
def figure(case: str, name: str) -> Figure:
    return draw(view(case), [name], photo=NAME, filters=24 if case == "registers" else 9)[name]


def cases_of(name: str) -> list[Any]:
    """All cases as parameters of a test that draws this figure."""
    return [pytest.param(case, marks=() if case in LAID_OUT[name] else pytest.mark.tier("all")) for case in CASES]


def axes(drawn: Figure, name: str) -> Axes:
    return next(one for one in drawn.axes if one.get_label() == name)


def held(drawn: Figure, name: str) -> np.ndarray:
    """The numbers that an image holds."""
    (image,) = axes(drawn, name).images
    return np.asarray(image.get_array())


def said(drawn: Figure) -> str:
    return " ".join(text.get_text() for text in texts(drawn))


# --- the numbers -----------------------------------------------------------------------------------------------------


def pieces(drawn: Axes, columns: int, rows: int, p: int, first: int = 1) -> np.ndarray:
    """What is drawn around each whole number (column, row): (rows, columns, p, p, 3), looked up by place."""
    (image,) = drawn.images
    array, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()
    half = first - left
    inside = ((np.arange(p) + 0.5) / p * 2 - 1) * half  # of a patch's pixels, from its middle
    x, y = (np.arange(count)[:, None] + start + inside for count, start in ((columns, first), (rows, 1)))
    j = ((x - left) / (right - left) * array.shape[1]).astype(int)
    i = ((y - top) / (bottom - top) * array.shape[0]).astype(int)
    found = array[i[:, None, :, None], j[None, :, None, :]]  # (rows, columns, p, p, 4)
    assert (found[..., 3] == 255).all()
    return found[..., :3]


@pytest.mark.parametrize("case", ["plain", "distilled", "panorama", "one patch"])
def test_the_patches_are_those_of_the_models_input(case: str) -> None:
    (gh, gw), p, expected = view(case).trace.grid, view(case).model.config.patch_size, np.asarray(view(case).seen())
    drawn = figure(case, "patches")
    np.testing.assert_array_equal(held(drawn, "seen"), expected)
    cut = expected.reshape(gh, p, gw, p, 3).transpose(0, 2, 1, 3, 4)
    np.testing.assert_array_equal(pieces(axes(drawn, "grid"), gw, gh, p), cut)
    np.testing.assert_array_equal(pieces(axes(drawn, "row"), gw, 1, p, gh // 2 * gw + 1)[0], cut[gh // 2])
    assert f"patches {gh // 2 * gw + 1} to {(gh // 2 + 1) * gw} of the sequence" in said(drawn)
    for name, count in (("grid", (gw, gh)), ("row", (gw, 1)), ("seen", (0, 0))) if case == "plain" else ():
        for axis, last in zip((axes(drawn, name).xaxis, axes(drawn, name).yaxis), count, strict=True):
            numbers = [int(label.get_text()) for label in visible(axis)]
            assert numbers == sorted(set(numbers))
            assert [tick.get_loc() for tick in axis._update_ticks()] == numbers
            assert name != "grid" or (numbers[0] >= 1 and numbers[-1] <= last)


@torch.no_grad()
def answers(case: str) -> np.ndarray:
    """(gh * gw, D): each patch times each filter, and the bias."""
    return view(case).model.patch_embed(view(case).images)[0].numpy()


@pytest.mark.parametrize("case", ["plain", "distilled"])
def test_feature_maps_are_what_the_filters_answer(case: str) -> None:
    table, (gh, gw) = answers(case), view(case).trace.grid
    drawn = features(view(case), filters=7)
    order = np.argsort(-table.std(0))
    kept = [one.get_label().split() for one in drawn.axes]
    assert [int(name[1]) for name in kept if name[0] == "response"] == order[:7].tolist()
    weights = view(case).model.patch_embed.proj.weight.detach().numpy()
    for index in order[:7]:
        np.testing.assert_allclose(held(drawn, f"response {index}").ravel(), table[:, index], atol=1e-4)
        assert held(drawn, f"response {index}").shape == (gh, gw)
        picture = held(drawn, f"weights {index}")
        np.testing.assert_allclose(
            (picture - 0.5).transpose(2, 0, 1) * 2 * np.abs(weights[index]).max(), weights[index], atol=1e-6
        )
        assert f"filter {index + 1}" in said(drawn)
    beyond = np.abs(table[:, order[:7]]).max() > axes(drawn, f"response {order[0]}").images[0].get_clim()[1]
    assert (axes(drawn, "<colorbar>")._colorbar.extend != "neither") == beyond  # an arrow, whichever map goes beyond
    scales = {axes(drawn, f"response {index}").images[0].get_clim() for index in order[:7]}
    assert len(scales) == 1
    (low, high), *_ = scales
    assert low == -high
    with pytest.raises(DrawError, match="at least 1"):
        features(view(case), filters=0)


@pytest.mark.parametrize("case", ["plain", "registers", "rotary", "distilled"])
def test_the_embedding_is_the_table_that_enters_the_first_block(case: str) -> None:
    one, drawn, entered = view(case), figure(case, "embedding"), []
    handle = one.model.blocks[0].register_forward_pre_hook(lambda _module, inputs: entered.append(inputs[0]))
    with torch.no_grad():
        one.model(one.images)
    handle.remove()
    tokens, prefix = entered[0][0].numpy(), len(one.model.config.prefix)
    np.testing.assert_allclose(held(drawn, "flat"), answers(case), atol=1e-4)
    np.testing.assert_allclose(held(drawn, "prefix"), tokens[:prefix], atol=1e-6)
    np.testing.assert_allclose(held(drawn, "tokens"), tokens[prefix:], atol=1e-6)


def alike(table: np.ndarray) -> np.ndarray:
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return unit @ unit.T


def maps(drawn: Figure, number: int, grid: tuple[int, int], step: int) -> np.ndarray:
    """The small maps, cut out of the picture that holds them: (rows, columns, gh, gw)."""
    (gh, gw), array = grid, np.ma.filled(axes(drawn, f"alike {number}").images[0].get_array(), np.nan)
    rows, columns = len(range(0, gh, step)), len(range(0, gw, step))
    assert array.shape == (rows * (gh + 1) - 1, columns * (gw + 1) - 1)
    return np.array([[array[r * (gh + 1) :, c * (gw + 1) :][:gh, :gw] for c in range(columns)] for r in range(rows)])


@pytest.mark.parametrize(
    ("case", "step"), [("plain", 2), ("registers", 2), ("panorama", 5), ("sincos", 2), ("rotary", 2)]
)
def test_positions_and_their_likeness(case: str, step: int) -> None:
    model, (gh, gw), drawn = view(case).model, view(case).trace.grid, figure(case, "positions")
    y, x = (axis.ravel().astype(float) for axis in np.mgrid[:gh, :gw])
    if case == "rotary":
        pitch = 2 * np.pi / 100.0 ** (np.arange(4) * 4 / 16)
        angle = np.concatenate([np.outer((v + 0.5) / n * 2 - 1, pitch) for v, n in ((y, gh), (x, gw))], axis=1)
        table = np.cos(angle)
        expected = np.cos(angle[:, None] - angle[None]).mean(2)
        assert "Rotary: no position embedding" in said(drawn)
    elif case == "sincos":
        table = sincos_positions((gh, gw), 20)[0].numpy()
        expected = alike(table)
        assert not any(one.get_label() == "table 1" for one in drawn.axes)  # nothing to compare with
    else:
        table = model.positions((gh, gw))[0].detach().double().numpy()
        expected = alike(table)
    np.testing.assert_allclose(held(drawn, "table 0"), table, atol=1e-5)
    chosen = expected.reshape(gh, gw, gh, gw)[::step, ::step]
    np.testing.assert_allclose(maps(drawn, 0, (gh, gw), step), chosen, atol=1e-5)


def test_learned_tokens_and_positions_in_reading_order_are_the_models() -> None:
    model = view("registers").model
    expected = torch.cat([model.cls_token[0], model.reg_token[0]]).detach().numpy()
    np.testing.assert_array_equal(held(figure("registers", "positions"), "prefix"), expected)
    latent = view("siglip").model.attn_pool.latent[0].detach().numpy()
    np.testing.assert_array_equal(held(figure("siglip", "positions"), "prefix"), latent)
    assert "no positions" in said(figure("none", "positions"))
    model = tiny.model(positions="sincos1d", width=20, grid=(3, 4)).eval()
    drawn = draw(vitviz.Explorer(model).open(photograph(40, 30)), ["positions"])["positions"]
    np.testing.assert_allclose(held(drawn, "table 0"), model.positions((3, 4))[0].numpy(), atol=1e-6)
    assert held(drawn, "table 1").shape == (12, 20)  # beside those of row and column
    assert "reading order" in said(drawn)


@pytest.mark.parametrize("case", CASES)
def test_the_shapes_are_those_that_come_out_of_the_modules(case: str) -> None:
    one, came = view(case), {}
    for name, module in one.model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: came.update({name: tuple(out.shape[1:])}))
    with torch.no_grad():
        answer = one.model(one.images)
    way, config = route(one.model.config, one.size), one.model.config
    heads, count, d = way.inputs[0].shape
    assert [stage.shape for stage in way.inputs] == [(heads, count, d)] * 3
    assert came["blocks.0.attn.qkv"] == (count, 3 * heads * d)
    assert way.weights.shape == tuple(one.trace.attentions[0].shape[1:])
    assert way.mixed.shape == (heads, count, d)
    assert way.output.shape == came["blocks.0.attn"] == way.norm.shape == came["blocks.0.norm1"]
    shaped = [way.mlp[0].shape, way.mlp[1].shape, way.mlp[3].shape]
    assert shaped == [came[f"blocks.0.{name}"] for name in ("norm2", "mlp.fc1", "mlp.fc2")]
    assert way.mlp[2].shape == (count, one.model.blocks[0].mlp.fc2.in_features)
    assert way.image == tuple(one.images.shape[1:])
    assert way.embedding[0].shape == came["patch_embed.proj"]
    assert way.embedding[1].shape == came["patch_embed"]
    assert way.embedding[-1].shape == came["blocks.0"]
    assert came["norm"] in [stage.shape for stage in way.ending]
    assert way.ending[-1].shape == tuple(answer.shape[1:])
    pooled = next(stage.shape for stage in way.ending if stage.kind == "head")
    assert pooled == (one.model.head.in_features if config.classes else answer.shape[1],)


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_is_counted_once(case: str) -> None:
    model = view(case).model
    found = counts(model)
    named = {one.name: one.parameters for one in found}
    assert len(named) == len(found)
    assert sum(named.values()) == sum(p.numel() for p in model.parameters())
    inside = sum(p.numel() for block in model.blocks for p in block.attn.qkv.parameters())
    assert named["Attention: queries, keys, values"] == inside
    assert named["Patch embedding"] == sum(p.numel() for p in model.patch_embed.parameters())
    assert named.get("Classifier", 0) == (sum(p.numel() for p in model.head.parameters()) if model.head else 0)
    assert "Others" not in named


@pytest.mark.parametrize("case", cases_of("parameters"))
def test_every_count_of_parameters_has_a_bar(case: str) -> None:
    drawn, found = figure(case, "parameters"), counts(view(case).model)
    words, numbers = said(drawn), axes(drawn, "bars").get_xaxis()
    assert [bar.get_width() for bar in axes(drawn, "bars").patches] == [one.parameters for one in found]
    assert f"{sum(one.parameters for one in found):,} parameters" in words
    assert all(f"{one.parameters:,}  (" in words for one in found)
    unit = 1_000_000 if "in millions" in numbers.label.get_text() else 1_000 if "thousand" in words else 1
    shown = [float(label.get_text().replace(",", "")) * unit for label in numbers.get_ticklabels()]
    np.testing.assert_allclose(shown, numbers.get_ticklocs(), rtol=1e-9)
    words_are_inside_and_apart(drawn)


def test_cells_of_a_confusion_matrix_have_the_color_of_their_row_s_share() -> None:
    counts = np.array([[1, 0, 3], [0, 5, 0], [0, 0, 0]])  # three quarters of the first class are taken for the last
    drawn = confusion(counts, ["first", "second", "a label that is far too long to be written in full " * 2])
    np.testing.assert_allclose(held(drawn, "matrix"), [[0.25, 0, 0.75], [0, 1, 0], [0, 0, 0]])
    (image,) = axes(drawn, "matrix").images
    np.testing.assert_allclose(image.to_rgba(0.25), mpl.colormaps["Blues"](0.25**GAMMA), atol=2 / 255)
    assert image.get_clim() == (0, 1)
    words = said(drawn).split()
    assert [words.count(count) for count in ("1", "3", "5", "100")] == [2, 1, 1, 1]  # "1" also on the color bar
    assert "25.0" in words
    assert "\N{EN DASH}" in words  # of a class without images
    assert "9 images, 66.67 % right" in said(drawn)


@pytest.mark.parametrize(
    ("classes", "dark"),
    [
        (1, True),
        (2, False),
        (10, True),
        *(pytest.param(*case, marks=pytest.mark.tier("all")) for case in [(30, False), (101, True), (400, False)]),
    ],
)
def test_any_number_of_classes_is_drawn(classes: int, dark: bool) -> None:
    labels = ["a label that is far too long to be written in full " * 2] * classes
    drawn = confusion(np.eye(classes, dtype=np.int64) * 123_456, labels, dark=dark)
    assert max(drawn.get_size_inches()) < 12
    words_are_inside_and_apart(drawn)


@pytest.mark.parametrize("classes", [3, 10, 50, 400])
def test_a_confusion_matrix_fits_the_width_of_the_layout(classes: int) -> None:
    with layout("column"):
        drawn = confusion(np.eye(classes, dtype=np.int64), [f"class {number}" for number in range(classes)], fit=True)
    assert drawn.get_figwidth() == pytest.approx(3.25)
    words_are_inside_and_apart(drawn)


def test_what_is_no_confusion_matrix_is_refused() -> None:
    refused = [([[1, 2]], ["a"]), ([[1.0]], ["a"]), ([[1]], ["a", "b"]), ([[-1]], ["a"]), (np.zeros((0, 0), int), [])]
    for numbers, labels in refused:
        with pytest.raises(DrawError, match="Expected"):
            confusion(numbers, labels)


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "case"), [pytest.param(name, *one.values, marks=one.marks) for name in NAMES[:5] for one in cases_of(name)]
)
def test_words_are_inside_the_page_and_apart(name: str, case: str) -> None:
    words_are_inside_and_apart(figure(case, name))


@pytest.mark.parametrize("case", cases_of("shapes"))
def test_the_drawing_names_all_shapes_with_words_in_their_boxes_and_on_no_arrow(case: str) -> None:
    drawn, one = figure(case, "shapes"), view(case)
    way, words = route(one.model.config, one.size), said(drawn)
    for stage in (*way.embedding, way.norm, *way.inputs, way.weights, way.mixed, way.output, *way.mlp, *way.ending):
        assert format_shape(stage.shape) in words
    assert f"Block × {one.model.config.depth}" in words
    if one.model.config.classes:
        assert all(percent(p) in words for _, p in one.predictions(3))
    words_are_inside_and_apart(drawn)
    sheet = axes(drawn, "drawing")
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.6)) for text in texts(drawn)]
    arrows = [patch for patch in sheet.patches if isinstance(patch, FancyArrowPatch)]
    frames = [patch.get_window_extent() for patch in sheet.patches if not isinstance(patch, FancyArrowPatch)]
    lines = [sheet.transData.transform_path(arrow._path_original) for arrow in arrows]
    assert len(arrows) > 10
    for words, box in boxes:
        assert not any(line.intersects_bbox(box, filled=False) for line in lines), words
        for frame in frames:
            outside = not box.overlaps(frame)
            within = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            assert outside or within, words


@pytest.mark.parametrize("name", NAMES)
def test_words_are_readable_in_both_themes(name: str) -> None:
    case = LAID_OUT[name][0]
    for dark in (False, True):
        drawn = draw(view(case), [name], dark=True, filters=5)[name] if dark else figure(case, name)
        ground = drawn.get_facecolor()
        for text in texts(drawn):
            assert text.get_fontsize() >= 7.0
            assert Path(findfont(text.get_fontproperties())).name.startswith("DejaVuSans")
            assert contrast(text.get_color(), ground) >= 4.5
        assert (luminance(ground) < 0.05) == dark
    for panel in drawn.axes:
        for axis in (panel.xaxis, panel.yaxis):
            ticks = [label.get_text() for label in visible(axis)]
            counts_something = any(tick.lstrip("\N{MINUS SIGN}")[0].isdigit() for tick in ticks)
            assert bool(axis.get_label_text()) or not counts_something, panel.get_label()  # names explain themselves


def test_colors_stand_out_from_the_ground() -> None:
    for theme, accents, zero in ((Theme.of(dark), ACCENTS[dark], DIVERGING[dark](0.5)) for dark in (False, True)):
        assert len(set(accents.values())) == len(accents)
        for color in (*accents.values(), theme.right, theme.wrong, theme.muted, theme.text):
            assert contrast(color, theme.ground) >= 3.0
        assert contrast(zero, theme.ground) < 1.2  # zero is the ground


def luminance(colour: Any) -> float:
    """Relative luminance (WCAG 2.1)."""
    levels = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: Any, b: Any) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# --- maps and answers


def test_one_map_has_its_own_scale_and_the_caption_explains_the_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    one = view("large")
    values = np.linspace(0, 0.01, one.trace.grid[0] * one.trace.grid[1], dtype=np.float32).reshape(one.trace.grid)
    for strongest in (0.01, 0.3):
        values[-1, -1] = strongest
        heatmap = replace(one.attention(), values=values)
        monkeypatch.setattr(FigureOptions, "heatmap", lambda asked, view, heatmap=heatmap: heatmap)
        drawn = draw(one, ["overlay"], photo=NAME)["overlay"]
        caption = " ".join(drawn.texts[1].get_text().split())
        assert ("A dot marks patches" in caption) == (strongest > 0.01)
        assert f"to {percent(heatmap.scale().vmax)} of attention" in caption


def test_small_probabilities_fill_their_axes_and_legends_cover_no_line() -> None:
    one = vitviz.Explorer(tiny.model(3, classes=200)).open(photograph(150, 110))
    for name in ("curves",):
        for panel in draw(one, [name], photo=NAME)[name].axes:
            most = max(float(np.max(line.get_ydata())) for line in panel.lines)
            assert 0.3 < most / panel.get_ylim()[1] < 0.75
    assert draw(view("plain"), ["lens"], photo=NAME)["lens"].axes[0].get_ylim()[1] <= 100


# --- figures 6 and 7 of the paper


def test_photographs_stand_beside_their_rollout() -> None:
    views = [view("plain")] * 4
    drawn = rollout_sheet(views, start=1)
    shown = [one for one in drawn.axes if one.images]
    assert len(shown) == 8
    heatmap = views[0].rollout(start=1)
    photo = fit_photo(views[0].photo, 600)
    marks: dict[str, Any] = {"scale": heatmap.scale(), "alpha": 0.9, "spotlight": True, "gray": True}
    expected = overlay(photo, heatmap.values, rescale(heatmap.geometry, photo.size), **marks)
    for left, right in zip(shown[::2], shown[1::2], strict=True):
        np.testing.assert_array_equal(np.asarray(left.images[0].get_array()), np.asarray(photo))
        np.testing.assert_array_equal(np.asarray(right.images[0].get_array()), np.asarray(expected))
    words_are_inside_and_apart(drawn)
    assert heatmap.title in " ".join(drawn.texts[1].get_text().split())
    with pytest.raises(DrawError, match="at least one view, got none"):
        rollout_sheet([])


@pytest.mark.parametrize("case", ["plain", "rotary", "none"])
def test_the_inside_of_a_model(case: str) -> None:
    one = view(case)
    statistics = one.heads(["distance"])
    drawn = inside(one.model, statistics, photo=NAME, dark=case == "rotary")
    dots = np.asarray(axes(drawn, "distance").collections[0].get_offsets())  # (L H, 2): layer, pixels
    distances = one.model.config.patch_size * statistics.values["distance"]  # (L, H)
    np.testing.assert_allclose(dots[:, 1], distances.ravel(), rtol=1e-6)
    np.testing.assert_array_equal(dots[:, 0], np.repeat(np.arange(tiny.DEPTH) + 1, distances.shape[1]))
    np.testing.assert_allclose(axes(drawn, "distance").lines[0].get_ydata(), distances.mean(1))
    filters, p = held(drawn, "filters"), one.model.config.patch_size
    np.testing.assert_allclose(filters[:p, :p, :3], patch_filters(one.model).pictures[0], atol=1e-6)
    assert (len(axes(drawn, "positions").images) if case != "none" else 0) == (case != "none")
    (gh, gw) = one.model.config.grid
    if case == "plain":
        corner = held(drawn, "positions")[:gh, :gw]  # of the first position
        np.testing.assert_allclose(corner, position_similarity(one.model)[0, 0], atol=1e-5)
    caption = " ".join(drawn.texts[1].get_text().split())
    assert "the line is the mean of the heads" in caption
    if case == "plain":
        assert f"for {every(-(-max(gh, gw) // SHOWN))} row and column" in caption
    words_are_inside_and_apart(drawn)
    with pytest.raises(DrawError, match="attention distance"):
        inside(one.model, one.heads(["entropy"]))
