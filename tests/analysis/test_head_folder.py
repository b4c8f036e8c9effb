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
from vitviz.analysis.heads import STATISTICS, folder_statistics, head_statistics
from vitviz.attribution.scores import ExplainError
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")
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


def one_by_one(made: ViT, paths: list[Path], names: list[str], **options: object) -> dict[str, np.ndarray]:
    """Each statistic of each photograph by itself, (images, L, H)."""
    each = []
    for path in paths:
        prepared = made.pretrained.preprocess(decode(path))
        trace = made.trace(torch.from_numpy(prepared.pixels)[None])
        each.append(head_statistics(made, trace, prepared.geometry, names=names, **options))
    return {name: np.stack([statistics[name] for statistics in each]) for name in names}


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_the_folder_is_the_mean_and_deviation_of_its_photographs(folder: Path, batch_size: int) -> None:
    made, names = model(registers=1), list(STATISTICS)
    statistics = folder_statistics(made, folder, names=names, batch_size=batch_size)
    each = one_by_one(made, sorted(folder.glob("word */*.png")), names)
    assert statistics.images == 7
    assert statistics.missing == {}
    assert list(statistics.values) == names
    assert "predicted" in statistics.target
    for name in names:
        np.testing.assert_allclose(statistics[name], each[name].mean(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(statistics.deviations[name], each[name].std(0), rtol=1e-2, atol=1e-5)
    assert statistics["distance_pixels"].min() > statistics["distance"].max()  # patches of a dozen pixels


def test_a_statistic_that_one_photograph_lacks_has_no_mean(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    tokens = {1 + np.prod(made.config.grid_of(*made.pretrained.preprocess.input_size(*size))) for size in SIZES}
    assert len(tokens) > 1
    monkeypatch.setattr(vitviz.analysis.heads, "RANK_TOKENS", min(tokens))
    statistics = folder_statistics(made, folder, names=["effective_rank", "entropy"])
    assert np.isnan(statistics["effective_rank"]).all()
    assert f"more than {min(tokens)}" in statistics.missing["effective_rank"]
    assert np.isfinite(statistics["entropy"]).all()


def test_a_target_is_named_and_a_limit_is_spread_over_subfolders(folder: Path) -> None:
    made, names = model(), ["gradient", "ablation_logit", "entropy"]
    statistics = folder_statistics(made, folder, names=names, target="word 5", limit=3)
    each = one_by_one(made, [folder / f"word {i % 2}" / f"{i}.png" for i in range(3)], names, target=5)
    for name in names:
        np.testing.assert_allclose(statistics[name], each[name].mean(0), rtol=1e-3, atol=1e-5)
    assert (statistics.target, statistics.images) == ("word 5", 3)


def test_a_file_holds_every_number_under_a_heading_with_its_unit(folder: Path, tmp_path: Path) -> None:
    statistics = folder_statistics(model(), folder, limit=3)
    statistics.save(tmp_path / "heads.csv")
    with open(tmp_path / "heads.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 5
    for row in rows:
        block, head = int(row["block (from 0)"]), int(row["head (from 0)"])
        assert float(row["distance [patches]"]) == statistics["distance"][block, head]
        assert float(row["distance_pixels [px]"]) == statistics["distance_pixels"][block, head]
        assert float(row["entropy deviation [nats]"]) == statistics.deviations["entropy"][block, head]
        assert float(row["mass_cls"]) == statistics["mass_cls"][block, head]
        assert not any("registers" in heading for heading in row)  # this model has none
    single = folder_statistics(model(), folder, names=["distance", "mass_registers"], limit=1)
    assert not any("deviation" in heading for heading in single.header)
    assert [len(row) for row in single.rows()] == [len(single.header)] * 15
    # The table for people counts layers and heads from 1, and says what is missing.
    first, *lines = single.table().splitlines()
    assert first.split("  ")[-1].strip() == "distance [patches]"
    assert [line.split()[:2] for line in lines[:15]] == [[str(i), str(j)] for i in (1, 2, 3) for j in range(1, 6)]
    assert float(lines[7].split()[2]) == pytest.approx(single["distance"][1, 2], rel=1e-3)
    assert "registers" in lines[15]


def test_folders_and_options_that_make_no_sense_are_refused(folder: Path, tmp_path: Path) -> None:
    """A model in training is given back in training, also after an error."""
    made = model().train()
    folder_statistics(made, folder, names=["entropy"], limit=1)
    assert made.training
    (tmp_path / "empty").mkdir()
    for error, words, path, options in [
        (DataError, "Expected a folder of images", tmp_path / "nowhere", {}),
        (DataError, "got none", tmp_path / "empty", {}),
        (AnalysisError, "at least 1, got 8 and 0", folder, {"limit": 0}),
        (ExplainError, "word 99", folder, {"target": "word 99"}),
    ]:
        with pytest.raises(error, match=words):
            folder_statistics(made, path, **options)
    (folder / "word 0" / "broken.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 files that cannot be read: word 0/broken\.png"):
        folder_statistics(made, folder, names=["entropy"])
    assert made.training
    made.pretrained = None
    with pytest.raises(AnalysisError, match="pretrained"):
        folder_statistics(made, folder)
