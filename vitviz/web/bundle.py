"""Bundle the page's scripts: one script, and parts that the page loads when they are needed.

A part is a module that adds something to the page: a language, or the panels of a room (`vitviz.rooms`). Pages that
load no other file contain all parts. The modules are plain ES modules, which browsers and Node run without
a build step. The bundle turns each module into a function that returns its exports, in the order of imports, so that
private names of modules do not conflict. Lines that contain only comments are removed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from vitviz.draw.colors import DIVERGING, lut
from vitviz.errors import VitvizError

HERE = Path(__file__).parent
PACKAGE = HERE.parent
ENTRY = "web/app.js"
TITLE = "vitviz: look inside Vision Transformers"
LEAD = "Drop a photograph, point at a patch, and see where every head of a Vision Transformer looks."
PREVIEW = "preview.jpg"  # 1,200 x 630 pixels, what link previews show
LATIN = "U+0000-00FF, U+0131, U+0152-0153, U+02C6, U+02DA, U+02DC, U+2000-206F, U+20AC, U+2122, U+2191, U+2193, U+2212"
AMBER = ((29, 26, 22), (245, 183, 0), (255, 246, 219))  # the colors of small maps at 0, 176 and 255
COLOR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "turbo", "gray")

_IMPORT = re.compile(r"^import\s*\{([^}]*)\}\s*from\s*'(\.[\w./]+\.js)';\n", re.MULTILINE)
_DATA = re.compile(r"^import (\w+) from '(\.[\w./]+\.(?:json|html))' with \{ type: '(json|text)' \};\n", re.MULTILINE)
_TEXT = re.compile(r'\bdata-tr(?:-([a-z-]+))?="([\w-]+)"')
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)  # whole lines
_TAG = re.compile(r"<\w[^>]*\bdata-tr[^>]*>")
_PLACE = re.compile(r"@@(\w+)@@")
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_FACE = (
    '@font-face {{ font-family: "Inter Variable"; font-display: swap; font-weight: 100 900; '
    "src: url({font}) format('woff2'); unicode-range: {latin}; }}\n"
    # A system font, scaled to the same widths, so that nothing moves when Inter has loaded.
    '@font-face {{ font-family: "Inter Fallback"; src: local("Arial"), local("Liberation Sans"), local("Roboto"); '
    "ascent-override: 90.5%; descent-override: 22.6%; line-gap-override: 0%; size-adjust: 107%; "
    "unicode-range: {latin}; }}\n"
)
FONT = HERE / "fonts" / "inter.woff2"
_WIDE = re.compile(r"@media \((min|max)-width")
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class BundleError(VitvizError):
    """Raised if a module cannot be bundled."""


@cache
def script(entry: str = ENTRY, first: tuple[str, ...] = ()) -> str:
    """Return one script that defines `vitvizExplorer`, the exports of `entry`, for a <script> or a function's body.

    Args:
        entry: a module, relative to the package.
        first: modules that run before it, such as those of `part_modules`.
    """
    modules = _written(_bodies(*first, entry))
    return (
        f"const vitvizExplorer = (() => {{\nconst modules = {{}};\n{modules}"
        f"return {{ ...modules['{entry}'], modules }};\n}})();\n"
    )


def part_modules() -> dict[str, str]:
    """Return the module of each part by name: a language's code, or a room, whose panels fill the tab of this name."""
    languages = {path.stem: f"web/core/{path.name}" for path in sorted((HERE / "core").glob("??.js"))}
    return languages | {path.partition("/")[0]: path for path in of_rooms("room.js")}


