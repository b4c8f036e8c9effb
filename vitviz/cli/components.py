"""Command that colors the patches of several photographs by one basis of principal components: components."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitviz.cli import options as shared
from vitviz.cli.options import PATH, Args, Command, LazyHelp, Names
from vitviz.cli.predict import find_photos
from vitviz.errors import VitvizError
from vitviz.formatting import percent
from vitviz.writing import write

if TYPE_CHECKING:
    from vitviz.analysis.pca_basis import PCABasis
    from vitviz.view import View

BASIS = "basis.npz"
OUTPUT = f"write NAME.png, the colors over each photograph, NAME-foreground.png, its mask, and {BASIS}"


def _descriptor_help() -> str:
    from vitviz.analysis.pca_basis import DESCRIPTOR

    return f"what describes a patch (default: {DESCRIPTOR})"


@click.command(cls=Command)
@click.option("-o", "--output", type=PATH, metavar="FOLDER", required=True, help=OUTPUT)
@click.option("--basis", type=PATH, metavar="FILE.npz", help="a basis of this command, of Python or of the page")
@click.option(
    "--descriptor", cls=LazyHelp, type=Names("vitviz.analysis.pairs", "DESCRIPTORS"), compute_help=_descriptor_help
)
@click.option("--layer", type=int, help="layer, counted from 1 (default: the next to last)")
@shared.photos
def components(args: Args) -> None:
    """Colour the patches of photographs by their common principal components, and mask the foreground."""
    from vitviz.analysis.pca_basis import PCABasis

    out = shared.output_path(args.output, folder=True)
    if args.basis and (args.descriptor or args.layer):
        raise VitvizError("Expected --basis alone, got --descriptor or --layer too. The file determines them.")
    photos = find_photos(args.photos, out)
    basis = PCABasis.load(args.basis) if args.basis else None
    explorer = shared.open_explorer(args)
    views: Iterable[View] = (explorer.open(shared.photograph(photo.path), size=args.size) for photo in photos)
    if basis is None:
        views = opened = [*views]  # a basis needs all photographs at once
        basis = _fit(args, opened)
    records = []
    for photo, view in zip(photos, views, strict=True):
        share = _write(basis, view, out / photo.picture)
        records.append(shared.photo_record(photo.path, view, foreground=share))
    basis.save(out / BASIS)
    explained = [float(share) for share in basis.explained]
    shared.note(args, f"{len(records)} photographs, {percent(sum(explained), 2)} of the variance explained -> {out}")
    if args.json:
        about = {"descriptor": basis.descriptor, "layer": basis.block + 1, "explained": explained}
        shared.print_json(args, shared.input_size(args, explorer), images=records, basis=about)


def _fit(args: Args, views: list[View]) -> PCABasis:
    from vitviz.analysis.pairs import BLOCK
    from vitviz.analysis.pca_basis import DESCRIPTOR, fit_pca

    model = views[0].model
    block = BLOCK if args.layer is None else shared.parse_layer(args.layer, model.config.depth)
    return fit_pca(model, [view.trace for view in views], args.descriptor or DESCRIPTOR, block)


def _write(basis: PCABasis, view: View, path: Path) -> float:
    """Write both pictures of a photograph, and return the share of patches in the foreground."""
    from vitviz.draw.overlay import overlay_colors

    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, overlay_colors(view.photo, basis.colors(view.model, view.trace), view.geometry).save)
    mask = basis.foreground(view.model, view.trace)  # (gh, gw)
    white = mask[..., None].repeat(3, axis=2).astype(float)
    foreground = overlay_colors(view.photo, white, view.geometry, alpha=1.0)
    write(path.with_stem(f"{path.stem}-foreground"), foreground.save)
    return float(mask.mean())
