"""Define the view of one photograph: predictions, attention, explanations and interventions."""

import base64
import html
import io
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitviz import rooms
from vitviz.analysis.decomposition import Decomposition, decompose, target_reading
from vitviz.analysis.edges import Edge, edge
from vitviz.analysis.head_statistics import HeadStatistics, head_statistics
from vitviz.analysis.interventions import Change, intervene, patch
from vitviz.analysis.logit_lens import LogitLens, logit_lens
from vitviz.analysis.pairs import BLOCK, DESCRIPTOR, Descriptor, PatchSimilarity, compare_patches
from vitviz.analysis.sinks import Sinks, sinks
from vitviz.analysis.tokens import TokenPCA, token_pca
from vitviz.attribution.attention import Fusion, attention_heads, check_head
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import attribute, check_options, default_methods
from vitviz.attribution.target_specs import OTHER_MODEL, Contrast, Named, TargetOf
from vitviz.errors import VitvizError
from vitviz.evaluation.evidence import METHOD, PASSES, Evidence, evidence
from vitviz.evaluation.faithfulness import Faithfulness, Maps, curve_passes, faithfulness
from vitviz.evaluation.masking import usual_baseline
from vitviz.fields import check_arguments
from vitviz.formatting import PERHAPS, describe_prediction
from vitviz.heatmap import Heatmap
from vitviz.images.geometry import Geometry
from vitviz.images.picture import Picture
from vitviz.images.preprocess import Preprocess
from vitviz.language.captioner import load_captioner
from vitviz.language.words import Words
from vitviz.model.registers import find_neurons
from vitviz.model.trace import AttentionTrace, Query, Trace, describe_query
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE, activate, rank
from vitviz.phrases import Phrase
from vitviz.progress import watch
from vitviz.weights.text_tower import TextTower, classify_texts
from vitviz.weights.zoo import load
from vitviz.writing import write

CACHED_RESULTS = 256
CACHED_BYTES = 64 * 2**20  # cache size for the results of one photograph
CELL_MEGABYTES = 10  # maximum size of a page in a notebook cell
DARKENED: dict[str, Any] = {"cmap": "gray_r", "alpha": 0.8, "spotlight": True}  # options of `overlay`
PAGE_MEGABYTES = 160  # maximum size of a page file; enough for 6,000 tokens of ViT-S


class ExplorerError(VitvizError):
    """Raised if a view cannot compute a result, or a photograph does not fit into memory."""


