"""Split a model into a trained part and a frozen part in front of it.

Without augmentation, the frozen part (the backbone) sees the same pixels in each epoch. Its features are then computed
once, see `vitviz.training.features`, and training runs only the rest.

Shapes: B images, N tokens = P prefix tokens and n patches, D width, C classes. Features of an image are the tokens
(N, D) at the input of the first trained block, or the classifiers' input, (R,).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitviz.model.edits import Edits
from vitviz.model.ops import ReadTokens
from vitviz.model.vit import ViT
from vitviz.training import TrainingError

HEADS = ("head", "head_dist", "attn_pool")


class Network(nn.Module):
    """Network for training: images, or features of a frozen backbone, to the logits of each classifier.

    It shares the model's modules. Its submodules are the whole model, or the trained modules if inputs are features.

    Args:
        model: a classifier.
        unfreeze_last: `None` for images; for features, the number of trained blocks.
        grid: (gh, gw) patches of the images.
        patch_dropout: share of patches dropped from each training image (PatchDropout, Liu et al. 2022).
    """

    def __init__(
        self, model: ViT, unfreeze_last: int | None, grid: tuple[int, int], patch_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, so that it is not a submodule
        self.grid, self.patches = grid, grid[0] * grid[1]
        self.patches_kept = max(1, round((1.0 - patch_dropout) * self.patches))
        self.start = None if unfreeze_last is None else model.config.depth - unfreeze_last
        if unfreeze_last is None:
            self.model = model
        else:
            for name in learning_modules(model, unfreeze_last):
                self.add_module(name.replace(".", "_"), model.get_submodule(name))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return `ViT.classifier_logits` of images (B, 3, H, W), or of features (B, N, D) or (B, R)."""
        (model,) = self._model
        tokens, start, edits = inputs, self.start or 0, None
        if self.start is None:
            tokens, _ = model.embed(inputs)
            if self.training and self.patches_kept < self.patches:  # different patches for each image
                chances = torch.rand(len(tokens), self.patches)
                edits = Edits(keep=chances.topk(self.patches_kept, sorted=False).indices)
        if start < model.config.depth:
            angles = model.angles(self.grid)
            tokens = model.encode(tokens, angles, edits, ops=ReadTokens(model.config), start=start)
            return model.classifier_logits(tokens)
        if model.attn_pool is not None:
            return model.classifier_logits(inputs)
        assert model.head is not None
        if model.head_dist is None:
            return (model.head(model.project(inputs)),)
        token_width = model.head_dist.in_features
        pooled, token = inputs[:, :-token_width], inputs[:, -token_width:]
        return model.head(model.project(pooled)), model.head_dist(token)


class MeanLogits(nn.Module):
    """Network that returns the mean logits over its classifiers, (B, C)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, C) for the inputs of the network."""
        return mean_logits(self.network(inputs))


def mean_logits(heads: Sequence[Tensor]) -> Tensor:
    """Return the mean logits over classifiers: one or two of (B, C) -> (B, C)."""
    return heads[0] if len(heads) == 1 else (heads[0] + heads[1]) / 2


@torch.no_grad()
def backbone_features(model: ViT, images: Tensor, unfreeze_last: int) -> Tensor:
    """Compute the features for `Network`: normalized images (B, 3, H, W) -> (B, N, D) or (B, R).

    With `unfreeze_last` trained blocks, these are the input tokens of the first trained block; with 0 blocks, the
    classifiers' input: pooled and normed tokens, then the distillation token if it has a classifier; or the final
    tokens for attention pooling, which is trained too.
    """
    tokens, grid = model.embed(images)
    angles = model.angles(grid)
    for index, block in enumerate(list(model.blocks)[: model.config.depth - unfreeze_last]):
        tokens = model.leave(index, block(tokens, angles), angles)
    if unfreeze_last:
        return tokens
    tokens = model.finish(tokens)
    if model.attn_pool is not None:
        return tokens
    pooled = model.read_out(tokens)
    return pooled if model.head_dist is None else torch.cat([pooled, tokens[:, model.config.distillation_at]], dim=1)


def learning_modules(model: ViT, unfreeze_last: int) -> tuple[str, ...]:
    """Return the names of the trained modules if all but the last blocks are frozen, in order of execution.

    For 0, these are the classifiers and attention pooling with its norm; for K, also the last K blocks and the norm.
    Embedding, positions and prefix tokens stay frozen.

    Raises:
        TrainingError: if the model has fewer blocks.
    """
    config = model.config
    if not 0 <= unfreeze_last <= config.depth:
        raise TrainingError(
            f"Expected to train the last 0 to {config.depth} blocks, got {unfreeze_last}. Choose another number "
            "(--unfreeze-last), or train everything (--freeze none)."
        )
    blocks = [f"blocks.{index}" for index in range(config.depth - unfreeze_last, config.depth)]
    norm = ["norm"] if unfreeze_last or (model.attn_pool is not None and config.norms.pooled) else []
    return (*blocks, *norm, *(name for name in HEADS if getattr(model, name) is not None))


def freeze(model: ViT, unfreeze_last: int | None) -> None:
    """Freeze all but the `learning_modules` of a model; with `None`, train everything."""
    modules = ("",) if unfreeze_last is None else tuple(f"{name}." for name in learning_modules(model, unfreeze_last))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(modules))


def set_dropout(model: ViT, dropout: float, path_dropout: float, attention_dropout: float = 0.0) -> None:
    """Set a model's dropouts and stochastic depth in its modules and its config."""
    model.config = replace(
        model.config, dropout=dropout, path_dropout=path_dropout, attention_dropout=attention_dropout
    )
    for index, block in enumerate(model.blocks):
        block.attn.attention_dropout = attention_dropout
        block.drop_path.rate = path_dropout * index / max(1, model.config.depth - 1)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
