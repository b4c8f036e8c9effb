"""Serve the page's files, whose names contain a hash of their content, and prepare the HTML for Gradio's page."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import brotli
import gradio
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from vitviz.phrases import with_phrases
from vitviz.server.bodies import Refused
from vitviz.server.endpoints import Endpoints
from vitviz.web import bundle
from vitviz.web.first_view import first_view
from vitviz.web.scene import picture_of

FOLDER = "vitviz/files"
FOREVER = "public, max-age=31536000, immutable"  # safe, because a changed file has another name
KINDS = {
    "js": "text/javascript",
    "woff2": "font/woff2",
    **{kind: f"image/{kind}" for kind in ("jpeg", "webp")},
}
COMPRESSED = ("text/javascript",)
QUALITY = 9  # of Brotli; higher levels delay the start by seconds
OTHER_SCRIPT = re.compile(r"page\.[0-9a-f]{8}\.js")  # of another replica, which measured other times and sent the HTML
PHOTO_QUALITY = 80  # of WebP; the file has 60 % of the size of the scene's JPEG


def gradio_modules() -> list[str]:
    """Return the addresses of the JavaScript modules that Gradio's first script imports, read from that script."""
    folder = Path(gradio.__file__).parent / "templates" / "frontend"
    first = re.search(r'src="\./(assets/index-[\w-]+\.js)"', (folder / "index.html").read_text(encoding="utf-8"))
    listed = first and re.match(
        r"const __vite__mapDeps=.*?=(\[.*?\])\)", (folder / first[1]).read_text(encoding="utf-8")
    )
    return [f"assets/{name}" for name in re.findall(r'"\./([\w-]+\.js)"', listed[1])] if listed else []


class File:
    """A file of the page.

    Args:
        data: its content.
        kind: its media type.
    """

    def __init__(self, data: bytes, kind: str) -> None:
        self._headers = {"content-type": kind, "cache-control": FOREVER}
        self._encoded = {"": data}
        if kind in COMPRESSED:
            self._headers["vary"] = "accept-encoding"
            self._encoded = {"br": brotli.compress(data, quality=QUALITY), "gzip": gzip.compress(data), "": data}

    def response(self, request: Request) -> Response:
        """Return the file, compressed if the client accepts it."""
        accepted = request.headers.get("accept-encoding", "")
        encoding = next(name for name in self._encoded if name in accepted)
        headers = self._headers | ({"content-encoding": encoding} if encoding else {})
        return Response(self._encoded[encoding], headers=headers)


class PageFiles:
    """The files of the page, and the HTML, script and style sheet that Gradio puts in its page.

    Args:
        endpoints: the endpoints; the page opens their first example.
        lecture: see `vitviz.page.Page`.

    Attributes:
        template: HTML of the explorer, with prediction, map and sentence of the first photograph.
        script: JavaScript that loads and starts the page's script; Gradio runs it in a function whose argument
            `element` contains the template.
        style: the page's style sheet.
        links: `Link` header of the HTML: the browser loads Gradio's modules and the photograph at once, not one after
            another when a script asks for them.
    """

    def __init__(self, endpoints: Endpoints, lecture: Mapping[str, Any] | None) -> None:
        self._files: dict[str, File] = {}
        image = endpoints.examples[0].name
        opened = endpoints.open_scene(None, image, None, None, ahead=False)
        first, models = with_phrases(opened.manifest), with_phrases(endpoints.models())
        photo, font = self._photo(opened.scene.picture[0]), self._keep("inter.woff2", bundle.FONT.read_bytes())
        first["photo"] = {**first["photo"], "url": photo}
        if first["seen"]:
            first["seen"] = {**first["seen"], "url": self._picture(first["seen"]["url"])}
        for example in models["examples"]:
            example["thumbnail"] = self._picture(example["thumbnail"])
        given = {
            "colors": json.loads(bundle.colors()), "first": first, "models": models, "notice": endpoints.notice,
            "lecture": lecture and {"lang": lecture["lang"]},
            "parts": {
                name: self._keep(f"{name}.js", text.encode())
                for name, text in bundle.parts(bundle.ENTRY, lecture=lecture).items()
            },
        }  # fmt: skip
        self.template = bundle.template(**first_view(opened.scene, photo))
        self.style = bundle.whole_style(font)
        script = f"{bundle.script(bundle.ENTRY)}vitvizExplorer.given = {json.dumps(given)};\n"
        address = self._keep("page.js", script.encode())
        self._script = address.rpartition("/")[2]
        self.script = f"{bundle.loading()}load(element, {json.dumps(address)});"
        modules = (f"<{module}>; rel=modulepreload" for module in gradio_modules())
        self.links = ", ".join([*modules, f"<{photo}>; rel=preload; as=image; fetchpriority=low"])

    async def serve(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"]
        if OTHER_SCRIPT.fullmatch(name):
            name = self._script
        if name not in self._files:
            raise Refused(404, "This page does not serve this address.")
        return self._files[name].response(request)

    def _photo(self, picture: Image.Image) -> str:
        """Keep the first photograph as a small file, and return its address."""
        buffer = io.BytesIO()
        picture.save(buffer, "WEBP", quality=PHOTO_QUALITY)
        return self._keep("photo.webp", buffer.getvalue())

    def _picture(self, url: str) -> str:
        """Keep the picture of a data: URL as a file, and return its address."""
        suffix, data = picture_of(url)
        return self._keep(f"picture.{suffix}", data)

    def _keep(self, name: str, data: bytes) -> str:
        """Keep a file, and return its address relative to the page."""
        stem, _, suffix = name.rpartition(".")
        name = f"{stem}.{zlib.crc32(data):08x}.{suffix}"
        self._files[name] = File(data, KINDS[suffix])
        return f"{FOLDER}/{name}"
