"""Create optimizers, learning-rate schedules and running means of weights.

Kingma and Ba 2015, "Adam"; Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (AdamW); Bao et al.
2022, "BEiT" (a learning rate for each layer); Loshchilov and Hutter 2017, "SGDR" (cosine); Goyal et al. 2017 (warm-up).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.training.network import HEADS
from vitviz.training.recipes import Recipe

_UNDECAYED = ("cls_token", "dist_token", "reg_token", "pos_embed", "mid_pos_embed", "latent", "bias_table", "rates")


def layer_of(name: str, config: ViTConfig) -> int:
    """Return the layer of a parameter: 0 for the embedding, i + 1 for block i, depth + 1 for the classifiers.

    The final norm belongs to the last block, or to the classifiers if it is applied after pooling, as in BEiT and timm.
    """
    first, _, rest = name.partition(".")
    if first in HEADS:
        return config.depth + 1
    if first == "norm":
        return config.depth + config.norms.pooled
    return int(rest.partition(".")[0]) + 1 if first == "blocks" else 0


def make_optimizer(model: ViT, recipe: Recipe) -> torch.optim.Optimizer:
    """Return AdamW, Adam or SGD for a model's trainable parameters, grouped by learning rate and weight decay.

    Weight decay applies to matrices and filters, not to biases, norms, scales, tokens and positions.
    `timm.optim.param_groups_layer_decay` does not support a separate rate for the classifier.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layer = layer_of(name, model.config)
            is_head = layer > model.config.depth and name.partition(".")[0] in HEADS
            rate = recipe.head_lr if is_head and recipe.head_lr is not None else recipe.lr
            rate *= recipe.layer_decay ** (model.config.depth + 1 - layer)
            decays = parameter.ndim > 1 and name.rpartition(".")[2] not in _UNDECAYED
            decay = recipe.weight_decay if decays else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    options = [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(options, lr=recipe.lr, momentum=recipe.betas[0], nesterov=True)
    adam = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return adam(options, lr=recipe.lr, betas=recipe.betas, fused=True)


def warmup_then(schedule: str, steps: int, warmup: int, final: float = 0.0) -> Callable[[int], float]:
    """Return the relative learning rate as a function of the step, from 0.

    Linear from 1 / warmup to 1 in the first `warmup` steps, then constant, or a cosine or line to `final` at `steps`.
    """

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = 0.0 if schedule == "constant" else min(1.0, (step - warmup) / max(1, steps - warmup))
        left = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return final + (1.0 - final) * left

    return share


def running_mean(network: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a network's weights.

    Update n has weight 1 - min(decay, (1 + n) / (10 + n)), so the first weights soon have little influence.
    """

    def update(means: Any, weights: Any, _count: Tensor | int) -> None:
        n = int(average.n_averaged)  # on the CPU; reading the argument would wait for a GPU
        torch._foreach_lerp_(means, weights, 1.0 - min(decay, (1.0 + n) / (10.0 + n)))

    average = AveragedModel(network, multi_avg_fn=update)
    return average
