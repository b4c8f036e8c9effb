"""Test the audit of a folder: runs on parts of photographs, random sets, verdicts, interruptions and the report."""

import base64
import csv
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import tiny
import torch
import windowed
from browsing import new_page
from patience import patience
from PIL import Image
from playwright.sync_api import Browser

from vitviz.analysis.bootstrap import bootstrap_mean
from vitviz.attribution.registry import attribute
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.audit import audit, most_relevant, patch_mask, repeated, same_outline
from vitviz.evaluation.audit_table import BACKGROUND, COLORS, ENOUGH, OBJECT, OPEN, PARTS, Audit, wilson
from vitviz.export.audit_report import write_audit
from vitviz.images.decoding import decode
from vitviz.images.limits import ImageError
from vitviz.model.correlation import spearman
from vitviz.model.edits import Edits
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import save

pytestmark = pytest.mark.usefixtures("one_thread")

FAST: dict[str, Any] = {"methods": ["attention", "rollout"], "progress": False}


def model(**changes: Any) -> ViT:
    return tiny.known(labels=("ox", "golf ball", "church"), **tiny.SMALL, **{"classes": 3, **changes})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with five photographs; beside it, write a folder of masks that cover the left half of each."""
    for index, name in enumerate(("ox/0", "ox/1", "church/0", "church/1", "elsewhere/2")):
        data_files.photo(tmp_path / "photos" / f"{name}.png", 30, 18, seed=index)
        mask = np.zeros((18, 30), np.uint8)
        mask[:, :15] = 255
        (tmp_path / "masks" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{name}.png")
    return tmp_path / "photos"


def test_records_match_runs_with_single_parts(photos: Path) -> None:
    vit = model()
    result = audit(vit, photos, masks=photos.parent / "masks", sets=2, **FAST)
    assert [record["image"] for record in result.records] == sorted(record["image"] for record in result.records)
    left = [row * 5 + column for row in range(3) for column in range(2)]  # the third column is half inside
    right = [patch for patch in range(15) if patch not in left]
    for record in result.records:
        images = torch.from_numpy(vit.pretrained.preprocess(decode(photos / record["image"])).pixels)[None]
        answer = int(vit(images).argmax())
        assert record["target"] == answer
        maps = [attribute(vit, images, answer, name)[0].values for name in FAST["methods"]]
        hidden = sorted(right, key=lambda patch: -maps[0].ravel()[patch])[:3]  # a fifth of 15 patches
        trimmed = [patch for patch in range(15) if patch not in hidden]
        gray = vit.pretrained.preprocess(decode(photos / record["image"]).convert("L").convert("RGB")).pixels
        pixels = [images, images, images, torch.from_numpy(gray)[None]]
        for part, patches, shown in zip(PARTS, (left, right, trimmed, [*range(15)]), pixels, strict=True):
            with torch.no_grad():
                logits = vit(shown, Edits(keep=torch.tensor([patches])))[0]
            assert record[part] == pytest.approx(float(logits.softmax(-1)[answer]), abs=1e-5)
            assert record[f"{part}_answer"] == int(logits.argmax())
            assert len(record.get(f"random_{part}", "--")) == 2
        for name, scores in zip(FAST["methods"], maps, strict=True):
            share = scores.ravel()[left].sum() / scores.sum()
            assert record[f"inside_{name}"] == pytest.approx(float(share), abs=1e-5)
        ranks = spearman(*(torch.tensor(scores.reshape(1, -1)) for scores in maps))
        assert record["disagreement"] == pytest.approx(1 - float(ranks), abs=1e-6)
        assert record["covered"] == pytest.approx(6 / 15)
    labels = {record["image"]: record["label"] for record in result.records}
    assert labels["church/0.png"] == 2
    assert labels["elsewhere/2.png"] is None


def test_random_sets_have_the_size_and_a_similar_outline() -> None:
    mask = np.zeros((7, 11), bool)
    mask[2:5, 3:7] = True
    mask[5, 3] = True

    def outline(shape: np.ndarray) -> int:  # length inside the grid
        return sum(int(np.diff(shape, axis=axis).sum()) for axis in (0, 1))

    drawn = same_outline(mask, 50, np.random.default_rng(0))
    assert {int(other.sum()) for other in drawn} == {13}
    assert np.mean([outline(other) for other in drawn]) < 1.2 * outline(mask)  # 13 single patches have about twice this
    assert len({other.tobytes() for other in drawn} | {mask.tobytes()}) > 30
    allowed = np.arange(11) % 11 < 6
    drawn = same_outline(mask, 20, np.random.default_rng(0), np.broadcast_to(allowed, mask.shape))
    assert {int(other.sum()) for other in drawn} == {13}
    assert not drawn[..., 6:].any()


def test_most_relevant_patches_lie_where_allowed() -> None:
    scores = np.arange(20.0).reshape(4, 5)
    allowed = scores % 5 < 3
    assert np.flatnonzero(most_relevant(scores, allowed)).tolist() == [12, 15, 16, 17]
    assert np.flatnonzero(most_relevant(scores, scores == 0)).tolist() == [0]


def test_masks_are_proposed_given_or_refused(photos: Path) -> None:
    vit = model()
    proposed = audit(vit, photos, **FAST)
    assert proposed.settings["masks"].startswith("proposed from 5 photographs")
    masks = photos.parent / "masks"
    (masks / "ox" / "1.png").unlink()
    with pytest.raises(ImageError):
        audit(vit, photos, masks=masks, **FAST)
    Image.new("L", (29, 18)).save(masks / "ox" / "1.png")
    with pytest.raises(EvaluationError, match=r"30 x 18.*29 x 18"):
        audit(vit, photos, masks=masks, **FAST)
    Image.new("L", (30, 18)).save(masks / "ox" / "1.png")  # misses the object
    result = audit(vit, photos, masks=masks, **FAST)
    record = next(record for record in result.records if record["image"] == "ox/1.png")
    assert "foreground" not in record
    assert "No usable mask: 1 photograph." in result.describe()
    settings = {"masks": masks, "out": photos.parent / "records.jsonl", **FAST}
    audit(vit, photos, **settings)
    Image.new("L", (30, 18), 255).save(masks / "ox" / "1.png")
    with pytest.raises(EvaluationError, match="masks was"):  # records belong to the masks before
        audit(vit, photos, **settings)


def test_repeated_patches_are_those_of_a_tag() -> None:
    photos = list(torch.randn(3, 1, 3, 40, 50, generator=torch.Generator().manual_seed(0)))
    for image in photos[:2]:
        image[..., 25:, :23] = torch.linspace(-1, 1, 23)  # patches of 10 x 10 pixels: two whole, and four in part
    expected = np.zeros((4, 5), bool)
    expected[2:, :3] = True
    first, second, plain = photos
    copy = first + 0.02  # the same photograph, saved again
    assert (repeated(first, [plain, second + 0.01, first[..., :10], copy], (4, 5)) == expected).all()
    assert not repeated(plain, [first, second], (4, 5)).any()


def test_patch_mask_counts_the_pixels_of_each_patch() -> None:
    vit = model()
    geometry = vit.pretrained.preprocess(Image.new("RGB", (50, 30))).geometry
    pixels = np.zeros((30, 50), bool)
    pixels[10:20, 10:26] = True  # patches of 10 x 10 pixels: one whole, and 6 tenths of the next
    expected = np.zeros((3, 5), bool)
    expected[1, 1:3] = True
    assert (patch_mask(pixels, geometry, (3, 5)) == expected).all()


@pytest.mark.tier("all")
def test_two_processes_of_torchrun_match_one(photos: Path, tmp_path: Path) -> None:
    save(model(), tmp_path / "model")
    out, options = tmp_path / "out", ("--methods", "rollout", "--sets", "2")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitviz", "audit")
    words = [sys.executable, *torchrun, photos, "-o", out, "--model", tmp_path / "model", "--device", "cpu", *options]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("predicted class  ") == 1  # only the first process prints
    before = (out / "records.jsonl").read_bytes()
    expected = audit(model(), photos, "rollout", sets=2, progress=False).records
    continued = audit(model(), photos, "rollout", sets=2, out=out / "records.jsonl", progress=False)
    assert continued.records == expected
    assert (out / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("message", "changes"),
    [("at least 1", {"limit": 0}), ("sets", {"sets": -1}), ("classifier", {"model": tiny.model(**tiny.SMALL)})],
)
def test_invalid_audit_arguments_are_refused(photos: Path, message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError, match=message):
        audit(**{"model": model(), "folder": photos, **FAST, **changes})


def test_models_that_cannot_run_without_patches_are_refused(photos: Path) -> None:
    vit = windowed.small(classes=3)
    vit.pretrained = Pretrained(name="tiny", preprocess=model().pretrained.preprocess, labels=("ox", "ball", "church"))
    with pytest.raises(EvaluationError, match="windows"):
        audit(vit, photos, **FAST)


def record(answer: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a photograph with 2 x 2 patches whose prediction rests on the object."""
    honest = {
        "image": "a.png", "target": answer, "label": answer, "confidence": 0.9, "known": None, "covered": 0.5,
        "inside_gae": 0.8, "disagreement": 0.1, "foreground": 0.9, "foreground_answer": answer,
        "background": 0.1, "background_answer": 1 - answer, "trimmed": 0.9, "trimmed_answer": answer,
        "gray": 0.9, "gray_answer": answer, "grid": [2, 2],
        **{f"random_{part}": [0.5] for part in PARTS[:3]}, **{f"random_{part}_answers": [answer] for part in PARTS[:3]},
        "map": base64.b64encode(bytes((255, 9, 0, 40))).decode(), "mask": base64.b64encode(bytes((192,))).decode(),
    }  # fmt: skip
    return honest | changes


