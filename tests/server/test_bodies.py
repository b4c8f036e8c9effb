"""Client addresses behind proxies, and the bounds of bodies, forms and answers in transfer."""

import codecs
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal
from asking import InProcess, Site, form, last
from offered import folder, new_endpoints, photograph
from starlette.datastructures import Headers
from starlette.responses import Response

from vitviz.server import arguments, opening
from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.bodies import JSON_BYTES, JSON_VALUES, LIST_BYTES, Refused, json_value
from vitviz.server.endpoints import Endpoints
from vitviz.server.firewall import Firewall
from vitviz.server.routes import PIECE, Questions

KIND = "multipart/form-data; boundary=x"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path_factory.mktemp("page"), sources, mcp=True))) as site:
        yield site


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "6.6.6.6", "10.0.0.1"),
        (1, "", "10.0.0.1"),
        (1, "6.6.6.6, 7.7.7.7, 1.2.3.4", "1.2.3.4"),
        (2, "6.6.6.6, 1.2.3.4, 5.5.5.5", "1.2.3.4"),
        (2, "1.2.3.4", "10.0.0.1"),
    ],
)
def test_only_forwarded_entries_of_the_operators_proxies_are_trusted(
    proxies: int, forwarded: str, address: str, tmp_path: Path, sources: tuple[str, ...], portal: BlockingPortal
) -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], Headers(scope=scope)["x-forwarded-for"]))
        await Response()(scope, receive, send)

    firewall = Firewall(app, new_endpoints(tmp_path, sources, proxies=proxies, mcp=True), leave=lambda _: None)
    with httpx.Client(base_url="http://localhost", transport=InProcess(firewall, portal, "10.0.0.1")) as client:
        for path in ("/config", "/gradio_api/mcp/"):
            client.get(path, headers={"x-forwarded-for": forwarded})
    # Gradio passes the headers of a tool's request on to its own server, which trusts the same number of entries.
    assert seen == [(address, forwarded), (address, ", ".join([address] * max(1, proxies)))]


def part(name: str, data: bytes, filename: str | None = None, end: bool = True) -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
    return head + data + b"\r\n" + b"--x--\r\n" * end


def sent(site: Site, path: str, body: Any, kind: str = KIND) -> httpx.Response:
    return site.client.post(path, content=body, headers={"content-type": kind})


