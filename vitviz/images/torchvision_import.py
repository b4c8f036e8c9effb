"""Import torchvision, even if its compiled library does not match the installed torch.

The package index has one torchvision per platform, built for CUDA, whose shared library does not load with a CPU
build of torch. torchvision works without it, except that on import it registers metadata for two operators,
``torchvision::nms`` and ``torchvision::qnms``, which raises an error and also breaks timm and transformers. vitviz does
not use these operators, so this module declares them without a kernel; calling them raises torchvision's error.
"""

import importlib
import re
import sys
import threading
from types import ModuleType
from typing import Any

_lock = threading.Lock()
_declared: list[Any] = []  # a collected torch.library.Library removes its declarations


def import_torchvision() -> ModuleType:
    """Import torchvision and return it; call this before importing torchvision, timm or transformers.

    Raises:
        ImportError: if torchvision is not installed.
        RuntimeError: torchvision's error, if the import fails for another reason.
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
        # Remove the incomplete modules of the failed import.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return importlib.import_module("torchvision")
