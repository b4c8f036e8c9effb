"""Write THIRD_PARTY_NOTICES.md: third-party works in vitviz and its requirements, with their licences.

Licences of the packages in pyproject.toml are read from their installed metadata, and licences of photographs and
weights from the files beside them. tests/test_scripts.py checks that the file is up to date.

Usage: python scripts/write_notices.py [FILE]
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # installed with pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from vitviz.site.runtime import PACKAGE  # noqa: E402 - of this checkout

FILE = ROOT / "THIRD_PARTY_NOTICES.md"
LONGEST = 120  # maximum characters of a licence's name; longer entries are full texts
HOMES = ("homepage", "source", "repository", "source code")

HEAD = """# Third-party notices

vitviz is under the Apache License 2.0 ([LICENSE](LICENSE)). This file lists the third-party works that it
contains or requires. `scripts/write_notices.py` generates this file; do not edit it by hand.
"""
PACKAGES = """## Required packages

These packages are installed beside vitviz and are not part of it. Each has requirements of its own. `pip show NAME` and
the files in its `dist-info` give the licence texts. Some packages contain libraries under other licences, such as CUDA
in some builds of torch. The wheels of pillow-heif and av contain x265 and x264 and are as a whole under GPL-2.0.
Install these two extras only if that licence is acceptable.
"""
FONTS = f"""## Fonts and scripts

- The page's font is Inter, the Latin subset of the npm package @fontsource-variable/inter 5.3.0, in `vitviz/web/fonts`
  with its licence text (SIL Open Font License 1.1, copyright The Inter Project Authors).
- `vitviz/lecture/page/vendor/uqr.js`, which draws QR codes, comes from the npm package uqr 0.1.3 with its licence text
  (MIT, copyright Project Nayuki and Anthony Fu).
- Pictures are drawn with DejaVu Sans, which comes with matplotlib (Bitstream Vera licence, with changes in the public
  domain). Vector files contain the outlines of the letters they use.
- `vitviz export --static` copies {PACKAGE.replace("@", " ")} into the site that it writes: MIT licence, copyright
  Microsoft Corporation. It is fetched from the npm registry and is not part of this repository or of the package.
"""


def notices() -> str:
    """Return the whole text."""
    return f"{HEAD}\n{weights()}\n{photographs()}\n{FONTS}\n{packages()}"


def weights() -> str:
    """Return the section about the bundled checkpoints, from their config.json."""
    lines = ["## Weights", "", "Each folder's README.md states what is known and inferred about its weights.", ""]
    lines += ["| folder | from | licence |", "|---|---|---|"]
    for path in sorted((ROOT / "checkpoints").rglob("config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        lines.append(f"| `{path.parent.relative_to(ROOT)}` | {config['source']} | {config['licence']} |")
    return "\n".join([*lines, ""])


def photographs() -> str:
    """Return the section about the examples, from the table in their README.md."""
    lines = ["## Photographs", "", "| file | author | licence | origin |", "|---|---|---|---|"]
    for line in (ROOT / "examples" / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            file, _, _, _, author, licence, origin, _ = (cell.strip() for cell in line.strip("|").split(" | "))
            lines.append(f"| `examples/{file.strip('`')}` | {author} | {licence} | {origin} |")
    return "\n".join([*lines, ""])


def packages() -> str:
    """Return the section about the packages of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    lines = [PACKAGES, "| package | for | licence | home |", "|---|---|---|---|"]
    for extra, texts in (("", project["dependencies"]), *extras.items()):
        names = sorted({Requirement(text).name for text in texts} - {project["name"]}, key=str.lower)
        lines += [f"| {name} | {extra and f'`vitviz[{extra}]`'} | {licence(name)} | {home(name)} |" for name in names]
    return "\n".join([*lines, ""])


def licence(name: str) -> str:
    """Return a package's licence from its metadata: the expression, a short text, or the classifiers."""
    about = metadata(name)
    if expression := about.get("License-Expression"):
        return str(expression)
    text = str(about.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= LONGEST:
        return text
    classifiers = [line for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(line.rpartition(" :: ")[2] for line in classifiers) or "see the licence in its files"


def home(name: str) -> str:
    """Return the address of a package's home page."""
    about = metadata(name)
    urls = dict(re.split(r",\s*", line, maxsplit=1) for line in about.get_all("Project-URL") or ())
    by_label = {label.lower(): url for label, url in urls.items()}
    return next((by_label[label] for label in HOMES if label in by_label), about.get("Home-page") or "")


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_text(notices(), encoding="utf-8")
