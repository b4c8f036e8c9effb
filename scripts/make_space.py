"""Write the folder of a Hugging Face Space with exactly the files to push.

    python scripts/make_space.py static|zerogpu|cpu [FOLDER] [--torch-index ADDRESS]   # build/space-KIND by default

`static` is a site without a server, `cpu` is the app on a CPU, and `zerogpu` is the app with a GPU for a
few seconds at a time.
docs/hosting.md describes how to publish the folder.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from vitviz.export import SPACE_CARD  # noqa: E402 - of this checkout
from vitviz.site.static import write_site  # noqa: E402

KINDS = ("static", "zerogpu", "cpu")
FILES = ("app.py", "LICENSE", "THIRD_PARTY_NOTICES.md", "vitviz", "checkpoints", "examples")
WITHOUT = shutil.ignore_patterns("__pycache__", "[!_]*.pyi", ".*")
UNUSED = {"accelerate", "tensorboardX", "imagehash", "av"}  # only for training and films
BY_THE_HOST = {"gradio"}  # the front matter pins it
PYTHON = {"cpu": "3.11", "zerogpu": "3.10.13"}  # ZeroGPU supports few versions
HARDWARE = {"cpu": "cpu-basic", "zerogpu": "zero-a10g"}
LARGE = 10 * 10**6  # bytes above which the hub requires LFS
FRONT = """---
{card}sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
suggested_hardware: {hardware}
---

Drop a photograph to see the predictions of a Vision Transformer, and point at a patch to see the attention of every
head of every layer from that patch. `make space KIND={kind}` of vitviz generated this folder.
"""


def make(kind: str, folder: Path, torch_index: str = "") -> None:
    """Write a Space's folder, and replace an earlier one.

    Args:
        kind: one of `KINDS`.
        folder: new, empty, or an earlier Space.
        torch_index: address of the index of torch's CPU wheels, for `cpu`; otherwise torch is installed with gigabytes
            of CUDA libraries.
    """
    if folder.exists() and not (folder / ".gitattributes").exists() and any(folder.iterdir()):
        raise SystemExit(f"Expected a new or empty folder for the Space, got {folder}. Name another one.")
    shutil.rmtree(folder, ignore_errors=True)
    if kind == "static":
        write_site(folder, space=True)
    else:
        write_app(kind, folder, torch_index)
    (folder / ".gitattributes").write_text(attributes(folder), encoding="utf-8")


def write_app(kind: str, folder: Path, torch_index: str) -> None:
    """Write the files of a Gradio Space that runs `app.py`."""
    folder.mkdir(parents=True)
    for name in FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=WITHOUT)
        else:
            shutil.copy2(source, folder / name)
    values = {
        "card": SPACE_CARD,
        "kind": kind,
        "gradio": pins()["gradio"],
        "python": PYTHON[kind],
        "hardware": HARDWARE[kind],
    }
    (folder / "README.md").write_text(FRONT.format(**values), encoding="utf-8")
    (folder / "requirements.txt").write_text(requirements(torch_index), encoding="utf-8")


def pins() -> dict[str, str]:
    """Return package -> exact version in requirements.txt, for versions that do not depend on the Python version."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==([^;\s]+)$", text, re.MULTILINE))


def requirements(torch_index: str = "") -> str:
    """Return the Space's requirements: the pins of requirements.txt that a page needs."""
    lines = []
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name = line.partition("==")[0]
        if line and not line.startswith("#") and name not in UNUSED | BY_THE_HOST:
            local = "+cpu" if torch_index and name in ("torch", "torchvision") else ""
            lines.append(f"{line}{local}")
    index = [f"--extra-index-url {torch_index}"] if torch_index else []
    return "\n".join([*index, *lines, ""])


def attributes(folder: Path) -> str:
    """Return .gitattributes that put all large and all binary files into LFS, as the hub requires."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in paths if path.stat().st_size > LARGE or is_binary(path)}
    return "".join(f"*{kind} filter=lfs diff=lfs merge=lfs -text\n" for kind in sorted(kinds))


def is_binary(path: Path) -> bool:
    """Return whether git treats a file as binary: with a null byte near the start."""
    with path.open("rb") as file:
        return b"\0" in file.read(8000)


def main() -> None:
    """Write the folder, and print the next steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--torch-index", default="", metavar="ADDRESS", help="index of torch's CPU wheels, for cpu")
    args = parser.parse_args()
    if args.torch_index and args.kind != "cpu":
        parser.error(f"Expected --torch-index only for cpu, got it for {args.kind}. Leave it out.")
    folder = args.folder or ROOT / "build" / f"space-{args.kind}"
    make(args.kind, folder, args.torch_index)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.0f} MB. docs/hosting.md describes how to publish it.")
    if args.kind == "cpu" and not args.torch_index:
        print(
            "It installs torch with CUDA, which is gigabytes larger. For CPU wheels, set TORCH_INDEX to the address "
            "that pytorch.org/get-started shows."
        )


if __name__ == "__main__":
    main()
