"""Write a static site once for the tests of all workers."""

import os
from pathlib import Path

import pytest
from filelock import FileLock
from offered import folder, photograph

from vitviz.lecture.texts import FILES
from vitviz.site import static
from vitviz.site.static import write_site
from vitviz.web.examples import Example

OWN_TEXT = "# My embedding\n\nA text.\n\n## A question?\n\nAn answer.\n"
# Grids follow the photographs. The app's model "registers" has the same graphs, which are exported only once.
MODEL = {"mode": "native", "half": True, "pooling": "cls+mean", "registers": 2}


def write_files(place: Path, source: str) -> Path:
    """Write a site with one model, two examples and a lecturer's text; return its folder."""
    names = ("Noise", "Dog")
    for seed, name in enumerate(names):
        (place / f"{name}.png").write_bytes(photograph(1000 + seed))
    examples = [Example(place / f"{name}.png", name, "It shows nothing") for name in names]
    (place / "texts" / "zh").mkdir(parents=True)
    (place / "site").mkdir()
    (place / "site" / "old.bin").write_bytes(b"of an earlier site")
    (place / "site" / static.MARK).write_text('const SITE = {"files": ["./", "old.bin", "../Noise.png"]};\n')
    (place / "texts" / "zh" / FILES[2]).write_text(OWN_TEXT, encoding="utf-8")
    options = {"photographs": examples, "space": True, "texts": place / "texts"}
    write_site(place / "site", [source], **options, tell=lambda _: None)
    assert examples[0].path.exists()
    assert not (place / "site" / "old.bin").exists()
    return place / "site"


def written_once(temporary: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, "tiny", its site, "site", and "Noise.png".

    The first worker of pytest-xdist that needs the folder writes it, and the others wait.
    """
    base = temporary.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    written = shared / "static-site.txt"
    with FileLock(f"{written}.lock"):
        if not written.exists():
            place = temporary.mktemp("static")
            write_files(place, folder(place / "tiny", **MODEL))
            written.write_text(str(place), encoding="utf-8")
    return Path(written.read_text(encoding="utf-8"))
