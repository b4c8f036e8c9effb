"""Attacks that once got through, on the assembled app in this process; test_process.py has those that need sockets."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from asking import FORM, Site, form, last, progress, wait_for_rest
from attacked import ROOT
from offered import folder, made, photograph
from patience import wait_until
from playwright.sync_api import Page as Browser
from running import folder as running_folder

from vitviz.cli.main import Printable, main
from vitviz.server import api
from vitviz.server.account import Budget, Resource
from vitviz.server.scheduler import Kind
from vitviz.server.uploads import NO_SUCH_UPLOAD, upload_folder

CHURCH = ROOT / "examples" / "church.jpg"
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("firewall")
    site = Site(made(place / "page", (folder(place / "model"),)))
    yield site
    site.close()


def uploaded() -> set[Path]:
    return {path for path in upload_folder().root.rglob("*") if path.is_file()}


def kernel_shap(scene: str, target: int) -> dict[str, Any]:
    """A question that is another one for each target."""
    return {
        "scene": scene,
        "methods": ["kernel_shap"],
        "target": target % 29,
        "against": (target + 1 + target // 29) % 29,
    }


# --- files of the server


@pytest.mark.parametrize("path", [str(CHURCH), "/etc/passwd", "/nothing/here", "/proc/self/environ", "../app.py", "\0"])
def test_no_file_is_read_that_was_not_uploaded(site: Site, path: str) -> None:
    answers = [
        site.call("open", {"path": path}, None, None),
        site.call("explain", {"path": path}, "rollout", None, None),
    ]
    for answer in answers:
        assert NO_SUCH_UPLOAD in answer  # one text, whatever lies there
        assert path not in answer or path == "\0"
    assert site.client.get(f"/gradio_api/file={quote(path)}").status_code == 403
    for source in ({"image": path}, {"model": path}, {"image": "Noise", "model": f"upload:{path}"}):
        assert site.ask("open", source=source)["error"]["kind"] == "refused"
    assert site.ask("open", source={"path": path})["error"]["text"].startswith("Expected arguments among")


def test_no_event_of_the_page_reads_a_file_that_was_not_uploaded(site: Site) -> None:
    events = [one for one in site.config()["dependencies"] if one["inputs"]]
    assert len(events) == len(api.NAMES)
    for event in events:
        data = [{"path": str(CHURCH)}, *[None] * (len(event["inputs"]) - 1)]
        assert NO_SUCH_UPLOAD in site.join(event["id"], data)


# --- one client against the others


@pytest.mark.usefixtures("endless")
def test_a_crowd_that_leaves_holds_up_nobody(site: Site) -> None:
    """45 long questions do not delay another visitor, and stop when their clients go away."""
    scene, attackers = site.ask("open", photo=photograph(), source={})["data"]["id"], site.client_at("127.0.0.9")
    endpoints = site.endpoints
    with ExitStack() as crowd:
        for target in range(45):
            crowd.enter_context(attackers.stream("POST", "/vitviz/faithfulness", **form(kernel_shap(scene, target))))
        wait_until(lambda: endpoints.scheduler.ahead(Kind.LONG) == 45, "all long questions run or wait")
        path = site.upload("mine.png", photograph(1)).json()[0]
        assert "predictions" in site.call("open", {"path": path}, None, None)
        own = site.ask("open", photo=photograph(2), source={})["data"]["id"]
        assert "data" in site.ask("explain", {"scene": own, "method": "token_gradcam", "target": 3})
        assert endpoints.scheduler.ahead(Kind.LONG) == 45  # none of them was waited for
    wait_for_rest(endpoints)
    assert "data" in site.ask("heads", {"scene": scene, "names": ["ablation_logit"]})


@pytest.mark.usefixtures("endless")
def test_an_address_that_asks_too_much_is_told_how_long_it_takes(site: Site) -> None:
    scene = site.ask("open", photo=photograph(), source={})["data"]["id"]
    share = site.endpoints.menu.settings.places_of_address
    with ExitStack() as crowd:
        for target in range(share):
            crowd.enter_context(site.stream("faithfulness", kernel_shap(scene, target)))
        other = form(kernel_shap(scene, share))  # the share of an address binds only while another waits
        crowd.enter_context(site.client_at("127.0.0.8").stream("POST", "/vitviz/faithfulness", **other))
        wait_until(lambda: site.endpoints.scheduler.ahead(Kind.LONG) == share + 1, "all are taken")
        error = site.ask("faithfulness", kernel_shap(scene, share + 1))["error"]
        assert error["kind"] == "busy"
        assert error["text"].startswith("Busy")
        assert f"again in about {error['seconds']:.0f} s" in error["text"]
    wait_for_rest(site.endpoints)


def test_a_full_queue_says_how_long_it_takes_and_empties(site: Site, held: threading.Event) -> None:
    """One address fills the queue with events that nobody listens to."""
    number = next(one["id"] for one in site.config()["dependencies"] if one["api_name"] == "open")
    path = site.upload("mine.png", photograph(3)).json()[0]
    accepted, refused = 0, []
    while not refused:
        body = {"data": [{"path": path}, None, 140 + accepted], "fn_index": number, "session_hash": f"crowd{accepted}"}
        answer = site.client.post("/gradio_api/queue/join", json=body)
        accepted += answer.status_code == 200
        refused += [answer] if answer.status_code == 429 else []
    assert accepted >= api.MOST_OF_ADDRESS
    assert "requests are waiting. Try again in about" in refused[0].json()["detail"]
    assert refused[0].headers["retry-after"] == "10"
    held.set()

    answers: list[httpx.Response] = []

    def is_taken() -> bool:
        answers.append(site.client.post("/gradio_api/call/open", json={"data": [{"path": path}, None, None]}))
        return answers[-1].status_code == 200

    wait_until(is_taken, "the queue takes events again")
    event = answers[-1].json()["event_id"]
    assert "predictions" in site.client.get(f"/gradio_api/call/open/{event}").text  # after all who came before


def test_questions_of_an_address_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for resource in (Resource.QUESTIONS, Resource.REQUESTS):
        with monkeypatch.context() as patch:
            patch.setitem(site.endpoints.account.budgets, resource, Budget(0, 0))
            answer = site.post("models")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "10"
        assert answer.headers["content-type"].startswith("text/plain")
    assert site.ask("models")["data"]


def test_photographs_in_memory_are_bounded(site: Site, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = [photograph(seed) + bytes(2_000_000) for seed in (70, 71)]
    for budget in (Budget(30_000_000, 3_000_000), Budget(3_000_000, 30_000_000)):
        held.clear()
        with monkeypatch.context() as patch, site.stream("open", photo=photos[0]) as first:
            patch.setitem(site.endpoints.account.budgets, Resource.TRANSFERS, budget)
            progress(first.iter_lines())
            answer = site.post("open", photo=photos[1])
        assert answer.status_code == 429
        assert "Busy" in answer.text
        held.set()
        wait_for_rest(site.endpoints)
    assert site.ask("open", photo=photos[1], source={})["data"]["id"]


# --- what is sent


def test_what_the_page_does_not_need_is_not_served(site: Site) -> None:
    api_paths = ("run/open", "api/open", "run/explain", "component_server", "process_recording", "vibe-edit")
    names = ("nothing", "Open", "question", "scenes", "checkpoints")  # and nothing passes by the queue
    for path in (*(f"/gradio_api/{path}" for path in api_paths), *(f"/vitviz/{name}" for name in names)):
        answer = site.client.post(path, json={"data": []})
        assert (answer.status_code, len(answer.text) < 200) == (404, True), path
    shut = ("monitoring", "monitoring/summary", "gradio_api/dev/reload", "gradio_api/deep_link", "gradio_api/mcp")
    for path in (*shut, "vitviz/open"):
        assert site.client.get(f"/{path}").status_code == 404, path
    assert site.client.request("PUT", "/vitviz/open").status_code == 404
    assert site.client.delete("/gradio_api/mcp").status_code == 404


def test_only_pictures_are_kept_one_a_request_and_not_too_large(site: Site) -> None:
    before = uploaded()
    for name, data in (
        ("a.txt", b"hello"),
        ("a.jpg", b"\x7fELF" * 99),
        ("a.html", b"<script>"),
        ("a.pt", b"\x80\x02}q"),
    ):
        answer = site.upload(name, data)
        assert answer.status_code == 415
        assert "Expected a picture" in answer.text
    many = [("files", (f"{number}.png", photograph())) for number in range(3)]
    assert site.client.post("/gradio_api/upload", files=many).status_code == 400
    assert site.upload("large.png", photograph() + bytes(70_000_000)).status_code == 413
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    chunked = (bytes(2**20) for _ in range(70))
    assert site.client.post("/gradio_api/upload", content=chunked, headers=multipart).status_code in (400, 413)
    assert uploaded() == before
    name = site.upload("n" * 100_000 + ".png", photograph())
    assert name.status_code == 400 or len(name.text) < 500


def test_photographs_of_the_page_are_not_written_to_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda *_: pytest.fail("it went to disk"))
    before = uploaded()
    assert site.ask("open", photo=photograph(60) + bytes(20_000_000), source={})["data"]["id"]
    assert uploaded() == before


def test_bodies_and_names_of_sessions_are_bounded(site: Site) -> None:
    large = {"data": ["x" * 5_000_000], "fn_index": 0, "session_hash": "attacker"}
    for path in ("queue/join", "call/open"):
        assert site.client.post(f"/gradio_api/{path}", json=large).status_code == 413
    assert site.post("explain", json.dumps(large)).status_code in (400, 413)
    for name in ("x" * 100_000, "a b", "", 7, ["x"]):
        body = {"data": [], "fn_index": 0, "session_hash": name}
        answer = site.client.post("/gradio_api/queue/join", json=body)
        assert answer.status_code == 400
        assert len(answer.text) < 200
    assert site.client.get("/gradio_api/queue/data?session_hash=a%20b").status_code == 400
    assert site.client.get(f"/gradio_api/heartbeat/{'x' * 1000}").status_code == 404
    for content, kind, status in (
        (b"[" * 100_000, "application/json", 400), (b"[]", "application/json", 400), (b"{}", "text/plain", 415),
    ):  # fmt: skip
        answer = site.client.post("/gradio_api/queue/join", content=content, headers={"content-type": kind})
        assert answer.status_code == status


def test_forms_that_are_none_are_refused(site: Site) -> None:
    def status(**options: Any) -> int:
        return site.client.post("/vitviz/open", **options).status_code

    assert status(json={"ask": {}}) == 415
    assert status(content=b"x", headers={"content-type": "multipart/form-data"}) == 400
    for ask in ("{", "[" * 100_000):
        assert status(data={"ask": ask}, files=FORM) == 400
    assert status(data={"ask": "{}", "photo": "text"}, files=FORM) == 400
    assert status(files=[("photo", b"a"), ("photo", b"b")]) == 400
    assert status(data={str(number): "x" for number in range(20)}, files=FORM) == 400
    assert status(files={"photo": bytes(66_000_000)}) == 413


# --- each layer says in its own form what the endpoints refuse; test_endpoints_refused.py has the table

REFUSED: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("explain", {"method": "no method"}, ["scene", "no method", None, None]),
    ("block", {"block": -1}, ["scene", -1]),
    ("heads", {"names": [7]}, ["scene", [7]]),
]
LEAKS = ("Traceback", "object has no attribute", "<gradio", "pydantic", str(ROOT), "/tmp")


@pytest.mark.parametrize(("name", "named", "data"), REFUSED, ids=lambda one: str(one)[:20])
def test_a_refusal_is_an_error_line_and_an_error_event(
    site: Site, name: str, named: dict[str, Any], data: list[Any]
) -> None:
    scene = site.ask("open", photo=photograph(), source={})["data"]["id"]
    lines = site.post(name, {"scene": scene, **named}).text.splitlines()
    error = json.loads(lines[0])["error"]  # before anything runs
    assert (error["kind"], len(lines)) == ("refused", 1)
    event = site.call(name, *[scene if one == "scene" else one for one in data])
    assert "event: error" in event
    assert json.dumps(error["text"])[1:-1] in event
    assert not any(leak in event for leak in LEAKS)


def test_what_gradio_itself_cannot_read_is_an_error_event_in_words(site: Site) -> None:
    path = site.upload("mine.png", photograph(2)).json()[0]
    for data in (
        [7, None, 5],
        [{"path": path}, None, "many"],
        [{"path": path}, 7, None],
        [{"path": path}, None, 10**9],
    ):
        event = site.call("open", *data)
        assert "event: error" in event
        assert "xpected" in event
        assert not any(leak in event for leak in LEAKS)


@pytest.mark.parametrize("ask", ["[]", "7", "null", '"x"', '{"photo": "x"}', '{"x": 1}', "NaN"])
def test_arguments_that_are_no_object_are_refused_in_words(site: Site, ask: str) -> None:
    error = last(site.client.post("/vitviz/open", data={"ask": ask}, files=FORM).content)["error"]
    assert error["kind"] == "refused"
    assert error["text"].startswith("Expected")


def test_sources_and_photographs_that_are_none_are_refused_in_words(site: Site) -> None:
    sources = ("[]", "7", '{"path": "/etc/passwd"}', '{"size": "1"}', '{"model": 7}', '{"image": ["a"]}')
    answers = [site.client.post("/vitviz/open", data={"source": source}, files=FORM) for source in sources]
    for photo in (b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(99), photograph()[:200]):
        answers.append(site.post("open", photo=photo, source={}))
        assert last(answers[-1].content)["error"]["text"].startswith("Expected a")
    assert {last(answer.content)["error"]["kind"] for answer in answers} == {"refused"}


def test_an_error_of_the_server_is_said_without_its_words(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_args: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("vitviz.server.routes.Questions._answer", fails)
    answer = site.post("models")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert "could not be answered" in answer.text
    assert "secret" in caplog.text


# --- origins and headers


def test_other_sites_may_not_ask(site: Site) -> None:
    paths = ("gradio_api/upload", "gradio_api/queue/join", "gradio_api/call/open", "gradio_api/cancel")
    for origin in (EVIL, "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"):
        for path in (*paths, "vitviz/open", "vitviz/explain", "vitviz/checkpoint"):
            answer = site.client.post(f"/{path}", json={}, headers={"origin": origin})
            assert answer.status_code == 403, (origin, path)
            assert "access-control-allow-origin" not in answer.headers


def test_the_pages_own_site_may_ask(site: Site) -> None:
    assert site.upload("mine.png", photograph(), origin=site.url).status_code == 200
    assert site.post("models", headers={"origin": site.url}).status_code == 200
    answer = site.client.get("/config", headers={"origin": EVIL})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_other_names_of_this_machine_are_not_answered(site: Site) -> None:
    for host in ("evil.example", "evil.example:80", "[::1", "127.0.0.1.evil.example"):
        assert site.client.get("/config", headers={"host": host}).status_code == 421
        assert site.post("models", headers={"host": host}).status_code == 421
    for host in ("LOCALHOST:7860", "[::1]:7860"):
        assert site.client.get("/config", headers={"host": host}).status_code == 200
    for header in ("x-forwarded-host", "x-gradio-server"):
        assert "evil" not in site.client.get("/config", headers={header: "evil.example"}).text


def test_every_answer_has_its_headers(site: Site) -> None:
    answers: list[httpx.Response] = [site.client.get(path) for path in ("/", "/config", "/nothing", "/gradio_api/info")]
    answers += [site.post("models"), site.post("nothing"), site.post("open", "{")]
    for headers in (answer.headers for answer in answers):
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]


# --- scripts of the page


def test_inline_scripts_of_the_page_have_a_nonce_that_is_never_the_same(site: Site) -> None:
    nonces = []
    for _ in range(2):
        page = site.client.get("/")
        policy = dict(one.split(" ", 1) for one in page.headers["content-security-policy"].split("; "))
        (nonce,) = re.findall(r"'nonce-([^']+)'", policy["script-src"])
        tags = re.findall(r"<script\b[^>]*>", page.text)
        assert len(tags) > 2
        assert all((f'nonce="{nonce}"' in tag) != (" src=" in tag) for tag in tags)
        assert "unsafe-inline" not in policy["script-src"]
        nonces.append(nonce)
    assert nonces[0] != nonces[1]
    assert "nonce" not in site.client.get("/config").headers["content-security-policy"]
    assert site.client.head("/").status_code == 200


def test_a_script_that_comes_into_the_page_does_not_run(opened: Browser) -> None:
    opened.evaluate("""() => {
        document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.ran = 1' }));
        document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.ran = 2">');
        document.body.insertAdjacentHTML('beforeend', '<a id="bad" href="javascript:window.ran = 3">x</a>');
        document.getElementById('bad').click();
    }""")
    opened.wait_for_function("document.querySelector('img[src=\"data:,\"]').complete")
    opened.wait_for_timeout(100)
    assert opened.evaluate("window.ran ?? 0") == 0


# --- names and labels on a terminal and a disk


def test_a_terminal_obeys_no_label_name_or_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    model = running_folder(tmp_path / "model", about={"labels": tuple(f"{evil}{number}" for number in range(29))})
    photo = tmp_path / "photo\x1b[2J.png"
    photo.write_bytes(photograph())
    assert main(["predict", str(photo), "--model", model]) == 0
    assert main(["predict", str(tmp_path / "none\x1b[2J.png"), "--model", model]) == 2
    printed = capsys.readouterr()
    assert "owned" in printed.out
    assert "none?[2J.png" in printed.err
    assert not [one for one in printed.out + printed.err if one != "\n" and not one.isprintable()]


def test_progress_bars_may_still_move_up(capsys: pytest.CaptureFixture[str]) -> None:
    print("\x1b[A\x1b[A", end="", file=Printable(sys.stdout))
    print("a\x1b[Ab\tc", file=Printable(sys.stdout))
    assert capsys.readouterr().out == "\x1b[A\x1b[Aa?[Ab\tc\n"


@pytest.mark.parametrize("letter", ["n", "\u540d"])
def test_photographs_with_the_longest_names_are_exported(tmp_path: Path, letter: str) -> None:
    model, photos = folder(tmp_path / "model"), tmp_path / "photos"
    photos.mkdir()
    stem = letter * (250 // len(letter.encode()))
    for suffix in (".png", ".jpg"):  # two of one name
        (photos / f"{stem}{suffix}").write_bytes(photograph())
    out = tmp_path / "out"
    assert main(["export", str(photos), "-o", str(out), "--model", model, "--parts", "numbers"]) == 0
    exported = [path for path in out.iterdir() if path.is_dir()]
    assert len(exported) == 2
    assert all((path / "rollout.npz").is_file() for path in exported)
