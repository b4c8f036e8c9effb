"""Attribute the words of an answer to image tokens by gradients: GAE for decoders, and gradient x input.

Shapes: B inputs, W words, T tokens of the answer, M image tokens, L layers, H heads, S queries, N keys, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Spans = Sequence[Sequence[int]]
"""For each word, the indices of its tokens in the answer."""


def sum_spans(tokens: Tensor, spans: Spans) -> Tensor:
    """Sum the values of each word's tokens: (..., T) -> (..., W)."""
    return torch.stack([tokens[..., [*span]].sum(-1) for span in spans], -1)


def gae(scores: Tensor, attention: Sequence[Tensor], tokens: Tensor, queries: Spans) -> Tensor:
    """Return the relevance of image tokens for words by generic attention explainability: (W, M), float32.

    Chefer et al. 2021, equations 5 and 6, for the text: the image tokens do not change, as in `Words.effects`, so their
    rows of the relevance stay the identity.

    Args:
        scores: (W) log-probabilities, in the autograd graph.
        attention: L x (1, H, S, N), probabilities in the graph; the queries are the last S keys.
        tokens: (M) keys of the image tokens.
        queries: for each word, the indices of the queries that predict its tokens.
    """
    maps = []
    for score, rows in zip(scores, queries, strict=True):
        grads = torch.autograd.grad(score, attention, retain_graph=True)
        image = torch.zeros(attention[0].shape[2], len(tokens), device=score.device)  # of the image tokens, (S, M)
        for probabilities, grad in zip(attention, grads, strict=True):
            weights = (probabilities * grad).detach().float().clamp_min(0).mean(1)[0]  # (S, N)
            image = image + weights[:, -len(image) :] @ image + weights[:, tokens]
        maps.append(image[[*rows]].sum(0))
    return torch.stack(maps)


def gradient_input(scores: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient of each word's score times the input, summed over its width: (W), (1, n, D) -> (W, n).

    Args:
        scores: in the autograd graph.
        inputs: tokens from which the scores were computed.
    """
    grads = (torch.autograd.grad(score, inputs, retain_graph=True)[0] for score in scores)
    return torch.stack([(grad * inputs).sum(-1)[0].detach() for grad in grads])
