"""Torchvision must come in, whole or without its compiled operators, and no other failure may be swallowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitviz.images.torchvision_import import import_torchvision

# Fails as the real one does: its second half describes operators that only the shared library would have declared.
STAND_IN = """
from torchvision import first_half
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda *args: None)
complete = True
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh Python in which packages in `folder` come first."""
    path = {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, check=False)


def stand_in(folder: Path, code: str) -> None:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "first_half.py").write_text("import builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1")


def test_the_installed_torchvision_comes_in_and_stays_the_same() -> None:
    torchvision = import_torchvision()
    assert import_torchvision() is torchvision
    assert sys.modules["torchvision"] is torchvision
    resized = torchvision.transforms.functional.resize(torch.zeros(1, 3, 14, 22), [7, 11])
    assert resized.shape == (1, 3, 7, 11)


def test_a_missing_operator_still_fails_loudly() -> None:
    torchvision = import_torchvision()
    boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([0.5])
    if torchvision.extension._has_ops():
        assert torchvision.ops.nms(boxes, scores, 0.5).tolist() == [0]
    else:
        with pytest.raises(RuntimeError, match="custom C"):
            torchvision.ops.nms(boxes, scores, 0.5)


def test_what_needs_torchvision_can_be_imported() -> None:
    import_torchvision()
    import timm
    import transformers

    assert timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32).num_features == 192
    assert transformers.ViTConfig().patch_size == 16


def test_operators_that_do_not_exist_are_declared_and_the_import_starts_over(tmp_path: Path) -> None:
    stand_in(tmp_path, STAND_IN)
    plain = run("import torchvision", tmp_path)
    assert "operator torchvision::nms does not exist" in plain.stderr  # the stand-in fails as the real one does
    done = run(
        "import builtins; from vitviz.images.torchvision_import import import_torchvision as load\n"
        "t = load(); assert load() is t\n"
        "print(t.complete, builtins.runs)",
        tmp_path,
    )
    assert done.stdout.split() == ["True", "2"], done.stderr  # every module of the failed import ran again


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise RuntimeError('PyTorch and torchvision were compiled for different CUDA versions')", "different CUDA"),
        ("raise RuntimeError('operator torchvision::roi_align does not exist')", "roi_align does not exist"),
        ("raise ImportError('libjpeg is missing')", "ImportError: libjpeg"),
    ],
)
def test_other_failures_pass_through_unchanged(tmp_path: Path, code: str, text: str) -> None:
    stand_in(tmp_path, f"print('tried')\n{code}")
    result = run("from vitviz.images.torchvision_import import import_torchvision; import_torchvision()", tmp_path)
    assert result.returncode == 1
    assert result.stdout == "tried\n"  # once: another try would hide what the first one did
    assert text in result.stderr.splitlines()[-1]
