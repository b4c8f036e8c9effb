"""Define the page of every figure: font, colors, a title above and a caption below.

Figures do not use pyplot. `settings` applies matplotlib's defaults and `STYLE`, so figures do not depend on user
settings; constrained layout places panels, ticks and color bars.
"""

import io
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from vitviz.draw import colors, text
from vitviz.draw.figures.layouts import current
from vitviz.formatting import counted, number
from vitviz.model.vit import ViT
from vitviz.view import View

Floats: TypeAlias = NDArray[np.float32]

# At 200 and 300 dpi, hinting keeps letters as wide as in print; at 150 dpi, they are up to 7 % wider.
SCREEN_DPI, PRINT_DPI = 200, 300
TITLE, PANEL, SMALL = 10.0, 8.0, 7.0  # points: title of a figure, title of a panel, other text

Params = ParamSpec("Params")

STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],  # the second font is for SVG viewers that lack the first
    "font.size": SMALL,
    "text.parse_math": False,
    "figure.dpi": SCREEN_DPI,
    "savefig.dpi": PRINT_DPI,
    "axes.facecolor": "none",
    "axes.linewidth": 0.5,
    "axes.labelpad": 2.5,
    "axes.titlesize": PANEL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 3,
    "image.aspect": "auto",
    **{f"{axis}tick.major.{name}": value for axis in "xy" for name, value in (("size", 2), ("width", 0.5), ("pad", 2))},
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "vitviz",  # reproducible files
    "pdf.fonttype": 42,  # TrueType, text as text
}
# Colors of Okabe and Ito (2008), which color-blind people can distinguish: on a light (False) and a dark ground (True).
ACCENTS = {
    False: {"embedding": "#0072B2", "attention": "#D55E00", "mlp": "#009E73", "norm": "#7F7F7F", "head": "#CC79A7"},
    True: {"embedding": "#56B4E9", "attention": "#E69F00", "mlp": "#2BC39A", "norm": "#A6A6A6", "head": "#E39AC4"},
}
# On a dark background, zero is dark, because RdBu's white middle would be the brightest color on the page.
_GLOW = LinearSegmentedColormap.from_list("glow", ["#9bd1ff", "#3b83c4", "#191c22", "#c8622f", "#ffc59b"])
DIVERGING = {False: colormaps[colors.DIVERGING], True: _GLOW}

_lock = threading.RLock()


@contextmanager
def settings(dark: bool = False) -> Iterator[None]:
    """Apply matplotlib's defaults and the style of figures, for one thread at a time."""
    theme = colors.Theme.of(dark)
    shades: dict[Any, Any] = {
        "figure.facecolor": theme.ground,
        "axes.labelcolor": theme.muted,
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), theme.line),
        **dict.fromkeys(("text.color", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), theme.text),
    }
    with _lock, mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE | shades)
        yield


def styled(draw: Callable[Params, Figure]) -> Callable[Params, Figure]:
    """Decorate a drawing function: apply `settings` according to its argument `dark`, and lay out the figure."""

    @wraps(draw)
    def wrapper(*args: Params.args, **kwargs: Params.kwargs) -> Figure:
        with settings(bool(kwargs.get("dark"))):
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # does the layout and creates the ticks while the settings apply
            figure.set_layout_engine("none")
            for axes in figure.axes:  # the solver's last digits differ from run to run
                axes.set_position(tuple(np.round(axes.get_position(original=True).bounds, 6)))
        return figure

    return wrapper


def measure(words: str, size: float = SMALL, bold: bool = False) -> float:
    """Return the width of one line in inches."""
    return text.font(100, bold).getlength(words) * size / 7200


