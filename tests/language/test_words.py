"""Test the attention of words, and the pixels that image tokens see, on tiny random vision-language models."""

import copy
import re
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from language_models import CASES, TOWER, Case, bytes_tokenizer, llava, smolvlm, tokenizer
from PIL import Image
from scipy.stats import spearmanr
from torch import Tensor

import vitviz
from vitviz.language.answers import answered
from vitviz.language.frames import FAMILIES, Frame, Rectangle
from vitviz.language.words import WordsError, whole_words

QUESTION, ANSWER = " what is on the church", "a red umbrella left of the dog."
SIZES = {"wide": (50, 91), "tall": (101, 43)}
OUTPUTS = re.compile(r"(out_proj|attn\.proj|projection_layer|fc2|down_proj)$")  # of attention and MLP
MODES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def photo(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8))


def asked(case: Case, answer: str | None = ANSWER, size: tuple[int, int] = (50, 91), **options: Any) -> vitviz.Words:
    prompt = case.image + QUESTION
    return vitviz.words(case.model, case.processor, photo(*size), prompt, answer, **case.options, **options)


def prepared(case: Case, picture: Any = None) -> dict[str, Any]:
    """Return the model's arguments for the question about a picture, a photograph by default."""
    picture = photo(50, 91) if picture is None else picture
    inputs = dict(case.processor(images=picture, text=case.image + QUESTION, return_tensors="pt", **case.options))
    inputs.pop("labels", None)
    return inputs


def extended(case: Case, answer: list[int]) -> dict[str, Any]:
    """Return the model's arguments for the question and an answer."""
    inputs = prepared(case)
    of_text = int(case.model.config.model_type == "paligemma")  # its prompt has type 0, and is not causal
    more = {"attention_mask": 1, "token_type_ids": of_text, "mm_token_type_ids": 0}
    added = {name: torch.full((1, len(answer)), value) for name, value in more.items() if name in inputs}
    for name, tokens in {**added, "input_ids": torch.tensor([answer])}.items():
        inputs[name] = torch.cat([inputs[name], tokens], dim=1)
    return inputs


def in_eager_mode(case: Case) -> Any:
    """Return a copy of the model that computes attention from its logits."""
    model = copy.deepcopy(case.model)
    model.set_attn_implementation("eager")
    return model


def image_tokens(case: Case, inputs: dict[str, Any]) -> Tensor:
    """Return the positions of the image tokens."""
    return (inputs["input_ids"][0] == case.model.config.image_token_id).nonzero().flatten()


def ids_of(case: Case) -> list[int]:
    return case.processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]


def eager(case: Case, answer: list[int]) -> Tensor:
    """Return attention (T, L, H, M) of the eager model, which reads prompt and answer at once."""
    inputs, length = extended(case, answer), prepared(case)["input_ids"].shape[1]
    with torch.no_grad():
        layers = torch.cat(in_eager_mode(case)(**inputs, output_attentions=True).attentions)  # (L, H, N, N)
    return layers[:, :, length - 1 : -1, image_tokens(case, inputs)].permute(2, 0, 1, 3)


def test_words_equal_eager_attention(case: Case) -> None:
    words = asked(case)
    assert words.words == ("a", "red", "umbrella", "left", "of", "the", "dog", ".")
    ids = ids_of(case)
    rows = eager(case, ids)  # "umbrella" has three tokens
    expected = torch.cat([rows[:2], rows[2:5].mean(0, keepdim=True), rows[5:]])
    assert words.attention.shape == expected.shape
    torch.testing.assert_close(words.attention, expected, atol=1e-5, rtol=0)


def test_a_written_answer_has_the_attention_of_the_same_answer_fed_in(case: Case) -> None:
    inputs = prepared(case)
    image = (inputs["input_ids"][0] == case.model.config.image_token_id).nonzero().flatten()
    ids, written = answered(case.model, inputs, image, None, 7)
    again, fed = answered(case.model, inputs, image, ids, 7)
    assert again == ids
    torch.testing.assert_close(written, fed, atol=0, rtol=0)
    torch.testing.assert_close(written, eager(case, ids), atol=1e-5, rtol=0)


