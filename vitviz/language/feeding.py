"""Feed an answer into a vision-language model again, with some image tokens hidden from the text.

The tokens up to the last image token are the head of the sequence; the rest, question and answer, is its tail. The
head is computed once. For each choice of hidden tokens, only the tail runs, in one pass: in every layer its queries
attend to the head's stored keys, except those of the hidden tokens, and to the tail's own keys.

Shapes: B choices of hidden tokens, H heads, d head width, M image tokens, T tokens of the answer, S tokens of the tail,
N tokens in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitviz.language.answers import DecoderObserver
from vitviz.language.relevance import Spans, gae, gradient_input, sum_spans
from vitviz.weights.capture import Attention
from vitviz.weights.captured import CaptureError

# Values of the tokens of an answer in the arguments of models that have them; PaliGemma's answers have their own type.
ADDED = {"attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 0}


@dataclass(frozen=True, eq=False)
class Layer:
    """What a layer's attention needs of the head: keys and values (1, H, N - S, d), and the tail's mask (1, 1, S, N).

    The mask is added to the logits.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor


def _of_heads(tensor: Tensor, query: Tensor) -> Tensor:
    """Return keys or values for each of the queries' heads and choices, some of which may share them: (B, H, n, d)."""
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1).expand(len(query), -1, -1, -1)


