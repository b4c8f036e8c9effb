"""Test with the oldest and the newest packages that pyproject.toml allows, each in a fresh environment."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import PROJECT, ROOT
from packaging.requirements import Requirement

FOLDERS = [f"tests/{name}" for name in ("model", "attribution", "analysis", "evaluation", "images", "weights")]

pytestmark = [pytest.mark.tier("versions"), pytest.mark.timeout(7200)]


def requirements(oldest: bool) -> list[str]:
    """Return the requirements of the package and its extras, at lower bounds or as new as allowed.

    The oldest requirements omit the extras `app` and `static`, which need newer releases of huggingface_hub and torch.
    """
    without = ("all", "app", "static") if oldest else ("all",)
    extras = [text for name, texts in PROJECT["optional-dependencies"].items() if name not in without for text in texts]
    needed = {}
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        floor = next(part.version for part in requirement.specifier if part.operator == ">=")
        needed[requirement.name] = f"{requirement.name}=={floor}" if oldest else str(requirement)
    return sorted(needed.values())


@pytest.mark.parametrize("oldest", [True, False], ids=["oldest", "newest"])
def test_library_works_with_other_versions(tmp_path: Path, oldest: bool) -> None:
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    tools = ["pytest>=9", "pytest-timeout", "hypothesis", "playwright", "scikit-image", "peft", "onnx", "onnxruntime"]
    pip = [str(python), "-m", "pip", "-q", "install"]
    subprocess.run([*pip, *requirements(oldest), *tools], check=True)
    (reference,) = re.findall(r"^REFERENCE := (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    subprocess.run([*pip, "--no-deps", reference, str(ROOT)], check=True)
    folders = FOLDERS if oldest else [*FOLDERS, "tests/cli"]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not browser", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
