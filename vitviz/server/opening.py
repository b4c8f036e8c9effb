"""Open photographs: load models, run each once on a photograph, and hold the results in a bounded cache."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import asdict, replace

from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.formatting import counted, describe_bytes
from vitviz.images.decoding import decode_apart
from vitviz.model.devices import return_freed_memory
from vitviz.phrases import Phrase
from vitviz.server import sizes
from vitviz.server.arguments import ArgumentError, quote
from vitviz.server.gpu import open_view
from vitviz.server.jobs import BusyError, Jobs, Kind, check_cancelled, current, report
from vitviz.server.menu import LargerModels, Menu
from vitviz.server.models import Loaded, Models
from vitviz.server.scenes import OPEN, Cache, OpenScene, UnknownScene, picture_bytes, scene_id
from vitviz.server.uploads import Uploads
from vitviz.settings import SHARPER_SECONDS, is_loopback
from vitviz.view import View
from vitviz.web.examples import Example, examples
from vitviz.web.scene import Scene
from vitviz.weights.text_tower import text_tower_of

TRIM_EVERY = 5.0  # seconds between returns of freed memory, because the kernel clears memory before reuse
TOWERS = 2.5  # memory of both towers relative to the image tower: 2.2 for SigLIP B/16
DECODING = 150_000_000  # bytes of a large photograph and of its copy from the process that decodes it
READING = Phrase("reading-the-text", "Reading the text")  # progress message
MODEL = Phrase("the-model", "the model")  # in the error of a photograph that is too large
REPAIRING = Phrase("repairing", "Running the model with a register")
LIGHT_TOKENS = 1_400  # with more tokens, questions declared as light take longer than a few milliseconds

log = logging.getLogger(__name__)


class ModelLoadError(VitvizError):
    """Raised if a model cannot be loaded; the message gives the reason."""


class Opening:
    """Open photographs with the models of a menu.

    Args:
        menu: the page's models, and the rules for other models that visitors name.
        photographs: the page's examples; by default those that come with vitviz.

    Attributes:
        jobs: computes answers, each once.
        cache: open photographs, answers and maps.
        uploads: photographs of API clients, in the cache.
        notice: why the page opens with a model other than the operator's choice; empty if it does not.
    """

    def __init__(self, menu: Menu, photographs: Sequence[Example] | None = None) -> None:
        self.menu, self.examples = menu, list(examples() if photographs is None else photographs)
        self.jobs, self.cache = Jobs(menu.settings.places), Cache(menu.settings.scene_memory)
        self.uploads = Uploads(self.cache)
        self._paces: dict[str, sizes.Pace] = {}
        self._text_source = ""  # of the text tower loaded last, which stays in memory
        self._forward = threading.Lock()  # held while the model runs on a photograph
        self._trimmed = time.monotonic()  # when freed memory was last returned
        self._larger = LargerModels(menu)
        self.loaded = self._models()
        self.notice = self._settle_default()

    def open_scene(
        self,
        photo: bytes | None,
        image: str | None,
        model: str | None,
        size: int | None,
        ahead: bool,
        texts: Sequence[str] | None = None,
        registers: int | None = None,
    ) -> OpenScene:
        """Return the scene of a photograph or an example; the model runs only if the cache lacks the scene.

        Raises:
            ArgumentError, ConvertError: for texts as classes, if the model has no text tower or it does not fit.
            BusyError: if the model would have to run `ahead` of a visitor's request while anything else waits or runs.
        """
        data, example = self._photograph(photo, image)
        source = self.menu.permit(model or self.menu.default)
        loaded = self._load(source)
        name = scene_id(data, loaded.fingerprint, size, self.menu.settings.secret, texts, registers)
        scene: OpenScene | None = self.cache.get((name, OPEN))
        if scene is None and ahead and self.jobs.ahead(Kind.LONG)[0]:
            raise BusyError(self.jobs.ahead(Kind.PHOTO)[1])
        if scene is None and texts:
            plain = self.open_scene(photo, image, model, size, ahead, None, registers)
            return self._classify_texts(name, plain, texts)
        if scene is None and registers:
            return self._repair(name, self.open_scene(photo, image, model, size, ahead), registers)
        return scene or self._open(name, data, example, source, loaded.explorer, size)

    def begin(self, model: str | None) -> tuple[str, Future[Loaded]]:
        """Start loading a model; return a progress message, and the future of the model.

        Raises:
            MenuError: if visitors may not use the model.
        """
        source = self.menu.permit(model or self.menu.default)
        entry = self.menu.entry(source)
        size = f" ({describe_bytes(entry.size)})" if entry.size else ""
        return f"Loading {entry.title}{size}", self.loaded.begin(source)

    def _is_large(self, name: str | None) -> bool:
        """Return whether even light questions about a scene take longer than a few milliseconds."""
        scene: OpenScene | None = self.cache.get((name, OPEN))
        return scene is not None and scene.view.trace.count > LIGHT_TOKENS

    def _models(self) -> Models:
        menu = self.menu
        return Models(menu.load, menu.settings.memory, menu.default, lambda name: menu.entry(name).size, self._drop)

    def _drop(self, source: str) -> None:
        """Drop the scenes of an evicted model, which would keep it in memory."""
        self._paces.pop(source, None)
        self.cache.discard(lambda value: isinstance(value, OpenScene) and value.model == source)

    def _settle_default(self) -> str:
        """Load the page's first model, or the bundled one if that fails; return the error message, or ""."""
        named, menu = self.menu.entry(self.menu.default), self.menu
        try:
            self._load(menu.default)
        except VitvizError as error:
            if menu.default == menu.bundled:
                raise
            menu.default = menu.bundled
            self.loaded = self._models()  # replaced, because it pins the default; no model is loaded yet
            self._load(menu.default)
            log.warning("The page opens with %s: %s", menu.default, error)
            return f"Could not open {named.title}; the page shows {menu.entry(menu.default).title} instead. {error}"
        return ""

    def _load(self, source: str) -> Loaded:
        title = self.menu.entry(source).title
        try:
            return self.loaded.get(source)
        except VitvizError as error:
            text = str(error).replace(source, title)  # visitors do not need the path
            raise ModelLoadError(text if title in text else f"{title}: {text}") from error
        except Exception as error:
            log.exception("A model could not be loaded.")
            kind = type(error).__name__
            raise ModelLoadError(f"Expected {title} to open, got {kind}. Choose another model.") from error

    def _photograph(self, photo: bytes | None, image: str | None) -> tuple[bytes, Example | None]:
        """Return the bytes of a photograph, and the example that it equals, if any."""
        if photo is not None:
            equal = (
                example
                for example in self.examples
                if example.path.stat().st_size == len(photo) and example.path.read_bytes() == photo
            )
            return photo, next(equal, None)
        if image is None:
            raise ArgumentError("Expected a photograph, or the name of an example; got neither. Choose one.")
        examples = {example.name: example for example in self.examples}
        if image not in examples:
            known = ", ".join(examples)
            text = "Expected one of the examples {0}; got {1}. Choose one of them."
            raise ArgumentError(Phrase("no-such-example", text, known, quote(image)))
        return examples[image].path.read_bytes(), examples[image]

    def _open(
        self, name: str, data: bytes, example: Example | None, source: str, explorer: Explorer, size: int | None
    ) -> OpenScene:
        config, limit = explorer.model.config, self.menu.settings.side
        most = sizes.largest(config, limit)
        if size is not None and size > most:
            raise ArgumentError(f"Expected an input of at most {most} pixels for this model, got {size}. Choose fewer.")
        patches, seconds = sizes.cost(config, explorer.preprocess, sizes.USUAL, self._paces.get(source), size)
        self._check_opens(explorer, sizes.USUAL, size)
        running = Phrase("running-the-model", "Running the model on {0} patches", f"{patches:,}")

        large = sizes.is_large(config, explorer.preprocess, patches)  # pauses for other visitors' photographs
        with self.jobs.run(Kind.LONG if large else Kind.PHOTO):
            report(Phrase("opening-the-photograph", "Opening the photograph"))
            with self.cache.reserve(DECODING):
                picture = decode_apart(data, check=check_cancelled, trusted=is_loopback(current.get().address))
            with self.cache.reserve(picture_bytes(picture)), nullcontext() if large else self._forward:
                report(running, seconds)
                self._check_opens(explorer, picture.size, size)  # its shape may change the patches
                view = open_view(explorer, picture, size)
        pace = self._paces[source] = sizes.faster(view, self._paces.get(source))
        fits = sizes.limit_of(explorer.model, self.menu.settings, sizes.open_need)
        choices_of_size = sizes.sizes(config, explorer.preprocess, view.photo.size, pace, limit, fits)
        scene = Scene(
            view,
            note=example.caveat(view) if example else "",
            image=example.name if example else None,
            own=None if example else hashlib.sha256(data).hexdigest()[:32],
            model=source,
            size=size,
            sizes=[{**asdict(choice), "ahead": self._is_quick(choice)} for choice in choices_of_size],
        )
        opened = self._keep(OpenScene(name, scene), explorer)
        if time.monotonic() - self._trimmed > TRIM_EVERY:
            self._trimmed = time.monotonic()
            return_freed_memory()
        return opened

    def _check_opens(self, explorer: Explorer, photo: tuple[int, int], size: int | None) -> None:
        """Check that a photograph of this (width, height) can be opened at an input size, see `check_fits`."""
        model, own = explorer.model, explorer.preprocess
        patches = sizes.most_patches(model.config, own, photo, size)
        sizes.check_fits(model, own, MODEL, photo, patches, self.menu.settings, sizes.open_need)

    def _keep(self, opened: OpenScene, explorer: Explorer) -> OpenScene:
        """Cache a scene, unless its model has been evicted: the scene would keep the model in memory."""
        if self.loaded.holds(explorer):
            self.cache.put((opened.id, OPEN), opened)
        return opened

    def _classify_texts(self, name: str, opened: OpenScene, texts: Sequence[str]) -> OpenScene:
        """Return a scene whose classes are texts; the image tower does not run again."""
        self.load_text_tower(opened)
        with self.jobs.run(Kind.SHORT):
            report(READING)
            return self._derived(name, opened, opened.view.texts(texts), opened.scene.title)

    def _repair(self, name: str, opened: OpenScene, registers: int) -> OpenScene:
        """Return a scene of the same photograph whose model has test-time registers, see `View.repair`."""
        self._check_opens(self._load(opened.model).explorer, opened.view.photo.size, opened.scene.size)
        with self.jobs.run(Kind.PHOTO), self._forward:
            report(REPAIRING)
            title = f"{opened.scene.title} + {counted(registers, 'register')}"
            return self._derived(name, opened, opened.view.repair(registers), title)

    def _derived(self, name: str, opened: OpenScene, view: View, title: str) -> OpenScene:
        """Return a scene with another view of an open photograph."""
        scene = replace(opened.scene, view=view, title=title, note="")
        return self._keep(OpenScene(name, scene), self._load(opened.model).explorer)

    def load_text_tower(self, opened: OpenScene) -> None:
        """Load the text tower of a scene's model, unless it is loaded.

        Raises:
            ArgumentError: for a model without a text tower, or if the tower does not fit into the memory for models.
        """
        model = opened.view.model
        if model.text_source and model.text_source == self._text_source:
            return
        need, free = TOWERS * self._load(opened.model).nbytes, self.menu.settings.memory - self.loaded.used
        if model.text_source and need > free:
            raise ArgumentError(
                f"Expected a text tower that fits into {describe_bytes(max(0, free))} of memory, got one that takes "
                f"about {describe_bytes(int(need))}. Start the page with a larger --model-memory."
            )
        with self.jobs.run(Kind.LONG):
            report(READING)
            try:
                text_tower_of(model)
            except VitvizError as error:
                place, title = model.text_source, self.menu.entry(opened.model).title
                raise ArgumentError(str(error).replace(place, title) if place else str(error)) from error
        self._text_source = model.text_source

    def _is_quick(self, size: sizes.Size) -> bool:
        """Return whether the page may open a photograph at this size before the visitor asks for it."""
        return self.menu.settings.sharper and size.size is not None and 0 < (size.seconds or 0) <= SHARPER_SECONDS

    def _scene(self, name: str) -> OpenScene:
        scene: OpenScene | None = self.cache.get((name, OPEN))
        if scene is None:
            raise UnknownScene
        return scene
