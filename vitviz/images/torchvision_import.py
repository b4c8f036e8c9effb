"""Import of torchvision, also where its compiled half does not fit the installed torch.

The package index carries one torchvision a platform, built for CUDA. Beside a torch for the CPU its shared library
does not load. torchvision would do without, but on import it describes two operators of it, ``torchvision::nms`` and
``torchvision::qnms``, to the dispatcher, which then raises. timm and transformers fail with it. vitviz never calls
these two, so they are declared here without a kernel: whoever calls them still gets torchvision's own error.
"""

import importlib
import re
import sys
import threading
from types import ModuleType
from typing import Any

_lock = threading.Lock()
_declared: list[Any] = []  # a torch.library.Library takes its declarations along when it is collected


def import_torchvision() -> ModuleType:
    """Import torchvision and return it. Call it before the first import of torchvision, timm or transformers.

    Raises:
        ImportError: torchvision is not installed.
        RuntimeError: it cannot be imported for another reason than the two operators; its own error, unchanged.
    """
    with _lock:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if _declared or not re.search(r"operator torchvision::q?nms does not exist", str(error)):
                raise
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        # The failed import leaves modules behind that a second one would take for finished.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return importlib.import_module("torchvision")
