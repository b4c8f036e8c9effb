"""Test exported numbers, films, figures and folders by reading them with other programs."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import tiny
from image_files import random_rgb
from offered import folder as save_model
from PIL import Image, ImageSequence

import vitviz
from vitviz.analysis.decomposition import decompose
from vitviz.cli.main import main
from vitviz.draw.figures import draw
from vitviz.draw.overlay import OVER_GRAY
from vitviz.export import numbers
from vitviz.film.film import circle, film_of, film_of_clip
from vitviz.images.limits import ImageError
from vitviz.images.video import read_clip

CLIP_FRAMES = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two tiny models of one shape, a photograph and a clip."""
    folder = tmp_path_factory.mktemp("take-away")
    for name, seed in (("first", 5), ("second", 6)):
        save_model(folder / name, seed, registers=2)
    Image.fromarray(random_rgb(110, 150, 0)).save(folder / "photo.png")
    write_clip(folder / "clip.mp4")
    return folder


def write_clip(path: Path) -> None:
    """Write a clip of a bright square that moves over noise."""
    noise = random_rgb(66, 98, 3) // 4
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=6)
        stream.width, stream.height, stream.pix_fmt = 98, 66, "yuv420p"
        for index in range(CLIP_FRAMES):
            picture = noise.copy()
            picture[20:40, 5 * index : 5 * index + 20] = 250
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def explorer(place: Path) -> vitviz.Explorer:
    return vitviz.Explorer(str(place / "first"), device="cpu")


@pytest.fixture(scope="module")
def view(place: Path, explorer: vitviz.Explorer) -> vitviz.View:
    return explorer.open(place / "photo.png")


