"""Test `Explorer` and `View`: one forward pass per photograph, and queries on its trace."""

import dataclasses
import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from pictures import photograph
from PIL import Image

import vitviz.explorer
import vitviz.model.trace
import vitviz.view
from vitviz.attribution.attention import attention, rollout
from vitviz.attribution.registry import METHODS
from vitviz.attribution.targets import ExplainError
from vitviz.explorer import Explorer
from vitviz.extras import MissingExtraError
from vitviz.images.decoding import ImageError
from vitviz.images.preprocess import Preprocess
from vitviz.model.devices import DeviceError, check_precision
from vitviz.model.memory import forward_bytes
from vitviz.model.trace import TraceError, describe_query
from vitviz.model.vit import ViT
from vitviz.view import ExplorerError, View

pytestmark = pytest.mark.usefixtures("one_thread")
HEIGHT, WIDTH = tiny.config().image_size


def photo(seed: int = 0, size: tuple[int, int] = (163, 127)) -> Image.Image:
    return photograph(*size, seed)


def with_weights(mode: str = "crop", **changes: object) -> ViT:
    mean = (0.4, 0.5, 0.6)
    preprocess = Preprocess(height=HEIGHT, width=WIDTH, mode=mode, multiple=tiny.PATCH, mean=mean)
    return tiny.known(preprocess=preprocess, **changes)


@pytest.fixture
def view() -> View:
    return Explorer(with_weights(registers=2)).open(photo())


def test_maps_match_the_trace_and_titles_count_from_one(view: View) -> None:
    for heatmap, scores, query, words in (
        (view.attention(1, 3, (2, 7)), attention(view.trace, 1, 3, (2, 7)), (2, 7), "Layer 2, head 4, row 3, column 8"),
        (view.attention(-3, 4), attention(view.trace, 0, 4), None, "Layer 1, head 5"),
        (view.attention(0, "min", "mean"), attention(view.trace, 0, "min", "mean"), None, "Layer 1"),
        (view.attention(), attention(view.trace), None, "Layer 3"),
        (view.rollout((6, 10), fuse="max", discard=0.5), rollout(view.trace, (6, 10), fuse="max", discard=0.5),
         (6, 10), "row 7, column 11"),
        (view.rollout(start=1), rollout(view.trace, "cls", start=1), None, "2 to 3"),
    ):  # fmt: skip
        np.testing.assert_array_equal(heatmap.values, scores[0].values)
        assert heatmap.query == query
        assert all(word in heatmap.title for word in words.split(", ")), heatmap.title
        assert heatmap.photo is view.photo
        assert heatmap.geometry == view.geometry
        assert list(heatmap.prefix_mass) == ["CLS", "register 1", "register 2"]
        assert heatmap.values.sum() + sum(heatmap.prefix_mass.values()) == pytest.approx(1.0, abs=1e-5)
        assert heatmap.overlay().size == view.photo.size
    assert describe_query("cls") == "CLS"
    for maps, count, alone in (
        (view.head_maps(1, (0, 9)), tiny.HEADS, lambda head: view.attention(1, head, (0, 9))),
        (view.layer_maps("max"), tiny.DEPTH, lambda block: view.attention(block, "max")),
    ):
        assert len(maps) == count
        for index, heatmap in enumerate(maps):
            np.testing.assert_array_equal(heatmap.values, alone(index).values)


def test_queries_accept_lists_and_numpy_numbers(view: View) -> None:
    expected = view.attention(1, 2, (3, 4))
    block, head, row = np.int64(1), np.int64(2), np.int32(3)
    for heatmap in (view.attention(block, head, (row, 4)), view.attention(1, 2, [3, 4])):
        np.testing.assert_array_equal(heatmap.values, expected.values)
        assert (heatmap.title, heatmap.query) == (expected.title, expected.query)
    for method, listed, tupled in (
        ("value_attention", {"query": [3, 4]}, {"query": (3, 4)}),
        ("gae", {"contrast": ["thing 5", 7]}, {"contrast": ("thing 5", 7)}),
    ):
        np.testing.assert_array_equal(view.explain(method, **listed).values, view.explain(method, **tupled).values)


