"""Test the figures of a photograph's path through a model: their numbers, and that their texts can be read."""

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
from vitviz.draw.figures.places import SHOWN, every
from vitviz.draw.figures.tokens import features
from vitviz.draw.sheet import fit_photo
from vitviz.formatting import percent
from vitviz.model.positions import sincos_positions
from vitviz.paper.figures import inside, rollout_sheet

# Properties of models that change figures: prefix tokens, positions, pooling, shape of the grid.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 7, "layer_scale": 0.1, "pooling": "cls+mean"},
    "rotary": {"positions": "rotary", "head_width": 16, "registers": 2, "norms": {"qk": True}, "mlp": "swiglu"},
    "siglip": {"class_token": False, "pooling": "attention", "heads": 1, "activation": "gelu_tanh"},
    "sincos": {"positions": "sincos", "width": 20, "class_token": False, "pooling": "mean", "norms": tiny.POOLED},
    "none": {"positions": "none", "class_token": False, "pooling": "mean"},
    "distilled": {"distillation_token": True, "norms": {"pre": True}, "grid": (11, 3)},
    "panorama": {"grid": (2, 37), "classes": 0, "table": {"grid": (3, 5)}},
    "one patch": {"grid": (1, 1), "patch": 3, "width": 4, "depth": 1, "heads": 1},
    "large": {"grid": (37, 41), "patch": 2, "width": 96, "heads": 12, "mlp_width": 3072, "classes": 1000},
}
# `make test` draws a figure for the cases that change it most, `make test-all` for the other cases.
LAID_OUT = {
    "patches": ("panorama", "one patch", "large"),
    "features": ("registers", "large"),
    "flattened": ("panorama", "one patch", "large"),
    "embedding": ("plain", "large"),
    "positions": ("registers", "rotary", "siglip", "none", "panorama", "large"),
    "shapes": ("registers", "rotary", "siglip", "distilled", "panorama", "large"),
    "parameters": ("siglip", "panorama", "one patch", "large"),
}
NAME = "two words and $5 of $6.jpg"  # dollar signs must not start mathematics


@cache
def view(case: str) -> vitviz.View:
    return vitviz.Explorer(tiny.model(3, **CASES[case])).open(photograph(150, 110))


@cache
def figure(case: str, name: str) -> Figure:
    return draw(view(case), [name], photo=NAME, filters=24 if case == "registers" else 9)[name]


def cases_of(name: str) -> list[Any]:
    """Return all cases as parameters of a test that draws this figure."""
    return [pytest.param(case, marks=() if case in LAID_OUT[name] else pytest.mark.tier("all")) for case in CASES]


def axes(drawn: Figure, name: str) -> Axes:
    return next(panel for panel in drawn.axes if panel.get_label() == name)


def values(drawn: Figure, name: str) -> np.ndarray:
    """Return the values of an image."""
    (image,) = axes(drawn, name).images
    return np.asarray(image.get_array())


def all_text(drawn: Figure) -> str:
    return " ".join(text.get_text() for text in texts(drawn))


# --- the numbers -----------------------------------------------------------------------------------------------------


def pieces(drawn: Axes, columns: int, rows: int, p: int, first: int = 1) -> np.ndarray:
    """Return the pixels around each whole number (column, row): (rows, columns, p, p, 3)."""
    (image,) = drawn.images
    array, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()
    half = first - left
    offsets = ((np.arange(p) + 0.5) / p * 2 - 1) * half  # offsets of a patch's pixels from its center
    x, y = (np.arange(count)[:, None] + start + offsets for count, start in ((columns, first), (rows, 1)))
    j = ((x - left) / (right - left) * array.shape[1]).astype(int)
    i = ((y - top) / (bottom - top) * array.shape[0]).astype(int)
    colors = array[i[:, None, :, None], j[None, :, None, :]]  # (rows, columns, p, p, 4)
    assert (colors[..., 3] == 255).all()
    return colors[..., :3]