def test_an_eager_model_has_the_same_words() -> None:
    case = smolvlm()
    fused = asked(case)
    case.model.set_attn_implementation("eager")
    torch.testing.assert_close(asked(case).attention, fused.attention, atol=1e-5, rtol=0)


def test_readers_are_the_words_of_the_tokens_at_a_place() -> None:
    words = asked(smolvlm())
    tokens = words.tokens_at(90, 49)  # bottom right: the last tile's last token, and the whole photograph's
    assert tokens == [23, 27]
    torch.testing.assert_close(words.readers(90, 49), words.attention[..., [23, 27]].sum(-1))
    assert words.of("umbrella").equal(words.attention[2])
    with pytest.raises(WordsError, match="has 0 times"):
        words.of("cat")
    with pytest.raises(WordsError, match="place that the model sees"):
        words.readers(91, 10)


def test_heatmap_of_a_word_lies_over_the_last_frame_or_another() -> None:
    words = asked(smolvlm())
    whole = words.heatmap("umbrella")
    assert (whole.title, whole.values.shape) == ("umbrella", (2, 2))
    assert whole.geometry.frame == (0, 0, 91, 50)
    np.testing.assert_allclose(whole.values.ravel(), words.of("umbrella").mean((0, 1))[-4:], atol=1e-7)
    tile = words.heatmap(2, words.of(2)[1, 3], frame=0)
    np.testing.assert_allclose(tile.values.ravel(), words.of(2)[1, 3, :4], atol=1e-7)
    assert tile.geometry.frame == pytest.approx([*words.boxes[0, :2].tolist(), *words.boxes[3, 2:].tolist()])
    assert tile.overlay().size == (91, 50)
    with pytest.raises(WordsError, match="Choose a layer and a head"):
        words.heatmap("umbrella", words.of("umbrella"))


# ---- pixels


def seen_tokens(case: Case, pixels: Tensor) -> Tensor:
    """Return the image tokens as the decoder receives them, (M, D), for float pixels (3, H, W) of 0 to 255."""
    inputs = prepared(case, pixels)
    received: list[Tensor] = []
    hook = case.model.get_decoder().register_forward_pre_hook(
        lambda _module, _inputs, named: received.append(named["inputs_embeds"][0]), with_kwargs=True
    )
    with torch.no_grad():
        case.model(**inputs)
    hook.remove()
    return received[0][inputs["input_ids"][0] == case.model.config.image_token_id]


def without_blocks(case: Case) -> Case:
    """Return the case with a tower whose attention and MLP outputs are zero: no token reads another."""
    model = copy.deepcopy(case.model)
    decoder = {id(part) for part in model.get_decoder().modules()}
    for name, part in model.named_modules():
        if OUTPUTS.search(name) and id(part) not in decoder and not re.search("merger|projector", name):
            torch.nn.init.zeros_(part.weight)
            torch.nn.init.zeros_(part.bias)
    return case._replace(model=model)


def widened(words: vitviz.Words, axis: int, mode: str) -> Tensor:
    """Return how much each token's box, widened by the resampling kernel, holds each row or column: (M, H or W)."""
    found = []
    for frame in words.frames:
        start, length = frame.source[axis], frame.source[axis + 2]
        matrix = torch.eye(length, dtype=torch.float64)  # (last size, source)
        for size in frame.sizes:
            matrix = F.interpolate(matrix[None, None], (size[axis], length), mode=mode, antialias=True)[0, 0]
        scale, photo = len(matrix) / length, words.photo.size[1 - axis]
        for box in frame.boxes:
            low, high = (round((float(edge) - start) * scale) for edge in box[[1 - axis, 3 - axis]])
            inside = matrix[max(low, 0) : high]
            held = inside.abs().amax(0) if len(inside) else torch.zeros(length)
            whole, first, last = torch.zeros(photo), max(start, 0), min(start + length, photo)
            whole[first:last] = held[first - start : last - start]
            found.append(whole)
    return torch.stack(found)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_pixel_moves_exactly_the_tokens_whose_widened_box_holds_it(case: Case, size: tuple[int, int]) -> None:
    words, probed = asked(case, size=size), without_blocks(case)
    mode = MODES[int(case.processor.image_processor.resample)]
    rows, columns = (widened(words, axis, mode) for axis in (0, 1))
    pixels = torch.rand(3, *size, generator=torch.Generator().manual_seed(1)) * 255
    before = seen_tokens(probed, pixels)
    assert len(before) == len(words.boxes)
    for row, column in product(range(0, size[0], 33), range(2, size[1], 29)):
        changed = pixels.clone()
        changed[:, row, column] += 3000
        moved = (seen_tokens(probed, changed) - before).abs().amax(1) > 1e-5
        share = rows[:, row] * columns[:, column]  # where a kernel crosses zero, rounding decides
        assert moved[share > 1e-4].all(), (row, column)
        assert not moved[share < 1e-8].any(), (row, column)


