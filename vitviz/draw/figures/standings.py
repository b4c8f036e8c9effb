"""Draw the ranking of attribution methods for one model."""

from matplotlib.figure import Figure

from vitviz.draw.figures.page import ACCENTS, key, new_page, styled
from vitviz.evaluation.standings import PARTS, Standings

COLORS = {"located": "attention", "removal": "mlp", "consistency": "head"}  # of the parts, among the page's accents
MARKERS = {"located": "o", "removal": "s", "consistency": "^"}


@styled
def draw(result: Standings, *, dark: bool = False) -> Figure:
    """Draw the score of each method with its interval, and the parts of the score."""
    rows = result.rows
    caption = (
        "Diamonds: the score, the mean of the other symbols, with its 95 % bootstrap confidence interval over the "
        f"images. 0 is a map without information, 1 the best. {result.describe()}"
    )
    name = result.settings.get("model", "a model")
    figure = new_page(f"Attribution methods of {name}", caption, 0.24 * len(rows) + 0.5)
    axes = figure.subplots()
    places = range(len(rows))
    for part in (part for part in PARTS if all(part in row.numbers for row in rows)):
        values = [row.numbers[part] for row in rows]
        color = ACCENTS[dark][COLORS[part]]
        axes.plot(values, places, MARKERS[part], color=color, markersize=3.5, linestyle="none", label=part)
    scores = [row.numbers["score"] for row in rows]
    reach = [
        [score - row.low for score, row in zip(scores, rows, strict=True)],
        [row.high - score for score, row in zip(scores, rows, strict=True)],
    ]
    black = axes.xaxis.label.get_color()
    axes.errorbar(scores, places, xerr=reach, fmt="D", color=black, markersize=4, linewidth=1.2, label="score")
    axes.axvline(0, color=black, linewidth=0.5)
    axes.set_yticks(places, [row.method for row in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), label="standings")
    axes.spines[["top", "right"]].set_visible(False)
    key(figure, axes)
    return figure
