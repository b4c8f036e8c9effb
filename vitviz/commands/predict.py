"""What a model sees in photographs: printed, or as pictures with the answer and where it looked."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitviz.commands.options import Commands, add_model, add_size, open_explorer
from vitviz.explorer import Explorer
from vitviz.folders import find_images
from vitviz.image import ImageError
from vitviz.render.answers import Answer, answer_picture, answer_sheet, fitted, mapped
from vitviz.view import View

ON_A_SHEET = 60
SHEET = re.compile(r"sheet(-\d+)?\.png")
SIDE = 128  # of a picture on a sheet, in pixels


@dataclass(frozen=True)
class Photo:
    """A photograph to look at.

    Args:
        path: where it is, as it was typed or found.
        picture: what is written about it, below the folder for pictures.
    """

    path: Path
    picture: Path


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Predict."""
    command = commands.add_parser("predict", help="the most probable classes of photographs")
    command.add_argument("photos", nargs="+", metavar="FILE_OR_FOLDER", help="image files, and folders of them")
    command.add_argument("-k", type=int, default=5, help="how many classes (default: 5)")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="write a picture for each photograph, with the answer and where the model looked, and sheets of all",
    )
    add_size(command)
    add_model(command)
    command.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> None:
    out = Path(args.output) if args.output else None
    photos = find_photos(args.photos, out)
    explorer = open_explorer(args)
    told: list[dict[str, Any]] = []
    answers: list[Answer] = []
    broken: list[tuple[Path, ImageError]] = []
    for photo in photos:
        try:
            view = explorer.open(photo.path, size=args.size)
        except ImageError as error:
            broken.append((photo.path, error))
            told.append({"photo": str(photo.path), "error": str(error)})
            continue
        ranked = view.predictions(args.k)
        told.append({"photo": str(photo.path), "predictions": [{"label": one, "probability": p} for one, p in ranked]})
        if not args.json:
            print(photo.path, *(f"  {p:7.2%}  {label}" for label, p in ranked), sep="\n", flush=True)
        if out:
            answers.append(_written(view, ranked, photo, out))
    if args.json:
        single = len(args.photos) == 1 and not Path(args.photos[0]).is_dir()
        print(json.dumps(told[0] if single else told, indent=2, ensure_ascii=False))
    if out and answers:
        sheets = _write_sheets(answers, explorer, out)
        if not args.json:
            print(f"{len(answers)} pictures and {sheets} -> {out}")
    _complain(broken, len(photos))


def find_photos(given: Sequence[str], out: Path | None = None) -> list[Photo]:
    """The photographs that are meant, folders with all that is below them, in order and each once.

    Args:
        given: files and folders. A file need not be there: opening it says so.
        out: the folder for pictures. What lies in it is no photograph, where it lies in one of the folders itself.

    Raises:
        ValueError: if a folder has no images, or a picture would take the place of a photograph.
    """
    found: dict[Path, Path] = {}  # where it is -> its place below the folder that was given
    for name in given:
        path = Path(name)
        place = path if path.is_dir() else path.parent
        if out and out.resolve() == place.resolve():
            raise ValueError(f"-o: expected another folder than the one of the photographs, got {str(out)!r}.")
        if not path.is_dir():
            found.setdefault(path, Path(path.name))
            continue
        below = Path() if len(given) == 1 else Path(path.resolve().name)
        for image in (image for images in find_images(path).values() for image in images):
            if not _lies_in_both(image, path, out):
                found.setdefault(image, below / image.relative_to(path))
    photos = [Photo(path, picture) for path, picture in zip(found, _names(found.values()), strict=True)]
    if out:
        taken = {str(path.resolve()).casefold() for path in found}  # a disk may not tell Dog from dog
        if over := [one.picture for one in photos if str((out / one.picture).resolve()).casefold() in taken]:
            raise ValueError(f"-o: {str(out / over[0])!r} is a photograph; expected a folder without them.")
    return photos


def _lies_in_both(image: Path, folder: Path, out: Path | None) -> bool:
    """Whether an image of a folder is one of the pictures that were written into it before."""
    if out is None:
        return False
    own, written = folder.resolve(), out.resolve()
    return own in written.parents and written in image.resolve().parents


def _names(places: Iterable[Path]) -> list[Path]:
    """Names of pictures: dog.jpg becomes dog.png, where there is no dog.webp too; never that of a sheet."""
    names: list[Path] = []
    taken = set[str]()
    for place in places:
        shapes = ("{0.stem}.png", "{0.name}.png", *(f"{{0.name}}-{count}.png" for count in range(2, len(taken) + 4)))
        tries = (place.with_name(shape.format(place)) for shape in shapes)
        # A disk may not tell Dog from dog.
        name = next(one for one in tries if str(one).casefold() not in taken and not SHEET.fullmatch(str(one)))
        taken.add(str(name).casefold())
        names.append(name)
    return names


def _written(view: View, ranked: list[tuple[str, float]], photo: Photo, out: Path) -> Answer:
    """Write one photograph's picture; what the sheet shows of it."""
    heatmap = view.attention()
    path = out / photo.picture
    path.parent.mkdir(parents=True, exist_ok=True)
    answer_picture(heatmap, ranked, title=photo.path.name).save(path)
    label, probability = ranked[0]
    return Answer((fitted(heatmap.photo, SIDE), mapped(heatmap, SIDE)), label, probability)


def _write_sheets(answers: Sequence[Answer], explorer: Explorer, out: Path) -> str:
    """Sheets of at most `ON_A_SHEET` photographs each; their names, for people."""
    about = explorer.model.pretrained
    pages = [answers[start : start + ON_A_SHEET] for start in range(0, len(answers), ON_A_SHEET)]
    names = ["sheet.png"] if len(pages) == 1 else [f"sheet-{number}.png" for number in range(1, len(pages) + 1)]
    title = f"{about.name if about else 'a model'}: {len(answers)} photographs"
    words = "Beside each photograph the attention of the last layer, mean of its heads; each map has its own scale."
    for number, (name, page) in enumerate(zip(names, pages, strict=True), 1):
        part = f", {number} of {len(pages)}" if len(pages) > 1 else ""
        answer_sheet(page, title=title + part, words=words, side=SIDE).save(out / name)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _complain(broken: Sequence[tuple[Path, ImageError]], photos: int) -> None:
    """An error that names every file that could not be read, where there is one; the others are done by now.

    Raises:
        ImageError: for one photograph that is broken.
        ValueError: for some of many.
    """
    if broken and photos == 1:
        raise broken[0][1]
    if broken:
        several = "".join(f"\n  {path}: {error}" for path, error in broken)
        raise ValueError(f"{len(broken)} of {photos} photographs cannot be read, the others are done:{several}")
