"""What turns gradients into weights: parameter groups, the learning rate of a step, the running mean of the weights.

Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (AdamW); Bao et al. 2022, "BEiT" (a learning rate
for each layer); Loshchilov and Hutter 2017, "SGDR" (cosine); Goyal et al. 2017 (warm-up).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.config import ViTConfig
from vitviz.training import TrainingError
from vitviz.training.recipes import Recipe

HEADS = ("head", "head_dist", "attn_pool")  # what is new where a model starts from another's weights
_UNDECAYED = ("cls_token", "dist_token", "reg_token", "pos_embed", "latent")


def layer_of(name: str, config: ViTConfig) -> int:
    """The layer that a parameter counts to: 0 for the embedding, i + 1 for block i, depth + 1 for the classifiers.

    The final norm counts to the last block, or to the classifiers where it norms what they read, as in BEiT and timm.
    """
    first, _, rest = name.partition(".")
    if first in HEADS:
        return config.depth + 1
    if first == "norm":
        return config.depth + config.norm_pooled
    return int(rest.partition(".")[0]) + 1 if first == "blocks" else 0


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay pulls a parameter: matrices and filters, no biases, norms, scales, tokens or positions."""
    return parameter.ndim > 1 and name.rpartition(".")[2] not in _UNDECAYED


def groups(named: dict[str, nn.Parameter], config: ViTConfig, recipe: Recipe) -> list[dict[str, Any]]:
    """Parameters that share a learning rate and a weight decay.

    Args:
        named: those that learn, by the model's names.
        config: of the model.
        recipe: `lr`, `head_lr`, `layer_decay` and `weight_decay` are read.

    Returns:
        Groups for a torch optimiser, each with `peak`, its learning rate after warm-up, and `names`.

    Raises:
        TrainingError: if nothing learns.
    """
    if not named:
        raise TrainingError("Expected a model with parameters that learn, but all are frozen.")
    made: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in named.items():
        base = recipe.lr
        if recipe.head_lr is not None and name.partition(".")[0] in HEADS:
            base = recipe.head_lr
        peak = base * recipe.layer_decay ** (config.depth + 1 - layer_of(name, config))
        decay = recipe.weight_decay if decays(name, parameter) else 0.0
        group = made.setdefault((peak, decay), {"params": [], "names": [], "peak": peak, "weight_decay": decay})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(made.values())


def adamw(parameters: list[dict[str, Any]], recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over `groups`, one fused kernel a group."""
    for group in parameters:
        group["lr"] = group["peak"]
    return torch.optim.AdamW(parameters, lr=recipe.lr, betas=recipe.betas, fused=True)


def factor(step: int, steps: int, warmup: int, final: float = 0.0) -> float:
    """The share of the peak learning rate at a step, counted from 0, of so many: a pure function.

    Linear from 1 / warmup to 1 in the first `warmup` steps, then a cosine that would reach `final` at step `steps`.
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * done))


def set_rate(optimiser: torch.optim.Optimizer, share: float) -> None:
    """Give each group its peak learning rate times `share`."""
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * share


class Average:
    """A running mean of what learns: a copy of the network that is validated and saved.

    After update n (from 1) the mean moves by 1 - min(decay, (1 + n) / (10 + n)) of the way to the weights, so that
    the first ones, which are hardly trained, are soon forgotten.

    Args:
        network: what is trained.
        decay: 0..1; the nearer to 1, the longer the memory.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        theirs = dict(self.network.named_parameters())
        pairs = [(one, theirs[name]) for name, one in network.named_parameters() if one.requires_grad]
        self._weights = [one.detach() for one, _ in pairs]
        self.means: list[Tensor] = [mean for _, mean in pairs]

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Take in the weights after so many updates."""
        moves = 1.0 - min(self.decay, (1.0 + number) / (10.0 + number))
        torch._foreach_lerp_(self.means, self._weights, moves)
