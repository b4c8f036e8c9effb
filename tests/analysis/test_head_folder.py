"""Statistics over a folder: those of the single photographs, together; and as a file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

import vitviz.analysis.heads
from vitviz.analysis import AnalysisError
from vitviz.analysis.heads import STATISTICS, HeadStatistics, folder_statistics, head_statistics
from vitviz.attribution.scores import ExplainError
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT

LABELS = tuple(f"word {index}" for index in range(tiny.CLASSES))
SIZES = ((60, 40), (40, 60), (60, 40), (31, 97), (60, 41), (40, 60), (50, 50))


def model(**changes: object) -> ViT:
    """A model whose input keeps the photograph's shape, so that batches differ in size."""
    made = tiny.model(grid=(3, 4), **changes)
    preprocess = Preprocess(height=39, width=52, mode="native", multiple=tiny.PATCH)
    made.pretrained = Pretrained(name="tiny", preprocess=preprocess, labels=LABELS if made.head else ())
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven photographs of five shapes in two subfolders, and what is none."""
    random = np.random.default_rng(3)
    for index, (width, height) in enumerate(SIZES):
        path = tmp_path / f"word {index % 2}" / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a.png").write_bytes(b"hidden")
    return tmp_path


def one_by_one(made: ViT, paths: list[Path], **options: object) -> list[HeadStatistics]:
    found = []
    for path in paths:
        prepared = made.pretrained.preprocess(decode(path))
        trace = made.trace(torch.from_numpy(prepared.pixels)[None])
        found.append(head_statistics(made, trace, prepared.geometry, **options))
    return found


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_the_folder_is_the_mean_and_deviation_of_its_photographs(folder: Path, batch_size: int) -> None:
    made = model(registers=1)
    found = folder_statistics(made, folder, names=list(STATISTICS), batch_size=batch_size)
    each = one_by_one(made, sorted(folder.glob("word */*.png")), names=list(STATISTICS))
    assert found.images == len(each) == 7
    assert found.missing == {}
    assert list(found.values) == list(STATISTICS)
    for name in STATISTICS:
        values = np.stack([one[name] for one in each])
        np.testing.assert_allclose(found[name], values.mean(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found.deviations[name], values.std(0), rtol=1e-2, atol=1e-5)
    assert found["distance_pixels"].min() > found["distance"].max()  # patches of a dozen pixels


def test_what_one_photograph_lacks_has_no_mean(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    tokens = {1 + np.prod(made.config.grid_of(*made.pretrained.preprocess.input_size(*size))) for size in SIZES}
    assert len(tokens) > 1
    monkeypatch.setattr(vitviz.analysis.heads, "RANK_TOKENS", min(tokens))
    found = folder_statistics(made, folder, names=["effective_rank", "entropy"])
    assert np.isnan(found["effective_rank"]).all()
    assert f"more than {min(tokens)}" in found.missing["effective_rank"]
    assert np.isfinite(found["entropy"]).all()


def test_targets_are_predicted_or_named(folder: Path) -> None:
    made, names = model(), ["gradient", "ablation_logit"]
    paths = {index: sorted((folder / f"word {index}").glob("*.png")) for index in (0, 1)}
    named = folder_statistics(made, folder, names=names, target="word 5")
    predicted = folder_statistics(made, folder, names=names)
    every = [path for index in (0, 1) for path in paths[index]]
    for found, each in (
        (named, one_by_one(made, every, names=names, target=5)),
        (predicted, one_by_one(made, every, names=names)),
    ):
        for name in names:
            np.testing.assert_allclose(found[name], np.mean([one[name] for one in each], axis=0), rtol=1e-3, atol=1e-5)
    assert named.target == "word 5"
    assert "predicted" in predicted.target


def test_a_limit_is_spread_over_subfolders(folder: Path) -> None:
    found = folder_statistics(model(), folder, names=["entropy"], limit=3)
    each = one_by_one(model(), [folder / f"word {i % 2}" / f"{i}.png" for i in range(3)], names=["entropy"])
    assert found.images == 3
    np.testing.assert_allclose(found["entropy"], np.mean([one["entropy"] for one in each], axis=0), rtol=1e-5)


def test_a_file_holds_every_number_under_a_heading_with_its_unit(folder: Path, tmp_path: Path) -> None:
    found = folder_statistics(model(), folder, limit=3)
    found.save(tmp_path / "heads.csv")
    with open(tmp_path / "heads.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 5
    for row in rows:
        block, head = int(row["block (from 0)"]), int(row["head (from 0)"])
        assert float(row["distance [patches]"]) == found["distance"][block, head]
        assert float(row["distance_pixels [px]"]) == found["distance_pixels"][block, head]
        assert float(row["entropy deviation [nats]"]) == found.deviations["entropy"][block, head]
        assert float(row["mass_cls"]) == found["mass_cls"][block, head]
        assert not any("registers" in heading for heading in row)  # this model has none
    one = folder_statistics(model(), folder, limit=1)
    assert not any("deviation" in heading for heading in one.header)
    assert [len(row) for row in one.rows()] == [len(one.header)] * 15


def test_a_table_counts_layers_and_heads_from_one_and_says_what_is_missing(folder: Path) -> None:
    found = folder_statistics(model(), folder, names=["distance", "mass_registers"], limit=1)
    first, *rows = found.table().splitlines()
    assert first.split("  ")[-1].strip() == "distance [patches]"
    assert [row.split()[:2] for row in rows[:15]] == [[str(i), str(j)] for i in (1, 2, 3) for j in range(1, 6)]
    assert float(rows[7].split()[2]) == pytest.approx(found["distance"][1, 2], rel=1e-3)
    assert "registers" in rows[15]


def test_every_statistic_is_described() -> None:
    for name, one in STATISTICS.items():
        assert one.name == name
        assert one.title
        assert one.about.endswith(".")
        assert one.low is None or one.high is None or one.low < one.high


def test_the_model_is_given_back_as_it_came(folder: Path) -> None:
    made = model().train()
    folder_statistics(made, folder, names=["entropy"], limit=1)
    assert made.training
    (folder / "word 0" / "broken.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 files that cannot be read: word 0/broken\.png"):
        folder_statistics(made, folder, names=["entropy"])
    assert made.training


def test_folders_and_options_that_make_no_sense_are_refused(folder: Path, tmp_path: Path) -> None:
    made = model()
    with pytest.raises(DataError, match="Expected a folder of images"):
        folder_statistics(made, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="got none"):
        folder_statistics(made, tmp_path / "empty")
    with pytest.raises(AnalysisError, match="at least 1, got 8 and 0"):
        folder_statistics(made, folder, limit=0)
    with pytest.raises(ExplainError, match="word 99"):
        folder_statistics(made, folder, target="word 99")
    made.pretrained = None
    with pytest.raises(AnalysisError, match="pretrained"):
        folder_statistics(made, folder)
