"""Format numbers, predictions and tables as text, by the same rules as `web/compute/format.js`."""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitviz.extras import MissingExtraError
from vitviz.outputs import REGRESSION, SINGLE, ProblemType

if TYPE_CHECKING:
    import pandas as pd

MINUS, DASH, NO_BREAK = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NO-BREAK SPACE}"
_UNBROKEN = re.compile(r"(?<=\d) (?=[×%])|(?<=\d ×) (?=\d)|(?<=[<>]) (?=[−\d])")


def unbroken(text: str) -> str:
    """Return a text for pages and pictures, in which lines do not break within "16 × 16" and "< 8.3 %"."""
    return _UNBROKEN.sub(NO_BREAK, text)


def percent(share: float, digits: int = 3) -> str:
    """Format a probability, an accuracy or another share: 0.9321 as "93.2 %".

    Only exact values are "0 %" and "100 %"; other values that would round to them are "< 0.01 %" or "> 99.9 %".

    Args:
        share: 0 to 1; a number that is not finite becomes a dash.
        digits: significant digits, 2 to 4, with at most two decimals.

    >>> [percent(share) for share in (0.9999, 0.0316, 0.00123, 1e-7, 0.0, 1.0)]
    ['> 99.9 %', '3.16 %', '0.12 %', '< 0.01 %', '0 %', '100 %']
    >>> percent(0.8182, digits=4), percent(0.9321, digits=2)
    ('81.82 %', '93 %')
    """
    size, sign = 100 * abs(share), MINUS if share < 0 else ""
    if not math.isfinite(size):
        return DASH
    if 0 < size < 0.01:
        return "< 0.01 %"
    if size == 0 or size >= 100:
        return f"{sign}{_round(size, 0):.0f} %"
    for below, decimals in ((1, 2), (10, min(2, digits - 1)), (100, digits - 2)):
        if (rounded := _round(size, decimals)) < below:
            return f"{sign}{rounded:.{decimals}f} %"
    return f"> {sign}{100 - 10**-decimals:.{decimals}f} %"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "3 blocks", "1 block"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def abbreviate(names: Collection[str], most: int = 3) -> str:
    """Return the first names, each shortened to 120 letters, and how many more there are.

    >>> abbreviate(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    first = ", ".join(f"{name:.120}" for name in list(names)[:most])
    return first + (f" and {len(names) - most} more" if len(names) > most else "")


def describe_bytes(count: int) -> str:
    """Return a number of bytes as text in decimal units, such as "87 MB"."""
    if count >= 10**9:
        return f"{count / 10**9:.1f} GB"
    return f"{round(count / 10**6)} MB" if count >= 10**6 else f"{math.ceil(count / 1000)} kB"


def _round(value: float, decimals: int) -> float:
    """Round half up, as JavaScript's Math.round does."""
    return math.floor(value * 10.0**decimals + 0.5) / 10.0**decimals


def plain(value: float) -> str:
    """Format a predicted value with four significant digits and all digits before the point.

    >>> plain(34.2), plain(-123456.7), plain(0.00123), plain(0.0)
    ('34.20', '−123457', '0.001230', '0')
    """
    if not math.isfinite(value):
        return DASH
    decimals = min(10, max(0, 3 - math.floor(math.log10(abs(value))))) if value else 0
    return f"{value:.{decimals}f}".replace("-", MINUS)


def output(value: float, problem_type: ProblemType, digits: int = 3) -> str:
    """Format an output of a classifier: a probability in percent, or a value (regression)."""
    return plain(value) if problem_type == REGRESSION else percent(value, digits)


PERHAPS = 3  # number of classes to name if the model is not sure
FEW_CLASSES = 20  # with at most as many, most photographs show none of the classes, and the text says how few they are
PROBABLE_ABOVE = 0.5  # probability at and above which a class is "probable", although the model is not sure of it
UNKNOWN_BELOW = 0.3  # at and above this probability, no photograph counts as unknown, see `vitviz.View.known`

