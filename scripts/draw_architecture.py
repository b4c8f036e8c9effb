"""Draw the imports between packages as docs/architecture.svg, and of the page's scripts as docs/architecture-web.svg.

Each package is above the packages it imports. Arrows implied by other arrows are omitted (A to C if A imports B and B
imports C). Upward imports inside convenience methods are dashed.

Usage: python scripts/draw_architecture.py [FOLDER]
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_imports import LAYERS, imports, layer, modules, target, within  # noqa: E402 - in tests/

SKIP = {"vitviz", "vitviz.__main__"}  # public names, and `python -m vitviz`
PACKAGE = ROOT / "vitviz"
WIDTH, SPACE, GAP, MARGIN, LANE = 216, 40, 24, 16, 28

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
"""A box, or the point where an arrow crosses a row."""


@dataclass(frozen=True)
class Graph:
    """Boxes and arrows of a picture.

    Args:
        title: title of the picture.
        boxes: name -> lines of text, the lowest box first.
        down, up: arrows to lower and to higher boxes.
    """

    title: str
    boxes: dict[str, list[str]]
    down: set[Arrow]
    up: set[Arrow]

    @property
    def height(self) -> int:
        """Return the height of a box."""
        return 40 + 16 * max(map(len, self.boxes.values()))


def packages() -> Graph:
    """Return the packages and modules of vitviz with their docstrings."""
    known = modules()
    names = [name for places in LAYERS for name in places if name in known and name not in SKIP]

    def box(module: str) -> str | None:
        return next((name for name in names if within(module, (name,))), None)

    pairs = [(box(module), box(target(each.name))) for module in known for each in imports(module, known[module])]
    arrows = {(start, end) for start, end in pairs if start is not None and end is not None and start != end}
    up = {(start, end) for start, end in arrows if (layer(end) or 0) > (layer(start) or 0)}
    texts = {name: ast.get_docstring(ast.parse(known[name].read_text(encoding="utf-8"))) or "" for name in names}
    boxes = {name: wrapped(text.split("\n\n")[0].split(": ")[0].split(". ")[0]) for name, text in texts.items()}
    return Graph("The packages of vitviz and their imports", boxes, direct(names, arrows - up), up)


def scripts() -> Graph:
    """Return the folders of the page's scripts with their modules, the scripts outside folders, and other packages."""
    paths = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.js"))}

    def box(path: Path) -> str:
        room, *inner = path.relative_to(PACKAGE).parts
        return inner[0] if room == "web" else room

    boxes: dict[str, list[str]] = {}
    arrows: set[Arrow] = set()
    for path, text in paths.items():
        name = box(path)
        inside = [other.stem for other in paths if box(other) == name and other.stem != name and name != path.name]
        boxes[name] = wrapped(", ".join(inside) if inside else text.split("\n")[0].removeprefix("// "), most=5)
        for to in re.findall(r"^import .*?from '(.*?)';", text, re.MULTILINE | re.DOTALL):
            end = box((path.parent / to).resolve())
            if end != name:
                arrows.add((name, end))
    return Graph("The folders of the page's scripts and their imports", boxes, direct(boxes, arrows), set())


def direct(names: Iterable[str], arrows: set[Arrow]) -> set[Arrow]:
    """Return the arrows that are not implied by other arrows."""
    down = {name: {end for start, end in arrows if start == name} for name in names}

    @cache
    def reached(start: str) -> frozenset[str]:
        return frozenset(down[start]).union(*(reached(name) for name in down[start]))

    return {(start, end) for start, end in arrows if not any(end in reached(other) for other in down[start])}


def wrapped(text: str, most: int = 2) -> list[str]:
    """Wrap a text into at most `most` lines of a box's width."""
    lines = textwrap.wrap(text.replace("`", "").rstrip("."), 28, break_on_hyphens=False)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} ..."]


def arrange(graph: Graph) -> tuple[list[list[Node]], dict[Arrow, list[Node]]]:
    """Return the rows, the lowest first, and the nodes of each arrow from the upper box to the lower one.

    Nodes of a row are sorted by the positions of their neighbours in adjacent rows (Sugiyama et al. 1981).
    """

    @cache
    def depth(name: str) -> int:
        return max((depth(other) + 1 for start, other in graph.down if start == name), default=0)

    rows: list[list[Node]] = [[] for _ in range(max(map(depth, graph.boxes)) + 1)]
    for name in graph.boxes:
        rows[depth(name)].append(name)
    paths: dict[Arrow, list[Node]] = {}
    flipped = {(start, end) if depth(start) > depth(end) else (end, start) for start, end in graph.up}
    for upper, lower in sorted(graph.down | flipped):
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


def draw(graph: Graph) -> Iterator[str]:
    """Yield the lines of the picture."""
    rows, paths = arrange(graph)
    widths = [[WIDTH if isinstance(node, str) else LANE for node in row] for row in rows]
    width = 2 * MARGIN + max(sum(row) + GAP * (len(row) - 1) for row in widths)
    at: dict[Node, tuple[float, int]] = {}  # middle of a node's top
    for index, (row, each) in enumerate(zip(rows, widths, strict=True)):
        left = (width - sum(each) - GAP * (len(each) - 1)) / 2
        for node, extent in zip(row, each, strict=True):
            at[node] = left + extent / 2, MARGIN + (len(rows) - 1 - index) * (graph.height + SPACE)
            left += extent + GAP
    height = 2 * MARGIN + len(rows) * (graph.height + SPACE) - SPACE
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"  <title>{escape(graph.title)}</title>"
    yield f"  <style>{STYLE}  </style>"
    yield '  <defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
    yield '    orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    for start, end in [*sorted(graph.down), *sorted(graph.up)]:
        kind = ("down" if (start, end) in paths else "up") + (" lazy" if (start, end) in graph.up else "")
        nodes = paths[(start, end) if (start, end) in paths else (end, start)]
        curve = _curve([at[node] for node in nodes], graph.height)
        yield f'  <path class="{kind}" data-from="{start}" data-to="{end}" d="{curve}"/>'
    for name, lines in graph.boxes.items():
        x, y = at[name]
        size = f'width="{WIDTH}" height="{graph.height}" rx="8"'
        yield f'  <rect data-name="{name}" x="{x - WIDTH / 2:.0f}" y="{y}" {size}/>'
        yield f'  <text class="name" x="{x:.0f}" y="{y + 22}">{name.removeprefix("vitviz.")}</text>'
        for line, text in enumerate(lines):
            yield f'  <text x="{x:.0f}" y="{y + 42 + 16 * line}">{escape(text)}</text>'
    yield "</svg>"


def _curve(points: list[tuple[float, int]], height: int) -> str:
    """Return a path from the bottom of the first node through the other nodes to the top of the last."""
    x, y = points[0][0], points[0][1] + height
    text = f"M{x:.0f} {y}"
    for to_x, to_y in points[1:]:
        middle = (y + to_y) / 2
        text += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y}V{to_y + height}"
        x, y = to_x, to_y + height
    return text.rpartition("V")[0]


def main(folder: Path) -> None:
    """Write the pictures."""
    for name, graph in (("architecture.svg", packages()), ("architecture-web.svg", scripts())):
        (folder / name).write_text("\n".join(draw(graph)) + "\n", encoding="utf-8")
        arrows = f"{len(graph.down)} arrows down, {len(graph.up)} up"
        print(f"{len(graph.boxes)} boxes, {arrows} -> {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
