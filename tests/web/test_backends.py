"""Test the page's backends, which the browser asks through `window.vitviz.backend`, and a static site's numbers.

Python computes the answers of the other backends, which tests/server/test_endpoints.py compares. To add a backend,
write a fixture that yields a `Backend`, and add its name to `BACKENDS`.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import numpy as np
import pytest
from browsing import new_page
from numpy.typing import NDArray
from offered import view_of
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page
from running import Running, complete, ready
from safetensors.numpy import load
from site_files import written_once
from static_site import serve
from torch.nn.functional import normalize

from vitviz.analysis.pairs import Descriptor, patch_descriptors
from vitviz.attribution.attention import rollout_matrix
from vitviz.explorer import Explorer
from vitviz.lecture.numbers import lecture_bytes, token_bytes, values_bytes
from vitviz.server import routes
from vitviz.view import View
from vitviz.web import questions
from vitviz.web.payload import HEADER, block_bytes
from vitviz.weights import zoo

BACKENDS = ("server", "embedded", "onnx")
OWN = ("id", "badge")  # fields of a manifest that differ between backends
CLOSE = 2e-3  # largest difference of a static site from Python
USUAL = {"fuse": "mean", "discard": 0, "residual": 0.5, "start": 0}
OTHER = {"fuse": "max", "discard": 0.3, "residual": 0.2, "start": 1}
LEAST = {"fuse": "min", "discard": 0, "residual": 0.5, "start": 0}
CLASS = {"target": 3, "against": None}
QUESTIONS = [  # the required capability, and a question
    ("explain", "descriptors", {"descriptor": "keys", "block": 1}),
    ("rollout", "rollout", {"token": 5, **USUAL}),
    ("rollout", "rollout", {"token": None, **OTHER}),
    ("explain", "explain", {"method": "token_gradcam", **CLASS}),
    ("explain", "faithfulness", {"methods": ["token_gradcam", "rollout"], **CLASS}),
    ("explain", "heads", {"names": ["distance"]}),
    ("explain", "layers", {}),
    ("explain", "decompose", CLASS),
    ("lecture", "lecture", {}),
    ("lecture", "lecture", {"block": 1}),
    ("explain", "evidence", {"target": None, "against": None, "apart": [], "removes": False}),
    ("explain", "rearrange", {"shuffle": 2, "positions": False}),
    ("explain", "intervene", {"patches": [0, 7], "heads": [[0, 1]]}),
    ("page", "page", {"search": "?layer=2"}),
]
PROGRESS = {"text": str, "ahead": int, "seconds": int | float, "done": int, "of": int}

ASK = """async ({ name, ask, id, abort }) => {
    const { backend, scenes, store } = window.vitviz;
    const { id: here, source } = scenes.get(store.get().scene.id);
    const told = [];
    const controller = new AbortController();
    const how = { signal: controller.signal, progress: (progress) => told.push(progress) };
    const file = new File([new Uint8Array(9)], 'mine.safetensors');
    const scene = { id: id ?? here, source };
    const about = { open: { source: { ...source, ...ask } }, models: {}, checkpoint: { file } }[name] ?? scene;
    const base64 = (buffer) => new Promise((resolve) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result.split(',')[1]);
        reader.readAsDataURL(new Blob([buffer]));
    });
    try {
        if (abort === 'before') controller.abort();
        const coming = backend.ask(name, about, name === 'open' ? {} : ask ?? {}, how);
        if (abort === 'after') controller.abort();
        const value = await coming;
        return value instanceof ArrayBuffer ? { bytes: await base64(value), told } : { value, told };
    } catch ({ name, kind, message }) {
        return { error: { name, kind, message }, told };
    }
}"""


@dataclass(frozen=True)
class Backend:
    """A backend and its page.

    Args:
        page: page that shows one scene.
        view: Python's view of the scene; manifest: Python's manifest of the scene.
    """

    page: Page
    view: View
    manifest: dict[str, Any] = field(repr=False)

    def send(self, name: str, ask: Any = None, **how: Any) -> dict[str, Any]:
        """Return the answer as "value", "bytes" or "error", and the progress as "told"."""
        return self.page.evaluate(ASK, {"name": name, "ask": ask, **how})

    def ask(self, name: str, ask: Any = None) -> Any:
        """Return an answer."""
        answer = self.send(name, ask)
        assert "error" not in answer, answer
        return base64.b64decode(answer["bytes"]) if "bytes" in answer else answer["value"]

    def refusal(self, name: str, ask: Any = None, **how: Any) -> dict[str, Any]:
        """Return the error of a refused or failed question."""
        error = self.send(name, ask, **how)["error"]
        assert error["message"].endswith(".")
        return error

    def can(self, what: str) -> bool:
        """Return whether the backend has a capability."""
        return self.page.evaluate("(what) => vitviz.backend.can[what]", what)


@contextmanager
def shown(browser: Chromium, url: str, offline: bool = False) -> Iterator[Page]:
    """Open a page and wait until its scene is loaded."""
    with new_page(browser, offline=offline) as page:
        ready(page, url)
        complete(page)
        yield page


@pytest.fixture(scope="module")
def manifest(app: Running, small: str) -> dict[str, Any]:
    return dict(json.loads(json.dumps(app.endpoints.open(image="Church", model=small))))


@pytest.fixture(scope="module")
def seen(app: Running, manifest: dict[str, Any]) -> View:
    return view_of(app.endpoints, manifest["id"])


@pytest.fixture(scope="module")
def server(browser: Chromium, app: Running, small: str, seen: View, manifest: dict[str, Any]) -> Iterator[Backend]:
    """Yield the backend that asks a server, which reports progress a hundred times per second here."""
    with pytest.MonkeyPatch.context() as patch, shown(browser, f"{app.url}?model={quote(small)}") as page:
        patch.setattr(routes, "TICK", 0.01)
        yield Backend(page, seen, manifest)


@pytest.fixture(scope="module")
def embedded(
    browser: Chromium, app: Running, seen: View, manifest: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """Yield the backend of a saved page, opened from disk without a network."""
    path: Path = tmp_path_factory.mktemp("saved") / "page.html"
    path.write_bytes(app.endpoints.page(manifest["id"]))
    with shown(browser, path.as_uri(), offline=True) as page:
        yield Backend(page, seen, manifest)


@pytest.fixture(scope="module")
def onnx(browser: Chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Yield the backend of a static site: files for the example, and a worker for all other questions."""
    place = written_once(tmp_path_factory)
    (described,) = (place / "site").glob("examples/noise/*/manifest.json")
    view = Explorer(zoo.load(str(place / "tiny"))).open(place / "Noise.png")
    with serve(place / "site") as site, shown(browser, site.url) as page:
        yield Backend(page, view, json.loads(described.read_text(encoding="utf-8")))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.getfixturevalue(request.param)