CERTAINTY = {
    "unmeasured": "Best match among {0}: {1} ({2})",
    "certain": "{0} ({1})",
    "probable": "Probably {0} ({1})",
    "group": "Some kind of {0} ({1}): perhaps {2}",
    "unsure": "Not sure: {0}? ({1})",
    "unknown": "Perhaps none of the {0} this model knows; the closest is {1}",
}
"""How a prediction is said, by the certainty of it; the page has the same texts under these keys."""

HEADINGS = {
    "unmeasured": "It says",
    "certain": "It says",
    "probable": "Probably",
    "group": "Some kind of {0} ({1}); the closest is",
    "unsure": "Not sure, perhaps",
    "unknown": "Perhaps nothing it knows; the closest is",
}
"""The words above a list of classes with their probabilities, by the certainty of the first."""


def certainty(
    probability: float, sure_above: float | None = None, group: object | None = None, known: bool = True
) -> str:
    """Return how sure a classifier is of its best class, as a key of `CERTAINTY`.

    A classifier always returns one of its classes. Its probability does not distinguish an unknown object from a
    difficult photograph, so only another measure (`known`) makes it "unknown".

    Args:
        probability: of the best class, 0 to 1.
        sure_above: see `vitviz.Pretrained`; `None` if it was not measured.
        group: see `vitviz.View.group`.
        known: whether the photograph seems to show one of the classes; see `vitviz.View.known`.
    """
    if not known:
        return "unknown"
    if sure_above is None:
        return "unmeasured"
    if probability >= sure_above:
        return "certain"
    if probability >= PROBABLE_ABOVE:
        return "probable"
    return "unsure" if group is None else "group"


def describe_prediction(
    labels: Sequence[str],
    probabilities: Sequence[float],
    classes: int,
    sure_above: float | None = None,
    group: tuple[str, float, Sequence[str]] | None = None,
    known: bool = True,
    problem_type: ProblemType = SINGLE,
) -> str:
    """Describe a prediction in one line, with words for its certainty; see `certainty`.

    Args:
        labels: the most probable classes, best first; empty for a model without a classifier.
        probabilities: one for each label, 0 to 1.
        classes: number of classes that the model knows.
        sure_above: see `vitviz.Pretrained`.
        group: see `vitviz.View.group`; named, with its most probable classes, if no class is probable.
        known: whether the photograph seems to show one of the classes; see `vitviz.View.known`.
        problem_type: see `vitviz.ViT.problem_type`. With several labels, every label with at least 50 % is named.

    >>> describe_prediction(["cat", "fox", "wolf"], [0.95, 0.02, 0.01], 260, sure_above=0.9)
    'cat (95.0 %)'
    >>> describe_prediction(["cat", "fox", "wolf"], [0.81, 0.1, 0.05], 260, sure_above=0.9)
    'Probably cat (81.0 %)'
    >>> describe_prediction(["cat", "fox", "wolf"], [0.24, 0.1, 0.05], 260, sure_above=0.9)
    'Not sure: cat? (24.0 %)'
    >>> describe_prediction(["cat", "wolf"], [0.24, 0.1], 260, sure_above=0.9, group=("dog", 0.9, ["wolf", "boxer"]))
    'Some kind of dog (90.0 %): perhaps wolf or boxer'
    >>> describe_prediction(["cat", "fox", "wolf"], [0.2, 0.1, 0.05], 260, sure_above=0.9, known=False)
    'Perhaps none of the 260 things this model knows; the closest is cat'
    >>> describe_prediction(["cat", "fox", "wolf"], [0.81, 0.1, 0.05], 3)
    'Best match among 3 classes: cat (81.0 %); this model has only 3 possible answers'
    >>> describe_prediction(["cat", "dog", "fox"], [0.99, 0.98, 0.05], 20, problem_type="multi_label_classification")
    'Of 20 labels: cat 99.0 %, dog 98.0 %'
    >>> describe_prediction(["age in years"], [34.2], 1, problem_type="regression")
    'age in years: 34.20'
    """
    if not labels:
        return ""
    if problem_type != SINGLE:
        each = [f"{name} {percent(share)}" for name, share in zip(labels, probabilities, strict=True) if share >= 0.5]
        if problem_type == REGRESSION:
            each = [f"{name}: {plain(value)}" for name, value in zip(labels, probabilities, strict=True)]
            return ", ".join(each[:PERHAPS])
        count = f"{classes:,} label{'s' if classes != 1 else ''}"
        if not each:
            return f"None of {count}; the best match is {labels[0]} {percent(probabilities[0])}"
        return f"Of {count}: {', '.join(each[:PERHAPS])}"
    sure = certainty(probabilities[0], sure_above, group, known)
    best = labels[0], percent(probabilities[0])
    values: tuple[str, ...] = best
    if sure == "unknown":
        values = f"{classes:,} thing{'s' if classes != 1 else ''}", labels[0]
    elif sure == "unmeasured":
        values = f"{classes:,} class{'es' if classes != 1 else ''}", *best
    elif sure == "group" and group is not None:
        *others, last = group[2][:PERHAPS]
        values = group[0], percent(group[1]), f"{', '.join(others)} or {last}" if others else last
    few = 1 < classes <= FEW_CLASSES and sure != "unknown"
    return CERTAINTY[sure].format(*values) + (f"; this model has only {classes} possible answers" if few else "")


