"""Torchvision, where its compiled half does not fit the installed torch.

The package index carries one torchvision a platform, built for CUDA. Beside a torch for the CPU, a common pair on
laptops and in continuous integration, its shared library does not load. Torchvision would live with that and do without
its compiled operators, but while it is imported it describes two of them, ``torchvision::nms`` and
``torchvision::qnms``, to the dispatcher, which then knows no such operators: ``RuntimeError: operator torchvision::nms
does not exist``. timm and transformers fail with it, because they import torchvision.

vitviz uses torchvision for data sets and transforms (Python and torch alone) and never these two: they thin out the
boxes of an object detector. So it is enough to declare what they look like. Nothing is faked: whoever calls them still
gets torchvision's own error, which says that the compiled operators are missing.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from types import ModuleType
from typing import Any

MISSING = re.compile(r"operator torchvision::q?nms does not exist")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_lock = threading.Lock()
_declared: list[Any] = []  # a torch.library.Library takes its declarations along when it is collected


def import_torchvision() -> ModuleType:
    """Import torchvision and return it, also where only its Python half works with the installed torch.

    Call it before the first import of torchvision, timm or transformers. Cheap when torchvision is there already.

    Raises:
        ImportError: torchvision is not installed.
        RuntimeError: it cannot be imported for another reason than the two operators; its own error, unchanged.
    """
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if _declared or not MISSING.search(str(error)):
                raise
        _declare()
        # The failed import leaves modules behind that a second one would take for finished.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return importlib.import_module("torchvision")


def _declare() -> None:
    """Tell the dispatcher what the two operators take and return; they stay without a kernel."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + SCHEMA)
    _declared.append(library)
