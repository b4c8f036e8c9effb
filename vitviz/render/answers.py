"""Photographs with a model's answers: one by itself, or many on a sheet, right and wrong ones told apart.

Nothing is told by colour alone: a right answer has a tick, a wrong one a cross and the true class below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw, ImageFont

from vitviz.preprocess import Geometry
from vitviz.render.colorbar import DARK, LIGHT, Colour, Theme
from vitviz.render.colors import OverlayError
from vitviz.render.overlay import font, overlay
from vitviz.render.sheet import MapLike, shorten, wrap

TICK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"
GREEN: dict[bool, Colour] = {False: (0, 112, 60), True: (92, 200, 140)}
RED: dict[bool, Colour] = {False: (186, 26, 26), True: (255, 138, 128)}
"""Colours of right and wrong answers that read on the light ground (False) and on the dark one (True)."""
CRISP = 2  # a picture that has to be enlarged at least so often shows its pixels, each as a square of one size
CMAP = "magma"  # dark where it does not look: the photograph keeps its own colours there


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model said of one photograph.

    Args:
        pictures: what a sheet shows of it, side by side: the photograph, a map over it, or several.
        label: the most probable class.
        probability: of that class, 0..1; `None` leaves it out.
        truth: the true class, where it is known.
        right: whether the label's class is the true one; `None` where that is not known.
    """

    pictures: tuple[Image.Image, ...]
    label: str
    probability: float | None = None
    truth: str | None = None
    right: bool | None = None

    @property
    def words(self) -> str:
        """The answer in a line: "✓ church 97 %"."""
        mark = {None: "", True: f"{TICK} ", False: f"{CROSS} "}[self.right]
        return f"{mark}{self.label}" + ("" if self.probability is None else f" {percent(self.probability)}")


def percent(share: float) -> str:
    """A probability for people, without digits that mean nothing; never 100 % or 0 %, which no softmax says."""
    shown = 100 * share
    return ">99 %" if shown >= 99.5 else "<1 %" if shown < 0.5 else f"{shown:.0f} %"


