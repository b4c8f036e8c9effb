"""Create examples/: the photographs, their index and the table of their sources.

Photographs come from two packages and are verified by SHA-256:

- Debian's `gcompris-qt-data`, an educational game, whose README files name the author, licence and source of each
  photograph. Run `apt-get install gcompris-qt-data`, or `apt-get download gcompris-qt-data && dpkg -x
  gcompris-qt-data_*.deb gcompris` with `--gcompris gcompris`.
- scikit-image from the Python Package Index, one of the development requirements.

Usage: `python scripts/make_examples.py [--gcompris FOLDER]`. The same versions of the packages and Pillow produce
identical files.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

EXAMPLES = Path(__file__).parents[1] / "examples"
LONGER_SIDE = 1024  # pixels; smaller photographs are not resized
QUALITY = 88

GCOMPRIS = "gcompris-qt-data 3.1-2 (Debian 12)"
SKIMAGE = "scikit-image 0.26.0 (Python index)"
COMMONS = "https://commons.wikimedia.org/wiki/File:"


@dataclass(frozen=True, kw_only=True)
class Example:
    """Photograph with its names in the app and its source."""

    file: str
    name: str  # on its button
    label: str  # description of the picture, also for screen readers
    classes: tuple[str, ...]  # labels that count as correct, for any model
    author: str
    licence: str
    origin: str  # web page of the original
    package: str
    member: str  # path in the package; for gcompris inside an archive: "archive.rcc/path"
    sha256: str


# In the order of the app, which opens the first one.
ITEMS = (
    Example(
        file="church.jpg",
        name="Church",
        label="Church: Berlin Cathedral behind a row of trees",
        classes=("church",),
        author="Gary Todd",
        licence="CC0-1.0",
        origin=COMMONS + "Berlin_Cathedral_(28668994926).jpg",
        package=GCOMPRIS,
        member="explore_monuments.rcc/resource/germany/berlinCathedral.webp",
        sha256="b552994f64727ceaa04218d6a5e7a86b08cb8b550c1eeae0b010f857286d308e",
    ),
    Example(
        file="dog.jpg",
        name="Dog",
        label="Dog: a German shepherd on a meadow",
        classes=("German shepherd", "dog"),
        author="Hans Kemperman",
        licence="public domain",
        origin=COMMONS + "German-shepherd-4040871920._(2).jpg",
        package=GCOMPRIS,
        member="explore_farm_animals.rcc/resource/animals/dog.webp",
        sha256="5e9d9544495740101e4cfff817d986b683731112b2cf17fde2e4c2a26c3c5314",
    ),
    Example(
        file="lizard.jpg",
        name="Lizard",
        label="Lizard on a twig of the same colour",
        classes=("lizard", "agama"),
        author="Nilesh1104",
        licence="public domain",
        origin=COMMONS + "GARDEN_CHAMELEON.jpeg",
        package=GCOMPRIS,
        member="explore_world_animals.rcc/resource/animals/chameleon.webp",
        sha256="f3ececf0133c1301227fdea62d74bce7bcc0d138b048714b116aa4a0744260d5",
    ),
    Example(
        file="cat.jpg",
        name="Cat",
        label="Cat: Chelsea looks into the camera",
        classes=("cat", "tabby", "tiger cat", "Egyptian cat"),
        author="Stefan van der Walt",
        licence="CC0-1.0",
        origin="https://scikit-image.org/docs/stable/api/skimage.data.html#skimage.data.chelsea",
        package=SKIMAGE,
        member="data/chelsea.png",
        sha256="596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    ),
    Example(
        file="giraffe.jpg",
        name="Giraffe",
        label="Two giraffes among bare trees",
        classes=("giraffe",),
        author="Mike and Lara Wolfe",
        licence="CC0-1.0",
        origin=COMMONS + "Giraffe_courtship_(25657342808).jpg",
        package=GCOMPRIS,
        member="explore_world_animals.rcc/resource/animals/giraffe.webp",
        sha256="68014ed783cf6a8b8c9c4202cf2c467a34819dab08bf566e93d5fcd872e41f5c",
    ),
    Example(
        file="panda.jpg",
        name="Panda",
        label="Giant panda on a rock",
        classes=("giant panda",),
        author="Jeff Kubina",
        licence="public domain",
        origin=COMMONS + "Giant_Panda_2004-03-2.jpg",
        package=GCOMPRIS,
        member="explore_world_animals.rcc/resource/animals/panda.webp",
        sha256="70ccf9a9db5008100eb6955ae25fabd4f7769427be784d627cf6315f6dfce692",
    ),
    Example(
        file="koala.jpg",
        name="Koala",
        label="Koala in the fork of a tree",
        classes=("koala",),
        author="BurningWell",
        licence="public domain",
        origin=COMMONS + "Koala_Perth_Zoo.jpg",
        package=GCOMPRIS,
        member="explore_world_animals.rcc/resource/animals/koala.webp",
        sha256="77b243c27d79f3f5706497af5c1e8e9134f87d634def2b81e2074b572b575d18",
    ),
    Example(
        file="hedgehog.jpg",
        name="Hedgehog",
        label="Hedgehog in the grass",
        classes=("hedgehog",),
        author="George Chernilevsky",
        licence="public domain",
        origin=COMMONS + "Erinaceus_roumanicus_2020_G2.jpg",
        package=GCOMPRIS,
        member="explore_world_animals.rcc/resource/animals/hedgehog.webp",
        sha256="780aceaa624415db1f6ff304ed13e804572686316e69d21ee0e13856ef173f7e",
    ),
)

README = """# Example photographs

