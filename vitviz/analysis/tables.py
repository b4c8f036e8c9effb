"""Tables for a terminal."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return rows of cells as lines of aligned columns: the first `left` columns flush left, all others flush right.

    >>> print(text_table([["class", "images"], ["golf ball", "3"]]))
    class      images
    golf ball       3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush = ["<" if index < left else ">" for index in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, flush, widths, strict=True)) for row in rows
    )
