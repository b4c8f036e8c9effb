"""Ask a vision-language model about a photograph, and see where each word of the answer attends.

Shapes: W words, L layers of the decoder, H heads, M image tokens, T tokens of the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from vitviz.errors import VitvizError
from vitviz.formatting import counted
from vitviz.heatmap import Heatmap
from vitviz.images.decoding import decode
from vitviz.images.geometry import Box, Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.language.answers import answered
from vitviz.language.feeding import FedAnswer
from vitviz.language.frames import FAMILIES, Frame, Prepared
from vitviz.language.relevance import Spans, sum_spans
from vitviz.model.correlation import spearman
from vitviz.phrases import Phrase
from vitviz.progress import bar

NEEDS, DOES_NOT = 0.8, 0.3
"""Thresholds of `Words.describe`: a word needs the picture if it loses at least the first share of its probability with
an average picture, and does not need it if it loses at most the second."""
BATCH = 16  # batch size of `Words.effects`: each copy of the answer has another image token masked

# A word with its apostrophes and hyphens, a character of a script without spaces, or punctuation.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+(?:['’-]\w+)*|[^\w\s]+")


class WordsError(VitvizError):
    """Raised for a model, a processor, a prompt or an answer whose words cannot be read."""


class Tower(NamedTuple):
    """The vision tower, and one of its images: (1, 3, H, W), with the preprocessing that shows its pixels."""

    module: nn.Module
    preprocess: Preprocess
    pixels: Tensor


class Answer(Protocol):
    """An answer that can be fed into its model again, with other visible image tokens or another photograph."""

    def log_probabilities(self, visible: Tensor) -> Tensor:
        """Return each token's log-probability when only some image tokens are visible: (B, M) bool -> (B, T)."""

    def other_picture(self, photo: Any = None) -> Tensor:
        """Return each token's log-probability with another photograph, by default an average picture: (T)."""

    def gae(self, spans: Spans) -> Tensor:
        """Return the relevance of image tokens for words by generic attention explainability: (W, M)."""

    def gradient_input(self, spans: Spans) -> Tensor:
        """Return the gradient of words' log-probabilities times the image tokens: (W, M)."""

    def tower(self, frame: int) -> Tower:
        """Return the vision tower, and the image that it gets of a part of the photograph."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of an answer about a photograph, and their attention over the image tokens.

    The attention of a word is that of the queries that predict its tokens, in the mean over these: what the decoder
    reads while it writes the word. Its sum over the image tokens is below 1; the rest goes to the text.

    Args:
        photo: the upright photograph.
        prompt: the text in front of the answer.
        words: (W) words, with their subwords joined.
        attention: (W, L, H, M), float32.
        frames: parts of the photograph that the model sees, in the order of their image tokens.
        spans: for each word, the indices of its tokens in the answer.
        answer: the answer as tokens, with its model; computes log-probabilities with other image tokens.
    """

    photo: Image.Image = field(repr=False)
    prompt: str
    words: tuple[str, ...]
    attention: Tensor = field(repr=False)
    frames: tuple[Frame, ...] = field(repr=False)
    spans: tuple[tuple[int, ...], ...] = field(repr=False)
    answer: Answer = field(repr=False)

    @cached_property
    def boxes(self) -> Tensor:
        """Return (left, top, right, bottom) of each image token in pixels of the photograph: (M, 4), float64.

        A box reaches beyond the photograph where the processor pads. Boxes of tiles and of the whole overlap.
        """
        return torch.cat([frame.boxes for frame in self.frames])

    def box(self, frame: int) -> Box:
        """Return (left, top, right, bottom) of the image tokens of a part of the photograph, in its pixels."""
        boxes = self.frames[frame].boxes
        (left, top), (right, bottom) = boxes[0, :2].tolist(), boxes[-1, 2:].tolist()
        return left, top, right, bottom

    @property
    def whole(self) -> int:
        """Return the index of the image that shows most of the photograph, the last one if several do."""

        def area(frame: int) -> float:
            left, top, right, bottom = self.box(frame)
            return (min(right, self.photo.width) - max(left, 0)) * (min(bottom, self.photo.height) - max(top, 0))

        return max(range(len(self.frames)), key=lambda at: (not self.frames[at].newlines, round(area(at)), at))

    def of(self, word: str | int) -> Tensor:
        """Return the attention of a word, by its text or its index: (L, H, M).

        Raises:
            WordsError: if the answer lacks the word, or has it several times.
        """
        indices = [index for index, text in enumerate(self.words) if word in (text, index)]
        if len(indices) != 1:
            raise WordsError(
                f"Expected one word of the answer, got {word!r}, which it has {len(indices)} times. Choose an index "
                f"from 0 to {len(self.words) - 1} of {' '.join(self.words)!r}."
            )
        return self.attention[indices[0]]

    def heatmap(self, word: str | int, values: Tensor | None = None, *, frame: int | None = None) -> Heatmap:
        """Return a map of a word over the photograph, which `overlay` draws.

        Args:
            word: its text or its index.
            values: (M), such as a head's `of(word)[layer, head]`, or a row of `effects`; by default, the attention in
                the mean of all heads of all layers.
            frame: index of the part of the photograph; by default `whole`.

        Raises:
            WordsError: if the answer lacks the word, or has it several times, or for other numbers of values.
        """
        attention = self.of(word)
        shown = attention.mean((0, 1)) if values is None else values
        if shown.shape != attention.shape[2:]:
            raise WordsError(
                f"Expected one value for each of {attention.shape[2]} image tokens, got shape {tuple(shown.shape)}. "
                "Choose a layer and a head."
            )
        frame = self.whole if frame is None else frame
        part, counts = self.frames[frame], [part.count for part in self.frames]
        geometry = Geometry(self.photo.size, part.window[2:], self.box(frame))
        text = word if isinstance(word, str) else self.words[word]
        unit, signed = ("attention", False) if values is None else ("", bool((values < 0).any()))
        grid = shown.split(counts)[frame].reshape(part.shape)[:, : part.grid[1]].numpy()
        return Heatmap(grid, geometry, self.photo, title=text, unit=unit, signed=signed)

    def log_probabilities(self, visible: Tensor) -> Tensor:
        """Return each word's log-probability when only some image tokens are visible: (B, M) bool -> (B, W), float32.

        The answer is fed in again, in one forward pass. In every layer, the keys of the hidden image tokens are masked
        for the tokens of the question and the answer. The visible image tokens do not change.

        Raises:
            CaptureError: for attention that cannot be observed.
        """
        return sum_spans(self.answer.log_probabilities(visible), self.spans)

    def effects(self) -> Tensor:
        """Return the causal effect of each image token on each word, by ablation: (W, M), float32.

        The effect is how much the word's log-probability falls when the image token is masked; see
        `log_probabilities`. This takes one forward pass of the answer for each image token, with a progress bar.
        """
        hidden = torch.eye(self.attention.shape[-1], dtype=torch.bool)
        (whole,) = self.log_probabilities(torch.ones_like(hidden[:1]))
        parts = []
        with bar(len(hidden), "Masking image tokens", unit=" tokens", leave=False) as shown:
            for rows in hidden.split(BATCH):
                parts.append(whole - self.log_probabilities(~rows))
                shown.update(len(rows))
        return torch.cat(parts).T

    @cached_property
    def maps(self) -> dict[str, Tensor]:
        """Return other maps of each word over the image tokens, by name: (W, M) each, float32.

        "attention" is the mean over all layers and heads; "gae" generic attention explainability (Chefer et al. 2021)
        for the text's layers; "gradient_input" the gradient of the word's log-probability times the image tokens, as
        the decoder receives them. Each word takes two backward passes.

        Raises:
            CaptureError: for attention that cannot be observed.
        """
        with torch.inference_mode(False), torch.enable_grad():
            return {
                "attention": self.attention.mean((1, 2)),
                "gae": self.answer.gae(self.spans).cpu(),
                "gradient_input": self.answer.gradient_input(self.spans).float().cpu(),
            }

    def agreement(self, effects: Tensor | None = None) -> dict[str, Tensor]:
        """Return Spearman's rank correlation of each of `maps` with the exact effects, by name: (W) each, float64.

        A map or effects with the same value everywhere have no ranks: NaN.

        Args:
            effects: (W, M), from `effects`, which is called by default.
        """
        exact = self.effects() if effects is None else effects
        return {name: spearman(scores, exact) for name, scores in self.maps.items()}

    @cached_property
    def probabilities(self) -> Tensor:
        """Return each word's probability with the photograph, and with an average picture: (W, 2).

        For a captioner, the average picture is the mean of the image tokens in training; for other models, it is gray.
        """
        (whole,) = self.log_probabilities(torch.ones(1, self.attention.shape[-1], dtype=torch.bool))
        (average,) = sum_spans(self.answer.other_picture()[None], self.spans)
        return torch.stack([whole, average], 1).exp()

    def without_picture(self, other: Any = None) -> Tensor:
        """Return each word's log-probability with the photograph, without it, and with another one: (W, 3), float32.

        Without the photograph, all image tokens are hidden.

        Args:
            other: another photograph, as for `Explorer.open`; by default, an average picture.
        """
        seen = torch.ones(2, self.attention.shape[-1], dtype=torch.bool)
        seen[1] = False
        replaced = self.answer.other_picture(None if other is None else decode(other))
        return torch.cat([self.log_probabilities(seen), sum_spans(replaced[None], self.spans)]).T

    @property
    def needs(self) -> Tensor:
        """Return the share of each word's probability that is lost with an average picture, from 0 to 1: (W)."""
        whole, average = self.probabilities.unbind(1)
        return (1 - average / whole).clamp_min(0)

    def describe(self) -> str:
        """Return a sentence that names the word which depends most on the picture, and the one which depends least.

        Empty if the first loses less of its probability than `NEEDS`, or the second more than `DOES_NOT`.
        """
        if not self.words or self.needs.max() < NEEDS or self.needs.min() > DOES_NOT:
            return ""
        most, least = (self.words[int(place)] for place in (self.needs.argmax(), self.needs.argmin()))
        return Phrase("words-need-the-picture", "“{0}” needs this picture; “{1}” does not.", most, least)

    def tokens_at(self, x: float, y: float) -> list[int]:
        """Return the image tokens whose box holds a place in pixels of the photograph, one of each frame."""
        left, top, right, bottom = self.boxes.unbind(1)
        return ((left <= x) & (x < right) & (top <= y) & (y < bottom)).nonzero().flatten().tolist()

    def readers(self, x: float, y: float) -> Tensor:
        """Return how much each word attends to the image tokens at a place of the photograph, in sum: (W, L, H).

        Raises:
            WordsError: if the model does not see this place.
        """
        tokens = self.tokens_at(x, y)
        if not tokens:
            raise WordsError(
                f"Expected a place that the model sees, got ({x:g}, {y:g}) in a photograph of {self.photo.width} x "
                f"{self.photo.height} pixels. Choose a place inside one of `boxes`."
            )
        return self.attention[..., tokens].sum(-1)


