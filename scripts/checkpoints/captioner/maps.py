"""Maps of a caption's words over the image tokens: the exact effect of each token, and maps that may agree with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vitviz.language.decoder import Decoder, Recorder

Span = tuple[int, int]
"""Index of the first word of a noun in a caption, and the index after its last word."""

Maps = Callable[[Decoder, Tensor, Tensor, Sequence[Span]], Tensor]
"""(decoder, features (n, K), words (T + 1), nouns) -> (nouns, n). Words begin with the start."""


def log_probabilities(model: Decoder, features: Tensor, words: Tensor, visible: Tensor | None = None) -> Tensor:
    """Return each word's log-probability: (B, n, K), (B, T + 1) -> (B, T)."""
    logits = model(features, words[:, :-1], visible)
    return logits.log_softmax(-1).gather(2, words[:, 1:, None])[..., 0]


def sum_spans(values: Tensor, spans: Sequence[Span]) -> Tensor:
    """Sum the values of each noun's words: (..., T) -> (..., nouns)."""
    return torch.stack([values[..., first:last].sum(-1) for first, last in spans], -1)


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
    nouns = sum_spans(values, spans)
    return (nouns[:1] - nouns[1:]).T


@torch.inference_mode()
def attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the attention that predicts each noun's words, of all blocks and heads: (L, H, nouns, n)."""
    recorder = Recorder()
    model(features[None], words[None, :-1], attend=recorder)
    layers = torch.stack(recorder.attention)[:, 0, :, :, : len(features)]  # (L, H, T, n)
    return sum_spans(layers.transpose(-1, -2), spans).transpose(-1, -2)


def mean_attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the mean of the attention over blocks and heads."""
    return attention(model, features, words, spans).mean((0, 1))


def last_attention(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the mean of the attention over the heads of the last block."""
    return attention(model, features, words, spans)[-1].mean(0)


def gradient_input(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the gradient of each noun's log-probability times the features, summed over the dimensions."""
    given = features.clone().requires_grad_()
    values = sum_spans(log_probabilities(model, given[None], words[None])[0], spans)
    grads = [torch.autograd.grad(value, given, retain_graph=True)[0] for value in values]
    return torch.stack([(grad * features).sum(-1) for grad in grads])


def gae(model: Decoder, features: Tensor, words: Tensor, spans: Sequence[Span]) -> Tensor:
    """Return the relevance by generic attention explainability (Chefer et al. 2021, equations 5 and 6).

    The image tokens do not change in the decoder, so their rows of the relevance stay the identity.
    """
    recorder = Recorder()
    values = sum_spans(log_probabilities_with(model, features, words, recorder), spans)
    maps = []
    for value, (first, last) in zip(values, spans, strict=True):
        grads = torch.autograd.grad(value, recorder.attention, retain_graph=True)
        image = torch.zeros(len(words) - 1, len(features))  # relevance of the image tokens for each word
        for probabilities, grad in zip(recorder.attention, grads, strict=True):
            weights = (probabilities * grad).clamp_min(0).mean(1)[0].detach()  # (T, n + T)
            image = image + weights[:, len(features) :] @ image + weights[:, : len(features)]
        maps.append(image[first:last].sum(0))
    return torch.stack(maps)


def log_probabilities_with(model: Decoder, features: Tensor, words: Tensor, recorder: Recorder) -> Tensor:
    """Return each word's log-probability while the attention is recorded: (n, K), (T + 1) -> (T)."""
    logits = model(features[None], words[None, :-1], attend=recorder)[0]
    return logits.log_softmax(-1).gather(1, words[1:, None])[:, 0]


MAPS: Mapping[str, Maps] = {
    "attention, all blocks": mean_attention,
    "attention, last block": last_attention,
    "gradient × input": gradient_input,
    "GAE": gae,
}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Return Spearman's rank correlation of two maps (n,)."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return torch.corrcoef(ranks)[0, 1].item()
