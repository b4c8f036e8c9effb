"""Test statistics of heads against loops over queries and keys, statistics of folders, and importances."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import reference_vit as reference
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import vitviz.analysis.head_statistics
import vitviz.analysis.importance
import vitviz.model.trace
from vitviz.analysis import AnalysisError, attention_statistics
from vitviz.analysis.attention_statistics import QueryRange, effective_rank, row_statistics
from vitviz.analysis.head_statistics import STATISTICS, HeadStatistics, folder_statistics, head_statistics
from vitviz.analysis.importance import Importance, ablation_logit, estimated_logit, gradient
from vitviz.attribution.targets import Target
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.model.edits import BlockEdit, Cut, Edits
from vitviz.model.ops import Ops
from vitviz.model.trace import BlockTrace, TraceError
from vitviz.model.vit import ViT

Array = NDArray[np.float64]
CHEAP = tuple(each.name for each in attention_statistics.STATISTICS if each.reads == "rows")
MEASURES = {name: STATISTICS[name].function for name in CHEAP}

pytestmark = pytest.mark.usefixtures("one_thread")
GEOMETRY = Geometry((400, 300), (91, 143), (-20.0, 10.0, 255.0, 290.0))  # patches of 25 across and 40 down
OTHER = Geometry((400, 300), (91, 143), (0.0, 0.0, 143.0, 91.0))  # patches of 13 x 13
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"registers": 3},
    {"class_token": False, "pooling": "mean"},
    {"distillation_token": True, "grid": (2, 5)},
    {"class_token": False, "registers": 2, "pooling": "mean", "grid": (1, 1)},
)


def by_hand(attention: Array, prefix: tuple[str, ...], columns: int, side: tuple[float, float], query: int) -> Array:
    """Compute the statistics of `CHEAP` for one row, entry by entry: (N, N) -> (names,)."""
    row, first = attention[query], len(prefix)
    sums = dict.fromkeys(CHEAP, 0.0)
    if not any(name == "CLS" for name in prefix):
        sums["mass_cls"] = math.nan
    if not any(name != "CLS" for name in prefix):
        sums["mass_registers"] = math.nan
    on_patches = sum(row[first:])
    for key, weight in enumerate(row):
        sums["entropy"] -= weight * math.log(weight) if weight else 0.0
        if key == query:
            sums["mass_self"] += weight
        if key < first:
            sums["mass_cls" if prefix[key] == "CLS" else "mass_registers"] += weight
            continue
        if query < first:
            sums["mass_elsewhere"] += weight
            continue
        down = (key - first) // columns - (query - first) // columns
        across = (key - first) % columns - (query - first) % columns
        sums["distance"] += weight / on_patches * math.sqrt(down**2 + across**2)
        sums["distance_pixels"] += weight / on_patches * math.sqrt((down * side[0]) ** 2 + (across * side[1]) ** 2)
        if key != query:
            near = max(abs(down), abs(across)) == 1
            sums["mass_neighbors" if near else "mass_elsewhere"] += weight
    if query < first:
        sums |= dict.fromkeys(("distance", "distance_pixels", "mass_neighbors"), math.nan)
    sums["entropy_share"] = sums["entropy"] / math.log(len(row)) if len(row) > 1 else 0.0
    return np.array([sums[name] for name in CHEAP])


def over(queries: range, attention: Array, prefix: tuple[str, ...], columns: int, side: tuple[float, float]) -> Array:
    return np.mean([by_hand(attention, prefix, columns, side, query) for query in queries], axis=0)


def stacked(statistics: HeadStatistics, deviations: bool = False) -> Array:
    """Return statistics as one array: (L, H, names of `CHEAP`)."""
    return np.stack([(statistics.deviations if deviations else statistics.values)[name] for name in CHEAP], axis=-1)


def rank_by_hand(attention: Array) -> Array:
    values = np.linalg.svd(attention, compute_uv=False)
    share = values / values.sum(-1, keepdims=True)
    return np.exp(-(share * np.log(share.clip(1e-30))).sum(-1))


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the bytes of each computed chunk; limit chunks to 30,000."""
    sizes, log_rows = [], BlockTrace.log_rows

    def note_size(self: BlockTrace, start: int, stop: int) -> Tensor:
        rows = log_rows(self, start, stop)
        sizes.append(rows.nbytes)
        return rows

    monkeypatch.setattr(BlockTrace, "log_rows", note_size)
    monkeypatch.setattr(vitviz.model.trace, "CHUNK_BYTES", 30_000)
    return sizes