def parts(entry: str, **rooms: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the scripts of the parts of a page that runs `script(entry)` and has set `vitvizExplorer.given`.

    Args:
        entry: the page's module; a part contains the modules that the page lacks.
        rooms: data of each room, which its script adds to those that the page was given; `None` leaves the room out.
    """
    known = _bodies(entry)
    found = {}
    for name, module in part_modules().items():
        if rooms.get(name, {}) is None:
            continue
        own = {path: body for path, body in _bodies(module).items() if path not in known}
        given = f"Object.assign(vitvizExplorer.given['{name}'], {json.dumps(rooms[name])});\n" if name in rooms else ""
        found[name] = f"((modules) => {{\n{_written(own)}}})(vitvizExplorer.modules);\n{given}"
    return found


def _written(bodies: Mapping[str, str]) -> str:
    """Return a script that runs modules."""
    return "".join(f"modules['{name}'] ??= (() => {{\n{body}}})();\n" for name, body in bodies.items())


@cache
def _bodies(*names: str) -> dict[str, str]:
    """Return the bodies of modules and of all that they import, by name, in the order in which they run."""
    bodies: dict[str, str] = {}
    for name in names:
        _collect(name, bodies, ())
    return bodies


def _collect(name: str, bodies: dict[str, str], path: tuple[str, ...]) -> None:
    """Add a module after all modules that it imports."""
    if name in bodies:
        return
    if name in path:
        raise BundleError(f"Expected imports in one direction, got {' -> '.join((*path, name))}. Remove one of them.")
    text = (PACKAGE / name).read_text(encoding="utf-8")
    for _, other in _IMPORT.findall(text):
        _collect(_resolve(name, other), bodies, (*path, name))

    def bound(match: re.Match[str]) -> str:
        return f"const {{{match[1].replace(' as ', ': ')}}} = modules['{_resolve(name, match[2])}'];\n"

    def data(match: re.Match[str]) -> str:
        content = (PACKAGE / _resolve(name, match[2])).read_text(encoding="utf-8").strip()
        return f"const {match[1]} = {content if match[3] == 'json' else json.dumps(content)};\n"

    exported = _EXPORT.findall(text)
    body = _COMMENT.sub("", _DATA.sub(data, _IMPORT.sub(bound, text)))
    body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
    if left := _LEFT.search(body):
        raise BundleError(
            f"Expected import {{ ... }} from './x.js' and export before a definition, got {left[0]!r}. Fix {name}."
        )
    bodies[name] = f"{body}return {{ {', '.join(exported)} }};\n"


def _resolve(name: str, other: str) -> str:
    """Return the path, relative to the package, of a module that the module `name` imports."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), other))


@cache
def colors() -> str:
    """Return the color maps of the page as JSON: each name with 768 bytes in base64."""
    steps = np.arange(256)
    amber = np.stack([np.interp(steps, (0, 176, 255), channel) for channel in zip(*AMBER, strict=True)], axis=1)
    tables = {"spotlight": amber.round().astype(np.uint8), **{name: lut(name) for name in (*COLOR_MAPS, DIVERGING)}}
    return json.dumps({name: base64.b64encode(table.tobytes()).decode() for name, table in tables.items()})


@cache
def texts() -> dict[str, str]:
    """Return the English texts of the page by key; a text with a plural is a dict of its forms."""
    found: dict[str, str] = json.loads((HERE / "core" / "en.json").read_text(encoding="utf-8"))["texts"]
    return found


@cache
def template(**first: str) -> str:
    """Return the HTML of app.html with English texts, which the page shows before its script runs.

    Args:
        first: HTML of the first scene for the placeholders `@@name@@`; missing ones become empty.
    """
    known = texts()

    def filled(tag: re.Match[str]) -> str:
        keys = dict(_TEXT.findall(tag[0]))  # by attribute; "" is the element's text
        written = "".join(f' {name}="{html.escape(known[key])}"' for name, key in keys.items() if name)
        return tag[0][:-1] + written + ">" + (html.escape(known[keys[""]], quote=False) if "" in keys else "")

    page = _TAG.sub(filled, (HERE / "app.html").read_text(encoding="utf-8"))
    return _PLACE.sub(lambda place: first.get(place[1], ""), page)


def page_script(entry: str) -> str:
    """Return the script for a page of `index`, which reads the page's data and starts the app."""
    given = f"{{ colors: {colors()}, ...JSON.parse(document.getElementById('vv-given').textContent) }}"
    start = "vitvizExplorer.start(document.querySelector('.vv'), vitvizExplorer.given);\n"
    return f"{script(entry)}vitvizExplorer.given = {given};\n{start}"


def index(**filling: str) -> str:
    """Return the HTML of a page whose script and pictures are separate files.

    Args:
        filling: "lang", the language; "head", tags for the head of the document; "script", the address of
            `page_script`; "style", from `whole_style`; "template", from `template`; "given", the page's data as JSON.
    """
    icon = (HERE / "icon.svg").read_text(encoding="utf-8")
    filling = {"icon": f"data:image/svg+xml,{quote(icon)}", "loading": loading(), **filling}
    return fill((HERE / "index.html").read_text(encoding="utf-8"), filling)


def loading() -> str:
    """Return the functions that a page calls before its script runs."""
    return (HERE / "loading.js").read_text(encoding="utf-8").replace("export ", "")


@cache
def frame() -> str:
    """Return the HTML around a saved page; `fill` replaces `@@name@@`."""
    return (HERE / "saved.html").read_text(encoding="utf-8")


def fill(page: str, filling: Mapping[str, str]) -> str:
    """Return a page with each `@@name@@` replaced, and `@@policy@@` replaced by a content security policy.

    The policy allows only the page's scripts: files of its origin, and inline scripts by their hashes.
    """

    def filled(text: str, texts: Mapping[str, str]) -> str:
        # One pass, so that `@@name@@` in an inserted text is not replaced.
        return _PLACE.sub(lambda place: texts.get(place[1], place[0]), text)

    scripts = [filled(text, filling) for text in _INLINE.findall(page)]
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    own = "'self' " if " src=" in page else ""
    policy = f"script-src {own}{allowed}; object-src 'none'; base-uri 'none'; form-action 'none'"
    return filled(page, {**filling, "policy": policy})


@cache
def picture() -> bytes:
    """Return the picture of link previews, a JPEG."""
    return (HERE / PREVIEW).read_bytes()


def preview(image: str) -> str:
    """Return the tags from which chats and search engines make a link's preview (Open Graph).

    Args:
        image: the address of `picture`; crawlers expect a whole one.
    """
    tags = {"title": TITLE, "description": LEAD, "type": "website", "image": image}
    tags |= {"image:width": "1200", "image:height": "630"}
    lines = [f'<meta property="og:{name}" content="{html.escape(text)}">' for name, text in tags.items()]
    return "\n".join([*lines, '<meta name="twitter:card" content="summary_large_image">'])


@cache
def style(font: str | None = None) -> str:
    """Return the page's style sheet.

    Args:
        font: address of `FONT`, the Latin subset of Inter; by default, the style sheet contains it as a data: URL.
    """
    font = font or f"data:font/woff2;base64,{base64.b64encode(FONT.read_bytes()).decode()}"
    return _FACE.format(font=font, latin=LATIN) + (HERE / "style.css").read_text(encoding="utf-8")


@cache
def contained_style() -> str:
    """Return the page's style sheet for embedding in an element, whose width replaces the window's."""
    return _WIDE.sub(r"@container vitviz (\1-width", style())


def of_rooms(name: str) -> tuple[str, ...]:
    """Return the files of rooms: "room.js" for parts, "room.css" for the style, "worker/room.js" for a worker."""
    return tuple(path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.glob(f"*/page/{name}")))


@cache
def whole_style(font: str | None = None) -> str:
    """Return the style sheet of a page with all rooms; `font` as for `style`."""
    return style(font) + "".join((PACKAGE / path).read_text(encoding="utf-8") for path in of_rooms("room.css"))