The app shows these photographs in the order of `index.json`, which also contains their descriptions for screen
readers. All are in the public domain or under CC0 and come from the packages named here. They were only scaled down
(to at most {longer} pixels on the longer side) and saved as JPEG (quality {quality}) without metadata.
`scripts/make_examples.py` writes this folder, including this text.

The column "right" lists the classes that count as correct. If a model has none of them, or predicts another class,
the page shows a note beside its predictions.

| file | what | right | pixels | author | licence | origin | package |
|---|---|---|---|---|---|---|---|
{rows}
"""


def qt_resource(archive: bytes, path: str) -> bytes:
    """Read the file whose path ends with `path` from a Qt resource archive (.rcc).

    The header contains the offsets of a tree of nodes, of the data and of the names. A node is a folder with the index
    of its first child, or a file with the offset of its data, which is plain or compressed with zlib.
    """
    magic, version, tree, data, names = struct.unpack(">4s4I", archive[:20])
    if magic != b"qres":
        raise ValueError("Expected a Qt resource archive, which starts with 'qres'.")
    step = 14 if version == 1 else 22

    def files(node: int, prefix: str) -> list[tuple[str, int, int]]:
        start = tree + step * node
        name, flags, first, second = struct.unpack(">IHII", archive[start : start + 14])
        (length,) = struct.unpack(">H", archive[names + name : names + name + 2])
        text = archive[names + name + 6 : names + name + 6 + 2 * length].decode("utf-16-be") if node else ""
        full = f"{prefix}/{text}"
        if flags & 2:  # a folder with `first` children from index `second`
            return [entry for child in range(second, second + first) for entry in files(child, full)]
        return [(full, flags, second)]

    matches = [(flags, offset) for name, flags, offset in files(0, "") if name.endswith("/" + path)]
    if len(matches) != 1:
        raise ValueError(f"Expected one file {path} in the archive, got {len(matches)}.")
    [(flags, offset)] = matches
    (size,) = struct.unpack(">I", archive[data + offset : data + offset + 4])
    content = archive[data + offset + 4 : data + offset + 4 + size]
    if flags & 4:
        raise ValueError(f"{path} is compressed with zstd, which this script cannot read.")
    return zlib.decompress(content[4:]) if flags & 1 else content


def source(example: Example, gcompris: Path) -> bytes:
    """Return the verified bytes of a photograph in its package."""
    if example.package == GCOMPRIS:
        archive, _, path = example.member.partition("/")
        content = qt_resource((gcompris / archive).read_bytes(), path)
    else:
        spec = importlib.util.find_spec("skimage")
        if spec is None or spec.origin is None:
            raise ValueError("Expected scikit-image, got none. Run pip install -r requirements-dev.txt.")
        content = (Path(spec.origin).parent / example.member).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != example.sha256:
        raise ValueError(f"{example.member} differs from the file in {example.package}: SHA-256 {digest}.")
    return content


def photograph(content: bytes) -> tuple[bytes, tuple[int, int]]:
    """Return a photograph as an upright JPEG of limited size without metadata, and its (width, height)."""
    with Image.open(io.BytesIO(content)) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    image.thumbnail((LONGER_SIDE, LONGER_SIDE), Image.Resampling.LANCZOS)
    image.info.clear()  # Pillow would copy comments
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, optimize=True, progressive=True)
    return out.getvalue(), image.size


def archives(folder: Path) -> Path:
    """Return the folder of the .rcc archives, at or below `folder`."""
    for candidate in (folder, folder / "usr/share/gcompris-qt/rcc", folder / "share/gcompris-qt/rcc"):
        if (candidate / "erase.rcc").is_file():
            return candidate
    raise ValueError(
        f"Expected GCompris archives (erase.rcc and others) in {folder}, got none. Install {GCOMPRIS}, or unpack it "
        "and name its folder (--gcompris)."
    )


def main() -> int:
    """Write the photographs, index.json and README.md; return 2 if a source is missing or differs."""
    parser = argparse.ArgumentParser(description="Make examples/.")
    parser.add_argument("--gcompris", type=Path, default=Path("/"), help="folder of gcompris-qt-data (default: /)")
    gcompris = parser.parse_args().gcompris
    try:
        folder = archives(gcompris)
        photographs = [(example, *photograph(source(example, folder))) for example in ITEMS]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    rows = []
    for example, content, (width, height) in photographs:
        (EXAMPLES / example.file).write_bytes(content)
        origin = f"[original]({example.origin.replace('(', '%28').replace(')', '%29')})"
        cells = [f"`{example.file}`", example.label, ", ".join(example.classes), f"{width} × {height}"]
        cells += [example.author, example.licence, origin, f"{example.package}: `{example.member}`"]
        rows.append(f"| {' | '.join(cells)} |")
        print(f"{example.file:16} {width:4} x {height:<4} {len(content) / 1024:5.0f} KiB")
    index = [{key: getattr(example, key) for key in ("file", "name", "label", "classes")} for example in ITEMS]
    (EXAMPLES / "index.json").write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    text = README.format(longer=LONGER_SIDE, quality=QUALITY, rows="\n".join(rows))
    (EXAMPLES / "README.md").write_text(text, encoding="utf-8")
    print(f"{sum(len(content) for _, content, _ in photographs) / 2**20:.2f} MiB in total")
    return 0


if __name__ == "__main__":
    sys.exit(main())
