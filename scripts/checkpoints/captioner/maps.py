"""Maps of a caption's words over the image tokens: the exact effect of each token, and maps that may agree with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vitviz.language.decoder import Attend, Decoder, Recorder, fused
from vitviz.language.relevance import gae, gradient_input, sum_spans

Span = tuple[int, int]
"""Index of the first word of a noun in a caption, and the index after its last word."""

Maps = Callable[[Decoder, Tensor, Tensor, Sequence[Span]], Tensor]
"""(decoder, features (n, K), words (T + 1), nouns) -> (nouns, n). Words begin with the start."""


def log_probabilities(
    model: Decoder, features: Tensor, words: Tensor, visible: Tensor | None = None, attend: Attend = fused
) -> Tensor:
    """Return each word's log-probability: (B, n, K), (B, T + 1) -> (B, T)."""
    logits = model(features, words[:, :-1], visible, attend)
    return logits.log_softmax(-1).gather(2, words[:, 1:, None])[..., 0]


def of_words(spans: Sequence[Span]) -> list[range]:
    """Return the indices of each noun's words, which are also those of the queries that predict them."""
    return [range(*span) for span in spans]


@torch.inference_mode()
def removal(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span], groups: Tensor) -> Tensor:
    """Return how much each noun's log-probability falls when the keys of a group of image tokens are masked.

    The whole caption is fed in; it is not generated anew.

    Args:
        groups: (G, n) bool, the tokens of each group.

    Returns:
        (nouns, G).
    """
    visible = torch.cat([torch.ones_like(groups[:1]), ~groups])  # (1 + G, n)
    many = len(visible)
    values = log_probabilities(model, features.expand(many, -1, -1), words.expand(many, -1), visible)  # (1 + G, T)
    nouns = sum_spans(values, of_words(spans))
    return (nouns[:1] - nouns[1:]).T


@torch.inference_mode()
def attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the attention that predicts each noun's words, of all blocks and heads: (L, H, nouns, n)."""
    recorder = Recorder()
    model(features[None], words[None, :-1], attend=recorder)
    layers = torch.stack(recorder.attention)[:, 0, :, :, : len(features)]  # (L, H, T, n)
    return sum_spans(layers.transpose(-1, -2), of_words(spans)).transpose(-1, -2)


def mean_attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the mean of the attention over blocks and heads."""
    return attention(model, features, words, spans).mean((0, 1))


def last_attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the mean of the attention over the heads of the last block."""
    return attention(model, features, words, spans)[-1].mean(0)


def gradients(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the gradient of each noun's log-probability times the features, summed over the dimensions."""
    given = features[None].clone().requires_grad_()
    return gradient_input(sum_spans(log_probabilities(model, given, words[None]), of_words(spans))[0], given)


def relevance(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the relevance by generic attention explainability."""
    recorder, given = Recorder(), features[None].clone().requires_grad_()
    values = sum_spans(log_probabilities(model, given, words[None], attend=recorder), of_words(spans))[0]
    return gae(values, recorder.attention, torch.arange(len(features)), of_words(spans))


MAPS: Mapping[str, Maps] = {
    "attention, all blocks": mean_attention,
    "attention, last block": last_attention,
    "gradient × input": gradients,
    "GAE": relevance,
}
