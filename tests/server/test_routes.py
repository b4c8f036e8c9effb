"""The page's questions over HTTP, in this process: answers, progress, cancelling, replicas, checkpoints."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import Site, last, progress, progress_with, wait_for_rest
from offered import folder, made, photograph
from patience import patience

from vitviz.server import endpoints, routes
from vitviz.server.scheduler import Cancelled
from vitviz.settings import Settings


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[list[Site]]:
    """Two servers that know nothing of each other."""
    sites = [Site(made(tmp_path_factory.mktemp("page"), sources, upload=True)) for _ in range(2)]
    yield sites
    for site in sites:
        site.close()


@pytest.fixture
def site(sites: list[Site]) -> Site:
    return sites[0]


def test_a_photograph_is_opened_and_asked_about(site: Site) -> None:
    manifest = site.ask("open", photo=photograph(), source={})["data"]

    def ask(name: str, **given: Any) -> Any:
        answer = site.ask(name, {"scene": manifest["id"], **given})
        return answer if isinstance(answer, bytes) else answer["data"]

    assert manifest["own"]
    assert ask("block", block=1)[:4] == b"VVB1"
    assert ask("rollout", token=None, fuse="mean")[:4] == b"VVR1"
    assert len(ask("rollout", token=-1)) == 4 * (1 + 77)
    assert len(ask("explain", method="token_gradcam", target=None, against=None)["values"]) == 77
    assert ask("faithfulness", methods=["rollout"], target=3, against=None)[0]["words"]
    assert ask("heads", names=["distance"])["values"]
    assert ask("layers")["layers"]
    assert ask("intervene", patches=[3], heads=[[0, 1]])["classes"]
    assert ask("lecture", block=None)
    assert b"<html" in ask("page", search="?layer=2")
    assert site.ask("models")["data"]["methods"]


def test_a_scene_that_a_process_does_not_hold_is_opened_in_the_same_request(sites: list[Site]) -> None:
    site, other = sites
    manifest = site.ask("open", photo=photograph(11), source={})["data"]
    ask = {"scene": manifest["id"], "block": 0}
    expected = site.ask("block", ask)
    assert other.ask("block", ask)["error"]["kind"] == "unknown"
    assert other.ask("block", ask, photo=photograph(11), source={}) == expected
    assert other.ask("block", ask) == expected  # it is here now
    site.endpoints.scenes.discard(lambda *_: True)  # as if the server had started anew
    question = {"scene": manifest["id"], "method": "token_gradcam", "target": None, "against": None}
    assert site.ask("explain", question)["error"]["kind"] == "unknown"
    assert site.ask("explain", question, photo=photograph(11), source={})["data"]["values"]
    wrong = {"scene": "0" * 32, "block": 0}
    assert site.ask("block", wrong, photo=photograph(12), source={})["error"]["kind"] == "unknown"


def test_progress_comes_again_and_again_with_place_and_time(site: Site, held: threading.Event) -> None:
    assert 0.1 <= routes.TICK <= 1  # seconds
    with ExitStack() as open_answers:
        running = open_answers.enter_context(site.stream("open", photo=photograph(20))).iter_lines()
        assert progress_with("text", running)["text"] == "Running the model on 77 patches"
        waiting = open_answers.enter_context(site.stream("open", photo=photograph(21))).iter_lines()
        for line in (progress_with("ahead", waiting), progress(waiting)):
            assert line["ahead"] == 1
            assert line["seconds"] > 0
        held.set()
        for lines in (running, waiting):
            *before, end = map(json.loads, lines)
            assert end["data"]["id"]
            assert all(list(line) == ["progress"] for line in before)


def test_closing_the_connection_stops_work(site: Site, held: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    with site.stream("open", photo=photograph(30)) as running:
        assert progress_with("text", running.iter_lines())
        with site.stream("open", photo=photograph(31)) as waiting:
            assert progress_with("ahead", waiting.iter_lines())["ahead"] == 1
    wait_for_rest(site.endpoints)
    assert not held.is_set()  # nobody let it finish
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_closing_the_connection_ends_decoding(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_worker.py holds that the process ends, too."""
    stop, cancelled = threading.Event(), threading.Event()

    def decode(_data: bytes, check: Callable[[], None] = lambda: None) -> None:
        try:
            while not stop.wait(0.01):
                check()
        except Cancelled:
            cancelled.set()
            raise

    monkeypatch.setattr(endpoints, "decode_apart", decode)
    with site.stream("open", photo=photograph(32)) as answer:
        assert progress_with("text", answer.iter_lines())["text"] == "Opening the photograph"
    assert cancelled.wait(patience(60))
    stop.set()
    wait_for_rest(site.endpoints)


def test_who_joins_a_question_keeps_it_alive(site: Site, held: threading.Event) -> None:
    with ExitStack() as leaving:
        first = leaving.enter_context(site.stream("open", photo=photograph(40)))
        assert progress(first.iter_lines())
        with site.stream("open", photo=photograph(40)) as joined:
            lines = joined.iter_lines()
            assert "ahead" not in progress(lines)  # it runs already
            leaving.close()
            held.set()
            assert json.loads([*lines][-1])["data"]["id"]


def test_loading_a_model_is_said(site: Site, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    load, end = site.endpoints.loaded._load, threading.Event()
    monkeypatch.setattr(site.endpoints.loaded, "_load", lambda name: end.wait(patience(60)) and load(name))
    site.endpoints.loaded._evict(site.endpoints.loaded._limit)
    with site.stream("open", source={"image": "Noise", "model": sources[1]}) as answer:
        lines = answer.iter_lines()
        assert progress(lines)["text"].startswith("Loading Tiny b (")
        end.set()
        assert json.loads([*lines][-1])["data"]["model"] == sources[1]


def test_a_body_that_does_not_arrive_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_SECONDS", 0.01)
    answer = site.client_at("127.0.0.1", hangs=True).post("/vitviz/open", files={"photo": photograph()})
    assert answer.status_code == 408
    assert answer.text.startswith("Expected a request within")


def upload(site: Site, name: str, data: bytes) -> httpx.Response:
    return site.client.post("/vitviz/checkpoint", files={"photo": (name, data)})


def test_a_checkpoint_is_uploaded_and_named_by_its_hash(sites: list[Site], tmp_path: Path) -> None:
    site, other = sites
    weights = Path(folder(tmp_path / "mine", 9)) / "model.safetensors"
    found = last(upload(site, "mine.safetensors", weights.read_bytes()).content)["data"]
    assert found["source"].startswith("upload:")
    assert found["words"].startswith("mine.safetensors · ")
    for server, source, words in (
        (other, found["source"], "Upload it again"),  # on another machine
        (site, found["source"][:-1], "Expected"),  # test_models.py has more that are no names
        (site, found["source"], "Expected"),
    ):
        refused = server.ask("open", photo=photograph(), source={"model": source})["error"]
        assert refused["kind"] == "refused"
        assert words in refused["text"]
        assert str(tmp_path) not in refused["text"]


def test_other_files_are_no_checkpoints_and_the_operator_may_refuse_all(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last(upload(site, "a.pt", b"x").content)["error"]["kind"] == "refused"
    source = last(upload(site, "a.safetensors", b"").content)["data"]["source"]
    assert site.ask("open", photo=photograph(), source={"model": source})["error"]["kind"] == "refused"
    monkeypatch.setattr(site.endpoints.menu, "settings", Settings())
    answer = upload(site, "a.safetensors", b"x")
    assert answer.status_code == 403
    assert "own machine" in answer.text
