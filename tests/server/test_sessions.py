"""What the server of the page remembers, permits and refuses. No browser."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import tiny
from offered import WIDTH, folder, made
from PIL import Image

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.model.vit import ViT
from vitviz.server.menu import Menu, MenuError
from vitviz.server.scheduler import Kind
from vitviz.server.sessions import Sessions, Shown, Wanted
from vitviz.server.settings import Settings
from vitviz.weights.catalog import CATALOG


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)).save(path)
    return path


@pytest.fixture
def sources(tmp_path: Path) -> tuple[str, ...]:
    return tuple(folder(tmp_path / name, seed) for seed, name in enumerate(("a", "b", "c")))


# --- what may be named

NAMES = ["timm:vit_tiny_patch16_224.augreg_in21k", "hf:facebook/dinov2-small", "hf:bare", "torchvision:vit_l_32.A_B"]


@pytest.mark.parametrize("text", NAMES)
def test_names_of_libraries_may_be_typed_where_that_is_allowed(text: str, sources: tuple[str, ...]) -> None:
    assert Menu(Settings(models=sources)).permit(f"  {text} ") == text
    closed = Menu(Settings(models=sources, typed=False))
    with pytest.raises(MenuError, match="own machine"):
        closed.permit(text)
    for offered in (sources[1], CATALOG[3].source, closed.default):
        assert closed.permit(offered) == offered


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "/etc/passwd",
        "/etc",
        "..",
        "./checkpoints",
        "checkpoints/dinov2-s14-imagenette",
        "hf:/etc",
        "hf:../../etc",
        "hf:a/b/c",
        "hf:a/..",
        "timm:../x",
        "timm:a/b",
        "timm:hf-hub:a/b",
        "torchvision:",
        "keras:vit",
        "file:///etc/passwd",
        "https://example.com/a.safetensors",
        "timm:x\ny",
        "HF:a/b",
        "~",
        "\x00",
    ],
)
def test_paths_and_addresses_are_never_read_for_visitors(
    text: str, typed: bool, sources: tuple[str, ...], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = made(sources, photo, typed=typed)
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda source: pytest.fail(f"{source} was read"))
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *source: pytest.fail(f"{source} was fetched"))
    for ask in (sessions.begin, lambda visitor, source: sessions.open(visitor, photo, source)):
        with pytest.raises(MenuError):
            ask("visitor", text)
    with pytest.raises(MenuError):
        sessions.look(str(photo), text)


def test_a_folder_with_the_name_of_a_remote_model_is_not_taken_for_it(
    sources: tuple[str, ...], photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "timm:tiny", 9)
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("vitviz.server.menu.load_remote", lambda *name: asked.append(name) or tiny.model())
    made(sources, photo).begin("visitor", "timm:tiny").result()
    assert asked == [("timm", "tiny")]


# --- uploads


def test_uploads_are_refused_unless_allowed_and_belong_to_their_visitor(
    sources: tuple[str, ...], photo: Path, tmp_path: Path
) -> None:
    uploaded = folder(tmp_path / "upload", 7)
    with pytest.raises(MenuError, match="own machine"):
        made(sources, photo).uploaded("visitor", uploaded)
    sessions = made(sources, photo, upload=True)
    with pytest.raises(MenuError):
        sessions.open("visitor", photo, uploaded)
    sessions.uploaded("visitor", uploaded)
    assert sessions.open("visitor", photo, uploaded).wanted.model == uploaded
    assert sessions.offer("visitor", uploaded).title == "upload"
    with pytest.raises(MenuError):
        sessions.open("another", photo, uploaded)
    sessions.close("visitor")
    with pytest.raises(MenuError):
        sessions.open("visitor", photo, uploaded)


# --- visitors


def test_a_model_that_goes_is_let_go_and_comes_back_when_asked(sources: tuple[str, ...], photo: Path) -> None:
    sessions = made(sources, photo, room=2.5)
    sessions.open("first", photo, sources[0])
    before = sessions.open("visitor", photo, sources[1])
    values = before.view.attention().values
    alive = weakref.ref(before.view.model)
    sessions.open("another", photo, sources[2])
    assert sessions.held("visitor") is None  # or its view would keep the model in memory
    assert before.view.attention(0).values.shape == tiny.GRID  # who has it can finish
    del before
    gc.collect()
    assert alive() is None
    again = sessions.open("visitor", photo, sources[1])
    np.testing.assert_array_equal(again.view.attention().values, values)
    assert sessions.held("another") is None


def test_a_view_of_a_model_that_went_meanwhile_is_not_kept(
    sources: tuple[str, ...], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = made(sources, photo, room=2.5)
    run = Explorer.open

    def slow(self: Explorer, *args: object, **more: object) -> object:
        monkeypatch.setattr(Explorer, "open", run)
        sessions.models.get(sources[2])  # takes the room of the model that is running
        return run(self, *args, **more)

    sessions.models.get(sources[0])
    monkeypatch.setattr(Explorer, "open", slow)
    shown = sessions.open("visitor", photo, sources[1])
    assert shown.view.predictions()
    assert sessions.held("visitor") is None


def test_one_model_runs_at_a_time(sources: tuple[str, ...], photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = made(sources, photo)
    running: list[int] = []
    most: list[int] = []
    run = Explorer.open

    def watched(self: Explorer, *args: object, **more: object) -> object:
        running.append(1)
        most.append(len(running))
        try:
            return run(self, *args, **more)
        finally:
            running.pop()

    monkeypatch.setattr(Explorer, "open", watched)
    visitors = [
        threading.Thread(target=sessions.open, args=(str(i), photo, sources[i % 3], 13 * (3 + i))) for i in range(6)
    ]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(60)
    assert most == [1] * 6
    assert len(sessions._open) == 6


def test_events_that_cross_change_one_thing_each(sources: tuple[str, ...], photo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (50, 40), "red").save(other)
    sessions = made(sources, photo)
    sent = sessions.wanted(None, sources[0])  # what all of them knew when they were sent
    assert sessions.again("visitor", sent).wanted == Wanted(str(photo), sources[0])
    sessions.with_model("visitor", sessions.wanted(None, sources[1]))
    assert sessions.again("visitor", sent).wanted == Wanted(str(photo), sources[1])
    sessions.with_photo("visitor", sessions.wanted(str(other), sources[0]))
    assert sessions.again("visitor", sent).wanted == Wanted(str(other), sources[1])
    sessions.with_side("visitor", sessions.wanted(None, sources[0], 2 * WIDTH))
    assert sessions.again("visitor", sent).wanted == Wanted(str(other), sources[1], 2 * WIDTH)
    sessions.with_photo("visitor", sent)
    assert sessions.again("visitor", sent).wanted == Wanted(str(photo), sources[1], 2 * WIDTH)
    sessions.with_model("visitor", sessions.wanted(None, sources[2], 2 * WIDTH))
    assert sessions.again("visitor", sent).wanted == Wanted(str(photo), sources[2])  # in its own size


def test_the_newest_photograph_is_opened_when_the_model_is_free(
    sources: tuple[str, ...], photo: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (50, 40), "red").save(other)
    sessions = made(sources, photo)
    newest = [str(photo)]
    opening = threading.Thread(
        target=sessions.with_photo, args=("visitor", sessions.wanted(str(photo), sources[0]), lambda: newest[0])
    )
    with sessions.scheduler.run(Kind.PHOTO):  # the model is busy with somebody else's photograph
        opening.start()
        newest[0] = str(other)
    opening.join(30)
    assert sessions.last("visitor") == Wanted(str(other), sources[0])


def test_a_broken_photograph_is_not_what_is_opened_again(sources: tuple[str, ...], photo: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    sessions = made(sources, photo)
    first = sessions.with_photo("visitor", sessions.wanted(str(photo), sources[0]))
    sent = sessions.wanted(str(broken), sources[0])  # what stands in the input of the page
    with pytest.raises(ImageError):
        sessions.with_photo("visitor", sent)
    sessions._open.clear()  # as if many others had opened photographs
    again = sessions.again("visitor", sent)
    assert again is not first
    assert again.wanted == first.wanted


def test_a_page_whose_connection_broke_goes_on(
    sources: tuple[str, ...], photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = made(sources, photo, upload=True)
    sessions.open("visitor", photo, sources[1], 2 * WIDTH)
    sessions.close("visitor")
    # gradio may have forgotten the page's state: it sends the default.
    late = sessions.with_photo("visitor", sessions.wanted(str(photo), sources[0]))
    assert (late.wanted.model, late.wanted.side) == (sources[1], 2 * WIDTH)
    uploaded = sessions.uploaded("another", folder(tmp_path / "upload", 7))
    sessions.open("another", photo, uploaded)
    sessions.close("another")
    assert sessions.last("another") is None  # the checkpoint is nobody's now
    monkeypatch.setattr("vitviz.server.sessions.REMEMBERED", 2)
    for name in "abc":
        sessions.open(name, photo, sources[0])
        sessions.close(name)
    assert [sessions.last(name) is None for name in ("visitor", "a", "b", "c")] == [True, True, False, False]


def test_no_model_is_asked_for_more_patches_than_are_offered(
    sources: tuple[str, ...], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = made(sources, photo)
    patch = sessions.open("visitor", photo, sources[0]).view.model.config.patch_size
    monkeypatch.setattr("vitviz.server.detail.MOST_PATCHES", 9)
    assert sessions.open("visitor", photo, sources[0], 3 * patch).wanted.side == 3 * patch
    with pytest.raises(MenuError, match=f"at most {3 * patch} pixels for this model, got {4 * patch}"):
        sessions.open("visitor", photo, sources[0], 4 * patch)


def test_a_model_that_was_switched_while_another_loaded_counts(
    sources: tuple[str, ...], photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first photograph and a switch of models at once: the photograph must not put the old model back."""
    other = tmp_path / "other.png"
    Image.new("RGB", (50, 40), "red").save(other)
    sessions = made(sources, photo)
    load, began = sessions.models._load, threading.Event()

    def slow(name: str) -> ViT:
        if name == sources[0]:
            assert began.wait(30)
        return load(name)

    monkeypatch.setattr(sessions.models, "_load", slow)
    came: list[Shown] = []
    sent = sessions.wanted(str(other), sources[0])
    opening = threading.Thread(target=lambda: came.append(sessions.with_photo("visitor", sent)))
    opening.start()
    sessions.with_model("visitor", sessions.wanted(str(photo), sources[1]))
    began.set()
    opening.join(30)
    assert came[0].wanted == Wanted(str(other), sources[1])
    assert came[0].view.model is sessions.models.get(sources[1]).model
    assert sessions.held("visitor") is came[0]