class FedAnswer:
    """An answer of a model of transformers that can be fed in again: `vitviz.language.words.Answer`.

    Args:
        model: the vision-language model.
        inputs: its arguments, of one prompt.
        tokens: positions of the image tokens, (M).
        ids: tokens of the answer.
        prepare: returns the arguments for another photograph of the same size, or for a gray one.
        tower: returns the vision tower with its image of a part of the photograph.
    """

    def __init__(
        self,
        model: Any,
        inputs: dict[str, Any],
        tokens: Tensor,
        ids: Sequence[int],
        prepare: Callable[[Any], dict[str, Any]],
        tower: Callable[[int], Any],
    ) -> None:
        self.tower = tower
        self._model, self._tokens, self._ids, self._prepare = model, tokens, torch.tensor([[*ids]]), prepare
        self._inputs, self._length = inputs, inputs["input_ids"].shape[1]
        self._start = min(int(tokens[-1]) + 1, self._length - 1)
        self._layers: dict[str, Layer] = {}
        self._given: dict[str, Any] = {}  # arguments of the decoder, for the whole sequence

    @torch.no_grad()
    def log_probabilities(self, visible: Tensor) -> Tensor:
        """Return each token's log-probability while other image tokens are hidden: (B, M) bool -> (B, T).

        The text, question and answer, does not read the hidden tokens. The other image tokens stay as they are.

        Raises:
            CaptureError: if the model's attention cannot be observed.
        """
        return self._feed(visible, Attention.run)

    def gae(self, spans: Spans) -> Tensor:
        """Return the relevance of image tokens for words by generic attention explainability: (W, M)."""
        recorded: list[Tensor] = []

        def record(call: Attention) -> Tensor:
            recorded.append(call.probabilities())
            if not recorded[-1].requires_grad:
                recorded[-1].requires_grad_()  # frozen weights: the graph starts here
            return recorded[-1] @ call.value

        tokens = self._feed(torch.ones(1, len(self._tokens), dtype=torch.bool), record)
        queries = [[self._length - 1 - self._start + token for token in span] for span in spans]
        return gae(sum_spans(tokens, spans)[0], recorded, self._tokens, queries)

    def gradient_input(self, spans: Spans) -> Tensor:
        """Return the gradient of words' log-probabilities times the image tokens, as the decoder gets them: (W, M)."""
        self._read_head()
        embeds = self._given["inputs_embeds"].detach().clone().requires_grad_()
        inputs = {**self._given, "inputs_embeds": embeds, "use_cache": False}
        hidden = self._model.get_decoder()(**inputs).last_hidden_state  # (1, N, D)
        tokens = self._chosen(self._model.get_output_embeddings()(hidden), self._length - 1)
        return gradient_input(sum_spans(tokens, spans)[0], embeds)[:, self._tokens]

    def _feed(self, visible: Tensor, run: Callable[[Attention], Tensor]) -> Tensor:
        """Return each token's log-probability while other image tokens are hidden: (B, M) bool -> (B, T).

        Args:
            visible: image tokens that the text reads.
            run: computes the attention of a layer's tail.
        """
        self._read_head()
        many = len(visible)
        seen = torch.ones(many, 1, 1, self._length + self._ids.shape[1] - 1, dtype=torch.bool, device=visible.device)
        seen[..., self._tokens] = visible[:, None, None]

        def attend(name: str, call: Attention) -> Tensor:
            layer, query = self._layers[name], call.query
            parts = (layer.keys, call.key), (layer.values, call.value)
            keys, values = (torch.cat([_of_heads(part, query) for part in pair], 2) for pair in parts)  # (B, H, N, d)
            mask = layer.mask.masked_fill(~seen.to(layer.mask.device), -torch.inf)  # (B, 1, S, N)
            return run(Attention(query, keys, values, mask, scale=call.scale))

        embeds = self._given["inputs_embeds"]
        positions = self._given.get("position_ids")
        if positions is None:
            positions = torch.arange(embeds.shape[1], device=embeds.device)[None]
        batch = {
            "inputs_embeds": embeds[:, self._start :].expand(many, -1, -1),
            "position_ids": positions[..., self._start :].expand(*positions.shape[:-2], many, -1),
        }
        with DecoderObserver(self._model, attend):
            hidden = self._model.get_decoder()(**batch, use_cache=False).last_hidden_state  # (B, S, D)
        return self._chosen(self._model.get_output_embeddings()(hidden), self._length - 1 - self._start)

    @torch.no_grad()
    def other_picture(self, photo: Any = None) -> Tensor:
        """Return each token's log-probability with another photograph, or with a gray one: (T)."""
        inputs = self._extended(self._prepare(photo))
        logits = self._model(**inputs, use_cache=False).logits
        return self._chosen(logits, inputs["input_ids"].shape[1] - self._ids.shape[1])[0]

    def _chosen(self, logits: Tensor, first: int) -> Tensor:
        """Return the log-probabilities of the answer's tokens: (B, n, V) -> (B, T), float32.

        Args:
            logits: of the next token after each token.
            first: index of the logits that predict the first token of the answer.
        """
        rows = logits[:, first : first + self._ids.shape[1]].float().log_softmax(-1)
        return rows.gather(2, self._ids.to(rows.device).expand(len(rows), -1)[..., None])[..., 0]

    def _extended(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the model's arguments for a prompt followed by the answer, without its last token."""
        added = self._ids[:, :-1].to(inputs["input_ids"].device)
        kinds = ADDED | {"token_type_ids": int(self._model.config.model_type == "paligemma")}
        more = {name: torch.full_like(added, value) for name, value in kinds.items() if name in inputs}
        return inputs | {
            name: torch.cat([inputs[name], tail], 1) for name, tail in {**more, "input_ids": added}.items()
        }

    @torch.no_grad()
    def _read_head(self) -> None:
        """Run the whole sequence the first time, and keep the head's keys and values, and the decoder's arguments."""
        if self._layers:
            return
        start, layers, given = self._start, {}, {}

        def attend(name: str, call: Attention) -> Tensor:
            query, key, mask = call.query, call.key, call.attn_mask
            count = key.shape[2]
            rows = torch.zeros(1, 1, count - start, count, dtype=query.dtype, device=query.device)
            if call.is_causal:
                later = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
                rows.masked_fill_(later[start:], -torch.inf)
            elif mask is not None and mask.dtype == torch.bool:
                rows = rows.masked_fill(~mask[..., start:, :], -torch.inf)
            elif mask is not None:
                rows = rows + mask[..., start:, :]
            layers[name] = Layer(key[:, :, :start], call.value[:, :, :start], rows)
            return call.run()

        def keep(_module: nn.Module, _args: Any, named: dict[str, Any]) -> None:
            given.update(named)

        hook = self._model.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
        try:
            with DecoderObserver(self._model, attend):
                self._model(**self._extended(self._inputs), use_cache=False)
        finally:
            hook.remove()
        if not layers:
            raise CaptureError(
                "Expected attention by scaled_dot_product_attention in the decoder, got none. Load the model with "
                "attn_implementation='sdpa'."
            )
        self._given, self._layers = given, layers