def made(*records: dict[str, Any]) -> Audit:
    settings = {"methods": ["gae"], "model": "tiny", "masks": "given", "sets": 1}
    return Audit(records=records, labels=("ox", "golf ball"), settings=settings, folder="photos")


@pytest.mark.parametrize(
    ("changes", "count", "verdict"),
    [
        ({}, ENOUGH, OBJECT),
        ({}, ENOUGH - 1, OPEN),  # too few
        ({"background": 0.9, "background_answer": 0}, ENOUGH, BACKGROUND),
        ({"inside_gae": 0.3}, ENOUGH, BACKGROUND),  # less relevance than patches on the object
        ({"foreground_answer": 1}, ENOUGH, BACKGROUND),  # random patches keep the answer, the object does not
        ({"trimmed_answer": 1}, ENOUGH, BACKGROUND),  # a few patches of the background change the prediction
        ({"trimmed_answer": 1, "random_trimmed_answers": [1]}, ENOUGH, OBJECT),  # and any others do, too
        ({"gray_answer": 1}, ENOUGH, COLORS),
        ({"random_background_answers": [1]}, ENOUGH, OPEN),  # random patches change as many answers
        ({"random_background_answers": [], "random_background": []}, ENOUGH, OPEN),  # no random sets
    ],
)
def test_verdicts_compare_with_random_sets(changes: dict[str, Any], count: int, verdict: str) -> None:
    result = made(*(record(0, **changes) for _ in range(count)))
    (answer,) = result.answers
    assert answer.verdict == verdict
    assert verdict in result.table().splitlines()[-1]
    assert ("Not decided: ox" in result.describe()) is (verdict == OPEN)


