"""Provide the explorer as a component for other Gradio apps; see docs/embedding.md.

The component has the page, questions, cache and queue of `vitviz app`, but not its server.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr
from gradio.data_classes import FileData, GradioModel
from gradio.events import EventListener
from PIL import Image
from torch import nn

from vitviz.errors import VitvizError
from vitviz.images.decoding import decode
from vitviz.model.vit import ViT
from vitviz.phrases import with_phrases
from vitviz.server.arguments import MAX_PHOTO_BYTES, quote, too_large
from vitviz.server.endpoints import Endpoints
from vitviz.server.menu import Menu
from vitviz.server.routes import describe_error, lines
from vitviz.settings import GIGABYTE, Settings
from vitviz.web import bundle
from vitviz.web.questions import QUESTIONS
from vitviz.weights import zoo

__all__ = ["AttentionExplorer", "ComponentError"]

ALLOWED = tuple(q.name for q in QUESTIONS.values() if q.page and q.programs)  # questions that a component answers
ABANDONED = 10.0  # seconds without a call of the page after which its question is stopped
IN_MEMORY = "model"  # source name of a model that was passed as an object
_NAME = re.compile(r"[0-9a-f]{32}")
# Gradio calls the script with these four objects, see the guide "Custom HTML components".
START = "vitvizExplorer.start(element, {{ props, trigger, server, watch }}, {{ colors: {colors}, ...{setup} }});"


class ComponentError(VitvizError):
    """Raised for an argument or photograph that the component does not accept; the message says what it accepts."""


class Shown(GradioModel):
    """Serialized value of the component: the photograph's file, and the keyed hash that questions refer to."""

    name: str
    photo: FileData


class _Models(Menu):
    """Menu with only the component's model; visitors cannot load others."""

    def __init__(self, model: ViT | str, settings: Settings) -> None:
        self._model = model
        source = model if isinstance(model, str) else IN_MEMORY
        bundled = [source] if source in zoo.bundled() else []
        own = () if bundled else (source,)
        super().__init__(replace(settings, models=own, default=source), bundled=bundled, catalog=())

    def load(self, source: str) -> ViT:
        """Return the model."""
        return self._model if isinstance(self._model, ViT) else super().load(source)


