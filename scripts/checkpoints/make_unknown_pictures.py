"""Draw pictures that show no class of the everyday model, to measure whether it recognizes them as unknown.

    python scripts/checkpoints/make_unknown_pictures.py FOLDER

Writes FOLDER/KIND/NN.jpg: text, tables, screens, charts, shapes, gradients, noise, blank pictures, and crops of
scikit-image's textures, `--count` of each kind (default 40), with a fixed seed.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from skimage import data

SEED = 20261123
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from they which".split()  # noqa: SIM905


def _color(rng: np.random.Generator, low: int = 0, high: int = 255) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in rng.integers(low, high + 1, 3))
    return red, green, blue


def _sentence(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words)).capitalize() + "."


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def text(rng: np.random.Generator) -> Image.Image:
    """Return a page of text."""
    image = Image.new("RGB", (int(rng.integers(240, 420)), int(rng.integers(240, 420))), _color(rng, 220))
    size, draw = int(rng.integers(11, 26)), ImageDraw.Draw(image)
    for top in range(10, image.height, round(size * 1.4)):
        draw.text((12, top), _sentence(rng, 12), fill=_color(rng, 0, 70), font=_font(size))
    return image


def table(rng: np.random.Generator) -> Image.Image:
    """Return a table of numbers with ruled lines."""
    image = Image.new("RGB", (400, 300), "white")
    draw, across, down = ImageDraw.Draw(image), int(rng.integers(40, 90)), int(rng.integers(18, 34))
    head = _color(rng, 150)
    for row, top in enumerate(range(0, 300, down)):
        for left in range(0, 400, across):
            draw.rectangle((left, top, left + across, top + down), fill=None if row else head, outline=(120, 120, 120))
            draw.text((left + 4, top + 3), f"{rng.normal(0, 100):.1f}", fill="black", font=_font(13))
    return image


def screen(rng: np.random.Generator) -> Image.Image:
    """Return a window with a title bar, a list and buttons."""
    image = Image.new("RGB", (420, 280), _color(rng, 225))
    draw, accent = ImageDraw.Draw(image), _color(rng, 30, 160)
    draw.rectangle((0, 0, 420, 26), fill=accent)
    draw.text((8, 5), _sentence(rng, 3), fill="white", font=_font(13))
    draw.rectangle((0, 26, 110, 280), fill=_color(rng, 200, 240))
    for index in range(9):
        draw.text((8, 36 + 24 * index), str(rng.choice(WORDS)), fill=(40, 40, 40), font=_font(13))
    for index in range(int(rng.integers(2, 6))):
        top = 40 + 42 * index
        draw.rounded_rectangle((124, top, 404, top + 34), 6, fill="white", outline=(190, 190, 190))
        draw.text((134, top + 9), _sentence(rng, 5), fill=(50, 50, 50), font=_font(12))
    draw.rounded_rectangle((320, 246, 404, 272), 6, fill=accent)
    return image


def chart(rng: np.random.Generator) -> Image.Image:
    """Return a matplotlib chart."""
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes, kind = figure.subplots(), int(rng.integers(4))
    if kind == 0:
        for _ in range(int(rng.integers(1, 5))):
            axes.plot(rng.normal(size=40).cumsum())
    elif kind == 1:
        axes.bar(range(8), rng.random(8), color=rng.random(3))
    elif kind == 2:
        axes.scatter(*rng.normal(size=(2, 80)), c=rng.random(80))
    else:
        axes.imshow(rng.random((8, 8)))
    axes.set_title(_sentence(rng, 3))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return Image.open(file).convert("RGB")


def shapes(rng: np.random.Generator) -> Image.Image:
    """Return circles, rectangles and lines of random colors."""
    image = Image.new("RGB", (300, 300), _color(rng))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(2, 12))):
        left, right = sorted(rng.integers(0, 300, 2).tolist())
        top, bottom = sorted(rng.integers(0, 300, 2).tolist())
        draw_shape = (draw.ellipse, draw.rectangle)[int(rng.integers(2))]
        draw_shape((left, top, right, bottom), fill=_color(rng))
        draw.line((left, bottom, right, top), fill=_color(rng), width=int(rng.integers(1, 9)))
    return image


def gradient(rng: np.random.Generator) -> Image.Image:
    """Return a smooth gradient between four colors."""
    corners = rng.integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize((280, 220), Image.Resampling.BICUBIC)


def noise(rng: np.random.Generator) -> Image.Image:
    """Return noise of random coarseness."""
    side = int(2 ** rng.integers(2, 9))
    return Image.fromarray(rng.integers(0, 256, (side, side, 3)).astype(np.uint8)).resize((256, 256))


def blank(rng: np.random.Generator) -> Image.Image:
    """Return one color with a little noise, as from a covered lens."""
    pixels = np.array(_color(rng)) + rng.normal(0, rng.uniform(0, 4), (240, 320, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def texture(rng: np.random.Generator) -> Image.Image:
    """Return a tinted crop of brick, grass, gravel, a microscope image or a similar texture."""
    names = ("brick", "grass", "gravel", "immunohistochemistry", "human_mitosis", "moon", "page", "text", "coins")
    available = [name for name in names if (picture := _load(name)) is not None and min(picture.shape[:2]) >= 128]
    pixels = _load(str(rng.choice(available)))
    assert pixels is not None
    side = int(rng.integers(min(120, *pixels.shape[:2]), min(pixels.shape[:2]) + 1))
    top, left = (int(rng.integers(0, length - side + 1)) for length in pixels.shape[:2])
    image = Image.fromarray(pixels[top : top + side, left : left + side]).convert("RGB")
    return Image.blend(image, Image.new("RGB", image.size, _color(rng)), float(rng.uniform(0, 0.3)))


def _load(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None:
    """Return a scikit-image example picture, or `None` if it is not in the wheel and cannot be downloaded."""
    try:
        return np.asarray(getattr(data, name)())
    except (OSError, ImportError):
        return None


KINDS: dict[str, Callable[[np.random.Generator], Image.Image]] = {
    "text": text, "table": table, "screen": screen, "chart": chart, "shapes": shapes, "gradient": gradient,
    "noise": noise, "blank": blank, "texture": texture,
}  # fmt: skip


def main() -> None:
    """Draw each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder for KIND/NN.jpg")
    parser.add_argument("--count", type=int, default=40, metavar="N", help="pictures of each kind (default: 40)")
    args = parser.parse_args()
    for kind, draw in KINDS.items():
        (args.folder / kind).mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([SEED, *kind.encode()])
        for index in range(args.count):
            draw(rng).save(args.folder / kind / f"{index:02}.jpg", quality=88)


if __name__ == "__main__":
    main()
