"""Attacks that once succeeded, on the assembled app without sockets; test_process.py has attacks that need sockets."""

import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from asking import FORM, Site, form, last, progress_with, wait_for_rest
from attacked import ROOT
from image_files import heic, heic_photo
from offered import folder, new_endpoints, photograph
from patience import wait_until
from playwright.sync_api import Page as Browser

from vitviz.cli.main import Printable, main
from vitviz.server.jobs import MAX_LONG, MAX_OPEN, Kind
from vitviz.server.scenes import Cache
from vitviz.server.uploads import NO_SUCH_UPLOAD, UploadError, Uploads
from vitviz.web.questions import QUESTIONS

CHURCH = ROOT / "examples" / "church.jpg"
EVIL = "https://evil.example"
DEFAULTS = [None] * 4  # of the optional arguments of `open`, which Gradio requires


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path_factory.mktemp("page"), sources))) as site:
        yield site


def kernel_shap(scene: str, number: int) -> dict[str, Any]:
    """Return arguments of a slow question that differ for each number."""
    target = {"target": number % 29, "against": (number + 1 + number // 29) % 29}
    return {"scene": scene, "methods": ["gae", "kernel_shap"], **target}


@pytest.mark.parametrize("path", [str(CHURCH), "/etc/passwd", "/nothing/here", "/proc/self/environ", "../app.py", "\0"])
def test_questions_read_only_uploaded_files(site: Site, path: str) -> None:
    for name, more in (("open", [None, None]), ("explain", ["rollout", None, None])):
        answer = site.client.post(f"/gradio_api/call/{name}", json={"data": [{"path": path}, *more]})
        # The same message for every path.
        assert (answer.status_code, answer.json()["error"]["text"]) == (403, NO_SUCH_UPLOAD)
    assert site.client.get(f"/gradio_api/file={quote(path)}").status_code == 404
    assert site.ask("open", source={"image": path})["error"]["kind"] == "refused"
    assert site.ask("open", source={"path": path})["error"]["text"].startswith("Expected arguments among")


def test_events_read_only_uploaded_files(site: Site) -> None:
    events = [event for event in site.config()["dependencies"] if event["inputs"]]
    assert len(events) == sum(question.programs for question in QUESTIONS.values())
    for event in events:
        data = [*[None] * (len(event["inputs"]) - 1), [{"photo": {"path": str(CHURCH)}}]]
        body = {"data": data, "fn_index": event["id"], "session_hash": "attacker"}
        answer = site.client.post("/gradio_api/queue/join", json=body)
        assert (answer.status_code, answer.json()["error"]["text"]) == (403, NO_SUCH_UPLOAD)


@pytest.mark.usefixtures("endless")
def test_many_long_questions_delay_no_others_and_stop_with_their_clients(site: Site) -> None:
    scene, attackers = site.ask("open", photo=photograph(), source={})["data"]["id"], site.client_at("127.0.0.9")
    jobs = site.endpoints.jobs
    with ExitStack() as crowd:
        for number in range(MAX_LONG):
            answer = crowd.enter_context(
                attackers.stream("POST", "/vitviz/faithfulness", **form(kernel_shap(scene, number)))
            )
            if number == 0:  # the only one that runs
                assert progress_with("done", answer.iter_lines())["of"] == 4
        wait_until(lambda: jobs.ahead(Kind.LONG)[0] == MAX_LONG, "all long questions run or wait")
        refused = attackers.post("/vitviz/faithfulness", **form(kernel_shap(scene, MAX_LONG)))
        error = last(refused.content)["error"]
        assert error["kind"] == "busy"
        assert f"again in about {error['seconds']:.0f} s" in error["text"]
        path = site.upload("mine.png", photograph(1)).json()[0]
        assert "predictions" in site.call("open", {"path": path}, *DEFAULTS)
        own = site.ask("open", photo=photograph(2), source={})["data"]["id"]
        assert "data" in site.ask("explain", {"scene": own, "method": "token_gradcam", "target": 3})
        assert "data" in site.ask("layers", {"scene": scene})
        assert jobs.ahead(Kind.LONG)[0] == MAX_LONG  # all long questions still wait
    wait_for_rest(site.endpoints)
    assert "data" in site.ask("heads", {"scene": scene, "names": ["ablation_logit"]})


def test_events_of_an_address_are_bounded(site: Site, held: threading.Event) -> None:
    """One address starts events and never reads their answers."""
    number = next(event["id"] for event in site.config()["dependencies"] if event["api_name"] == "open")
    path, jobs = site.upload("mine.png", photograph(3)).json()[0], site.endpoints.jobs
    for event in range(MAX_OPEN):
        data = [{"path": path}, None, 140 + event, None, None]
        body = {"data": data, "fn_index": number, "session_hash": f"crowd{event}"}
        assert site.client.post("/gradio_api/queue/join", json=body).status_code == 200
    wait_until(lambda: len(jobs._open) == MAX_OPEN, "all events have started")
    assert "Busy: too many requests" in site.call("open", {"path": path}, *DEFAULTS)
    held.set()
    wait_until(lambda: not jobs._open, "all events have ended")
    assert "predictions" in site.call("open", {"path": path}, *DEFAULTS)


def refused() -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield status, method and path, and body of requests that the page never sends."""
    api, join, upload, ask = "/gradio_api", "/gradio_api/queue/join", "/gradio_api/upload", "/vitviz/open"
    for name in ("run/open", "api/open", "run/explain", "component_server", "process_recording", "vibe-edit"):
        yield 404, f"POST {api}/{name}", {"json": {"data": []}}  # these would bypass the queue
    for name in ("nothing", "Open", "question", "scenes", "checkpoints"):
        yield 404, f"POST /vitviz/{name}", {"json": {"data": []}}
    for path in ("dev/reload", "deep_link", "mcp", f"heartbeat/{'x' * 1000}"):
        yield 404, f"GET {api}/{path}", {}
    for path in ("GET /monitoring", "GET /monitoring/summary", f"GET {ask}", f"PUT {ask}", f"DELETE {api}/mcp"):
        yield 404, path, {}
    # uploads must be one picture per request, of limited size
    others = {"a.txt": b"hello", "a.jpg": b"\x7fELF" * 99, "a.html": b"<script>", "a.pt": b"\x80\x02}q"}
    for file in others.items():
        yield 415, f"POST {upload}", {"files": {"files": file}}
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    yield 400, f"POST {upload}", {"files": [("files", (f"{number}.png", photograph())) for number in range(3)]}
    yield 413, f"POST {upload}", {"files": {"files": ("large.png", photograph() + bytes(70_000_000))}}
    yield 411, f"POST {upload}", {"content": (bytes(2**20) for _ in range(70)), "headers": multipart}
    yield 400, f"POST {upload}", {"files": {"files": ("n" * 100_000 + ".png", photograph())}}
    # forms
    yield 415, f"POST {ask}", {"json": {"ask": {}}}
    yield 400, f"POST {ask}", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}
    yield 400, f"POST {ask}", {"files": [("photo", b"a"), ("photo", b"b")]}
    yield 413, f"POST {ask}", {"files": {"photo": bytes(66_000_000)}}
    large = {"data": ["x" * 5_000_000], "fn_index": 0, "session_hash": "attacker"}
    for text in ("{", "[" * 20_000, json.dumps(large)):
        yield 400, f"POST {ask}", {"data": {"ask": text}, "files": FORM}
    # Gradio's events
    for path in (join, f"{api}/call/open"):
        yield 413, f"POST {path}", {"json": large}
    for name in ("x" * 1000, "a b", "", 7, ["x"]):
        yield 400, f"POST {join}", {"json": {"data": [], "fn_index": 0, "session_hash": name}}
    yield 400, f"GET {api}/queue/data?session_hash=a%20b", {}
    for content in (b"[" * 20_000, b"[]"):
        yield 400, f"POST {join}", {"content": content, "headers": {"content-type": "application/json"}}
    yield 415, f"POST {join}", {"content": b"{}", "headers": {"content-type": "text/plain"}}


def test_foreign_requests_are_refused_and_leave_no_files(site: Site) -> None:
    for status, address, body in refused():
        answer = site.client.request(*address.split(" "), **body)
        assert answer.status_code == status, (address, str(body)[:100])
        assert len(answer.text) < 300
    assert "Expected a picture" in site.upload("a.txt", b"hello").text


def test_photographs_are_not_written_to_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(f"tempfile.{name}", lambda *_args, **_options: pytest.fail("a file was written"))
    large = photograph(60) + bytes(20_000_000)
    assert site.ask("open", photo=large, source={})["data"]["id"]
    assert "predictions" in site.call("open", {"path": site.upload("mine.png", large).json()[0]}, *DEFAULTS)


LEAKS = ("Traceback", "object has no attribute", "<gradio", "pydantic", str(ROOT), "/tmp")


def test_answers_contain_no_absolute_path(site: Site, sources: tuple[str, ...]) -> None:
    """The sources of the operator's own models are exceptions, because the menu contains them."""
    opened = site.post("open", photo=photograph(80), source={})
    upload, scene = site.upload("mine.png", photograph(80)), last(opened.content)["data"]["id"]
    texts = [opened.text, upload.text, site.call("open", {"path": upload.json()[0]}, *DEFAULTS)]
    texts += [site.post(name, {"scene": scene}).text for name in ("layers", "page", "lecture", "explain")]
    texts += [site.post("models").text, site.upload("a.txt", b"hello").text]
    served = ("", "healthz", "config", "theme.css", "robots.txt", "manifest.json")
    served += tuple(re.findall(r"vitviz/files/[\w.]+", site.client.get("/").text))
    served += tuple(f"gradio_api/{name}" for name in ("info", "app_id", "openapi.json", "startup-events"))
    texts += [site.client.get(f"/{name}").text for name in served]
    folders = [str(path) for path in (ROOT, Path(sources[0]).parent, tempfile.gettempdir(), sys.prefix)]
    for text in texts:
        for source in sources:
            text = text.replace(source, "")
        assert not [leak for leak in folders if leak in text], text[:100]


def test_refusals_are_error_lines_and_error_events(site: Site) -> None:
    scene = site.ask("open", photo=photograph(), source={})["data"]["id"]
    lines = site.post("explain", {"scene": scene, "method": "no method"}).text.splitlines()
    error = json.loads(lines[0])["error"]  # before anything runs
    assert (error["kind"], len(lines)) == ("refused", 1)
    event = site.call("explain", scene, "no method", None, None)
    assert "event: error" in event
    assert json.dumps(error["text"])[1:-1] in event
    assert not any(leak in event for leak in LEAKS)
    photo = {"path": site.upload("mine.png", photograph(2)).json()[0]}
    for data in ([7, None, 5], [photo, None, "many"], [photo, 7, None], [photo, None, 10**9]):
        event = site.call("open", *data, None, None)  # Gradio cannot parse some of these
        assert "event: error" in event
        assert "xpected" in event
        assert not any(leak in event for leak in LEAKS)


def test_malformed_arguments_and_sources_are_refused_with_a_reason(site: Site) -> None:
    asks = ("[]", "7", "null", '"x"', '{"photo": "x"}', '{"x": 1}', "NaN")
    sources = ("[]", "7", '{"path": "/etc/passwd"}', '{"size": "1"}', '{"model": 7}', '{"image": ["a"]}')
    for data in (*({"ask": ask} for ask in asks), *({"source": source} for source in sources)):
        error = last(site.client.post("/vitviz/open", data=data, files=FORM).content)["error"]
        assert error["kind"] == "refused", data
        assert error["text"].startswith("Expected"), data


def test_unexpected_errors_are_logged_and_not_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_args: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("vitviz.server.routes.read_form", fails)
    answer = site.post("models")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert "could not be answered" in answer.text
    assert "secret" in caplog.text


def test_requests_of_other_origins_are_refused(site: Site) -> None:
    paths = ("gradio_api/upload", "gradio_api/queue/join", "gradio_api/call/open", "gradio_api/cancel")
    for origin in (EVIL, "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"):
        for path in (*paths, "vitviz/open", "vitviz/explain", "vitviz/checkpoint"):
            answer = site.client.post(f"/{path}", json={}, headers={"origin": origin})
            assert answer.status_code == 403, (origin, path)
    assert site.upload("mine.png", photograph(), origin=site.url).status_code == 200
    assert site.post("models", headers={"origin": site.url}).status_code == 200
    answer = site.client.get("/config", headers={"origin": EVIL})  # Gradio would let the other site read it
    assert (answer.status_code, "components" in answer.text) == (403, False)


def test_requests_for_other_host_names_are_refused(site: Site) -> None:
    for host in ("evil.example", "evil.example:80", "[::1", "127.0.0.1.evil.example"):
        assert site.client.get("/config", headers={"host": host}).status_code == 421
        assert site.post("models", headers={"host": host}).status_code == 421
    for host in ("LOCALHOST:7860", "[::1]:7860"):
        assert site.client.get("/config", headers={"host": host}).status_code == 200
    for header in ("x-forwarded-host", "x-gradio-server"):
        assert "evil" not in site.client.get("/config", headers={header: "evil.example"}).text


def test_every_answer_has_security_headers(site: Site) -> None:
    answers: list[httpx.Response] = [site.client.get(path) for path in ("/", "/config", "/nothing", "/gradio_api/info")]
    answers += [site.post("models"), site.post("nothing"), site.post("open", "{")]
    assert not site.config()["analytics_enabled"]
    for headers in (answer.headers for answer in answers):
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]


def test_request_with_which_gradio_starts_is_answered_on_a_slow_machine(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradio.routes.templates", None)  # Gradio's page, which may take longer than three seconds
    assert site.client.head("/").status_code == 200


def test_injected_event_handlers_do_not_run(opened: Browser) -> None:
    opened.evaluate("""() => {
        window.blocked = 0;
        document.addEventListener('securitypolicyviolation', () => { window.blocked += 1; });
        document.body.insertAdjacentHTML('beforeend', '<img src="data:," onerror="window.ran = 1">');
        document.body.insertAdjacentHTML('beforeend', '<script>window.ran = 2</script>');
    }""")
    opened.wait_for_function("window.blocked > 0")  # by the header and by the page
    assert opened.evaluate("window.ran ?? 0") == 0


def test_terminal_output_contains_no_control_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
    model = folder(tmp_path / "model", about={"labels": tuple(f"{evil}{number}" for number in range(29))})
    photo = tmp_path / "photo\x1b[2J.png"
    photo.write_bytes(photograph())
    assert main(["predict", str(photo), "--model", model]) == 0
    assert main(["predict", str(tmp_path / "none\x1b[2J.png"), "--model", model]) == 2
    printed = capsys.readouterr()
    assert "owned" in printed.out
    assert "none?[2J.png" in printed.err
    assert not [letter for letter in printed.out + printed.err if letter != "\n" and not letter.isprintable()]
    # Progress bars may still move up.
    print("\x1b[A\x1b[A", end="", file=Printable(sys.stdout))
    print("a\x1b[Ab\tc", file=Printable(sys.stdout))
    assert capsys.readouterr().out == "\x1b[A\x1b[Aa?[Ab\tc\n"


@pytest.mark.parametrize("letter", ["n", "\u540d"])
def test_photographs_with_very_long_names_are_exported(tmp_path: Path, letter: str) -> None:
    model, photos = folder(tmp_path / "model"), tmp_path / "photos"
    photos.mkdir()
    stem = letter * (250 // len(letter.encode()))
    for suffix in (".png", ".jpg"):  # two files with one stem
        (photos / f"{stem}{suffix}").write_bytes(photograph())
    out = tmp_path / "out"
    assert main(["export", str(photos), "-o", str(out), "--model", model, "--parts", "numbers"]) == 0
    exported = [path for path in out.iterdir() if path.is_dir()]
    assert len(exported) == 2
    assert all((path / "rollout.npz").is_file() for path in exported)


def test_heic_photographs_are_accepted_and_videos_refused() -> None:
    uploads = Uploads(Cache(10**6))
    assert uploads.read(uploads.add(heic(heic_photo()))) == heic(heic_photo())
    with pytest.raises(UploadError):
        uploads.add(b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(99))
