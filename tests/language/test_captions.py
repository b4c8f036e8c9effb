"""Test the captioner: a tiny random one, and the bundled one on the bundled photographs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from PIL import Image

import vitviz
from vitviz.language import captioner
from vitviz.language.captioner import Captioner, CaptionError, Tokenizer, load_captioner
from vitviz.language.decoder import Decoder, DecoderConfig, Recorder

WORDS = (",", "a", "acoustic", "cat", "guitar", "left", "of")


def tiny_captioner() -> Captioner:
    """Return a captioner of 4 x 4 patches, 2 x 2 of which are one image token."""
    torch.manual_seed(0)
    backbone = tiny.known(grid=(4, 4), patch=2)
    assert backbone.pretrained is not None
    width = 4 * backbone.config.width
    projection = {"mean": torch.randn(width), "weight": torch.randn(5, width) / width**0.5}
    config = DecoderConfig(
        vocabulary=len(WORDS) + 3, image_tokens=4, features=5, words=11, width=12, depth=2, heads=3, dropout=0.2
    )
    decoder = Decoder(config).eval().requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.add_(torch.randn_like(parameter) / 3)
    tokenizer = Tokenizer(WORDS, ("acoustic guitar", "cat"))
    return Captioner(backbone, backbone.pretrained.preprocess, 2, projection, decoder, tokenizer)


PHOTO = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)


def test_words_are_the_most_probable_ones_with_their_attention() -> None:
    made = tiny_captioner()
    words = made.words(PHOTO, "a cat")
    numbers = [Tokenizer.START, *made.tokenizer.encode(["a", "cat", *words.words])]
    tokens, grid = made.backbone.embed(torch.from_numpy(made.preprocess(words.photo).pixels)[None])
    patches = made.backbone.encode(tokens, made.backbone.angles(grid))[:, 1:]  # (1, 16, D)
    squares = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    features = torch.stack([patches[0, square].flatten() for square in squares]) - made.projection["mean"]
    features = features @ made.projection["weight"].T
    logits = made.decoder(features[None], torch.tensor([numbers]))[0]
    best = logits.argmax(-1).tolist()[2:]
    assert made.tokenizer.decode(best)[: len(words.words)] == list(words.words)
    assert words.attention.shape == (len(words.words), 2, 3, 4)
    # The first block's attention, from its own weights.
    block = made.decoder.blocks[0]
    image = made.decoder.image_norm(made.decoder.image(features)) + made.decoder.image_positions
    text = made.decoder.embed(torch.tensor(numbers)) + made.decoder.positions[: len(numbers)]
    keys, queries = block.qkv(block.norm1(torch.cat([image, text])))[:, 12:24], block.qkv(block.norm1(text))[:, :12]
    scores = queries.unflatten(1, (3, 4)).transpose(0, 1) @ keys.unflatten(1, (3, 4)).permute(1, 2, 0) / 2
    later = torch.cat([torch.zeros(len(numbers), 4), torch.ones(len(numbers), len(numbers)).triu(1)], 1).bool()
    expected = F.softmax(scores.masked_fill(later, -torch.inf), -1)[:, 2:-1, :4].transpose(0, 1)  # (T, H, n)
    torch.testing.assert_close(words.attention[:, 0], expected, atol=1e-5, rtol=0)


def test_given_words_are_fed_in() -> None:
    made = tiny_captioner()
    written = made.words(PHOTO)
    fed = made.words(PHOTO, answer=" ".join(written.words))
    assert fed.words == written.words
    torch.testing.assert_close(fed.attention, written.attention)
    assert made.words(PHOTO, answer="a cat, left of a cat").words == ("a", "cat", ",", "left", "of", "a", "cat")


def test_effects_and_pictures_equal_a_loop() -> None:
    made = tiny_captioner()
    words = made.words(PHOTO, "a cat", answer="left of a cat")
    features, numbers = (
        made.features(words.photo),
        [Tokenizer.START, *made.tokenizer.encode(["a", "cat", "left", "of", "a", "cat"])],
    )

    def read(features: torch.Tensor, hidden: list[int]) -> torch.Tensor:
        visible = torch.tensor([[token not in hidden for token in range(4)]])
        logits = made.decoder(features, torch.tensor([numbers[:-1]]), visible)[0].log_softmax(-1)
        return torch.tensor([logits[place - 1, numbers[place]] for place in range(3, 7)])

    whole, effects = read(features, []), words.effects()
    for token in range(4):
        torch.testing.assert_close(effects[:, token], whole - read(features, [token]), atol=1e-5, rtol=0)
    other = Image.fromarray(PHOTO[::-1])
    expected = [whole, read(features, [0, 1, 2, 3]), read(made.features(other), [])]
    torch.testing.assert_close(words.without_picture(other), torch.stack(expected, 1), atol=1e-5, rtol=0)
    average = read(torch.zeros_like(features), [])
    torch.testing.assert_close(words.probabilities.log(), torch.stack([whole, average], 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(words.needs, (1 - (average - whole).exp()).clamp_min(0), atol=1e-5, rtol=0)


def test_maps_by_gradients_equal_differences_and_the_formula() -> None:
    made = tiny_captioner()
    words, seen = made.words(PHOTO, "a cat", answer="left of a cat"), torch.ones(1, 4, dtype=torch.bool)
    moved = []
    for sign in (1, -1):
        features = words.answer.features.clone()
        features[:, 3] *= 1 + sign * 1e-3
        moved.append(replace(words.answer, features=features).log_probabilities(seen)[0])
    expected = (moved[0] - moved[1]) / 2e-3
    torch.testing.assert_close(words.maps["gradient_input"][:, 3], expected, atol=2e-4, rtol=1e-2)
    # GAE on matrices of all tokens, with zeros in the rows of the image tokens.
    recorder, features = Recorder(), words.answer.features.clone().requires_grad_()
    logits = made.decoder(features, words.answer.ids[:, :-1], attend=recorder)[0].log_softmax(-1)
    for word, query in enumerate(range(2, 6)):  # the queries after "a" and "cat" predict the answer
        grads = torch.autograd.grad(
            logits[query, words.answer.ids[0, query + 1]], recorder.attention, retain_graph=True
        )
        relevance = torch.eye(4 + 6)
        for probabilities, grad in zip(recorder.attention, grads, strict=True):
            weights = F.pad((probabilities * grad).clamp_min(0).mean(1)[0], (0, 0, 4, 0))
            relevance = relevance + weights @ relevance
        torch.testing.assert_close(words.maps["gae"][word], relevance[4 + query, :4], atol=1e-6, rtol=1e-4)


def test_the_view_of_a_caption_is_that_of_the_backbone() -> None:
    words = tiny_captioner().words(PHOTO, answer="a")
    view = vitviz.View.of_words(words)
    assert (view.trace.grid, view.geometry.frame) == ((4, 4), (0, 0, 50, 30))
    explorer = vitviz.Explorer(words.answer.captioner.backbone)
    explorer.preprocess = words.answer.captioner.preprocess
    torch.testing.assert_close(view.trace.attentions[0], explorer.open(PHOTO).trace.attentions[0])


def test_boxes_divide_the_whole_photograph() -> None:
    boxes = tiny_captioner().words(PHOTO, answer="a").boxes
    assert boxes.tolist() == [[0, 0, 25, 15], [25, 0, 50, 15], [0, 15, 25, 30], [25, 15, 50, 30]]


def test_bad_words_are_refused_in_one_sentence_that_says_what_to_do() -> None:
    made = tiny_captioner()
    with pytest.raises(CaptionError, match=r"knows, got 'zebra'. Use its 7 words"):
        made.words(PHOTO, answer="a zebra")
    with pytest.raises(CaptionError, match=r"at least 1 word, .* an answer of 0. Change the number of words"):
        made.words(PHOTO, answer=" ")
    with pytest.raises(CaptionError, match=r"at most 10 words .* a prompt of 4 and an answer of 7"):
        made.words(PHOTO, "a cat left of", "a cat left of a cat ,")
    with pytest.raises(CaptionError, match=r"Expected a model with a captioner, got tiny. Load 'dinov2-s14-everyday'"):
        load_captioner(made.backbone)


def test_a_folder_holds_the_captioner_in_half_precision(tmp_path: Path) -> None:
    before = tiny_captioner()
    captioner.save(before, tmp_path, licence="of tests", source="random")
    after = captioner.load_folder(tmp_path, before.backbone)
    assert (after.preprocess, after.merged, after.tokenizer.words) == (before.preprocess, 2, WORDS)
    assert after.decoder.config == before.decoder.config
    fed = [each.words(PHOTO, answer="a cat").attention for each in (before, after)]
    torch.testing.assert_close(*fed, atol=0.02, rtol=0)


def test_bundled_captioner_names_what_the_examples_show() -> None:
    made = vitviz.load_captioner()
    for name, noun in {"church": "church", "panda": "panda"}.items():
        words = made.words(vitviz.example(name))
        assert words.words[-1] == noun
        assert words.attention.shape == (len(words.words), 4, 8, 64)