@pytest.fixture
def workdir(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the working folder of a test, which contains only the photograph."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "photo.png", tmp_path)
    return tmp_path


@pytest.mark.parametrize("ending", ["npz", "csv"])
def test_replay_reproduces_numbers_bit_by_bit(
    ending: str, place: Path, workdir: Path, view: vitviz.View, one_thread: None
) -> None:
    for name, heatmap in {
        "attention": view.attention(1, 2, (3, 4)),
        "rollout": view.rollout(fuse="max", discard=0.3, start=1),
        "against": view.explain("gae", contrast=(3, "thing 5")),
        "signed": view.explain("attn_lrp", 7),
    }.items():
        path = numbers.save(view, heatmap, workdir / f"{name}.{ending}", model=str(place / "first"), photo="photo.png")
        again = numbers.replay(path)
        assert again.identical, (name, again.describe())
        np.testing.assert_array_equal(again.saved, heatmap.values)
        assert again.heatmap.title == heatmap.title


def test_numbers_are_readable_with_csv_and_numpy(view: vitviz.View, workdir: Path) -> None:
    heatmap = view.attention(1, 2, (3, 4))
    with numbers.save(view, heatmap, "map.csv").open(encoding="utf-8", newline="") as file:
        record = json.loads(file.readline().removeprefix("# "))
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * 11
    row = rows[3 * 11 + 4]
    assert np.float32(row["value"]) == heatmap.values[3, 4]
    box = [float(row[name]) for name in ("left", "top", "right", "bottom")]
    np.testing.assert_allclose(box, heatmap.geometry.patch_box(3, 4, heatmap.grid), rtol=1e-8)
    assert record["question"] == {"method": "attention", "block": 1, "head": 2, "query": [3, 4]}
    assert len(record["model"]["weights"]) == len(record["photo"]["pixels"]) == 64
    with np.load(numbers.save(view, heatmap, "map.npz"), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["values"], heatmap.values)
        assert file["boxes"].shape == (7, 11, 4)
        assert json.loads(str(file["record"])) == record
    np.testing.assert_array_equal(vitviz.Heatmap.load("map.npz", view.photo).values, heatmap.values)


def test_replay_reports_equality_and_wrong_inputs(
    place: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(place / "first"), "--device", "cpu"]
    assert main(["explain", "photo.png", "--method", "gae", "-o", "why.csv", *model]) == 0
    assert main(["replay", "why.csv"]) == 0
    assert "Equal" in capsys.readouterr().out
    text = Path("why.csv").read_text(encoding="utf-8")
    lines = text.splitlines()
    first = lines[2].split(",")
    Path("changed.csv").write_text("\n".join([*lines[:2], ",".join([*first[:2], "7", *first[3:]]), *lines[3:]]))
    assert main(["replay", "changed.csv", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False
    Image.fromarray(random_rgb(110, 150, 9)).save("other.png")
    for option, other, named in (("--model", place / "second", "weights"), ("--photo", "other.png", "pixels")):
        assert main(["replay", "why.csv", option, str(other)]) == 2
        assert named in capsys.readouterr().err


def frames_of(path: Path) -> list[Image.Image]:
    """Return the frames of a film, read by Pillow or by FFmpeg."""
    if path.suffix == ".mp4":
        with av.open(str(path)) as container:
            return [frame.to_image() for frame in container.decode(video=0)]
    with Image.open(path) as file:
        return [frame.convert("RGB") for frame in ImageSequence.Iterator(file)]


@pytest.mark.parametrize(("over", "ending"), [("layers", "gif"), ("heads", "webp"), ("query", "mp4")])
def test_film_has_a_frame_for_each_map_on_one_scale(over: str, ending: str, view: vitviz.View, workdir: Path) -> None:
    film = film_of(view, over, block=1)
    frames = frames_of(film.save(f"film.{ending}", seconds=0.2, side=200))
    count = {"layers": tiny.DEPTH, "heads": tiny.HEADS, "query": len(circle(view.trace.grid))}[over]
    assert len(frames) == len(film.maps) == len(film.labels) == count
    assert len({frame.size for frame in frames}) == 1
    assert all(length % 2 == 0 for length in frames[0].size)
    expected = list(film.frames(side=200))
    for saved, frame in zip(frames, expected, strict=True):
        assert np.abs(np.asarray(saved, int) - np.asarray(frame, int)).mean() < 6
    bars = {frame.crop((0, frame.height - 60, frame.width, frame.height)).tobytes() for frame in expected}
    assert len(bars) == 1
    assert film.scale.vmin == min(float(heatmap.values.min()) for heatmap in film.maps)


def test_films_use_the_spotlight_style(view: vitviz.View) -> None:
    film = film_of(view, "layers")
    (first, *_), (figure, *_), (tinted, *_) = (
        list(film.frames(side=200, **options)) for options in ({}, OVER_GRAY, OVER_GRAY | {"spotlight": False})
    )
    assert first.tobytes() == figure.tobytes() != tinted.tobytes()


def test_film_of_clip_follows_a_patch(place: Path, explorer: vitviz.Explorer, workdir: Path) -> None:
    clip = place / "clip.mp4"
    times = [frame.time for frame in read_clip(clip, 5)]
    assert times == sorted(set(times))
    assert (times[0], len(times)) == (0.0, 5)
    assert len(list(read_clip(clip, 48))) == CLIP_FRAMES
    film = film_of_clip(explorer, clip, show="similarity", frames=4, query=(2, 3))
    assert len(film.maps) == 4
    assert film.maps[0].values[2, 3] == pytest.approx(1.0, abs=1e-5)  # the patch with itself
    assert [heatmap.query for heatmap in film.maps] == [(2, 3), None, None, None]
    first, last = (film_of_clip(explorer, clip, frames=n).maps[-1] for n in (2, 3))
    np.testing.assert_array_equal(first.values, last.values)  # both films end with the last frame
    picture = list(read_clip(clip, 2))[-1].picture
    np.testing.assert_allclose(first.values, explorer.open(picture).attention().values, atol=1e-6)


def test_read_clip_refuses_other_files(place: Path, workdir: Path) -> None:
    clip, path = place / "clip.mp4", workdir / "bad.mp4"
    with av.open("sound.mp4", "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    playlist = f"ffconcat version 1.0\nfile '{clip}'\n".encode()
    for content in (b"no film", clip.read_bytes()[:300], playlist, Path("sound.mp4").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ImageError, match=r"Expected .*bad\.mp4"):
            list(read_clip(path))


def test_film_command_writes_heads_models_and_clips(
    place: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(place / "first"), "--device", "cpu"]
    assert main(["film", "photo.png", "--over", "heads", "--layer", "2", "-o", "heads.webp", "--json", *model]) == 0
    (said,) = json.loads(capsys.readouterr().out)["images"]
    assert np.array(said["values"]).shape == (tiny.HEADS, 7, 11)
    assert len(frames_of(Path("heads.webp"))) == tiny.HEADS
    models = [str(place / name) for name in ("first", "second")]
    assert main(["film", "photo.png", "-o", "models.gif", "--models", *models]) == 0
    assert len(frames_of(Path("models.gif"))) == 2
    assert main(["film", str(place / "clip.mp4"), "-o", "clip.mp4", "--frames", "3", *model]) == 0
    assert len(frames_of(Path("clip.mp4"))) == 3


def test_figures_match_the_analysis(view: vitviz.View) -> None:
    figures = draw(view, ["heads", "matrix", "decomposition", "lens", "curves"], block=1, head=3, method="gae")
    panels = {axes.get_label(): axes for figure in figures.values() for axes in figure.axes}
    tile = np.asarray(panels["heads"].images[0].get_array())
    np.testing.assert_array_equal(tile[:7, :11], view.attention(0, 0).values)
    shown = np.asarray(panels["matrix"].images[0].get_array())
    np.testing.assert_allclose(shown, view.trace.attention(1)[0, 3].numpy(), atol=1e-6)
    np.testing.assert_array_equal(
        np.asarray(panels["parts"].images[0].get_array())[:, :-1], decompose(view.model, view.trace).heads
    )
    lens = view.lens(view.best(5))
    drawn = [line.get_ydata() for line in panels["lens"].lines]
    np.testing.assert_allclose(np.array(drawn), 100 * lens.probabilities[:, list(lens.classes)].T, rtol=1e-6)
    test = view.faithfulness(view.explain("gae"))[0]
    np.testing.assert_allclose(panels["deletion"].lines[-1].get_ydata(), 100 * test.deletion.probabilities, rtol=1e-5)


def test_interrupted_folder_export_continues(
    place: Path, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = workdir / "photos" / "deep"
    photos.mkdir(parents=True)
    for index, name in enumerate(("a.png", "b.png", "deep/c.png")):
        Image.fromarray(random_rgb(40, 60, index)).save(workdir / "photos" / name)
    command = ["export", "photos", "-o", "out", "--model", str(place / "first"), "--device", "cpu"]
    real, opened = vitviz.Explorer.open, []

    def open_two(self: vitviz.Explorer, *args: object, **options: object) -> vitviz.View:
        if len(opened) == 2:
            raise KeyboardInterrupt
        opened.append(args)
        return real(self, *args, **options)

    with monkeypatch.context() as stopped:
        stopped.setattr(vitviz.Explorer, "open", open_two)
        assert main(command) == 130
    before = {path: path.stat().st_mtime_ns for path in (workdir / "out").rglob("page.html")}
    assert len(before) == 2
    (workdir / "photos" / "broken.png").write_text("no photograph")
    assert main(command) == 2
    assert "broken.png" in capsys.readouterr().err
    after = {path: path.stat().st_mtime_ns for path in (workdir / "out").rglob("page.html")}
    assert before.items() < after.items()
    assert sorted(path.name for path in (workdir / "out" / "deep" / "c").iterdir()) == [
        *("attention.npz", "attention.png", "gae.npz", "gae.png", "page.html", "predictions.csv"),
        *("rollout.npz", "rollout.png"),
    ]
    assert numbers.replay(workdir / "out" / "deep" / "c" / "gae.npz").equal
    assert Image.open(workdir / "out" / "a" / "attention.png").width > 500
    assert main([*command, "--parts", "page"]) == 2
    assert "Name a new one" in capsys.readouterr().err
