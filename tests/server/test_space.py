"""Check that a Space works when started as its host starts it, from its own files only."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import clean_environment
import pytest
import yaml
from attacked import ROOT, Server
from browsing import menu_click
from clean_environment import packages, requirements
from offered import photograph
from playwright.sync_api import Frame, Page, expect
from running import ready

sys.path.insert(0, str(ROOT / "scripts"))

import make_space

pytestmark = pytest.mark.tier("all")

STUB = '''
"""A stub of the package `spaces`: it records the seconds, and raises an error when the quota is empty."""
import copy, os
import gradio as gr

def GPU(duration):
    def decorate(function):
        def call(*args):
            with open(os.environ["LENT"], "a") as out:
                print(function.__name__, duration, file=out)
            if os.path.exists(os.environ["LENT"] + ".empty"):
                raise gr.Error("You have exceeded your GPU quota")
            return copy.deepcopy(function(*copy.deepcopy(args)))
        return call
    return decorate
'''
# Another user, if that user can read the packages; otherwise root without capabilities, so that files are read-only;
# otherwise the user who runs the tests.
USERS = (
    ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    ("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
    (),
)
OF_THE_HOST = {"HF_HUB_OFFLINE": "1", "SPACE_ID": "someone/vitviz", "SPACE_HOST": "someone-vitviz.hf.space"}
SITE = "https://huggingface.co/spaces/someone/vitviz"  # shows the Space in a frame
STATE = "({ image, layer, head, query }) => ({ image, layer, head, query })"


def environment(folder: Path, space: Path) -> Path:
    """Create a virtual environment with only the packages that the Space's files require; return its Python."""
    text = (space / "requirements.txt").read_text(encoding="utf-8")
    wanted = [*text.splitlines(), f"gradio=={front(space)['sdk_version']}"]
    return clean_environment.make(folder, packages(requirements(wanted))) / "python"


@contextmanager
def hosted(space: Path, place: Path, **variables: str) -> Iterator[Server]:
    """Start a Space as its host does: read-only files, another user, no home, and its own environment."""
    python = environment(place / "environment", space)
    (place / "written").mkdir()
    (place / "written").chmod(0o777)
    subprocess.run(["chmod", "-R", "a+rX,a-w", space], check=True)
    probe = (python, "-c", "import click")
    user = next(user for user in USERS if subprocess.run([*user, *probe], check=False).returncode == 0)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(space / "no" / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        **OF_THE_HOST,
        **variables,
    }
    try:
        uploads = place / "written" / "uploads"
        with closing(Server(uploads, command=[*user, python, "app.py"], cwd=space, environment=variables)) as server:
            yield server
    finally:
        subprocess.run(["chmod", "-R", "u+w", space], check=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a folder that another user can read, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def space(place: Path) -> Path:
    """Return the folder of a Space with ZeroGPU."""
    make_space.make("zerogpu", place / "zerogpu" / "space")
    return place / "zerogpu" / "space"


@pytest.fixture(scope="module")
def started(space: Path) -> Iterator[Server]:
    """Start the Space as under ZeroGPU, with a stub of the host's package `spaces`."""
    stub = space.parent / "stub"
    stub.mkdir()
    (stub / "spaces.py").write_text(STUB)
    lent = str(space.parent / "written" / "lent")
    with hosted(space, space.parent, PYTHONPATH=str(stub), SPACES_ZERO_GPU="true", LENT=lent) as server:
        yield server


def front(folder: Path) -> dict[str, object]:
    """Return the host's settings from README.md."""
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def large_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 10_000_000]


def test_folder_of_a_space_contains_only_what_the_host_reads(space: Path) -> None:
    about = front(space)
    pins = make_space.pins()
    assert about["sdk_version"] == pins["gradio"]
    assert about["python_version"] == "3.10.13"
    wanted = (space / "requirements.txt").read_text(encoding="utf-8")
    assert f"torch=={pins['torch']}\n" in wanted
    assert not {"gradio", "accelerate", "spaces"} & set(wanted.replace("==", " ").split())
    for_cpu = make_space.requirements("https://example.org/cpu")
    assert f"torch=={pins['torch']}+cpu\n" in for_cpu
    assert for_cpu.startswith("--extra-index-url https://example.org/cpu\n")
    lfs = (space / ".gitattributes").read_text(encoding="utf-8")
    assert large_files(space)
    assert all(f"*{path.suffix} filter=lfs" in lfs for path in large_files(space))
    assert "*.py " not in lfs
    assert {path.name for path in space.iterdir()} == {
        *make_space.FILES, "README.md", "requirements.txt", ".gitattributes"
    }  # fmt: skip
    assert not [path for path in space.rglob("*") if path.match("*.pyc") or path.match("[!_]*.pyi")]


