"""vitviz: look inside a Vision Transformer.

>>> import vitviz
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10)).eval()
>>> import torch
>>> model.trace(torch.zeros(1, 3, 64, 64)).attentions[11].shape
torch.Size([1, 3, 17, 17])
"""

from vitviz.config import ModelError, ViTConfig, preset
from vitviz.devices import best_device
from vitviz.explain.attention import attention, rollout
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.image import ImageError
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.render.overlay import overlay
from vitviz.summary import summary
from vitviz.trace import Trace
from vitviz.view import View
from vitviz.weights.zoo import bundled, load

__version__ = "0.1.0"

__all__ = [
    "Explorer",
    "Heatmap",
    "ImageError",
    "ModelError",
    "Preprocess",
    "Pretrained",
    "Trace",
    "ViT",
    "ViTConfig",
    "View",
    "attention",
    "best_device",
    "bundled",
    "load",
    "overlay",
    "preset",
    "rollout",
    "summary",
]
