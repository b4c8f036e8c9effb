"""Command that classifies photographs: predict."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vitviz.cli import options as shared
from vitviz.cli.options import Args, Command
from vitviz.errors import VitvizError
from vitviz.formatting import output
from vitviz.outputs import REGRESSION
from vitviz.writing import write

if TYPE_CHECKING:
    from vitviz.draw.predictions import Prediction
    from vitviz.explorer import Explorer
    from vitviz.images.limits import ImageError
    from vitviz.view import View

ON_A_SHEET = 60
LONGEST = 255  # bytes of a file's name
SHEET = re.compile(r"sheet(-\d+)?\.png")
SIDE = 128  # of a picture on a sheet, in pixels
OUTPUT = "write a picture of each photograph with its predictions and attention, and contact sheets"


class Photo(NamedTuple):
    """Path of a photograph, and the path of its picture below the output folder."""

    path: Path
    picture: Path


@click.command(cls=Command)
@click.option("-k", type=int, default=5, help="number of classes (default: 5)")
@click.option("-o", "--output", type=shared.PATH, metavar="FOLDER", help=OUTPUT)
@shared.photos
def predict(args: Args) -> None:
    """Print the most probable classes of photographs."""
    # A single unreadable photograph raises its ImageError; among several, it is reported after the others are done.
    from tqdm import tqdm

    from vitviz.images.limits import ImageError
    from vitviz.progress import bar

    out = shared.output_path(args.output, folder=True) if args.output else None
    photos = find_photos(args.photos, out)
    explorer = shared.open_explorer(args)
    records: list[dict[str, Any]] = []
    pictures: list[Prediction] = []
    errors: dict[Path, ImageError] = {}
    with bar(len(photos), iterable=photos, leave=False, show=not args.quiet and len(photos) > 1) as counted:
        for photo in counted:
            try:
                view = explorer.open(shared.photograph(photo.path), size=args.size)
            except ImageError as error:
                errors[photo.path] = error
                records.append({"photo": str(photo.path), "error": str(error)})
                continue
            ranked = view.predictions(args.k)
            records.append(_record(photo, view, ranked))
            if not args.json:
                rows = (f"  {output(value, view.model.problem_type):>8}  {label}" for label, value in ranked)
                with tqdm.external_write_mode():
                    print(photo.path, f"  {view.describe()}", *rows, sep="\n", flush=True)
            if out:
                pictures.append(_write_picture(view, ranked, photo, out))
    if args.json:
        shared.print_json(args, shared.input_size(args, explorer), images=records)
    if out and pictures:
        shared.note(args, f"{len(pictures)} pictures and {_write_sheets(pictures, explorer, out)} -> {out}")
    if errors:
        raise errors[photos[0].path] if len(photos) == 1 else unreadable(errors, len(photos))


def unreadable(errors: Mapping[Any, ImageError], count: int) -> VitvizError:
    """Return the error for those of several photographs that cannot be read."""
    from vitviz.explorer import describe_unreadable

    return VitvizError(describe_unreadable(errors, count))


def _record(photo: Photo, view: View, ranked: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Return the JSON entry of one photograph."""
    about = {"summary": view.describe(), "classes": len(view.labels), "sure_above": view.sure_above}
    if (group := view.group()) is not None:
        about["group"] = {"name": group[0], "probability": group[1]}
    if view.known is not None:
        about["known"] = view.known
    kind = "value" if view.model.problem_type == REGRESSION else "probability"
    predictions = [{"label": label, kind: value} for label, value in ranked]
    return shared.photo_record(photo.path, view, **about, predictions=predictions)


