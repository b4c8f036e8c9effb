"""Write the documents' tables of settings, methods, targets and so on, and the constants of the page's scripts."""

import inspect
import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.analysis.pairs import BLOCK
from vitviz.analysis.pca_basis import BINS
from vitviz.attribution.registry import METHODS
from vitviz.attribution.target_specs import SPELLINGS
from vitviz.attribution.targets import LISTED
from vitviz.draw.colors import DIMMED, LEAST_FULL, LIT, SHADE
from vitviz.evaluation.standings import Standings
from vitviz.formatting import CERTAINTY, FEW_CLASSES, HEADINGS, PERHAPS, PROBABLE_ABOVE, UNKNOWN_BELOW
from vitviz.heatmap import FAR, FEW, OWN_QUANTILE
from vitviz.resources import DEFAULT
from vitviz.server.endpoints import Endpoints
from vitviz.settings import SETTINGS
from vitviz.web.first_view import CLAIMS, EVEN, MAJORITY, OPACITY, PLACES
from vitviz.web.languages import LANGUAGES
from vitviz.web.questions import QUESTIONS
from vitviz.weights.checkpoint import ARENA

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONSTANTS = ROOT / "vitviz" / "web" / "core" / "constants.json"
IN_BROWSER = "yes"


def table(heads: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; `heads` are separated by commas."""
    first, *lines = (f"| {' | '.join(cells)} |" for cells in (heads.split(", "), *rows))
    return "\n".join((first, "|---" * len(heads.split(", ")) + "|", *lines))


def settings() -> str:
    """Return the table of environment variables, in the order of the fields."""
    rows = []
    for setting in (setting for setting in SETTINGS.values() if setting.variable):
        about = f"1: {setting.about}" if isinstance(setting.default, bool) else setting.about
        several = ", separated by commas" if setting.default == () and "commas" not in about else ""
        rows.append((f"`{setting.variable}`", about + several, setting.words))
    return table("variable, meaning, default", rows)


def methods() -> str:
    """Return the table of attribution methods."""
    rows = (
        (
            f"`{method.name}`", method.title, "not measured" if method.cost is None else f"{method.cost:g}",
            "yes" if method.class_specific else "no",
            method.not_in_browser or IN_BROWSER, method.not_captured or "yes", method.paper,
        )
        for method in METHODS.values()
    )  # fmt: skip
    return table("method, title, forward passes, of a class, in a static site, for captured modules, paper", rows)


def statistics() -> str:
    """Return the table of statistics of heads."""
    rows = (
        (f"`{each.name}`", each.title, each.unit, each.not_in_browser or IN_BROWSER, each.about)
        for each in STATISTICS.values()
    )
    return table("statistic, title, unit, in a static site, what", rows)


def questions() -> str:
    """Return the table of questions that `Endpoints` answers."""
    rows = []
    for name, question in QUESTIONS.items():
        if (method := getattr(Endpoints, name, None)) is None:
            continue  # uploads have a separate route
        arguments = [f"`{argument}`" for argument in inspect.signature(method).parameters if argument != "self"]
        about = (inspect.getdoc(method) or "").partition("\n\n")[0].replace("\n", " ")
        users = [user for user, asks in (("page", question.page), ("programs", question.programs)) if asks]
        rows.append((f"`{name}`", ", ".join(arguments), ", ".join(users), question.not_in_browser or IN_BROWSER, about))
    return table("question, arguments, asked by, in a static site, answer", rows)


def targets() -> str:
    """Return the table of targets other than classes in static sites."""
    rows = ((f"`{word}:`", reason or IN_BROWSER) for word, reason in SPELLINGS.items())
    return table("target, in a static site", rows)


def arena(model: str) -> str:
    """Return the ranking of methods for a bundled model, see `vitviz arena`."""
    return Standings.load(ROOT / "checkpoints" / model / ARENA).markdown()


def arena_of_default() -> str:
    """Return the ranking of methods for the default model."""
    return arena(DEFAULT)


def arena_of_imagenette() -> str:
    """Return the ranking of methods for dinov2-s14-imagenette."""
    return arena("dinov2-s14-imagenette")


def arena_of_cifar10() -> str:
    """Return the ranking of methods for vit-cifar10."""
    return arena("vit-cifar10")


TABLES = {
    "faithfulness.md": (arena_of_default, arena_of_imagenette, arena_of_cifar10),
    "settings.md": (settings,),
    "names.md": (methods, statistics, questions),
    "targets.md": (targets,),
}


def constants() -> str:
    """Return the constants that the page's scripts share with Python, as JSON."""
    numbers = {
        "CLAIMS": list(CLAIMS),
        "DESCRIBED_BLOCK": BLOCK,
        "DIMMED": DIMMED,
        "EVEN": EVEN,
        "FAR": FAR,
        "FEW": FEW,
        "FEW_CLASSES": FEW_CLASSES,
        "FOREGROUND_BINS": BINS,
        "LANGUAGES": LANGUAGES,
        "LEAST_FULL": LEAST_FULL,
        "LISTED": LISTED,
        "LIT": LIT,
        "MAJORITY": MAJORITY,
        "OPACITY": OPACITY,
        "OWN_QUANTILE": OWN_QUANTILE,
        "PERHAPS": PERHAPS,
        "PLACES": list(PLACES),
        "PROBABLE_ABOVE": PROBABLE_ABOVE,
        "SHADE": list(SHADE),
        "UNKNOWN_BELOW": UNKNOWN_BELOW,
    }
    tables = {"certainty": CERTAINTY, "heading": HEADINGS}
    texts = {f"{name}-{key}": text for name, table in tables.items() for key, text in table.items()}
    return json.dumps({**numbers, "TEXTS": texts}, indent=2) + "\n"


def filled(document: str) -> str:
    """Return a document with its tables filled in."""
    text = (DOCS / document).read_text(encoding="utf-8")
    for make in TABLES[document]:
        content = make()
        count = len(content.split("\n\n"))  # paragraphs, as many as before
        section = re.compile(rf"(<!-- table of {make.__name__}: make tables -->\n)(?:.*?(\n\n)){{{count}}}", re.DOTALL)
        text = section.sub(partial(lambda content, match: match[1] + content + match[2], content), text)
    return text


if __name__ == "__main__":
    for name in TABLES:
        content = filled(name)
        (DOCS / name).write_text(content, encoding="utf-8")
    CONSTANTS.write_text(constants(), encoding="utf-8")
