"""Test the installed wheel, in a fresh environment and outside the checkout."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesParser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import clean_environment
import pytest
from documents import FIRST, GUIDE, TOOL, prose, python_blocks
from patience import patience, wait_until
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402

pytestmark = pytest.mark.tier("all")
SMALL, REPOSITORY_ONLY = "vit-cifar10", "dinov2-s14-imagenette"
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # so that the wheel is used


def run(*command: object, cwd: Path = ROOT, env: Mapping[str, str] = ALONE) -> str:
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return release.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[0]


def environment(folder: Path, wheel: Path, *packages: Path) -> Path:
    """Make an environment with the wheel and links to packages; return its folder of commands."""
    commands = clean_environment.make(folder, packages)
    run(*PIP, "--python", commands / "python", "install", "--no-deps", "--no-index", wheel)
    return commands


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel and all its extras; return its folder of commands."""
    # Python does not read .pth files of a folder named in a .pth file, so the editable vitviz stays out.
    required = tmp_path_factory.mktemp("required") / "required.pth"
    required.write_text(sysconfig.get_path("purelib") + "\n")
    return environment(tmp_path_factory.mktemp("installed") / "env", wheel, required)


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the packages of `pip install vitviz`; return its folder of commands."""
    brought = clean_environment.packages(clean_environment.requirements(about(wheel).get_all("Requires-Dist")))
    return environment(tmp_path_factory.mktemp("bare") / "env", wheel, *brought)


def test_package_page_begins_with_pip_install_and_has_whole_addresses(wheel: Path) -> None:
    metadata, hook = about(wheel), TOOL["hatch"]["metadata"]["hooks"]["custom"]
    text = metadata.get_payload()
    assert text.startswith("# vitviz")  # no front matter
    assert re.search(r"```sh\n(.*)", text)[1].split("#")[0].strip() == "pip install vitviz"
    assert "](" not in re.sub(r"\]\((https://|#)", "", text)
    assert f"]({hook['repository']}/raw/main/docs/explorer.webp)" in text
    named = [line.rpartition(", ")[2] for line in metadata.get_all("Project-URL")]
    assert all(address.startswith(hook["repository"]) for address in named)
    ours = re.findall(rf"{hook['repository']}/(?:raw|blob)/main/([^)#\s]+)", "\n".join([text, *named]))
    assert ours
    assert [path for path in ours if not (ROOT / path).exists()] == []


def test_address_of_the_repository_stands_once() -> None:
    """`make release` refuses the placeholder, which the owner replaces in one place."""
    address = TOOL["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    tracked = run("git", "grep", "--fixed-strings", "--files-with-matches", address).split()
    assert tracked == ["pyproject.toml"]
    with pytest.raises(release.ReleaseError, match=r"OWNER"):
        release.check_repository('repository = "https://example.org/OWNER/vitviz"  # a comment\n')
    release.check_repository('repository = "https://example.org/someone/vitviz"\n')


def test_plain_install_works_and_names_missing_extras(bare: Path, elsewhere: Path) -> None:
    program = f"""
import importlib.util, sys, vitviz
from vitviz.cli.main import main
absent = ("gradio", "timm", "captum", "accelerate", "tensorboardX", "imagehash", "onnx_ir")
print(sorted(name for name in absent if importlib.util.find_spec(name)))
model = ["--model", {SMALL!r}, "--quiet"]
done = [main([*command.split(), *model]) for command in (
    "predict photo.jpg", "explain photo.jpg --method gae", "export photo.jpg", "heads photo.jpg", "lens photo.jpg",
    "figures photo.jpg --only shapes",
)]
print(done)
commands = ("app", "train --data . --out new --preset tiny", "explain photo.jpg --method input_gradient")
for command in (*commands, "export --static site"):
    print(main(command.split()), file=sys.stderr)
print(main(["summary", "--model", "timm:vit_tiny_patch16_224"]), file=sys.stderr)
"""
    done = subprocess.run([bare / "python", "-c", program], cwd=elsewhere, env=ALONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "[]"
    assert str([0] * 6) in printed
    for name in ("app", "train", "explain", "static", "convert"):
        assert f"Run pip install 'vitviz[{name}]'." in done.stderr
    assert done.stderr.splitlines()[1::2] == ["2"] * 5


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "photo.jpg").write_bytes((ROOT / "examples" / "church.jpg").read_bytes())
    return tmp_path


def test_the_library_and_its_commands_work(installed: Path, elsewhere: Path) -> None:
    program = f"""
