"""Let a vision-language model write an answer, and keep the attention of its words over the image tokens.

Shapes: L layers, H heads, N keys, M image tokens, T tokens of the answer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitviz.weights.capture import Attention, Observer, probabilities_of
from vitviz.weights.captured import CaptureError


class DecoderObserver(Observer):
    """Pass the attention of a model's decoder to a function; other attention is computed as usual.

    Args:
        model: the vision-language model.
        attend: computes a call of the layer of that name.
    """

    def __init__(self, model: Any, attend: Callable[[str, Attention], Tensor]) -> None:
        super().__init__(model, grad=False)
        self._decoder = {id(part) for part in model.get_decoder().modules()}
        self._in_decoder = attend

    def _attend(self, call: Attention) -> Tensor:
        """Compute scaled dot-product attention."""
        name, caller = self._caller()
        return self._in_decoder(name, call) if id(caller) in self._decoder else call.run()

    def _softmax(self, func: Callable[..., Tensor], logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute a softmax as usual."""
        return func(logits, *args, **kwargs)


class AnswerRows(DecoderObserver):
    """Record, at each decoding step and in each layer, the attention of the token that predicts the next token.

    Each row is computed from this token's query and the keys in the model's cache, which are not copied. The first row
    of a layer belongs to the last token of the prompt.

    Args:
        model: the vision-language model.
        tokens: positions of the image tokens, (M).
        length: number of tokens of the prompt.
    """

    def __init__(self, model: Any, tokens: Tensor, length: int) -> None:
        super().__init__(model, self._observe)
        self._tokens, self._length = tokens, length
        self._rows: dict[str, list[Tensor]] = {}  # name of the caller -> (H, M) of each token of the answer

    def attention(self, count: int) -> Tensor:
        """Return the rows of all layers: (T, L, H, M), float32.

        Raises:
            CaptureError: if attention was not observed once for each of `count` tokens in each layer.
        """
        lengths = {len(rows) for rows in self._rows.values()}
        if lengths != {count}:
            raise CaptureError(
                f"Expected attention by scaled_dot_product_attention or softmax, once for each of {count} tokens in "
                f"each layer, got {sorted(lengths) or 'none'}. Load the model with attn_implementation='sdpa'."
            )
        return torch.stack([torch.stack(rows) for rows in self._rows.values()], dim=1)  # L x (T, H, M)

    def _observe(self, name: str, call: Attention) -> Tensor:
        """Compute scaled dot-product attention, and keep the last query's row."""
        seen = call.key[..., : call.query.shape[-2], :] if call.is_causal else call.key
        mask = None if call.attn_mask is None else self._last(name, call.attn_mask)
        last = self._last(name, call.query).float()
        self._keep(name, probabilities_of(last, seen.float(), mask, False, call.factor))
        return call.run()

    def _last(self, name: str, tensor: Tensor) -> Tensor:
        """Return the last row of each head, of queries or a mask: (1, H or 1, 1, ...).

        For a single token, transformers passes the heads that share a key as several rows of one head.
        """
        heads = len(self._rows[name][0]) if name in self._rows else tensor.shape[1]
        packed = tensor.shape[1] != heads == tensor.shape[1] * tensor.shape[2]
        return tensor.reshape(1, heads, 1, -1) if packed else tensor[..., -1:, :]

    def _softmax(self, func: Callable[..., Tensor], logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute a softmax, and keep the last row if the decoder computes attention with it."""
        probabilities = func(logits, *args, **kwargs)
        name, caller = self._caller()
        if probabilities.ndim == 4 and id(caller) in self._decoder:
            self._keep(name, probabilities[..., -1:, :])
        return probabilities

    def _keep(self, name: str, row: Tensor) -> None:
        """Keep the image tokens of a row (1, H, 1, N); a layer with a sliding window has the last keys only."""
        rows = self._rows.setdefault(name, [])
        hidden = max(self._length + len(rows) - row.shape[-1], 0)
        places = self._tokens - hidden
        shares = row[0, :, 0].float()[:, places.clamp_min(0)]  # (H, M)
        rows.append(torch.where(places >= 0, shares, 0.0))


def answered(
    model: Any, inputs: dict[str, Any], tokens: Tensor, answer: Sequence[int] | None, max_tokens: int
) -> tuple[list[int], Tensor]:
    """Generate an answer, or feed in a given one, and return its T tokens and their attention to the image.

    Returns:
        Ids of the T tokens, and their attention (T, L, H, M) to the M image tokens.

    Args:
        model: the vision-language model.
        inputs: its arguments, of one prompt.
        tokens: positions of the image tokens, (M).
        answer: tokens to feed in; by default, the model generates them.
        max_tokens: maximum number of tokens to generate.
    """
    length = inputs["input_ids"].shape[1]
    options: dict[str, Any] = {"max_new_tokens": max_tokens}
    if answer is not None:
        options = {
            "max_new_tokens": len(answer),
            "prefix_allowed_tokens_fn": lambda _image, ids: [answer[len(ids) - length]],
        }
    rows = AnswerRows(model, tokens, length)
    with torch.no_grad(), rows:
        ids = model.generate(**inputs, **options, do_sample=False, num_beams=1)[0, length:].tolist()
    return ids, rows.attention(len(ids))