# ---- questions that every backend answers


def test_manifest_matches_python(backend: Backend) -> None:
    manifest = backend.ask("open", {})
    assert manifest["id"] == backend.page.evaluate("vitviz.store.get().scene.id")
    expected = {name: value for name, value in backend.manifest.items() if name not in OWN}
    for each in (manifest, expected):
        each["predictions"] = {name: probability for name, probability, _ in each["predictions"]}
    assert manifest.pop("predictions") == pytest.approx(expected.pop("predictions"), abs=CLOSE)
    assert {name: manifest[name] for name in expected} == expected


# ---- numbers of a static site


def attention(file: bytes) -> NDArray[np.float32]:
    """Return the attention (H, N, N) of a block's file."""
    _, _, bits, heads, _, tokens, width, *_ = HEADER.unpack_from(file)
    lse = np.frombuffer(file, "<f8", heads * tokens, HEADER.size).reshape(heads, tokens, 1)
    start = HEADER.size + lse.nbytes + 2 * 4 * heads * tokens + 4 * tokens  # after the means and the tokens
    both = np.frombuffer(file, "<f2" if bits == 16 else "<f4", offset=start)
    queries, keys = both.reshape(2, heads, tokens, width).astype(np.float64)
    return np.exp(queries @ keys.transpose(0, 2, 1) - lse).astype(np.float32)  # (H, N, d) @ (H, d, N) -> (H, N, N)


def test_blocks_match_python(onnx: Backend) -> None:
    trace = onnx.view.trace
    for block in range(trace.depth):
        file, expected = onnx.ask("block", {"block": block}), block_bytes(trace, block)
        np.testing.assert_allclose(attention(file), attention(expected), atol=CLOSE)


def test_rollout_rows_match_python(onnx: Backend) -> None:
    trace = onnx.view.trace
    for options in (USUAL, OTHER, LEAST):
        expected = rollout_matrix(trace, **options)[0].numpy()  # (N, N)
        file = onnx.ask("rollout", {"token": None, **options})
        rows = np.frombuffer(file, "<f2" if HEADER.unpack_from(file)[2] == 16 else "<f4", offset=HEADER.size)
        np.testing.assert_allclose(rows.reshape(expected.shape), expected, atol=CLOSE)
        for token, row in ((0, expected[0]), (5, expected[5]), (-1, expected[len(trace.prefix) :].mean(0))):
            shown = np.frombuffer(onnx.ask("rollout", {"token": token, **options}), "<f4")
            np.testing.assert_allclose(shown, row, atol=CLOSE / 20)


def test_descriptors_match_python(onnx: Backend) -> None:
    trace = onnx.view.trace
    for descriptor, block in product(get_args(Descriptor), range(trace.depth)):
        file = onnx.ask("descriptors", {"descriptor": descriptor, "block": block})
        magic, _, bits, *sizes = HEADER.unpack_from(file)
        assert (magic, sizes[0], *sizes[4:8]) == (b"VVD1", 1, block, 0, *trace.grid)
        vectors = np.frombuffer(file, "<f2" if bits == 16 else "<f4", offset=HEADER.size).reshape(sizes[2:4])
        expected = normalize(patch_descriptors(onnx.view.model, trace, descriptor, block), dim=-1)
        lengths = np.linalg.norm(vectors.astype(np.float32), axis=-1, keepdims=True)
        np.testing.assert_allclose(vectors / lengths, expected, atol=1e-3, err_msg=f"{descriptor} {block}")


