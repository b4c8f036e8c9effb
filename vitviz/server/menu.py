"""List the models of a page, and decide which others a visitor may name. Nothing is loaded before it is permitted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitviz.errors import VitvizError
from vitviz.model.vit import ViT
from vitviz.server.uploads import UploadFolder
from vitviz.settings import GIGABYTE, Settings
from vitviz.weights import zoo
from vitviz.weights.catalog import CATALOG, CatalogEntry
from vitviz.weights.checks import CONFIG
from vitviz.weights.remote import LIBRARIES, load_remote

# What a library may call a model: words, dots and dashes, and for Hugging Face an owner before a slash. No path.
_NAME = re.compile(r"[\w-][\w.-]*")
_OWNED = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
UPLOAD = "upload:"  # the source of a checkpoint that a visitor has uploaded, before its hash
_UPLOADED = re.compile(rf"{UPLOAD}[0-9a-f]{{16}}")
NO_UPLOADS = (
    "Expected a model of the menu: this page takes no checkpoints from visitors. Run vitviz on your own machine."
)
EXAMPLES = "timm:vit_small_patch16_224.dino, hf:facebook/dinov2-small or torchvision:vit_b_16"


class MenuError(VitvizError):
    """Refusal of a model that this page does not load for visitors; the text says which it does."""


@dataclass(frozen=True)
class Entry:
    """Line of the menu.

    Args:
        source: what `vitviz.load` takes.
        title: what people call it.
        size: of its weights, in bytes; 0 where that is not known.
        licence: in a word or two; empty where it is not known.
        known_for: in a few words, or empty.
    """

    source: str
    title: str
    size: int = 0
    licence: str = ""
    known_for: str = ""

    def describe(self) -> str:
        """Return the line as a person reads it: "DINO S/16 · 87 MB · Apache-2.0"."""
        return " · ".join(filter(None, (self.title, describe_bytes(self.size) if self.size else "", self.licence)))


class Menu:
    """Models in groups: those of this machine first, then published ones that are downloaded when chosen.

    Args:
        settings: what the operator allows.
        bundled: names of bundled models; all by default.
        uploads: the folder of uploaded checkpoints.
        catalog: published models that visitors may choose; `vitviz.weights.catalog` by default.

    Attributes:
        default: the model that the page opens with.
        bundled: the model that it opens with where that one cannot be had.

    Raises:
        MenuError: if there is none on this machine, so that nothing could open the page.
    """

    def __init__(
        self,
        settings: Settings,
        bundled: list[str] | None = None,
        uploads: UploadFolder | None = None,
        catalog: Sequence[CatalogEntry] | None = None,
    ) -> None:
        self.settings, self.uploads = settings, uploads
        self.catalog = CATALOG if catalog is None else catalog
        here = [_bundled(name) for name in (zoo.bundled() if bundled is None else bundled)]
        here += [_own(source) for source in settings.models]
        if not here:
            raise MenuError("Expected at least one model, got none. Put a checkpoint folder into checkpoints/.")
        listed = [Entry(one.source, one.title, one.size, one.licence, one.known_for) for one in self.catalog]
        sources = [one.source for one in here]
        self.bundled = zoo.DEFAULT if zoo.DEFAULT in sources else sources[0]
        self.default = settings.default or self.bundled
        if all(self.default != one.source for one in (*here, *listed)):
            here.append(_own(self.default))
        self.groups = (("On this machine", tuple(here)), ("Downloaded when chosen", tuple(listed)))
        self._entries = {entry.source: entry for _, entries in self.groups for entry in entries}

    def entry(self, source: str) -> Entry:
        """Return what is known of a model before it is loaded."""
        if source.startswith(UPLOAD) and (path := self._uploaded(source)) is not None:
            return Entry(source, path.name, path.stat().st_size)
        return self._entries.get(source) or Entry(source, source)

    def permit(self, text: str) -> str:
        """Return the source that a visitor named, if it is one that visitors may load.

        Paths are never read for them: they would tell strangers what lies on this machine's disk.

        Raises:
            MenuError: if it is not.
        """
        source = text.strip()
        if source in self._entries:
            return source
        if source.startswith(UPLOAD):
            return self._permit_upload(source)
        if not self.settings.typed:
            raise MenuError(
                f"Expected one of the models in this page's menu, got {source!r:.120}. For other models run vitviz on "
                "your own machine, where any can be named."
            )
        library, _, name = source.partition(":")
        if library not in LIBRARIES or not (_OWNED if library == "hf" else _NAME).fullmatch(name):
            raise MenuError(f"Expected the name of a model, such as {EXAMPLES}; got {source!r:.120}. Check it.")
        return source

    def load(self, source: str) -> ViT:
        """Load a model that was permitted."""
        if source.startswith(UPLOAD):
            path = self._uploaded(source)
            if path is None:
                raise MenuError(f"Expected an uploaded checkpoint that is still here, got {source}. Upload it again.")
            try:
                return zoo.load(path)
            except VitvizError as error:  # a visitor need not know where uploads lie
                raise MenuError(str(error).replace(str(path), path.name)) from error
        library, colon, name = source.partition(":")
        own = source in {entry.source for entry in self.groups[0][1]}
        if colon and library in LIBRARIES and not own:
            return load_remote(library, name)  # not a folder of this name in the working directory
        return zoo.load(source)

    def _permit_upload(self, source: str) -> str:
        if not self.settings.upload:
            raise MenuError(NO_UPLOADS)
        if not _UPLOADED.fullmatch(source) or self._uploaded(source) is None:
            raise MenuError(f"Expected an uploaded checkpoint that is still here, got {source!r:.60}. Upload it again.")
        return source

    def _uploaded(self, source: str) -> Path | None:
        return None if self.uploads is None else self.uploads.find(source.removeprefix(UPLOAD))


def _bundled(name: str) -> Entry:
    return _folder(name, zoo.folder_of(name))


def _own(source: str) -> Entry:
    """Return the entry of the operator's own model."""
    path = Path(source)
    if path.is_dir():
        return _folder(source, path)
    listed = next((one for one in CATALOG if one.source == source), None)
    if listed is not None:
        return Entry(source, listed.title, listed.size, listed.licence, listed.known_for)
    return Entry(source, path.name, path.stat().st_size) if path.is_file() else Entry(source, source)


def _folder(source: str, folder: Path) -> Entry:
    """Return the entry of a folder. What cannot be read here is left to `load`, which says why when it is chosen."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    config = config if isinstance(config, dict) else {}
    size = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))  # not the state of a training
    return Entry(source, str(config.get("name") or folder.name), size, short_licence(str(config.get("licence") or "")))


def short_licence(licence: str) -> str:
    """Return a licence without what stands in brackets: "MIT (a); for research" is "MIT; for research"."""
    short = re.sub(r"\s*\([^)]*\)", "", licence).strip()
    return "licence unknown" if short.startswith("unknown") else short  # the word alone says nothing in a menu


def describe_bytes(count: int) -> str:
    """Return a number of bytes as a person reads it, in units of a thousand as shops and downloads count."""
    if count >= GIGABYTE:
        return f"{count / GIGABYTE:.1f} GB"
    return f"{round(count / 10**6)} MB" if count >= 10**6 else f"{math.ceil(count / 1000)} kB"
