"""Define the forward pass that is exported: plain matrix products, and what a page needs to draw attention."""

import torch
from torch import Tensor, nn

from vitviz.model.ops import Explicit
from vitviz.model.vit import ViT


class Exportable(nn.Module):
    """A model's forward pass for `torch.export`, `make_fx` and ONNX, at one image size.

    Args:
        model: in eval mode; its modules are shared.

    >>> from vitviz.model.config import preset
    >>> model = Exportable(ViT(preset("tiny", image_size=(32, 48), depth=2, classes=5)).eval())
    >>> [tuple(out.shape) for out in model(torch.zeros(1, 3, 32, 48))]
    [(1, 5), (1, 7, 192), (2, 1, 3, 7, 64), (2, 1, 3, 7, 64)]
    """

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run the model on normalised pixels (B, channels, H, W).

        Return logits (B, C), or features without a classifier; final tokens (B, N, D); queries, with the scale of the
        logits, and keys of all blocks, (L, B, H, N, d) each: attention is softmax(queries @ keys.T).
        """
        ops, model = Explicit(), self.model
        tokens, grid = model.embed(images)
        tokens = model.encode(tokens, model.angles(grid), ops=ops)
        queries = torch.stack([one.queries for one in ops.seen])
        keys = torch.stack([one.keys for one in ops.seen])
        return model.classify(tokens, ops), tokens, queries, keys