def test_gpu_is_lent_for_seconds_and_the_cpu_answers_without_quota(started: Server) -> None:
    lent = started.folder.parent / "lent"
    before = lent.read_text()
    scene = started.ask("open", photo=photograph(), source={})["data"]
    assert scene["id"]
    assert started.ask("explain", {"scene": scene["id"], "method": "gae"})["data"]
    calls = [line.split() for line in lent.read_text().removeprefix(before).splitlines()]
    assert [name for name, _ in calls] == ["run_model", "run_question"]
    assert all(int(seconds) <= 10 for _, seconds in calls)
    Path(f"{lent}.empty").touch()
    scene = started.ask("open", photo=photograph(1), source={})["data"]
    assert scene["badge"]["device"].lower().startswith("cpu")
    assert started.ask("explain", {"scene": scene["id"], "method": "gae"})["data"]["values"]


def test_space_starts_on_a_cpu(place: Path, page: Page) -> None:
    folder = place / "cpu" / "space"
    make_space.make("cpu", folder)
    with hosted(folder, folder.parent) as server:
        assert server.client.get("/healthz").json()["device"] == "cpu"
        scene = server.ask("open", photo=photograph(), source={})["data"]
        assert server.ask("explain", {"scene": scene["id"], "method": "gae"})["data"]["values"]
        ready(page, server.url)
        status = Path(f"/proc/{server.process.pid}/status")
        if os.getuid() == 0 and status.exists():
            assert re.search(r"CapEff:\s+0+\n", status.read_text())  # no capabilities, so its files are read-only


def framed(page: Page, site: str, url: str, allow: str = "") -> Frame:
    """Open another site's page that shows this address in a frame."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write", "local-network-access"])
    # The last permission is needed because this Space is on the local machine.
    allow = f"{allow}; local-network-access"
    html = f'<!doctype html><iframe src="{url}" allow="{allow}" width=1400 height=860></iframe>'
    page.route(site, lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(site)
    (frame,) = page.frames[1:]
    return frame


@pytest.mark.parametrize("allow", ["clipboard-read; clipboard-write", ""], ids=["may copy", "may not"])
def test_link_copied_in_the_hosts_frame_restores_the_state(page: Page, started: Server, allow: str) -> None:
    frame = framed(page, SITE, f"{started.url}/?image=Dog&layer=5&head=2&from=4,7", allow)
    frame.wait_for_function("window.vitviz?.drawn > 0")
    frame.wait_for_function("!vitviz.store.get().linked")
    frame.click(".vv-grid button[data-value='6,1']")
    before = frame.evaluate(f"({STATE})(vitviz.store.get())")
    menu_click(frame, "link")
    message = frame.locator(".vv-message")
    if allow:
        expect(message).to_contain_text("copied")
        link = page.evaluate("navigator.clipboard.readText()")
    else:  # the link is shown instead
        expect(message).to_contain_text("The link is")
        link = re.search(r"https?://\S+", message.text_content() or "")[0]
    assert link.startswith(f"{started.url}/?")
    assert parse_qs(urlsplit(link).query)["layer"] == ["7"]
    other = page.context.new_page()
    ready(other, link)
    other.wait_for_function("!vitviz.store.get().linked")
    assert other.evaluate(f"({STATE})(vitviz.store.get())") == before
    assert before["image"] == "Dog"


def test_other_sites_cannot_frame_the_space(page: Page, started: Server) -> None:
    with page.expect_event("requestfailed") as failed:
        frame = framed(page, "https://evil.example/", started.url)
    assert failed.value.failure == "net::ERR_BLOCKED_BY_RESPONSE"  # blocked by frame-ancestors
    assert frame.evaluate("window.vitviz") is None


def test_host_can_frame_the_space_and_read_its_health(started: Server) -> None:
    hosts = {"host": "someone-vitviz.hf.space", "x-forwarded-proto": "https"}
    answer = started.client.get("/", headers=hosts)
    assert answer.status_code == 200
    assert "https://huggingface.co" in answer.headers["content-security-policy"].partition("frame-ancestors")[2]
    assert started.client.get("/", headers={"host": "evil.example"}).status_code == 421
    health = started.client.get("/healthz").json()
    assert health.items() >= {"ready": True, "device": "zerogpu", "model": "DINOv2 S/14 · everyday"}.items()
    assert health["queue"]["waiting"] == health["scenes"]["evicted"] == 0
