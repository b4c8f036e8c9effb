"""One photograph, run once, asked many times."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from PIL import Image

from vitviz import budget
from vitviz.explain import attention as methods
from vitviz.explain.attention import Fusion
from vitviz.explain.scores import TokenScores
from vitviz.heatmap import Heatmap
from vitviz.image import decode
from vitviz.model import ViT
from vitviz.preprocess import Geometry, Preprocess
from vitviz.render.sheet import sheet
from vitviz.trace import Query, Trace
from vitviz.viewer.page import Scene, standalone

CACHED_QUESTIONS = 256
CACHED_BYTES = 64 * 2**20  # of answers for one photograph, where the image is so large that fewer questions fill it


class ExplorerError(ValueError):
    """A question this view cannot answer; the text says why and what to do."""


def best_device() -> torch.device:
    """CUDA if there is one, then Apple's MPS, then the CPU."""
    return next(torch.device(name) for name, there in _devices().items() if there)


def device_named(name: str | None) -> torch.device:
    """The device that a person asked for; the best there is for `None`.

    Raises:
        ExplorerError: if there is no such device here.
    """
    if name is None:
        return best_device()
    here = [known for known, there in _devices().items() if there]
    if name.split(":")[0] not in here:
        raise ExplorerError(f"Expected a device of this machine, one of {', '.join(here)}; got {name!r}.")
    return torch.device(name)


def _devices() -> dict[str, bool]:
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