@pytest.mark.parametrize("case", ["plain", "distilled", "panorama", "one patch"])
def test_patches_are_cut_from_the_models_input(case: str) -> None:
    (gh, gw), p, expected = view(case).trace.grid, view(case).model.config.patch_size, np.asarray(view(case).seen())
    drawn = figure(case, "patches")
    np.testing.assert_array_equal(values(drawn, "seen"), expected)
    cut = expected.reshape(gh, p, gw, p, 3).transpose(0, 2, 1, 3, 4)
    np.testing.assert_array_equal(pieces(axes(drawn, "grid"), gw, gh, p), cut)
    np.testing.assert_array_equal(pieces(axes(drawn, "row"), gw, 1, p, gh // 2 * gw + 1)[0], cut[gh // 2])
    assert f"patches {gh // 2 * gw + 1} to {(gh // 2 + 1) * gw} of the sequence" in all_text(drawn)
    for name, count in (("grid", (gw, gh)), ("row", (gw, 1)), ("seen", (0, 0))) if case == "plain" else ():
        for axis, last in zip((axes(drawn, name).xaxis, axes(drawn, name).yaxis), count, strict=True):
            numbers = [int(label.get_text()) for label in visible(axis)]
            assert numbers == sorted(set(numbers))
            assert [tick.get_loc() for tick in axis._update_ticks()] == numbers
            assert name != "grid" or (numbers[0] >= 1 and numbers[-1] <= last)


@torch.no_grad()
def responses(case: str) -> np.ndarray:
    """Return the output of the patch embedding: (gh * gw, D)."""
    return view(case).model.patch_embed(view(case).images)[0].numpy()


@pytest.mark.parametrize("case", ["plain", "distilled"])
def test_feature_maps_are_the_filters_responses(case: str) -> None:
    table, (gh, gw) = responses(case), view(case).trace.grid
    drawn = features(view(case), filters=7)
    order = np.argsort(-table.std(0))
    labels = [panel.get_label().split() for panel in drawn.axes]
    assert [int(label[1]) for label in labels if label[0] == "response"] == order[:7].tolist()
    weights = view(case).model.patch_embed.proj.weight.detach().numpy()
    for index in order[:7]:
        np.testing.assert_allclose(values(drawn, f"response {index}").ravel(), table[:, index], atol=1e-4)
        assert values(drawn, f"response {index}").shape == (gh, gw)
        picture = values(drawn, f"weights {index}")
        np.testing.assert_allclose(
            (picture - 0.5).transpose(2, 0, 1) * 2 * np.abs(weights[index]).max(), weights[index], atol=1e-6
        )
        assert f"filter {index + 1}" in all_text(drawn)
    beyond = np.abs(table[:, order[:7]]).max() > axes(drawn, f"response {order[0]}").images[0].get_clim()[1]
    assert (axes(drawn, "<colorbar>")._colorbar.extend != "neither") == beyond  # an arrow if any map is clipped
    ((low, high),) = {axes(drawn, f"response {index}").images[0].get_clim() for index in order[:7]}
    assert low == -high
    with pytest.raises(DrawError, match="at least 1"):
        features(view(case), filters=0)


@pytest.mark.parametrize("case", ["plain", "registers", "rotary", "distilled"])
def test_embedding_shows_the_tokens_that_enter_block_1(case: str) -> None:
    model, drawn, inputs = view(case).model, figure(case, "embedding"), []
    handle = model.blocks[0].register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    with torch.no_grad():
        model(view(case).images)
    handle.remove()
    tokens, prefix = inputs[0][0].numpy(), len(model.config.prefix)
    np.testing.assert_allclose(values(drawn, "flat"), responses(case), atol=1e-4)
    np.testing.assert_allclose(values(drawn, "prefix"), tokens[:prefix], atol=1e-6)
    np.testing.assert_allclose(values(drawn, "tokens"), tokens[prefix:], atol=1e-6)


def cosines(table: np.ndarray) -> np.ndarray:
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return unit @ unit.T


def maps(drawn: Figure, number: int, grid: tuple[int, int], step: int) -> np.ndarray:
    """Cut the small maps out of their common image: (rows, columns, gh, gw)."""
    (gh, gw), array = grid, np.ma.filled(axes(drawn, f"alike {number}").images[0].get_array(), np.nan)
    rows, columns = len(range(0, gh, step)), len(range(0, gw, step))
    assert array.shape == (rows * (gh + 1) - 1, columns * (gw + 1) - 1)
    return np.array([[array[r * (gh + 1) :, c * (gw + 1) :][:gh, :gw] for c in range(columns)] for r in range(rows)])


@pytest.mark.parametrize(
    ("case", "step"), [("plain", 2), ("registers", 2), ("panorama", 5), ("sincos", 2), ("rotary", 2)]
)
def test_figure_shows_positions_and_their_similarity(case: str, step: int) -> None:
    model, (gh, gw), drawn = view(case).model, view(case).trace.grid, figure(case, "positions")
    y, x = (axis.ravel().astype(float) for axis in np.mgrid[:gh, :gw])
    if case == "rotary":
        pitch = 2 * np.pi / 100.0 ** (np.arange(4) * 4 / 16)
        angle = np.concatenate([np.outer((v + 0.5) / n * 2 - 1, pitch) for v, n in ((y, gh), (x, gw))], axis=1)
        table = np.cos(angle)
        expected = np.cos(angle[:, None] - angle[None]).mean(2)
        assert "Rotary: no position embedding" in all_text(drawn)
    elif case == "sincos":
        table = sincos_positions((gh, gw), 20)[0].numpy()
        expected = cosines(table)
        assert not any(panel.get_label() == "table 1" for panel in drawn.axes)  # nothing to compare with
    else:
        table = model.positions((gh, gw))[0].detach().double().numpy()
        expected = cosines(table)
    np.testing.assert_allclose(values(drawn, "table 0"), table, atol=1e-5)
    chosen = expected.reshape(gh, gw, gh, gw)[::step, ::step]
    np.testing.assert_allclose(maps(drawn, 0, (gh, gw), step), chosen, atol=1e-5)


def test_prefix_tokens_and_one_dimensional_positions_are_the_models() -> None:
    model = view("registers").model
    expected = torch.cat([model.cls_token[0], model.reg_token[0]]).detach().numpy()
    np.testing.assert_array_equal(values(figure("registers", "positions"), "prefix"), expected)
    latent = view("siglip").model.attn_pool.latent[0].detach().numpy()
    np.testing.assert_array_equal(values(figure("siglip", "positions"), "prefix"), latent)
    assert "no positions" in all_text(figure("none", "positions"))
    model = tiny.model(positions="sincos1d", width=20, grid=(3, 4)).eval()
    drawn = draw(vitviz.Explorer(model).open(photograph(40, 30)), ["positions"])["positions"]
    np.testing.assert_allclose(values(drawn, "table 0"), model.positions((3, 4))[0].numpy(), atol=1e-6)
    assert values(drawn, "table 1").shape == (12, 20)  # beside the row and column tables
    assert "reading order" in all_text(drawn)


@pytest.mark.parametrize("case", CASES)
def test_route_has_the_output_shapes_of_the_modules(case: str) -> None:
    model, shapes = view(case).model, {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: shapes.update({name: tuple(out.shape[1:])}))
    with torch.no_grad():
        logits = model(view(case).images)
    stages, config = route(model.config, view(case).size), model.config
    heads, count, d = stages.inputs[0].shape
    assert [stage.shape for stage in stages.inputs] == [(heads, count, d)] * 3
    assert shapes["blocks.0.attn.qkv"] == (count, 3 * heads * d)
    assert stages.weights.shape == tuple(view(case).trace.attentions[0].shape[1:])
    assert stages.mixed.shape == (heads, count, d)
    assert stages.output.shape == shapes["blocks.0.attn"] == stages.norm.shape == shapes["blocks.0.norm1"]
    assert [stages.mlp[index].shape for index in (0, 1, 3)] == [
        shapes[f"blocks.0.{name}"] for name in ("norm2", "mlp.fc1", "mlp.fc2")
    ]
    assert stages.mlp[2].shape == (count, model.blocks[0].mlp.fc2.in_features)
    assert stages.image == tuple(view(case).images.shape[1:])
    assert stages.embedding[0].shape == shapes["patch_embed.proj"]
    assert stages.embedding[1].shape == shapes["patch_embed"]
    assert stages.embedding[-1].shape == shapes["blocks.0"]
    assert shapes["norm"] in [stage.shape for stage in stages.ending]
    assert stages.ending[-1].shape == tuple(logits.shape[1:])
    pooled = next(stage.shape for stage in stages.ending if stage.kind == "head")
    assert pooled == (model.head.in_features if config.classes else logits.shape[1],)


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_is_counted_once(case: str) -> None:
    model = view(case).model
    rows = counts(model)
    named = {count.name: count.parameters for count in rows}
    assert len(named) == len(rows)
    assert sum(named.values()) == sum(p.numel() for p in model.parameters())
    inside = sum(p.numel() for block in model.blocks for p in block.attn.qkv.parameters())
    assert named["Attention: queries, keys, values"] == inside
    assert named["Patch embedding"] == sum(p.numel() for p in model.patch_embed.parameters())
    assert named.get("Classifier", 0) == (sum(p.numel() for p in model.head.parameters()) if model.head else 0)
    assert "Others" not in named


@pytest.mark.parametrize("case", cases_of("parameters"))
def test_each_module_has_a_bar_of_its_parameters(case: str) -> None:
    drawn, numbers = figure(case, "parameters"), [count.parameters for count in counts(view(case).model)]
    text, axis = all_text(drawn), axes(drawn, "bars").get_xaxis()
    assert [bar.get_width() for bar in axes(drawn, "bars").patches] == numbers
    assert f"{sum(numbers):,} parameters" in text
    assert all(f"{number:,}  (" in text for number in numbers)
    unit = 1_000_000 if "in millions" in axis.label.get_text() else 1_000 if "thousand" in text else 1
    labels = [float(label.get_text().replace(",", "")) * unit for label in axis.get_ticklabels()]
    np.testing.assert_allclose(labels, axis.get_ticklocs(), rtol=1e-9)
    words_are_inside_and_apart(drawn)


def test_confusion_cells_are_colored_by_their_share_of_the_row() -> None:
    counts = np.array([[1, 0, 3], [0, 5, 0], [0, 0, 0]])  # 3/4 of the first class are predicted as the last
    drawn = confusion(counts, ["first", "second", "a label that is far too long to be written in full " * 2])
    np.testing.assert_allclose(values(drawn, "matrix"), [[0.25, 0, 0.75], [0, 1, 0], [0, 0, 0]])
    (image,) = axes(drawn, "matrix").images
    np.testing.assert_allclose(image.to_rgba(0.25), mpl.colormaps["Blues"](0.25**GAMMA), atol=2 / 255)
    assert image.get_clim() == (0, 1)
    words = all_text(drawn).split()
    assert [words.count(count) for count in ("1", "3", "5", "100")] == [2, 1, 1, 1]  # "1" also on the color bar
    assert {"25.0", "\N{EN DASH}"} <= {*words}  # a dash for a class without images
    assert "9 images, 66.67 % right" in all_text(drawn)


@pytest.mark.parametrize(
    ("classes", "dark"),
    [
        (1, True),
        (2, False),
        (10, True),
        *(pytest.param(*case, marks=pytest.mark.tier("all")) for case in [(30, False), (101, True), (400, False)]),
    ],
)
def test_confusion_matrix_of_any_number_of_classes_is_drawn(classes: int, dark: bool) -> None:
    labels = ["a label that is far too long to be written in full " * 2] * classes
    drawn = confusion(np.eye(classes, dtype=np.int64) * 123_456, labels, dark=dark)
    assert max(drawn.get_size_inches()) < 12
    words_are_inside_and_apart(drawn)


@pytest.mark.parametrize("classes", [3, 10, 50, 400])
def test_confusion_matrix_fits_the_layouts_width(classes: int) -> None:
    with layout("column"):
        drawn = confusion(np.eye(classes, dtype=np.int64), [f"class {number}" for number in range(classes)], fit=True)
    assert drawn.get_figwidth() == pytest.approx(3.25)
    words_are_inside_and_apart(drawn)


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, *case.values, marks=case.marks) for name in NAMES[:5] for case in cases_of(name)],
)
def test_texts_are_on_the_page_and_do_not_overlap(name: str, case: str) -> None:
    words_are_inside_and_apart(figure(case, name))


