"""Draw docs/architecture.svg: the packages, and which imports which, from the imports in the code.

Packages stand above those that they import. An arrow that follows from others (A imports B, B imports C, A imports C)
is left out. Imports that go up, inside convenience methods, are dashed.

Usage: python scripts/draw_architecture.py [FILE.svg]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_imports import LAYERS, imports, layer, modules, target, within  # noqa: E402 - the order of packages is there

SKIP = {"vitviz", "vitviz.__main__"}  # the names that a user imports, and `python -m vitviz`
WIDTH, HEIGHT, ROW, GAP, MARGIN, LANE = 216, 72, 112, 24, 16, 28

STYLE = """
    text { font: 12px system-ui, sans-serif; fill: #57606a; text-anchor: middle; }
    .name { font-size: 15px; font-weight: 600; fill: #1f2328; }
    rect { fill: #f6f8fa; stroke: #8c959f; }
    path { fill: none; stroke: #8c959f; stroke-width: 1.3; }
    .down { marker-end: url(#head); }
    .up { marker-start: url(#head); }
    .lazy { stroke-dasharray: 4 4; }
    #head path { fill: #8c959f; stroke: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #9198a1; }
      .name { fill: #f0f6fc; }
      rect { fill: #151b23; stroke: #656c76; }
      path { stroke: #656c76; }
      #head path { fill: #656c76; }
    }
"""
Arrow = tuple[str, str]
Node = str | tuple[str, str]
"""A package, or the place of an arrow in a row that it passes."""


@cache
def packages() -> list[str]:
    """Return the packages and modules that have a box, in the order of their layers, the lowest first."""
    return [name for names in LAYERS for name in names if name in modules(ROOT) and name not in SKIP]


@cache
def arrows() -> tuple[set[Arrow], set[Arrow]]:
    """Return which package imports which: downward without what follows from other arrows, and upward."""
    known = modules(ROOT)
    down: dict[str, set[str]] = {name: set() for name in packages()}
    up = set()
    for module, path in known.items():
        for one in imports(module, path):
            start, end = (_box(name) for name in (module, target(one.name, known)))
            if start is None or end is None or start == end:
                continue
            if (layer(end) or 0) > (layer(start) or 0):
                up.add((start, end))
            else:
                down[start].add(end)

    @cache
    def reached(start: str) -> frozenset[str]:
        return frozenset(down[start]).union(*(reached(name) for name in down[start]))

    direct = {name: down[name] - frozenset().union(*(reached(other) for other in down[name])) for name in packages()}
    return {(name, other) for name in packages() for other in direct[name]}, up


def _box(module: str) -> str | None:
    """Return the box that a module lies in."""
    return next((name for name in packages() if within(module, (name,))), None)


def arrange() -> tuple[list[list[Node]], dict[Arrow, list[Node]]]:
    """Return the rows, the lowest first, and the nodes of each arrow from the upper box to the lower one.

    A row's order puts nodes near their neighbours in the rows beside it (Sugiyama et al. 1981).
    """
    down, up = arrows()

    @cache
    def depth(name: str) -> int:
        return max((depth(other) + 1 for start, other in down if start == name), default=0)

    rows: list[list[Node]] = [[] for _ in range(max(map(depth, packages())) + 1)]
    for name in packages():
        rows[depth(name)].append(name)
    paths: dict[Arrow, list[Node]] = {}
    flipped = {(one, other) if depth(one) > depth(other) else (other, one) for one, other in up}
    for upper, lower in sorted(down | flipped):
        passed: list[Node] = []
        for row in range(depth(upper) - 1, depth(lower), -1):
            passed.append((upper, f"{lower} {row}"))
            rows[row].append(passed[-1])
        paths[upper, lower] = [upper, *passed, lower]
    links = {pair for nodes in paths.values() for pair in pairwise(nodes)}
    for step in range(16):
        order = range(1, len(rows)) if step % 2 else range(len(rows) - 2, -1, -1)
        for row in order:
            place = {node: at - len(beside) / 2 for beside in rows for at, node in enumerate(beside)}
            near = {node: [place[a if b == node else b] for a, b in links if node in (a, b)] for node in rows[row]}
            rows[row].sort(key=lambda node: sum(near[node]) / max(1, len(near[node])))
    return rows, paths


def summary(name: str) -> list[str]:
    """Return the first clause of a package's docstring in at most two lines."""
    text = ast.get_docstring(ast.parse(modules(ROOT)[name].read_text(encoding="utf-8"))) or ""
    text = text.split("\n\n")[0].replace("\n", " ").replace("`", "").rstrip(".").split(": ")[0].split(". ")[0]
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 27:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) < 3 else [lines[0], f"{lines[1]} ..."]


def draw() -> Iterator[str]:
    """Yield the lines of the picture."""
    rows, paths = arrange()
    widths = [[WIDTH if isinstance(node, str) else LANE for node in row] for row in rows]
    width = 2 * MARGIN + max(sum(row) + GAP * (len(row) - 1) for row in widths)
    at: dict[Node, tuple[float, int]] = {}  # middle of a node's top
    for index, (row, each) in enumerate(zip(rows, widths, strict=True)):
        left = (width - sum(each) - GAP * (len(each) - 1)) / 2
        for node, extent in zip(row, each, strict=True):
            at[node] = left + extent / 2, MARGIN + (len(rows) - 1 - index) * ROW
            left += extent + GAP
    height = 2 * MARGIN + (len(rows) - 1) * ROW + HEIGHT
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
    yield "  <title>The packages of vitviz and their imports</title>"
    yield f"  <style>{STYLE}  </style>"
    yield '  <defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
    yield '    orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    down, up = arrows()
    for start, end in [*sorted(down), *sorted(up)]:
        kind = ("down" if (start, end) in paths else "up") + (" lazy" if (start, end) in up else "")
        nodes = paths[(start, end) if (start, end) in paths else (end, start)]
        yield f'  <path class="{kind}" data-from="{start}" data-to="{end}" d="{_curve([at[node] for node in nodes])}"/>'
    for name in packages():
        x, y = at[name]
        yield f'  <rect data-name="{name}" x="{x - WIDTH / 2:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        yield f'  <text class="name" x="{x:.0f}" y="{y + 22}">{name.removeprefix("vitviz.")}</text>'
        for line, text in enumerate(summary(name)):
            yield f'  <text x="{x:.0f}" y="{y + 42 + 16 * line}">{escape(text)}</text>'
    yield "</svg>"


def _curve(points: list[tuple[float, int]]) -> str:
    """Return a path from the bottom of the first node through all others to the top of the last."""
    x, y = points[0][0], points[0][1] + HEIGHT
    text = f"M{x:.0f} {y}"
    for to_x, to_y in points[1:]:
        middle = (y + to_y) / 2
        text += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y}V{to_y + HEIGHT}"
        x, y = to_x, to_y + HEIGHT
    return text.rpartition("V")[0]


def main(out: Path) -> None:
    """Write the picture."""
    out.write_text("\n".join(draw()) + "\n", encoding="utf-8")
    down, up = arrows()
    print(f"{len(packages())} boxes, {len(down)} arrows down, {len(up)} up -> {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "architecture.svg")
