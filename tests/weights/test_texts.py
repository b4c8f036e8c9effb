"""Test texts as classes and targets: CLIP and SigLIP with tiny random towers and a tokenizer, against transformers."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import transformers as hf
from browsing import new_page
from hf_cases import SIZES
from image_files import random_rgb
from offered import SIZE, ask, new_endpoints, photograph, view_of
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from running import DOG, address, axe, change, example, ready, served, settled, upload
from static_site import serve
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import vitviz
from vitviz import Text
from vitviz.analysis.decomposition import decompose
from vitviz.attribution.registry import METHODS
from vitviz.cli.main import main
from vitviz.server.arguments import ArgumentError
from vitviz.server.models import bytes_of
from vitviz.site.onnx import StaticError, check_exportable
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import ConvertError
from vitviz.weights.text_tower import TextTower

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["a cat", "a sofa", "two cats on a sofa"]
WORDS = ("<pad>", "<start>", "<end>", "<unknown>", "a", "cat", "cats", "sofa", "two", "on", "photo", "of")
TEXT = {"hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 2, "intermediate_size": 11}
TEXT |= {"vocab_size": len(WORDS), "max_position_embeddings": 9}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PHOTO = Image.fromarray(random_rgb(90, 70))
families = pytest.mark.parametrize("family", ["CLIP", "Siglip"])


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "<unknown>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing("<start> $A <end>", None, [("<start>", 1), ("<end>", 2)])
    special = {"pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>", "unk_token": "<unknown>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, **special)


@cache
def theirs(family: str) -> Any:
    """Return a random model with both towers."""
    torch.manual_seed(20261125)
    more = {"projection_dim": 7} if family == "CLIP" else {}
    text = TEXT if family == "CLIP" else TEXT | {"projection_size": SIZES["hidden_size"]}
    config = getattr(hf, f"{family}Config")(vision_config=SIZES, text_config=text, **more)
    model = getattr(hf, f"{family}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        model.logit_scale.fill_(1.5)
    return model.eval()


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    theirs(family).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@torch.no_grad()
def logits_of(family: str, images: torch.Tensor, texts: list[str]) -> torch.Tensor:
    fixed = {"padding": "max_length", "max_length": 9} if family == "Siglip" else {"padding": True}
    tokens = tokenizer()(texts, return_tensors="pt", **fixed)
    masked = {"attention_mask": tokens["attention_mask"]} if family == "CLIP" else {}
    return theirs(family)(input_ids=tokens["input_ids"], pixel_values=images, **masked).logits_per_image


@families
def test_logits_of_texts_match_transformers(family: str, folder: Path, tmp_path: Path) -> None:
    view = vitviz.Explorer(vitviz.load(folder)).open(PHOTO)
    read = view.texts(TEXTS)
    expected = logits_of(family, view.images, TEXTS)
    torch.testing.assert_close(read.trace.logits, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(read.model(view.images), expected, rtol=1e-4, atol=1e-4)
    shares = expected[0].softmax(0) if family == "CLIP" else expected[0].sigmoid()
    assert dict(read.predictions()) == pytest.approx(dict(zip(TEXTS, shares.tolist(), strict=True)), abs=1e-4)
    assert read.model.blocks[0].mlp.fc1.weight.data_ptr() == view.model.blocks[0].mlp.fc1.weight.data_ptr()  # shared
    tower = TextTower(theirs(family), tokenizer())
    given = vitviz.Explorer(vitviz.load(theirs(family))).open(PHOTO).texts(TEXTS, tower)
    torch.testing.assert_close(given.trace.logits, expected, rtol=1e-4, atol=1e-4)
    save(read.model, tmp_path / "classifier")  # needs no text tower
    again = vitviz.Explorer(load_folder(tmp_path / "classifier")).open(PHOTO)
    torch.testing.assert_close(again.trace.logits, expected, rtol=1e-4, atol=1e-4)


@families
def test_texts_are_explained_compared_and_tested_like_classes(family: str, folder: Path) -> None:
    view = vitviz.Explorer(vitviz.load(folder)).open(PHOTO)
    read = view.texts(TEXTS)
    logits = logits_of(family, view.images, TEXTS)[0].double()
    for method in ("gae", "attn_lrp", "transformer_lrp", "token_gradcam"):
        heatmap = read.explain(method, "a cat")
        assert np.isfinite(heatmap.values).all()
        assert heatmap.title == f"{METHODS[method].title}, for a cat"
    lrp = read.explain("attn_lrp", contrast=("a cat", "a sofa"))
    total = lrp.values.sum() + sum(lrp.prefix_mass.values())
    assert total == pytest.approx(float(logits[0] - logits[1]), abs=2e-3)
    (test,) = read.faithfulness(read.explain("gae", "a sofa"), steps=2, random=1)
    assert test.deletion.probabilities[0] == pytest.approx(dict(read.predictions())["a sofa"], abs=1e-4)
    np.testing.assert_allclose(read.lens(TEXTS).logits[-1], logits, rtol=1e-3, atol=1e-3)
    cosine = float((logits[0] - getattr(theirs(family), "logit_bias", torch.zeros(1)).item()) / np.exp(1.5))
    heatmap = view.explain("attn_lrp", Text("a cat"))  # without a classifier
    assert heatmap.values.sum() + sum(heatmap.prefix_mass.values()) == pytest.approx(cosine, abs=1e-3)
    assert heatmap.title.endswith("the similarity to “a cat” (cosine)")
    (test,) = view.faithfulness(heatmap, steps=2, random=1)
    assert (test.scale, test.deletion.probabilities[0]) == ("cosine", pytest.approx(cosine, abs=1e-4))
    assert view.explain("transformer_lrp", "text:a cat").values.any()
    if family == "CLIP":  # Gandelsman et al. 2024: parts of the embedding sum to the cosine
        parts = decompose(view.model, view.trace, Text("a cat"))
        assert (parts.total, parts.tokens.shape[2]) == (pytest.approx(cosine, abs=1e-4), view.trace.tokens.shape[1])
        assert decompose(read.model, read.trace, "a cat").total == pytest.approx(
            float(logits[0] - logits.mean()), abs=1e-3
        )
    if family == "CLIP":
        check_exportable(read.model)
    else:
        with pytest.raises(StaticError, match="outputs for multi_label_classification"):
            check_exportable(read.model)


@pytest.mark.tier("all")
@pytest.mark.parametrize("family", ["CLIP"])
def test_the_shell_reads_texts(folder: Path, tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "photo.png")
    chosen = ["--model", str(folder), str(tmp_path / "photo.png")]
    # In a new process, in which nothing has imported torchvision, transformers must load as well.
    (tmp_path / "texts.txt").write_text(f"{TEXTS[1]}\n\n", encoding="utf-8")
    predict = [sys.executable, "-m", "vitviz", "predict", "--text", TEXTS[0], f"@{tmp_path / 'texts.txt'}", *chosen]
    told = subprocess.run(predict, check=True, capture_output=True, text=True).stdout
    expected = vitviz.Explorer(vitviz.load(folder)).texts(TEXTS[:2]).open(PHOTO).describe()
    assert expected in told
    out = tmp_path / "why.npz"
    main(["explain", "--method", "gae", "--target", "text:a cat", "-o", str(out), *chosen])
    assert out.is_file()


@pytest.mark.parametrize("family", ["CLIP"])
def test_a_server_explains_short_texts_if_the_tower_fits(folder: Path, tmp_path: Path) -> None:
    endpoints = new_endpoints(tmp_path / "page", (str(folder),), memory=100)
    manifest = endpoints.open(photograph())
    answer = ask(endpoints, "explain", scene=manifest["id"], method="attn_lrp", target="text:a cat")
    expected = view_of(endpoints, manifest["id"]).explain("attn_lrp", Text("a cat"))
    assert (manifest["texts"], answer["title"], answer["target"]) == (True, expected.title, "text:a cat")
    np.testing.assert_allclose(answer["values"], expected.values.ravel(), rtol=6e-5, atol=1e-9)
    (test,) = ask(endpoints, "faithfulness", scene=manifest["id"], methods=["gae"], target="text:a sofa")
    assert test["scale"] == "cosine"
    texts = ask(endpoints, "open", photo=photograph(), texts=TEXTS)
    plain, read = (view_of(endpoints, each["id"]) for each in (manifest, texts))
    assert read.trace.states[0].stream.data_ptr() == plain.trace.states[0].stream.data_ptr()  # the tower ran once
    assert texts["labels"] == TEXTS
    assert texts["predictions"][0][:2] == list(read.predictions(1)[0])
    itself = ask(endpoints, "intervene", scene=texts["id"], target=f"similar:{manifest['id']}")
    assert itself["target"][1] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ArgumentError, match="300 letters, got 301"):
        endpoints.explain(manifest["id"], "gae", f"text:{'a' * 301}")
    full = new_endpoints(tmp_path / "full", (str(folder),), memory=2 * bytes_of(vitviz.load(folder)) / SIZE)
    with pytest.raises(ArgumentError, match="text tower that fits"):
        full.explain(full.open(photograph())["id"], "gae", "text:a cat")


def expect_predictions(shown: Page, view: vitviz.View) -> None:
    expect(shown.locator(".vv-predictions h2")).to_have_text("It says")
    names, bars = (shown.locator(f".vv-predictions li {part}") for part in (".vv-name", "i"))
    labels, shares = zip(*view.predictions(), strict=True)
    expect(names).to_have_text(labels)
    drawn = bars.evaluate_all("all => all.map(({ style }) => Number(style.getPropertyValue('--share')))")
    assert drawn == pytest.approx(shares, abs=1e-3)


@pytest.mark.tier("all")
@pytest.mark.parametrize("family", ["CLIP"])
def test_texts_are_the_classes_of_a_static_site(folder: Path, tmp_path: Path, page: Page) -> None:
    texts = ["two cats, on a sofa", *TEXTS]
    assert main(["export", "--static", str(tmp_path / "site"), "--model", str(folder), "--text", *texts]) == 0
    read = vitviz.Explorer(vitviz.load(folder)).open(DOG).texts(texts)
    with serve(tmp_path / "site") as site:
        ready(page, f"{site.url}?image=Dog")
        expect_predictions(page, read)
        expect(page.get_by_label("Texts as classes")).to_be_hidden()  # other texts would need the text tower
        upload(page, DOG)  # the browser computes the predictions again
        page.wait_for_function("vitviz.store.get().scene?.source.photo && !vitviz.progress.first")
        expect_predictions(page, read)
        change(page, tab="why", target=0, against=2, method="gae")
        heatmap = read.explain("gae", contrast=(texts[0], texts[2]))
        expect(page.locator(".vv-explain .vv-title")).to_have_text(heatmap.title)
        page.click(".vv-explain [data-do=test]")
        expect(page.locator(".vv-explain .vv-verdict")).to_have_text(read.faithfulness(heatmap)[0].describe())
        change(page, tab="inside", statistic="ablation_logit")
        drops = read.heads(["ablation_logit"], contrast=(texts[0], texts[2]))["ablation_logit"].ravel()
        settled(page)
        shown = [float(text.replace("−", "-")) for text in page.locator(".vv-cell").all_inner_texts()]
        np.testing.assert_allclose(shown, drops, atol=0.01)  # two decimals, and weights in half precision


@pytest.mark.parametrize("family", ["CLIP"])
def test_texts_become_the_classes_of_the_page(folder: Path, tmp_path: Path, page: Page, browser: Browser) -> None:
    for app in served(str(folder), bundled=()):
        ready(page, app.url)
        field = page.get_by_label("Texts as classes")
        expect(page.locator(".vv-predictions h2")).to_have_text("No predictions")
        field.fill('a cat，"two cats, on a sofa", a sofa , a cat')
        field.press("Enter")
        read = app.view().texts(["a cat", "two cats, on a sofa", "a sofa"])
        expect_predictions(page, read)
        assert axe(page) == []
        change(page, tab="why", target=0, against=2, method="gae")
        heatmap = read.explain("gae", contrast=("a cat", "a sofa"))
        expect(page.locator(".vv-explain .vv-title")).to_have_text(heatmap.title)
        page.click(".vv-explain [data-do=test]")
        expect(page.locator(".vv-explain .vv-verdict")).to_have_text(read.faithfulness(heatmap)[0].describe())
        assert address(page)["texts"] == 'a cat,"two cats, on a sofa",a sofa'
        change(page, tab="look")
        example(page, "Dog")
        settled(page)
        expect_predictions(page, app.view(DOG).texts(read.labels))
        page.reload()
        expect_predictions(page, app.view(DOG).texts(read.labels))
        field.fill("")
        page.get_by_role("button", name="Classify", exact=True).click()
        expect(page.locator(".vv-predictions h2")).to_have_text("No predictions")
    saved = tmp_path / "page.html"
    saved.write_text(read.html(), encoding="utf-8")
    with new_page(browser, offline=True) as alone:
        alone.goto(saved.as_uri())
        expect_predictions(alone, read)
        expect(alone.get_by_label("Texts as classes")).to_have_count(0)


@families
def test_wrong_texts_and_towers_raise(family: str, folder: Path) -> None:
    view = vitviz.Explorer(vitviz.load(folder)).open(PHOTO)
    for texts, words in (
        [[], "at least one text"],
        [["a cat", " "], "none of them empty"],
        [["a cat", "a cat"], "twice"],
    ):
        with pytest.raises(ConvertError, match=words):
            view.texts(texts)
    plain = vitviz.Explorer(tiny.known()).open(PHOTO)
    for run in (lambda: plain.texts(TEXTS), lambda: plain.explain("gae", Text("a cat"))):
        with pytest.raises(ConvertError, match=r"text tower.*got one without"):
            run()
    with pytest.raises(ConvertError, match=f"{tiny.WIDTH} features, got one for {SIZES['hidden_size']}"):
        plain.texts(TEXTS, TextTower(theirs(family), tokenizer()))
    with pytest.raises(ConvertError, match=r"SiglipModel.*got Linear"):
        TextTower(torch.nn.Linear(2, 2), None)
    with pytest.raises(ValueError, match="text"):
        Text("")