def test_photographs_models_and_sizes_are_told_apart(sources: tuple[str, ...], photo: Path) -> None:
    sessions = made(sources, photo)
    first = sessions.open("visitor", photo, sources[0])
    assert sessions.open("visitor", None, sources[0]) is first
    assert sessions.held("visitor") is first
    finer = sessions.open("visitor", None, sources[0], 2 * WIDTH)
    assert finer.view.trace.grid == (2 * tiny.GRID[0], 2 * tiny.GRID[1])
    assert finer.size > first.size > finer.view.trace.nbytes / 5
    assert sessions.open("visitor", None, sources[1], 2 * WIDTH) is not finer


def test_no_visitor_gets_an_input_larger_than_allowed(sources: tuple[str, ...], photo: Path) -> None:
    menu = Menu(Settings(models=sources, side=3 * WIDTH), bundled=[])
    sessions = Sessions(menu, photo)
    assert sessions.open("visitor", None, sources[0], 3 * WIDTH)
    with pytest.raises(MenuError, match=str(3 * WIDTH)):
        sessions.open("visitor", None, sources[0], 4 * WIDTH)


def test_a_photograph_is_found_by_its_name_while_it_is_open(sources: tuple[str, ...], photo: Path) -> None:
    sessions = made(sources, photo)
    one, other = sessions.open("visitor", photo, sources[0]), sessions.open("another", photo, sources[0])
    assert one.name != other.name
    assert sessions.find(one.name) is one
    assert sessions.find(other.name) is other
    for name in ("", one.name[:-1], one.name + "x", one.name.upper(), "visitor", "é", "\ud800", "\x00"):
        assert sessions.find(name) is None
    finer = sessions.open("visitor", photo, sources[0], 2 * WIDTH)
    assert sessions.find(one.name) is None
    assert sessions.find(finer.name) is finer
    sessions.close("visitor")
    assert sessions.find(finer.name) is None