def test_boxes_of_a_padded_frame_reach_beyond_the_photograph() -> None:
    frame = Frame(Rectangle(-5, 0, 20, 20), ((40, 40),), Rectangle(4, 0, 32, 40), (2, 1))
    assert frame.boxes.tolist() == [[0, -3, 20, 5], [0, 5, 20, 13]]


# ---- whole words


def test_whole_words_join_subwords_and_leave_special_tokens_out() -> None:
    words = tokenizer("<image>")
    ids = words("a red umbrella.", add_special_tokens=False)["input_ids"]
    spans = whole_words(words, [*ids, words.eos_token_id])
    assert spans == [("a", [0]), ("red", [1]), ("umbrella", [2, 3, 4]), (".", [5])]
    assert whole_words(words, [words.eos_token_id]) == []


def test_whole_words_of_bytes() -> None:
    text = "Don't: 狗在 café 🐶"
    fast = bytes_tokenizer()
    spans = whole_words(fast, fast(text)["input_ids"])
    assert [word for word, _ in spans] == ["Don't", ":", "狗", "在", "café", "🐶"]
    # Blanks of one byte belong to no word; a character has as many tokens as bytes.
    assert [len(tokens) for _, tokens in spans] == [5, 1, 3, 3, 5, 4]


# ---- bad input


def refused(message: str, case: Case, prompt: str | None = None, answer: str | None = ANSWER, **changed: Any) -> None:
    options = {"model": case.model, "processor": case.processor, "prompt": prompt or case.image + QUESTION, **changed}
    with pytest.raises(WordsError, match=message):
        vitviz.words(photo=photo(50, 91), answer=answer, **options)


def test_bad_input_is_refused_in_one_sentence_that_says_what_to_do() -> None:
    case, other = smolvlm(), llava()
    text = transformers.LlamaForCausalLM(other.model.config.text_config).eval()
    refused("whose image tokens are not known. Load one with AutoModelForImageTextToText", case, model=text)
    refused("got Linear, whose image tokens", case, model=torch.nn.Linear(1, 1))
    refused("Expected the SmolVLMProcessor .* Load both by the same name", case, processor=other.processor)
    refused("Expected the SmolVLMProcessor .* got a Tokenizers", case, processor=case.processor.tokenizer)
    refused("a prompt with '<image>' once", case, prompt="what is on the church")
    refused("a prompt with '<image>' once", case, prompt="<image> <image> what")
    refused("tokenizer knows, got 'parasol'. Use another word", case, answer="a red parasol")
    refused("tokenizer knows, got 'why'", case, prompt="<image> why")
    refused("at most 512 tokens, the model's context, got .* Shorten the text", case, answer="dog " * 500)
    refused("an answer with words, got an empty text", case, answer=" ")
    refused("Call model.eval", case, model=copy.deepcopy(case.model).train())


def test_a_processor_that_makes_another_number_of_tokens_is_refused() -> None:
    case = smolvlm()
    case.processor.image_seq_len = 9
    refused("which makes 63 image tokens. Load both by the same name", case)


def test_an_answer_ends_where_the_context_ends() -> None:
    case = smolvlm()
    case.model.config.text_config.max_position_embeddings = 60
    case.model.generation_config.eos_token_id = None
    length = prepared(case)["input_ids"].shape[1]
    assert len(asked(case, None, max_tokens=100).attention) <= 60 - length


# ---- the exact effect of image tokens

QUICK = ("smolvlm", "gemma3")  # Gemma 3 has sliding windows