def test_confidence_intervals_match_known_values() -> None:
    rate = wilson(10, 10)
    assert (rate.value, round(rate.low, 4), rate.high) == (1.0, 0.7225, 1.0)  # Wilson 1927
    assert (round(wilson(3, 10).low, 4), round(wilson(3, 10).high, 4)) == (0.1078, 0.6032)
    mean = bootstrap_mean([0.0, 1.0, 2.0, 3.0])
    assert mean.value == 1.5
    assert mean.low < 1.0 < 2.0 < mean.high
    assert np.isnan(wilson(0, 0).value)
    assert np.isnan(bootstrap_mean([]).value)
    single = bootstrap_mean([2.0])
    assert single.value == 2.0
    assert np.isnan([single.low, single.high]).all()  # one photograph has no interval


def test_tables_have_one_row_per_photograph(photos: Path, tmp_path: Path) -> None:
    result = audit(model(), photos, sets=0, **FAST)
    table = result.to_pandas()
    assert len(table) == 5
    result.save(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == [*table.columns]
    assert [row["answer"] for row in rows] == [*table["answer"]]
    with pytest.raises(EvaluationError, match=r"\.parquet"):
        result.save(tmp_path / "table.txt")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of twelve photographs, half of which have their relevance in another corner; return its path."""
    root = tmp_path_factory.mktemp("report")
    corner = base64.b64encode(bytes((0, 0, 0, 255))).decode()
    records = []
    for index in range(12):
        name = (f"{index} <b>" if index else os.fsdecode(b"0 <b> \xff")) + ".png"  # a name that is not UTF-8
        data_files.photo(root / "photos" / name, 40, 30, seed=index)
        odd = {"map": corner} if index % 2 else {}
        records.append(record(index % 2, image=name, background=index / 20, **odd))
    records[0].pop("foreground")
    result = replace(made(*records), folder=str(root / "photos"))
    result.save(root / "table.csv")
    write_audit(root / "report.html", result, model().pretrained.preprocess, model="a model & more")
    return root / "report.html"


def test_report_loads_no_other_file(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert "@@" not in text
    assert "<b>" not in text
    assert text.count('class="rp-tile"') == 12
    assert "no usable mask" in text
    assert r'title="0 &lt;b&gt; \udcff.png"' in text
    assert r"0 <b> \udcff.png" in (report.parent / "table.csv").read_text(encoding="utf-8")
    assert "vitviz app --model &#x27;a model &amp; more&#x27;" in text


def test_report_sorts_filters_and_opens_photographs(report: Path, browser: Browser) -> None:
    with new_page(browser, color_scheme="dark") as page:
        page.goto(report.as_uri())
        names = "[...document.querySelectorAll('.rp-tile:not([hidden])')].map((tile) => parseInt(tile.title))"
        assert page.evaluate(names)[:3] == [11, 10, 9]
        page.select_option("[name=sort]", label="file name")
        assert page.evaluate(names) == [*range(12)]
        page.select_option("[name=answer]", label="golf ball")
        assert page.evaluate(names) == [1, 3, 5, 7, 9, 11]
        page.select_option("[name=answer]", "")
        assert page.locator(".rp-clusters button").count() == 2
        page.locator(".rp-clusters button", has_text="ox").click()
        assert page.evaluate(names) == [0, 2, 4, 6, 8, 10]
        page.fill("[name=page]", "http://127.0.0.1:9/at?x=1")
        page.locator(".rp-tile:not([hidden])").first.focus()
        address = page.locator(".rp-tile:not([hidden])").first.get_attribute("href")
        start, _, data = str(address).partition("#photo=")
        assert start == "http://127.0.0.1:9/at/?tab=why&model=a+model+%26+more"
        assert base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))[8:12] == b"WEBP"
        assert page.evaluate("document.querySelector('.vv').classList.contains('dark')")
        assert page.evaluate("document.querySelector('.rp-sheet canvas').width") >= 200
