"""The explorer as a component of the page: its value is a manifest, its files are fetched piece by piece."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, get_args

import gradio as gr
import torch

from vitviz.attribution.attention import Fusion, rollout
from vitviz.model.trace import TraceError
from vitviz.server.parts import Answer, answered, asking
from vitviz.server.scheduler import Kind, Scheduler
from vitviz.web import bundle
from vitviz.web.payload import block_bytes, rollout_bytes
from vitviz.web.scene import ROLLOUT_TOKENS, Scene, standalone

MOST_PAGE_BYTES = 160_000_000  # 6,000 tokens of ViT-S
FUSIONS: tuple[str, ...] = get_args(Fusion)
Rolling = dict[str, Any]
Proposal = dict[str, Any]  # see `vitviz.server.larger`


class ExplorerView(gr.HTML):
    """The explorer. Its value is a manifest as JSON; it fires `open` with an image and a model that a link names.

    Args:
        value: the manifest of what the page opens with.
        find: the scene of a manifest's id; `None` for one that was forgotten. Ids are secrets of their visitor.
        larger: the models that the page proposes; none by default.
    """

    def __init__(
        self,
        value: str | None = None,
        *,
        find: Callable[[str], Scene | None],
        scheduler: Scheduler | None = None,
        larger: Callable[[], list[Proposal]] = list,
        **options: Any,
    ) -> None:
        # gradio makes it anew, without a value, for each visitor whose answer leaves it as it was.
        super().__init__(
            value,
            html_template=bundle.template(),
            js_on_load=bundle.script() + asking("remembered.js", "explore.js"),
            apply_default_css=False,
            server_functions=[*answers(find, scheduler or Scheduler()), proposing(find, larger)],
            **options,
        )

    def get_block_name(self) -> str:
        """The front end shows it as gradio's HTML component."""
        return "html"


def manifest(scene: Scene, name: str, turn: int | None = None) -> str:
    """What the page's explorer shows, as JSON: addresses are `id/part`, and `answers` knows them.

    Args:
        name: the scene's id.
        turn: which link of the browser this answers, if it does.
    """
    few = scene.trace.tokens.shape[1] <= ROLLOUT_TOKENS
    blocks = [f"{name}/{block}" for block in range(scene.trace.depth)]
    told = scene.manifest(name, scene.photo_url(), blocks, f"{name}/rollout" if few else None)
    return json.dumps(told if turn is None else {**told, "turn": turn})


def answers(find: Callable[[str], Scene | None], scheduler: Scheduler) -> list[Callable[[Any], Answer]]:
    """What the explorer may ask the server. Arguments come from the visitor: nothing in them is believed."""

    def said(work: Callable[[Scene, list[Any]], bytes], asked: Any, count: int, kind: Kind | None = None) -> Answer:

        def encoded(scene: Scene, rest: list[Any]) -> str:
            with nullcontext() if kind is None else scheduler.run(kind):
                return base64.b64encode(work(scene, rest)).decode()

        return answered(find, encoded, asked, count)

    def part(asked: Any) -> Answer:
        """[id, block or "rollout"] -> a file of `vitviz.web.payload`."""
        return said(_part, asked, 2)

    def flow(asked: Any) -> Answer:
        """[id, token or null, options] -> the rollout matrix's file, or one row of it as float32."""
        return said(_flow, asked, 3, Kind.SHORT)

    def whole(asked: Any) -> Answer:
        """[id] -> the page as one file."""
        return said(_page, asked, 1, Kind.LONG)

    return [part, flow, whole]


def proposing(find: Callable[[str], Scene | None], models: Callable[[], list[Proposal]]) -> Callable[[Any], Answer]:
    """What the explorer may ask about models that it could propose."""

    def larger(asked: Any) -> Answer:
        """[id] -> the models, the first one first."""
        return answered(find, lambda *_: json.dumps(models()), asked, 1)

    return larger


def _part(scene: Scene, given: list[Any]) -> bytes:
    (which,) = given
    if which == "rollout":
        return _matrix(scene, {})
    known = {str(block): block for block in range(scene.trace.depth)}
    if not isinstance(which, str) or which not in known:
        raise TraceError(f"Expected a block from 0 to {scene.trace.depth - 1}, or rollout; got {which!r:.40}.")
    return block_bytes(scene.trace, known[which])


def _flow(scene: Scene, given: list[Any]) -> bytes:
    token, options = given
    return _matrix(scene, options) if token is None else _row(scene, token, options)


def _page(scene: Scene, _: list[Any]) -> bytes:
    """The page as one file, unless it would fill the server's memory and choke the browser."""
    trace = scene.trace
    queries_and_keys = 4 * trace.depth * trace.heads * trace.tokens.shape[1] * trace.head_width  # 2 bytes each
    size = queries_and_keys * 4 // 3  # in base64
    if size > MOST_PAGE_BYTES:
        raise ValueError(
            f"A page of {trace.tokens.shape[1]:,} tokens would have {size / 1e6:.0f} MB, and the most is "
            f"{MOST_PAGE_BYTES / 1e6:.0f}. Choose less detail."
        )
    return standalone(scene).encode()


def _rolling(options: Any) -> Rolling:
    """Options of rollout, with their types checked; their values are checked by `rollout` itself."""
    known: dict[str, Callable[[Any], bool]] = {
        "fuse": lambda value: value in FUSIONS,
        "discard": _is_number,
        "residual": _is_number,
        "start": lambda value: isinstance(value, int) and not isinstance(value, bool),
    }
    if not isinstance(options, dict) or not all(
        name in known and known[name](value) for name, value in options.items()
    ):
        raise ValueError(f"Expected options of rollout among {', '.join(known)}, got {options!r:.80}.")
    rolling: Rolling = options
    return rolling


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _matrix(scene: Scene, options: Any) -> bytes:
    if scene.trace.tokens.shape[1] > ROLLOUT_TOKENS:
        raise ValueError(f"Expected at most {ROLLOUT_TOKENS} tokens for rollout from every one, ask for a row instead.")
    return rollout_bytes(scene.trace, **_rolling(options))


def _row(scene: Scene, token: Any, options: Any) -> bytes:
    """Rollout to one token, -1 for the mean over patches: (N,) float32, little endian."""
    if not isinstance(token, int) or isinstance(token, bool):
        raise TraceError(f"Expected a token's number, or -1 for all patches; got {token!r:.40}.")
    scores = rollout(scene.trace, "mean" if token < 0 else token, **_rolling(options))
    row = torch.cat([scores.prefix[0], scores.patches[0].flatten()]).cpu().numpy()  # (N,)
    return bytes(row.astype("<f4").tobytes())