def test_two_panes_are_both_answered(sources: tuple[str, ...], photo: Path) -> None:
    sessions = made(sources, photo)
    one = sessions.open("visitor", photo, sources[0])
    sessions.turn_to("visitor", one, one)  # a second pane begins with the same
    other = sessions.with_model("visitor", sessions.wanted(None, sources[1]))
    assert (sessions.find(one.name), sessions.find(other.name)) == (one, other)
    sessions.turn_to("visitor", one, other)
    finer = sessions.with_side("visitor", sessions.wanted(None, "", 2 * WIDTH))
    assert (finer.wanted.model, finer.wanted.side) == (sources[0], 2 * WIDTH)  # of the pane that was turned to
    assert (sessions.find(one.name), sessions.find(other.name)) == (None, other)
    sessions.turn_to("visitor", finer, None)
    assert (sessions.find(finer.name), sessions.find(other.name)) == (finer, None)
    sessions.turn_to("visitor", finer, finer)
    sessions.close("visitor")
    assert sessions.find(finer.name) is None


def test_open_photographs_are_bounded_and_forgetting_loses_nothing(sources: tuple[str, ...], photo: Path) -> None:
    size = made(sources, photo).open("a", photo, sources[0]).size
    sessions = Sessions(Menu(Settings(models=sources), bundled=[]), photo, limit=2 * size + 1000)
    first = sessions.open("a", photo, sources[0])
    assert sessions.open("a", None, sources[0]) is first
    sessions.open("b", photo, sources[0])
    sessions.open("c", photo, sources[0])
    assert list(sessions._open) == ["b", "c"]
    assert sessions.find(first.name) is None
    again = sessions.again("a", sessions.wanted(str(photo), sources[0]))
    assert again is not first
    np.testing.assert_array_equal(again.view.attention().values, first.view.attention().values)
    assert list(sessions._open) == ["c", "a"]


def test_uploads_are_known_as_such(sources: tuple[str, ...], photo: Path, tmp_path: Path) -> None:
    sessions = made(sources, photo, upload=True)
    uploaded = sessions.uploaded("visitor", folder(tmp_path / "upload", 7))
    assert sessions.is_upload(uploaded)
    assert not sessions.is_upload(sources[0])
    sessions.close("visitor")
    assert not sessions.is_upload(uploaded)


def test_fault_15_the_model_is_loaded_once(
    sources: tuple[str, ...], photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def count(name: str) -> ViT:
        loaded.append(name)
        return tiny.model()

    monkeypatch.setattr("vitviz.server.menu.zoo.load", count)
    sessions = made(sources, photo)
    for visitor in ("a", "b"):
        for side in (WIDTH, 2 * WIDTH):
            sessions.open(visitor, photo, sources[0], side)
    assert loaded == [sources[0]]
