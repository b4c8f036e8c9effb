"""Caption photographs with a small text decoder that attends to the patch tokens of a bundled Vision Transformer.

Shapes: B images, n image tokens, F width of a merged token, K width of a projected token, L blocks, H heads, T words.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.fields import check_arguments
from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.language.decoder import Attend, Decoder, DecoderConfig, Recorder, fused, generate
from vitviz.language.frames import Frame, Rectangle
from vitviz.language.relevance import Spans, gae, gradient_input, sum_spans
from vitviz.language.words import Tower, Words
from vitviz.model.vit import ViT
from vitviz.weights.checks import CONFIG, WEIGHTS, read_json, read_weights
from vitviz.weights.zoo import DEFAULT, bundled, folder_of, load
from vitviz.writing import write

FORMAT = 1
FOLDER = "captioner"
"""Name of the captioner's folder, inside the folder of its backbone."""


class CaptionError(VitvizError):
    """Raised for a model without a captioner, and for text with words outside its vocabulary or of a wrong length."""


class Tokenizer:
    """Convert between the words of a caption and token ids. Words are separated by spaces; a comma is a word."""

    PAD, START, END = range(3)

    def __init__(self, words: Sequence[str], nouns: Sequence[str]) -> None:
        self.words, self.nouns = tuple(words), tuple(nouns)
        self._all = ("<pad>", "<start>", "<end>", *words)
        self._ids = {word: index for index, word in enumerate(self._all)}
        self._nouns = {tuple(noun.split()) for noun in nouns}
        self._longest = max(map(len, self._nouns))

    def __len__(self) -> int:
        return len(self._all)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the token ids of words.

        Raises:
            CaptionError: for a word outside the vocabulary.
        """
        words = list(words)
        if unknown := [word for word in words if word not in self._ids]:
            raise CaptionError(
                f"Expected words that the captioner knows, got {unknown[0]!r}. Use its {len(self.words)} words."
            )
        return [self._ids[word] for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of token ids, up to the first `END`."""
        words = []
        for index in ids:
            if index == self.END:
                break
            words.append(self._all[index])
        return words

    def split(self, text: str) -> list[str]:
        """Split a text into words."""
        return text.replace(",", " , ").split()

    def join(self, words: Iterable[str]) -> str:
        """Join words into a text."""
        return " ".join(words).replace(" ,", ",")

    def find_nouns(self, words: Sequence[str]) -> list[tuple[str, int, int]]:
        """Return each noun in a caption with the index of its first word and the index after its last one."""
        found, start = [], 0
        while start < len(words):
            lengths = range(min(self._longest, len(words) - start), 0, -1)
            length = next((n for n in lengths if tuple(words[start : start + n]) in self._nouns), 0)
            if length:
                found.append((" ".join(words[start : start + length]), start, start + length))
            start += max(length, 1)
        return found


@dataclass(frozen=True, eq=False)
class CaptionAnswer:
    """A caption that can be fed into its decoder again; implements `vitviz.language.words.Answer`.

    Args:
        captioner: the captioner that wrote it.
        features: image tokens, (1, n, K).
        ids: token ids of `START`, the prompt and the answer, (1, `begin` + T).
        begin: number of token ids before the answer.
        photo: the photograph.
    """

    captioner: "Captioner"
    features: Tensor
    ids: Tensor
    begin: int
    photo: Any

    def tower(self, frame: int) -> Tower:  # noqa: ARG002 - there is one
        """Return the backbone and its image of the photograph."""
        made, weight = self.captioner, next(self.captioner.backbone.parameters())
        pixels = torch.from_numpy(made.preprocess(self.photo).pixels)[None].to(weight.device, weight.dtype)
        return Tower(made.backbone, made.preprocess, pixels)

    @torch.inference_mode()
    def log_probabilities(self, visible: Tensor) -> Tensor:
        """Return each token's log-probability when only some image tokens are visible: (B, n) bool -> (B, T)."""
        return self._read(self.features, visible)

    @torch.inference_mode()
    def other_picture(self, photo: Any = None) -> Tensor:
        """Return the log-probability of each token given another photograph, by default the mean image tokens: (T)."""
        features = torch.zeros_like(self.features) if photo is None else self.captioner.features(photo)
        return self._read(features, torch.ones(1, features.shape[1], dtype=torch.bool))[0]

    def gae(self, spans: Spans) -> Tensor:
        """Return the relevance of image tokens for words by generic attention explainability: (W, n)."""
        recorder = Recorder()
        features, scores = self._scores(spans, recorder)
        queries = [[self.begin - 1 + token for token in span] for span in spans]
        return gae(scores, recorder.attention, torch.arange(features.shape[1]), queries)

    def gradient_input(self, spans: Spans) -> Tensor:
        """Return the gradient of words' log-probabilities times the image tokens: (W, n)."""
        features, scores = self._scores(spans, fused)
        return gradient_input(scores, features)

    def _scores(self, spans: Spans, attend: Attend) -> tuple[Tensor, Tensor]:
        """Return the image tokens (1, n, K), and the log-probabilities of words (W) as a function of them."""
        features = self.features.clone().requires_grad_()
        tokens = self._read(features, torch.ones(1, features.shape[1], dtype=torch.bool), attend)
        return features, sum_spans(tokens, spans)[0]

    def _read(self, features: Tensor, visible: Tensor, attend: Attend = fused) -> Tensor:
        """Return each answer token's log-probability, given these image tokens: (1, n, K), (B, n) -> (B, T)."""
        batch = len(visible)
        ids = self.ids.expand(batch, -1)
        logits = self.captioner.decoder(features.expand(batch, -1, -1), ids[:, :-1], visible, attend)
        scores: Tensor = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        return scores[:, self.begin - 1 :]


