"""Answer questions about photographs: the endpoints for the page, API clients and Model Context Protocol clients.

Every question of `vitviz.web.questions` is a method of `Endpoints` whose parameters are annotated with the types of
`arguments`. Blocks (layers), heads, patches (row by row) and classes are counted from 0.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

from PIL import Image

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.attention import DISCARD, FUSE, RESIDUAL, START, Fusion
from vitviz.attribution.registry import DEFAULT, METHODS, method_named
from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.images.decoding import decode_apart
from vitviz.model.devices import return_freed_memory
from vitviz.server import arguments as args
from vitviz.server.account import Account
from vitviz.server.arguments import ArgumentError, check, quote
from vitviz.server.gpu import ask_view, open_view
from vitviz.server.menu import LargerModels, Menu, describe_bytes
from vitviz.server.models import Loaded, Models
from vitviz.server.scenes import MAPS, OPEN, Cache, Flights, Key, OpenScene, UnknownScene, scene_id
from vitviz.server.scheduler import BusyError, Kind, Scheduler, check_cancelled, report
from vitviz.server.sizes import (
    USUAL,
    Need,
    Pace,
    Size,
    check_fits,
    check_question,
    cost,
    faster,
    fits_in_memory,
    heads_need,
    is_large,
    largest,
    layers_need,
    method_need,
    passes_need,
    sizes,
)
from vitviz.view import PAGE_MEGABYTES, View
from vitviz.web.choices import choices
from vitviz.web.examples import Example, examples
from vitviz.web.lecture_numbers import lecture_bytes, lecture_parts, token_bytes, values_bytes
from vitviz.web.payload import block_bytes, rollout_bytes, rollout_row_bytes
from vitviz.web.questions import QUESTIONS
from vitviz.web.responses import (
    describe_change,
    describe_layers,
    describe_map,
    describe_rearranged,
    describe_test,
    rounded,
)
from vitviz.web.scene import ROLLOUT_TOKENS, Scene, standalone, standalone_bytes

TEST_PASSES = 36.0  # forward passes that testing one map takes
FURTHER_TEST_PASSES = 9  # forward passes for each further map
AHEAD = 2.0  # longest forward pass in seconds that the page may ask for before the visitor does
TRIM_EVERY = 5.0  # seconds between returns of freed memory, because the kernel clears memory before reuse
LIGHT_TOKENS = 1_400  # with more tokens, questions declared as light take longer than a few milliseconds

log = logging.getLogger(__name__)


class ModelLoadError(VitvizError):
    """Raised if a model cannot be loaded; the message gives the reason."""


@dataclass(frozen=True, eq=False)
class CheckedQuestion:
    """Question with checked arguments.

    Args:
        key: equal for equal questions.
        compute: returns the answer.
        light: whether the computation takes only milliseconds.
    """

    key: Key
    compute: Callable[[], Any]
    light: bool


class Endpoints:
    """Answer questions about photographs; repeated questions are answered from a bounded cache.

    Args:
        menu: the page's models, and the rules for other models that visitors name.
        photographs: the page's examples; by default those that come with vitviz.

    Attributes:
        account: where memory, disk space and places are booked.
        cache: open photographs and answers.
        notice: why the page opens with a model other than the operator's choice; empty if it does not.
    """

    def __init__(self, menu: Menu, photographs: Sequence[Example] | None = None) -> None:
        self.menu, self.examples = menu, list(examples() if photographs is None else photographs)
        self.account = Account(menu.settings)
        if menu.uploads is not None:
            menu.uploads.account = self.account
        self.scheduler, self.flights = Scheduler(self.account), Flights(self.account)
        self.cache = Cache(self.account)
        self._paces: dict[str, Pace] = {}
        self._trimmed = time.monotonic()  # when freed memory was last returned
        self._larger = LargerModels(menu)
        self.loaded = self._models()
        self.notice = self._settle_default()

    # Endpoints

    def open(
        self,
        photo: args.Photo | None = None,
        model: args.Name | None = None,
        size: args.Size | None = None,
        image: args.Name | None = None,
        ahead: args.Switch = False,
    ) -> dict[str, Any]:
        """Open a photograph: run a Vision Transformer on it once, and return its id and predictions.

        The answer contains the scene's "id" for the other endpoints, the most probable classes as "predictions"
        ([label, probability, index]), the "grid" of patches (rows, columns), and the numbers of "blocks" (layers) and
        of "heads" in each.

        Args:
            photo: the file of a photograph; tools send it as a data: URL.
            model: a name from the list of models; by default the page's own.
            size: input size in pixels; by default the model's own. Larger inputs have more patches.
            image: the name of an example, instead of a photograph.
            ahead: do it only if nothing else waits or runs, because nobody has asked for it yet.
        """
        data, example = self._photograph(photo, image)
        source = self.menu.permit(model or self.menu.default)
        loaded = self._load(source)
        name = scene_id(data, loaded.fingerprint, size, self.menu.settings.secret)
        scene: OpenScene | None = self.cache.get((name, OPEN))
        if scene is None and ahead and not self.scheduler.idle:
            raise BusyError(self.scheduler.seconds(Kind.PHOTO))
        return (scene or self._open(name, data, example, source, loaded.explorer, size)).manifest

    def block(self, scene: args.SceneId, block: args.Index) -> bytes:
        """Return queries, keys and log-sum-exp of one block as a file of `vitviz.web.payload`.

        Args:
            scene: the id of an open photograph.
            block: counted from 0.
        """
        trace = self._scene(scene).view.trace
        _check_index("block", block, trace.depth)
        return block_bytes(trace, block)

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
        """
        opened, about = self._scene(scene), METHODS["rollout"]
        trace = opened.view.trace
        options: Any = {"fuse": fuse, "discard": float(discard), "residual": float(residual), "start": start}
        tokens = trace.tokens.shape[1]
        if token is None and tokens > ROLLOUT_TOKENS:
            raise ArgumentError(f"Expected at most {ROLLOUT_TOKENS} tokens for all rows, got {tokens}. Ask for a row.")
        _check_index("token", token, tokens)
        with self._turn(opened, about.title, method_need, about):
            return rollout_bytes(trace, **options) if token is None else rollout_row_bytes(trace, token, **options)

    def explain(
        self,
        scene: args.SceneId,
        method: args.Name = DEFAULT,
        target: args.Index | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Explain a prediction: return how much each patch supports a class, row by row.

        Args:
            scene: the id of an open photograph.
            method: the name of an attribution method, such as gae, token_gradcam, attn_lrp, occlusion or kernel_shap.
            target: the class, by index; by default the most probable one.
            against: another class, to explain what distinguishes the target from it.
        """
        opened, about = self._scene(scene), method_named(method)
        classes = _classes(opened.view, target, against)
        if not about.class_specific and against is None:
            classes = {}  # one map for all classes
        with self._turn(opened, about.title, method_need, about, slow=about.slow):
            report(f"Computing {about.title}", self._seconds(opened, about.passes(_patches(opened.view))))
            heatmap, seconds = self._map(opened, method, classes)
        return describe_map(heatmap, seconds)

    def faithfulness(
        self,
        scene: args.SceneId,
        methods: args.Names,
        target: args.Index | None = None,
        against: args.Index | None = None,
    ) -> list[dict[str, Any]]:
        """Test whether maps are faithful: remove patches in the order of each map, and compare with random orders.

        A "gain" above 0 means that the prediction depends on the patches that the map ranks first; 0 is chance.

        Args:
            scene: the id of an open photograph.
            methods: names of attribution methods, see explain.
            target: the class, by index; by default the most probable one.
            against: another class, to test what distinguishes the target from it.
        """
        opened, abouts = self._scene(scene), [method_named(name) for name in methods]
        classes, count = _classes(opened.view, target, against), len(abouts)
        test_passes = TEST_PASSES + FURTHER_TEST_PASSES * (count - 1)
        for about in abouts:
            self._check(opened, about.title, method_need, about, test_passes)
        maps: list[Heatmap] = []
        with self.scheduler.run(Kind.LONG):
            for done, about in enumerate(abouts):
                self.scheduler.give_way(Kind.LONG)
                passes = sum(method.cost for method in abouts[done:]) + test_passes
                report(f"Computing {about.title}", self._seconds(opened, passes), done=done, of=2 * count)
                maps.append(self._map(opened, about.name, classes if about.class_specific else {})[0])

            def progress(done: int, of: int) -> None:
                self.scheduler.give_way(Kind.LONG)
                text = "Testing the map" if count == 1 else f"Testing {count} maps"
                seconds = self._seconds(opened, test_passes * (1 - done / of))
                report(text, seconds, done=count + count * done // of, of=2 * count)

            progress(0, 1)
            tests = ask_view(opened.view, "faithfulness", maps=maps, progress=progress, **classes)
        return [describe_test(test) for test in tests]

    def heads(self, scene: args.SceneId, names: args.Names) -> dict[str, Any]:
        """Return statistics of every head: a table (layers x heads) for each name, or why it is missing.

        Args:
            scene: the id of an open photograph.
            names: statistics such as distance, entropy, mass_cls, effective_rank or ablation_probability.
        """
        opened = self._scene(scene)
        if unknown := [name for name in names if name not in STATISTICS]:
            raise ArgumentError(f"Expected names among {', '.join(STATISTICS)}; got {quote(unknown[0])}. Change it.")
        slow = any(STATISTICS[name].reads != "rows" for name in names)
        with self._turn(opened, "statistics of heads", heads_need, names, slow=slow):
            report("Measuring the heads")
            table = ask_view(opened.view, "heads", names=names)
        values = {name: [list(map(rounded, row)) for row in table[name].tolist()] for name in table.present}
        return {"values": values, "missing": dict(table.missing)}

    def layers(self, scene: args.SceneId) -> dict[str, Any]:
        """Return the classifier's output after each layer (logit lens), and three principal components as colors.

        Args:
            scene: the id of an open photograph.
        """
        opened = self._scene(scene)
        with self._turn(opened, "reading all layers", layers_need):
            return describe_layers(opened.view)

    def lecture(self, scene: args.SceneId, block: args.Index | None = None, token: args.Index | None = None) -> bytes:
        """Return the numbers behind the lecture as a file of `vitviz.web.lecture_numbers`.

        Args:
            scene: the id of an open photograph.
            block: the values of this block, counted from 0; `null` for pixels, filters, positions and prefix tokens.
            token: with a block: the parts of the block for this token, counted from 0, instead of the values.
        """
        view = self._scene(scene).view
        _check_index("block", block, view.trace.depth)
        _check_index("token", token, view.trace.tokens.shape[1])
        if block is None:
            return lecture_bytes(view)
        if token is None:
            return values_bytes(view.model, view.trace, block)
        return token_bytes(view.model, view.trace, block, token)

    def intervene(
        self,
        scene: args.SceneId,
        patches: args.Patches | None = None,
        heads: args.Heads | None = None,
        classes: args.Classes | None = None,
    ) -> dict[str, Any]:
        """Run the model without some patches or heads, and return probabilities (or values) before and after.

        Args:
            scene: the id of an open photograph.
            patches: numbers of patches to remove, counted from 0 row by row.
            heads: [layer, head] of heads to switch off, both counted from 0.
            classes: indices of classes to list besides the most probable ones.
        """
        opened, removed = self._scene(scene), sorted(set(patches or []))
        view, count = opened.view, _patches(opened.view)
        if removed and removed[-1] >= count:
            raise ArgumentError(f"Expected patches from 0 to {count - 1}, got {removed[-1]}. Change it.")
        if len(removed) == count and not view.trace.prefix:
            raise ArgumentError("Expected at least one patch to read a prediction from, got none. Leave one.")
        for index in classes or []:
            _check_index("class", index, len(view.labels))
        drop = [divmod(patch, view.trace.grid[1]) for patch in removed]
        with self._turn(opened, "an intervention", passes_need):
            change = ask_view(view, "intervene", drop=drop, heads=[tuple(pair) for pair in heads or []])
        return {"classes": describe_change(view, change, classes or ())}

    def rearrange(self, scene: args.SceneId, shuffle: args.Index = 0, positions: args.Switch = True) -> dict[str, Any]:
        """Run the model with shuffled patches or without positions, and return probabilities before and after.

        Args:
            scene: the id of an open photograph.
            shuffle: the seed of a random order of the patches; 0 keeps their order.
            positions: whether each patch keeps its position; if not, all get the same one.
        """
        opened = self._scene(scene)
        with self._turn(opened, "an intervention", passes_need):
            return describe_rearranged(opened.view, shuffle, positions, partial(ask_view, opened.view, "intervene"))

    def attention(
        self, scene: args.SceneId, block: args.Index, head: args.Head = "mean", query: args.Token | None = None
    ) -> dict[str, Any]:
        """Return one token's attention in one head: a share for each patch, in rows, and for each prefix token.

        Args:
            scene: the id of an open photograph.
            block: the layer, counted from 0.
            head: a head, counted from 1, or mean, max or min of all heads.
            query: the token's number, prefix tokens first, or -1 for the mean over patches; by default the class token.
        """
        view = self._scene(scene).view
        trace, number = view.trace, int(head) if head.isdecimal() else 1
        _check_index("block", block, trace.depth)
        if number > trace.heads:
            raise ArgumentError(f"Expected a head from 1 to {trace.heads}, or mean, max, min; got {head}. Choose one.")
        _check_index("token", query, trace.tokens.shape[1])
        index = next((fusion for fusion in get_args(Fusion) if fusion == head), number - 1)
        heatmap = view.attention(block, index, "mean" if query == -1 else query)
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
        """
        opened = self._scene(scene)
        trace = opened.view.trace
        if (megabytes := standalone_bytes(trace) / 1e6) > PAGE_MEGABYTES:
            raise ArgumentError(
                f"Expected a page of at most {PAGE_MEGABYTES} MB, got one of about {megabytes:.0f} MB for "
                f"{trace.tokens.shape[1]:,} tokens. Choose a smaller input size."
            )
        about = METHODS[DEFAULT]  # the lecture compares it with rollout
        turn = lecture and self._turn(opened, "the lecture", method_need, about, slow=True)
        with turn or self.scheduler.run(Kind.LONG):
            report("Writing the page")
            parts = lecture_parts(opened.view) if lecture else None
            return standalone(opened.scene, search, lecture=parts).encode()

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
            "more": {"typed": allowed.typed, "upload": allowed.upload},
            "larger": self._larger.models(),
            "examples": [example.describe() for example in self.examples],
            **choices(),
        }

    # Checking, caching and scheduling

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
        key = scene, name + json.dumps(checked, default=lambda data: hashlib.sha256(data).hexdigest())

        def compute() -> Any:
            answer = self.cache.get(key)
            if answer is None:
                try:
                    large = declared.light and self._is_large(scene)  # now that the scene is open
                    with self.scheduler.run(Kind.SHORT) if large else nullcontext():
                        answer = method(**checked)
                finally:
                    self.cache.measure((scene, OPEN))  # the scene holds intermediate results
                if declared.cached:
                    self.cache.put(key, answer)
            return answer

        return CheckedQuestion(key, compute, declared.light and not self._is_large(scene))

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
        return scene is not None and scene.view.trace.tokens.shape[1] > LIGHT_TOKENS

    @contextmanager
    def _turn(
        self, scene: OpenScene, title: str, need: Callable[..., Need], *facts: Any, slow: bool = False
    ) -> Iterator[None]:
        """Check that a question fits (see `_check`), then wait for its turn, with the long ones if slow or large."""
        self._check(scene, title, need, *facts)
        own = self._load(scene.model).explorer.preprocess
        large = is_large(scene.view.model.config, own, _patches(scene.view))
        with self.scheduler.run(Kind.LONG if slow or large else Kind.SHORT):
            yield

    def _models(self) -> Models:
        menu = self.menu
        return Models(menu.load, menu.settings.memory, menu.default, lambda name: menu.entry(name).size, self._drop)

    def _drop(self, source: str, explorer: Explorer) -> None:
        """Drop the scenes of an evicted model, which would keep it in memory."""
        self._paces.pop(source, None)
        self.cache.discard(lambda value: isinstance(value, OpenScene) and value.view.model is explorer.model)

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
            raise ArgumentError(f"Expected one of the examples {known}; got {quote(image)}. Choose one of them.")
        return examples[image].path.read_bytes(), examples[image]

    def _open(
        self, name: str, data: bytes, example: Example | None, source: str, explorer: Explorer, size: int | None
    ) -> OpenScene:
        config, limit = explorer.model.config, self.menu.settings.side
        most = largest(config, limit)
        if size is not None and size > most:
            raise ArgumentError(f"Expected an input of at most {most} pixels for this model, got {size}. Choose fewer.")
        patches, seconds = cost(config, explorer.preprocess, USUAL, self._paces.get(source), size)
        check_fits(explorer, USUAL, size, self.menu.settings)
        running = f"Running the model on {patches:,} patches"

        def decode_photo() -> Image.Image:
            report("Opening the photograph")
            return decode_apart(data, check=check_cancelled)

        if is_large(config, explorer.preprocess, patches):  # pauses for other visitors' photographs
            with self.scheduler.run(Kind.LONG):
                with self.scheduler.wait_and_run(Kind.DECODE):
                    picture = decode_photo()
                report(running, seconds)
                view = self._view(explorer, picture, size)
        else:
            with self.scheduler.run(Kind.DECODE):  # held until the end, to limit the number of decoded pictures
                picture = decode_photo()
                with self.scheduler.wait_and_run(Kind.PHOTO):
                    report(running, seconds)
                    view = self._view(explorer, picture, size)
        pace = self._paces[source] = faster(view, self._paces.get(source))
        fits = fits_in_memory(explorer, self.menu.settings)
        choices_of_size = sizes(config, explorer.preprocess, view.photo.size, pace, limit, fits)
        scene = Scene.of(
            view,
            caveat=example.caveat(view) if example else "",
            image=example.name if example else None,
            own=None if example else hashlib.sha256(data).hexdigest()[:32],
            model=source,
            size=size,
            sizes=[{**asdict(choice), "ahead": self._is_quick(choice)} for choice in choices_of_size],
        )
        opened = OpenScene(name, view, source, scene, scene.manifest(name))
        if self.loaded.holds(explorer):  # a scene would keep an evicted model in memory
            self.cache.put((name, OPEN), opened)
        if time.monotonic() - self._trimmed > TRIM_EVERY:
            self._trimmed = time.monotonic()
            return_freed_memory()
        return opened

    def _is_quick(self, size: Size) -> bool:
        """Return whether the page may open a photograph at this size before the visitor asks for it."""
        return self.menu.settings.sharper and size.size is not None and 0 < (size.seconds or 0) <= AHEAD

    def _view(self, explorer: Explorer, picture: Image.Image, size: int | None) -> View:
        check_fits(explorer, picture.size, size, self.menu.settings)  # the number of patches may depend on the shape
        return open_view(explorer, picture, size)

    def _scene(self, name: str) -> OpenScene:
        scene: OpenScene | None = self.cache.get((name, OPEN))
        if scene is None:
            raise UnknownScene
        return scene

    def _map(self, scene: OpenScene, method: str, classes: dict[str, Any]) -> tuple[Heatmap, float]:
        """Return a map and its computing time in seconds."""
        key = f"{method} {sorted(classes.items())}"
        if key not in scene.maps:
            began = time.perf_counter()
            heatmap = ask_view(scene.view, "explain", method=method, **classes)
            if len(scene.maps) >= MAPS:
                scene.maps.pop(next(iter(scene.maps)), None)
            scene.maps[key] = heatmap, time.perf_counter() - began
        return scene.maps[key]

    def _check(self, scene: OpenScene, title: str, need: Callable[..., Need], *facts: Any) -> None:
        """Check that a question about a scene fits into memory and time, see `sizes.check_question`.

        Args:
            scene: the scene in question.
            title: the question's title.
            need: one of the estimates of `sizes`.
            facts: further arguments of the estimate.
        """
        view, own = scene.view, self._load(scene.model).explorer.preprocess
        config, itemsize = view.model.config, next(view.model.parameters()).dtype.itemsize
        tokens, estimate = view.trace.tokens.shape[1], need(config, itemsize, *facts)
        check_question(config, title, estimate, view.photo.size, own, tokens, self.menu.settings)

    def _seconds(self, scene: OpenScene, passes: float) -> float:
        """Estimate how many seconds a number of forward passes takes."""
        pace = self._paces.get(scene.model)
        if pace is None:
            return passes * scene.view.seconds
        return passes * pace.at(scene.view.model.config, scene.view.trace.tokens.shape[1])


def _check_index(name: str, index: int | None, count: int) -> None:
    if index is not None and index >= count:
        raise ArgumentError(f"Expected a {name} from 0 to {count - 1}, got {index}. Choose one of them.")


def _patches(view: View) -> int:
    return view.trace.grid[0] * view.trace.grid[1]


def _classes(view: View, target: int | None, against: int | None) -> dict[str, Any]:
    """Return the class, or the contrast of two classes, as arguments of `View.explain`."""
    for index in (target, against):
        _check_index("class", index, len(view.labels))
    if target is None and view.names_classes:
        target = view.best(1)[0]
    if against is not None and against == target:
        raise ArgumentError(f"Expected two different classes, got {target} twice. Choose another one.")
    return {"target": target} if against is None else {"contrast": (target, against)}