def masked_loop(case: Case, answer: list[int], hidden: list[int]) -> Tensor:
    """Return the answer's log-probabilities (T) of the eager model whose text does not read some image tokens.

    The whole sequence runs again, and the probabilities of attention are computed from its logits with a mask. The
    image tokens stay as they are: PaliGemma's read the question.
    """
    model, inputs, length = in_eager_mode(case), extended(case, answer), prepared(case)["input_ids"].shape[1]
    image = image_tokens(case, inputs)
    count, softmax = inputs["input_ids"].shape[1], F.softmax
    first = min(int(image[-1]) + 1, length - 1)

    def masked(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if logits.ndim == 4 and logits.shape[-2:] == (count, count):  # of the decoder
            logits = logits.clone()
            logits[..., first:, image[hidden]] = -torch.inf
        return softmax(logits, *args, **kwargs)

    before: dict[int, Tensor] = {}

    def keep(layer: Any, _inputs: Any, output: Any) -> Any:
        tokens = output[0] if isinstance(output, tuple) else output
        kept = torch.cat([before.setdefault(id(layer), tokens)[:, :first], tokens[:, first:]], 1)
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    for layer in model.get_decoder().layers:
        layer.register_forward_hook(keep)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        model(**inputs)
        patch.setattr(torch.nn.functional, "softmax", masked)
        logits = model(**inputs).logits[0, length - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.tier("all")) for name in CASES]
)
def test_effects_equal_a_loop_that_masks_each_key_in_every_layer(name: str) -> None:
    case = CASES[name]()
    words = asked(case)
    ids = ids_of(case)
    count = len(words.boxes)

    def looped(hidden: list[int]) -> Tensor:
        loop = masked_loop(case, ids, hidden)
        return torch.stack([loop[list(span)].sum() for span in words.spans])

    whole, effects = looped([]), words.effects()
    assert effects.shape == (8, count)
    for token in (0, count - 1):
        torch.testing.assert_close(effects[:, token], whole - looped([token]), atol=1e-5, rtol=0)
    assert effects.abs().max() > 1e-4
    without = torch.stack([whole, looped([*range(count)])], 1)
    torch.testing.assert_close(words.without_picture()[:, :2], without, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.tier("all")) for name in CASES]
)
def test_gae_equals_the_formula_on_whole_matrices(name: str) -> None:
    """Compare with Chefer et al. 2021, equations 5 and 6, with zeros in the rows of the tokens before the text."""
    case = CASES[name]()
    words, answer = asked(case), ids_of(case)
    model, inputs, length = (
        in_eager_mode(case).requires_grad_(),
        extended(case, answer),
        prepared(case)["input_ids"].shape[1],
    )
    image = image_tokens(case, inputs)
    first = min(int(image[-1]) + 1, length - 1)

    def cut(_layer: Any, _inputs: Any, output: Any) -> Any:
        tokens = output[0] if isinstance(output, tuple) else output
        kept = torch.cat([tokens[:, :first].detach(), tokens[:, first:]], 1)
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    for layer in model.get_decoder().layers:
        layer.register_forward_hook(cut)
    output = model(**inputs, output_attentions=True)
    chances = output.logits[0, length - 1 : -1].log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    for word, span in enumerate(words.spans):
        grads = torch.autograd.grad(chances[[*span]].sum(), output.attentions, retain_graph=True)
        relevance = torch.eye(inputs["input_ids"].shape[1])
        for probabilities, grad in zip(output.attentions, grads, strict=True):
            weights = (probabilities * grad).clamp_min(0).mean(1)[0]
            weights[:first] = 0
            relevance = relevance + weights @ relevance
        expected = relevance[[length - 1 + token for token in span]][:, image].sum(0)
        torch.testing.assert_close(words.maps["gae"][word], expected, atol=1e-6, rtol=1e-4)
    assert words.maps["gae"].max() > 1e-4