def number(value: float, unit: str = "", step: float | None = None) -> str:
    """Format a number with three significant digits, or with enough digits to distinguish multiples of `step`.

    The unit "attention" is a share: two digits and a percent sign. NaN becomes a dash.

    >>> number(0.034, "attention"), number(-1234.0), number(0.5, step=0.25), number(1.2e-7)
    ('3.4 %', '−1234', '0.5', '1.2e−07')
    """
    if math.isnan(value):
        return DASH
    if unit == "attention":
        return percent(value, 2) if step is None else f"{number(100 * value, step=100 * step)} %"
    size, most = (abs(value), 6) if step is None else (abs(step), 10)
    decimals = (2 if step is None else 1) - math.floor(math.log10(size)) if size > 0 else 0
    if value and (abs(value) >= 1e5 or decimals >= most):
        text = f"{value:.2g}"
    else:
        text = f"{round(value, max(0, decimals)) + 0.0:.{max(0, decimals)}f}"  # + 0.0 turns -0.0 into 0.0
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", MINUS)


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows of cells as aligned text lines; the first `left` columns are left-aligned, the rest right-aligned.

    >>> print(text_table([["class", "images"], ["golf ball", "3"]]))
    class      images
    golf ball       3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush = ["<" if index < left else ">" for index in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, flush, widths, strict=True)) for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, header first, as a table in Markdown; all columns but the first are right-aligned."""
    header, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, f"|---|{'---:|' * (len(rows[0]) - 1)}", *others])


def data_frame(columns: Mapping[str, Any]) -> "pd.DataFrame":
    """Return columns of one length as a pandas table.

    Raises:
        MissingExtraError: if pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise MissingExtraError("Expected the package pandas, got none. Run pip install pandas.") from error
    return pd.DataFrame(columns)


LISTED = 4  # maximum number of tuple entries in `short_repr`


def short_repr(instance: Any) -> str:
    """Return a dataclass as one line, with arrays by type and shape, and long tuples shortened.

    For use as `__repr__`; the default prints every number of every array.
    """
    fields = (field for field in dataclasses.fields(instance) if field.repr)
    parts = [f"{field.name}={_short(getattr(instance, field.name))}" for field in fields]
    return f"{type(instance).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_short(item)}" for name, item in value.items()) + "}"
    if type(value) is tuple:  # not a named tuple
        more = f", ... {len(value)} in all" if len(value) > LISTED else "," * (len(value) == 1)
        return f"({', '.join(map(_short, value[:LISTED]))}{more})"
    return repr(value)