@dataclass(frozen=True, eq=False)
class Captioner:
    """An image captioner: a frozen vision encoder, a projection of its patch tokens, and a text decoder.

    Args:
        backbone: the vision encoder, a Vision Transformer.
        preprocess: resizes the whole photograph to the encoder's input size, without keeping its aspect ratio.
        merged: m; the final tokens of each m x m patches are concatenated into one image token.
        projection: linear map of the merged tokens to the decoder's image tokens: "mean" (F) and "weight" (K, F).
        decoder: predicts the words.
        tokenizer: the decoder's vocabulary.
    """

    backbone: ViT
    preprocess: Preprocess
    merged: int
    projection: dict[str, Tensor]
    decoder: Decoder
    tokenizer: Tokenizer

    def words(self, photo: Any, prompt: str = "", answer: str | None = None) -> Words:
        """Caption a photograph, and return where each word attends in it.

        Args:
            photo: a path, an open file or its bytes, a PIL image, an array or a tensor, as for `Explorer.open`.
            prompt: the beginning of a caption, such as "in the top left".
            answer: words that are fed in after the prompt; by default, the decoder writes them, by greedy decoding.

        Raises:
            CaptionError: for words outside the vocabulary, an empty answer, or too many words.
            ImageError: if the photograph cannot be decoded.
        """
        photo = decode(photo)
        begin = self.tokenizer.encode(self.tokenizer.split(prompt))
        answer_ids = None if answer is None else self.tokenizer.encode(self.tokenizer.split(answer))
        most = self.decoder.config.words - 1
        if answer_ids == [] or len(begin) + max(1, len(answer_ids or ())) > most:
            raise CaptionError(
                f"Expected an answer of at least 1 word, and at most {most} words in prompt and answer together, got a "
                f"prompt of {len(begin)} and an answer of {len(answer_ids or ())}. Change the number of words."
            )
        with torch.no_grad():  # tensors of inference mode could not be differentiated later
            features = self.features(photo)
            start = [self.tokenizer.START, *begin]
            written = answer_ids or generate(self.decoder, features, start, self.tokenizer.END)[0][len(begin) :]
            answer_words = self.tokenizer.decode(written)
            recorder = Recorder()
            ids = torch.tensor([[*start, *written[: len(answer_words)]]])
            fed = CaptionAnswer(self, features, ids, len(start), photo)
            self.decoder(features, ids[:, :-1], attend=recorder)
        layers = torch.cat(recorder.attention)[:, :, len(begin) :, : features.shape[1]]  # (L, H, T, n)
        spans = tuple((index,) for index in range(len(answer_words)))
        frames = (self.frame(photo.size),)
        return Words(photo, prompt, tuple(answer_words), layers.permute(2, 0, 1, 3), frames, spans, fed)

    @property
    def sizes(self) -> dict[str, int]:
        """Return sizes by name: "merged" (m), "features" (K), and "vocabulary" (the number of words that it knows)."""
        sizes = self.decoder.config
        return {"merged": self.merged, "features": sizes.features, "vocabulary": len(self.tokenizer.words)}

    def features(self, photo: Any) -> Tensor:
        """Return the image tokens of a decoded photograph: (1, n, K), float32, on the CPU."""
        weight = next(self.backbone.parameters())
        images = torch.from_numpy(self.preprocess(photo).pixels)[None].to(weight.device, weight.dtype)
        return project(merged_tokens(self.backbone, images, self.merged).cpu(), self.projection)

    def frame(self, size: tuple[int, int]) -> Frame:
        """Return the frame that maps a photograph of (width, height) pixels, resized to the input, to image tokens."""
        side = round(self.decoder.config.image_tokens**0.5)
        resized = self.preprocess.height, self.preprocess.width
        return Frame(Rectangle(0, 0, size[1], size[0]), (resized,), Rectangle(0, 0, *resized), (side, side))