@pytest.mark.parametrize("target", [{"target": 5}, {"contrast": ("thing 5", 7)}, {}])
def test_faithfulness_uses_the_class_of_the_map(view: View, target: dict) -> None:
    heatmap = view.explain("gae", **target)
    stated = target or {"target": view.best(1)[0]}
    short = {"steps": 5, "random": 3}
    (inferred,), (explicit,) = view.faithfulness(heatmap, **short), view.faithfulness(heatmap, **stated, **short)
    assert inferred.describe() == explicit.describe()
    np.testing.assert_array_equal(inferred.deletion.probabilities, explicit.deletion.probabilities)
    rollout = view.rollout()  # rollout has no class, and can be combined with any
    assert view.faithfulness([heatmap, rollout], **short)[0].gain == pytest.approx(inferred.gain)
    with pytest.raises(ExplainError, match="maps of one target, got different"):
        view.faithfulness([heatmap, view.explain("gae", 2)], **short)


def test_predictions_are_the_softmax_of_the_logits(view: View) -> None:
    probabilities = view.trace.logits[0].double().softmax(-1)
    best = view.predictions(7)
    assert [label for label, _ in best] == [tiny.LABELS[i] for i in probabilities.argsort(descending=True)[:7]]
    assert [p for _, p in best] == pytest.approx(sorted(probabilities.tolist(), reverse=True)[:7], abs=1e-6)
    everything = view.predictions(1000)
    assert len(everything) == tiny.CLASSES
    assert sum(p for _, p in everything) == pytest.approx(1.0, abs=1e-5)


def test_targets_are_checked_even_where_they_change_nothing_and_numbers_are_no_labels(view: View) -> None:
    for ask, words in (
        (lambda: view.sinks(99), "a class among"),
        (lambda: view.lens([0], target=1), "classes or one target, got both"),
        (lambda: view.evidence(seconds=float("nan")), "seconds from 0 on"),
        (lambda: view.html(limit=float("nan")), "at most nan MB|limit of html"),
    ):
        with pytest.raises(vitviz.VitvizError, match=words):
            ask()
    numbers = tuple(str(index + 1) for index in range(tiny.CLASSES))  # class 1 has the label "2"
    numbered = Explorer(tiny.known(labels=numbers, depth=1)).open(photo())
    edges = [numbered.edge(0, 0, "cls", (0, 1), target=target) for target in (1, "1", 0)]
    assert [each.target for each in edges] == ["2", "1", "1"]
    assert edges[1].writes == edges[2].writes != edges[0].writes
    assert numbered.compare(numbered).block == 0


def test_predictions_need_named_outputs() -> None:
    """A projection, such as CLIP's, outputs features, not classes."""
    nameless = with_weights()
    nameless.pretrained = dataclasses.replace(nameless.pretrained, labels=())
    for model, words in (
        (with_weights(), ""),
        (tiny.model(), ""),
        (tiny.model(classes=0), "no classifier"),
        (nameless, f"{tiny.CLASSES} outputs have no names"),
    ):
        view = Explorer(model).open(photo())
        assert view.names_classes == bool(view.labels) == (not words)
        assert view.rollout().values.shape == view.trace.grid
        if words:
            with pytest.raises(ExplorerError, match=words):
                view.predictions()
        elif model.pretrained is None:  # a model from a config stretches the whole photograph
            assert view.labels == tuple(f"class {i}" for i in range(tiny.CLASSES))
            assert view.geometry.frame == (0, 0, 163, 127)
            assert view.seen().size == (WIDTH, HEIGHT)
        else:  # preprocessing of the weights
            prepared = model.pretrained.preprocess(photo())
            tiny.close(view.trace.logits, model(torch.from_numpy(prepared.pixels)[None]))
            assert view.geometry == prepared.geometry


def test_invalid_queries_raise(view: View) -> None:
    for ask in (view.attention, view.rollout, view.head_maps, view.layer_maps):
        with pytest.raises(TraceError, match="7 x 11"):
            ask(query=(7, 0))
    for block in (3, -4, -6):
        with pytest.raises(TraceError, match=str(block)):
            view.attention(block)
    for head in (tiny.HEADS, -1):
        with pytest.raises(ExplainError, match=str(head)):
            view.attention(1, head)
    with pytest.raises(ExplainError, match="Expected a block"):
        view.explain("token_gradcam", block=99)


