"""Answer questions about photographs: the endpoints for the page, API clients and Model Context Protocol clients.

Every question of `vitviz.web.questions` is a method of `Endpoints` whose parameters are annotated with the types of
`arguments`. Blocks (layers), heads, rows, columns, patches (row by row from the top left) and classes are counted from
0. API clients get bytes in base64. They also get the docstrings, whose "Returns" names the answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitviz import rooms
from vitviz.analysis.head_statistics import STATISTICS
from vitviz.analysis.pairs import BLOCK, DESCRIPTOR, Descriptor
from vitviz.attribution.attention import DISCARD, FUSE, RESIDUAL, START
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import DEFAULT, METHODS, method_named
from vitviz.attribution.target_specs import (
    Similarity,
    TargetSpec,
    Text,
    check_classifier,
    class_index,
    read_spelling,
)
from vitviz.evaluation.evidence import METHOD, PASSES, REMOVAL_PASSES, find_set
from vitviz.evaluation.faithfulness import curve_passes
from vitviz.evaluation.masking import usual_baseline
from vitviz.heatmap import Heatmap
from vitviz.model.trace import Trace
from vitviz.phrases import Phrase
from vitviz.server import arguments as args
from vitviz.server.arguments import ArgumentError, check, quote
from vitviz.server.gpu import ask_view
from vitviz.server.jobs import Kind, report
from vitviz.server.opening import Opening
from vitviz.server.scenes import OPEN, Key, OpenScene, UnknownScene
from vitviz.server.sizes import Estimate, check_fits, heads_need, is_large, layers_need, method_need, passes_need
from vitviz.view import PAGE_MEGABYTES, View
from vitviz.web import payload, responses
from vitviz.web.choices import choices
from vitviz.web.questions import QUESTIONS
from vitviz.web.scene import ROLLOUT_TOKENS, rolls_out, saved_bytes, saved_page

TEXT_LETTERS = 300  # of a text as a target; CLIP reads the first 77 tokens


@dataclass(frozen=True, eq=False)
class CheckedQuestion:
    """Question with checked arguments.

    Args:
        key: equal for equal questions.
        compute: returns the answer.
        is_light: returns whether the computation takes only milliseconds, which depends on the size of an open scene.
    """

    key: Key
    compute: Callable[[], Any]
    is_light: Callable[[], bool]


class Endpoints(Opening):
    """Answer questions about photographs; repeated questions are answered from a bounded cache."""

    def open(
        self,
        photo: args.Photo | None = None,
        model: args.Name | None = None,
        size: args.Size | None = None,
        image: args.Name | None = None,
        ahead: args.Switch = False,
        texts: args.Texts | None = None,
        registers: args.Registers | None = None,
    ) -> dict[str, Any]:
        """Open a photograph: run a Vision Transformer on it once, and return its id and predictions.

        Args:
            photo: the file of a photograph; tools send the URL of an uploaded file, or a data: URL.
            model: a name from the list of models; by default the page's own.
            size: input size in pixels; by default the model's own. Larger inputs have more patches.
            image: the name of an example, instead of a photograph.
            ahead: open it before the visitor asks for it; refused while anything else waits or runs.
            texts: texts that become the classes, such as "a photo of a cat", for models with a text tower (CLIP,
                SigLIP); they are classes for all other endpoints too.
            registers: test-time registers, which take the activations of the neurons that make bright spots (see
                sinks); the photograph must have such neurons.

        Returns:
            scene: "id" for the other endpoints; "predictions", the most probable classes as [label, probability,
                index]; "grid", the numbers of rows and columns of patches; "prefix", the names of the tokens before the
                patches; "blocks" and "heads", the numbers of layers and of heads in each; "labels", all classes.
        """
        return self.open_scene(photo, image, model, size, ahead, texts, registers).manifest

    def block(self, scene: args.SceneId, block: args.Index) -> bytes:
        """Return queries, keys and log-sum-exp of one block as a file of `vitviz.web.payload`.

        Args:
            scene: the id of an open photograph.
            block: counted from 0.

        Returns:
            file: in base64; `vitviz.web.payload` describes it.
        """
        return payload.block_bytes(self._scene(scene).view.trace, block)

    def descriptors(
        self, scene: args.SceneId, descriptor: Descriptor = DESCRIPTOR, block: args.Index | None = None
    ) -> bytes:
        """Return the descriptor of each patch, divided by its length, so that dot products are cosine similarities.

        The format of the file is described in `vitviz.web.payload`.

        Args:
            scene: the id of an open photograph.
            descriptor: tokens after a block, or its queries, keys or values.
            block: counted from 0; by default the one whose values find most patches in mirror images.

        Returns:
            file: in base64; `vitviz.web.payload` describes it. Vectors are row by row from the top left.
        """
        view = self._scene(scene).view
        return payload.descriptor_bytes(view.model, view.trace, descriptor, BLOCK if block is None else block)

    def rollout(
        self,
        scene: args.SceneId,
        token: args.Token | None = None,
        fuse: args.Fuse = FUSE,
        discard: args.Share = DISCARD,
        residual: args.Share = RESIDUAL,
        start: args.Index = START,
    ) -> bytes:
        """Return attention rollout (Abnar and Zuidema 2020): one row as float32, or the matrix as a file.

        Args:
            scene: the id of an open photograph.
            token: row of this token, prefix tokens first; -1 for the mean over patches, `null` for the matrix.
            fuse: how heads are combined: mean, max or min.
            discard: share of the weakest attention to drop.
            residual: weight of the skip connection.
            start: first block, counted from 0.

        Returns:
            row: in base64, float32, one number for each token, prefix tokens first, then patches row by row; or the
                matrix as a file, which `vitviz.web.payload` describes.
        """
        opened, about = self._scene(scene), METHODS["rollout"]
        trace = opened.view.trace
        options: Any = {"fuse": fuse, "discard": float(discard), "residual": float(residual), "start": start}
        tokens = trace.count
        if token is None and not rolls_out(trace):
            raise ArgumentError(f"Expected at most {ROLLOUT_TOKENS} tokens for all rows, got {tokens}. Ask for a row.")
        with self._turn(opened, about.title, method_need, about):
            if token is None:
                return payload.rollout_bytes(trace, **options)
            return payload.rollout_row_bytes(trace, token, **options)

    def caption(self, scene: args.SceneId) -> bytes:
        """Return a caption by the model's captioner, with the attention and the effect of each image token by word.

        Args:
            scene: the id of an open photograph.

        Returns:
            file: JSON in base64: "words"; "grid", rows and columns of image tokens over the whole photograph; "heads"
                of the decoder; "values", for each word and each layer the attention of its heads to the image tokens,
                row by row; "effects", how much each word's log-probability falls if each token is masked;
                "probabilities" of each word with the photograph and with an average picture; "sentence", which word
                depends most on the picture. Units: see `vitviz.web.payload.caption_bytes`.
        """
        opened = self._scene(scene)
        with self._turn(opened, "a caption", passes_need):
            return payload.caption_bytes(ask_view(opened.view, "caption"))

    def explain(
        self,
        scene: args.SceneId,
        method: args.Name = DEFAULT,
        target: args.Target | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Explain a prediction: return how much each patch supports a class or another target, row by row.

        Args:
            scene: the id of an open photograph.
            method: the name of an attribution method, such as gae, token_gradcam, attn_lrp, occlusion or kernel_shap.
            target: the class, by index; by default the most probable one. Or a text: a label, group:3,5 for the sum of
                probabilities, output:3 for one output, unit:17 or direction:0.1,-0.2,... for the features,
                similar:SCENE for the similarity to another open photograph, or text:a cat for the similarity to a text
                (CLIP, SigLIP).
            against: another class, to explain what distinguishes the target from it.

        Returns:
            heatmap: "values", one number for each patch: values[row * columns + column], with rows and columns from 0,
                from the top left, as many as the photograph's "grid"; "signed", whether negative values oppose the
                target; "unit" of the values; "title", "note" and "seconds".
        """
        opened, about = self._scene(scene), method_named(method)
        aim = self._aim(opened, target, against)
        if not about.class_specific and against is None:
            aim = {}  # one map for all classes
        with self._turn(opened, about.title, method_need, about, slow=about.slow):
            report(_computing(about), self._seconds(opened, about.passes(_patches(opened.view))))
            return self._map(opened, about, aim)[1]

    def faithfulness(
        self,
        scene: args.SceneId,
        methods: args.Names,
        target: args.Target | None = None,
        against: args.Index | None = None,
    ) -> list[dict[str, Any]]:
        """Test whether maps are faithful: remove patches in the order of each map, and compare with random orders.

        A "gain" above 0 means that the prediction depends on the patches that the map ranks first; 0 is chance.

        Args:
            scene: the id of an open photograph.
            methods: names of attribution methods, see explain.
            target: the class, by index, or a text as for explain; by default the most probable class.
            against: another class, to test what distinguishes the target from it.

        Returns:
            tests: for each map "words", the result in a sentence; "scale" of the numbers; "gain"; and the curves
                "deletion" and "insertion" with "x", the share of patches, "y", the target's probability, and "random",
                that of random orders.
        """
        opened, abouts = self._scene(scene), [method_named(name) for name in methods]
        aim, count = self._aim(opened, target, against), len(abouts)
        test_passes = curve_passes(count, _patches(opened.view), baseline=usual_baseline(opened.view.model))
        for about in abouts:
            self._check(opened, about.title, method_need, about, test_passes)
        maps: list[NDArray[np.float32]] = []
        with self.jobs.run(Kind.LONG):
            for done, about in enumerate(abouts):
                self.jobs.give_way(Kind.LONG)
                passes = sum(method.forwards for method in abouts[done:]) + test_passes
                report(_computing(about), self._seconds(opened, passes), done=done, of=2 * count)
                maps.append(self._map(opened, about, aim if about.class_specific else {})[0])

            def progress(done: int, of: int) -> None:
                self.jobs.give_way(Kind.LONG)
                text = Phrase("testing-the-map", "Testing the map")
                if count > 1:
                    text = Phrase("testing-several-maps", "Testing {0} maps", count)
                seconds = self._seconds(opened, test_passes * (1 - done / of))
                report(text, seconds, done=count + count * done // of, of=2 * count)

            progress(0, 1)
            tests = ask_view(opened.view, "faithfulness", maps=maps, progress=progress, **aim)
        return [responses.describe_test(test) for test in tests]

    def heads(
        self,
        scene: args.SceneId,
        names: args.Names,
        target: args.Target | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Return statistics of every head: a table (layers x heads) for each name, or why it is missing.

        Args:
            scene: the id of an open photograph.
            names: statistics such as distance, entropy, mass_cls, effective_rank or ablation_probability.
            target: the target of gradient and ablations, as for explain; by default the most probable class.
            against: another class, from which the target is distinguished.

        Returns:
            statistics: "values", for each name a table: values[name][layer][head], both from 0; "missing", for each
                name that the model lacks, why; and with a target "target" and "scale".
        """
        opened = self._scene(scene)
        if unknown := [name for name in names if name not in STATISTICS]:
            raise ArgumentError(f"Expected names among {', '.join(STATISTICS)}; got {quote(unknown[0])}. Change it.")
        slow = any(STATISTICS[name].reads != "rows" for name in names)
        aim = {} if target is against is None else self._aim(opened, target, against)
        with self._turn(opened, "statistics of heads", heads_need, names, slow=slow):
            report(Phrase("measuring-the-heads", "Measuring the heads"))
            table = ask_view(opened.view, "heads", names=names, **aim)
        values = {name: [list(map(responses.rounded, row)) for row in table[name].tolist()] for name in table.present}
        named = {"target": table.target, "scale": table.scale} if aim else {}
        return {"values": values, "missing": dict(table.missing), **named}

    def layers(
        self, scene: args.SceneId, target: args.Target | None = None, against: args.Index | None = None
    ) -> dict[str, Any]:
        """Return the classifier's output after each layer (logit lens), and three principal components as colors.

        Args:
            scene: the id of an open photograph.
            target: a target to read instead of the most probable classes, as for explain; a class is read before these.
            against: another class, from which the target is distinguished.

        Returns:
            layers: "names" of what is read, and "read", their numbers on the "scale": read[layer][name]; "patches", the
                same for each patch, as bytes in base64 (layer, name, row, column), which are 0 and 255 at the ends of
                "range"; "colors" of the patches, as bytes in base64 (layer, row, column, RGB), and "explained", the
                share of variance that they show; "layers" and "readings", the numbers of the layers, from 1.
        """
        opened = self._scene(scene)
        aim = {} if target is against is None else self._aim(opened, target, against)
        with self._turn(opened, "reading all layers", layers_need):
            return responses.describe_layers(opened.view, **aim)

    def decompose(
        self, scene: args.SceneId, target: args.Target | None = None, against: args.Index | None = None
    ) -> dict[str, Any]:
        """Return the direct contributions of layers, heads, MLPs and attended tokens to the score of a target.

        Args:
            scene: the id of an open photograph.
            target: the target, as for explain; by default the most probable class.
            against: another class, from which the target is distinguished.

        Returns:
            sums: "name" and "scale" of the score; "total", the sum of the contributions "start", "constant", "heads"
                (layer, head), "mlps" and "biases" (layer); and "tokens", the contributions of the heads by attended
                token, float32 in base64 (layer, head, token), prefix tokens first.
        """
        opened = self._scene(scene)
        aim = {} if target is against is None else self._aim(opened, target, against)
        with self._turn(opened, "the contributions to the score", passes_need):
            return responses.describe_decomposition(ask_view(opened.view, "decompose", **aim))

    def edge(
        self,
        scene: args.SceneId,
        block: args.Index,
        head: args.Index,
        query: args.Index,
        key: args.Index,
        target: args.Target | None = None,
        against: args.Index | None = None,
        cut: args.Switch = False,
    ) -> dict[str, Any]:
        """Return the terms of one attention logit, and what this attention edge adds directly to the score of a target.

        Args:
            scene: the id of an open photograph.
            block: the layer, counted from 0.
            head: counted from 0.
            query: the token that attends, prefix tokens first.
            key: the token that it attends to.
            target: the target, as for explain; by default the most probable class. Captured models have none.
            against: another class, from which the target is distinguished.
            cut: run the model again with this edge ablated.

        Returns:
            edge: "attention"; "logit", relative to the mean of the query's logits, the sum of "terms" and "bias";
                "parts", what the terms are; "position", the logit by position alone, or `null`; "writes", what the
                key's value adds directly to the score of "target"; "cut", the exact change of the score if the edge is
                ablated, or `null`.
        """
        opened = self._scene(scene)
        reads = isinstance(opened.view.trace, Trace) or target is not against or cut
        aim = self._aim(opened, target, against) if reads else {}
        with self._turn(opened, "the terms of an attention edge", passes_need):
            place = {"block": block, "head": head, "query": query, "key": key}
            if aim.get("target", 0) is None:  # without a classifier
                aim = {}
            return responses.describe_edge(ask_view(opened.view, "edge", **place, **aim, cut=cut))

    def sinks(self, scene: args.SceneId, block: args.Index | None = None) -> dict[str, Any]:
        """Return bright spots (sinks): patches with an outlying norm or an outlying share of attention, by layer.

        Args:
            scene: the id of an open photograph.
            block: a layer, counted from 0; the "classes" are then those without the neurons of this layer only.

        Returns:
            spots: "sinks", one for each patch and layer, with "block" and "token" (prefix tokens first) from 0; "kind":
                silent (read, but writes nearly nothing), broadcasting, or unknown; "norm" relative to the median patch;
                "attention", its share of the layer's attention; and "written", its share of what the layer's heads
                write, or `null`. "neurons" that drive the norms, with "block" and "index" from 0 and "share"; and
                "classes" as [label, before, after], the exact predictions without these neurons; empty without neurons.
        """
        opened = self._scene(scene)
        with self._turn(opened, "bright spots", passes_need):
            return responses.describe_sinks(opened.view, ask_view(opened.view, "sinks", block=block))

    def evidence(
        self,
        scene: args.SceneId,
        target: args.Target | None = None,
        against: args.Index | None = None,
        apart: args.Patches | None = None,
        removes: args.Switch = False,
    ) -> dict[str, Any]:
        """Return a 1-minimal set of patches that alone keep the predicted class, or whose removal changes it.

        Args:
            scene: the id of an open photograph.
            target: the target, as for explain; it has to be predicted.
            against: another class, from which the target is distinguished.
            apart: patches that may not be in the set, such as those of earlier sets.
            removes: whether to return a set whose removal changes the prediction.

        Returns:
            evidence: "patches", their numbers row by row from the top left, `null` if the search found no set;
                "probability" of the target with only these patches, or without them; "minimal", whether the search has
                shown that none of them can be left out. Smaller sets may exist. Progress contains the set so far.
        """
        opened, about = self._scene(scene), METHODS[METHOD]
        view, aim = opened.view, self._aim(opened, target, against)
        columns = view.trace.grid[1]
        self._check(opened, "small evidence", method_need, about, REMOVAL_PASSES if removes else PASSES)
        with self.jobs.run(Kind.LONG):
            report(_computing(about), self._seconds(opened, about.forwards))
            order = self._map(opened, about, aim)[0] if view.model.removes_patches else None
            options: dict[str, Any] = {"removes": removes, "heatmap": None if order is None else [order]}
            earlier = [divmod(patch, columns) for patch in apart or ()]
            answer: dict[str, Any] = {"patches": None, "probability": None, "minimal": True}
            for found in find_set(view.model, view.images, **aim, **options, apart=earlier):
                self.jobs.give_way(Kind.LONG)
                answer = responses.describe_evidence(found, columns)
                count = len(found.patches)
                report(Phrase("few-patches-so-far", "{0} patches are enough so far", count), **answer)
            return answer

    def lecture(self, scene: args.SceneId, block: args.Index | None = None, token: args.Index | None = None) -> bytes:
        """Return the numbers behind the lecture as a file of `vitviz.lecture.numbers`.

        Args:
            scene: the id of an open photograph.
            block: the values of this block, counted from 0; `null` for pixels, filters, positions and prefix tokens.
            token: with a block: the parts of the block for this token, counted from 0, instead of the values.
        """
        view = self._scene(scene).view
        numbers = rooms.load("lecture", "numbers")
        data: bytes
        if block is None:
            data = numbers.lecture_bytes(view)
        elif token is None:
            data = numbers.values_bytes(view.model, view.trace, block)
        else:
            data = numbers.token_bytes(view.model, view.trace, block, token)
        return data

    def planted(self, scene: args.SceneId) -> bytes:
        """Return norms and attention with a planted neuron, and its repair, as a file of `vitviz.lecture.numbers`.

        Args:
            scene: the id of an open photograph.
        """
        opened = self._scene(scene)
        with self._turn(opened, "the planted neuron", passes_need):
            data: bytes = rooms.load("lecture", "numbers").planted_bytes(opened.view)
        return data

    def intervene(
        self,
        scene: args.SceneId,
        patches: args.Patches | None = None,
        heads: args.Heads | None = None,
        classes: args.Classes | None = None,
        target: args.Target | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Run the model without some patches or heads, and return probabilities (or values) before and after.

        Args:
            scene: the id of an open photograph.
            patches: numbers of patches to remove, counted from 0 row by row; in windowed models, patches of the last
                stage are blurred instead.
            heads: [layer, head] of heads to switch off, both counted from 0.
            classes: indices of classes to list besides the most probable ones.
            target: a target to list as well, as for explain.
            against: another class, from which the target is distinguished.

        Returns:
            change: "classes" as [label, before, after], the most probable before first; and with a target "target" as
                [name, before, after] and "scale".
        """
        opened, removed = self._scene(scene), sorted(set(patches or []))
        view = opened.view
        rows, columns = view.trace.grid_in(-1)
        count = rows * columns
        if len(removed) == count and not view.trace.prefix:
            raise ArgumentError("Expected at least one patch to read a prediction from, got none. Leave one.")
        drop = [divmod(patch, columns) for patch in removed]
        mode = {} if view.model.removes_patches else {"mode": "blur"}
        aim = {} if target is against is None else self._aim(opened, target, against)
        with self._turn(opened, "an intervention", passes_need):
            change = ask_view(view, "intervene", drop=drop, heads=[tuple(pair) for pair in heads or []], **mode, **aim)
        aimed = responses.describe_target(change) if aim else {}
        return {"classes": responses.describe_change(view, change, classes or ()), **aimed}

    def patch(
        self,
        scene: args.SceneId,
        other: args.SceneId,
        block: args.Index,
        head: args.Index | None = None,
        token: args.Index | None = None,
        stream: args.Switch = False,
        target: args.Target | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Run the model with some values of a layer from another photograph, and return predictions.

        Args:
            scene: the id of an open photograph.
            other: the id of another photograph, opened with the same model.
            block: the layer, counted from 0.
            head: take the output of this head, counted from 0. Without a head, a token and the stream, the layer adds
                what its attention and MLP add in the other photograph.
            token: take this token as it enters the layer, counted from 0, prefix tokens first.
            stream: take all tokens that enter the layer.
            target: a target to list as well, as for explain.
            against: another class, from which the target is distinguished.

        Returns:
            change: "classes" as [label, before, after], the most probable before first; and "target" as
                [name, before, after] and "scale".
        """
        opened = self._scene(scene)
        view, peer = opened.view, self._other(opened, other).view
        aim = self._aim(opened, target, against)
        place: dict[str, Any] = {"heads": [] if head is None else [(block, head)], "stream": block if stream else None}
        place["tokens"] = [] if token is None else [(block, token)]
        place["blocks"] = [] if stream or place["heads"] or place["tokens"] else [block]
        with self._turn(opened, "an intervention", passes_need):
            change = ask_view(view, "patch", other=peer, **place, **aim)
        return {"classes": responses.describe_change(view, change), **responses.describe_target(change)}

    def rearrange(self, scene: args.SceneId, shuffle: args.Index = 0, positions: args.Switch = True) -> dict[str, Any]:
        """Run the model with shuffled patches or without positions, and return probabilities before and after.

        Args:
            scene: the id of an open photograph.
            shuffle: the number of a random order of the patches, from 1; after six, they repeat. 0 keeps their order.
            positions: whether patches keep their positions; if false, all get the same position.

        Returns:
            change: "order", the patch at each place, both row by row from 0; "classes" as [label, before, after].
        """
        opened = self._scene(scene)
        with self._turn(opened, "an intervention", passes_need):
            run = partial(ask_view, opened.view, "intervene")
            return responses.describe_rearranged(opened.view, shuffle, positions, run)

    def attention(
        self, scene: args.SceneId, block: args.Index, head: args.Head = "mean", query: args.Token | None = None
    ) -> dict[str, Any]:
        """Return one token's attention in one head: a share for each patch, in rows, and for each prefix token.

        Args:
            scene: the id of an open photograph.
            block: the layer, counted from 0.
            head: a head, counted from 0, or mean, max or min of all heads.
            query: the token's number, prefix tokens first, or -1 for the mean over patches; by default the class token.

        Returns:
            heatmap: "values", the share of each patch: values[row][column], both from 0, from the top left;
                "prefix_mass", the share of each prefix token by its name; "title"; and "frame", the box that the
                patches cover in the photograph, in pixels (left, top, right, bottom).
        """
        heatmap = self._scene(scene).view.attention(block, head, "mean" if query == -1 else query)
        return {
            "title": heatmap.title,
            "values": heatmap.values.tolist(),
            "prefix_mass": dict(heatmap.prefix_mass),
            "frame": heatmap.geometry.frame,
        }

    def page(self, scene: args.SceneId, search: args.Search = "", lecture: args.Switch = False) -> bytes:
        """Return the explorer with this photograph as one HTML file that works offline.

        Args:
            scene: the id of an open photograph.
            search: query string of the view with which the file opens.
            lecture: include the lecture, with the computed answers of its steps.

        Returns:
            page: the HTML file, in base64 of UTF-8.
        """
        opened = self._scene(scene)
        trace = opened.view.trace
        if (megabytes := saved_bytes(trace) / 1e6) > PAGE_MEGABYTES:
            raise ArgumentError(
                f"Expected a page of at most {PAGE_MEGABYTES} MB, got one of about {megabytes:.0f} MB for "
                f"{trace.count:,} tokens. Choose a smaller input size."
            )
        about = METHODS[DEFAULT]  # the lecture compares it with rollout
        turn = lecture and self._turn(opened, "the lecture", method_need, about, slow=True)
        with turn or self.jobs.run(Kind.LONG):
            report(Phrase("writing-the-page", "Writing the page"))
            numbers = rooms.load("lecture", "numbers").saved_lecture(opened.view) if lecture else {}
            return saved_page(opened.scene, search, **numbers).encode()

    def models(self) -> dict[str, Any]:
        """Return the models, examples, methods and statistics to choose from."""
        allowed = self.menu.settings
        return {
            "groups": [
                {
                    "title": title,
                    "entries": [
                        {"source": entry.source, "words": entry.describe(), "tip": entry.tip} for entry in entries
                    ],
                }
                for title, entries in self.menu.groups
                if entries
            ],
            "default": self.menu.default,
            "more": {"typed": allowed.typed, "upload": self.menu.uploads is not None},
            "larger": self._larger.models(),
            "examples": [example.describe() for example in self.examples],
            **choices(),
        }

    # Checking and scheduling

    def question(self, name: str, arguments: object) -> CheckedQuestion:
        """Return a checked question to an endpoint.

        Args:
            name: the endpoint's name.
            arguments: JSON value from a client, not yet checked.

        Raises:
            ArgumentError: for arguments that the endpoint does not accept.
        """
        declared, method = QUESTIONS[name], getattr(self, name)
        checked = check(method, arguments)
        scene: str | None = checked.get("scene")
        key = scene, f"{name} {_digest(checked)}"

        def compute() -> Any:
            try:
                if scene is not None:
                    _check_places(self._scene(scene).view, checked)
                large = declared.light and self._is_large(scene)  # now that the scene is open
                with self.jobs.run(Kind.SHORT) if large else nullcontext():
                    return method(**checked)
            finally:
                self.cache.measure((scene, OPEN))  # the scene holds intermediate results

        answer = partial(self.cache.answer, key, compute) if declared.cached else compute
        return CheckedQuestion(key, answer, lambda: declared.light and not self._is_large(scene))

    @contextmanager
    def _turn(
        self, scene: OpenScene, title: str, estimate: Estimate, *facts: Any, slow: bool = False
    ) -> Iterator[None]:
        """Check that a question fits (see `_check`), then wait for its turn, with the long ones if slow or large."""
        self._check(scene, title, estimate, *facts)
        own = self._load(scene.model).explorer.preprocess
        large = is_large(scene.view.model.config, own, _patches(scene.view))
        with self.jobs.run(Kind.LONG if slow or large else Kind.SHORT):
            yield

    def _aim(self, opened: OpenScene, target: int | str | None, against: int | None) -> dict[str, Any]:
        """Return a target or a contrast as arguments of `View.explain`; targets other than classes become text."""
        view = opened.view
        if isinstance(target, str):
            spec = read_spelling(view.model, self._with_vector(opened, target))
            if isinstance(spec, Text):
                if len(spec.text) > TEXT_LETTERS:
                    raise ArgumentError(
                        f"Expected a text of at most {TEXT_LETTERS} letters, got {len(spec.text)}. Use fewer words."
                    )
                self.load_text_tower(opened)
            if isinstance(spec, TargetSpec):
                if against is not None:
                    raise ArgumentError(
                        f"Expected a class to compare with {against}, got {target!r:.60}. Leave one out."
                    )
                spec.resolve(view.model, 1)  # raises errors before the question waits for its turn
                return {"target": str(spec)}
            target = class_index(view.model, target)
        if target is not None or against is not None:
            check_classifier(view.model, "a class")
        for index in (target, against):
            if index is not None:
                _check_index("class", index, len(view.labels))
        if target is None and view.names_classes:
            target = view.best(1)[0]
        if against is not None and against == target:
            raise ArgumentError(f"Expected two different classes, got {target} twice. Choose another one.")
        return {"target": target} if against is None else {"contrast": (target, against)}

    def _other(self, opened: OpenScene, name: str) -> OpenScene:
        """Return another open photograph with the same model."""
        try:
            other = self._scene(name)
        except UnknownScene:  # this error would make the page send the explained photograph again
            raise ArgumentError(f"Expected another open photograph, got {name}, which is not open. Open it.") from None
        if other.model != opened.model:  # with texts as classes, each scene has its own classifier
            raise ArgumentError(
                "Expected a photograph opened with the same model, got one of another model. Open both with one model."
            )
        return other

    def _with_vector(self, opened: OpenScene, spelling: str) -> str:
        """Replace the photograph in `similar:SCENE` by its features; other spellings stay as they are."""
        word, _, name = spelling.partition(":")
        if word != "similar" or not re.fullmatch("[0-9a-f]{32}", name):
            return spelling
        other = self._other(opened, name)
        return str(Similarity(other.view.features, other.scene.image or "the other photograph"))

    def _map(self, scene: OpenScene, method: Method, aim: dict[str, Any]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Return a map's values (gh, gw), which tests of maps need, and its description."""

        def compute() -> Any:
            began = time.perf_counter()
            heatmap: Heatmap = ask_view(scene.view, "explain", method=method, **aim)
            return heatmap.values, responses.describe_map(heatmap, time.perf_counter() - began)

        values, described = self.cache.answer((scene.id, f"map {method.name} {_digest(aim)}"), compute)
        return values, described

    def _check(self, scene: OpenScene, title: str, estimate: Estimate, *facts: Any) -> None:
        """Check that a question about a scene fits into memory and time, see `sizes.check_fits`."""
        view, own = scene.view, self._load(scene.model).explorer.preprocess
        patches = view.trace.count - len(view.model.config.prefix)
        check_fits(view.model, own, title, view.photo.size, patches, self.menu.settings, estimate, *facts)

    def _seconds(self, scene: OpenScene, passes: float) -> float:
        """Estimate how many seconds a number of forward passes takes."""
        pace = self._paces.get(scene.model)
        if pace is None:
            return passes * scene.view.seconds
        return passes * pace.at(scene.view.model.config, scene.view.trace.count)


def _digest(arguments: Mapping[str, Any]) -> str:
    """Return a hash of JSON values and bytes, because the cache books no memory for its keys."""
    text = json.dumps(arguments, default=lambda data: hashlib.sha256(data).hexdigest(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _computing(method: Method) -> str:
    """Return the progress message of a method."""
    return Phrase("computing", "Computing {0}", method.title)


def _check_places(view: View, arguments: Mapping[str, Any]) -> None:
    """Check that a photograph has the blocks, heads, tokens, patches and classes that arguments of its question name.

    Raises:
        ArgumentError: for the first that it lacks.
    """
    trace, block = view.trace, arguments.get("block")
    if block is not None:
        _check_index("block", block, trace.depth)
    tokens = len(trace.prefix) + math.prod(trace.grid_in(-1 if block is None else block))
    counts = {"token": tokens, "query": tokens, "key": tokens, "classes": len(view.labels)}
    counts |= {"head": 0 if block is None else trace.heads_in(block)}
    counts |= {"patches": math.prod(trace.grid_in(-1)), "apart": math.prod(trace.grid)}
    for name, value in arguments.items():
        for index in value if isinstance(value, list) else [value]:
            if name in counts and isinstance(index, int):
                _check_index(name, index, counts[name])


def _check_index(name: str, index: int, count: int) -> None:
    if index >= count:
        raise ArgumentError(f"Expected a number from 0 to {count - 1} as the {name}, got {index}. Choose one of them.")


def _patches(view: View) -> int:
    return view.trace.grid[0] * view.trace.grid[1]
