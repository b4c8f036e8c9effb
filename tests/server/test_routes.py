"""The page's questions over HTTP without a socket: answers, progress, cancellation, replicas."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asking import Site, form, last, progress, progress_with, wait_for_rest
from offered import forget_scenes, new_endpoints, photograph
from patience import patience

from vitviz.server import opening, routes
from vitviz.server.jobs import Cancelled


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[list[Site]]:
    """Return two servers that share no state."""
    sites = [Site(new_endpoints(tmp_path_factory.mktemp("page"), sources)) for _ in range(2)]
    yield sites
    for site in sites:
        site.close()


@pytest.fixture
def site(sites: list[Site]) -> Site:
    return sites[0]


def test_data_and_bytes_are_answered_over_http(site: Site) -> None:
    """tests/web/test_backends.py asks every question through the page."""
    scene = site.ask("open", photo=photograph(), source={})["data"]["id"]
    assert site.ask("block", {"scene": scene, "block": 1})[:4] == b"VVB1"
    assert site.ask("layers", {"scene": scene})["data"]["layers"]
    assert b"<html" in site.ask("page", {"scene": scene, "search": "?layer=2"})
    assert site.ask("models")["data"]["methods"]


def test_block_that_the_page_shows_first_follows_the_answer_of_open(site: Site) -> None:
    scene = site.ask("open", photo=photograph(13), source={})["data"]

    def following(block: int) -> Any:
        question = form(photo=photograph(13), source={})
        question["data"]["block"] = str(block)
        answer = site.client.post("/vitviz/open", **question).content
        opened, _, rest = answer[answer.index(b'{"data"') :].partition(b"\n")
        assert json.loads(opened)["data"]["id"] == scene["id"]
        return last(rest)

    for block, number in ((0, 0), (10**9, scene["depth"] - 1)):
        assert following(block) == site.ask("block", {"scene": scene["id"], "block": number})
    assert following(-1)["error"]["kind"] == "refused"


def test_unknown_scene_is_opened_within_the_same_request(sites: list[Site]) -> None:
    site, other = sites
    manifest = site.ask("open", photo=photograph(11), source={})["data"]
    ask = {"scene": manifest["id"], "block": 0}
    expected = site.ask("block", ask)
    assert other.ask("block", ask)["error"]["kind"] == "unknown"
    assert other.ask("block", ask, photo=photograph(11), source={}) == expected
    assert other.ask("block", ask) == expected  # without the photograph, now that the scene is open
    forget_scenes(site.endpoints)  # as if the server had restarted
    question = {"scene": manifest["id"], "method": "token_gradcam", "target": None, "against": None}
    assert site.ask("explain", question)["error"]["kind"] == "unknown"
    assert site.ask("explain", question, photo=photograph(11), source={})["data"]["values"]
    wrong = {"scene": "0" * 32, "block": 0}
    assert site.ask("block", wrong, photo=photograph(12), source={})["error"]["kind"] == "unknown"


def test_progress_is_repeated_with_place_and_time(site: Site, held: threading.Event) -> None:
    assert 0.1 <= routes.TICK <= 1  # seconds
    with ExitStack() as open_answers:

        def opens(number: int) -> Iterator[str]:
            return open_answers.enter_context(site.stream("open", photo=photograph(number))).iter_lines()

        running = opens(20)
        assert progress_with("text", running)["text"] == "Running the model on 77 patches"
        decoded = opens(21)
        assert progress_with("text", decoded)["text"] == "Opening the photograph"
        waiting = opens(22)
        for line in (progress_with("ahead", waiting), progress(waiting)):
            assert line["ahead"] == 2
            assert line["seconds"] > 0
        held.set()
        for lines in (running, decoded, waiting):
            *before, end = map(json.loads, lines)
            assert end["data"]["id"]
            assert all("progress" in line and set(line) <= {"progress", "phrases"} for line in before)


def test_closed_connection_cancels_the_computation(
    site: Site, held: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with site.stream("open", photo=photograph(30)) as running:
        assert progress_with("text", running.iter_lines())
        with site.stream("open", photo=photograph(31)) as waiting:
            assert progress_with("text", waiting.iter_lines())["text"] == "Opening the photograph"
    wait_for_rest(site.endpoints)
    assert not held.is_set()  # so the computation was cancelled
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_closed_connection_cancels_decoding(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_worker.py checks that the decoding process ends as well."""
    stop, cancelled = threading.Event(), threading.Event()

    def decode(_data: bytes, check: Callable[[], None], **_options: object) -> None:
        try:
            while not stop.wait(0.01):
                check()
        except Cancelled:
            cancelled.set()
            raise

    monkeypatch.setattr(opening, "decode_apart", decode)
    with site.stream("open", photo=photograph(32)) as answer:
        assert progress_with("text", answer.iter_lines())["text"] == "Opening the photograph"
    assert cancelled.wait(patience(60))
    stop.set()
    wait_for_rest(site.endpoints)


def test_shared_computation_continues_while_one_client_waits(site: Site, held: threading.Event) -> None:
    with ExitStack() as leaving:
        first = leaving.enter_context(site.stream("open", photo=photograph(40)))
        assert progress(first.iter_lines())
        with site.stream("open", photo=photograph(40)) as joined:
            lines = joined.iter_lines()
            assert "ahead" not in progress(lines)  # the computation already runs
            leaving.close()
            held.set()
            assert json.loads([*lines][-1])["data"]["id"]


def test_loading_of_a_model_is_reported(site: Site, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    load, end = site.endpoints.loaded._load, threading.Event()
    monkeypatch.setattr(site.endpoints.loaded, "_load", lambda name: end.wait(patience(60)) and load(name))
    site.endpoints.loaded._evict(site.endpoints.loaded._limit)
    with site.stream("open", source={"image": "Noise", "model": sources[1]}) as answer:
        lines = answer.iter_lines()
        assert progress(lines)["text"].startswith("Loading Tiny b (")
        end.set()
        assert json.loads([*lines][-1])["data"]["model"] == sources[1]