class Explorer:
    """A model, ready to look at photographs.

    >>> import numpy as np, vitviz
    >>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10))
    >>> view = Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
    >>> view.attention(block=11, head=2, query=(0, 3)).values.shape
    (4, 4)

    Args:
        model: any `ViT`; it is put into eval mode.
        device: where to run; the model's own place by default.
    """

    def __init__(self, model: ViT, device: torch.device | str | None = None) -> None:
        self.model = model.eval() if device is None else model.eval().to(device)
        self.device = next(model.parameters()).device
        height, width = model.config.image_size
        own = model.pretrained.preprocess if model.pretrained else None
        self.preprocess = own or Preprocess(height=height, width=width, mode="squash")

    def open(self, image: Any, *, size: int | None = None) -> View:
        """Decode a photograph and run the model once.

        Args:
            image: a path, the bytes of a file, a PIL image, or an array (H, W), (H, W, 3) or (H, W, 4).
            size: of the model's input, in pixels, see `Preprocess.at`; the model's own by default.

        Raises:
            ImageError: if it is no picture that can be read, or the size is below one patch or absurdly large.
            ModelError: if its size does not fit the model.
            ExplorerError: if the memory is not enough; the text names the largest size that fits.
        """
        photo = decode(image)
        preprocess = self._at(size)
        need, free = self._bytes(preprocess, photo), budget.available_bytes(self.device)
        if free is not None and need > free:
            raise self._too_large(preprocess, photo, f"about {_size(need)} of memory, and {_size(free)} are free", free)
        try:
            return self._run(preprocess, photo)
        except (RuntimeError, MemoryError) as error:
            if not budget.is_out_of_memory(error):
                raise
        # Outside of the except: the error's traceback holds the tensors that were too many, and they have to go.
        # The estimate was too low here, so it is no use as it is: half of it should do.
        raise self._too_large(preprocess, photo, "more memory than there was", need // 2)

    def _at(self, size: int | None) -> Preprocess:
        return self.preprocess if size is None else self.preprocess.at(size, self.model.config.patch_size)

    def _run(self, preprocess: Preprocess, photo: Image.Image) -> View:
        prepared = preprocess(photo)
        precision = next(self.model.parameters()).dtype  # half-precision weights take half-precision pixels
        pixels = torch.from_numpy(prepared.pixels)[None].to(self.device, precision)  # (1, 3, H, W)
        began = time.perf_counter()
        trace = self.model.trace(pixels)
        if self.device.type != "cpu":
            torch.accelerator.synchronize()  # the time is that of the work, not of handing it over
        seconds = time.perf_counter() - began
        return View(self.model, preprocess, photo, prepared.pixels, prepared.geometry, trace, seconds)

    def _tokens(self, preprocess: Preprocess, photo: Image.Image) -> int:
        """N for a photograph, before it is run."""
        rows, columns = self.model.config.grid_of(*preprocess.input_size(*photo.size))
        return len(self.model.config.prefix) + rows * columns

    def _bytes(self, preprocess: Preprocess, photo: Image.Image) -> int:
        itemsize = next(self.model.parameters()).dtype.itemsize
        return budget.forward_bytes(self.model.config, self._tokens(preprocess, photo), itemsize=itemsize)

    def _too_large(self, preprocess: Preprocess, photo: Image.Image, why: str, free: int) -> ExplorerError:
        """What to say, with the largest size that fits into `free` bytes."""
        height, width = preprocess.input_size(*photo.size)
        patch, below = self.model.config.patch_size, max(preprocess.height, preprocess.width)
        fits = budget.largest_side(lambda side: self._bytes(self._at(side), photo), free, patch, below)
        advice = f"The largest that fits is size={fits}." if fits else "No size fits: free some memory."
        return ExplorerError(
            f"An image of {height} x {width} pixels, {self._tokens(preprocess, photo):,} tokens, takes {why} on "
            f"{self.device.type.upper()}. {advice}"
        )


class View:
    """One photograph as one model saw it. Every question reads the trace; the model does not run again.

    One for each request or user; not shared. Equal questions are answered from a bounded cache.

    Attributes:
        photo: the upright original.
        geometry: how patches map to its pixels.
        size: (height, width) of the model's input in pixels.
        trace: what the forward pass left behind.
        seconds: how long the forward pass took.
        device: where it ran, as people say it: "CUDA", "MPS" or "CPU".
    """

    def __init__(
        self,
        model: ViT,
        preprocess: Preprocess,
        photo: Image.Image,
        pixels: Any,
        geometry: Geometry,
        trace: Trace,
        seconds: float,
    ) -> None:
        self.model, self.preprocess, self.photo, self.geometry = model, preprocess, photo, geometry
        self.size, self.trace, self.seconds = geometry.input, trace, seconds
        self.device = trace.tokens.device.type.upper()
        self._pixels = pixels
        largest = 4 * trace.heads * trace.tokens.shape[1]  # bytes of one answer: a row of every head
        room = min(CACHED_QUESTIONS, max(1, CACHED_BYTES // largest))
        self._answers: Callable[..., Any] = lru_cache(room)(partial(_ask, trace))

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that the model knows, in the order of its outputs; none where its outputs have no names."""
        if self.model.pretrained is not None:
            return self.model.pretrained.labels
        return tuple(f"class {i}" for i in range(self.model.config.classes))

    @property
    def names_classes(self) -> bool:
        """Whether `predictions` can answer: the model has a classifier, and its outputs have names."""
        return self.trace.logits is not None and len(self.labels) > 0

    def seen(self) -> Image.Image:
        """What the model saw: the photograph after resizing, cropping and normalising, as a picture."""
        return self.preprocess.restore(self._pixels)

    def predictions(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most probable classes and their probabilities, the best first: `[("church", 0.93), ...]`.

        Raises:
            ExplorerError: if the model has no classifier, its outputs have no names, or k is below 1.
        """
        if k < 1:
            raise ExplorerError(f"Expected to be asked for at least one class, got k={k}.")
        if self.trace.logits is None:
            raise ExplorerError("This model has no classifier and predicts nothing; its attention works all the same.")
        if not self.names_classes:
            raise ExplorerError(
                f"This model's {self.trace.logits.shape[1]} outputs have no names: they are features, not classes, and "
                "predict nothing; its attention works all the same. If they are classes, load it with their labels."
            )
        probabilities = self.trace.logits[0].float().softmax(-1)  # (C,)
        top = probabilities.topk(min(k, len(probabilities)))
        return [(self.labels[i], p) for p, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)]

    def attention(self, block: int = -1, head: int | Fusion = "mean", query: Query | None = None) -> Heatmap:
        """Where a token looks in one block.

        Args:
            block: counted from 0, negative from the last.
            head: one head, counted from 0, or "mean", "max", "min" over heads.
            query: "cls", a prefix token's name, a patch (row, column), "mean" over the patches; the class token by
                default (the mean where there is none).
        """
        query = self._query(query)
        block = block + self.trace.depth if block < 0 else block  # so that one question has one name
        if isinstance(head, int):  # one row of all heads answers for each of them
            methods.check_head(self.trace, head)
            scores = self._answers("heads", block=block, query=query)[head]
        else:
            scores = self._answers("attention", block=block, head=head, query=query)
        which = f"head {head + 1}" if isinstance(head, int) else f"{head} of {self.trace.heads} heads"
        title = f"Layer {block + 1}, {which}, from {query_words(query)}"
        return self._heatmap(scores, title, query)

    def rollout(
        self,
        query: Query | None = None,
        *,
        fuse: Fusion = "mean",
        discard: float = 0.0,
        residual: float = 0.5,
        start: int = 0,
    ) -> Heatmap:
        """Attention rollout to a token: see `vitviz.explain.attention.rollout` for the options and the paper."""
        query = self._query(query)
        options = {"fuse": fuse, "discard": discard, "residual": residual, "start": start}
        scores = self._answers("rollout", query=query, **options)
        title = f"Rollout of layers {start + 1} to {self.trace.depth}, {fuse} of heads, from {query_words(query)}"
        return self._heatmap(scores, title, query)

    def heads(self, block: int = -1, query: Query | None = None) -> list[Heatmap]:
        """Every head of one block by itself, in order."""
        return [self.attention(block, head, query) for head in range(self.trace.heads)]

    def head_sheet(self, block: int = -1, query: Query | None = None, **options: Any) -> Image.Image:
        """A contact sheet of one block: the mean of its heads, then each head.

        `options` are those of `vitviz.render.sheet.sheet`: scale ("shared" or "each"), columns, dark, cmap, ...
        """
        maps = [self.attention(block, "mean", query), *self.heads(block, query)]
        labels = ["mean", *(f"head {head + 1}" for head in range(self.trace.heads))]
        title = f"Layer {block % self.trace.depth + 1}, from {query_words(self._query(query))}"
        return sheet(maps, title=title, labels=labels, **options)

    def layer_sheet(self, head: Fusion = "mean", query: Query | None = None, **options: Any) -> Image.Image:
        """A contact sheet of all blocks, the heads of each fused; `options` as for `head_sheet`."""
        labels = [f"layer {block + 1}" for block in self.trace.blocks]
        title = f"All layers, {head} of heads, from {query_words(self._query(query))}"
        return sheet(self.layers(head, query), title=title, labels=labels, **options)

    def layers(self, head: Fusion = "mean", query: Query | None = None) -> list[Heatmap]:
        """Every block with its heads fused, in order."""
        return [self.attention(block, head, query) for block in self.trace.blocks]

    def scene(self, *, title: str = "", image: str | None = None, maps: Sequence[Heatmap] = ()) -> Scene:
        """What a page shows of this view: see `vitviz.viewer.page.Scene`.

        Args:
            title: the model's name for people; by default the one that came with its weights.
            image: the name by which a link finds the photograph again, if it has one.
            maps: further maps over this photograph to choose from, such as those of attribution methods.
        """
        about = self.model.pretrained
        return Scene(
            trace=self.trace,
            photo=self.photo,
            geometry=self.geometry,
            model=about.source if about else "",
            title=title or (about.name if about else ""),
            image=image,
            predictions=self.predictions() if self.names_classes else (),
            labels=self.labels,
            doubt=self._doubt(),
            maps=maps,
        )

    def html(self, *, maps: Sequence[Heatmap] = ()) -> str:
        """The explorer with this photograph as one HTML file: it opens from disk without a network.

        Its size is about 6 bytes for each token, head channel and block: 7.4 MB for the bundled model.
        """
        return standalone(self.scene(maps=maps))

    def _repr_html_(self) -> str:
        """A notebook shows the explorer, in a frame of its own."""
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 900px; border: 0" title="vitviz"></iframe>'

    def _doubt(self) -> str:
        """What to say below the predictions, or instead of them."""
        if self.trace.logits is None:
            return "This model has no classifier and names nothing; where it looks is here as ever."
        if not self.names_classes:
            count = self.trace.logits.shape[1]
            return f"The {count} numbers that this model returns have no names; where it looks is here as ever."
        if self.predictions(1)[0][1] < 0.5:
            return "Not sure: the best is under a half. It may be none of the classes this model knows."
        return ""

    def _query(self, query: Query | None) -> Query:
        return self.trace.default_query if query is None else query

    def _heatmap(self, scores: TokenScores, title: str, query: Query) -> Heatmap:
        mass = dict(zip(scores.names, scores.prefix[0].tolist(), strict=True))
        return Heatmap(
            values=scores.patches[0].cpu().numpy(),  # (gh, gw)
            geometry=self.geometry,
            photo=self.photo,
            title=title,
            unit="attention",
            signed=scores.signed,
            prefix_mass=mass,
            query=query if isinstance(query, tuple) else None,
        )


def query_words(query: Query) -> str:
    """A query as a person says it; rows and columns are counted from 1, as layers and heads are."""
    if isinstance(query, tuple):
        return f"patch row {query[0] + 1}, column {query[1] + 1}"
    if query == "mean":
        return "all patches"
    return query.upper() if query == "cls" else str(query)


def _ask(trace: Trace, method: str, **options: Any) -> Any:
    """One question to the trace, by the method's name: the scores, or those of each head."""
    ask: dict[str, Callable[..., Any]] = {
        "attention": methods.attention,
        "heads": methods.attention_heads,
        "rollout": methods.rollout,
    }
    return ask[method](trace, **options)


def _size(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