def assert_close(half: View, full: View) -> None:
    """Assert scores within 0.02 of the float32 scores, and rows that sum to 1 to float32's precision."""
    rows, columns = full.trace.grid
    for ask in (
        lambda view: view.attention(1, 3, (rows - 1, columns - 2)),
        lambda view: view.attention(0, "max", "mean"),
        lambda view: view.rollout(),
        lambda view: view.rollout((1, 2), fuse="max"),
    ):
        near, exact = ask(half), ask(full)
        np.testing.assert_allclose(near.values, exact.values, atol=0.02)
        assert near.values.sum() + sum(near.prefix_mass.values()) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.slow])
def test_every_method_explains_a_model_in_half_precision(method: str) -> None:
    values = Explorer(with_weights().to(torch.bfloat16)).open(photo()).explain(method).values
    assert values.dtype == np.float32
    assert np.isfinite(values).all()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, "autocast"])
def test_half_precision_is_close_to_float32(dtype: torch.dtype | str, keep: bool, monkeypatch) -> None:
    monkeypatch.setattr(vitviz.model.trace, "KEEP_BYTES", vitviz.model.trace.KEEP_BYTES * keep)  # 0: recomputed
    autocast, model = dtype == "autocast", with_weights()
    full = Explorer(model).open(photo(), size=2 * HEIGHT)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        half = Explorer(model if autocast else with_weights().to(dtype)).open(photo(), size=2 * HEIGHT)
        assert_close(half, full)
        inside = half.rollout((1, 2), fuse="min", discard=0.4).values
    assert autocast or half.trace.tokens.dtype == dtype
    assert not torch.equal(half.trace.tokens.float(), full.trace.tokens)
    assert_close(half, full)
    outside = rollout(half.trace, (1, 2), fuse="min", discard=0.4)[0]  # computed without the view's cache
    np.testing.assert_allclose(inside, outside, atol=1e-6)
    assert sum(probability for _, probability in half.predictions(29)) == pytest.approx(1.0, abs=1e-3)


def test_model_runs_once_for_any_number_of_queries() -> None:
    model, runs = with_weights(), []
    model.patch_embed.register_forward_hook(lambda *_: runs.append("patches"))
    model.norm.register_forward_hook(lambda *_: runs.append("norm"))
    view = Explorer(model).open(photo())
    for row in range(7):
        view.head_maps(1, (row, 0)), view.layer_maps("min", (row, 3)), view.rollout((row, 5), discard=0.5)
    view.predictions(), view.seen(), view.attention()
    assert runs == ["patches", "norm"]


def test_equal_queries_are_cached_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, rows = [], []
    real, real_row = vitviz.view.attribute, vitviz.model.trace.Trace.row
    monkeypatch.setattr(vitviz.view, "attribute", lambda *a, **o: computed.append(o) or real(*a, **o))
    monkeypatch.setattr(vitviz.view, "CACHED_RESULTS", 3)
    view = Explorer(tiny.model()).open(photo())
    first = view.attention(0, "max")
    again = view.attention(0, "max", "cls")  # the default, given explicitly
    assert view.explain("attention", block=-3, head="max") is again
    assert view.rollout() is view.explain("rollout", query="cls")
    assert len(computed) == 2
    np.testing.assert_array_equal(first.values, again.values)
    for column in range(4):  # four more queries, with room for three
        view.attention(0, "max", (0, column))
    assert len(computed) == 6
    view.attention(0, "max", (0, 3))
    assert len(computed) == 6
    view.attention(0, "max")  # evicted
    assert len(computed) == 7
    # One row serves all heads, because large inputs recompute queries and keys for each row.
    monkeypatch.setattr(vitviz.model.trace.Trace, "row", lambda *a: rows.append(a[1:]) or real_row(*a))
    for _ in range(2):
        view.head_maps(1, (2, 3)), view.attention(1, 4, (2, 3)), view.attention(1 - tiny.DEPTH, 0, (2, 3))
    assert rows == [(1, (2, 3))]
    # The cache is also bounded in bytes.
    monkeypatch.setattr(vitviz.view, "CACHED_RESULTS", 100)
    monkeypatch.setattr(vitviz.view, "CACHED_BYTES", 4 * 4 * tiny.HEADS * (1 + 7 * 11))
    view = Explorer(tiny.model()).open(photo())
    for column in range(7):
        view.head_maps(0, (0, column))
    assert len(view._cache) == 4