def words(
    model: Any,
    processor: Any,
    photo: Any,
    prompt: str,
    answer: str | None = None,
    *,
    max_tokens: int = 64,
    **options: Any,
) -> Words:
    """Let a vision-language model of transformers answer, and return where each word attends in the photograph.

    The model runs as it is, with fused attention. Only the rows of the answer are computed besides, from the keys of
    the model's cache.

    Args:
        model: such as a `SmolVLMForConditionalGeneration`, in eval mode.
        processor: the model's own.
        photo: a path, an open file or its bytes, a PIL image, an array or a tensor, as for `Explorer.open`.
        prompt: text with the processor's placeholder for one image, such as "<image>What is this?".
        answer: text that is fed in after the prompt, as it is; by default, the model writes with greedy search.
        max_tokens: largest number of tokens that the model writes.
        options: further arguments of the processor, such as `do_pan_and_scan=True` of Gemma 3.

    Raises:
        WordsError: for a model whose image tokens are not known, another model's processor, a prompt without an image,
            a text with a word that the tokenizer does not know, or one that is longer than the model's context.
        CaptureError: for attention that cannot be observed.
    """
    import_torchvision()  # processors import torchvision, whose import may fail
    _check_model(model, processor)
    photo = decode(photo)
    _check_text(processor, prompt, answer)

    def prepared(picture: Image.Image) -> dict[str, Any]:
        made = processor(images=picture, text=prompt, return_tensors="pt", **options)
        inputs = dict(made.to(model.device, model.dtype))
        inputs.pop("labels", None)  # of PaliGemma, for training
        return inputs

    inputs = prepared(photo)
    settings = model.config
    frames = FAMILIES[settings.model_type].frames(
        Prepared((photo.height, photo.width), processor.image_processor, inputs, settings)
    )
    tokens = (inputs["input_ids"][0] == _image_token(settings)).nonzero().flatten()
    if len(tokens) != sum(frame.count for frame in frames):
        raise _not_its_processor(model, processor, f"which makes {counted(len(tokens), 'image token')}")
    given = None if answer is None else processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    count = _room(settings, inputs["input_ids"].shape[1], max_tokens if given is None else len(given), given is None)
    ids, attention = answered(model, inputs, tokens, given, count)
    spans = whole_words(processor.tokenizer, ids)
    rows = [attention[span].mean(0) for _, span in spans]
    shape = (0, *attention.shape[1:])

    def prepare(other: Image.Image | None) -> dict[str, Any]:
        """Return the model's inputs for another photograph, resized to the size of this one, or for a gray picture."""
        other = Image.new("RGB", photo.size, (128, 128, 128)) if other is None else other.resize(photo.size)
        return prepared(other)

    def tower(frame: int) -> Tower:
        """Return the vision tower with its image of a part of the photograph."""
        pixels, module = inputs["pixel_values"], getattr(model.model, FAMILIES[settings.model_type].tower)
        if pixels.ndim < 4 or frames[frame].newlines:
            raise WordsError(
                f"Expected a part of the photograph that is one image, got one of {type(module).__name__}, which is a "
                "list of patches or several tiles. Choose another part, or use vitviz.capture."
            )
        image = pixels.flatten(0, -4)[frame][None]  # (..., images, 3, H, W) -> (1, 3, H, W)
        height, width = image.shape[2:]
        mean, std = (tuple(getattr(processor.image_processor, f"image_{name}")) for name in ("mean", "std"))
        return Tower(module, Preprocess(height=height, width=width, mode="squash", mean=mean, std=std), image)

    return Words(
        photo, prompt, tuple(word for word, _ in spans), torch.stack(rows) if rows else torch.zeros(shape),
        tuple(frames), tuple(tuple(span) for _, span in spans), FedAnswer(model, inputs, tokens, ids, prepare, tower),
    )  # fmt: skip


