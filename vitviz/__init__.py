"""vitviz: look inside a Vision Transformer.

>>> import vitviz
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10)).eval()
>>> import torch
>>> model.trace(torch.zeros(1, 3, 64, 64)).attentions[11].shape
torch.Size([1, 3, 17, 17])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitviz import rooms

if TYPE_CHECKING:
    from vitviz.analysis.circuits import circuit
    from vitviz.attribution.attention import attention, rollout
    from vitviz.attribution.registry import METHODS, attribute
    from vitviz.attribution.target_specs import Direction, Group, Output, Similarity, Text, Unit
    from vitviz.draw.overlay import overlay
    from vitviz.errors import VitvizError
    from vitviz.evaluation.arena import arena
    from vitviz.evaluation.audit import audit
    from vitviz.evaluation.faithfulness import faithfulness
    from vitviz.explorer import Explorer
    from vitviz.heatmap import Heatmap
    from vitviz.images.bands import Bands
    from vitviz.images.limits import ImageError
    from vitviz.images.preprocess import Preprocess
    from vitviz.language.captioner import load_captioner
    from vitviz.language.words import Words, words
    from vitviz.model.config import ModelError, ViTConfig, preset
    from vitviz.model.devices import best_device
    from vitviz.model.summary import summary
    from vitviz.model.trace import Trace
    from vitviz.model.vit import Pretrained, ViT
    from vitviz.resources import example
    from vitviz.training.api import train
    from vitviz.view import View
    from vitviz.weights.capture import capture
    from vitviz.weights.captured import Captured
    from vitviz.weights.zoo import bundled, load

__version__ = "1.0.0"

__all__ = [
    "METHODS",
    "Bands",
    "Captured",
    "Direction",
    "Explorer",
    "Group",
    "Heatmap",
    "ImageError",
    "ModelError",
    "Output",
    "Preprocess",
    "Pretrained",
    "Similarity",
    "Text",
    "Trace",
    "Unit",
    "ViT",
    "ViTConfig",
    "View",
    "VitvizError",
    "Words",
    "arena",
    "attention",
    "attribute",
    "audit",
    "best_device",
    "bundled",
    "capture",
    "circuit",
    "example",
    "faithfulness",
    "load",
    "load_captioner",
    "overlay",
    "preset",
    "rollout",
    "summary",
    "train",
    "words",
]

# Modules of public names, imported on first use, so that `vitviz --help` does not wait for torch.
_MODULES = {
    "analysis.circuits": ("circuit",),
    "attribution.attention": ("attention", "rollout"),
    "attribution.registry": ("METHODS", "attribute"),
    "attribution.target_specs": ("Direction", "Group", "Output", "Similarity", "Text", "Unit"),
    "draw.overlay": ("overlay",),
    "errors": ("VitvizError",),
    "evaluation.arena": ("arena",),
    "evaluation.audit": ("audit",),
    "evaluation.faithfulness": ("faithfulness",),
    "explorer": ("Explorer",),
    "heatmap": ("Heatmap",),
    "images.bands": ("Bands",),
    "images.limits": ("ImageError",),
    "images.preprocess": ("Preprocess",),
    "language.captioner": ("load_captioner",),
    "language.words": ("Words", "words"),
    "model.config": ("ModelError", "ViTConfig", "preset"),
    "model.devices": ("best_device",),
    "model.summary": ("summary",),
    "model.trace": ("Trace",),
    "model.vit": ("Pretrained", "ViT"),
    "resources": ("example",),
    "training.api": ("train",),
    "view": ("View",),
    "weights.capture": ("capture",),
    "weights.captured": ("Captured",),
    "weights.zoo": ("bundled", "load"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    for module, names in _MODULES.items():
        if name in names:
            package, _, inner = module.partition(".")
            loaded = rooms.load(package, inner) if package in rooms.ROOMS else import_module(f"vitviz.{module}")
            globals()[name] = value = getattr(loaded, name)
            return value
    raise AttributeError(f"Expected a name in dir(vitviz), got {name!r}. Check the spelling.")


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
