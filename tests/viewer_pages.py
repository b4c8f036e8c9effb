"""Write saved pages, open them from disk without a network, and read their contents."""

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
from vitviz.web.scene import Scene, saved_page

ROOT = Path(__file__).parents[1]
SCENE = "vitviz.scenes.get(vitviz.store.get().scene?.id)"  # text that describes the active pane
CHURCH = ROOT / "examples" / "church.jpg"
TINY = {"height": 7 * tiny.PATCH, "width": 11 * tiny.PATCH}  # input size of the tiny models, in pixels

# By name: the model's options, its preprocessing, and the photograph's width and height.
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
    """Return a picture of smooth noise, without repetitions."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 24 + 2, width // 24 + 2, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


@lru_cache
def view(kind: str = FIRST) -> View:
    """Return a tiny model's view of a photograph."""
    options, preprocess, size = KINDS[kind]
    model = tiny.model(**options)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="A model", preprocess=Preprocess(**{**TINY, **preprocess}), labels=labels)
    return Explorer(model).open(photograph(*size))


def scene(seen: View, **further: Any) -> Scene:
    return Scene(seen, **further)


@lru_cache
def html(kind: str = FIRST) -> str:
    return saved_page(scene(view(kind)))


def shown_photo(text: str) -> Image.Image:
    """Decode the photograph inside a page."""
    data = re.search(r'"url": "data:image/jpeg;base64,([^"]+)"', text)[1]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


# ---- opening


def write(folder: Path, text: str) -> str:
    """Save a page, and return its address."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def show(page: Page, folder: Path, text: str | None = None) -> None:
    """Open a page from disk with all its controls and colors for reading values, and wait until it is complete."""
    page.goto(write(folder, html() if text is None else text))
    page.wait_for_function(f"{SCENE}?.answers.complete")
    ask(page, open=["more"], color="viridis")


STATE = """(names) => {
    const state = vitviz.store.get();
    const { query, pointer, scene } = state;
    const pinned = Array.isArray(query);
    const first = scene?.limits.prefix.includes('CLS') ? 'cls' : 'mean';
    const all = { ...state, pinned, query: pinned ? query : pointer?.query ?? query ?? first };
    return names.map((name) => all[name]);
}"""


def rest(page: Page) -> None:
    page.wait_for_function("vitviz.resting()")


def ask(page: Page, **change: Any) -> None:
    """Change the state like the controls."""
    page.evaluate("change => vitviz.store.dispatch({ type: 'change', change })", change)
    rest(page)


def state(page: Page, *names: str) -> Any:
    """Return fields of the state, or a single field. `query` is the current query, `pinned` whether it is pinned."""
    rest(page)
    values = page.evaluate(STATE, list(names))
    return values[0] if len(names) == 1 else values


def title(page: Page, pane: int = 0) -> str:
    rest(page)
    return page.locator(".vv-title").nth(pane).text_content()


def box(page: Page, selector: str) -> dict[str, float]:
    return page.locator(selector).first.bounding_box()


def centre(
    page: Page, seen: View, row: int, column: int, pane: int = 0, selector: str = ".vv-held"
) -> tuple[float, float]:
    """Return the centre of a patch's visible part on the screen."""
    picture = page.locator(selector).nth(pane)
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    left, top, right, bottom = seen.geometry.patch_box(row, column, seen.trace.grid)
    width, height = seen.photo.size
    x, y = (max(left, 0) + min(right, width)) / 2, (max(top, 0) + min(bottom, height)) / 2
    return box["x"] + x / width * box["width"], box["y"] + y / height * box["height"]


def hover(page: Page, seen: View, row: int, column: int, pane: int = 0) -> None:
    page.mouse.move(*centre(page, seen, row, column, pane))
    rest(page)


def pixels(page: Page, script: str) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 4) of a canvas; `script` is a function of the view that returns it."""
    rest(page)
    url = page.evaluate(f"({script})(vitviz.panels[0]).toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGBA"))


def assert_colors(colors: NDArray[np.uint8], index: NDArray[np.integer[Any]], off: int) -> None:
    """Assert that `colors` (..., 3) match the indices `index` (...) within `off` steps, because of half precision."""
    assert colors.shape == (*index.shape, 3)
    near = [lut("viridis")[np.clip(index.astype(int) + step, 0, 255)] for step in range(-off, off + 1)]
    assert np.any([(colors == candidates).all(-1) for candidates in near], axis=0).all()


# ---- compare numbers of the page and of Python

CLOSE = 2e-3 + 6e-4  # of a share: half precision, and percent rounded to one digit


def number(text: str) -> float:
    """Parse a share or a score printed by the page."""
    stripped = re.sub("[\u2007\u2008]", "", text).strip().replace("\N{MINUS SIGN}", "-")  # columns are padded
    value, percent = re.fullmatch(r"(?:[<>]\s)?(-?[\d.]+)(\s%)?", stripped).groups()
    return float(value) / (100 if percent else 1)


@lru_cache
def rollout_rows(seen: View) -> NDArray[np.float64]:
    return rollout_matrix(seen.trace)[0].double().numpy()  # (N, N)


def row_of(seen: View, block: int, head: int | str, query: Any, direction: str, mode: str) -> NDArray[np.float64]:
    """Return the numbers of all tokens, (N,), in float64, without the page's packing."""
    if mode == "rollout":
        matrix = rollout_rows(seen)
    else:
        heads = tiny.dense(seen.trace, block)[0].numpy()  # (H, N, N)
        matrix = heads[head] if isinstance(head, int) else getattr(heads, head)(0)
        matrix = matrix / matrix.sum(-1, keepdims=True)
    matrix = matrix if direction == "row" else matrix.T
    prefix = len(seen.trace.prefix)
    return matrix[prefix:].mean(0) if query == "mean" else matrix[seen.trace.token(query)]