class _Files:
    """Folder of bounded size with files that browsers fetch; the least recently used are deleted first.

    Args:
        parent: parent folder, from which Gradio serves files.
        most: maximum total size of files that are not pinned, in bytes.
    """

    def __init__(self, parent: str, most: int) -> None:
        os.makedirs(parent, exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix="vitviz-", dir=os.path.abspath(parent)))
        self.most, self._pinned = most, set[str]()
        self._sizes, self._lock = OrderedDict[str, int](), threading.Lock()
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Return the path of a file, and mark it as used."""
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return self.root / name

    def put(self, name: str, data: bytes, pinned: bool = False) -> Path:
        """Write a file, and delete the least recently used ones above the limit."""
        path = self.root / name
        with self._lock:
            if not path.exists():
                part = path.with_suffix(".part")
                part.write_bytes(data)
                part.replace(path)  # atomically: browsers never read half a file
            if pinned:
                self._pinned.add(name)
                self._sizes.pop(name, None)
            elif name not in self._pinned:
                self._sizes[name] = len(data)
                self._sizes.move_to_end(name)
            while sum(self._sizes.values()) > self.most and len(self._sizes) > 1:
                (self.root / self._sizes.popitem(last=False)[0]).unlink(missing_ok=True)
        return path


@dataclass(eq=False)
class _Open:
    """Open question of a page: its unread lines, the task that writes them, and the time of the last call."""

    lines: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    called: float = 0.0


class _Engine:
    """Model, cache, queue and files, shared by components with the same arguments."""

    def __init__(self, model: nn.Module | str, memory: float, places: int) -> None:
        self._model = model  # keeps the object alive, because engines are found by its identity
        size = round(memory * GIGABYTE)
        settings = Settings(typed=False, scene_memory=size, places=places)
        menu = _Models(model if isinstance(model, str | ViT) else zoo.load(model), settings)
        self.endpoints = Endpoints(menu, photographs=())
        self._secret, self._most = secrets.token_bytes(32), size
        self._files: _Files | None = None
        self._open: dict[tuple[str, str], _Open] = {}
        self._lock = threading.Lock()

    def files(self, parent: str) -> _Files:
        """Return the folder of files below Gradio's cache."""
        with self._lock:
            if self._files is None:
                self._files = _Files(parent, self._most)
            return self._files

    def name(self, data: bytes) -> str:
        """Return the keyed hash of a file, which cannot be guessed without its bytes."""
        return hmac.new(self._secret, data, "sha256").hexdigest()[:32]

    async def answer(self, call: object, address: str) -> dict[str, Any]:
        """Start or continue a question, and return its next line: progress or the answer.

        Args:
            call: {"ticket", "name", "ask", "source"} from the page, unchecked.
            address: address of the client.
        """
        if not (isinstance(call, dict) and isinstance(ticket := call.get("ticket"), str) and _NAME.fullmatch(ticket)):
            return _refused("Expected a question with a ticket of 32 digits, got none. Reload the page.")
        key = (address, ticket)
        question = self._open.get(key)
        if question is None:
            question = self._open[key] = _Open()
            question.called = time.monotonic()
            question.task = asyncio.create_task(self._follow(key, question, call))
        question.called = time.monotonic()
        try:
            line = with_phrases(await asyncio.wait_for(question.lines.get(), ABANDONED))
        except asyncio.TimeoutError:
            return {"progress": {}}
        if "progress" not in line:
            self._open.pop(key, None)
        return line

    def leave(self, ticket: object, address: str) -> None:
        """Cancel a question whose page no longer waits."""
        question = self._open.get((address, str(ticket)))
        if question is not None and question.task is not None:
            question.task.cancel()

    async def _follow(self, key: tuple[str, str], question: _Open, call: dict[str, Any]) -> None:
        """Write the lines of a question; stop if its page does not call any more."""
        line = _refused("This was stopped. Ask again.")
        try:
            name, ask, source, photo = await asyncio.to_thread(self._arguments, call)
            async with aclosing(lines(self.endpoints, name, ask, key[0], source, photo)) as answers:
                async for message in answers:
                    if "progress" not in message:
                        line = await asyncio.to_thread(self._packed, message)
                    elif time.monotonic() - question.called > ABANDONED:
                        break
                    else:
                        question.lines.put_nowait(message)
        except Exception as error:  # noqa: BLE001 - described to the page
            line = {"error": describe_error(error)}
        finally:
            question.lines.put_nowait(line)
            asyncio.get_running_loop().call_later(ABANDONED, self._open.pop, key, None)

    def _arguments(self, call: dict[str, Any]) -> tuple[str, object, object, bytes | None]:
        """Return the arguments of `lines` from a call: name, arguments, source and photograph.

        Raises:
            ComponentError: for an unknown question, or a photograph that was deleted.
        """
        name, sent = call.get("name"), call.get("source")
        source = sent if isinstance(sent, dict) else {}
        if name not in ALLOWED:
            raise ComponentError(f"Expected one of {', '.join(ALLOWED)}; got {quote(name)}. Ask one of them.")
        if sent is None and name != "open":
            return name, call.get("ask", {}), None, None
        photo = source.get("photo")
        if not (isinstance(photo, str) and _NAME.fullmatch(photo) and self._files is not None):
            raise ComponentError(f"Expected the name of a photograph, got {quote(photo)}. Reload the page.")
        path = self._files.path(photo)
        if not path.is_file():
            raise ComponentError(
                "Expected a photograph in this app's cache, got one that was deleted. Choose it again."
            )
        opened = {"image": None, **{name: source.get(name) for name in ("model", "size", "registers")}}
        return name, call.get("ask", {}), opened, path.read_bytes()

    def _packed(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the last line as JSON; bytes are written to a file and replaced by its name."""
        data = line.get("data")
        if not isinstance(data, bytes):
            return line
        assert self._files is not None, "a scene is open, so its photograph is a file"
        return {"file": self._files.put(f"{self.name(data)}.bin", data).name}


_ENGINES: weakref.WeakValueDictionary[tuple[object, ...], _Engine] = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def _engine(model: nn.Module | str | os.PathLike[str], memory: float, places: int) -> _Engine:
    """Return the shared engine for these arguments; Gradio recreates a component when its properties change."""
    if not isinstance(model, nn.Module | str | os.PathLike):
        raise ComponentError(f"Expected a model or its name, got {quote(model)}. Pass an argument of vitviz.load.")
    if not (memory > 0 and places > 0):
        raise ComponentError(f"Expected memory and places above 0, got {memory} and {places}. Raise them.")
    model = model if isinstance(model, nn.Module) else os.fspath(model)
    key = (id(model) if isinstance(model, nn.Module) else model, memory, places)
    with _MAKING:
        engine = _ENGINES.get(key)
        if engine is None:
            engine = _ENGINES[key] = _Engine(model, memory, places)
        return engine


def _refused(text: str) -> dict[str, Any]:
    return {"error": {"kind": "refused", "text": text}}


class AttentionExplorer(gr.HTML):
    """The explorer of one model as a Gradio component.

    Its value is a photograph: a path, a PIL image or an array (H, W, 3). Functions receive it as the path of the
    photograph's file. Events have the selection, counted from 0, as attributes of `gr.EventData`: `patch` (row, column;
    `None` for CLS or the mean), `block`, `head` (a number, or "mean", "max", "min") and `prediction` ("label", "index",
    "probability"; `None` without a classifier; the probability is `None` for a class that is not among the best).

    Args:
        value: the photograph, or `None`.
        model: a model, or a source for `vitviz.load`.
        memory: GB for open photographs and answers, and the same on disk for the files that browsers fetch.
        places: maximum number of photographs and short questions that wait or run, and of long ones; further ones are
            refused as busy.
        options: `elem_id`, `visible`, `scale` and other arguments of `gr.HTML`.

    Raises:
        ComponentError: for arguments of other types.
        CheckpointError: if the model does not exist.
    """

    EVENTS: Any = [EventListener(f"select{part}") for part in ("", "_patch", "_block", "_head", "_prediction")]
    data_model = Shown

    def __init__(
        self,
        value: str | os.PathLike[str] | Image.Image | Any | Callable[[], Any] | None = None,
        *,
        model: nn.Module | str | os.PathLike[str] = zoo.DEFAULT,
        memory: float = 0.5,
        places: int = 64,
        **options: Any,
    ) -> None:
        engine = self._engine = _engine(model, memory, places)
        self._made = False

        async def answer(call: dict[str, Any], request: gr.Request) -> dict[str, Any]:
            return await engine.answer(call, _address(request))

        async def leave(ticket: str, request: gr.Request) -> None:
            engine.leave(ticket, _address(request))

        setup = {"style": bundle.contained_style(), "models": with_phrases(engine.endpoints.models())}
        start = START.format(colors=bundle.colors(), setup=json.dumps(setup))
        functions = [answer, leave]
        self.start(
            value, bundle.script("web/component.js") + start, bundle.template(), server_functions=functions, **options
        )
        self._made = True

    def start(self, value: Any, script: str, template: str, **options: Any) -> None:
        """Initialize the component.

        Args:
            value: see the class.
            script: runs in a function with the arguments of Gradio's `js_on_load`.
            template: HTML, from `bundle.template`.
            options: other arguments of `gr.HTML`.
        """
        super().__init__(value, html_template=template, js_on_load=script, apply_default_css=False, **options)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse unknown attributes; `gr.HTML` would treat any quoted word of a script as an event."""
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def postprocess(self, value: Any) -> Any:
        """Write a photograph where browsers can fetch it, and return it as `Shown`; `None` stays `None`.

        Raises:
            ComponentError: if its file is too large.
            ImageError: if it is not an image.
        """
        if value is None:
            return None
        data = _encoded(value)
        name = self._engine.name(data)
        files = self._engine.files(self.GRADIO_CACHE)
        # Photographs of visitors may be deleted, the app's own is pinned.
        return Shown(name=name, photo=FileData(path=str(files.put(name, data, pinned=not self._made))))

    def preprocess(self, payload: Any) -> str | None:
        """Return the path of a photograph from a `Shown`; `None` stays `None`.

        Raises:
            gr.Error: if it is not a file in Gradio's cache.
        """
        if payload is None:
            return None
        cache, path = Path(self.GRADIO_CACHE).resolve(), Path(payload.photo.path).resolve()
        if not (path.is_relative_to(cache) and path.is_file()):
            raise gr.Error(
                "Expected a photograph in this app's cache, got none. Choose it again.", print_exception=False
            )
        return str(path)

    def api_info(self) -> dict[str, Any]:
        """Return the schema of the value for Gradio's API."""
        return Shown.model_json_schema()

    def example_payload(self) -> Any:
        """Return a value for Gradio's documentation of the API."""
        return {"name": "0" * 32, "photo": {"path": "photo.jpg", "meta": {"_type": "gradio.FileData"}}}

    def example_value(self) -> Any:
        """Return an argument of `postprocess`, for Gradio's examples."""
        return Image.new("RGB", (32, 32))


def _address(request: gr.Request) -> str:
    return request.client.host if request.client is not None else "unknown"


def _encoded(value: Any) -> bytes:
    """Return the bytes of a photograph's file unchanged, or an image or array as PNG."""
    if isinstance(value, str | os.PathLike):
        path = Path(value)
        decode(path)  # refuse files that are not images before serving them
        data = path.read_bytes()
    else:
        buffer = io.BytesIO()
        decode(value).save(buffer, "PNG", compress_level=1)
        data = buffer.getvalue()
    if len(data) > MAX_PHOTO_BYTES:
        raise ComponentError(too_large(len(data)))
    return data