@pytest.mark.parametrize("changes", SHAPES)
def test_statistics_match_loops_over_queries_and_keys(changes: dict[str, Any], pieces: list[int]) -> None:
    trace = tiny.trace(**changes)
    statistics = head_statistics(tiny.model(**changes), trace, [GEOMETRY, OTHER], names=[*CHEAP, "effective_rank"])
    assert max(pieces) <= 30_000
    rows, columns = trace.grid
    sides = [(280 / rows, 275 / columns), (91 / rows, 143 / columns)]
    patches = range(len(trace.prefix), trace.tokens.shape[1])
    expected = [
        [
            [over(patches, of_head, trace.prefix, columns, side) for of_head in tiny.dense(trace, block)[image].numpy()]
            for block in range(3)
        ]
        for image, side in enumerate(sides)
    ]  # (B, L, H, names)
    np.testing.assert_allclose(stacked(statistics), np.mean(expected, axis=0), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(stacked(statistics, deviations=True), np.std(expected, axis=0), rtol=2e-3, atol=1e-5)
    assert statistics.images == 2
    missing = {name for index, name in enumerate(CHEAP) if np.isnan(expected[0][0][0][index])}
    assert set(statistics.missing) == missing
    assert set(statistics.present) == {*CHEAP, "effective_rank"} - missing
    ranks = [rank_by_hand(tiny.dense(trace, block).numpy()).mean(0) for block in range(3)]  # L x (H,)
    np.testing.assert_allclose(statistics["effective_rank"], ranks, rtol=1e-4)


@pytest.mark.parametrize("query", ["cls", "register 2", (0, 0), (6, 10), (3, 4), 2, 30])
def test_statistics_of_one_query_read_its_row(query: Any, pieces: list[int]) -> None:
    trace, model = tiny.trace(batch=1, registers=2), tiny.model(registers=2)
    statistics = head_statistics(model, trace, OTHER, query=query)
    assert len(pieces) == 3  # the other rows are not computed
    for block in range(3):
        for head in range(5):
            attention = tiny.dense(trace, block)[0, head].numpy()
            expected = by_hand(attention, trace.prefix, 11, (13.0, 13.0), trace.token(query))
            np.testing.assert_allclose(stacked(statistics)[block, head], expected, rtol=2e-5, atol=1e-6)
    assert statistics.query == str(query)
    without_geometry = head_statistics(model, trace, query=query)
    assert np.isnan(without_geometry["distance_pixels"]).all()
    if isinstance(query, str):  # a prefix token has no position
        for name in ("distance", "distance_pixels", "mass_neighbors"):
            assert np.isnan(statistics[name]).all()
            assert "CLS" in statistics.missing[name] or query != "cls"
    elif isinstance(query, tuple):
        assert "geometry" in without_geometry.missing["distance_pixels"]
        assert np.isfinite(without_geometry["distance"]).all()


@settings(max_examples=30)
@given(
    st.integers(0, 2**31),
    st.just(0.0) | st.floats(0.0, 30.0),
    st.integers(0, 4),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.tuples(st.floats(0.5, 40), st.floats(0.5, 40)),
    st.sampled_from([0.0, 3.0, 60.0, 150.0]),
)
def test_statistics_of_any_attention_match_loops_within_bounds(
    seed: int, spread: float, prefix: int, grid: tuple[int, int], side: tuple[float, float], drain: float
) -> None:
    """Attention ranges from uniform (`spread` 0) to nearly one-hot.

    Attention on prefix tokens does not reduce the distance; at a `drain` of 150 the patches' shares underflow.
    """
    tokens, names = prefix + grid[0] * grid[1], ("CLS", *(f"register {index}" for index in range(1, prefix)))[:prefix]
    queries = QueryRange(prefix, tokens, names, grid, torch.tensor([side]))
    logits = spread * torch.randn(2, 3, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    logits[..., :prefix] += drain
    # Unit keys make the queries the logits.
    block = BlockTrace(logits, torch.eye(tokens).expand_as(logits), logits.logsumexp(-1))
    attention = logits.double().softmax(-1).numpy()
    measured, rank = row_statistics(block, queries, MEASURES), effective_rank(block)
    present = {name: values for name, values in measured.items() if not isinstance(values, str)}
    patches = range(prefix, tokens)
    expected = [[over(patches, head, names, grid[1], side) for head in image] for image in attention]
    for name, values in zip(CHEAP, np.moveaxis(expected, -1, 0), strict=True):
        np.testing.assert_allclose(present.get(name, np.full((2, 3), np.nan)), values, rtol=1e-4, atol=2e-5)
    total = sum(values for name, values in present.items() if name.startswith("mass_"))
    torch.testing.assert_close(total, torch.ones(2, 3, dtype=torch.float64), rtol=0, atol=1e-5)
    for name, values in {**present, "effective_rank": rank}.items():
        low, high = STATISTICS[name].low, STATISTICS[name].high
        assert low is None or values.min() >= low - 1e-5
        assert high is None or values.max() <= high + 1e-5
    np.testing.assert_allclose(rank, rank_by_hand(attention), rtol=5e-3)


def test_effective_rank_of_large_inputs_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, trace = tiny.model(), tiny.trace()
    monkeypatch.setattr(vitviz.analysis.attention_statistics, "RANK_TOKENS", 77)
    statistics = head_statistics(model, trace, names=["effective_rank", "entropy"])
    assert np.isnan(statistics["effective_rank"]).all()
    assert "77" in statistics.missing["effective_rank"]
    assert statistics.present == ("entropy",)
    monkeypatch.setattr(vitviz.analysis.attention_statistics, "RANK_TOKENS", 78)
    assert head_statistics(model, trace, names=["effective_rank"]).missing == {}


def test_statistics_accept_traces_with_graph_or_cuts() -> None:
    model, images = tiny.model(), tiny.images(1)
    expected = stacked(head_statistics(model, model.trace(images), GEOMETRY))
    np.testing.assert_allclose(
        stacked(head_statistics(model, model.trace(images, grad=True), GEOMETRY)), expected, rtol=1e-5, atol=1e-7
    )
    cut = model.trace(images, edits=Edits(cuts=[Cut(block=1, keys=(0,))]))
    statistics = head_statistics(model, cut, names=[*CHEAP, "effective_rank"])
    np.testing.assert_allclose(statistics["mass_cls"][1], 0.0, atol=1e-30)
    np.testing.assert_allclose(statistics["effective_rank"][1], rank_by_hand(cut.attention(1).numpy())[0], rtol=1e-4)


def test_statistics_work_with_kept_blocks_half_precision_and_no_classifier() -> None:
    model, images = tiny.model(), tiny.images()
    all_blocks = head_statistics(model, model.trace(images))
    some_blocks = head_statistics(model, model.trace(images, blocks=[0, -1]))
    assert some_blocks.blocks == (0, 2)
    np.testing.assert_allclose(stacked(some_blocks), stacked(all_blocks)[[0, 2]], rtol=1e-6)
    model = tiny.model().bfloat16()
    statistics = head_statistics(model, model.trace(tiny.images(1).bfloat16()))
    shares = [statistics[name] for name in ("mass_cls", "mass_self", "mass_neighbors", "mass_elsewhere")]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1.0, atol=0.02)
    model = tiny.model(classes=0)
    statistics = head_statistics(model, model.trace(images), names=list(STATISTICS))
    for name in ("gradient", "ablation_probability", "ablation_logit"):
        assert np.isnan(statistics[name]).all()
        assert "classifier" in statistics.missing[name]
    assert np.isfinite(statistics["effective_rank"]).all()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("sharpness", {"names": ["entropy", "sharpness"]}),
        ("none", {"names": []}),
        (r"2 images.*got 3", {"geometry": [GEOMETRY] * 3}),
        ("mean", {"query": "mean"}),
    ],
)
def test_invalid_arguments_of_statistics_raise(words: str, options: dict[str, Any]) -> None:
    model, trace = tiny.model(), tiny.trace()
    with pytest.raises(AnalysisError, match=words):
        head_statistics(model, trace, **options)
    with pytest.raises(AnalysisError, match="distance"):
        head_statistics(model, trace, names=["entropy"])["distance"]