def test_gradient_input_equals_finite_differences() -> None:
    case = smolvlm()
    case.model.double()
    words, step = asked(case), 1e-2
    inputs, length = extended(case, ids_of(case)), prepared(case)["input_ids"].shape[1]
    inputs["pixel_values"] = inputs["pixel_values"].double()
    for token, place in ((0, image_tokens(case, inputs)[0]), (9, image_tokens(case, inputs)[9])):
        moved = []
        for sign in (1, -1):

            def scale(_decoder: Any, args: Any, named: dict[str, Any], sign: int = sign, place: Tensor = place) -> Any:
                named["inputs_embeds"] = named["inputs_embeds"].clone()
                named["inputs_embeds"][:, place] *= 1 + sign * step
                return args, named

            hook = case.model.get_decoder().register_forward_pre_hook(scale, with_kwargs=True)
            with torch.no_grad():
                chances = case.model(**inputs).logits[0, length - 1 : -1].log_softmax(-1)
            hook.remove()
            chances = chances.gather(1, torch.tensor(ids_of(case))[:, None])[:, 0]
            moved.append(torch.stack([chances[[*span]].sum() for span in words.spans]))
        expected = ((moved[0] - moved[1]) / (2 * step)).float()
        torch.testing.assert_close(words.maps["gradient_input"][:, token], expected, atol=1e-5, rtol=1e-2)
    assert expected.abs().max() > 1e-4


def test_agreement_is_the_rank_correlation_with_the_exact_effects() -> None:
    words = asked(smolvlm())
    effects, agreement = words.effects(), words.agreement()
    assert [*agreement] == ["attention", "gae", "gradient_input"]
    for name, scores in words.maps.items():
        expected = [spearmanr(*rows).statistic for rows in zip(scores, effects, strict=True)]
        np.testing.assert_allclose(agreement[name], expected, atol=1e-9)


# ---- the vision tower


def test_the_vision_tower_opens_with_the_pixels_that_it_got(case: Case) -> None:
    words, pixels = asked(case), prepared(case)["pixel_values"]
    if pixels.ndim == 2:  # Qwen's patches
        with pytest.raises(WordsError, match=r"list of patches .* Choose another part, or use vitviz\.capture"):
            vitviz.View.of_words(words)
        return
    pixels = pixels.flatten(0, -4)
    tower = getattr(case.model.model, FAMILIES[case.model.config.model_type].tower)
    for index in {0, len(words.frames) - 1}:
        if words.frames[index].newlines:  # LLaVA-NeXT's tiles
            with pytest.raises(WordsError, match="several tiles"):
                vitviz.View.of_words(words, index)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # towers that are captured
            view = vitviz.View.of_words(words, index)
        left, top, right, bottom = view.geometry.frame
        assert (left, top, right, bottom) == pytest.approx(words.box(index))
        torch.testing.assert_close(view.images, pixels[index : index + 1])
        captured = vitviz.capture(tower, pixels[index : index + 1])
        for block in range(TOWER["num_hidden_layers"]):
            torch.testing.assert_close(view.trace.attentions[block], captured.attentions[block], atol=1e-5, rtol=0)
    assert vitviz.View.of_words(words, words.whole).photo is words.photo


def test_the_view_of_a_tower_equals_opening_the_photograph_with_it() -> None:
    case = CASES["paligemma"]()
    images = case.processor.image_processor
    tower = vitviz.load(case.model.model.vision_tower, preprocess=vitviz.Preprocess(
        height=20, width=20, mode="squash", interpolation=MODES[int(images.resample)],
        mean=tuple(images.image_mean), std=tuple(images.image_std),
    ))  # fmt: skip
    view, opened = vitviz.View.of_words(asked(case)), vitviz.Explorer(tower).open(photo(50, 91))
    assert view.geometry == opened.geometry
    torch.testing.assert_close(view.images, opened.images, atol=0.03, rtol=0)  # rounded differently
    for block in range(TOWER["num_hidden_layers"]):
        difference = view.trace.attentions[block] - opened.trace.attentions[block]
        assert difference.abs().max() < 0.01


def test_another_picture_gives_the_log_probabilities_of_the_same_words() -> None:
    case = smolvlm()
    words, other = asked(case), Image.fromarray(np.asarray(photo(50, 91))[::-1])
    again = vitviz.words(case.model, case.processor, other, case.image + QUESTION, ANSWER)
    found = words.without_picture(other)[:, 2]
    torch.testing.assert_close(found, again.without_picture()[:, 0], atol=1e-5, rtol=0)
    gray = vitviz.words(
        case.model, case.processor, Image.new("RGB", (91, 50), (128,) * 3), case.image + QUESTION, ANSWER
    )
    torch.testing.assert_close(words.probabilities[:, 1].log(), gray.without_picture()[:, 0], atol=1e-5, rtol=0)
