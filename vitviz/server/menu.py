"""List a page's models, decide which other models a visitor may name, and load the permitted ones."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitviz.errors import VitvizError
from vitviz.formatting import describe_bytes
from vitviz.model.vit import ViT
from vitviz.phrases import Phrase
from vitviz.resources import PUBLISHED
from vitviz.settings import Settings
from vitviz.weights import zoo
from vitviz.weights.catalog import CATALOG, CatalogEntry
from vitviz.weights.checks import CONFIG
from vitviz.weights.remote import LIBRARIES, RemoteError, check_hub, load_remote

# Model names: word characters, dots and dashes, on Hugging Face with an optional owner and slash; never a path.
_NAME = re.compile(r"[\w-][\w.-]*")
_OWNED = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
CHECKPOINT = ".safetensors"  # the only checkpoints that visitors may upload
UPLOAD = "upload:"  # prefix of an uploaded checkpoint's source; the first digits of its hash follow
_UPLOADED = re.compile(rf"{UPLOAD}[0-9a-f]{{16}}")
NO_UPLOADS = (
    "Expected a model from the menu: this page takes no checkpoints from visitors. Run vitviz on your own machine."
)
HUBS = {"hf:": "", "timm:": "timm/"}  # libraries whose models are on the model hub, and the prefix of their names there
HUB_SECONDS = 2.0  # if the hub does not answer within this time, no larger model is suggested
EXAMPLES = "timm:vit_small_patch16_224.dino, hf:facebook/dinov2-small or torchvision:vit_b_16"


class MenuError(VitvizError):
    """Raised for a model that this page does not load for visitors; the text says which models it does load."""


@dataclass(frozen=True)
class Entry:
    """Model in the menu.

    Args:
        source: argument of `vitviz.load`.
        title: display name.
        size: size of the weights in bytes; 0 if unknown.
        licence: short name of the licence; empty if unknown.
        known_for: short description of the model; may be empty.
    """

    source: str
    title: str
    size: int = 0
    licence: str = ""
    known_for: str = ""

    def describe(self) -> str:
        """Return the text shown in the menu: "DINO S/16 · 87 MB"."""
        return " · ".join(filter(None, (self.title, describe_bytes(self.size) if self.size else "")))

    @property
    def tip(self) -> str:
        """Return what the model is known for, and its licence."""
        known_for = self.known_for and _known_for(self.source, self.known_for)
        if known_for and self.licence:
            return Phrase("known-for-and-licence", "{0} · {1}", known_for, self.licence)
        return known_for or self.licence


class Menu:
    """Models in groups: first those on this machine, then published models that are downloaded when chosen.

    Args:
        settings: the operator's settings.
        bundled: names of bundled models; by default all.
        catalog: published models that visitors may choose; by default `vitviz.weights.catalog`.

    Attributes:
        default: the model that the page opens with.
        bundled: the model that the page opens with if the default cannot be loaded.
        uploads: the folder of uploaded checkpoints, until the program ends; `None` if there may be none.

    Raises:
        MenuError: if there is no model on this machine.
    """

    def __init__(
        self,
        settings: Settings,
        bundled: list[str] | None = None,
        catalog: Sequence[CatalogEntry] | None = None,
    ) -> None:
        self.settings, self.uploads = settings, _temporary_folder() if settings.upload else None
        self.catalog = CATALOG if catalog is None else catalog
        local = [_folder(name, zoo.folder_of(name)) for name in (zoo.bundled() if bundled is None else bundled)]
        local += [_own(source) for source in settings.models]
        if not local:
            raise MenuError("Expected at least one model, got none. Put a checkpoint folder into checkpoints/.")
        published = [_listed(model) for model in self.catalog]
        sources = [entry.source for entry in local]
        self.bundled = zoo.DEFAULT if zoo.DEFAULT in sources else sources[0]
        self.default = settings.default or self.bundled
        if all(self.default != entry.source for entry in (*local, *published)):
            local.append(_own(self.default))
        self.groups = (
            (Phrase("on-this-machine", "On this machine"), tuple(local)),
            (Phrase("downloaded-when-chosen", "Downloaded when chosen"), tuple(published)),
        )
        self._entries = {entry.source: entry for _, entries in self.groups for entry in entries}

    def entry(self, source: str) -> Entry:
        """Return what is known about a model before it is loaded."""
        if source.startswith(UPLOAD) and (path := self._uploaded(source)) is not None:
            return Entry(source, path.name, path.stat().st_size)
        return self._entries.get(source) or Entry(source, source)

    def permit(self, text: str) -> str:
        """Return the source that a visitor named, if visitors may load it.

        A visitor's text is never used as a path, because visitors could then probe this machine's disk.

        Raises:
            MenuError: if visitors may not load it.
        """
        source = text.strip()
        if source in self._entries:
            return source
        if source.startswith(UPLOAD):
            return self._permit_upload(source)
        if not self.settings.typed:
            text = (
                "Expected one of the models in this page's menu, got {0}. For other models, run vitviz on your own "
                "machine, where you can name any model."
            )
            raise MenuError(Phrase("model-not-in-menu", text, f"{source!r:.120}"))
        library, _, name = source.partition(":")
        if library not in LIBRARIES or not (_OWNED if library == "hf" else _NAME).fullmatch(name):
            text = "Expected the name of a model, such as {0}; got {1}. Check the name."
            raise MenuError(Phrase("model-name", text, EXAMPLES, f"{source!r:.120}"))
        return source

    def load(self, source: str) -> ViT:
        """Load a permitted model."""
        if source.startswith(UPLOAD):
            path = self._uploaded(source)
            if path is None:
                raise MenuError(f"Expected an uploaded checkpoint that still exists, got {source}. Upload it again.")
            try:
                return zoo.load(path)
            except VitvizError as error:  # visitors do not need the path
                raise MenuError(str(error).replace(str(path), path.name)) from error
        library, colon, name = source.partition(":")
        own = source in {entry.source for entry in self.groups[0][1]}
        if colon and library in LIBRARIES and not own:
            return load_remote(library, name)  # `zoo.load` would prefer a local folder of this name
        return zoo.load(source)

    def _permit_upload(self, source: str) -> str:
        if self.uploads is None:
            raise MenuError(NO_UPLOADS)
        if self._uploaded(source) is None:
            raise MenuError(f"Expected an uploaded checkpoint that still exists, got {source!r:.60}. Upload it again.")
        return source

    def _uploaded(self, source: str) -> Path | None:
        """Return the file of an uploaded checkpoint, if it exists; a visitor may have made up the source."""
        if self.uploads is None or not _UPLOADED.fullmatch(source):
            return None
        return next(self.uploads.glob(f"{source.removeprefix(UPLOAD)}/*"), None)


class LargerModels:
    """Catalog models with class names that are on the model hub and fit into memory: `PUBLISHED`, then smaller first.

    When the page is built, a background thread checks once whether the hub can be reached.
    """

    def __init__(self, menu: Menu) -> None:
        free = menu.settings.memory - menu.entry(menu.default).size
        models = (model for model in menu.catalog if model.classes and model.source.startswith(tuple(HUBS)))
        self._models = sorted(
            (model for model in models if model.size <= free), key=lambda model: (model.source != PUBLISHED, model.size)
        )
        self._reachable = ThreadPoolExecutor(1, thread_name_prefix="hub").submit(self._reaches_hub)

    def _reaches_hub(self) -> bool:
        if not self._models:
            return False
        library, colon, name = self._models[0].source.partition(":")
        try:
            check_hub(HUBS[library + colon] + name)
        except RemoteError:
            return False
        return True

    def models(self) -> list[dict[str, Any]]:
        """Return the models to suggest; an empty list if the hub cannot be reached."""
        wait([self._reachable], HUB_SECONDS)
        if not (self._reachable.done() and self._reachable.result()):
            return []
        return [
            {
                "source": model.source,
                "classes": model.classes,
                "words": f"{model.title}, {describe_bytes(model.size)}",
                "tip": Phrase("in-brackets", "{0} ({1})", _known_for(model.source, model.known_for), model.licence),
            }
            for model in self._models
        ]


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vitviz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _known_for(source: str, text: str) -> Phrase:
    """Return what a model is known for, with the key of its translation."""
    return Phrase(f"model-{source}", text)


def _own(source: str) -> Entry:
    """Return the entry of the operator's own model."""
    path = Path(source)
    if path.is_dir():
        return _folder(source, path)
    if (model := next((model for model in CATALOG if model.source == source), None)) is not None:
        return _listed(model)
    return Entry(source, path.name, path.stat().st_size) if path.is_file() else Entry(source, source)


def _listed(model: CatalogEntry) -> Entry:
    return Entry(model.source, model.title, model.size, model.licence, model.known_for)


def _folder(source: str, folder: Path) -> Entry:
    """Return the entry of a checkpoint folder. Unreadable files are reported by `load` when the model is chosen."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    config = config if isinstance(config, dict) else {}
    size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))  # without optimizer state
    return Entry(source, str(config.get("name") or folder.name), size, short_licence(str(config.get("licence") or "")))


def short_licence(licence: str) -> str:
    """Return a licence without the parts in brackets: "MIT (a); for research" becomes "MIT; for research"."""
    short = re.sub(r"\s*\([^)]*\)", "", licence).strip()
    return Phrase("licence-unknown", "licence unknown") if short.startswith("unknown") else short
