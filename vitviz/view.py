"""What one model made of one photograph, for questions: where it looked, why it answered so, what if."""

from __future__ import annotations

import html
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitviz.explain import attention as methods
from vitviz.explain.attention import Fusion
from vitviz.explain.case import Named, class_index
from vitviz.explain.methods import attribute, method_named
from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.heatmap import Heatmap
from vitviz.model import ViT
from vitviz.preprocess import Geometry, Preprocess
from vitviz.probe.faithfulness import Faithfulness, faithfulness
from vitviz.probe.heads import CHEAP, HeadStatistics, head_statistics
from vitviz.probe.intervene import Change, intervene
from vitviz.probe.lens import LogitLens, logit_lens
from vitviz.probe.tokens import TokenPCA, token_pca
from vitviz.render.sheet import sheet
from vitviz.trace import Query, Trace
from vitviz.viewer.page import Scene, standalone

CACHED_QUESTIONS = 256
CACHED_EXPLANATIONS = 64
CACHED_BYTES = 64 * 2**20  # of answers for one photograph, where the image is so large that fewer questions fill it


class ExplorerError(ValueError):
    """A question this view cannot answer; the text says why and what to do."""


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
        self._explained: OrderedDict[tuple[Any, ...], TokenScores] = OrderedDict()
        self._answers: Callable[..., Any] = lru_cache(room)(partial(_ask, trace))

    @property
    def images(self) -> Tensor:
        """What the model was given: (1, channels, H, W) normalised pixels, where it runs and in its precision."""
        weights = next(self.model.parameters())
        return torch.from_numpy(self._pixels)[None].to(weights.device, weights.dtype)

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
        return [(self.labels[index], float(probabilities[index])) for index in self.best(k)]

    def best(self, k: int = 5) -> list[int]:
        """The indices of the k most probable classes, the best first; empty without a classifier."""
        if self.trace.logits is None:
            return []
        logits = self.trace.logits[0].float()  # (C,)
        best: list[int] = logits.topk(min(k, len(logits))).indices.tolist()
        return best

    def attention(self, block: int = -1, head: int | Fusion = "mean", query: Query | None = None) -> Heatmap:
        """Where a token looks in one block.

        Args:
            block: counted from 0, negative from the last.
            head: one head, counted from 0, or "mean", "max", "min" over heads.
            query: "cls", a prefix token's name, a patch (row, column), "mean" over the patches; the class token by
                default (the mean where there is none).
        """
        query = self._query(query)
        if -self.trace.depth <= block < 0:  # so that one question has one name
            block += self.trace.depth
        head = _plain(head)
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

    def head_maps(self, block: int = -1, query: Query | None = None) -> list[Heatmap]:
        """Every head of one block by itself, in order."""
        return [self.attention(block, head, query) for head in range(self.trace.heads)]

    def head_sheet(self, block: int = -1, query: Query | None = None, **options: Any) -> Image.Image:
        """A contact sheet of one block: the mean of its heads, then each head.

        `options` are those of `vitviz.render.sheet.sheet`: scale ("shared" or "each"), columns, dark, cmap, ...
        """
        maps = [self.attention(block, "mean", query), *self.head_maps(block, query)]
        labels = ["mean", *(f"head {head + 1}" for head in range(self.trace.heads))]
        title = f"Layer {block % self.trace.depth + 1}, from {query_words(self._query(query))}"
        return sheet(maps, title=title, labels=labels, **options)

    def layer_sheet(self, head: Fusion = "mean", query: Query | None = None, **options: Any) -> Image.Image:
        """A contact sheet of all blocks, the heads of each fused; `options` as for `head_sheet`."""
        labels = [f"layer {block + 1}" for block in self.trace.blocks]
        title = f"All layers, {head} of heads, from {query_words(self._query(query))}"
        return sheet(self.layer_maps(head, query), title=title, labels=labels, **options)

    def layer_maps(self, head: Fusion = "mean", query: Query | None = None) -> list[Heatmap]:
        """Every block with its heads fused, in order."""
        return [self.attention(block, head, query) for block in self.trace.blocks]

    def explain(
        self,
        method: str = "gae",
        target: Named | None = None,
        *,
        contrast: tuple[Named, Named] | None = None,
        **options: Any,
    ) -> Heatmap:
        """Which patches the answer rests on.

        Args:
            method: a name in `vitviz.explain.methods.METHODS`.
            target: the class to explain, by index or label; by default the predicted one.
            contrast: (A, B) in its place: why A and not B.
            options: of the method.

        Raises:
            ExplainError: if there is no such method, class or option.
        """
        about = method_named(method)
        options = {name: tuple(one) if isinstance(one, list) else one for name, one in options.items()}
        contrast = None if contrast is None else (contrast[0], contrast[1])
        asked = (method, target, contrast, repr(sorted(options.items())))
        scores = self._scores(
            asked,
            lambda: attribute(self.model, self.images, target, method, contrast=contrast, trace=self.trace, **options),
        )
        title = f"{about.title}, for {scores.target}" if scores.target else about.title
        unit = "attention" if method in ("attention", "rollout") else "score"
        classes = self._classes(target, contrast) if about.class_specific else ()
        return self._heatmap(scores, title, None, unit, classes)

    def _classes(self, target: Named | None, contrast: tuple[Named, Named] | None) -> tuple[int, ...]:
        """The class that a map is about, or two."""
        if contrast is not None:
            return tuple(class_index(self.model, one) for one in contrast)
        return (self.best(1)[0] if target is None else class_index(self.model, target),)

    def _scores(self, asked: tuple[Any, ...], work: Callable[[], TokenScores]) -> TokenScores:
        """The answer to an equal question, or the work done for it."""
        if asked not in self._explained:
            self._explained[asked] = work()
            while len(self._explained) > CACHED_EXPLANATIONS:
                self._explained.popitem(last=False)
        return self._explained[asked]

    def faithfulness(
        self,
        maps: Heatmap | Sequence[Heatmap],
        target: Named | None = None,
        *,
        contrast: tuple[Named, Named] | None = None,
        **options: Any,
    ) -> tuple[Faithfulness, ...]:
        """Whether maps of this photograph are to be believed: see `vitviz.probe.faithfulness.faithfulness`.

        Args:
            maps: one or several; several share the random orders that they are held against.
            target, contrast: the class they are tested for, as in `explain`; by default the one they are about, and the
                predicted one for maps that are about none.
            options: baseline, steps, random, seed, progress.

        Returns:
            One result a map, in order.

        Raises:
            ExplainError: if the maps are about different classes and none is named.
        """
        given = [maps] if isinstance(maps, Heatmap) else list(maps)
        if target is None and contrast is None:
            about = {one.classes for one in given if one.classes}
            if len(about) > 1:
                raise ExplainError("These maps are about different classes: test them apart, or name one by target=.")
            if about:
                first, *rest = about.pop()
                target, contrast = (None, (first, rest[0])) if rest else (first, None)
        scores = torch.from_numpy(np.stack([one.values for one in given]))  # (M, gh, gw)
        return faithfulness(self.model, self.images, scores, target, contrast=contrast, **options)

    def heads(
        self, names: Collection[str] = CHEAP, *, query: Query | None = None, target: Named | None = None
    ) -> HeadStatistics:
        """What tells the heads apart: see `vitviz.probe.heads.head_statistics`."""
        return head_statistics(self.model, self.trace, self.geometry, names=names, query=query, target=target)

    def lens(self, classes: Sequence[Named] | None = None) -> LogitLens:
        """What the classifier would read after each block: see `vitviz.probe.lens.logit_lens`."""
        return logit_lens(self.model, self.trace, classes)

    def colours(self, *, joint: bool = False) -> TokenPCA:
        """The patches of each block in the colours of three components: see `vitviz.probe.tokens.token_pca`."""
        return token_pca(self.model, self.trace, joint=joint)

    def intervene(self, **changes: Any) -> Change:
        """What if: heads off, edges cut, patches gone, a region swapped; see `vitviz.probe.intervene.intervene`.

        `view.intervene(drop=[(3, 4)]).top(3)` are the three classes that moved most without that patch.
        """
        return intervene(self.model, self.images, before=self.trace.logits, **changes)

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
        """The query by one name, whichever numbers it came in: JSON's lists and NumPy's integers are taken too."""
        if query is None:
            return self.trace.default_query
        plain = tuple(map(_plain, query)) if isinstance(query, tuple | list) else _plain(query)
        return cast(Query, plain)

    def _heatmap(
        self,
        scores: TokenScores,
        title: str,
        query: Query | None,
        unit: str = "attention",
        classes: tuple[int, ...] = (),
    ) -> Heatmap:
        mass = dict(zip(scores.names, scores.prefix[0].tolist(), strict=True))
        return Heatmap(
            values=scores.patches[0].float().cpu().numpy(),  # (gh, gw); NumPy has no bfloat16
            geometry=self.geometry,
            photo=self.photo,
            title=title,
            unit=unit,
            signed=scores.signed,
            prefix_mass=mass,
            query=query if isinstance(query, tuple) else None,
            classes=classes,
        )


def _plain(value: Any) -> Any:
    """NumPy's whole numbers, such as those of `argmax`, as Python's; all else as it is."""
    return int(value) if isinstance(value, np.integer) else value


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
