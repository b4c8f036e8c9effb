"""Commands that write reports about a folder of photographs: audit and compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from vitviz.cli import options as shared
from vitviz.cli.options import METHOD, PATH, Args, Command, LazyHelp, Several
from vitviz.extras import MissingExtraError

if TYPE_CHECKING:
    from vitviz.evaluation.audit_table import Audit

METHODS = "attribution methods; the first draws the maps (default: attn_lrp and gae)"
ROWS, PHOTOGRAPHS, REPORT = "records.jsonl", "photographs", "report.html"


def _page_help() -> str:
    from vitviz.export.report import PAGE

    return f"address of the explorer that a click on a photograph opens (default: {PAGE})"


page = click.option("--page", cls=LazyHelp, metavar="URL", compute_help=_page_help)


@click.command(cls=Command)
@click.argument("photos", type=PATH, metavar="FOLDER")
@shared.output("the output folder (default: audited)", "FOLDER", "audited")
@click.option(
    "--masks",
    type=PATH,
    metavar="FOLDER",
    help="masks, CLASS/NAME.png, white for the object, as large as the photograph (default: proposed from components)",
)
@click.option("--quick", is_flag=True, help="run one method and no random sets, which gives no verdicts")
@click.option("--methods", cls=Several, type=METHOD, help=METHODS)
@click.option("--sets", type=int, help="random sets for each photograph (default: 3)")
@click.option("--limit", type=int, help="the maximum number of photographs, spread over the subfolders")
@click.option("--seed", type=int, default=0, help="seed of the random sets (default: 0)")
@page
@shared.model
def audit(args: Args) -> None:
    """Test over a folder whether predictions rest on the object or on the background (shortcuts).

    Writes report.html, photographs.csv and records.jsonl. To continue an interrupted run, repeat the command. torchrun
    distributes the photographs over processes.
    """
    from vitviz.evaluation.audit import METHODS as DEFAULT_METHODS
    from vitviz.evaluation.audit import SETS
    from vitviz.evaluation.audit import audit as run_audit
    from vitviz.evaluation.records import processes
    from vitviz.export.audit_report import write_audit
    from vitviz.export.report import PAGE

    out = shared.output_path(args.output, folder=True)
    methods = args.methods or (DEFAULT_METHODS[:1] if args.quick else DEFAULT_METHODS)
    sets = args.sets if args.sets is not None else (0 if args.quick else SETS)
    options = {"masks": args.masks, "sets": sets, "limit": args.limit, "seed": args.seed}
    explorer = shared.open_explorer(args)
    result = run_audit(explorer.model, args.photos, methods, **options, out=out / ROWS, progress=not args.quiet)
    if processes()[0] > 0:
        return  # under torchrun, all processes have the result, but only the first writes it
    files = _save(result, out)
    write_audit(out / REPORT, result, explorer.preprocess, model=args.model, page=args.page or PAGE)
    shared.note(args, f"{', '.join([REPORT, *files, ROWS])} -> {out}")
    if args.json:
        record: dict[str, Any] = {"summary": result.describe(), "answers": [asdict(row) for row in result.answers]}
        shared.print_json(args, explorer.model.config.image_size, output=str(out), **record)
    else:
        print(result.table())


def _save(result: Audit, out: Any) -> list[str]:
    """Write the table of photographs as CSV and, if pandas and pyarrow are installed, as Parquet; return the names."""
    names = [f"{PHOTOGRAPHS}.csv"]
    result.save(out / names[0])
    try:
        result.save(out / f"{PHOTOGRAPHS}.parquet")
    except (MissingExtraError, ImportError):
        return names
    return [*names, f"{PHOTOGRAPHS}.parquet"]


@click.command(cls=Command)
@click.argument("first", type=PATH, metavar="MODEL")
@click.argument("second", type=PATH, metavar="MODEL")
@click.argument("photos", type=PATH, metavar="FOLDER")
@shared.output("the output folder (default: compared)", "FOLDER", "compared")
@click.option("--method", type=METHOD, default="gae", help="of the maps (default: gae)")
@click.option("--limit", type=int, help="the maximum number of photographs, spread over the subfolders")
@page
@shared.kind
@shared.printed
def compare(args: Args) -> None:
    """Compare the predictions, heads and maps of two models over a folder, such as before and after fine-tuning.

    Writes report.html, heads.csv and records.jsonl. To continue an interrupted run, repeat the command. torchrun
    distributes the photographs over processes.
    """
    from vitviz.evaluation.compare import compare as run_comparison
    from vitviz.evaluation.records import processes
    from vitviz.export.compare_report import write_comparison
    from vitviz.export.report import PAGE

    out = shared.output_path(args.output, folder=True)
    explorers = [shared.open_explorer(Args(**vars(args), model=source)) for source in (args.first, args.second)]
    first, second = (explorer.model for explorer in explorers)
    options = {"method": args.method, "limit": args.limit, "progress": not args.quiet}
    result = run_comparison(first, second, args.photos, **options, out=out / ROWS)
    if processes()[0] > 0:
        return
    sources = (args.first, args.second)
    write_comparison(out / REPORT, result, explorers[0].preprocess, models=sources, page=args.page or PAGE)
    if result.heads:
        result.save(out / "heads.csv")
    shared.note(args, f"{REPORT}{', heads.csv' if result.heads else ''}, {ROWS} -> {out}")
    if args.json:
        heads = [{**asdict(head), "block": head.block + 1, "head": head.head + 1} for head in result.heads]
        heads = [{"layer": head.pop("block"), **head} for head in heads]
        flips = [{"before": before, "after": after, "photographs": count} for before, after, count in result.flips]
        args.model = list(sources)
        record = {"summary": result.describe(), "flips": flips, "heads": heads, "output": str(out)}
        shared.print_json(args, first.config.image_size, **record)
    else:
        print(result.table())
