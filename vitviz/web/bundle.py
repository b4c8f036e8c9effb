"""Join the page's scripts into one, for a page that loads nothing else, from disk or inside another page.

The modules are plain ES modules that browsers and Node run as they are. Here each becomes a function that returns its
exports, in the order of their imports: names that several modules use for themselves cannot meet. Lines that are only
comments stay behind.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vitviz.draw.colors import DIVERGING, lut
from vitviz.errors import VitvizError

HERE = Path(__file__).parent
ENTRY = "app.js"
COLOR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "turbo", "gray")

_IMPORT = re.compile(r"^import\s*\{([^}]*)\}\s*from\s*'(\.[\w./]+\.js)';\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)  # whole lines
_PLACE = re.compile(r"@@(\w+)@@")
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_WIDE = re.compile(r"@media \((min|max)-width")
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class BundleError(VitvizError):
    """Module that this bundler cannot join; the text says where and why."""


@cache
def script(entry: str = ENTRY) -> str:
    """Return one script that defines `vitvizExplorer`, the exports of `entry`; for a <script> or a function's body."""
    order: list[str] = []
    bodies: dict[str, str] = {}
    _collect(entry, order, bodies, ())
    parts = [f"modules['{name}'] = (() => {{\n{bodies[name]}}})();" for name in order]
    return (
        "const vitvizExplorer = (() => {\nconst modules = {};\n"
        + "\n".join(parts)
        + f"\nreturn modules['{entry}'];\n}})();\n"
    )


def _collect(name: str, order: list[str], bodies: dict[str, str], path: tuple[str, ...]) -> None:
    """Add a module and all that it imports, imported modules first."""
    if name in order:
        return
    if name in path:
        raise BundleError(f"Expected imports in one direction, got {' -> '.join((*path, name))}. Remove one of them.")
    text = (HERE / name).read_text(encoding="utf-8")
    for _, other in _IMPORT.findall(text):
        _collect(_resolve(name, other), order, bodies, (*path, name))

    def bound(found: re.Match[str]) -> str:
        return f"const {{{found[1].replace(' as ', ': ')}}} = modules['{_resolve(name, found[2])}'];\n"

    exported = _EXPORT.findall(text)
    body = re.sub(r"^export ", "", _COMMENT.sub("", _IMPORT.sub(bound, text)), flags=re.MULTILINE)
    if left := _LEFT.search(body):
        raise BundleError(
            f"Expected import {{ ... }} from './x.js' and export before a definition, got {left[0]!r}. Fix {name}."
        )
    order.append(name)
    bodies[name] = f"{body}return {{ {', '.join(exported)} }};\n"


def _resolve(name: str, other: str) -> str:
    """Return a module's path from `web/`, as the module `name` imports it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), other))


@cache
def colors() -> str:
    """Return the color maps of the page as JSON: name to 768 bytes in base64."""
    return json.dumps({name: base64.b64encode(lut(name).tobytes()).decode() for name in (*COLOR_MAPS, DIVERGING)})


@cache
def template(name: str = "app.html") -> str:
    """Return the page's HTML, without any scene."""
    return (HERE / name).read_text(encoding="utf-8")


@cache
def frame() -> str:
    """Return the HTML around a page that stands alone; `@@name@@` are places to fill."""
    return (HERE / "standalone.html").read_text(encoding="utf-8")


def fill(page: str, filling: Mapping[str, str]) -> str:
    """Return a page with what is given in the places `@@name@@`, and with a content security policy in its place.

    The policy lets the page's own scripts run and no others: those of its origin, and the inline ones by their hashes.
    """

    def filled(text: str, given: Mapping[str, str]) -> str:
        # One pass, so that nothing that was filled in is taken for a place to fill.
        return _PLACE.sub(lambda place: given.get(place[1], place[0]), text)

    scripts = [filled(text, filling) for text in _INLINE.findall(page)]
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    own = "'self' " if "<script src=" in page else ""
    policy = f"script-src {own}{allowed}; object-src 'none'; base-uri 'none'; form-action 'none'"
    return filled(page, {**filling, "policy": policy})


@cache
def style() -> str:
    """Return the page's style sheet."""
    return (HERE / "style.css").read_text(encoding="utf-8")


@cache
def contained_style() -> str:
    """Return the page's style sheet for a page inside another one: its width counts, and not the window's."""
    return _WIDE.sub(r"@container vitviz (\1-width", style())


@cache
def lecture_style() -> str:
    """Return the style sheet of the lecture, which comes after the page's."""
    return (HERE / "lecture.css").read_text(encoding="utf-8")