def test_explorer_disables_dropout_and_names_the_device() -> None:
    explorer = Explorer(tiny.model(dropout=0.5).train(), device="cpu")
    view = explorer.open(photo())
    assert view.predictions() == explorer.open(photo()).predictions()
    assert view.device == "CPU"
    assert view.seconds > 0.0
    assert isinstance(vitviz.best_device(), torch.device)


def test_every_kind_of_picture_is_opened(tmp_path) -> None:
    explorer, picture, path = Explorer(tiny.model()), photo(), tmp_path / "photo.png"
    picture.save(path)
    expected = explorer.open(picture).trace.logits
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)  # (H, W, 3) -> (3, H, W)
    with path.open("rb") as file:
        sources = [path.read_bytes(), path, str(path), np.asarray(picture), pixels, pixels / 255, file]
        views = [explorer.open(source) for source in sources]
        assert not file.closed
    assert all(torch.equal(view.trace.logits, expected) for view in views)
    assert [view.name for view in views[4:]] == ["", "", "photo.png"]
    gray = (pixels[0] / 255).bfloat16()
    assert explorer.open(gray).photo.size == picture.size


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"no picture", "photograph"),
        (io.StringIO("text"), "mode 'rb'"),
        (torch.zeros(1, 3, 20, 30), r"got \(1, 3, 20, 30\). Choose one image"),
        (torch.zeros(20, 30, 3), "permute"),
        (torch.randn(3, 20, 30), "preprocessing has not normalized"),
        ([photo(), photo()], "list of 2. Use open_many"),
    ],
)
def test_invalid_photographs_raise_with_advice(source: object, words: str) -> None:
    with pytest.raises((ImageError, ExplorerError), match=words):
        Explorer(tiny.model()).open(source)


def counted(model: ViT) -> list[int]:
    sizes: list[int] = []
    model.norm.register_forward_hook(lambda _module, inputs, _out: sizes.append(len(inputs[0])))
    return sizes


def test_many_photographs_are_opened_in_batches_and_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    model = with_weights("native")
    explorer, photos = Explorer(model), [photo(seed, (163, 127) if seed % 3 else (90, 200)) for seed in range(7)]
    expected = [explorer.open(picture) for picture in photos]
    sizes, maps = counted(model), set()
    views = explorer.open_many(iter(photos), batch_size=5, progress=False)
    assert sizes == []  # lazy
    for view, alone in zip(views, expected, strict=True):
        assert view.photo.size == alone.photo.size
        torch.testing.assert_close(view.trace.logits, alone.trace.logits, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(view.attention(1, 3).values, alone.attention(1, 3).values, atol=1e-5)
        maps.add(view.rollout().values.tobytes())
    assert len(maps) == 7  # photographs are not mixed up
    assert sorted(sizes[:2]) == [2, 3]  # the first five images, grouped by size
    assert sum(sizes) == 7
    with pytest.raises(ExplorerError, match="batch_size"):
        explorer.open_many(photos, batch_size=0)
    for index, name in enumerate(["b.png", "a.png"]):  # images of a folder come sorted by name
        photo(index).save(tmp_path / name)
    views = list(explorer.open_many(tmp_path, progress=False))
    assert [view.name for view in views] == ["a.png", "b.png"]
    assert "a.png" in repr(views[0])
    # With little memory, batches are smaller.
    model = with_weights()
    single, double = (forward_bytes(model.config, 1 + tiny.GRID[0] * tiny.GRID[1], batch) for batch in (1, 2))
    monkeypatch.setattr(vitviz.explorer.memory, "available_bytes", lambda device: (single + double) // 2)
    sizes = counted(model)
    assert len(list(Explorer(model).open_many([photo(seed) for seed in range(5)], progress=False))) == 5
    assert sizes == [1] * 5


def test_pictures_return_the_path_when_saved(view: View, tmp_path: Path) -> None:
    heatmap = view.rollout()
    for index, picture in enumerate((heatmap.overlay(), heatmap.colorbar(), view.head_sheet(), view.layer_sheet())):
        path = picture.save(tmp_path / f"{index}.png")
        assert path == tmp_path / f"{index}.png"
        assert picture.save(str(path), "PNG", optimize=True) == path
        with Image.open(path) as written:
            np.testing.assert_array_equal(written, picture)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(picture)), picture)
        assert picture.resize((3, 2)).copy().size == (3, 2)
    assert heatmap.overlay().save(io.BytesIO(), "PNG") is None


