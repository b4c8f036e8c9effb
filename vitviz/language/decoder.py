"""The captioner: a small decoder whose words attend to the image tokens and to earlier words in every block.

The image tokens are a prefix of the keys and values. The decoder does not change them, so in every block an image token
stands for the same patches, and whoever masks its key removes all that it contributes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(block, queries (B, H, T, d), keys and values (B, H, n + T, d), mask (B, 1, T, n + T)) -> (B, H, T, d)."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder: n image tokens of K features, T words at most, out of V; L blocks of H heads, width D."""

    vocabulary: int
    image_tokens: int = 64
    features: int = 256
    words: int = 40
    width: int = 256
    depth: int = 4
    heads: int = 8
    dropout: float = 0.1


def fused(block: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001
    """Attend with PyTorch's fused kernel, which keeps no probabilities."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Block(nn.Module):
    """Pre-norm block: attention, then an MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, index: int, image: Tensor, words: Tensor, mask: Tensor, attend: Attend) -> Tensor:
        """Return the words after the block: (B, n, D), (B, T, D) -> (B, T, D)."""
        qkv = self.qkv(self.norm1(torch.cat([image, words], 1)))  # (B, n + T, 3 D)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x (B, H, n + T, d)
        attended = attend(index, q[:, :, image.shape[1] :], k, v, mask)  # (B, H, T, d)
        words = words + self.dropout(self.proj(attended.transpose(1, 2).flatten(2)))
        out: Tensor = words + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(words)))))
        return out


def grid_positions(tokens: int, width: int) -> Tensor:
    """Return sines and cosines of the rows and columns of a square grid of tokens: (n, D), at the training's start.

    Image tokens are normalised, so positions must be about as large as these to be seen. The longest wavelength is
    twice the side of the grid, so that its halves differ.
    """
    side = round(tokens**0.5)
    frequencies = torch.pi / side * torch.arange(1, width // 4 + 1).sqrt()  # (D / 4)
    angles = (torch.arange(side) + 0.5)[:, None] * frequencies  # (S, D / 4)
    waves = torch.cat([angles.sin(), angles.cos()], 1)  # (S, D / 2)
    rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    return torch.cat([rows, columns], 2).flatten(0, 1)


class Decoder(nn.Module):
    """Predicts each word of a caption from the image tokens and the words before it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.image = nn.Linear(config.features, width)
        self.image_norm = nn.LayerNorm(width)
        self.image_positions = nn.Parameter(torch.empty(config.image_tokens, width))
        self.embed = nn.Embedding(config.vocabulary, width)  # also the classifier of words
        self.positions = nn.Parameter(torch.empty(config.words, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("proj.weight", "fc2.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * config.depth) ** 0.5 if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.image_positions.copy_(grid_positions(config.image_tokens, width))

    def forward(self, features: Tensor, words: Tensor, visible: Tensor | None = None, attend: Attend = fused) -> Tensor:
        """Return the logits of the next word after each word: (B, n, K), (B, T) -> (B, T, V).

        Args:
            features: projected image tokens.
            words: numbers of words, after the start.
            visible: (B, n) bool; the keys of other image tokens are masked in every block.
            attend: computes attention, for instance to record it.
        """
        image = self.dropout(self.image_norm(self.image(features)) + self.image_positions)  # (B, n, D)
        x = self.dropout(self.embed(words) + self.positions[: words.shape[1]])  # (B, T, D)
        mask = self.mask(features, words, visible)
        for index, block in enumerate(self.blocks):
            x = block(index, image, x, mask, attend)
        logits: Tensor = self.norm(x) @ self.embed.weight.T
        return logits

    def mask(self, features: Tensor, words: Tensor, visible: Tensor | None) -> Tensor:
        """Return which keys, image tokens and then words, each word sees: (B, 1, T, n + T) bool."""
        (batch, length), n = words.shape, features.shape[1]
        if visible is None:
            visible = torch.ones(batch, n, dtype=torch.bool, device=words.device)
        earlier = torch.ones(length, length, dtype=torch.bool, device=words.device).tril()
        image = visible[:, None].expand(-1, length, -1)  # (B, n) -> (B, T, n)
        return torch.cat([image, earlier.expand(batch, -1, -1)], 2)[:, None]


@torch.inference_mode()
def generate(
    model: Decoder, features: Tensor, start: list[int], end: int, length: int | None = None
) -> list[list[int]]:
    """Continue `start` with the most probable words, for each picture: (B, n, K) -> B lists, without the first word.

    Args:
        start: numbers of words.
        end: the number that ends a caption, and fills the rest of its list.
        length: the number of words to add at most, by default as many as the decoder has positions for.
    """
    longest = model.config.words if length is None else len(start) + length
    words = torch.full((len(features), longest), end)
    words[:, : len(start)] = torch.tensor(start)
    going = torch.arange(len(features))  # the captions that have not ended
    for place in range(len(start), longest):
        words[going, place] = model(features[going], words[going, :place])[:, -1].argmax(1)
        going = going[words[going, place] != end]
        if not len(going):
            break
    return words[:, 1:].tolist()


class Recorder:
    """Computes attention step by step and keeps its probabilities, (B, H, T, n + T) for each block."""

    def __init__(self) -> None:
        self.attention: list[Tensor] = []

    def __call__(self, block: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002
        """Attend."""
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        self.attention.append(scores.masked_fill(~mask, -torch.inf).softmax(-1))
        return self.attention[-1] @ v
