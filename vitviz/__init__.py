"""vitviz: look inside a Vision Transformer.

>>> import vitviz
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10)).eval()
>>> import torch
>>> model.trace(torch.zeros(1, 3, 64, 64)).attentions[11].shape
torch.Size([1, 3, 17, 17])
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from vitviz import rooms

__version__ = "1.0.0"

# The module of each public name, read from the stub that type checkers use. Modules are imported on first use, so that
# `vitviz --help` starts without importing torch.
_MODULES = {
    alias.name: str(node.module).removeprefix("vitviz.")
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"Expected a name in dir(vitviz), got {name!r}. Check the spelling.")
    package, _, inner = _MODULES[name].partition(".")
    loaded = rooms.load(package, inner) if package in rooms.ROOMS else import_module(f"vitviz.{_MODULES[name]}")
    globals()[name] = value = getattr(loaded, name)
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
