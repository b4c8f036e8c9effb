"""The example photographs: what the app counts on, and what their licences ask for."""

import io
import json
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "scripts"))

from make_examples import ITEMS, LONGER_SIDE, SKIMAGE, Example, photograph, qt_resource, source  # noqa: E402

INDEX = json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8"))


def test_index_files_and_table_agree() -> None:
    names = [entry["file"] for entry in INDEX]
    assert len(names) == 8
    assert sorted(names) == sorted(path.name for path in EXAMPLES.glob("*.jpg"))
    told = [(entry["file"], entry["label"], tuple(entry["classes"])) for entry in INDEX]
    assert told == [(item.file, item.label, item.classes) for item in ITEMS]
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    for item, row in zip(ITEMS, rows, strict=True):
        with Image.open(EXAMPLES / item.file) as image:
            pixels = f"{image.width} × {image.height}"
        facts = (item.file, item.label, *item.classes, item.author, item.licence, item.package, item.member, pixels)
        assert all(fact in row for fact in facts)
        assert item.licence in {"CC0-1.0", "public domain"}


def test_photographs_are_plain_jpegs_of_a_useful_size() -> None:
    labels, sizes = [entry["label"] for entry in INDEX], []
    assert len(set(labels)) == len(labels)
    assert all(5 <= len(label) <= 80 for label in labels)  # they are read out
    for entry in INDEX:
        with Image.open(EXAMPLES / entry["file"]) as image:
            image.load()
            sizes.append(image.size)
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert 400 <= max(image.size) <= LONGER_SIDE
            assert len(image.getexif()) == 0
            assert not {"exif", "icc_profile", "comment", "xmp", "photoshop"} & set(image.info)
    assert {width > height for width, height in sizes} == {True, False}  # portrait and landscape
    assert sum(path.stat().st_size for path in EXAMPLES.iterdir()) <= 2 * 2**20


@pytest.mark.parametrize("item", [item for item in ITEMS if item.package == SKIMAGE], ids=lambda item: item.name)
def test_the_script_makes_the_same_picture_again(item: Example) -> None:
    """From scikit-image, which the tests install; the others need a Debian package that they do not."""
    made, _ = photograph(source(item, Path("unused")))
    with Image.open(EXAMPLES / item.file) as kept, Image.open(io.BytesIO(made)) as again:
        assert kept.size == again.size
        difference = max(abs(a - b) for a, b in zip(kept.tobytes(), again.tobytes(), strict=True))
    assert difference <= 2  # another libjpeg may round another way


def test_another_file_than_the_listed_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "animals.rcc").write_bytes(resource({"koala.webp": b"another picture"}))
    item = replace(ITEMS[0], member="animals.rcc/resource/koala.webp")
    with pytest.raises(ValueError, match="is another file than in gcompris-qt-data"):
        source(item, tmp_path)


def test_files_are_read_from_a_qt_archive() -> None:
    pictures = {"first.webp": b"plain", "second.webp": b"packed " * 50}
    archive = resource(pictures)
    assert {name: qt_resource(archive, f"resource/{name}") for name in pictures} == pictures
    with pytest.raises(ValueError, match="found 0"):
        qt_resource(archive, "resource/third.webp")
    with pytest.raises(ValueError, match="starts with 'qres'"):
        qt_resource(b"RIFF" + archive[4:], "resource/first.webp")


def resource(pictures: dict[str, bytes]) -> bytes:
    """A Qt resource archive of version 1 with a folder `resource`; every second file is compressed."""
    names, data, nodes = b"", b"", [struct.pack(">IHII", 0, 2, 1, 1)]

    def named(text: str) -> int:
        nonlocal names
        start = len(names)
        names += struct.pack(">HI", len(text), 0) + text.encode("utf-16-be")
        return start

    nodes.append(struct.pack(">IHII", named("resource"), 2, len(pictures), 2))
    for number, (name, content) in enumerate(pictures.items()):
        packed = struct.pack(">I", len(content)) + zlib.compress(content) if number % 2 else content
        nodes.append(struct.pack(">IHII", named(name), number % 2, 0, len(data)))
        data += struct.pack(">I", len(packed)) + packed
    tree = b"".join(nodes)
    return struct.pack(">4s4I", b"qres", 1, 20, 20 + len(tree), 20 + len(tree) + len(data)) + tree + data + names
