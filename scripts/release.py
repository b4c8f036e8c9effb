"""Release the version in `vitviz/__init__.py`: build, check, install in a fresh environment, upload.

    make release                                          # to the Python Package Index; twine asks for a token
    python scripts/release.py --dry-run                   # everything except the upload
    python scripts/release.py --repository-url ADDRESS    # to another index

Run `make test-all` first.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
MAX_MEGABYTES = 70  # limit of a file, because the package index keeps every version (PyPI allows 100)
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2}|unreleased)$", re.MULTILINE)


class ReleaseError(ValueError):
    """Raised for a version that cannot be released."""


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command, and return its standard output; standard error goes to the terminal."""
    return subprocess.run([*map(str, command)], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def check_changelog(text: str, version: str) -> None:
    """Raise ReleaseError unless the newest entry of the changelog is this version, with a date."""
    heading = RELEASED.search(text)
    if heading is None or heading[1] != version or heading[2] == "unreleased":
        raise ReleaseError(
            f"Expected '## [{version}] - YYYY-MM-DD' as the first version in CHANGELOG.md, got "
            f"{heading[0] if heading else 'none'!r}. Date the entry, or change __version__."
        )


def check_repository(text: str) -> None:
    """Raise ReleaseError if pyproject.toml still has a placeholder in the repository's address."""
    address = re.search(r'^repository = "(.*)"', text, re.MULTILINE)
    if address is None or "/OWNER/" in address[1]:
        raise ReleaseError(
            f"Expected the repository's address in pyproject.toml, got {address and address[1]!r}. Replace OWNER by "
            "the name of its owner."
        )


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution into a folder, check both, and return their paths.

    Raises:
        ReleaseError: for a file that is too large.
    """
    run(sys.executable, "-m", "hatchling", "build", "-d", folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, source), end="")
    if (megabytes := wheel.stat().st_size / 1e6) > MAX_MEGABYTES:
        raise ReleaseError(
            f"Expected a wheel of at most {MAX_MEGABYTES} MB, got {megabytes:.1f} MB. Leave a checkpoint out of "
            "`force-include` in pyproject.toml."
        )
    return wheel, source


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel and its requirements in a new environment, and return the folder of its commands."""
    venv.create(folder, with_pip=True)
    (commands,) = (folder / name for name in ("bin", "Scripts") if (folder / name).is_dir())
    run(commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return commands


def try_commands(commands: Path, folder: Path) -> None:
    """Predict and explain a photograph with an installed vitviz, and write its page, in an empty folder.

    Raises:
        ReleaseError: if the output is unexpected.
    """
    photo = run(commands / "python", "-c", "import vitviz; print(vitviz.example('church'))", cwd=folder).strip()
    answer = json.loads(run(commands / "vitviz", "predict", photo, "--json", cwd=folder))
    run(commands / "vitviz", "explain", photo, "-o", "why.png", cwd=folder)
    run(commands / "vitviz", "export", photo, "-o", "page.html", cwd=folder)
    if "church" not in json.dumps(answer) or not {"why.png", "page.html"} <= {path.name for path in folder.iterdir()}:
        raise ReleaseError(f"Expected a church, a map and a page, got {answer!r:.200}. Try the wheel by hand.")


def upload(files: Iterable[Path], repository_url: str | None) -> None:
    """Upload files to an index, by default the Package Index; twine asks for a token, or reads TWINE_PASSWORD."""
    index = ("--repository-url", repository_url) if repository_url else ()
    subprocess.run([sys.executable, "-m", "twine", "upload", *index, *map(str, files)], check=True)


def main(arguments: list[str] | None = None) -> None:
    """Build, check, try and upload the version."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository-url", metavar="ADDRESS", help="of an index (default: the Python Package Index)")
    parser.add_argument("--dry-run", action="store_true", help="do everything except the upload")
    args = parser.parse_args(arguments)
    version = run(sys.executable, "-m", "hatchling", "version").strip()
    if not args.dry_run:
        check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        check_repository((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = build(folder / "dist")
        trial = folder / "trial"
        trial.mkdir()
        try_commands(install(files[0], folder / "environment"), trial)
        print(f"vitviz {version}: {', '.join(f'{path.name}, {path.stat().st_size / 1e6:.1f} MB' for path in files)}")
        if not args.dry_run:
            upload(files, args.repository_url)


if __name__ == "__main__":
    try:
        main()
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"release: {error}")
