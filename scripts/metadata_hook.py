"""Add the addresses of the repository to the package's metadata; hatchling runs this when it builds.

`repository` in pyproject.toml is the only place with the address.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

START = "# vitviz"  # before it, the README has the front matter that a Space reads
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")  # links and pictures of Markdown


class AddressHook(MetadataHookInterface):
    """Set the long description, whose links an index could not resolve otherwise, and the project's URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`."""
        repository = self.config["repository"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = text[text.index(START) :]
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(text, repository)}
        metadata["urls"] = {
            "Homepage": repository,
            "Documentation": f"{repository}/blob/main/docs/guide/first-look.md",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }


def with_addresses(text: str, repository: str) -> str:
    """Return Markdown whose relative links and pictures lead to the files of a repository on GitHub."""

    def address(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        return f"{picture}{label}({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return RELATIVE.sub(address, text)
