"""Plant neurons that give a few patches an outlying norm."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitviz.model.vit import ViT

SIZE = 15.0  # norm of the weakest planted outlier, in medians of the patches


@torch.no_grad()
def plant(
    model: ViT, images: Tensor, block: int, neurons: Sequence[int], *, tokens: int = 2, seed: int = 0
) -> list[set[int]]:
    """Make neurons of a block fire at the `tokens` patches of each image that are largest in a random direction.

    One direction and one threshold serve all images, (B, channels, H, W); so the patches may be fewer in some.

    Returns:
        The indices of the patches among all tokens, for each image.
    """
    trace, layer, generator = model.trace(images), model.blocks[block], torch.Generator().manual_seed(seed)
    inputs: list[Tensor] = []
    handle = layer.mlp.fc1.register_forward_hook(lambda _module, given, _out: inputs.append(given[0]))
    out = layer(trace.stream(block), model.angles(trace.grid))
    handle.remove()
    prefix = len(trace.prefix)
    direction = torch.randn(model.config.width, generator=generator)
    (entering,) = inputs
    read = entering @ direction  # (B, N)
    ranked = read[:, prefix:].flatten().sort(descending=True).values
    count = tokens * len(images)
    threshold, gap = (ranked[count - 1] + ranked[count]) / 2, ranked[count - 1] - ranked[count]
    gain = 20 / gap  # the weakest activation is 10, and the next patch's is below zero
    read[:, :prefix] = -torch.inf
    least = SIZE * out[:, prefix:].norm(dim=-1).median() / 10 / len(neurons)
    scale = layer.ls1 if model.config.parallel else layer.ls2
    size = getattr(scale, "gamma", torch.ones(model.config.width))
    column = torch.randn(model.config.width, generator=generator)
    for index in neurons:
        layer.mlp.fc1.weight[index], layer.mlp.fc1.bias[index] = gain * direction, -gain * threshold
        if model.config.gated:  # the second half of the activations multiplies the first
            layer.mlp.fc1.weight[model.config.hidden + index] = 0.0
            layer.mlp.fc1.bias[model.config.hidden + index] = 1.0
        noise = 0.1 * torch.randn(model.config.width, generator=generator)
        layer.mlp.fc2.weight[:, index] = least * torch.nn.functional.normalize(column + noise, dim=0) / size
    return [set((row > threshold).nonzero().flatten().tolist()) for row in read]