def fitted(photo: Image.Image, side: int) -> Image.Image:
    """The photograph with its longer side at most `side` pixels, as an RGB picture.

    A very small one is enlarged by a whole number, pixel by pixel: smoothing would invent what is not in it.
    """
    longest = max(photo.size)
    if side >= CRISP * longest:
        factor = side // longest
        size = photo.width * factor, photo.height * factor
        return photo.convert("RGB").resize(size, Image.Resampling.NEAREST)
    size = (max(1, round(photo.width * side / longest)), max(1, round(photo.height * side / longest)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def mapped(heatmap: MapLike, side: int, *, alpha: float = 0.55, cmap: str = CMAP) -> Image.Image:
    """A map over its photograph, drawn at the size of `fitted` so that the edges of patches stay sharp."""
    photo = fitted(heatmap.photo, side)
    geometry = rescaled(heatmap.geometry, photo.size)
    return overlay(photo, heatmap.values, geometry, alpha=alpha, cmap=cmap, signed=heatmap.signed)


def rescaled(geometry: Geometry, size: tuple[int, int]) -> Geometry:
    """The geometry of the same photograph at another (width, height)."""
    fx, fy = size[0] / geometry.image[0], size[1] / geometry.image[1]
    left, top, right, bottom = geometry.frame
    return replace(geometry, image=size, frame=(left * fx, top * fy, right * fx, bottom * fy))


# --- many on a sheet -------------------------------------------------------------------------------------------------


def answer_sheet(
    answers: Sequence[Answer],
    *,
    title: str = "",
    words: str = "",
    columns: int = 6,
    side: int = 128,
    dark: bool = False,
) -> Image.Image:
    """Many answers in reading order, as one RGB picture.

    Args:
        answers: each with as many pictures as the others, none longer than `side`.
        title, words: above them; long ones wrap.
        columns: answers in a row.
        side: room for a picture, in pixels; the type follows.
        dark: light words on a dark ground.

    Raises:
        OverlayError: for no answers, or pictures that do not fit.
    """
    _check(answers, columns, side)
    theme, size = DARK if dark else LIGHT, max(12, round(side / 15))
    face, bold, head = font(size), font(size, bold=True), font(round(1.5 * size), bold=True)
    margin, gap, line = round(1.8 * size), round(0.9 * size), round(1.35 * size)
    # Pictures of one shape need no room around them: rows are as high as what they hold.
    high = max(picture.height for answer in answers for picture in answer.pictures)
    wide = len(answers[0].pictures) * side + (len(answers[0].pictures) - 1) * (gap // 3)
    lines = 2 if any(answer.truth is not None for answer in answers) else 1
    columns = min(columns, len(answers))
    step_x, step_y = wide + gap, high + round(0.4 * size) + lines * line + gap
    inner = max(columns * step_x - gap, 20 * size)
    heading, below = wrap(title, head, inner), wrap(words, face, inner)
    top = margin + round(1.5 * line) * len(heading) + line * len(below) + (gap if heading or below else 0)
    rows = -(-len(answers) // columns)
    out = Image.new("RGB", (inner + 2 * margin, top + rows * step_y - gap + margin), theme.ground)
    draw, y = ImageDraw.Draw(out), margin
    for text in heading:
        draw.text((margin, y), text, theme.text, head, anchor="la")
        y += round(1.5 * line)
    for text in below:
        draw.text((margin, y), text, theme.muted, face, anchor="la")
        y += line
    for index, answer in enumerate(answers):
        x, y = margin + index % columns * step_x, top + index // columns * step_y
        for place, picture in enumerate(answer.pictures):
            left = x + place * (side + gap // 3)
            out.paste(picture, (left + (side - picture.width) // 2, y + (high - picture.height) // 2))
        _caption(draw, answer, (x, y + high + round(0.4 * size)), wide, (bold, face, line), dark)
    return out


def _check(answers: Sequence[Answer], columns: int, side: int) -> None:
    if not answers:
        raise OverlayError("answer_sheet: expected at least one answer, got none; give it photographs.")
    if columns < 1 or side < 48:
        raise OverlayError(f"answer_sheet: expected at least 1 column and 48 pixels, got {columns} and {side}.")
    if len({len(answer.pictures) for answer in answers}) > 1 or not answers[0].pictures:
        raise OverlayError("answer_sheet: expected as many pictures in each answer as in the others, at least one.")
    largest = max(max(picture.size) for answer in answers for picture in answer.pictures)
    if largest > side:
        raise OverlayError(f"answer_sheet: a picture of {largest} pixels does not fit into {side}; use fitted().")


def _caption(
    draw: ImageDraw.ImageDraw,
    answer: Answer,
    at: tuple[int, int],
    wide: int,
    faces: tuple[ImageFont.FreeTypeFont, ImageFont.FreeTypeFont, int],
    dark: bool,
) -> None:
    """The answer and below it the truth, within `wide` pixels; a long label loses its end, not its probability."""
    (bold, face, line), theme = faces, DARK if dark else LIGHT
    colour = {None: theme.text, True: GREEN[dark], False: RED[dark]}[answer.right]
    label = replace(answer, probability=None).words
    share = "" if answer.probability is None else f" {percent(answer.probability)}"
    label = shorten(label, bold, wide - round(face.getlength(share)))
    draw.text(at, label, colour, bold, anchor="la")
    draw.text((at[0] + bold.getlength(label), at[1]), share, colour, face, anchor="la")
    if answer.truth is not None:
        said = "" if answer.right else f"it is {answer.truth}"
        draw.text((at[0], at[1] + line), shorten(said, face, wide), theme.text, face, anchor="la")


# --- one by itself ---------------------------------------------------------------------------------------------------


def answer_picture(
    heatmap: MapLike,
    ranked: Sequence[tuple[str, float]],
    *,
    title: str = "",
    side: int = 448,
    dark: bool = False,
) -> Image.Image:
    """One photograph, where the model looked, and its most probable classes as bars, as one RGB picture.

    Args:
        heatmap: the map and the photograph below it; its title says what it shows.
        ranked: labels and their probabilities 0..1, the best first; at least one.
        title: stands above, such as the file's name.
        side: the longer side of each of the two pictures, in pixels.
        dark: light words on a dark ground.
    """
    if not ranked:
        raise OverlayError("answer_picture: expected at least one class and its probability, got none.")
    theme, size = DARK if dark else LIGHT, max(11, round(side / 28))
    face, bold, head = font(size), font(size, bold=True), font(round(1.3 * size), bold=True)
    pictures = (fitted(heatmap.photo, side), mapped(heatmap, side))
    margin, line = round(1.8 * size), round(1.35 * size)
    room = max(pictures[0].width, 14 * size)  # for the words below a narrow photograph
    inner = 2 * room + size
    notes = (wrap("the photograph", face, room), wrap(heatmap.title, face, room))
    heading = wrap(title, head, inner)
    top = margin + round(1.6 * line) * len(heading)
    bars = top + pictures[0].height + line * max(map(len, notes)) + 2 * size
    step = round(1.9 * size)
    out = Image.new("RGB", (inner + 2 * margin, bars + step * len(ranked) - step // 3 + margin), theme.ground)
    draw = ImageDraw.Draw(out)
    for index, text in enumerate(heading):
        draw.text((margin, margin + index * round(1.6 * line)), text, theme.text, head, anchor="la")
    for place, picture in enumerate(pictures):
        left = margin + place * (room + size)
        out.paste(picture, (left, top))
        for index, text in enumerate(notes[place]):
            at = (left, top + picture.height + round(0.5 * size) + index * line)
            draw.text(at, text, theme.muted, face, anchor="la")
    for index, (label, share) in enumerate(ranked):
        at, kind = (margin, bars + index * step), bold if index == 0 else face
        _bar(draw, (label, share), at, inner, (kind, size), theme)
    return out


def _bar(
    draw: ImageDraw.ImageDraw,
    answer: tuple[str, float],
    at: tuple[int, int],
    wide: int,
    faces: tuple[ImageFont.FreeTypeFont, int],
    theme: Theme,
) -> None:
    """One class: its label, a bar from 0 to 100 %, its probability."""
    (label, share), (x, y), (face, size) = answer, at, faces
    room, numbers = round(0.38 * wide), 5 * size
    start, end = x + room + size, x + wide - numbers
    draw.text((x, y + size // 2), shorten(label, face, room), theme.text, face, anchor="lm")
    draw.rectangle((start, y, end, y + size), fill=theme.line)
    if (reach := round((end - start) * share)) > 0:
        draw.rectangle((start, y, start + reach, y + size), fill=theme.muted)
    draw.text((x + wide, y + size // 2), f"{100 * share:.2f} %", theme.text, face, anchor="rm")
