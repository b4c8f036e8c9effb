"""A Space starts from its own files alone, as its host starts it, and answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from attacked import PATIENCE, ROOT, Server
from offered import photograph

sys.path.insert(0, str(ROOT / "scripts"))

import make_space

STUB = '''
"""The package `spaces`, as far as it is used: it notes the seconds, and lends nothing to who has no quota."""
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
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")  # root without its powers: files are read-only


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Space with ZeroGPU, as the host has it."""
    folder = tmp_path_factory.mktemp("space") / "space"
    make_space.make("zerogpu", folder)
    return folder


@pytest.fixture(scope="module")
def started(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The Space, started by a user who may write nothing but the folder for temporary files, and without a home."""
    place = tmp_path_factory.mktemp("host")
    packages = place / "packages"  # without the .pth files beside the packages, so without the editable vitviz
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "vitviz" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    (place / "stub").mkdir()
    (place / "stub" / "spaces.py").write_text(STUB)
    subprocess.run(["chmod", "-R", "a-w", space], check=True)
    command = [sys.executable, "-S", "app.py"]
    if os.getuid() == 0 and shutil.which("setpriv"):
        command = [*UNPRIVILEGED, *command]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(space / "no" / "home"),
        "PYTHONPATH": os.pathsep.join(map(str, (place / "stub", packages))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SPACE_ID": "someone/vitviz",
        "SPACE_HOST": "someone-vitviz.hf.space",
        "SPACES_ZERO_GPU": "true",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "HF_HUB_OFFLINE": "1",
        "LENT": str(place / "lent"),
    }
    server = Server(place / "uploads", command=command, cwd=space, environment=environment)
    try:
        yield server
    finally:
        server.close()
        subprocess.run(["chmod", "-R", "u+w", space], check=True)


def front(folder: Path) -> dict[str, object]:
    """What the host reads."""
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def large_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 10_000_000]


def test_the_folder_holds_what_the_host_reads_and_nothing_else(space: Path) -> None:
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
    assert not [path for path in space.rglob("*") if path.name == "__pycache__" or path.suffix in (".pyi", ".pyc")]


def test_a_gpu_is_lent_for_seconds_and_without_quota_the_cpu_answers(started: Server) -> None:
    lent = Path(f"{started.folder.parent}/lent")
    before = lent.read_text()
    scene = started.ask("open", photo=photograph(), source={})["data"]
    assert scene["id"]
    started.ask("explain", {"scene": scene["id"], "method": "gae"})["data"]
    calls = [line.split() for line in lent.read_text().removeprefix(before).splitlines()]
    assert [name for name, _ in calls] == ["run_model", "run_question"]
    assert all(int(seconds) <= 10 for _, seconds in calls)
    Path(f"{lent}.empty").touch()
    scene = started.ask("open", photo=photograph(1), source={})["data"]
    assert scene["badge"]["device"].lower().startswith("cpu")
    assert started.ask("explain", {"scene": scene["id"], "method": "gae"})["data"]["values"]


def test_the_host_can_show_it_in_its_frame_and_ask_how_it_is(started: Server) -> None:
    hosts = {"host": "someone-vitviz.hf.space", "x-forwarded-proto": "https"}
    answer = started.client.get("/", headers=hosts)
    assert answer.status_code == 200
    assert "https://huggingface.co" in answer.headers["content-security-policy"].partition("frame-ancestors")[2]
    assert started.client.get("/", headers={"host": "evil.example"}).status_code == 421
    health = httpx.get(f"{started.url}/healthz", timeout=PATIENCE)
    assert health.json() | {"version": "", "queue": None} == {
        "ready": True, "version": "", "device": "zerogpu", "model": "DINOv2 S/14 · everyday", "queue": None
    }  # fmt: skip
    assert health.json()["queue"]["waiting"] == 0


def test_the_containers_health_check_says_so(started: Server) -> None:
    """By the command of the Dockerfile, against a server and against none."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    command = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", text, re.DOTALL)[1])
    command[0] = sys.executable
    port = started.url.rpartition(":")[2]
    for given, code in ((port, 0), ("9", 1)):
        done = subprocess.run(command, env={"GRADIO_SERVER_PORT": given}, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


def test_requests_are_logged_with_their_times_and_nothing_of_a_photograph(started: Server) -> None:
    started.client.get("/config?photo=secret", headers={"user-agent": "secret"})
    started.client.get("/secret/path")
    started.ask("open", {"image": "secret"})
    started.upload("secret.png", photograph(3))
    started.log.flush()
    text = Path(started.log.name).read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    logged = {(one["path"], one["status"], one.get("outcome")) for one in lines}
    assert {("/config", 200, None), ("other", 404, None), ("/gradio_api/upload", 200, None)} < logged
    assert {("/vitviz/open", 200, "refused"), ("/vitviz/open", 200, "answered")} < logged
    assert all(one["seconds"] >= 0 and one["time"] for one in lines)
    assert "secret" not in text
    assert "127.0.0.1" not in "".join(line for line in text.splitlines() if line.startswith("{"))