@torch.inference_mode()
def merged_tokens(model: ViT, images: Tensor, merged: int) -> Tensor:
    """Return the final patch tokens, those of each m x m patches concatenated: (B, 3, H, W) -> (B, n, F), float32."""
    tokens, grid = model.embed(images)
    patches = model.encode(tokens, model.angles(grid))[:, len(model.config.prefix) :]
    return merge(patches.float(), grid, merged)


def merge(tokens: Tensor, grid: tuple[int, int], m: int) -> Tensor:
    """Concatenate the tokens of squares of m x m patches: (B, gh * gw, D) -> (B, gh * gw / m², m² D), row by row."""
    gh, gw = grid
    squares: Tensor = tokens.unflatten(1, (gh // m, m, gw // m, m))  # (B, gh / m, m, gw / m, m, D)
    return squares.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)  # (B, gh / m * gw / m, m * m * D)


def project(tokens: Tensor, projection: dict[str, Tensor]) -> Tensor:
    """Project merged tokens of the backbone: (B, n, F) -> (B, n, K)."""
    return (tokens - projection["mean"]) @ projection["weight"].T


def save(captioner: Captioner, folder: Path, *, licence: str, source: str) -> None:
    """Write a captioner, without its backbone, in half precision: config.json and model.safetensors."""
    assert captioner.backbone.pretrained is not None
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"decoder.{name}": tensor for name, tensor in captioner.decoder.state_dict().items()}
    state |= {f"projection.{name}": tensor for name, tensor in captioner.projection.items()}
    halves = {name: tensor.half().contiguous() for name, tensor in state.items()}
    write(folder / WEIGHTS, lambda path: save_file(halves, path))
    config = {
        "format": FORMAT,
        "backbone": captioner.backbone.pretrained.name,
        "licence": licence,
        "source": source,
        "preprocess": captioner.preprocess.to_dict(),
        "merged": captioner.merged,
        "decoder": asdict(captioner.decoder.config),
        "words": captioner.tokenizer.words,
        "nouns": captioner.tokenizer.nouns,
    }
    write(folder / CONFIG, json.dumps(config, indent=1, ensure_ascii=False) + "\n")


def load_folder(folder: Path, backbone: ViT) -> Captioner:
    """Load a captioner that `save` wrote; its weights become float32."""
    config = read_json(folder / CONFIG)
    state = {name: tensor.float() for name, tensor in read_weights(folder / WEIGHTS).items()}
    decoder = Decoder(DecoderConfig(**config["decoder"])).eval().requires_grad_(False)
    decoder.load_state_dict(_without_prefix(state, "decoder."))
    preprocess, tokenizer = Preprocess.from_dict(config["preprocess"]), Tokenizer(config["words"], config["nouns"])
    projection = _without_prefix(state, "projection.")
    return Captioner(backbone, preprocess, config["merged"], projection, decoder, tokenizer)


def _without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names start with a prefix, and remove the prefix from the names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def captioner_folder(model: ViT) -> Path | None:
    """Return the folder of the bundled captioner whose backbone has the model's name; `None` if there is none."""
    about = model.pretrained
    folders = (folder_of(name) / FOLDER for name in bundled())
    return next((f for f in folders if about and (f / CONFIG).is_file() and about.name == _backbone(f)), None)


def _backbone(folder: Path) -> str:
    """Return the name of the backbone of the captioner in a folder."""
    return str(read_json(folder / CONFIG)["backbone"])


@check_arguments(CaptionError)
def load_captioner(model: ViT | str = DEFAULT) -> Captioner:
    """Load the captioner that was trained on the patch tokens of a model. Only the default model has one.

    >>> captioner = load_captioner()
    >>> import vitviz
    >>> captioner.words(vitviz.example("church")).words
    ('a', 'church')

    Args:
        model: a loaded model, or a name for `vitviz.load`.

    Raises:
        CaptionError: if the model has no captioner.
    """
    model = load(model) if isinstance(model, str) else model
    folder = captioner_folder(model)
    if folder is None:
        name = model.pretrained.name if model.pretrained else "a model without a name"
        raise CaptionError(f"Expected a model with a captioner, got {name}. Load {DEFAULT!r}.")
    return load_folder(folder, model)
