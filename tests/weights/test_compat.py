"""Torchvision must come in, whole or without its compiled operators, and no other failure may be swallowed."""

import json
import os
import subprocess
import sys
from pathlib import Path

# Fails as the real one does: its second half describes operators that only the shared library would have declared.
STAND_IN = """
from torchvision import first_half
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda *args: None)
complete = True
"""
OTHER_FAILURES = (
    "raise RuntimeError('compiled for different CUDA versions')",
    "raise RuntimeError('operator torchvision::roi_align does not exist')",
    "raise ImportError('libjpeg is missing')",
)
# Import packages that are called torchvision, one after another, and say how: by ours, or plainly.
IMPORTS = """
import builtins, json, sys
from pathlib import Path
from vitviz.images.torchvision_import import import_torchvision

said = []
for code, plain in json.loads(sys.argv[2]):
    Path(sys.argv[1]).write_text("import builtins; builtins.runs += 1\\n" + code)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    builtins.runs = builtins.first_runs = 0
    load = (lambda: __import__("torchvision")) if plain else import_torchvision
    try:
        torchvision = load()
        assert load() is torchvision
        said.append([builtins.runs, builtins.first_runs, str(torchvision.complete)])
    except Exception as error:
        said.append([builtins.runs, builtins.first_runs, f"{type(error).__name__}: {error}"])
print(json.dumps(said))
"""


def test_operators_that_do_not_exist_are_declared_and_other_failures_pass_through(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "first_half.py").write_text("import builtins\nbuiltins.first_runs += 1")
    tries = [*((code, False) for code in OTHER_FAILURES), (STAND_IN, True), (STAND_IN, False)]
    command = [sys.executable, "-B", "-c", IMPORTS, str(package / "__init__.py"), json.dumps(tries)]
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path}
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    *others, plain, ours = json.loads(answer.stdout)
    for (runs, _, words), code in zip(others, OTHER_FAILURES, strict=True):
        assert words.split(": ", 1)[1] in code
        assert words.split(": ")[0] in code
        assert runs == 1  # another try would hide what the first one did
    assert "operator torchvision::nms does not exist" in plain[2]  # the stand-in fails as the real one does
    assert ours == [2, 2, "True"]  # every module of the failed import ran again
