"""Test the scripts of the captioner on tiny random data: captions and regions, tokenizer, training, maps."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "checkpoints" / "captioner"))

import captions
import evaluate
import features
import layouts
import maps
import train
from captions import vocabulary, write_caption
from layouts import LAYOUTS, QUARTERS, WHOLE, Photo, Picture, Region

from vitviz.images.preprocess import Preprocess
from vitviz.language import captioner
from vitviz.language.captioner import Captioner, CaptionError, Tokenizer
from vitviz.language.decoder import Decoder, DecoderConfig, generate

NOUNS = ("acoustic guitar", "apple", "cat", "scissors", "umbrella")
PHOTOS = [
    Photo(f"part/{noun}/{i}.jpg", (noun, "thing") if noun == "cat" else (noun,)) for noun in NOUNS for i in range(4)
]
SETTINGS = train.Settings(steps=6, batch=4, warmup=2)


def tokenizer() -> Tokenizer:
    return Tokenizer(vocabulary(NOUNS), NOUNS)


def config() -> DecoderConfig:
    return DecoderConfig(
        vocabulary=len(tokenizer()), image_tokens=16, features=5, words=33, width=12, depth=2, heads=3, dropout=0.2
    )


def plan(split: str = "train", count: int = 30) -> list[Picture]:
    rng = random.Random(0)
    return layouts.single_pictures(split, PHOTOS, 3, rng) + layouts.mosaics(split, PHOTOS, count, rng)


def material() -> train.Material:
    chosen = plan()
    return train.Material(chosen, torch.randn(len(chosen), 16, 5, generator=torch.Generator().manual_seed(0)).half())


# ---- pictures and captions


@pytest.mark.parametrize("boxes", [(WHOLE,), *LAYOUTS])
def test_captions_name_the_noun_of_each_region(boxes: tuple[layouts.Box, ...]) -> None:
    words_of = tokenizer()
    for seed in range(60):
        rng = random.Random(seed)
        photos = rng.sample(PHOTOS[::4], len(boxes))
        regions = [Region(photo, box) for photo, box in zip(photos, boxes, strict=True)]
        hidden = rng.sample(range(len(boxes)), rng.randint(0, len(boxes) - 1))
        caption = write_caption(regions, rng, hidden)
        named = [caption.regions[start] for _, start, _ in words_of.find_nouns(caption.words)]
        assert sorted(named) == [i for i in range(len(boxes)) if i not in hidden]
        for noun, start, stop in words_of.find_nouns(caption.words):
            assert {regions[i].noun for i in caption.regions[start:stop]} == {noun}
        assert sum(region is not None for region in caption.regions) == sum(len(regions[i].noun.split()) for i in named)
        assert len(caption.words) + 2 <= DecoderConfig(vocabulary=1).words
        assert words_of.decode(words_of.encode(caption.words)) == list(caption.words)
        assert words_of.split(words_of.join(caption.words)) == list(caption.words)


@pytest.mark.parametrize(("boxes", "templates"), captions.RELATIONS.items())
def test_relations_agree_with_the_boxes(boxes: tuple[layouts.Box, ...], templates: tuple[str, ...]) -> None:
    """Check every "left of", "right of", "above" and "below" between two nouns against the boxes' centres."""
    checks = {
        "left of": lambda a, b: a[0] < b[0], "right of": lambda a, b: a[0] > b[0],
        "above": lambda a, b: a[1] < b[1], "below": lambda a, b: a[1] > b[1],
    }  # fmt: skip
    centres = {f"{{{i}}}": (left + right, top + bottom) for i, (left, top, right, bottom) in enumerate(boxes)}
    for template in templates:
        assert sorted(word for word in template.split() if word in centres) == sorted(centres)
        for part in template.split(" , "):
            for phrase, holds in checks.items():
                before, found, after = part.partition(f" {phrase} {{")
                if found:
                    first = [word for word in before.split() if word in centres]
                    second = [word for word in f"{{{after}".split() if word in centres]
                    assert all(holds(centres[a], centres[b]) for a in first for b in second), template


def test_articles() -> None:
    assert [captions.with_article(noun) for noun in ("apple", "cat", "scissors")] == ["an apple", "a cat", "scissors"]


def test_unknown_word_raises() -> None:
    with pytest.raises(CaptionError, match="'zebra'"):
        tokenizer().encode(["a", "zebra"])


def test_mosaics_repeat_no_noun_and_cover_the_picture() -> None:
    for picture in plan(count=100):
        right = [noun for region in picture.regions for noun in region.photo.nouns]
        assert len(right) == len({*right})
        quarters = [quarter for region in picture.regions for quarter in region.quarters]
        assert sorted(quarters) == list(range(4))


