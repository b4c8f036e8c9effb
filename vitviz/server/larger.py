"""List published models that know many classes, where the model hub can be reached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from vitviz.server.menu import Menu, describe_bytes
from vitviz.weights.remote import RemoteError, check_hub

HUBS = {"hf:": "", "timm:": "timm/"}  # libraries whose models lie on the hub, and their owner there
PATIENCE = 2.0  # seconds; without an answer until then no model is proposed


class LargerModels:
    """Models of the catalog that name classes, lie on the hub and fit into the page's memory, the smallest first.

    Whether the hub can be reached is found out once, in the background, when the page is made.
    """

    def __init__(self, menu: Menu) -> None:
        free = menu.settings.memory - menu.entry(menu.default).size
        known = [one for one in menu.catalog if one.classes and one.source.startswith(tuple(HUBS)) and one.size <= free]
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
        """Return the models to propose; none where the hub cannot be reached."""
        wait([self._found], PATIENCE)
        if not (self._found.done() and self._found.result()):
            return []
        return [
            {
                "source": one.source,
                "classes": one.classes,
                "words": f"{one.title}, {describe_bytes(one.size)}",
                "tip": f"{one.known_for} ({one.licence})",
            }
            for one in self._listed
        ]