@pytest.mark.parametrize("case", cases_of("shapes"))
def test_shapes_figure_names_all_shapes_and_no_text_touches_an_arrow(case: str) -> None:
    drawn, config = figure(case, "shapes"), view(case).model.config
    way, text = route(config, view(case).size), all_text(drawn)
    for stage in (*way.embedding, way.norm, *way.inputs, way.weights, way.mixed, way.output, *way.mlp, *way.ending):
        assert format_shape(stage.shape) in text
    assert f"Block × {config.depth}" in text
    if config.classes:
        assert all(percent(p) in text for _, p in view(case).predictions(3))
    words_are_inside_and_apart(drawn)
    panel = axes(drawn, "drawing")
    arrows = [patch for patch in panel.patches if isinstance(patch, FancyArrowPatch)]
    frames = [patch.get_window_extent() for patch in panel.patches if not isinstance(patch, FancyArrowPatch)]
    lines = [panel.transData.transform_path(arrow._path_original) for arrow in arrows]
    assert len(arrows) > 10
    for label in texts(drawn):
        box = label.get_window_extent().padded(-0.6)
        assert not any(line.intersects_bbox(box, filled=False) for line in lines), label
        for frame in frames:
            within = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            assert within or not box.overlaps(frame), label


@pytest.mark.tier("all")
@pytest.mark.parametrize("name", NAMES)
def test_texts_are_readable_in_both_themes(name: str) -> None:
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
            has_numbers = any(tick.lstrip("\N{MINUS SIGN}")[0].isdigit() for tick in ticks)
            assert axis.get_label_text() or not has_numbers, panel.get_label()  # names need no axis label


