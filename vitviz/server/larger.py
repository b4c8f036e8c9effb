"""Published models that know many classes, for the page to propose where the model hub can be reached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vitviz.server.menu import Menu, byte_words
from vitviz.weights.catalog import CATALOG
from vitviz.weights.remote import RemoteError, check_hub

HUBS = {"hf:": "", "timm:": "timm/"}  # libraries whose models lie on the hub, and their owner there


class LargerModels:
    """The models of the catalog that name classes, lie on the hub and fit into the page's memory, the smallest first.

    Whether the hub can be reached is found out once, in the background, when the page is made.
    """

    def __init__(self, menu: Menu) -> None:
        room = menu.settings.memory - menu.offer(menu.default).size
        known = [one for one in CATALOG if one.classes and one.source.startswith(tuple(HUBS)) and one.size <= room]
        self._listed = sorted(known, key=lambda one: one.size)
        self._found = ThreadPoolExecutor(1, thread_name_prefix="hub").submit(self._probe)

    def _probe(self) -> bool:
        if not self._listed:
            return False
        library, colon, name = self._listed[0].source.partition(":")
        try:
            check_hub(HUBS[library + colon] + name)
        except RemoteError:
            return False
        return True

    def models(self) -> list[dict[str, Any]]:
        """What the page proposes; nothing where the hub cannot be reached."""
        if not self._found.result():
            return []
        return [
            {
                "source": one.source,
                "classes": one.classes,
                "words": f"{one.title}, {byte_words(one.size)}",
                "tip": f"{one.known_for} ({one.licence})",
            }
            for one in self._listed
        ]