def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of codecs are added when they are looked up."""
    names, lookup = list[str](), codecs.lookup
    monkeypatch.setattr(codecs, "lookup", lambda name: names.append(name) or lookup(name))
    return names


@pytest.mark.parametrize("path", ["/vitviz/explain", "/gradio_api/upload"])
def test_other_charsets_are_refused_before_decoding(site: Site, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    names, body = looked_up(monkeypatch), part("f-", b"9999a" + b"a" * 5000)
    for charset in ("punycode", "undefined", "utf-7", "idna", "latin-1", "no-such", "utf-16"):
        answer = sent(site, path, body, f"{KIND}; charset={charset}")
        assert (answer.status_code, b"UTF-8" in answer.content) == (415, True), charset
    assert names == []


def test_charsets_of_parts_and_json_are_never_looked_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"9999a" + b"a" * 5000 + b"-"
    disposition = b"Content-Disposition: form-data; name=\"ask\"; name*=punycode''" + text[:100]
    body = b"--x\r\n" + disposition + b"\r\nContent-Type: text/plain; charset=punycode\r\n\r\n{}\r\n--x--\r\n"
    names = looked_up(monkeypatch)
    assert sent(site, "/vitviz/models", body).status_code == 200
    for name in ("punycode", "idna"):
        assert sent(site, "/gradio_api/call/open", text, f"application/json; charset={name}").status_code == 400
    assert {*names} <= {"utf-8"}


@pytest.mark.parametrize(
    "body",
    [
        part("f", b"x", "a.png", end=False) + part("g", b"x", "b.png"),
        b"--x\r\n" + b"A: b\r\n" * 100 + b"\r\n--x--\r\n",
        b"--x\r\nContent-Disposition: " + b"a" * 100_000 + b"\r\n\r\n--x--\r\n",
        b"".join(part(f"f{number}", b"x", end=False) for number in range(20)) + b"--x--\r\n",
        part("patches", b"1" * (LIST_BYTES + 1)),
        b"no form",
    ],
    ids=["two files", "many headers", "long header", "many fields", "long field", "no form"],
)
def test_parts_of_a_form_are_bounded(site: Site, body: bytes) -> None:
    assert sent(site, "/vitviz/models", body).status_code == 400
    assert sent(site, "/gradio_api/upload", body).status_code == 400


def test_bodies_need_a_length_within_the_limit(site: Site) -> None:
    chunks = (part("photo", b"", "p", end=False), *[b"a"] * 10)
    assert sent(site, "/vitviz/open", iter(chunks)).status_code == 411
    for path, most in (("/vitviz/open", MAX_PHOTO_BYTES), ("/gradio_api/call/open", JSON_BYTES), ("/nothing", 10**9)):
        answer = site.client.post(path, headers={"content-length": str(2 * most)}, content=b"")
        assert answer.status_code == (404 if path == "/nothing" else 413), path
        line = answer.json()
        assert line["error"]["kind"] == "refused"
        if path != "/nothing":
            assert line["phrases"][line["error"]["text"]]["key"] == "request-too-large"
    assert site.endpoints.cache.reserved == 0


MANY = b'{"data": [' + b"[]," * (JSON_VALUES // 2) + b"[]]}"


@pytest.mark.parametrize("path", ["/gradio_api/call/open", "/gradio_api/queue/join", "/gradio_api/mcp/"])
def test_json_is_bounded_before_it_is_parsed(site: Site, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.server.bodies.json.loads", lambda *_: pytest.fail("the body was parsed"))
    for body in (b'{"data": ["' + b"x" * JSON_BYTES + b'"]}', MANY):
        assert sent(site, path, body, "application/json").status_code == 413


@pytest.mark.parametrize("field", ["ask", "source"])
def test_json_in_forms_is_bounded(site: Site, field: str) -> None:
    for text in (b'"' + b"x" * JSON_BYTES + b'"', MANY, b"[" * 60_000):
        assert sent(site, "/vitviz/open", part(field, text)).status_code in (400, 413)


def test_values_are_counted_in_texts_and_bytes() -> None:
    for text in ('{"a": [1, 2]}', b'{"a": [1, 2]}'):
        assert json_value("body", text) == {"a": [1, 2]}
    with pytest.raises(Refused):
        json_value("body", "[" + "1," * JSON_VALUES + "1]")


def test_photographs_of_tools_are_no_json(site: Site) -> None:
    """They are cut out first, so that a photograph of a tool may have the size of any other."""
    body = b'{"photo": "data:image/png;base64,' + b"," * 2 * JSON_VALUES + b'"}'
    assert sent(site, "/gradio_api/mcp/", body, "application/json").status_code == 403  # no picture


def test_long_lists_of_patches_travel_as_a_field(site: Site) -> None:
    scene = site.ask("open", photo=photograph(), source={})["data"]["id"]
    options = form({"scene": scene})
    options["data"]["patches"] = "0,1,2"
    answer = last(site.client.post("/vitviz/intervene", **options).content)
    assert answer == site.ask("intervene", {"scene": scene, "patches": [0, 1, 2]})
    options["data"]["patches"] = "0,x"
    assert site.client.post("/vitviz/intervene", **options).status_code == 400


def test_a_photograph_in_transfer_counts_as_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved, run = [], opening.open_view
    monkeypatch.setattr(
        opening, "open_view", lambda *args: reserved.append(site.endpoints.cache.reserved) or run(*args)
    )
    body = part("source", b"{}", end=False) + part("photo", photograph(7) + bytes(10**6), "p")
    assert last(sent(site, "/vitviz/open", body).content)["data"]
    assert reserved == [len(body) + 4 * 90 * 60]  # and the decoded picture
    assert site.endpoints.cache.reserved == 0


def streamed(endpoints: Endpoints, data: Any) -> Callable[..., Any]:
    """Return a function that streams an answer to a client, who reads its parts with `anext`."""
    questions = Questions(endpoints)

    async def answers() -> Any:
        yield {"data": data}

    return lambda client="127.0.0.9": questions._stream(answers(), client, {})


def test_unread_answers_are_sent_in_pieces_and_bounded(endpoints: Endpoints, portal: BlockingPortal) -> None:
    async def read() -> None:
        answer = streamed(endpoints, bytes(MAX_PHOTO_BYTES))
        large, other, visitor = answer(), answer(), answer("127.0.0.8")
        assert json.loads(await anext(large)) == json.loads(await anext(visitor)) == {"bytes": MAX_PHOTO_BYTES}
        assert len(await anext(large)) == PIECE
        assert endpoints.cache.reserved == MAX_PHOTO_BYTES
        assert b"waiting to be read" in await anext(other)
        for each in (large, other, visitor):
            await each.aclose()

    portal.call(read)
    assert endpoints.cache.reserved == 0


def test_numbers_that_json_lacks_are_an_error_line(endpoints: Endpoints, portal: BlockingPortal) -> None:
    line = portal.call(anext, streamed(endpoints, {"value": float("inf")})())
    assert json.loads(line)["error"]["kind"] == "failed"


def test_long_lists_are_checked_in_a_thread_up_to_the_first_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"scene": site.endpoints.open(photograph())["id"], "patches": ["a"] * 10_000}
    threads: list[threading.Thread] = []
    question: Callable[..., Any] = site.endpoints.question
    monkeypatch.setattr(
        site.endpoints, "question", lambda *args: threads.append(threading.current_thread()) or question(*args)
    )
    assert site.ask("intervene", ask)["error"]["kind"] == "refused"
    assert threads != [site.portal.call(threading.current_thread)]
    assert len(threads) == 1
    with pytest.raises(ValueError, match="1 validation error"):
        arguments._model(Endpoints.intervene).model_validate(ask)


@pytest.fixture
def own(tmp_path: Path, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path / "page", sources, upload=True))) as site:
        yield site


def upload(site: Site, name: str, data: bytes, address: str = "127.0.0.1", **headers: str) -> httpx.Response:
    return site.client_at(address).post("/vitviz/checkpoint", files={"photo": (name, data)}, headers=headers)


def test_uploaded_checkpoint_is_named_by_its_hash(own: Site, tmp_path: Path) -> None:
    weights = Path(folder(tmp_path / "mine", 9)) / "model.safetensors"
    uploaded = last(upload(own, "mine.safetensors", weights.read_bytes()).content)["data"]
    assert uploaded["source"].startswith("upload:")
    assert uploaded["words"].startswith("mine.safetensors · ")
    for source, text in ((uploaded["source"], "Expected"), (f"upload:{'0' * 16}", "Upload it again")):
        refused = own.ask("open", photo=photograph(), source={"model": source})["error"]
        assert refused["kind"] == "refused"  # unknown tensors; no such upload
        assert text in refused["text"]
        assert str(own.endpoints.menu.uploads) not in refused["text"]
    assert last(upload(own, "../../a.pt", b"x").content)["error"]["kind"] == "refused"
    assert [path.suffix for path in own.endpoints.menu.uploads.rglob("*.*")] == [".safetensors"]


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.7"}),
        ("127.0.0.1", {"x-forwarded-proto": "https"}),
        ("127.0.0.1", {"forwarded": "for=203.0.113.7"}),
        ("127.0.0.1", {"x-real-ip": "203.0.113.7"}),
        ("127.0.0.1", {"host": "page.example"}),
        ("203.0.113.7", {}),
    ],
)
def test_checkpoints_past_a_proxy_or_under_another_name_are_refused(
    own: Site, address: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.server.firewall.hostname", lambda _: "localhost")  # as without its check
    assert upload(own, "a.safetensors", b"x", address, **headers).status_code == 403


def test_pages_without_uploads_refuse_all_checkpoints(site: Site) -> None:
    answer = upload(site, "a.safetensors", b"x")
    assert answer.status_code == 403
    assert "own machine" in answer.text