def test_photographs_after_a_damaged_one_are_opened(tmp_path: Path) -> None:
    """Damaged photographs are left out, listed in a warning at the end, and in `errors` as soon as they are read."""
    for index, name in enumerate(["a.png", "c.png", "d.png"]):
        photo(index).save(tmp_path / name)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:300])
    views = Explorer(tiny.model()).open_many([*sorted(tmp_path.iterdir()), b"no picture"], batch_size=2, progress=False)
    assert next(views).name == "a.png"
    assert [*views.errors] == [str(tmp_path / "b.png")]
    with pytest.warns(UserWarning, match=r"2 of 5 that cannot be read:\n  .*b\.png: Expected .*\n  image 4: Expected"):
        assert [view.name for view in views] == ["c.png", "d.png"]
    assert [*views.errors] == [str(tmp_path / "b.png"), "image 4"]
    assert all(isinstance(error, ImageError) for error in views.errors.values())


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16", "float16"])
def test_explorer_converts_the_model_to_a_precision(precision: str) -> None:
    expected = Explorer(with_weights()).open(photo(), size=2 * tiny.PATCH)
    model = with_weights()
    view = Explorer(model, precision=precision).open(photo(), size=2 * tiny.PATCH)
    assert {str(weights.dtype) for weights in model.parameters()} == {f"torch.{precision}"} == {str(view.images.dtype)}
    difference = np.abs(view.rollout().values - expected.rollout().values).max()
    assert difference < 0.02 * expected.rollout().values.max()
    assert view.explain("gae").values.any()


def test_precision_that_a_device_lacks_raises() -> None:
    with pytest.raises(ExplorerError, match="'float64', 'float32', 'bfloat16', 'float16' or None, got 'int8'"):
        Explorer(tiny.model(), precision="int8")
    with pytest.raises(DeviceError, match=r"got float64\. Choose float32"):
        check_precision("float64", torch.device("mps"))  # on other machines than Apple's, as without this type


def test_results_have_one_line_reprs(view: View) -> None:
    answers = [view, view.trace, view.trace.block(0), view.trace.attentions]
    for answer in (*answers, view.heads(), view.lens(), view.token_pca()):
        assert len(repr(answer)) < 1200
        assert "tensor(" not in repr(answer)
    assert "163 x 127 pixels" in repr(view)
    assert "3 of 3 blocks, 5 heads, 80 tokens (3 + 7 x 11) of width 19" in repr(view.trace)


def test_results_convert_to_pandas(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = view.heads(["distance", "entropy"])
    table = heads.to_pandas()
    assert list(table.columns) == ["block", "head", "distance", "entropy"]
    assert len(table) == tiny.DEPTH * tiny.HEADS
    where = table[(table["block"] == 2) & (table["head"] == 3)]
    assert where["entropy"].item() == heads["entropy"][2, 3]
    lens = view.lens()
    np.testing.assert_array_equal(lens.to_pandas()[lens.names[1]], lens.probabilities[:, lens.classes[1]])
    change = view.intervene(drop=[(3, 4)])
    assert change.to_pandas()["label"].iloc[0] == change.top(1)[0].label
    (tested,) = view.faithfulness(view.rollout(), steps=5, random=3)
    curve = tested.to_pandas().query("kind == 'insertion'")
    np.testing.assert_array_equal(curve["probability"], tested.insertion.probabilities)
    np.testing.assert_allclose(curve["random"], tested.insertion.random.mean(0))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        heads.to_pandas()
