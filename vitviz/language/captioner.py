"""Write captions with a small decoder on the patches of a bundled Vision Transformer, and see where each word attends.

Shapes: B images, n image tokens, F features of a merged token, K of a projected one, L blocks, H heads, T words.
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
from vitviz.language.decoder import Decoder, DecoderConfig, Recorder, generate
from vitviz.language.frames import Frame, Rectangle
from vitviz.language.words import Words
from vitviz.model.vit import ViT
from vitviz.weights.checks import CONFIG, WEIGHTS, read_json, read_weights
from vitviz.weights.zoo import DEFAULT, bundled, folder_of, load
from vitviz.writing import write

FORMAT = 1
FOLDER = "captioner"
"""Folder of a captioner, inside the folder of its backbone."""


class CaptionError(VitvizError):
    """Raised for a model without a captioner, or a text that the captioner cannot read."""


class Tokenizer:
    """Words <-> numbers. Words are separated by spaces; a comma is a word."""

    PAD, START, END = range(3)

    def __init__(self, words: Sequence[str], nouns: Sequence[str]) -> None:
        self.words, self.nouns = tuple(words), tuple(nouns)
        self._all = ("<pad>", "<start>", "<end>", *words)
        self._numbers = {word: number for number, word in enumerate(self._all)}
        self._split = {tuple(noun.split()) for noun in nouns}
        self._longest = max(map(len, self._split))

    def __len__(self) -> int:
        return len(self._all)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the numbers of words.

        Raises:
            CaptionError: for a word that captions do not use.
        """
        words = list(words)
        if unknown := [word for word in words if word not in self._numbers]:
            raise CaptionError(
                f"Expected words that the captioner knows, got {unknown[0]!r}. Use its {len(self.words)} words."
            )
        return [self._numbers[word] for word in words]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the words up to the end."""
        words = []
        for number in numbers:
            if number == self.END:
                break
            words.append(self._all[number])
        return words

    def split(self, text: str) -> list[str]:
        """Return the words of a text."""
        return text.replace(",", " , ").split()

    def join(self, words: Iterable[str]) -> str:
        """Return the text of words."""
        return " ".join(words).replace(" ,", ",")

    def find_nouns(self, words: Sequence[str]) -> list[tuple[str, int, int]]:
        """Return each noun in a caption with the index of its first word and the index after its last one."""
        found, start = [], 0
        while start < len(words):
            lengths = range(min(self._longest, len(words) - start), 0, -1)
            length = next((n for n in lengths if tuple(words[start : start + n]) in self._split), 0)
            if length:
                found.append((" ".join(words[start : start + length]), start, start + length))
            start += max(length, 1)
        return found


@dataclass(frozen=True, eq=False)
class CaptionAnswer:
    """A caption that can be fed in again: `vitviz.language.words.Answer`.

    Args:
        captioner: wrote it.
        features: image tokens, (1, n, K).
        numbers: of the words from the start, (1, `begin` + T).
        begin: number of words before the answer.
    """

    captioner: "Captioner"
    features: Tensor
    numbers: Tensor
    begin: int

    def log_probabilities(self, visible: Tensor) -> Tensor:
        """Return each token's log-probability while other image tokens are hidden: (B, n) bool -> (B, T)."""
        return self._read(self.features, visible)

    def other_picture(self, photo: Any = None) -> Tensor:
        """Return each token's log-probability with another photograph, or with the training's mean tokens: (T)."""
        features = torch.zeros_like(self.features) if photo is None else self.captioner.features(photo)
        return self._read(features, torch.ones(1, features.shape[1], dtype=torch.bool))[0]

    @torch.inference_mode()
    def _read(self, features: Tensor, visible: Tensor) -> Tensor:
        """Return the log-probabilities with other image tokens: (1, n, K), (B, n) -> (B, T)."""
        many = len(visible)
        numbers = self.numbers.expand(many, -1)
        logits = self.captioner.decoder(features.expand(many, -1, -1), numbers[:, :-1], visible)
        shares: Tensor = logits.log_softmax(-1).gather(2, numbers[:, 1:, None])[..., 0]
        return shares[:, self.begin - 1 :]


