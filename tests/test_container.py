"""Test the container's files without an engine."""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import make_space  # noqa: E402


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


LINES = re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
INSTRUCTIONS = [(line.split()[0], " ".join(line.split()[1:])) for line in LINES if line.strip()]
SERVICE = yaml.safe_load(read("compose.yaml"))["services"]["vitviz"]


def of(name: str) -> list[str]:
    """Return the arguments of each instruction of this name."""
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def install() -> str:
    (step,) = (rest for rest in of("RUN") if "pip install" in rest)
    return step


def test_container_copies_the_files_of_a_space() -> None:
    copied = [path for rest in of("COPY") for path in shlex.split(rest)[:-1]]
    assert {*make_space.FILES, "requirements.txt", "requirements.lock"} == set(copied)
    assert all((ROOT / path).exists() for path in copied)
    ignored = read(".dockerignore").split()
    assert {f"!{path}" for path in copied} == {line for line in ignored if line.startswith("!")}
    assert "*" in ignored


def test_container_is_unprivileged_and_writes_only_to_its_volume() -> None:
    names = [name for name, _ in INSTRUCTIONS]
    (user,), (volume,) = of("USER"), of("VOLUME")
    assert user == "1000"
    assert names.index("USER") > max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))
    variables = dict(word.split("=", 1) for rest in of("ENV") for word in shlex.split(rest))
    assert all(variables[name].startswith(volume) for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"))
    assert (SERVICE["read_only"], SERVICE["user"], SERVICE["cap_drop"]) == (True, user, ["ALL"])
    assert [place.partition(":")[2] for place in SERVICE["volumes"]] == [volume]
    assert SERVICE["ports"] == [f"127.0.0.1:7860:{variables['GRADIO_SERVER_PORT']}"]
    assert of("EXPOSE") == [variables["GRADIO_SERVER_PORT"]]
    assert all(f"`{name}`" in read("docs/settings.md") for name in SERVICE["environment"])


def test_all_packages_are_locked_by_hash_at_the_versions_of_the_tests() -> None:
    locked = {}
    for block in re.split(r"\n(?=[a-z])", re.sub(r"^ *#.*\n", "", read("requirements.lock"), flags=re.MULTILINE)):
        name, version = re.match(r"([\w.-]+)==(\S+)", block).groups()
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), name
        locked[name] = version
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in make_space.pins().items()}
    from_its_own_index = {"torch", "torchvision"}
    pins = {name: version for name, version in pins.items() if name not in from_its_own_index}
    assert {name: locked.get(name) for name in pins} == pins
    assert not [name for name in locked if any(fnmatch(name, kind) for kind in (*from_its_own_index, "nvidia-*"))]
    assert "--require-hashes -r requirements.lock" in install()


@pytest.mark.parametrize("index", ["", "https://example.org/cpu"])
def test_torch_index_is_a_required_build_argument(index: str, tmp_path: Path) -> None:
    """Run the installing step with a stub that records pip's arguments."""
    (tmp_path / "requirements.txt").write_text(read("requirements.txt"))
    stub = tmp_path / "pip"
    stub.write_text('#!/bin/sh\necho "$@" >> asked\n')
    stub.chmod(0o755)
    variable = {"TORCH_INDEX": index} if index else {}
    environment = {"PATH": os.pathsep.join((str(tmp_path), os.environ["PATH"])), **variable}
    command = ["sh", "-c", install()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if not index:
        assert done.returncode
        assert "Expected the build argument TORCH_INDEX, got none. Give the address" in done.stderr
        assert not (tmp_path / "asked").exists()
        return
    assert done.returncode == 0, done.stderr
    torch, rest = (tmp_path / "asked").read_text().splitlines()
    assert torch == f"install --no-deps --index-url {index} -r torch.txt"
    assert rest == "install --no-deps --require-hashes -r requirements.lock"
    pinned = [f"{name}=={make_space.pins()[name]}" for name in ("torch", "torchvision")]
    assert (tmp_path / "torch.txt").read_text().splitlines() == pinned


def test_files_name_no_package_index() -> None:
    """Check that no file names a package index, which is a build argument."""
    assert SERVICE["build"]["args"]["TORCH_INDEX"].startswith("${TORCH_INDEX:?")
    for name in ("Dockerfile", "compose.yaml", "Makefile", "scripts/make_space.py", "requirements.lock"):
        assert not re.search(r"https?://\S*(whl|simple|registry)", read(name)), name


def test_compose_sets_hosts_and_nginx_retries_no_post() -> None:
    assert SERVICE["environment"]["VITVIZ_HOSTS"] == "${VITVIZ_HOSTS:-localhost}"
    assert "VITVIZ_SECRET" in SERVICE["environment"]  # shared by replicas
    (passed_on,) = re.findall(r"^ *proxy_next_upstream (.*)", read("deploy/nginx.conf"), re.MULTILINE)
    assert "non_idempotent" not in passed_on
