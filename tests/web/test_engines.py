"""Test pages in Firefox, which `make test-engines` installs."""

from __future__ import annotations

import base64
import io
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from firefox import Tab, find_firefox, new_tab
from offered import folder, photograph
from PIL import Image
from static_site import Site, serve

from vitviz.explorer import Explorer
from vitviz.export.static import write_site
from vitviz.view import View
from vitviz.web.examples import Example
from vitviz.weights import zoo

pytestmark = [pytest.mark.tier("engines"), pytest.mark.timeout(900)]
RESISTING = {"privacy.resistFingerprinting": True}
COLOR = (200, 60, 20)
SCENE = "vitviz.store.get().scene"
SAID = "document.querySelector('#notice').textContent"
REASON = "changes them against fingerprinting"
Open = Callable[[dict[str, Any]], AbstractContextManager[Tab]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("models") / "tiny", half=True)


@pytest.fixture(scope="module")
def site(source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site whose example has one color and is cropped at the left and right."""
    place = tmp_path_factory.mktemp("site")
    Image.new("RGB", (900, 300), COLOR).save(place / "plain.png")
    write_site(place / "site", [source], photographs=[Example(place / "plain.png", "Plain", "")], tell=lambda _: None)
    with serve(place / "site") as served:
        yield served


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "mine.png"
    path.write_bytes(photograph(5, 320, 200))
    return path


@pytest.fixture
def firefox() -> str:
    path = find_firefox()
    assert path, "no Firefox on this machine: install firefox-esr"
    return path


def allow_canvas(profile: Path, origin: str) -> None:
    """Allow a site to read canvas data, like the button next to the address."""
    profile.mkdir()
    with sqlite3.connect(profile / "permissions.sqlite") as database:
        database.execute("PRAGMA user_version = 12")
        database.execute(
            "CREATE TABLE moz_perms (id INTEGER PRIMARY KEY, origin TEXT, type TEXT, permission INTEGER,"
            " expireType INTEGER, expireTime INTEGER, modificationTime INTEGER)"
        )
        allowed, for_ever = 1, (0, 0)
        database.execute(
            "INSERT INTO moz_perms VALUES (1, ?, 'canvas', ?, ?, ?, 1)", (origin.rstrip("/"), allowed, *for_ever)
        )
    database.close()


def ready(tab: Tab, url: str) -> None:
    tab.open(url)
    tab.wait_for("window.vitviz?.drawn > 0 && !vitviz.progress.first && vitviz.resting()")


def seen_around(tab: Tab) -> np.ndarray:
    """Return the visible parts of the photograph that are outside the model's input: (h, w, 3)."""
    box = tab.evaluate(
        "() => { const { x, y, width, height } = document.querySelector('.vv-pane canvas').getBoundingClientRect();"
        " return { x, y, width, height }; }"
    )
    reply = tab.send("browsingContext.captureScreenshot", {"context": tab.context, "clip": {"type": "box", **box}})
    with Image.open(io.BytesIO(base64.b64decode(reply["data"]))) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=float)
    edge = pixels.shape[1] // 4
    return np.concatenate([pixels[10:-10, 10:edge], pixels[10:-10, -edge:-10]], axis=1)


def test_firefox_resisting_fingerprinting_refuses_to_compute_and_save(
    firefox: str, site: Site, mine: Path, tmp_path: Path
) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    options = {"browser.download.dir": str(downloads), "browser.download.folderList": 2}
    site.log.clear()
    with new_tab(firefox, tmp_path, RESISTING | options) as tab:
        ready(tab, site.url)
        example = tab.evaluate(f"() => {SCENE}.id")
        assert "thing" in tab.evaluate("() => document.querySelector('.vv-predictions').textContent")
        assert seen_around(tab).std(axis=(0, 1)).max() < 10, "no stripes"

        tab.evaluate("() => document.querySelector('[data-do=picture]').click()")
        tab.wait_for(f"{SAID}.includes('could not be saved')")
        assert REASON in tab.evaluate(f"() => {SAID}")
        assert not list(downloads.iterdir())

        tab.evaluate("() => document.querySelector('[data-tab=explain]').click()")
        tab.wait_for(f"document.querySelector('.vv-explain .vv-trouble').textContent.includes({REASON!r})")

        tab.set_files("#photo input[type=file]", mine)
        tab.wait_for(f"{SAID}.includes({REASON!r}) && !{SAID}.includes('could not be saved')")
        assert tab.evaluate(f"() => {SCENE}.id") == example
        assert not tab.problems
    assert not [path for path in site.log if "weights" in path], "nothing is loaded unnecessarily"


def test_firefox_with_canvas_permission_matches_python(
    firefox: str, site: Site, source: str, mine: Path, tmp_path: Path
) -> None:
    allow_canvas(tmp_path / "profile", site.url)
    with new_tab(firefox, tmp_path, RESISTING) as tab:
        ready(tab, site.url)
        tab.set_files("#photo input[type=file]", mine)
        tab.wait_for(f"{SCENE}?.source.photo && !vitviz.progress.first", seconds=120)
        manifest = tab.evaluate(f"() => vitviz.scenes.get({SCENE}.id).manifest")
        assert not tab.problems
    view: View = Explorer(zoo.load(source)).open(mine)
    predictions = {label: share for label, share, _ in manifest["predictions"]}
    assert predictions == pytest.approx(dict(view.predictions()), abs=1e-4)