@check_arguments(ExplorerError)
class View:
    """One photograph and the trace of one forward pass, which most methods read without running the model again.

    A bounded cache keeps results. Threads may share a view.

    Attributes:
        photo: the upright original.
        geometry: maps patches to pixels of the photograph.
        size: (height, width) of the model's input in pixels.
        trace: intermediate results of the forward pass.
        seconds: duration of the forward pass.
        device: "CUDA", "MPS" or "CPU".
        name: file name of the photograph, or "".
    """

    def __init__(
        self,
        model: ViT,
        preprocess: Preprocess,
        photo: Image.Image,
        pixels: Any,
        geometry: Geometry,
        trace: AttentionTrace,
        seconds: float,
        name: str = "",
    ) -> None:
        self.model, self.preprocess, self.photo, self.geometry = model, preprocess, photo, geometry
        self.size, self.trace, self.seconds, self.name = geometry.input, trace, seconds, name
        self.device = trace.device.type.upper()
        self._pixels = pixels
        largest = 4 * trace.heads * trace.count  # bytes of the largest result: one row per head
        self._capacity = min(CACHED_RESULTS, max(1, CACHED_BYTES // largest))
        self._cache: dict[tuple[Any, ...], Any] = {}

    @classmethod
    @check_arguments(ExplorerError)
    def of_words(cls, words: Words, frame: int | None = None) -> "View":
        """Return the view of the vision tower of a vision-language model, for one part of the photograph.

        The tower runs again, on the pixels of this part that it got when the model answered.

        Args:
            words: from `vitviz.words`, or from a captioner.
            frame: index of the part in `words.frames`; by default `words.whole`.

        Raises:
            WordsError: for a part that is not one image.
            ConvertError: for a tower of a class that vitviz does not know.
        """
        index = words.whole if frame is None else frame
        module, preprocess, pixels = words.answer.tower(index)
        model = module if isinstance(module, ViT) else load(module, preprocess=preprocess)
        part, (left, top, _, _) = words.frames[index], words.box(index)
        down, across = (part.source[axis + 2] / part.sizes[-1][axis] for axis in (0, 1))
        height, width = pixels.shape[2:]
        frame_box = (left, top, left + width * across, top + height * down)
        began = time.perf_counter()
        trace = model.trace(pixels)
        seconds, geometry = time.perf_counter() - began, Geometry(words.photo.size, (height, width), frame_box)
        return cls(model, preprocess, words.photo, pixels[0].float().cpu().numpy(), geometry, trace, seconds)

    def __repr__(self) -> str:
        (height, width), (rows, columns) = self.size, self.trace.grid
        parts = [self.name, f"{self.photo.width} x {self.photo.height} pixels", self.describe()]
        return f"<View of {', '.join(filter(None, parts))}; input {width} x {height}, {rows} x {columns} patches>"

    @property
    def images(self) -> Tensor:
        """Return the model's input: (1, channels, H, W) normalized pixels, on its device and in its precision."""
        weights = next(self.model.parameters())
        return torch.from_numpy(self._pixels)[None].to(weights.device, weights.dtype)

    @property
    def nbytes(self) -> int:
        """Return the memory of input, trace and cached results in bytes, without the photograph."""
        results = [part for result in list(self._cache.values()) for part in _parts(result)]
        return int(self._pixels.nbytes) + self.trace.nbytes + sum(map(_result_bytes, results))

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the model's class names in the order of its outputs, or an empty tuple."""
        if self.model.pretrained is not None:
            return self.model.pretrained.labels
        return tuple(f"class {i}" for i in range(self.model.config.classes))

    @property
    def names_classes(self) -> bool:
        """Return whether the model has a classifier with class names, which `predictions` needs."""
        return self.trace.logits is not None and len(self.labels) > 0

    @property
    def features(self) -> NDArray[np.float32]:
        """Return the features, the classifier's input: (F,)."""
        with torch.no_grad():
            pooled: NDArray[np.float32] = self.model.read_out(self.trace.tokens)[0].float().cpu().numpy()
        return pooled

    def seen(self) -> Image.Image:
        """Return the model's input as a picture: the photograph after resizing and cropping."""
        return self.preprocess.restore(self._pixels)

    def caption(self, prompt: str = "", answer: str | None = None) -> Words:
        """Return a caption by the captioner that belongs to the model, and where each word attends.

        Args:
            prompt: the beginning of the caption, such as "in the top left".
            answer: words that are fed in after the prompt; by default, the most probable ones.

        Raises:
            CaptionError: if the model has no captioner, or for words that it does not know.
        """
        return load_captioner(self.model).words(self.photo, prompt, answer)

    def predictions(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the k most probable classes with probabilities, best first: `[("church", 0.93), ...]`.

        With several labels per image, each has its own probability (sigmoid). For values (regression), return the first
        k values in the order of the outputs. See `vitviz.ViT.problem_type`.

        Raises:
            ExplorerError: if the model has no classifier or class names, or k is below 1.
        """
        if k < 1:
            raise ExplorerError(f"Expected k of at least 1 class, got {k}. Ask for one or more.")
        if self.trace.logits is None:
            raise ExplorerError(
                "Expected a model with a classifier, got one with no classifier. Look at its attention."
            )
        if not self.names_classes:
            raise ExplorerError(
                f"Expected a model with named classes, got one whose {self.trace.logits.shape[1]} outputs have no "
                "names: they are features. If they are classes, name them by labels=[...] of vitviz.load, or --labels."
            )
        outputs = activate(self.trace.logits[0].float(), self.model.problem_type)  # (C,)
        return [(self.labels[index], float(outputs[index])) for index in self.best(k)]

    def best(self, k: int = 5) -> list[int]:
        """Return the indices of the k most probable classes, best first, or of the first k values (regression).

        The list is empty without a classifier.
        """
        if self.trace.logits is None:
            return []
        best: list[int] = rank(self.trace.logits[0].float(), self.model.problem_type)[:k].tolist()
        return best

    @property
    def sure_above(self) -> float | None:
        """Return the probability at and above which the model is sure of its first class; see `vitviz.Pretrained`."""
        return None if self.model.pretrained is None else self.model.pretrained.sure_above

    @property
    def known(self) -> bool | None:
        """Return whether the photograph seems to show one of the classes; `None` if the model has no threshold.

        A photograph is unknown if the log-sum-exp of its logits is below `vitviz.Pretrained.known_above` and no class
        has 30 %.
        """
        about = self.model.pretrained
        if about is None or self.trace.logits is None:
            return None
        return about.knows(self.trace.logits[0])

    def group(self, least: float | None = None) -> tuple[str, float, list[str]] | None:
        """Return the smallest group of classes above a probability: `("dog", 0.93, ["beagle", "boxer"])`.

        Args:
            least: minimum probability; by default `vitviz.Pretrained.group_above`.

        Returns:
            Name, probability and up to three most probable classes of the group, or `None` if there is no such group;
            see `vitviz.Pretrained.groups`.
        """
        about = self.model.pretrained
        if about is None or not about.groups or not self.names_classes or self.trace.logits is None:
            return None
        if self.model.problem_type != SINGLE:
            return None
        if least is None:
            least = about.group_above
        probability = dict(zip(about.labels, self.trace.logits[0].float().softmax(-1).tolist(), strict=True))
        totals = {group: sum(probability[label] for label in group[1:]) for group in about.groups}
        enough = [group for group, total in totals.items() if total >= least]
        if not enough:
            return None
        group = min(enough, key=lambda group: (len(group), -totals[group]))
        members = sorted(group[1:], key=probability.__getitem__, reverse=True)[:PERHAPS]
        return group[0], min(1.0, totals[group]), members

    def describe(self) -> str:
        """Return the prediction in one line; empty without named classes.

        "cat (95.0 %)", "Probably cat (81.0 %)", "Of 20 labels: cat 99.0 %, dog 98.0 %" or "age in years: 34.20".
        """
        if not self.names_classes:
            return ""
        labels, probabilities = zip(*self.predictions(PERHAPS), strict=True)
        known = self.known is not False
        return describe_prediction(
            labels, probabilities, len(self.labels), self.sure_above, self.group(), known, self.model.problem_type
        )

    def attention(self, block: int = -1, head: int | Fusion = "mean", query: Query | None = None) -> Heatmap:
        """Return the attention of one query token in one block.

        Args:
            block: index from 0, negative from the last.
            head: index from 0, or "mean", "max", "min" over heads.
            query: "cls", a prefix token's name, a patch (row, column), or "mean" over the patches; the class token by
                default, or the mean without one.
        """
        if isinstance(head, int):
            check_head(self.trace, head, block)
            return self.head_maps(block, query)[head]
        return self.explain("attention", block=block, head=head, query=query)

    def rollout(self, query: Query | None = None, **options: Any) -> Heatmap:
        """Return attention rollout to a token; `options` are those of `vitviz.rollout`: fuse, discard, residual, ..."""
        return self.explain("rollout", query=query, **options)

    def head_maps(self, block: int = -1, query: Query | None = None) -> list[Heatmap]:
        """Return the attention of every head of one block, in order."""
        block, query = self._block(block), self._query(query)

        def compute() -> list[Heatmap]:  # computed together, because one row has all heads
            heads = attention_heads(self.trace, block, query)
            return [heatmap.over(self.photo, self.geometry) for (heatmap,) in heads]

        return list(self._cached(("heads", block, query), compute))

    def layer_maps(self, head: Fusion = "mean", query: Query | None = None) -> list[Heatmap]:
        """Return the attention of every block with fused heads, in order."""
        return [self.attention(block, head, query) for block in self.trace.blocks]

    def head_sheet(self, block: int = -1, query: Query | None = None, **options: Any) -> Picture:
        """Draw a contact sheet of one block: the photograph, the mean of the heads, then each head.

        `options` are those of `vitviz.draw.sheet.sheet`: scale ("shared", "each", "both"), width, columns, dark, ...
        """
        from vitviz.draw.sheet import sheet

        maps = [self.attention(block, "mean", query), *self.head_maps(block, query)]
        labels = ["mean", *(f"head {head + 1}" for head in range(self.trace.heads_in(block)))]
        title = f"{self.trace.name_of(block)}, from {describe_query(self._query(query))}"
        settings: dict[str, Any] = {"title": title, "labels": labels, "plain": True}
        return Picture(sheet(maps, **settings | options))

    def layer_sheet(self, head: Fusion = "mean", query: Query | None = None, **options: Any) -> Picture:
        """Draw a contact sheet of the photograph and all blocks with fused heads; `options` as for `head_sheet`."""
        from vitviz.draw.sheet import sheet

        labels = [self.trace.name_of(block).lower() for block in self.trace.blocks]
        title = f"All layers, {head} of heads, from {describe_query(self._query(query))}"
        settings: dict[str, Any] = {"title": title, "labels": labels, "plain": True}
        return Picture(sheet(self.layer_maps(head, query), **settings | options))

    def explain(
        self,
        method: str | Method | None = None,
        target: TargetOf | None = None,
        *,
        contrast: Contrast | None = None,
        **options: Any,
    ) -> Heatmap:
        """Return a map of the patches that support a class or another target.

        Args:
            method: a method of `vitviz.attribution.registry.METHODS`, or its name; by default the one that `vitviz
                arena` ranked first for these weights, or `gae` if it was not measured.
            target: a class, as index or label; a `Group` of classes, an `Output`, a `Unit` or `Direction` of the
                features, the `Similarity` to another view, or a `Text` (CLIP, SigLIP); or its spelling. By default the
                predicted class.
            contrast: (A, B) instead of a target: explain why class A rather than class B.
            options: options of the method.

        Raises:
            ExplainError: if the method, target or an option does not exist.
        """
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        about = check_options(method or default_methods(self.model)[0], options)
        if "query" in about.options:
            options["query"] = self._query(options.get("query"))
        if "block" in options:
            options["block"] = self._block(options["block"])
        contrast = None if contrast is None else (contrast[0], contrast[1])

        def compute() -> Heatmap:
            (heatmap,) = attribute(
                self.model, self.images, target, about, contrast=contrast, trace=self.trace, **options
            )
            return heatmap.over(self.photo, self.geometry)

        with watch(about.title, about.passes(self._patches, **options), self.trace.count):
            key = ("explain", about.name, target, contrast, repr(sorted({**about.options, **options}.items())))
            heatmap: Heatmap = self._cached(key, compute)
        return heatmap

    def faithfulness(
        self, maps: Maps, target: TargetOf | None = None, *, contrast: Contrast | None = None, **options: Any
    ) -> tuple[Faithfulness, ...]:
        """Test maps by deletion and insertion of patches; see `vitviz.evaluation.faithfulness.faithfulness`.

        Args:
            maps: one or several maps, or their values, which share the random orders.
            target, contrast: the target to test, as in `explain`; by default the target of the maps, or the predicted
                class for maps without one.
            options: baseline, steps, random, seed, progress.

        Returns:
            One result per map, in order.

        Raises:
            ExplainError: if the maps explain different targets and no target is given.
        """
        maps = [maps] if isinstance(maps, Heatmap) else maps
        options.setdefault("baseline", usual_baseline(self.model))
        passes = curve_passes(len(maps), self._patches, **options)
        with watch("Test of the map" if len(maps) == 1 else "Test of the maps", passes, self.trace.count):
            return faithfulness(self.model, self.images, maps, target, contrast=contrast, **options)

    def evidence(self, target: TargetOf | None = None, *, contrast: Contrast | None = None, **options: Any) -> Evidence:
        """Return small sets of patches that alone keep the prediction, and one whose removal changes it.

        `view.evidence().describe()` states them in sentences, and `view.show_patches(...)` draws one. A set is
        1-minimal (it no longer works without any one of its patches), not the smallest. The search takes a minute;
        `vitviz.evaluation.evidence.search` yields its intermediate results, so that it can be shown and stopped.

        Args:
            target, contrast: as in `explain`; by default the predicted class.
            options: keep, sets, seconds, heatmap (by default that of AttnLRP), seed.

        Raises:
            EvaluationError: for a model that cannot run without some patches, or if the whole image does not keep the
                prediction.
            ExplainError: if the target does not exist.
        """
        with watch("Small evidence", PASSES, self.trace.count):
            if self.model.removes_patches and "heatmap" not in options:
                options["heatmap"] = self.explain(METHOD, target, contrast=contrast)
            return evidence(self.model, self.images, target, contrast=contrast, **options)

    def show_patches(self, patches: Sequence[tuple[int, int]], *, without: bool = False) -> Picture:
        """Draw the photograph with all patches but these darkened, or with these darkened.

        Args:
            patches: (row, column) of each, such as `view.evidence().sets[0].patches`.
            without: darken these patches instead of the others.

        Raises:
            ExplorerError: if a patch is outside the grid.
        """
        from vitviz.draw.overlay import overlay

        rows, columns = self.trace.grid
        chosen = np.zeros((rows, columns), bool)
        for row, column in patches:
            if not (0 <= row < rows and 0 <= column < columns):
                raise ExplorerError(
                    f"Expected patches (row, column) inside the {rows} x {columns} grid, got {row, column}. Count from "
                    "0."
                )
            chosen[row, column] = True
        dark = (chosen if without else ~chosen).astype(np.float32)
        return Picture(overlay(self.photo, dark, self.geometry, scale=(0.0, 1.0), **DARKENED))

    def heads(
        self,
        names: Collection[str] | None = None,
        *,
        query: Query | None = None,
        target: TargetOf | None = None,
        contrast: Contrast | None = None,
    ) -> HeadStatistics:
        """Return statistics of every head; see `vitviz.analysis.head_statistics.head_statistics`."""
        return head_statistics(
            self.model, self.trace, self.geometry, names=names, query=query, target=target, contrast=contrast
        )

    def lens(
        self,
        classes: Sequence[Named] | None = None,
        *,
        target: TargetOf | None = None,
        contrast: Contrast | None = None,
    ) -> LogitLens:
        """Return readings of classes or of a target after each block; see `vitviz.analysis.logit_lens.logit_lens`."""
        return logit_lens(self.model, self.trace, classes, target=target, contrast=contrast)

    def decompose(self, target: TargetOf | None = None, *, contrast: Contrast | None = None) -> Decomposition:
        """Return the score of a target as a sum over heads, tokens and MLPs; see `vitviz.analysis.decomposition`."""
        return decompose(self.model, self.trace, target, contrast=contrast)

    def edge(
        self,
        block: int,
        head: int,
        query: Query,
        key: Query,
        *,
        target: TargetOf | None = None,
        contrast: Contrast | None = None,
        cut: bool = False,
        means: torch.Tensor | None = None,
    ) -> Edge:
        """Return why a head's query attends to a key, and what this adds to a target; see `analysis.edges.edge`."""
        reading, contrast = None, None if contrast is None else (contrast[0], contrast[1])
        explained = self.trace.logits is not None or target is not None or contrast is not None
        if explained and isinstance(self.trace, Trace):
            read = ("reading", target, contrast)
            reading = self._cached(read, lambda: target_reading(self.model, self.trace, target, contrast))
        place = block, head, self._query(query), self._query(key)
        options: dict[str, Any] = {"cut": cut, "means": means, "reading": reading}
        return edge(self.model, self.trace, *place, target=target, contrast=contrast, **options)

    def sinks(
        self, target: TargetOf | None = None, *, contrast: Contrast | None = None, block: int | None = None
    ) -> Sinks:
        """Return patches with an outlying norm or share of attention, and the neurons that make them; see
        `vitviz.analysis.sinks.sinks`.

        `view.repair()` moves the norms to a register.
        """
        return sinks(self.model, self.trace, target=target, contrast=contrast, block=block)

    def repair(self, registers: int = 1) -> "View":
        """Return a view of this photograph with test-time registers, which take the activations of `sinks().neurons`.

        The neurons are those of this photograph; `vitviz.load(..., registers=1)` finds those of several.

        Raises:
            ExplorerError: if no neuron makes an outlying norm in this photograph.
            ModelError: for less than one register, or for a model that cannot have any.
        """
        neurons = find_neurons(self.model, self.trace)
        if not neurons:
            text = "Expected a photograph with patches of outlying norm, got none. Use it without registers."
            raise ExplorerError(Phrase("nothing-to-repair", text))
        model = self.model.with_registers(registers, [(neuron.block, neuron.index) for neuron in neurons])
        began = time.perf_counter()
        with torch.no_grad():
            trace = model.trace(self.images)
        parts = self.preprocess, self.photo, self._pixels, self.geometry
        return View(model, *parts, trace, time.perf_counter() - began, self.name)

    def texts(self, texts: Sequence[str], tower: TextTower | str | os.PathLike[str] | None = None) -> "View":
        """Return a view of this photograph whose classes are texts: zero-shot classification by CLIP or SigLIP.

        The image tower does not run again. `view.texts(["a cat", "a sofa"]).predictions()` returns the probabilities of
        CLIP's softmax, or of SigLIP's sigmoids.

        Args:
            texts: such as "a photo of a cat".
            tower: a `vitviz.weights.text_tower.TextTower`, or the folder or `hf:` name of the whole model; by default
                the text tower stored with the model's weights, which is loaded on first use.

        Raises:
            ConvertError: for a model without a text tower or tokenizer, without texts, or if a text occurs twice.
        """
        model = classify_texts(self.model, texts, tower)
        with torch.no_grad():
            trace = replace(cast(Trace, self.trace), logits=model.classify(self.trace.tokens))
        parts = self.preprocess, self.photo, self._pixels, self.geometry, trace, self.seconds, self.name
        return View(model, *parts)

    def compare(self, other: "View", descriptor: Descriptor = DESCRIPTOR, block: int = BLOCK) -> PatchSimilarity:
        """Return the cosine similarity of each patch to each patch of another photograph; see `vitviz.analysis.pairs`.

        `view.compare(other).mutual(10)` returns the ten most similar pairs of mutual nearest neighbours.

        Raises:
            ExplorerError: for a view of another model.
        """
        if other.model is not self.model:
            raise ExplorerError(OTHER_MODEL)
        return compare_patches(self.model, self.trace, other.trace, descriptor, block)

    def token_pca(self) -> TokenPCA:
        """Return three principal components of each block's patches; see `vitviz.analysis.tokens.token_pca`."""
        return token_pca(self.model, self.trace)

    def intervene(self, **changes: Any) -> Change:
        """Turn heads off, cut edges, remove or reorder patches, and return the effect on the classes and on a `target`;
        see `vitviz.analysis.interventions.intervene`.

        `view.intervene(drop=[(3, 4)]).top(3)` returns the three most probable classes without that patch, with their
        probabilities before and after; `.top(3, by="change")` those that change most.
        """
        return intervene(self.model, self.images, before=self.trace.logits, **changes)

    def patch(self, other: "View", **changes: Any) -> Change:
        """Take a head's output, what a block adds, a token or the whole stream from another photograph's run, and
        return the effect; see `vitviz.analysis.interventions.patch`.

        `view.patch(other, heads=[(11, 3)]).top(3)` returns the three most probable classes if head 4 of layer 12 sees
        the other photograph. If its grid of patches differs, the other photograph is stretched to this input size.

        Raises:
            ExplorerError: for a view of another model.
        """
        if other.model is not self.model:
            raise ExplorerError(OTHER_MODEL)
        source = other.trace
        if source.grid != self.trace.grid:
            height, width = self.size
            squashed = replace(self.preprocess, mode="squash", height=height, width=width, resize=None)
            pixels = torch.from_numpy(squashed(other.photo).pixels)[None]
            source = self.model.trace(pixels.to(self.images))
        return patch(self.model, self.trace, source, **changes)

    def html(
        self,
        *,
        maps: Sequence[Heatmap] = (),
        limit: float = PAGE_MEGABYTES,
        lecture: bool = False,
        texts: str | os.PathLike[str] | None = None,
    ) -> str:
        """Return the explorer with this photograph as one HTML file that works offline.

        Its size is about 6 bytes per token, head channel and block: 7.4 MB for the bundled model.

        Args:
            maps: further maps of this photograph to choose from, such as results of attribution methods.
            limit: maximum size in MB, estimated in advance without the lecture.
            lecture: whether to include the lecture.
            texts: folder with a lecturer's own texts (`docs/lecture.md`), which replace the bundled ones.

        Raises:
            ExplorerError: if the page would be too large.
            LectureError: for invalid texts.
        """
        from vitviz.web.scene import Scene, saved_page

        if not (megabytes := self._megabytes(maps)) <= limit:
            raise ExplorerError(
                f"Expected a page of at most {limit:g} MB, got one of about {megabytes:.0f} MB for "
                f"{self.trace.count:,} tokens. Open the photograph at a smaller size, or raise the limit: "
                f"html(limit={math.ceil(megabytes)})."
            )
        scene = Scene(self, maps=maps)
        if not lecture:
            return saved_page(scene)
        return saved_page(scene, **rooms.load("lecture", "numbers").saved_lecture(self, texts))

    def save_html(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write the page of `html` with its options, and return the path."""
        target = Path(path)
        write(target, self.html(**options))
        return target

    def _megabytes(self, maps: Sequence[Heatmap] = ()) -> float:
        """Estimate the size of the page in MB."""
        from vitviz.web.scene import saved_bytes

        return saved_bytes(self.trace, maps) / 1e6

    def _repr_png_(self) -> bytes:
        """Return a picture for notebooks: the prediction and `attention()`."""
        from vitviz.draw.sheet import card

        def draw() -> bytes:
            buffer = io.BytesIO()
            card(self.attention(), title=self.describe()).save(buffer, "PNG")
            return buffer.getvalue()

        picture: bytes = self._cached(("picture",), draw)
        return picture

    def _repr_html_(self) -> str:
        """Return the explorer in a frame for notebooks, or only a picture if it is too large.

        The frame covers the picture. Untrusted notebooks remove frames and show the picture.
        """
        about = html.escape(self.describe() or "vitviz")
        picture = f'<img alt="{about}" src="data:image/png;base64,{base64.b64encode(self._repr_png_()).decode()}"'
        if (megabytes := self._megabytes()) > CELL_MEGABYTES:
            limit = f", limit={math.ceil(megabytes)}" if megabytes > PAGE_MEGABYTES else ""
            words = (
                f"The explorer of this view takes about {megabytes:.0f} MB, and a notebook keeps at most "
                f"{CELL_MEGABYTES} MB in a cell. <code>view.save_html('page.html'{limit})</code> writes it "
                "as a page."
            )
            return f"<div>{picture}><p>{words}</p></div>"
        page = html.escape(self.html(), quote=True)
        place = "grid-area: 1 / 1"
        return (
            f'<div style="display: grid">{picture} style="{place}; max-width: 100%; max-height: 900px">'
            f'<iframe srcdoc="{page}" title="vitviz" style="{place}; width: 100%; height: 900px; border: 0; '
            'background: white"></iframe></div>'
        )

    @property
    def _patches(self) -> int:
        rows, columns = self.trace.grid
        return rows * columns

    def _query(self, query: Query | None) -> Query:
        """Return the query or the model's default; JSON lists become tuples."""
        if query is None:
            return self.trace.default_query
        return tuple(query) if isinstance(query, list) else query

    def _block(self, block: int) -> int:
        """Return a block counted from 0, so that equal queries have equal cache keys; keep invalid indices."""
        return block + self.trace.depth if -self.trace.depth <= block < 0 else block

    def _cached(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """Return a cached result, or compute it and evict the least recently used results."""
        result = self._cache.pop(key, None)
        if result is None:
            result = compute()
        self._cache[key] = result
        for oldest in list(self._cache)[: -self._capacity]:  # a copy, because other threads may add results
            self._cache.pop(oldest, None)
        return result


def _parts(result: Any) -> Sequence[Any]:
    return result if isinstance(result, list | tuple) else (result,)


def _result_bytes(result: Any) -> int:
    """Return the size of a cached result in bytes."""
    if isinstance(result, Heatmap):
        return result.values.nbytes
    return len(result) if isinstance(result, bytes) else 0
