"""Collect the attribution methods and statistics that modules of vitviz and other packages declare."""

import pkgutil
import threading
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Protocol, TypeVar


class Declaration(Protocol):
    """A dataclass that describes a method or statistic."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """Return the name in code, commands and links."""

    @property
    def not_in_browser(self) -> str:
        """Return why static sites lack it; empty if they have it."""


D = TypeVar("D", bound=Declaration)


class Registry(UserDict[str, D]):
    """Declarations by name: those of vitviz's modules, then those of plug-ins. They are loaded on first use.

    A plug-in is an entry point of another package whose object is one declaration. Static sites do not have it. If it
    cannot be loaded, or its name is taken, a warning names it, and it is left out.

    Args:
        kind: class of the declarations.
        package: package of vitviz whose modules declare them.
        variable: name of a module's tuple of declarations.
        group: group of the entry points.
        order: key by which the modules' tuples are sorted; equal ones are in the order of the modules' names.
    """

    def __init__(
        self, kind: type[D], package: str, variable: str, group: str, order: Callable[[tuple[D, ...]], float]
    ) -> None:
        self._kind, self._package, self._variable, self._group, self._order = kind, package, variable, group, order
        self._entries: dict[str, D] = {}
        self._lock, self._is_loaded = threading.RLock(), False

    @property
    def data(self) -> dict[str, D]:  # type: ignore[override]
        """Return the entries; a plug-in that reads them while it is imported gets those before it."""
        with self._lock:
            if not self._is_loaded:
                self._is_loaded = True
                for declarations in sorted(self._own(), key=self._order):
                    self._entries |= {declaration.name: declaration for declaration in declarations}
                for entry in sorted(entry_points(group=self._group), key=lambda entry: entry.name):
                    self._add(entry)
        return self._entries

    def _own(self) -> Iterator[tuple[D, ...]]:
        """Yield the declarations of each module of the package that has some."""
        for found in pkgutil.iter_modules(import_module(self._package).__path__):
            declarations = getattr(import_module(f"{self._package}.{found.name}"), self._variable, None)
            if isinstance(declarations, tuple):
                yield declarations

    def _add(self, entry: EntryPoint) -> None:
        """Add a plug-in, or warn."""
        package = entry.dist.name if entry.dist else "an unknown package"
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a plug-in runs any code
            problem = repr(error)
        else:
            if not isinstance(plugin, self._kind):
                problem = f"an object of type {type(plugin).__name__}"
            elif plugin.name in self._entries:
                problem = f"the name {plugin.name}, which is taken"
            else:
                reason = plugin.not_in_browser or f"it comes from the plug-in {package}"
                self._entries[plugin.name] = replace(plugin, not_in_browser=reason)
                return
        warnings.warn(
            f"Expected a new {self._kind.__name__} from the plug-in {entry.name} ({entry.value}) of {package}, got "
            f"{problem}. It is left out; repair or uninstall it.",
            stacklevel=1,
        )
