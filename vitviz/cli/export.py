"""Write pages: one photograph as a file, a folder of photographs, or a site whose models run in the browser."""

from __future__ import annotations

import json
from pathlib import Path

import click

from vitviz import rooms
from vitviz.cli import options as shared
from vitviz.cli.options import METHOD, PATH, Args, Command, Names, Several
from vitviz.errors import VitvizError
from vitviz.export import PARTS
from vitviz.resources import DEFAULT

FOR_ONE = ("size", "like", "heads", "labels", "preprocess", "problem_type", "device")  # not for --static


@click.command(cls=Command)
@click.argument("photo", type=PATH, required=False, metavar="[FILE_OR_FOLDER]")
@click.option(
    "-o",
    "--output",
    "--html",
    type=PATH,
    metavar="FILE",
    help="the page to write (default: vitviz.html); for a folder: the output folder (default: exported)",
)
@click.option("--parts", cls=Several, type=click.Choice(PARTS), help="what to write for a folder (default: all)")
@click.option(
    "--static", type=PATH, metavar="DIR", help="write a static site; visitors' photographs stay in their browsers"
)
@click.option("--space", is_flag=True, help="with --static: also write the files for a static Hugging Face Space")
@click.option(
    "--model",
    "models",
    type=PATH,
    multiple=True,
    metavar="SOURCE",
    help=f"as for other commands; repeatable with --static (default: {DEFAULT})",
)
@click.option("--lecture", is_flag=True, help="with one photograph: include the lecture")
@click.option("--texts", type=PATH, metavar="FOLDER", help="with --static or --lecture: your own texts for the lecture")
@click.option(
    "--lang",
    type=Names("vitviz.web.languages", "LANGUAGES"),
    help="with --static: the language of the lecture (default: en)",
)
@click.option("--methods", cls=Several, type=METHOD, help="with --static (default: all)")
@shared.text
@shared.size
@shared.kind
@shared.printed
def export(args: Args) -> None:
    """Write the explorer as one HTML file, the photographs of a folder one by one, or a site without a server.

    For a folder, each photograph gets a subfolder with page, pictures and numbers. Repeat an interrupted command to
    continue it.
    """
    if args.static is not None:
        _write_site(args)
        return
    if args.photo is not None and Path(args.photo).is_dir():
        _write_folder(args)
        return
    if args.photo is None or args.space or args.methods or args.lang or args.parts or len(args.models) > 1:
        raise VitvizError("Expected one photograph and one model, or --static DIR, got neither. Name one of them.")
    if args.texts and not args.lecture:
        raise VitvizError("Expected --texts with --lecture or --static, got neither. Add one of them.")
    if args.texts:
        rooms.load("lecture", "texts").lecture_texts(Path(args.texts))  # raises errors before a model is loaded
    output = shared.output_path(args.output or "vitviz.html", ".html", ".htm")
    args.model = args.models[0] if args.models else DEFAULT
    view = shared.open_view(args)
    view.save_html(output, lecture=args.lecture, texts=args.texts)
    shared.note(args, f"{output.stat().st_size / 1e6:.1f} MB -> {output}")
    if args.json:
        shared.print_photo(args, view, output=str(output))


def _write_folder(args: Args) -> None:
    from vitviz.cli.predict import find_photos, unreadable
    from vitviz.export import folder
    from vitviz.images.limits import ImageError
    from vitviz.progress import bar

    if args.space or args.methods or args.lang or args.lecture or args.texts or len(args.models) > 1:
        raise VitvizError("Expected a folder with one model, got options of --static or --lecture. Leave them out.")
    args.model = args.models[0] if args.models else DEFAULT
    out, parts = shared.output_path(args.output or "exported", option="-o", folder=True), args.parts or PARTS
    photos = find_photos([args.photo], out)
    explorer = shared.open_explorer(args)
    folder.begin(out, {"model": args.model, "size": args.size, "parts": sorted(parts)})
    pending = [photo for photo in photos if not (out / photo.picture.with_suffix("")).is_dir()]
    broken: dict[Path, ImageError] = {}
    records = []
    done = len(photos) - len(pending)
    with bar(len(photos), initial=done, show=not args.quiet) as counted:
        for photo in pending:
            target = out / photo.picture.with_suffix("")
            try:
                view = explorer.open(photo.path, size=args.size)
                folder.export_photo(view, target, parts, model=args.model, photo=str(photo.path))
                records.append(shared.photo_record(photo.path, view, output=str(target)))
            except ImageError as error:
                broken[photo.path] = error
            counted.update()
    existed = f", {done} existed already" if done else ""
    shared.note(args, f"{len(records)} photographs{existed} -> {out}")
    if args.json:
        shared.print_json(args, shared.input_size(args, explorer), images=records)
    if broken:
        raise unreadable(broken, len(photos))


def _write_site(args: Args) -> None:
    if args.photo or args.output or args.lecture:
        other = args.photo or ("-o" if args.output else "--lecture")
        raise VitvizError(f"Expected --static alone, got {other} too. Use them one at a time.")
    if excluded := [name.replace("_", "-") for name in FOR_ONE if getattr(args, name) is not None]:
        raise VitvizError(f"Expected --static with unchanged models, got --{excluded[0]}. Leave it out.")
    folder = shared.output_path(args.static, option="--static", folder=True)

    def tell(text: str) -> None:
        shared.note(args, text)

    options = {"methods": args.methods, "space": args.space, "lang": args.lang or "en"}
    options["classes"] = shared.texts_of(args)
    texts = None if args.texts is None else Path(args.texts)
    site = rooms.load("site", "static").write_site(folder, list(args.models), **options, texts=texts, tell=tell)
    size = sum(path.stat().st_size for path in site.folder.rglob("*") if path.is_file())
    tell(f"{size / 1e6:.1f} MB -> {site.folder} (try it: python -m http.server --directory {site.folder})")
    if args.json:
        print(json.dumps({"output": str(site.folder), "bytes": size}, indent=2))
