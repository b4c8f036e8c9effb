"""Define the captioner's text decoder, a Transformer in which words attend to image tokens and to earlier words.

The image tokens are a prefix of the keys and values. No block changes them, so an image token represents the same
patches in every block, and masking its key in every block removes its whole effect on the words.
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
    """Sizes of a decoder.

    Args:
        vocabulary: V, number of token ids.
        image_tokens: n, number of image tokens, a square number.
        features: K, width of an image token before the decoder's own linear map.
        words: T, maximum number of words, with `START`.
        width: D.
        depth: L, number of blocks.
        heads: H, number of heads of a block.
        dropout: rate of dropout in training.
    """

    vocabulary: int
    image_tokens: int = 64
    features: int = 256
    words: int = 40
    width: int = 256
    depth: int = 4
    heads: int = 8
    dropout: float = 0.1


def fused(block: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001
    """Compute attention with PyTorch's fused kernel, which does not return the probabilities."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Block(nn.Module):
    """Pre-norm Transformer block: attention from words to image tokens and words, then an MLP on the words."""

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
    """Return initial position embeddings of a square grid: sines and cosines of rows and columns, (n, D).

    Image tokens are normalised before positions are added, so the positions have about the same magnitude. The longest
    wavelength is twice the side of the grid, so that no two rows or columns have the same embedding.
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
        self.embed = nn.Embedding(config.vocabulary, width)  # also the output projection, transposed (tied weights)
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
            words: token ids, which begin with `START`.
            visible: (B, n) bool; the keys of all other image tokens are masked in every block.
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
        """Return the mask of the words' attention to image tokens, and causally to words: (B, 1, T, n + T) bool."""
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
    """Continue `start` by greedy decoding, for each image: (B, n, K) -> B lists of token ids, without the first one.

    Args:
        model: the decoder.
        features: projected image tokens.
        start: token ids.
        end: the token id that ends a caption, and fills the rest of its list.
        length: maximum number of words to add; by default, as many as the decoder has positions for.
    """
    longest = model.config.words if length is None else len(start) + length
    words = torch.full((len(features), longest), end)
    words[:, : len(start)] = torch.tensor(start)
    unfinished = torch.arange(len(features))
    for place in range(len(start), longest):
        logits = model(features[unfinished], words[unfinished, :place])[:, -1]
        words[unfinished, place] = logits.argmax(1)
        unfinished = unfinished[words[unfinished, place] != end]
        if not len(unfinished):
            break
    return words[:, 1:].tolist()


class Recorder:
    """Compute attention without a fused kernel, and keep the probabilities of each block: (B, H, T, n + T)."""

    def __init__(self) -> None:
        self.attention: list[Tensor] = []

    def __call__(self, block: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002
        """Compute the attention of one block, and keep its probabilities."""
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        self.attention.append(scores.masked_fill(~mask, -torch.inf).softmax(-1))
        return self.attention[-1] @ v