def test_colors_contrast_with_the_background() -> None:
    for theme, accents, zero in ((Theme.of(dark), ACCENTS[dark], DIVERGING[dark](0.5)) for dark in (False, True)):
        assert len(set(accents.values())) == len(accents)
        for color in (*accents.values(), theme.right, theme.wrong, theme.muted, theme.text):
            assert contrast(color, theme.ground) >= 3.0
        assert contrast(zero, theme.ground) < 1.2  # zero has the color of the background


def luminance(colour: Any) -> float:
    """Return the relative luminance (WCAG 2.1)."""
    levels = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: Any, b: Any) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# --- maps and charts


def test_one_map_has_its_own_scale_and_the_caption_explains_the_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    large = view("large")
    scores = np.linspace(0, 0.01, large.trace.grid[0] * large.trace.grid[1]).reshape(large.trace.grid)
    for strongest in (0.01, 0.3):
        scores[-1, -1] = strongest
        heatmap = replace(large.attention(), values=scores)
        monkeypatch.setattr(FigureOptions, "heatmap", lambda *_, heatmap=heatmap: heatmap)
        drawn = draw(large, ["overlay"], photo=NAME)["overlay"]
        caption = " ".join(drawn.texts[1].get_text().split())
        assert ("A dot marks patches" in caption) == (strongest > 0.01)
        assert f"to {percent(heatmap.scale().vmax)} of attention" in caption