@dataclass(frozen=True, eq=False)
class Captioner:
    """A decoder with all that it needs to caption a photograph.

    Args:
        backbone: frozen; its final patch tokens, merged and projected, are the decoder's image tokens.
        preprocess: squashes the whole photograph to the backbone's input.
        merged: side of the square of patches that become one image token.
        projection: "mean" (F) and "weight" (K, F).
        decoder: writes the words.
        tokenizer: its words.
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
            answer: words that are fed in after the prompt; by default, the most probable ones.

        Raises:
            CaptionError: for words that the captioner does not know, no words, or more words than it can read.
            ImageError: if the photograph cannot be decoded.
        """
        photo = decode(photo)
        begin = self.tokenizer.encode(self.tokenizer.split(prompt))
        given = None if answer is None else self.tokenizer.encode(self.tokenizer.split(answer))
        room = self.decoder.config.words - 1 - len(begin)
        if given == [] or max(1, len(given or ())) > room:
            raise CaptionError(
                f"Expected a prompt and an answer of 1 to {self.decoder.config.words - 1} words together, got "
                f"{len(begin)} and {len(given or ())}. Write words, but fewer."
            )
        with torch.inference_mode():
            features = self.features(photo)
            start = [self.tokenizer.START, *begin]
            written = given or generate(self.decoder, features, start, self.tokenizer.END)[0][len(begin) :]
            answer_words = self.tokenizer.decode(written)
            recorder = Recorder()
            numbers = torch.tensor([[*start, *written[: len(answer_words)]]])
            fed = CaptionAnswer(self, features, numbers, len(start))
            self.decoder(features, numbers[:, :-1], attend=recorder)
        layers = torch.cat(recorder.attention)[:, :, len(begin) :, : features.shape[1]]  # (L, H, T, n)
        spans = tuple((index,) for index in range(len(answer_words)))
        frames = (self.frame(photo.size),)
        return Words(photo, prompt, tuple(answer_words), layers.permute(2, 0, 1, 3), frames, spans, fed)

    def features(self, photo: Any) -> Tensor:
        """Return the image tokens of a decoded photograph: (1, n, K), float32, on the CPU."""
        weight = next(self.backbone.parameters())
        images = torch.from_numpy(self.preprocess(photo).pixels)[None].to(weight.device, weight.dtype)
        return project(merged_tokens(self.backbone, images, self.merged).cpu(), self.projection)

    def frame(self, size: tuple[int, int]) -> Frame:
        """Return the frame of a photograph of (width, height) pixels, which is squashed to the input."""
        side = round(self.decoder.config.image_tokens**0.5)
        seen = self.preprocess.height, self.preprocess.width
        return Frame(Rectangle(0, 0, size[1], size[0]), (seen,), Rectangle(0, 0, *seen), (side, side))


@torch.inference_mode()
def merged_tokens(model: ViT, images: Tensor, merged: int) -> Tensor:
    """Return the final patch tokens, squares of which are concatenated: (B, 3, H, W) -> (B, n, F), float32."""
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
    """Write a captioner in half precision: config.json and model.safetensors."""
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
    """Read what `save` wrote; the weights become float32."""
    config = read_json(folder / CONFIG)
    state = {name: tensor.float() for name, tensor in read_weights(folder / WEIGHTS).items()}
    decoder = Decoder(DecoderConfig(**config["decoder"])).eval().requires_grad_(False)
    decoder.load_state_dict(_part(state, "decoder."))
    return Captioner(
        backbone, Preprocess.from_dict(config["preprocess"]), config["merged"], _part(state, "projection."), decoder,
        Tokenizer(config["words"], config["nouns"]),
    )  # fmt: skip


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors below a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def captioner_folder(model: ViT) -> Path | None:
    """Return the folder of the bundled captioner on a model, which is found by the model's name, or None."""
    about = model.pretrained
    folders = (folder_of(name) / FOLDER for name in bundled())
    return next((f for f in folders if about and (f / CONFIG).is_file() and about.name == _backbone(f)), None)


def _backbone(folder: Path) -> str:
    """Return the name of a captioner's backbone."""
    return str(read_json(folder / CONFIG)["backbone"])


@check_arguments(CaptionError)
def load_captioner(model: ViT | str = DEFAULT) -> Captioner:
    """Load the captioner that belongs to a model: the default model has one.

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