def wrap(words: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Return lines of at most `width` inches."""
    return [*text.wrap(words, width, lambda line: measure(line, size, bold))]


def shorten(words: str, size: float, width: float) -> str:
    """Return one line, shortened with an ellipsis if it exceeds `width` inches."""
    return text.shorten(words, width, lambda line: measure(line, size))


def line_of(size: float) -> float:
    """Return the distance between lines of text, in inches."""
    return 1.4 * size / 72


class Page(Figure):
    """Figure that notebooks display at its print width."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        with settings():
            self.savefig(buffer, format="png", dpi=SCREEN_DPI)
        return buffer.getvalue(), {"width": round(96 * self.get_figwidth())}


def inner() -> float:
    """Return the width between the margins of the page, in inches."""
    return current().inner


def fitting(width: float, most: int) -> int:
    """Return the number of panels of `width` inches per row: 1 to `most`."""
    return max(1, min(most, int(inner() / width)))


def new_page(title: str, caption: str, height: float, *, width: float | None = None, pad: float = 0.05) -> Page:
    """Return a figure with a title above and a caption below, and `height` inches for axes in between.

    `width` is the page width, by default the layout's, and `pad` the padding of axes, both in inches. The label of the
    figure contains title and caption, even in a bare layout.
    """
    margin, bare = current().margin, current().bare
    width = current().width if width is None else width
    across = width - 2 * margin
    titles, lines = wrap(title, TITLE, across, bold=True), wrap(caption, SMALL, across)
    top, bottom = margin + len(titles) * line_of(TITLE) + 0.1, margin + len(lines) * line_of(SMALL) + 0.12
    if bare:
        top = bottom = margin
    total = top + height + bottom
    rect = (margin / width, bottom / total, across / width, height / total)
    figure = Page(figsize=(width, total), layout=ConstrainedLayoutEngine(rect=rect, w_pad=pad, h_pad=pad))
    figure.set_label(f"{title}. {caption}")
    FigureCanvasAgg(figure)
    if not bare:
        left, muted = margin / width, mpl.rcParams["axes.labelcolor"]
        figure.text(left, 1 - margin / total, "\n".join(titles), fontsize=TITLE, fontweight="bold", va="top")
        figure.text(left, margin / total, "\n".join(lines), color=muted, va="bottom")
    return figure


def panels(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Add axes in rows of `columns`, the last row perhaps shorter, and return them in reading order."""
    axes = [*figure.subplots(-(-count // columns), columns, squeeze=False).flat]
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def entitle(axes: Axes, words: str, width: float, *, plain: bool = False) -> None:
    """Write the title of axes, in lines of at most `width` inches; a plain title is small and not bold."""
    size = SMALL if plain else PANEL
    lines = wrap(words, size, width, bold=not plain)
    axes.set_title("\n".join(lines), fontsize=size, fontweight="normal" if plain else "bold")


def key(figure: Figure, axes: Axes) -> None:
    """Draw the legend of the axes' lines below all axes."""
    handles, names = axes.get_legend_handles_labels()
    names = [shorten(name, SMALL, inner() - 0.4) for name in names]
    columns = fitting(max(measure(name) for name in names) + 0.5, min(3, len(names)))
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)  # set by `new_page`; its rectangle is above the caption
    left, bottom, width, height = engine.get()["rect"]
    high = (-(-len(names) // columns) * line_of(SMALL) * 1.1 + 0.1) / figure.get_figheight()
    engine.set(rect=(left, bottom + high, width, height - high))
    place = (left, bottom, width, high)
    figure.legend(handles, names, frameon=False, loc="center", ncols=columns, bbox_to_anchor=place, borderaxespad=0)


def number_axis(axis: Axis, places: Sequence[float], names: Sequence[str], room: float) -> None:
    """Label as many places along an axis as fit with `room` inches between neighbors."""
    high = isinstance(axis, YAxis)
    need = 1.1 * line_of(SMALL) if high else max(map(measure, names)) + 0.05
    step = max(1, math.ceil(need / room))
    axis.set_ticks([*places[::step]], [*names[::step]])


def heat(axes: Axes, values: Floats, reach: float, dark: bool) -> AxesImage:
    """Draw values (rows, columns) as colors from -reach to reach, with rows and columns numbered from 1."""
    rows, columns = values.shape
    count(axes)
    return axes.imshow(
        values,
        cmap=DIVERGING[dark],
        vmin=-reach,
        vmax=reach,
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
        interpolation="nearest" if max(rows, columns) < 2 * SCREEN_DPI else "antialiased",
    )


def hide_axes(axes: Axes) -> None:
    """Remove ticks, tick labels and frame."""
    axes.set(xticks=[], yticks=[])
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)


def count(axes: Axes) -> None:
    """Number both axes at as many integers as fit."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def bar(
    mappable: ScalarMappable,
    axes: Axes | Sequence[Axes],
    label: str,
    shown: Sequence[Floats] = (),
    location: Literal["right", "bottom"] = "right",
    *,
    unit: str = "",
    **options: Any,
) -> None:
    """Draw a color bar beside axes, with numbers in `unit`, see `number`.

    Arrows mark that values of the image, or of `shown` if given, lie beyond its ends.
    """
    low, high = mappable.get_clim()
    values = np.concatenate(
        [np.ma.compressed(np.ma.masked_invalid(np.ma.asarray(array))) for array in shown or (mappable.get_array(),)]
    )
    below, above = values.min() < low - 1e-6 * abs(low), values.max() > high + 1e-6 * abs(high)
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    figure = (axes if isinstance(axes, Axes) else axes[0]).figure
    options |= {"location": location, "extend": extend, "label": label}
    colorbar = figure.colorbar(mappable, ax=axes, format=lambda value, _: number(value, unit), **options)
    colorbar.minorticks_off()
    colorbar.outline.set_linewidth(0.5)


def reach_of(*arrays: Floats) -> float:
    """Return the color limit of signed values; it clips at most one value in 200."""
    return float(np.percentile(np.abs(np.concatenate([array.ravel() for array in arrays])), 99.5)) or 1.0


def describe(view: View, photo: str) -> str:
    """Return two sentences for a caption about the photograph and the model."""
    (height, width), (rows, columns), (across, down) = view.size, view.trace.grid, view.photo.size
    return (
        f"Photograph: {f'{photo}, ' if photo else ''}{across} × {down} pixels; the model reads it at "
        f"{width} × {height}, {rows} × {columns} patches (rows × columns). {describe_model(view.model)}"
    )


def describe_model(model: ViT) -> str:
    """Return a sentence for a caption: the model's name and its shape."""
    config, about = model.config, model.pretrained
    name = about.name if about and about.name else "A Vision Transformer"
    blocks, heads, patch = counted(config.depth, "block"), counted(config.heads, "head"), config.patch_size
    return f"{name}: {blocks} of {heads}, width {config.width}, patches of {patch} × {patch}."


def array(tensor: Tensor) -> Floats:
    """Convert a tensor to a float32 array on the CPU."""
    values: Floats = tensor.detach().float().numpy(force=True)
    return values
