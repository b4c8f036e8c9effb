"""Pages that stand alone, and what they show: for the tests that open them from disk with the network off."""

from __future__ import annotations

import base64
import io
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Page

from vitviz.attribution.attention import rollout_matrix
from vitviz.draw.colors import lut
from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.view import View
from vitviz.web.scene import Scene, standalone

ROOT = Path(__file__).parents[1]
SCENE = "vitviz.scenes.get(vitviz.store.get().scene?.id)"  # what the active pane shows
CHURCH = ROOT / "examples" / "church.jpg"
TINY = {"height": 7 * tiny.PATCH, "width": 11 * tiny.PATCH}  # the input of the tiny models, in pixels

# Name: the model's options, its preprocessing, and the photograph's width and height.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "registers, margins unseen": ({"registers": 3}, {"mode": "crop"}, (310, 270)),
    "distillation, squashed": ({"distillation_token": True}, {"mode": "squash"}, (240, 210)),
    "no class token, padded": ({"class_token": False, "pooling": "mean"}, {"mode": "pad"}, (150, 260)),
    "one block, six patches": (
        {"grid": (2, 3), "depth": 1}, {"mode": "squash", "height": 2 * tiny.PATCH, "width": 3 * tiny.PATCH}, (200, 170)
    ),
    "any shape": ({}, {"mode": "native", "multiple": tiny.PATCH}, (190, 330)),
    "too many for rollout": (
        {"grid": (25, 26), "patch": 4, "depth": 2, "heads": 2},
        {"mode": "squash", "height": 100, "width": 104},
        (208, 200),
    ),
}  # fmt: skip
FIRST = "registers, margins unseen"


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Clouds of colour: like a photograph in that neighbours are alike, unlike it in that nothing repeats."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 24 + 2, width // 24 + 2, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


@lru_cache
def view(kind: str = FIRST) -> View:
    """What a tiny model saw."""
    options, preprocess, size = KINDS[kind]
    model = tiny.model(**options)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="A model", preprocess=Preprocess(**{**TINY, **preprocess}), labels=labels)
    return Explorer(model).open(photograph(*size))


def scene(seen: View, **more: Any) -> Scene:
    predictions = seen.predictions() if seen.names_classes else ()
    given = {"predictions": predictions, "labels": seen.labels, "title": "A model", **more}
    return Scene(trace=seen.trace, photo=seen.photo, geometry=seen.geometry, **given)


@lru_cache
def html(kind: str = FIRST) -> str:
    return standalone(scene(view(kind)))


def shown_photo(text: str) -> Image.Image:
    """The photograph inside a page, decoded."""
    data = re.search(r'"url": "data:image/jpeg;base64,([^"]+)"', text)[1]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


# ---- opening


def write(folder: Path, text: str) -> str:
    """The address of a page on disk."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def show(page: Page, folder: Path, text: str | None = None) -> None:
    """Open a page from disk and wait until everything in it is there."""
    page.goto(write(folder, html() if text is None else text))
    page.wait_for_function(f"{SCENE}?.answers.complete")
    rest(page)


STATE = """(names) => {
    const state = vitviz.store.get();
    const { query, pointer, scene } = state;
    const pinned = Array.isArray(query);
    const first = scene?.limits.prefix.includes('CLS') ? 'cls' : 'mean';
    const all = { ...state, pinned, query: pinned ? query : pointer?.query ?? query ?? first };
    return names.map((name) => all[name]);
}"""


def rest(page: Page) -> None:
    """Wait until the page has drawn what there was to draw."""
    page.wait_for_function("vitviz.resting()")


def ask(page: Page, **change: Any) -> None:
    """Set a part of the state, as the controls do."""
    page.evaluate("change => vitviz.store.dispatch({ type: 'change', change })", change)
    rest(page)


def state(page: Page, *names: str) -> Any:
    """Parts of the state; one by itself. `query` is what is asked from now, `pinned` whether it stays."""
    rest(page)
    found = page.evaluate(STATE, list(names))
    return found[0] if len(names) == 1 else found


def title(page: Page, pane: int = 0) -> str:
    """The line below a picture."""
    rest(page)
    return page.locator(".vv-title").nth(pane).inner_text()


def box(page: Page, selector: str) -> dict[str, float]:
    return page.locator(selector).first.bounding_box()


def centre(page: Page, seen: View, row: int, column: int, pane: int = 0) -> tuple[float, float]:
    """Where the middle of what a patch saw lies on the screen."""
    held = page.locator(".vv-held").nth(pane)
    held.scroll_into_view_if_needed()
    found = held.bounding_box()
    left, top, right, bottom = seen.geometry.patch_box(row, column, seen.trace.grid)
    width, height = seen.photo.size
    x, y = (max(left, 0) + min(right, width)) / 2, (max(top, 0) + min(bottom, height)) / 2
    return found["x"] + x / width * found["width"], found["y"] + y / height * found["height"]


def hover(page: Page, seen: View, row: int, column: int, pane: int = 0) -> None:
    page.mouse.move(*centre(page, seen, row, column, pane))
    rest(page)


def pixels(page: Page, script: str) -> NDArray[np.uint8]:
    """What a canvas holds, (height, width, 4); `script` is a function that returns it, called with the view."""
    rest(page)
    url = page.evaluate(f"({script})(vitviz.views[0]).toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGBA"))


def assert_colors(shown: NDArray[np.uint8], index: NDArray[np.integer[Any]], off: int) -> None:
    """`shown` (..., 3) has the colours of `index` (...), or those up to `off` beside them: halves move numbers."""
    assert shown.shape == (*index.shape, 3)
    near = [lut("viridis")[np.clip(index.astype(int) + step, 0, 255)] for step in range(-off, off + 1)]
    assert np.any([(shown == colours).all(-1) for colours in near], axis=0).all()


# ---- what the page says, and what Python says

CLOSE = 2e-3 + 6e-4  # of a share: half precision, and the rounding of percent with one digit


def number(text: str) -> float:
    """A share or a score as the page prints it."""
    plain = re.sub("[\u2007\u2008]", "", text).strip().replace("\N{MINUS SIGN}", "-")  # columns are padded
    value, percent = re.fullmatch(r"(?:[<>] )?(-?[\d.]+)( %)?", plain).groups()
    return float(value) / (100 if percent else 1)


@lru_cache
def rollout_rows(seen: View) -> NDArray[np.float64]:
    return rollout_matrix(seen.trace)[0].double().numpy()  # (N, N)


def row_of(seen: View, block: int, head: int | str, query: Any, direction: str, mode: str) -> NDArray[np.float64]:
    """The numbers of all tokens, (N,), in float64 and without the code that packs them for the page."""
    if mode == "rollout":
        whole = rollout_rows(seen)
    else:
        heads = tiny.dense(seen.trace, block)[0].numpy()  # (H, N, N)
        whole = heads[head] if isinstance(head, int) else getattr(heads, head)(0)
        whole = whole / whole.sum(-1, keepdims=True)
    whole = whole if direction == "row" else whole.T
    prefix = len(seen.trace.prefix)
    return whole[prefix:].mean(0) if query == "mean" else whole[seen.trace.token(query)]