def test_matrix_colors_end_at_the_largest_attention() -> None:
    image = axes(draw(view("plain"), ["matrix"])["matrix"], "matrix").images[0]
    assert image.get_clim()[1] == pytest.approx(float(np.max(image.get_array())))


def test_curves_of_small_probabilities_fill_their_axes() -> None:
    many_classes = vitviz.Explorer(tiny.model(3, classes=200)).open(photograph(150, 110))
    for panel in draw(many_classes, ["curves"], photo=NAME)["curves"].axes:
        most = max(float(np.max(line.get_ydata())) for line in panel.lines)
        assert 0.3 < most / panel.get_ylim()[1] < 0.75
    assert draw(view("plain"), ["lens"], photo=NAME)["lens"].axes[0].get_ylim()[1] <= 100


# --- figures 6 and 7 of the paper


def test_rollout_sheet_shows_photographs_beside_their_rollout() -> None:
    views = [view("plain")] * 4
    drawn = rollout_sheet(views, start=1)
    panels = [panel for panel in drawn.axes if panel.images]
    assert len(panels) == 8
    heatmap = views[0].rollout(start=1)
    photo = fit_photo(views[0].photo, 600)
    expected = heatmap.over(photo).overlay(0.9, spotlight=True, gray=True)
    for left, right in zip(panels[::2], panels[1::2], strict=True):
        np.testing.assert_array_equal(np.asarray(left.images[0].get_array()), np.asarray(photo))
        np.testing.assert_array_equal(np.asarray(right.images[0].get_array()), np.asarray(expected))
    words_are_inside_and_apart(drawn)
    assert heatmap.title in " ".join(drawn.texts[1].get_text().split())


@pytest.mark.parametrize("case", ["plain", "rotary", "none"])
def test_inside_shows_filters_positions_and_attention_distance(case: str) -> None:
    model, statistics = view(case).model, view(case).heads(["distance"])
    drawn = inside(model, statistics, photo=NAME, dark=case == "rotary")
    dots = np.asarray(axes(drawn, "distance").collections[0].get_offsets())  # (L H, 2): layer, pixels
    distances = model.config.patch_size * statistics.values["distance"]  # (L, H)
    np.testing.assert_allclose(dots[:, 1], distances.ravel(), rtol=1e-6)
    np.testing.assert_array_equal(dots[:, 0], np.repeat(np.arange(tiny.DEPTH) + 1, distances.shape[1]))
    np.testing.assert_allclose(axes(drawn, "distance").lines[0].get_ydata(), distances.mean(1))
    filters, p = values(drawn, "filters"), model.config.patch_size
    np.testing.assert_allclose(filters[:p, :p, :3], patch_filters(model).pictures[0], atol=1e-6)
    assert case == "none" or len(axes(drawn, "positions").images) == 1
    caption = " ".join(drawn.texts[1].get_text().split())
    assert "the line is the mean of the heads" in caption
    if case == "plain":
        (gh, gw) = model.config.grid
        corner = values(drawn, "positions")[:gh, :gw]  # of the first position
        np.testing.assert_allclose(corner, position_similarity(model)[0, 0], atol=1e-5)
        assert f"for {every(-(-max(gh, gw) // SHOWN))} row and column" in caption
    words_are_inside_and_apart(drawn)