def test_drawing_puts_each_photograph_into_its_box(tmp_path: Path) -> None:
    colors = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]
    for photo, color in zip(PHOTOS[:16:4], colors, strict=True):
        (tmp_path / photo.path).parent.mkdir(parents=True)
        Image.new("RGB", (40, 30), color).save(tmp_path / photo.path, quality=95)
    regions = tuple(Region(photo, box) for photo, box in zip(PHOTOS[:16:4], QUARTERS, strict=True))
    for seed in (None, 1):
        drawn = layouts.draw(Picture("train", regions, seed), tmp_path)
        assert drawn.size == (layouts.SIDE, layouts.SIDE)
        for (left, top, _, _), color in zip(QUARTERS, colors, strict=True):
            for shift in (2, layouts.SIDE // 2 - 3):
                pixel = drawn.getpixel((left * layouts.SIDE // 2 + shift, top * layouts.SIDE // 2 + shift))
                assert max(abs(a - b) for a, b in zip(pixel, color, strict=True)) < 12


@pytest.mark.parametrize("size", [(200, 90), (64, 64), (50, 120)])
@pytest.mark.parametrize("shape", [None, 0.5, 1.0, 2.0])
def test_crops_stay_inside_the_photograph(size: tuple[int, int], shape: float | None) -> None:
    for rng in (None, *map(random.Random, range(20))):
        left, top, right, bottom = layouts.crop_box(size, shape, rng)
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
    if shape is None:
        assert layouts.crop_box(size, None, None) == (0, 0, *size)


def test_answers_have_the_class_first() -> None:
    classes, nouns = layouts.read_answers(features.TABLES)
    assert len({*classes.values()}) == 260
    assert all(nouns[folder][0] == name for folder, name in classes.items())
    assert nouns["beagle"] == ("beagle", "dog")


def test_plan_survives_its_file(tmp_path: Path) -> None:
    features.write_plan(tmp_path / "plan.jsonl", plan())
    assert features.read_plan(tmp_path / "plan.jsonl") == plan()


# ---- features


def test_merge_concatenates_squares_of_patches() -> None:
    tokens = torch.arange(4 * 6).reshape(1, 24, 1)  # a grid of 4 x 6
    merged = captioner.merge(tokens, (4, 6), features.MERGED)
    assert merged.shape == (1, 6, 4)
    assert merged[0, 0].tolist() == [0, 1, 6, 7]
    assert merged[0, 4].tolist() == [14, 15, 20, 21]


def test_projection_keeps_the_principal_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "DIMENSIONS", 3)
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(7, 3, generator=generator)).Q
    tokens = torch.randn(5, 40, 3, generator=generator) @ (basis * torch.tensor([3.0, 2.0, 1.0])).T + 5
    projected = captioner.project(tokens, features.fit_projection(tokens))
    assert torch.isclose(projected.flatten(0, 1).var(0).mean(), torch.tensor(1.0), atol=1e-3)
    distances, kept = (torch.pdist(each.flatten(0, 1)) for each in (tokens, projected))
    assert torch.allclose(distances / distances.mean(), kept / kept.mean(), atol=1e-4)


# ---- decoder


def test_words_see_earlier_words_and_visible_tokens_only() -> None:
    torch.manual_seed(0)
    model = Decoder(config()).eval()
    image, words = torch.randn(2, 16, 5), torch.randint(3, len(tokenizer()), (2, 7))
    visible = torch.rand(2, 16) < 0.5
    logits = model(image, words, visible)
    changed = words.clone()
    changed[:, 4] = (words[:, 4] + 1 - 3) % (len(tokenizer()) - 3) + 3
    assert torch.allclose(model(image, changed, visible)[:, :4], logits[:, :4], atol=1e-6)
    assert not torch.allclose(model(image, changed, visible)[:, 4], logits[:, 4], atol=1e-3)
    hidden = torch.where(visible[..., None], image, torch.randn_like(image))
    assert torch.allclose(model(hidden, words, visible), logits, atol=1e-6)
    assert not torch.allclose(model(image, words), logits, atol=1e-3)
    assert model(image, words, torch.zeros_like(visible)).isfinite().all()


def test_generate_continues_with_the_most_probable_words() -> None:
    torch.manual_seed(0)
    model = Decoder(config()).eval()
    image = torch.randn(3, 16, 5)
    for row, numbers in enumerate(generate(model, image, [Tokenizer.START], Tokenizer.END)):
        words = torch.tensor([[Tokenizer.START, *numbers]])
        best = model(image[row : row + 1], words[:, :-1])[0].argmax(-1).tolist()
        length = numbers.index(Tokenizer.END) + 1 if Tokenizer.END in numbers else len(numbers)
        assert best[:length] == numbers[:length]


# ---- training


def test_batches_agree_with_their_pictures() -> None:
    """Give every region's tokens the number of its noun, and check exchanged and hidden regions."""
    data = material()
    number = {noun: float(i + 1) for i, noun in enumerate(NOUNS)}
    data.features = torch.zeros(len(data), 4, 4, 5).half()
    for row, picture in enumerate(data.pictures):
        for region in picture.regions:
            data.features[row][train.tokens_of(region.box, 4)] = number[region.noun]
    data.features = data.features.flatten(1, 2)
    hidden_some = exchanged = False
    for seed in range(60):
        index = seed % len(data)
        quiet = replace(SETTINGS, noise=0.0)
        grid, visible, regions, hidden = train.sample(data, index, random.Random(seed), quiet)
        for i, region in enumerate(regions):
            place = train.tokens_of(region.box, 4)
            assert (grid[place] == number[region.noun]).all()
            assert i not in hidden or not visible[place].any()
        hidden_some |= bool(hidden)
        exchanged |= regions != list(data.pictures[index].regions)
    assert hidden_some
    assert exchanged


def test_resumed_training_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def advance(run: train.Run, until: int) -> None:
        while run.step < until:
            train.train_step(run, train.make_batch(data, tokenizer(), run.settings, run.step))

    data, path = material(), tmp_path / "state.pt"
    whole, first = (train.new_run(config(), SETTINGS, 1) for _ in range(2))
    advance(whole, 6)
    advance(first, 3)
    first.save(path)
    torch.manual_seed(99)  # another process
    second = train.resume(path)
    assert (second.step, second.settings, second.parts) == (3, SETTINGS, 1)
    advance(second, 6)
    for a, b in zip(whole.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_training_starts_from_the_mean_tokens_of_nouns() -> None:
    torch.manual_seed(0)
    data, words_of = material(), tokenizer()
    directions = dict(zip(NOUNS, F.normalize(torch.randn(5, 12)) * 3, strict=True))
    grids = torch.zeros(len(data), 4, 4, 12)
    for grid, picture in zip(grids, data.pictures, strict=True):
        for region in picture.regions:
            grid[train.tokens_of(region.box, 4)] = directions[region.noun]
    data.features = grids.flatten(1, 2).half()
    numbers, means = train.noun_means(data, words_of)
    assert sorted(numbers) == sorted(words_of.encode({word for noun in NOUNS for word in noun.split()}))
    model = Decoder(replace(config(), features=12)).eval()
    train.start_from_means(model, numbers, means)
    for noun, direction in directions.items():
        logits = model(direction.expand(1, 16, -1), torch.tensor([[Tokenizer.START]]))[0, -1, numbers]
        assert numbers[int(logits.argmax())] in words_of.encode(noun.split())


def test_loading_takes_the_parts_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (features, train):
        monkeypatch.setattr(module, "PART", 10)
    chosen = plan("dev", 5) + plan()
    features.write_plan(tmp_path / "plan.jsonl", chosen)
    (tmp_path / "features").mkdir()
    tokens = torch.arange(40).half()[:, None, None].expand(-1, 16, 5)
    for index in (0, 1, 3):
        save_file({"tokens": tokens[10 * index : 10 * index + 10].contiguous()}, features.part_path(tmp_path, index))
    splits, parts = train.load_features(tmp_path)
    assert parts == 2
    assert splits["dev"].pictures + splits["train"].pictures == chosen[:20]
    assert torch.cat([splits["dev"].features, splits["train"].features])[:, 0, 0].tolist() == list(range(20))


# ---- maps and figures


def given() -> tuple[Decoder, torch.Tensor, torch.Tensor, list[maps.Span]]:
    torch.manual_seed(0)
    model = Decoder(config()).eval()
    torch.nn.init.normal_(model.image.weight)
    words = torch.tensor([Tokenizer.START, *tokenizer().encode(["a", "cat", "on", "the", "left"]), Tokenizer.END])
    return model, torch.randn(16, 5), words, [(1, 2), (3, 5)]


def test_removal_equals_the_drop_of_the_log_probability() -> None:
    model, image, words, spans = given()
    groups = torch.rand(3, 16) < 0.4
    effects = maps.removal(model, image, words, spans, groups)
    full = maps.log_probabilities(model, image[None], words[None])[0]
    for g, group in enumerate(groups):
        kept = maps.log_probabilities(model, image[None], words[None], ~group[None])[0]
        for s, (first, last) in enumerate(spans):
            assert torch.isclose(effects[s, g], (full - kept)[first:last].sum(), atol=1e-5)


def test_recorded_attention_gives_the_same_logits() -> None:
    model, image, words, spans = given()
    recorder = maps.Recorder()
    recorded = model(image[None], words[None, :-1], attend=recorder)
    assert torch.allclose(recorded, model(image[None], words[None, :-1]), atol=1e-5)
    shares = maps.attention(model, image, words, spans)
    assert shares.shape == (2, 3, 2, 16)
    assert torch.allclose(shares[:, :, 0], torch.stack(recorder.attention)[:, 0, :, 1, :16])


@pytest.mark.parametrize("name", maps.MAPS)
def test_maps_ignore_the_words_after_the_noun(name: str) -> None:
    model, image, words, spans = given()
    scores = maps.MAPS[name](model, image, words, spans)
    assert scores.shape == (2, 16)
    assert scores.isfinite().all()
    shorter = maps.MAPS[name](model, image, words[:3], spans[:1])
    assert torch.allclose(shorter[0], scores[0], atol=1e-5)


def test_gradient_input_is_exact_where_the_decoder_is_linear() -> None:
    """Compare with finite differences along the features."""
    model, image, words, spans = (part.double() if isinstance(part, Decoder) else part for part in given())
    image, step = image.double(), 1e-5
    scores = maps.gradients(model, image, words, spans)
    for token in (0, 7):
        moved = []
        for sign in (1, -1):
            scaled = image.clone()
            scaled[token] *= 1 + sign * step
            values = maps.log_probabilities(model, scaled[None], words[None])[0]
            moved.append(maps.sum_spans(values, maps.of_words(spans)))
        assert torch.allclose(scores[:, token], (moved[0] - moved[1]) / (2 * step), atol=1e-6)


def test_share_counts_cases_and_has_an_interval() -> None:
    share = evaluate.share_of([[True], [True, False], [], [True]] * 20)
    assert (share.share, share.cases) == (0.75, 80)
    assert 0.6 < share.low < 0.75 < share.high < 0.9


def test_points_right_counts_each_quarter_of_a_region() -> None:
    regions = [Region(PHOTOS[0], layouts.LEFT), Region(PHOTOS[0], layouts.TOP_RIGHT)]
    best_quarters = F.one_hot(torch.tensor([2, 2]), 4).float()
    assert evaluate.points_right(best_quarters, regions) == [True, False]


def test_right_cases_pair_nouns_with_their_regions() -> None:
    regions = (Region(PHOTOS[0], layouts.LEFT), Region(PHOTOS[8], layouts.RIGHT))
    data = train.Material([Picture("test", regions)], torch.randn(1, 16, 5))
    words = ["a", "cat", "right", "of", "an", "acoustic", "guitar", ",", "an", "apple", "below", ",", "a", "cat"]
    [case], share = evaluate.right_cases(data, [words], tokenizer())
    assert case.regions == [regions[1], regions[0]]
    assert case.spans == [(1, 2), (5, 7)]
    assert share.share == 0.5  # the apple and the second cat are wrong


def test_asking_for_a_place_continues_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer "in the top right" with a right noun, and everything else with a wrong one."""
    regions = tuple(Region(photo, box) for photo, box in zip(PHOTOS[:16:4], QUARTERS, strict=True))
    data = train.Material([Picture("test", regions)], torch.randn(1, 16, 5))

    def answer(*given: object, length: int) -> list[list[str]]:
        return [["an", "apple", "and", "a"] if given[3] == ["in", "the", "top", "right"] else ["an", "apple"]]

    monkeypatch.setattr(evaluate, "captions_of", answer)
    [cases], share = evaluate.asked_cases(Decoder(config()), data, tokenizer())
    assert share.share == 0.25
    [case] = cases
    assert (case.regions, case.spans) == ([regions[1]], [(5, 6)])
    assert tokenizer().decode(case.words.tolist()[1:]) == ["in", "the", "top", "right", "an", "apple"]


def test_captions_continue_their_beginning() -> None:
    torch.manual_seed(0)
    model, image = Decoder(config()).eval(), torch.randn(2, 16, 5)
    whole = train.captions_of(model, tokenizer(), image)
    for row, words in enumerate(whole):
        if len(words) > 3:
            continued = train.captions_of(model, tokenizer(), image[row : row + 1], words[:2], length=2)
            assert continued == [words[2:4]]


def test_table_has_a_row_for_removal_and_for_each_map() -> None:
    data = material()
    mosaics = evaluate.of_kind(data, mosaics=True)
    rng = random.Random(0)
    written = [write_caption(picture.regions, rng).words for picture in mosaics.pictures]
    cases, share = evaluate.right_cases(mosaics, written, tokenizer())
    assert share.share == 1
    torch.manual_seed(0)
    captioner = Captioner(tiny.model(), Preprocess(), 2, {}, Decoder(config()).eval(), tokenizer())
    block, head = evaluate.find_best_head(captioner, cases)
    table = evaluate.table_of_maps(captioner, cases[:3], (block, head)).splitlines()
    names = [line.split(" | ")[0].strip("| ") for line in table[2:]]
    assert names[2:] == [*maps.MAPS, f"attention, block {block + 1}, head {head + 1}"]
    assert {"removal of a quarter", "removal of single tokens, summed"} == {*names[:2]}