def test_sums_match_python(onnx: Backend) -> None:
    for aim, contrast in (
        ({}, {}),
        ({"target": 3}, {"target": 3}),
        ({"target": 3, "against": 1}, {"contrast": (3, 1)}),
    ):
        sums, answer = onnx.view.decompose(**contrast), onnx.ask("decompose", aim)
        largest = max(np.abs(part).max() for part in (sums.heads, sums.mlps, sums.biases))
        close = 1e-4 * largest + CLOSE
        tokens = np.frombuffer(base64.b64decode(answer["tokens"]), "<f4").reshape(sums.tokens.shape)
        np.testing.assert_allclose(tokens, sums.tokens, atol=close)
        for part in ("start", "constant", "total", "heads", "mlps", "biases"):
            np.testing.assert_allclose(answer[part], getattr(sums, part), atol=close, err_msg=part)
        parts = sum(np.sum(answer[part]) for part in ("start", "constant", "heads", "mlps", "biases"))
        assert parts == pytest.approx(answer["total"], abs=1e-4 * largest)
        assert (answer["name"], answer["scale"]) == (sums.name, sums.scale)


def test_lecture_numbers_match_python(onnx: Backend) -> None:
    view = onnx.view
    middle = view.trace.token(tuple(side // 2 for side in view.trace.grid))
    for ask, expected in (
        ({}, lecture_bytes(view)),
        ({"block": 1}, values_bytes(view.model, view.trace, 1)),
        ({"block": 1, "token": middle}, token_bytes(view.model, view.trace, 1, middle)),
    ):
        tensors, arrays = (load(data) for data in (onnx.ask("lecture", ask), expected))
        assert sorted(tensors) == sorted(arrays)
        for name, array in arrays.items():
            np.testing.assert_allclose(tensors[name], array, atol=CLOSE)


# ---- questions that only some backends answer, and refused questions


def test_every_question_that_a_static_site_answers_is_asked() -> None:
    answered = {question.name for question in questions.QUESTIONS.values() if not question.not_in_browser}
    assert {name for _, name, _ in QUESTIONS} == answered - {"open", "block"}  # the page of every backend asks these


@pytest.mark.parametrize(("needs", "name", "ask"), QUESTIONS)
def test_backend_answers_or_refuses_each_question(backend: Backend, needs: str, name: str, ask: Any) -> None:
    if backend.can(needs):
        assert backend.send(name, ask, abort="after")["error"]["name"] == "AbortError"
        assert backend.ask(name, ask)
    else:
        error = backend.refusal(name, ask)
        assert (error["name"], error["kind"]) == ("BackendError", "refused")


def test_backend_opens_other_scenes_if_it_can(backend: Backend) -> None:
    manifest = backend.ask("open", {"image": "Dog"})
    assert manifest["image"] == ("Dog" if backend.can("choose") else backend.manifest["image"])
    if backend.can("choose"):
        models = backend.page.evaluate("vitviz.models")
        assert "Dog" in [example["name"] for example in models["examples"]]
        sources = [entry["source"] for group in models["groups"] for entry in group["entries"]]
        assert backend.manifest["model"] in sources
        assert backend.refusal("open", {"image": "Nothing"})["kind"] == "refused"
    elif not backend.can("open"):
        assert backend.refusal("models")["kind"] == "refused"


def test_address_changes_only_if_backend_can_link(backend: Backend) -> None:
    before = backend.page.url
    backend.page.evaluate("vitviz.store.dispatch({ type: 'change', change: { block: 0, tab: 'look' } })")
    assert (backend.page.url != before) == backend.can("link")


def test_checkpoints_unknown_scenes_and_blocks_are_refused(backend: Backend) -> None:
    error = backend.refusal("checkpoint")  # these backends accept no checkpoints
    assert (error["name"], error["kind"]) == ("BackendError", "refused")
    for name, ask in (("block", {"block": 0}), ("rollout", {"token": None, **USUAL})):
        error = backend.refusal(name, ask, id="0" * 32)  # another scene
        assert (error["name"], error["kind"]) == ("BackendError", "unknown")
        assert backend.send(name, ask, abort="before")["error"]["name"] == "AbortError"
        assert backend.ask(name, ask)
    assert backend.refusal("block", {"block": 99})["name"] == "BackendError"


def test_progress_messages_have_the_documented_fields(backend: Backend) -> None:
    messages = backend.send("block", {"block": 0})["told"]
    if backend.can("explain"):
        slow = backend.send("faithfulness", {"methods": ["gae", "legrad"], **CLASS})["told"]
        assert any(progress.get("text") for progress in slow)
        assert any("done" in progress for progress in slow)
        messages += slow
    for progress in messages:
        assert all(isinstance(value, PROGRESS[name]) for name, value in progress.items()), progress
        assert progress.get("done", 0) <= progress.get("of", 0)