def find_photos(paths: Sequence[str], out: Path | None = None) -> list[Photo]:
    """List photographs, and images in folders and their subfolders, in order and without duplicates.

    Args:
        paths: files and folders. A file need not exist: opening it raises the error.
        out: the folder for pictures; its content is left out if it is inside one of the folders.

    Raises:
        VitvizError: if a folder has no images, or a picture would replace a photograph.
    """
    from vitviz.images.folders import find_images

    relative: dict[Path, Path] = {}  # path -> path relative to the folder in `paths`
    for name in paths:
        path = Path(name)
        folder = path if path.is_dir() else path.parent
        if out and out.resolve() == folder.resolve():
            raise VitvizError(f"Expected -o to differ from the folder of the photographs, got {str(out)!r}. Rename it.")
        if not path.is_dir():
            relative.setdefault(path, Path("stdin" if name == shared.STANDARD_INPUT else path.name))
            continue
        below = Path() if len(paths) == 1 else Path(path.resolve().name)
        # Pictures that an earlier run wrote into the folder are not photographs.
        written = out.resolve() if out and path.resolve() in out.resolve().parents else None
        for image in (image for images in find_images(path).values() for image in images):
            if written is None or written not in image.resolve().parents:
                relative.setdefault(image, below / image.relative_to(path))
    photos = [Photo(path, picture) for path, picture in zip(relative, _picture_names(relative.values()), strict=True)]
    if out:
        taken = {str(path.resolve()).casefold() for path in relative}  # a file system may ignore case
        if replaced := [photo.picture for photo in photos if str((out / photo.picture).resolve()).casefold() in taken]:
            raise VitvizError(
                f"Expected -o without photographs, got one at {str(out / replaced[0])!r}. Name another folder."
            )
    return photos


def _picture_names(paths: Iterable[Path]) -> list[Path]:
    """Return unique picture names (dog.png for dog.jpg) that differ from the names of the sheets."""
    names: list[Path] = []
    taken = set[str]()
    for path in paths:
        # With a suffix such as -1234.png, a long name would exceed the limit of file systems.
        long = len(os.fsencode(path.name)) > LONGEST - len("-1234.png")
        full = f"{path.stem[:40]}-{zlib.crc32(os.fsencode(path.name)):08x}" if long else path.name
        numbered = (f"{full}-{count}.png" for count in range(2, len(taken) + 4))
        candidates = map(path.with_name, (f"{path.stem}.png", f"{full}.png", *numbered))
        # A file system may ignore case.
        name = next(name for name in candidates if str(name).casefold() not in taken and not SHEET.fullmatch(str(name)))
        taken.add(str(name).casefold())
        names.append(name)
    return names


def _write_picture(view: View, ranked: list[tuple[str, float]], photo: Photo, out: Path) -> Prediction:
    """Write one photograph's picture, and return its entry on the sheet."""
    from vitviz.draw.predictions import Prediction, draw_map, prediction_picture
    from vitviz.draw.sheet import fit_photo

    heatmap = view.attention()
    path = out / photo.picture
    path.parent.mkdir(parents=True, exist_ok=True)
    problem_type = view.model.problem_type
    write(path, prediction_picture(heatmap, ranked, title=photo.path.name, problem_type=problem_type).save)
    pictures = fit_photo(heatmap.photo, SIDE), draw_map(heatmap, SIDE)
    return Prediction(pictures, *ranked[0], problem_type=problem_type)


def _write_sheets(predictions: Sequence[Prediction], explorer: Explorer, out: Path) -> str:
    """Write sheets of at most `ON_A_SHEET` photographs each, and return their names as text."""
    from vitviz.draw.predictions import prediction_sheet

    about = explorer.model.pretrained
    pages = [predictions[start : start + ON_A_SHEET] for start in range(0, len(predictions), ON_A_SHEET)]
    names = ["sheet.png"] if len(pages) == 1 else [f"sheet-{number}.png" for number in range(1, len(pages) + 1)]
    title = f"{about.name if about else 'a model'}: {len(predictions)} photographs"
    note = "Each photograph with the attention of the last layer, mean of the heads. Each map has its own scale."
    for number, (name, page) in enumerate(zip(names, pages, strict=True), 1):
        part = f", {number} of {len(pages)}" if len(pages) > 1 else ""
        write(out / name, prediction_sheet(page, title=title + part, note=note, side=SIDE).save)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
