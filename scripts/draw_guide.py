"""Create the pictures of docs/guide: run the Python code of each page, and copy the pictures that the page shows.

python scripts/draw_guide.py              # all pages
python scripts/draw_guide.py explain      # one page
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from documents import prose, run_python  # noqa: E402 - in tests/

from vitviz.images.torchvision_import import import_torchvision  # noqa: E402


def draw(page: Path) -> None:
    """Run one page in a temporary folder."""
    document = str(page.relative_to(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_python(document)
        for name in re.findall(r"\]\(([\w-]+\.webp)\)", prose(document)):
            shutil.copy(name, page.parent / name)
            print(f"{(page.parent / name).stat().st_size / 1000:6.0f} kB  {name}")
        os.chdir(ROOT)


if __name__ == "__main__":
    import_torchvision()  # before timm and transformers, as in the tests
    for path in sorted((ROOT / "docs" / "guide").glob("*.md")):
        if len(sys.argv) < 2 or path.stem in sys.argv[1:]:
            draw(path)