import vitviz
print(vitviz.__file__)
view = vitviz.Explorer(vitviz.load({SMALL!r})).open("photo.jpg")
print(view.rollout().values.shape, *vitviz.bundled())
"""
    where, answer = run(installed / "python", "-c", program, cwd=elsewhere).splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert answer == f"(8, 8) dinov2-s14-everyday {SMALL}"
    answer = json.loads(run(installed / "vitviz", "predict", "photo.jpg", "--model", SMALL, "--json", cwd=elsewhere))
    assert "airplane" in json.dumps(answer)
    run(installed / "vitviz", "export", "photo.jpg", "-o", "page.html", "--model", SMALL, cwd=elsewhere)
    assert (elsewhere / "page.html").stat().st_size > 100_000


@pytest.mark.parametrize("document", ["README.md", *GUIDE])
def test_guide_runs_from_an_empty_folder(installed: Path, tmp_path: Path, document: str) -> None:
    printed = run(installed / "python", "-c", "\n".join([FIRST, *python_blocks(document)]), cwd=tmp_path)
    assert "nan" not in printed
    pictures = set(re.findall(r"\]\(([\w-]+\.webp)\)", prose(document)))
    assert pictures <= {path.name for path in tmp_path.iterdir()}, "code above each picture of the guide must save it"


@pytest.fixture
def served(installed: Path, elsewhere: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start `vitviz app`; return its address and process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_TEMP_DIR": str(elsewhere)}
    with (elsewhere / "log.txt").open("w+") as log:
        process = subprocess.Popen(
            [installed / "vitviz", "app"], cwd=elsewhere, env={**ALONE, **settings}, stdout=log, stderr=log
        )
        try:

            def listens() -> bool:
                assert process.poll() is None, (elsewhere / "log.txt").read_text()
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", port)) == 0

            wait_until(listens, "the app listens", 120)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait()


def test_the_app_opens_with_its_examples_and_ends_with_ctrl_c(
    served: tuple[str, subprocess.Popen[bytes]], page: Page, elsewhere: Path
) -> None:
    address, process = served
    page.goto(address)
    expect(page.locator(".vv-explore .vv-answer")).to_contain_text("church", timeout=1000 * patience(120))
    page.click("#examples button:has-text('Koala')")
    expect(page.locator(".vv-explore .vv-answer")).not_to_contain_text("church", timeout=1000 * patience(120))
    process.send_signal(signal.SIGINT)
    assert process.wait(patience(120)) == 130
    assert (elsewhere / "log.txt").read_text().endswith("\nvitviz: interrupted\n")


@pytest.fixture(scope="module")
def source(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the unpacked source distribution."""
    folder, path = tmp_path_factory.mktemp("source"), built[1]
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / path.name.removesuffix(".tar.gz")


def test_the_source_distribution_runs_its_tests(source: Path) -> None:
    packed = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    folders = ("tests", "vitviz", "examples", "checkpoints", "scripts", "docs", "notebooks")
    tracked = set(run("git", "ls-files", *folders).split())
    assert tracked - packed == {name for name in tracked if name.startswith(f"checkpoints/{REPOSITORY_ONLY}/")}
    assert {"Makefile", "pyproject.toml", "requirements-dev.txt", "app.py"} <= packed
    pytest_there = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    environ = {**ALONE, "PYTHONPATH": str(source)}  # otherwise the editable install
    assert "passed" in run(*pytest_there, "tests/images/test_preprocess.py", cwd=source, env=environ)


class Index(SimpleHTTPRequestHandler):
    """List the folder's files under simple/vitviz/ (PEP 503), and save posted files (as twine posts them)."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix("/simple/vitviz"))

    def do_POST(self) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = BytesParser().parsebytes(head + self.rfile.read(int(self.headers["Content-Length"])))
        fields = {part.get_param("name", header="Content-Disposition"): part for part in form.get_payload()}
        assert fields[":action"].get_payload() == "file_upload"
        content = fields["content"]
        (Path(self.directory) / content.get_filename()).write_bytes(content.get_payload(decode=True))
        self.send_response(200)
        self.end_headers()


@contextmanager
def serve_index(folder: Path) -> Iterator[str]:
    """Serve a package index on this machine that accepts and lists files like the Python Package Index."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_release_is_tried_and_uploaded_to_an_index_that_pip_reads(
    built: tuple[Path, Path], installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, files, downloaded = (tmp_path / name for name in ("trial", "files", "taken"))
    for folder in (trial, files):
        folder.mkdir()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    release.try_commands(installed, trial)
    monkeypatch.setenv("TWINE_USERNAME", "__token__")
    monkeypatch.setenv("TWINE_PASSWORD", "pypi-test")
    with serve_index(files) as address:
        release.upload(built, address)
        alone = {**ALONE, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
        download = (
            *PIP,
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            downloaded,
            "-i",
            f"{address}simple/",
        )
        run(*download, "vitviz", env=alone)
    assert (downloaded / built[0].name).read_bytes() == built[0].read_bytes()
    assert {path.name for path in files.iterdir()} == {path.name for path in built}


def test_a_version_without_a_dated_entry_in_the_changelog_is_not_released() -> None:
    release.check_changelog("# Changelog\n\n## [1.2.3] - 2026-12-01\n\n- News.\n\n## [1.2.2] - 2026-11-30\n", "1.2.3")
    for text in ("# Changelog\n", "## [1.2.3] - unreleased\n", "## [1.2.2] - 2026-11-30\n\n## [1.2.3] - 2026-12-01\n"):
        with pytest.raises(release.ReleaseError, match=r"Expected '## \[1\.2\.3\] - YYYY-MM-DD'"):
            release.check_changelog(text, "1.2.3")
