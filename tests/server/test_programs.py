"""The endpoints as API clients use them, over a socket: through gradio_client, Gradio's API list and MCP tools."""

import asyncio
import base64
import inspect
import json
import re
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
import numpy as np
import pytest
import tiny
from asking import Site, wait_for_rest
from documents import blocks, text_of
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from offered import new_endpoints, photograph
from patience import patience, wait_until

from vitviz.server import uploads
from vitviz.server.endpoints import Endpoints
from vitviz.server.jobs import Kind
from vitviz.web.questions import QUESTIONS

NAMES = [name for name, question in QUESTIONS.items() if question.programs]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[Site]:
    with closing(Site(new_endpoints(tmp_path_factory.mktemp("page"), sources[:1], mcp=True), listens=True)) as site:
        yield site


@pytest.fixture(scope="module")
def client(site: Site) -> Client:
    return Client(site.url, verbose=False, httpx_kwargs={"timeout": patience(60)})


@pytest.fixture(scope="module")
def scene(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("photo") / "mine.png"
    path.write_bytes(photograph(3))
    return client.predict(handle_file(path), api_name="/open")["id"]


def test_every_endpoint_is_listed_with_description_and_types(site: Site) -> None:
    listed = site.client.get("/gradio_api/info").json()["named_endpoints"]
    assert set(listed) == {f"/{name}" for name in NAMES}
    for name in NAMES:
        assert listed[f"/{name}"]["description"].split()[0] in {"Open", "Return", "Explain", "Test", "Run"}
        assert "self" not in [parameter["parameter_name"] for parameter in listed[f"/{name}"]["parameters"]]
    explain = {parameter["parameter_name"]: parameter for parameter in listed["/explain"]["parameters"]}
    assert list(explain) == ["scene", "method", "target", "against"]
    assert explain["method"]["parameter_default"] == "gae"
    assert explain["scene"]["python_type"]["type"] == "str"
    for name in NAMES:
        (answer,) = listed[f"/{name}"]["returns"]
        assert re.fullmatch("[a-z]+", answer["label"])
        assert answer["python_type"]["type"] != "Any"
        assert answer["python_type"]["description"].endswith(".")
    assert "values[row][column], both from 0" in listed["/attention"]["returns"][0]["python_type"]["description"]


def test_view_api_names_the_fields_of_the_answers(client: Client, scene: str) -> None:
    printed = client.view_api(print_info=False, return_format="str")
    assert 'api_name="/attention") -> heatmap' in printed
    answers = {
        "heads": client.predict(scene, ["distance"], 1, api_name="/heads"),
        "layers": client.predict(scene, api_name="/layers"),
        "intervene": client.predict(scene, target=1, api_name="/intervene"),
        "rearrange": client.predict(scene, api_name="/rearrange"),
        "attention": client.predict(scene, 0, api_name="/attention"),
        "explain": client.predict(scene, api_name="/explain"),
    }
    for name, answer in answers.items():
        described = inspect.getdoc(getattr(Endpoints, name)).partition("Returns:")[2]
        assert set(answer) == {field for field in re.findall('"(\\w+)"', described) if field != "grid"}, name


def test_every_endpoint_answers_programs(client: Client, scene: str, site: Site) -> None:
    def ask(name: str, *values: Any, **named: Any) -> Any:
        return client.predict(*values, **named, api_name=f"/{name}")

    endpoints, answer = site.endpoints, ask("explain", scene, "token_gradcam", target=3)
    assert answer["values"] == endpoints.explain(scene, "token_gradcam", 3)["values"]
    assert base64.b64decode(ask("block", scene, 1)) == endpoints.block(scene, 1)
    assert base64.b64decode(ask("rollout", scene, fuse="max")) == endpoints.rollout(scene, fuse="max")
    assert ask("faithfulness", scene, ["token_gradcam"], target=3)[0]["words"]
    assert np.shape(ask("heads", scene, ["distance"])["values"]["distance"]) == (tiny.DEPTH, tiny.HEADS)
    assert ask("layers", scene) == endpoints.layers(scene)
    assert ask("intervene", scene, [0, 1], [[0, 1]]) == endpoints.intervene(scene, [0, 1], [[0, 1]])
    assert np.shape(ask("attention", scene, 2, 3)["values"]) == tiny.GRID


def test_refusal_is_an_exception_in_gradio_client(client: Client, scene: str) -> None:
    for values, text in (((scene, "beauty"), "beauty"), (("0" * 32,), "Open it again")):
        with pytest.raises(AppError, match=text):
            client.predict(*values, api_name="/explain")


@pytest.mark.usefixtures("endless")
def test_question_stops_when_a_program_cancels_or_disconnects(client: Client, scene: str, site: Site) -> None:
    jobs, address = site.endpoints.jobs, "/gradio_api/call/explain"
    job = client.submit(scene, "kernel_shap", api_name="/explain")
    wait_until(lambda: jobs.ahead(Kind.LONG)[0] == 1, "the question runs")
    assert jobs.ahead(Kind.SHORT)[0] == 0  # short questions do not wait for it
    # Until gradio_client has read the event's id, its `cancel` has no effect.
    wait_until(lambda: job.communicator and job.communicator.event_id, "the client has the event's id")
    job.cancel()
    wait_for_rest(site.endpoints)
    event = site.client.post(address, json={"data": [scene, "kernel_shap", None, None]}).json()["event_id"]
    with site.client.stream("GET", f"{address}/{event}"):
        wait_until(lambda: jobs.ahead(Kind.LONG)[0] == 1, "the question runs")
    wait_for_rest(site.endpoints)


def call_tool(site: Site, name: str, forwarded: str = "127.0.0.1", **arguments: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream", "x-forwarded-for": forwarded}
    answer = site.client.post("/gradio_api/mcp/", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    (line,) = (line for line in answer.text.splitlines() if line.startswith(("data:", "{")))
    return json.loads(line.removeprefix("data:"))["result"]


def test_tools_are_listed_and_answer(site: Site, scene: str) -> None:
    tools = site.client.get("/gradio_api/mcp/schema").json()
    assert {tool["name"] for tool in tools} == set(NAMES)
    assert all(" Returns: " in tool["description"] for tool in tools)
    (texts,) = (tool["inputSchema"]["properties"]["texts"] for tool in tools if tool["name"] == "open")
    assert texts["description"].endswith(".")  # Gradio reads only the first line of a description
    answer = call_tool(site, "heads", scene=scene, names=["distance"])
    assert not answer["isError"]
    expected = site.endpoints.heads(scene, ["distance"])
    assert json.loads(answer["content"][0]["text"]) == json.loads(json.dumps(expected))
    assert json.loads(call_tool(site, "block", scene=scene, block=0)["content"][0]["text"])
    refused = call_tool(site, "heads", scene=scene, names=["beauty"])
    assert refused["isError"]
    assert "beauty" in refused["content"][0]["text"]


def test_photographs_of_tools_are_held_in_memory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio would write files of any type to a folder that other users of the machine can read."""
    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(f"tempfile.{name}", lambda *_args, **_options: pytest.fail("a file was written"))

    def opened(kind: str, content: bytes) -> dict[str, Any]:
        return call_tool(site, "open", photo=f"data:{kind};base64,{base64.b64encode(content).decode()}")

    with pytest.raises(AssertionError, match="Expected a picture"):
        opened("text/html", b"no picture")
    assert "predictions" in opened("image/png", photograph(9))["content"][0]["text"]


def test_tools_open_uploaded_photographs_and_explain_refusals(site: Site) -> None:
    """`gradio upload-mcp` uploads a local file, and returns such a URL."""
    (path,) = site.upload("my photo.png", photograph(11)).json()
    url = f"{site.url}/gradio_api/file={quote(path)}"
    (text,) = (part["text"] for part in call_tool(site, "open", photo=url)["content"])
    assert json.loads(text)["id"]
    for photo, reason in (
        ("/home/me/photo.jpg", "upload_file_to_gradio"),
        ("https://example.org/photo.jpg", "upload_file_to_gradio"),
        (f"{site.url}/gradio_api/file=other/photo.png", "Upload it again"),
        (f"{site.url}/gradio_api/file=/etc/passwd", "Upload it again"),
    ):
        refused = call_tool(site, "open", photo=photo)
        assert refused["isError"]
        assert reason in refused["content"][0]["text"], refused


def address_in(document: str) -> str:
    (address,) = set(re.findall(r"http://127\.0\.0\.1:7860/gradio_api/\S*?(?=[\"`])", text_of(document)))
    return address


def test_example_of_the_document_runs(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/mcp.md", "python")
    address = address_in("docs/mcp.md")
    program = compile(code.replace(address, f"{site.url}{urlsplit(address).path}"), "docs/mcp.md", "exec")
    with ThreadPoolExecutor(1) as pool:  # Playwright's loop occupies this thread once a browser runs
        pool.submit(exec, program, {}).result()
    printed = capsys.readouterr().out
    assert "thing" in printed
    assert f"{tiny.GRID[0]} x {tiny.GRID[1]}" in printed


@pytest.mark.tier("all")
def test_local_photograph_is_opened_with_the_configuration_of_the_document(site: Site, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(photograph(12))
    servers = json.loads(blocks("docs/mcp.md", "json")[0])["mcpServers"]
    assert servers["vitviz"]["url"] == address_in("docs/mcp.md")
    _, page, folder = servers["vitviz-photos"]["args"]
    assert address_in("docs/mcp.md").startswith(page)
    assert folder.startswith("/")

    async def upload() -> str:
        command = StdioServerParameters(
            command=str(Path(sys.executable).with_name("gradio")), args=["upload-mcp", site.url, str(tmp_path)]
        )
        async with stdio_client(command) as pipes, ClientSession(*pipes) as session:
            await session.initialize()
            answer = await session.call_tool("upload_file_to_gradio", {"file": str(tmp_path / "photo.png")})
            return answer.content[0].text

    with ThreadPoolExecutor(1) as other:  # Playwright's event loop may run in this thread
        url = other.submit(anyio.run, upload).result()
    answer = call_tool(site, "open", photo=url)
    assert json.loads(answer["content"][0]["text"])["predictions"]


def test_long_answers_are_fetched_once_and_not_left_in_gradios_queue(client: Client, scene: str, site: Site) -> None:
    address = client.predict(scene, "?new", api_name="/page")
    assert address.startswith("/vitviz/answer/")
    assert len(address.rpartition("/")[2]) == 32  # hexadecimal digits of 128 bits
    held = site.endpoints.cache.used
    answer = site.client.get(address)
    assert answer.content.startswith(b"<!doctype html>")
    assert site.endpoints.cache.used <= held - len(answer.content)
    assert site.client.get(address).status_code == 404


def test_long_answers_are_dropped_after_their_time(site: Site) -> None:
    async def offered() -> str:
        return site.endpoints.uploads.offer({"values": ["x" * 100_000]})["answer"]

    async def dropped() -> None:
        while site.endpoints.cache.get((None, f"answer {name}")) is not None:
            await asyncio.sleep(0.01)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uploads, "ANSWER_SECONDS", 0.0)
        name = site.portal.call(offered).rpartition("/")[2]
    site.portal.call(dropped)
    assert site.client.get(f"/vitviz/answer/{name}").status_code == 404


def test_limit_of_open_files_is_raised(site: Site) -> None:
    assert "vitviz/files/page." in site.client.get("/").text
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= min(hard, 65_536)


@pytest.mark.parametrize("proxies", [0, 2])
def test_question_of_a_tool_is_booked_for_its_visitor(
    tmp_path: Path, sources: tuple[str, ...], proxies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio forwards a tool's question to its own server."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.1" if proxies else "127.0.0.1")
    with closing(Site(new_endpoints(tmp_path / "page", sources, mcp=True, proxies=proxies), listens=True)) as site:
        addresses, join, visitors = [], site.endpoints.jobs.join, ["203.0.113.7", "203.0.113.8"]
        monkeypatch.setattr(site.endpoints.jobs, "join", lambda *args: addresses.append(args[2]) or join(*args))
        for visitor in visitors:
            forwarded = f"6.6.6.6, {visitor}, 10.0.0.2" if proxies else visitor
            assert "has expired" in str(call_tool(site, "layers", forwarded, scene="0" * 32))
        assert addresses == visitors
