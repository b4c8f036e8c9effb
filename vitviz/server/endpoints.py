"""Answer questions about photographs: the endpoints of the page, of programs and of Model Context Protocol clients.

Every question of `vitviz.web.questions` is a method of `Endpoints` whose parameters are annotated with the types of
`arguments`. Blocks (layers), heads, patches (row by row) and classes are counted from 0.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

import numpy as np
from PIL import Image

from vitviz.analysis.heads import STATISTICS
from vitviz.attribution.attention import DISCARD, FUSE, RESIDUAL, START, Fusion
from vitviz.attribution.registry import DEFAULT, METHODS, method_named
from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.images.decoding import decode_apart
from vitviz.model.devices import return_freed_memory
from vitviz.outputs import REGRESSION
from vitviz.server import arguments as args
from vitviz.server.account import Account
from vitviz.server.arguments import ArgumentError, check, quote
from vitviz.server.gpu import ask_view, open_view
from vitviz.server.larger import LargerModels
from vitviz.server.menu import Menu, describe_bytes
from vitviz.server.models import Loaded, Models
from vitviz.server.scenes import MAPS, Cache, Flights, Opened, Shelf, UnknownScene, answer_bytes, scene_id
from vitviz.server.scheduler import Kind, Scheduler, check_cancelled, report
from vitviz.server.sizes import (
    USUAL,
    Need,
    Pace,
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
from vitviz.web.lecture_numbers import lecture_bytes, values_bytes
from vitviz.web.payload import block_bytes, rollout_bytes, rollout_row_bytes
from vitviz.web.questions import QUESTIONS
from vitviz.web.responses import describe_layers, describe_map, describe_test, rounded
from vitviz.web.scene import ROLLOUT_TOKENS, Scene, standalone, standalone_bytes

TEST = 36.0  # forward passes of one map's test, and 9 for each further one
BEST = 5  # classes
TRIM_EVERY = 5.0  # seconds; the kernel clears what is returned before it is used again

LIGHT_TOKENS = 1_400  # up to here light questions take some milliseconds

log = logging.getLogger(__name__)


class ModelLoadError(VitvizError):
    """Model that cannot be loaded; the text says why."""


@dataclass(frozen=True, eq=False)
class CheckedQuestion:
    """Question whose arguments are checked.

    Args:
        key: equal for equal questions.
        compute: returns the answer.
        light: whether that takes some milliseconds.
    """

    key: str
    compute: Callable[[], Any]
    light: bool


class Endpoints:
    """Answer questions about photographs, from a bounded cache where they were asked before.

    Args:
        menu: the models, and which others visitors may name.
        photographs: the examples of the page; those that come with vitviz by default.

    Attributes:
        account: where all that clients cause is booked.
        shelf: the caches of open photographs and of answers.
        notice: why the page opens with another model than its operator named, or an empty text.
    """

    def __init__(self, menu: Menu, photographs: Sequence[Example] | None = None) -> None:
        self.menu, self.examples = menu, list(examples() if photographs is None else photographs)
        self.account = Account(menu.settings)
        if menu.uploads is not None:
            menu.uploads.account = self.account
        self.scheduler, self.flights = Scheduler(self.account), Flights(self.account)
        self.shelf = Shelf(self.account)
        self.scenes: Cache[Opened] = Cache(self.shelf, lambda scene: scene.nbytes)
        self.answers: Cache[Any] = Cache(self.shelf, answer_bytes)
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
    ) -> dict[str, Any]:
        """Open a photograph: run a Vision Transformer on it once, and return what can be asked about it.

        The answer holds the scene's "id", by which all other endpoints know it, the most probable classes as
        "predictions" ([label, probability, index]), the "grid" of patches (rows, columns), the number of "blocks"
        (layers) and of "heads" in each.

        Args:
            photo: the file of a photograph; tools send it as a data: URL.
            model: a name from the list of models; the page's own by default.
            size: input size in pixels; the model's own by default. Larger inputs have more patches.
            image: the name of an example, in place of a photograph.
        """
        data, example = self._photograph(photo, image)
        source = self.menu.permit(model or self.menu.default)
        loaded = self._load(source)
        name = scene_id(data, loaded.fingerprint, size, self.menu.settings.secret)
        found = self.scenes.get(name)
        return (found or self._open(name, data, example, source, loaded.explorer, size)).manifest

    def block(self, scene: args.SceneId, block: args.Index) -> bytes:
        """Return queries, keys and log-sum-exp of one block as a file of `vitviz.web.payload`.

        Args:
            scene: the id of an open photograph.
            block: counted from 0.
        """
        trace = self._scene(scene).view.trace
        _check_place("block", block, trace.depth)
        with self._scheduled(scene):
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
            token: whose row: its number, prefix tokens first, or -1 for the mean over patches. `null` for the matrix.
            fuse: how heads become one: mean, max or min.
            discard: share of the weakest attention to drop.
            residual: weight of the skip connection.
            start: first block, counted from 0.
        """
        found = self._scene(scene)
        trace = found.view.trace
        options = {"fuse": fuse, "discard": float(discard), "residual": float(residual), "start": start}
        tokens = trace.tokens.shape[1]
        if token is None and tokens > ROLLOUT_TOKENS:
            raise ArgumentError(f"Expected at most {ROLLOUT_TOKENS} tokens for all rows, got {tokens}. Ask for one.")
        _check_place("token", token, tokens)
        self._check(found, METHODS["rollout"].title, method_need, METHODS["rollout"])
        with self.scheduler.run(self._short(found)):
            if token is None:
                return rollout_bytes(trace, **cast(Any, options))
            return rollout_row_bytes(trace, token, **cast(Any, options))

    def explain(
        self,
        scene: args.SceneId,
        method: args.Name = DEFAULT,
        target: args.Index | None = None,
        against: args.Index | None = None,
    ) -> dict[str, Any]:
        """Explain a prediction: return how much each patch speaks for a class, row by row.

        Args:
            scene: the id of an open photograph.
            method: the name of an attribution method, such as gae, token_gradcam, attn_lrp, occlusion or kernel_shap.
            target: the class, by index; the most probable one by default.
            against: another class: why the target and not this one.
        """
        found, about = self._scene(scene), method_named(method)
        asked = _classes(found.view, target, against)
        if not about.class_specific and against is None:
            asked = {}  # one map for all classes
        self._check(found, about.title, method_need, about)
        passes = about.passes(_patches(found.view))
        with self.scheduler.run(Kind.LONG if about.slow else self._short(found)):
            report(f"Computing {about.title}", self._seconds(found, passes))
            heatmap, seconds = self._map(found, method, asked)
        return describe_map(heatmap, seconds)

    def faithfulness(
        self,
        scene: args.SceneId,
        methods: args.Names,
        target: args.Index | None = None,
        against: args.Index | None = None,
    ) -> list[dict[str, Any]]:
        """Test whether maps are true: remove patches in the order of each map, and compare with random orders.

        A "gain" above 0 means that the map names patches that the prediction rests on; 0 is chance.

        Args:
            scene: the id of an open photograph.
            methods: names of attribution methods, see explain.
            target: the class, by index; the most probable one by default.
            against: another class: why the target and not this one.
        """
        found, chosen = self._scene(scene), [method_named(name) for name in methods]
        asked, count = _classes(found.view, target, against), len(chosen)
        test = TEST + 9 * (count - 1)
        for about in chosen:
            self._check(found, about.title, method_need, about, test)
        maps: list[Heatmap] = []
        with self.scheduler.run(Kind.LONG):
            for done, about in enumerate(chosen):
                self.scheduler.give_way(Kind.LONG)
                left = sum(one.cost for one in chosen[done:]) + test
                report(f"Computing {about.title}", self._seconds(found, left), done=done, of=2 * count)
                maps.append(self._map(found, about.name, asked if about.class_specific else {})[0])

            def progress(done: int, of: int) -> None:
                self.scheduler.give_way(Kind.LONG)
                left = test * (1 - done / of)
                what = "the map" if count == 1 else f"{count} maps"
                report(f"Testing {what}", self._seconds(found, left), done=count + count * done // of, of=2 * count)

            progress(0, 1)
            tests = ask_view(found.view, "faithfulness", maps=maps, progress=progress, **asked)
        return [describe_test(test) for test in tests]

    def heads(self, scene: args.SceneId, names: args.Names) -> dict[str, Any]:
        """Return statistics of every head: a table (layers x heads) for each name, and why others are missing.

        Args:
            scene: the id of an open photograph.
            names: such as distance, entropy, mass_cls, effective_rank or ablation_probability.
        """
        found = self._scene(scene)
        if unknown := [name for name in names if name not in STATISTICS]:
            raise ArgumentError(f"Expected names among {', '.join(STATISTICS)}; got {quote(unknown[0])}. Use these.")
        self._check(found, "statistics of heads", heads_need, names)
        cheap = all(STATISTICS[name].reads == "rows" for name in names)
        with self.scheduler.run(self._short(found) if cheap else Kind.LONG):
            report("Measuring the heads")
            table = ask_view(found.view, "heads", names=names)
        values = {name: [[rounded(one) for one in row] for row in table[name].tolist()] for name in table.present}
        return {"values": values, "missing": dict(table.missing)}

    def layers(self, scene: args.SceneId) -> dict[str, Any]:
        """Return what the classifier reads after each layer (logit lens), and three principal components as colors.

        Args:
            scene: the id of an open photograph.
        """
        found = self._scene(scene)
        self._check(found, "reading all layers", layers_need)
        with self.scheduler.run(self._short(found)):
            return describe_layers(found.view)

    def lecture(self, scene: args.SceneId, block: args.Index | None = None) -> bytes:
        """Return the numbers behind the lecture as a file of `vitviz.web.lecture_numbers`.

        Args:
            scene: the id of an open photograph.
            block: whose values, counted from 0. `null` for pixels, filters, positions and prefix tokens.
        """
        view = self._scene(scene).view
        _check_place("block", block, view.trace.depth)
        with self._scheduled(scene):
            return lecture_bytes(view) if block is None else values_bytes(view.model, view.trace, block)

    def intervene(
        self, scene: args.SceneId, patches: args.Patches | None = None, heads: args.Heads | None = None
    ) -> dict[str, Any]:
        """Run the model without some patches or heads, and return probabilities (or values) before and after.

        Args:
            scene: the id of an open photograph.
            patches: numbers of patches to remove, counted from 0 row by row.
            heads: [layer, head] of heads to switch off, both counted from 0.
        """
        found, patches = self._scene(scene), patches or []
        view = found.view
        rows, columns = view.trace.grid
        if any(one >= rows * columns for one in patches):
            raise ArgumentError(f"Expected patches from 0 to {rows * columns - 1}, got {max(patches)}. Use these.")
        if len(set(patches)) == rows * columns and not view.trace.prefix:
            raise ArgumentError("Expected at least one patch to read a prediction from, got none. Leave one.")
        drop = [divmod(one, columns) for one in sorted(set(patches))]
        self._check(found, "an intervention", passes_need)
        with self.scheduler.run(self._short(found)):
            change = ask_view(view, "intervene", drop=drop, heads=[tuple(pair) for pair in heads or []])
        before, after = change.before[0], change.after[0]  # (C,)
        order = np.argsort(-np.maximum(before, after), kind="stable")[:BEST].tolist()
        order.sort(key=lambda index: -before[index])
        if view.model.problem_type == REGRESSION:
            order = view.best(BEST)
        return {"classes": [[view.labels[index], float(before[index]), float(after[index])] for index in order]}

    def attention(
        self, scene: args.SceneId, block: args.Index, head: args.Head = "mean", query: args.Token | None = None
    ) -> dict[str, Any]:
        """Return what one token attends to in one head: a share for each patch, in rows, and for each prefix token.

        Args:
            scene: the id of an open photograph.
            block: the layer, counted from 0.
            head: a head, counted from 1, or mean, max or min of all heads.
            query: the token's number, prefix tokens first, or -1 for the mean over patches; the class token by default.
        """
        view = self._scene(scene).view
        trace, number = view.trace, int(head) if head.isdecimal() else 1
        _check_place("block", block, trace.depth)
        if number > trace.heads:
            raise ArgumentError(f"Expected a head from 1 to {trace.heads}, or mean, max, min; got {head}. Choose one.")
        _check_place("token", query, trace.tokens.shape[1])
        which = next((one for one in get_args(Fusion) if one == head), number - 1)
        with self._scheduled(scene):
            heatmap = view.attention(block, which, "mean" if query == -1 else query)
        return {
            "title": heatmap.title,
            "values": heatmap.values.tolist(),
            "prefix_mass": dict(heatmap.prefix_mass),
            "frame": heatmap.geometry.frame,
        }

    def page(self, scene: args.SceneId, search: args.Search = "") -> bytes:
        """Return the explorer with this photograph as one HTML file, which opens without a network.

        Args:
            scene: the id of an open photograph.
            search: the query string of the view that it opens with.
        """
        found = self._scene(scene)
        trace = found.view.trace
        if (megabytes := standalone_bytes(trace) / 1e6) > PAGE_MEGABYTES:
            raise ArgumentError(
                f"Expected a page of at most {PAGE_MEGABYTES} MB, got one of about {megabytes:.0f} MB for "
                f"{trace.tokens.shape[1]:,} tokens. Choose a smaller input size."
            )
        with self.scheduler.run(Kind.LONG):
            report("Writing the page")
            return standalone(found.scene, search).encode()

    def models(self) -> dict[str, Any]:
        """Return the models, examples, methods and statistics to choose from."""
        allowed = self.menu.settings
        return {
            "groups": [
                {
                    "title": title,
                    "entries": [
                        {"source": one.source, "words": one.describe(), "tip": one.known_for} for one in entries
                    ],
                }
                for title, entries in self.menu.groups
                if entries
            ],
            "default": self.menu.default,
            "more": {"typed": allowed.typed, "upload": allowed.upload},
            "larger": self._larger.models(),
            "examples": [one.describe() for one in self.examples],
            **choices(),
        }

    # What is behind them

    def question(self, name: str, given: object) -> CheckedQuestion:
        """Return a checked question to an endpoint.

        Args:
            name: of the endpoint.
            given: its arguments as an object of JSON; it may be anything.

        Raises:
            ArgumentError: for what the endpoint does not take.
        """
        declared, method = QUESTIONS[name], getattr(self, name)
        asked = check(method, given)
        key = name + json.dumps(asked, default=lambda data: hashlib.sha256(data).hexdigest())
        scene = asked.get("scene")
        compute = (
            partial(method, **asked) if scene is None else partial(self._measured, scene, partial(method, **asked))
        )
        light = declared.light and not self._is_large(scene)
        return CheckedQuestion(key, partial(self._cached, key, compute) if declared.cached else compute, light)

    def begin(self, model: str | None) -> tuple[str, Future[Loaded]]:
        """Begin to load a model; return what to say meanwhile, and the future of the model.

        Raises:
            MenuError: if visitors may not use it.
        """
        source = self.menu.permit(model or self.menu.default)
        entry = self.menu.entry(source)
        size = f" ({describe_bytes(entry.size)})" if entry.size else ""
        return f"Loading {entry.title}{size}", self.loaded.begin(source)

    def _cached(self, key: str, compute: Callable[[], Any]) -> Any:
        found = self.answers.get(key)
        if found is None:
            found = compute()
            self.answers.put(key, found)
        return found

    def _measured(self, scene: str, compute: Callable[[], Any]) -> Any:
        """Return an answer, and book what the scene keeps for it."""
        try:
            return compute()
        finally:
            self.scenes.measure(scene)

    def _is_large(self, name: str | None) -> bool:
        """Return whether questions about a scene take more than some milliseconds, even simple ones."""
        found = None if name is None else self.scenes.get(name)
        return found is not None and found.view.trace.tokens.shape[1] > LIGHT_TOKENS

    def _short(self, scene: Opened) -> Kind:
        """Return the kind of a question that takes a few forward passes: a long one where these are large."""
        own = self._load(scene.model).explorer.preprocess
        return Kind.LONG if is_large(scene.view.model.config, own, _patches(scene.view)) else Kind.SHORT

    def _scheduled(self, name: str) -> AbstractContextManager[None]:
        """Wait for a turn, where a scene is large."""
        return self.scheduler.run(Kind.SHORT) if self._is_large(name) else nullcontext()

    def _models(self) -> Models:
        menu = self.menu
        return Models(menu.load, menu.settings.memory, menu.default, lambda name: menu.entry(name).size, self._drop)

    def _drop(self, source: str, explorer: Explorer) -> None:
        """Drop scenes of a model that was evicted; they would keep it alive."""
        self._paces.pop(source, None)
        self.scenes.discard(lambda _, scene: scene.view.model is explorer.model)

    def _settle_default(self) -> str:
        """Load the page's first model, or the bundled one if that fails; return the reason or ""."""
        named, menu = self.menu.entry(self.menu.default), self.menu
        try:
            self._load(menu.default)
        except VitvizError as error:
            if menu.default == menu.bundled:
                raise
            menu.default = menu.bundled
            self.loaded = self._models()  # the default is pinned in it, and nothing is loaded yet
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
        """Return the bytes of a photograph, and the example that it is."""
        if photo is not None:
            same = (one for one in self.examples if one.path.stat().st_size == len(photo))
            return photo, next((one for one in same if one.path.read_bytes() == photo), None)
        if image is None:
            raise ArgumentError("Expected a photograph, or the name of an example; got neither. Choose one.")
        example = next((one for one in self.examples if one.name == image), None)
        if example is None:
            known = ", ".join(one.name for one in self.examples)
            raise ArgumentError(f"Expected one of the examples {known}; got {quote(image)}. Choose one of them.")
        return example.path.read_bytes(), example

    def _open(
        self, name: str, data: bytes, example: Example | None, source: str, explorer: Explorer, size: int | None
    ) -> Opened:
        config, limit = explorer.model.config, self.menu.settings.side
        most = largest(config, limit)
        if size is not None and size > most:
            raise ArgumentError(f"Expected an input of at most {most} pixels for this model, got {size}. Choose less.")
        patches, seconds = cost(config, explorer.preprocess, USUAL, self._paces.get(source), size)
        check_fits(explorer, USUAL, size, self.menu.settings)
        running = f"Running the model on {patches:,} patches"

        def decoded() -> Image.Image:
            report("Opening the photograph")
            return decode_apart(data, check=check_cancelled)

        if is_large(config, explorer.preprocess, patches):  # it gives way to others' photographs
            with self.scheduler.run(Kind.LONG):
                with self.scheduler.wait_and_run(Kind.DECODE):
                    picture = decoded()
                report(running, seconds)
                view = self._view(explorer, picture, size)
        else:
            with self.scheduler.run(Kind.DECODE):  # so that only as many pictures are there as are decoded at once
                picture = decoded()
                with self.scheduler.wait_and_run(Kind.PHOTO):
                    report(running, seconds)
                    view = self._view(explorer, picture, size)
        pace = self._paces[source] = faster(view, self._paces.get(source))
        fits = fits_in_memory(explorer, self.menu.settings)
        offered = sizes(config, explorer.preprocess, view.photo.size, pace, limit, fits)
        scene = Scene.of(
            view,
            caveat=example.caveat(view) if example else "",
            image=example.name if example else None,
            own=None if example else hashlib.sha256(data).hexdigest()[:32],
            model=source,
            size=size,
            sizes=[one.describe() for one in offered],
        )
        opened = Opened(name, view, source, scene, scene.manifest(name))
        if self.loaded.holds(explorer):  # or this would keep a model alive that was just evicted
            self.scenes.put(name, opened)
        if time.monotonic() - self._trimmed > TRIM_EVERY:
            self._trimmed = time.monotonic()
            return_freed_memory()
        return opened

    def _view(self, explorer: Explorer, picture: Image.Image, size: int | None) -> View:
        check_fits(explorer, picture.size, size, self.menu.settings)  # the shape of a picture may say how many patches
        return open_view(explorer, picture, size)

    def _scene(self, name: str) -> Opened:
        found = self.scenes.get(name)
        if found is None:
            raise UnknownScene
        return found

    def _map(self, scene: Opened, method: str, asked: dict[str, Any]) -> tuple[Heatmap, float]:
        """Return a map and the seconds that it took."""
        key = f"{method} {sorted(asked.items())}"
        found = scene.maps.get(key)
        if found is None:
            began = time.perf_counter()
            heatmap = ask_view(scene.view, "explain", method=method, **asked)
            found = heatmap, time.perf_counter() - began
            if len(scene.maps) >= MAPS:
                scene.maps.pop(next(iter(scene.maps)), None)
            scene.maps[key] = found
        return found

    def _check(self, scene: Opened, title: str, need: Callable[..., Need], *about: Any) -> None:
        """Check that a question about a scene fits, see `sizes.check_question`.

        Args:
            scene: that is asked about.
            title: of the question.
            need: one of the estimates of `sizes`.
            about: what it takes beside the model.
        """
        view, own = scene.view, self._load(scene.model).explorer.preprocess
        config, itemsize = view.model.config, next(view.model.parameters()).dtype.itemsize
        tokens, estimate = view.trace.tokens.shape[1], need(config, itemsize, *about)
        check_question(config, title, estimate, view.photo.size, own, tokens, self.menu.settings)

    def _seconds(self, scene: Opened, passes: float) -> float:
        """Return about how many seconds so many forward passes take."""
        pace = self._paces.get(scene.model)
        if pace is None:
            return passes * scene.view.seconds
        return passes * pace.at(scene.view.model.config, scene.view.trace.tokens.shape[1])


def _check_place(what: str, place: int | None, count: int) -> None:
    if place is not None and place >= count:
        raise ArgumentError(f"Expected a {what} from 0 to {count - 1}, got {place}. Choose one of them.")


def _patches(view: View) -> int:
    return view.trace.grid[0] * view.trace.grid[1]


def _classes(view: View, target: int | None, against: int | None) -> dict[str, Any]:
    """Return a class, or two, as `View.explain` takes them."""
    for given in (target, against):
        _check_place("class", given, len(view.labels))
    if target is None and view.names_classes:
        target = view.best(1)[0]
    if against is not None and against == target:
        raise ArgumentError(f"Expected two different classes, got {target} twice. Choose another one.")
    return {"target": target} if against is None else {"contrast": (target, against)}