def whole_words(tokenizer: Any, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return the words of a text and the indices of their tokens.

    A token belongs to the word that it begins or continues; special tokens and blanks belong to none.
    """

    def decoded(count: int) -> str:
        """Return the text of the first tokens."""
        text: str = tokenizer.decode(ids[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    ends = [len(decoded(count + 1).rstrip("\ufffd")) for count in range(len(ids))]
    text = decoded(len(ids))
    starts = [match.start() for match in _WORD.finditer(text)]
    found: list[tuple[int, int, list[int]]] = []  # start and end in the text, and tokens
    begin, waiting = 0, []  # bytes of a character that later tokens complete
    for index, end in enumerate(ends):
        waiting.append(index)
        if end <= begin:
            waiting = [] if ids[index] in tokenizer.all_special_ids else waiting
            continue
        if any(begin <= start < end for start in starts):
            found.append((begin, end, waiting))
        elif found and text[begin:end].strip():
            start, _, tokens = found[-1]
            found[-1] = start, end, [*tokens, *waiting]
        begin, waiting = end, []
    return [(text[start:end].strip(), tokens) for start, end, tokens in found]


def _check_model(model: Any, processor: Any) -> None:
    """Raise an error for an unknown model, one in training mode, and a processor that is not its own."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in FAMILIES or not hasattr(model, "generate"):
        raise WordsError(
            f"Expected a vision-language model of transformers that writes text ({', '.join(FAMILIES)}), got {kind}, "
            "whose image tokens are not known. Load one with AutoModelForImageTextToText."
        )
    if model.training:
        raise WordsError("Expected a model in eval mode, got one in training mode. Call model.eval().")
    if type(processor).__name__ not in FAMILIES[kind].processors:
        raise _not_its_processor(model, processor, "which is made for other models")
    rows = model.get_input_embeddings().num_embeddings
    if len(processor.tokenizer) > rows:
        raise _not_its_processor(model, processor, f"whose tokenizer has more than the model's {rows:,} tokens")


def _not_its_processor(model: Any, processor: Any, why: str) -> WordsError:
    names = " or ".join(FAMILIES[model.config.model_type].processors)
    return WordsError(
        f"Expected the {names} of this {type(model).__name__}, got a {type(processor).__name__}, {why}. Load both by "
        "the same name, with AutoProcessor."
    )


def _image_token(settings: Any) -> int:
    """Return the token that stands for a part of the photograph in the decoder's input."""
    token = getattr(settings, "image_token_id", None)
    return int(settings.image_token_index if token is None else token)


def _check_text(processor: Any, prompt: str, answer: str | None) -> None:
    """Raise an error for a prompt without one image, an empty answer, and words that the tokenizer does not know."""
    tokenizer, image = processor.tokenizer, processor.image_token
    if prompt.count(image) != 1:
        raise WordsError(
            f"Expected a prompt with {image!r} once, where the photograph belongs, got {prompt!r}. Write it there, or "
            "use processor.apply_chat_template."
        )
    if answer is not None and not answer.strip():
        raise WordsError("Expected an answer with words, got an empty text. Pass None to let the model write.")
    for text in (prompt, answer or ""):
        unknown = [
            word
            for word in text.split()
            if tokenizer.unk_token_id in tokenizer(word, add_special_tokens=False)["input_ids"]
        ]
        if tokenizer.unk_token_id is not None and unknown:
            raise WordsError(
                f"Expected words that the model's tokenizer knows, got {unknown[0]!r}. Use another word, or check its "
                "spelling."
            )


def _room(settings: Any, prompt: int, count: int, writes: bool) -> int:
    """Return how many tokens of an answer fit behind a prompt, up to `count`."""
    context = getattr(settings.get_text_config(), "max_position_embeddings", prompt + count)
    if prompt + (1 if writes else count) > context:
        raise WordsError(
            f"Expected a prompt and an answer of at most {context:,} tokens, the model's context, got {prompt:,} and "
            f"{count:,}. Shorten the text, or let the image processor make fewer tiles."
        )
    return min(count, context - prompt)