# ---- statistics of a folder, and as a file

SIZES = ((60, 40), (40, 60), (60, 40), (31, 97), (60, 41), (40, 60), (50, 50))


def native_model(**changes: object) -> ViT:
    """Return a model whose input keeps the photograph's shape, so batches differ in size."""
    preprocess = Preprocess(height=39, width=52, mode="native", multiple=tiny.PATCH)
    return tiny.known(preprocess=preprocess, grid=(3, 4), **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make seven photographs of five shapes in two subfolders, and other files."""
    for index, size in enumerate(SIZES):
        data_files.photo(tmp_path / f"word {index % 2}" / f"{index}.png", *size, seed=index)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "a.png").write_bytes(b"hidden")
    return tmp_path


def one_by_one(model: ViT, paths: list[Path], names: list[str], **options: object) -> dict[str, np.ndarray]:
    """Return each statistic of each photograph, computed alone: (images, L, H)."""
    results = []
    for path in paths:
        prepared = model.pretrained.preprocess(decode(path))
        trace = model.trace(torch.from_numpy(prepared.pixels)[None])
        results.append(head_statistics(model, trace, prepared.geometry, names=names, **options))
    return {name: np.stack([statistics[name] for statistics in results]) for name in names}


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_folder_statistics_match_single_photographs(folder: Path, batch_size: int) -> None:
    model, names = native_model(registers=1), list(STATISTICS)
    statistics = folder_statistics(model, folder, names=names, batch_size=batch_size)
    expected = one_by_one(model, sorted(folder.glob("word */*.png")), names)
    assert statistics.images == 7
    assert statistics.missing == {}
    assert list(statistics.values) == names
    assert "predicted" in statistics.target
    for name in names:
        np.testing.assert_allclose(statistics[name], expected[name].mean(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(statistics.deviations[name], expected[name].std(0), rtol=1e-2, atol=1e-5)
    assert statistics["distance_pixels"].min() > statistics["distance"].max()  # patches are about a dozen pixels wide


def test_statistic_missing_for_one_photograph_has_no_mean(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = native_model()
    tokens = {1 + np.prod(model.config.grid_of(*model.pretrained.preprocess.input_size(*size))) for size in SIZES}
    assert len(tokens) > 1
    monkeypatch.setattr(vitviz.analysis.attention_statistics, "RANK_TOKENS", min(tokens))
    statistics = folder_statistics(model, folder, names=["effective_rank", "entropy"])
    assert np.isnan(statistics["effective_rank"]).all()
    assert f"limit of {min(tokens)}" in statistics.missing["effective_rank"]
    assert np.isfinite(statistics["entropy"]).all()


def test_folder_statistics_use_target_and_limit(folder: Path) -> None:
    model, names = native_model(), ["gradient", "ablation_logit", "entropy"]
    statistics = folder_statistics(model, folder, names=names, target="thing 5", limit=3)
    expected = one_by_one(model, [folder / f"word {i % 2}" / f"{i}.png" for i in range(3)], names, target=5)
    for name in names:
        np.testing.assert_allclose(statistics[name], expected[name].mean(0), rtol=1e-3, atol=1e-5)
    assert (statistics.target, statistics.images) == ("thing 5", 3)


def test_csv_and_table_hold_all_numbers_with_units(folder: Path, tmp_path: Path) -> None:
    statistics = folder_statistics(native_model(), folder, limit=3)
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
        assert not any("registers" in heading for heading in row)  # the model has no registers
    single = folder_statistics(native_model(), folder, names=["distance", "mass_registers"], limit=1)
    assert not any("deviation" in heading for heading in single.header)
    assert [len(row) for row in single.rows()] == [len(single.header)] * 15
    # The printed table counts layers and heads from 1, and names missing statistics.
    first, *lines = single.table().splitlines()
    assert first.split("  ")[-1].strip() == "distance [patches]"
    assert [line.split()[:2] for line in lines[:15]] == [[str(i), str(j)] for i in (1, 2, 3) for j in range(1, 6)]
    assert float(lines[7].split()[2]) == pytest.approx(single["distance"][1, 2], rel=1e-3)
    assert "registers" in lines[15]


def test_statistics_have_titles_and_definitions() -> None:
    for statistic in STATISTICS.values():
        assert re.match("[A-Z][a-z]", statistic.title)
        assert re.fullmatch(r"[A-Z][a-z].*\.", statistic.about)


def test_invalid_folders_and_limits_raise(folder: Path, tmp_path: Path) -> None:
    """Check that a model in training mode stays in training mode, even after an error."""
    model = native_model().train()
    folder_statistics(model, folder, names=["entropy"], limit=1)
    assert model.training
    (tmp_path / "empty").mkdir()
    for error, words, path, options in [
        (DataError, "Expected a folder of images", tmp_path / "nowhere", {}),
        (DataError, "got none", tmp_path / "empty", {}),
        (AnalysisError, "at least 1, got 8 and 0", folder, {"limit": 0}),
    ]:
        with pytest.raises(error, match=words):
            folder_statistics(model, path, **options)
    (folder / "word 0" / "broken.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 unreadable file: word 0/broken\.png"):
        folder_statistics(model, folder, names=["entropy"])
    assert model.training
    model.pretrained = None
    with pytest.raises(AnalysisError, match="pretrained"):
        folder_statistics(model, folder)


# ---- importance by gradient (Michel et al. 2019), and by ablation

kinds = pytest.mark.parametrize("kind", tiny.KINDS)
TARGETS = [Target(torch.tensor([[3], [11]])), Target(torch.tensor([[3, 7], [11, 2]]), "contrast")]
TARGET = TARGETS[0]


@kinds
def test_head_gradients_match_equation_2_of_michel(kind: str) -> None:
    """Michel et al. 2019, equation 2: |A . dL/dA|, from probabilities in a graph."""
    model, images = tiny.model(**tiny.KINDS[kind]), tiny.images()
    run = reference.run(model, images)
    attentions = [attention.tensor for attention in run.attentions]
    for target in TARGETS:
        slopes = torch.autograd.grad(target.score(run.logits.tensor).sum(), attentions, retain_graph=True)
        expected = [(a * slope).sum((2, 3)).abs() for a, slope in zip(attentions, slopes, strict=True)]
        gradients = gradient(Importance(model, model.trace(images), target))
        torch.testing.assert_close(gradients.double(), torch.stack(expected, dim=1).detach(), rtol=2e-3, atol=2e-5)
        assert gradients.min() > 0


@kinds
@torch.no_grad()
def test_head_ablations_match_edited_models(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model, images = tiny.model(**tiny.SMALL, **tiny.KINDS[kind]), tiny.images(**tiny.SMALL)
    monkeypatch.setattr(vitviz.analysis.importance, "TOGETHER_BYTES", 100_000)  # a few heads at a time
    trace, logits = model.trace(images), model(images).double()
    places = [(block, head) for block in range(3) for head in range(5)]
    edited = [model(images, Edits(heads={place: "zero"})).double() for place in places]
    for target in TARGETS:
        probability, logit = Importance(model, trace, target).ablations
        for (block, head), without in zip(places, edited, strict=True):
            drop = target.reading(logits) - target.reading(without)
            torch.testing.assert_close(probability[:, block, head], drop, rtol=1e-3, atol=2e-5)
            drop = target.score(logits) - target.score(without)
            torch.testing.assert_close(logit[:, block, head], drop, rtol=1e-3, atol=2e-5)
        assert logit.abs().mean() > 0.01  # not trivially zero


def test_statistics_include_importances_of_the_target() -> None:
    model, images = tiny.model(), tiny.images()
    trace = model.trace(images)
    names = ["gradient", "ablation_probability", "ablation_logit"]
    statistics = head_statistics(model, trace, names=names, target=[3, 11])
    expected = (gradient(Importance(model, trace, TARGET)), *Importance(model, trace, TARGET).ablations)
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_allclose(statistics[name], values.mean(0).numpy())
        np.testing.assert_allclose(statistics.deviations[name], values.numpy().std(0))
    assert statistics.target == "class 3, class 11"
    predicted = head_statistics(model, trace, names=names)
    best = Target(model(images).argmax(1, keepdim=True))
    np.testing.assert_allclose(predicted["gradient"], gradient(Importance(model, trace, best)).mean(0).numpy())


def test_importances_of_kept_blocks_match_the_full_trace() -> None:
    model, images = tiny.model(), tiny.images()
    full, late, gaps = (model.trace(images, blocks=blocks) for blocks in ([0, 1, 2], [1, 2], [0, 2]))
    gradients, expected = gradient(Importance(model, late, TARGET)), gradient(Importance(model, full, TARGET))[:, 1:]
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-6)
    ablations, expected = (Importance(model, trace, TARGET).ablations[1] for trace in (gaps, full))
    torch.testing.assert_close(ablations, expected[:, [0, 2]], rtol=1e-3, atol=1e-5)
    with pytest.raises(TraceError, match="got 1"):
        gradient(Importance(model, gaps, TARGET))


def test_estimated_drop_is_the_slope_of_the_exact_score() -> None:
    model, images = tiny.model().double(), tiny.images().double()
    trace = model.trace(images)
    estimates, epsilon = estimated_logit(Importance(model, trace, TARGET)), 1e-4
    scale = torch.ones(5, 1, 1, dtype=torch.float64)
    for block, head in ((0, 1), (2, 3)):
        scores = []
        for step in (epsilon, -epsilon):
            (changed := scale.clone())[head] += step
            tokens = model.blocks[block](trace.stream(block), None, Ops(BlockEdit(scale=changed)))
            for later in model.blocks[block + 1 :]:
                tokens = later(tokens)
            scores.append(TARGET.score(TARGET.read(model, model.finish(tokens))))
        slopes = (scores[0] - scores[1]) / (2 * epsilon)
        torch.testing.assert_close(estimates[:, block, head], slopes.detach(), rtol=1e-4, atol=1e-8)


def test_importances_change_no_model_trace_or_generator() -> None:
    """Check also traces with a graph, in inference mode and in half precision."""
    model, images = tiny.model(), tiny.images()
    trace, state = model.trace(images), torch.get_rng_state()
    tensors = [*model.parameters(), *(trace.stream(block) for block in range(3))]
    before = [tensor.clone() for tensor in tensors]
    expected_gradients = gradient(Importance(model, trace, TARGET))
    ablation_logit(Importance(model, trace, TARGET))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, tensors, before))
    assert torch.equal(torch.get_rng_state(), state)
    for variant in (model, tiny.model(positions="rotary", head_width=16)):
        expected = gradient(Importance(variant, variant.trace(images), TARGET))
        with torch.inference_mode():
            gradients = gradient(Importance(variant, variant.trace(images), TARGET))
        torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-6)
    half = tiny.model().bfloat16()
    gradients = gradient(Importance(half, half.trace(images.bfloat16()), TARGET))
    torch.testing.assert_close(gradients, expected_gradients, rtol=0.3, atol=0.03 * float(expected_gradients.max()))
    graph = model.trace(images, grad=True)
    torch.testing.assert_close(gradient(Importance(model, graph, TARGET)), expected_gradients, rtol=1e-3, atol=1e-6)
    torch.autograd.grad(graph.logits.sum(), graph.block(0).probabilities)  # its graph is still usable


def test_importances_of_unfit_models_raise() -> None:
    model = tiny.model(dropout=0.1)
    trace = model.trace(tiny.images())
    with pytest.raises(AnalysisError, match="eval"):
        ablation_logit(Importance(model.train(), trace, TARGET))
    bare = tiny.model(classes=0)
    with pytest.raises(AnalysisError, match="classifier, got one without"):
        gradient(Importance(bare, bare.trace(tiny.images()), TARGET))
