"""Where a module would come from if the model's worker imported it. Nothing is imported: no module, and no parent of one."""

from __future__ import annotations

import os
import sys
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES

from flambeau.inspection.source import Module, Unreadable, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, List, Optional

BUILT_IN, OURS, LOCAL, ENVIRONMENT = "built in", "ours", "local", "environment"
_OUR_NAMES = ("flambeau", "ts")
_LOADERS = [*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES]  # in the import system's order
_STAR_DEPTH = 8
# Packages that register modules under names that cannot be read, all of them in a sub-module that has no source: torch._C.
_COMPLETE = frozenset({"torch"})


class Found:
    """A module that is there. `file` is None for one that has no source."""

    def __init__(self, name: str, origin: str, file: Optional[str] = None, folders: Optional[List[str]] = None) -> None:
        """`folders` are those of a package, None for a plain module."""
        self.name = name
        self.origin = origin
        self.file = file if file and file.endswith(tuple(SOURCE_SUFFIXES)) else None
        self.folders = folders
        self.namespace = folders is not None and file is None
        self.opaque = file is not None and self.file is None  # an extension, or in a zip file: no name of it is known


class Resolver:
    """Looks modules up as a worker would that runs the model in `folder`."""

    def __init__(self, folder: str, first: List[str], packages: str, path: List[str]) -> None:
        """`first` are folders that are searched before the model's, `path` those after it, `packages` that of `ts`."""
        self._folder = os.path.realpath(folder)
        self._packages = packages
        self._before = [self._absolute(entry) for entry in first if entry]
        self._path = path
        self._listed: Dict[str, FrozenSet[str]] = {}
        self._known: Dict[str, Optional[Found]] = {}
        self._parsed: Dict[str, Optional[Module]] = {}
        self._hidden: Dict[str, bool] = {}

    def find(self, name: str) -> Optional[Found]:
        """A module by its full name, None when an import of it fails. A module that may be there counts as there."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def parsed(self, found: Found) -> Optional[Module]:
        """The syntax tree of a module, None when it has no source or it cannot be read."""
        if found.file is None:
            return None
        if found.file not in self._parsed:
            try:
                self._parsed[found.file] = parse(found.name, found.file)
            except Unreadable:
                self._parsed[found.file] = None
        return self._parsed[found.file]

    def has_name(self, found: Found, name: str, depth: int = _STAR_DEPTH) -> bool:
        """Whether `from module import name` may work. Only a module that is known through and through lacks a name."""
        if self._may_be_hidden(found):
            return True
        if found.folders is not None and self.find(found.name + "." + name) is not None:
            return True
        if found.namespace:
            return False
        module = self.parsed(found)
        if module is None or module.dynamic or module.has(name) or name.startswith("__"):
            return True
        if "%s.%s" % (found.name, name) in module.registered:
            return True
        for star in module.stars:
            target = absolute(star, found)
            source = self.find(target) if target else None
            if source is None or depth == 0 or self.has_name(source, name, depth - 1):
                return True
        return False

    def _find(self, name: str) -> Optional[Found]:
        parent_name, _, tail = name.rpartition(".")
        if not parent_name:
            return self._find_top(name)
        parent = self.find(parent_name)
        if parent is None:
            return None
        if parent.folders is not None:
            found = self._look(name, parent.folders, tail, parent.origin)
            if found is not None:
                return found
        if parent.opaque or parent.origin == BUILT_IN or self._may_be_hidden(parent):
            return Found(name, parent.origin, file="?")
        module = self.parsed(parent)
        if module is None and not parent.namespace:
            return Found(name, parent.origin, file="?")
        if module is None or name in module.registered:
            return None if module is None else Found(name, parent.origin, file="?")
        return Found(name, parent.origin, file="?") if module.defines_path() and parent.name not in _COMPLETE else None

    def _may_be_hidden(self, found: Found) -> bool:
        """Whether a module of the archive has the name of one of Python's own: the worker may have that one loaded already."""
        if found.origin != LOCAL or "." in found.name:
            return False
        if found.name not in self._hidden:
            there = self._ask_finders(found.name)
            where = "" if there is None else (there.folders or [there.file or ""])[0]
            self._hidden[found.name] = os.path.dirname(where) == os.path.dirname(os.__file__)
        return self._hidden[found.name]

    def _find_top(self, name: str) -> Optional[Found]:
        if name in sys.builtin_module_names or name == "__main__":
            return Found(name, BUILT_IN, file="?")
        if name in _OUR_NAMES:
            return self._look(name, [self._packages], name, OURS)
        for folders, origin in ((self._before, ENVIRONMENT), ([self._folder], LOCAL)):
            found = self._look(name, folders, name, origin)
            if found is not None and not found.namespace:
                return self._as_local(found)
        local = self._look(name, [*self._before, self._folder], name, LOCAL)
        there = self._ask_finders(name)
        if local is not None and (there is None or there.namespace):
            local.folders = (local.folders or []) + (there.folders or [] if there else [])
            return local
        return there

    def _as_local(self, found: Found) -> Found:
        """A module of PYTHONPATH or of the handler's folder that lies in the archive all the same."""
        where = found.file or (found.folders or [""])[0]
        if os.path.realpath(where).startswith(os.path.join(self._folder, "")):
            found.origin = LOCAL
        return found

    def _ask_finders(self, name: str) -> Optional[Found]:
        """The environment's own answer for a top-level name; its finders import nothing for one."""
        before, sys.path[:] = list(sys.path), self._path
        try:
            for finder in sys.meta_path:
                find_spec: Any = getattr(finder, "find_spec", None)
                if find_spec is None or getattr(finder, "ours", False):
                    continue
                try:
                    spec = find_spec(name, None)
                except Exception:
                    return Found(name, ENVIRONMENT, file="?")
                if spec is not None:
                    return _from_spec(name, spec)
        finally:
            sys.path[:] = before
        return None

    def _look(self, name: str, folders: List[str], tail: str, origin: str) -> Optional[Found]:
        portions = []
        for folder in folders:
            names = self._names(folder)
            if tail in names:
                package = os.path.join(folder, tail)
                inside = self._names(package)
                for suffix in _LOADERS:
                    if "__init__" + suffix in inside:
                        return Found(name, origin, os.path.join(package, "__init__" + suffix), [package])
            for suffix in _LOADERS:
                if tail + suffix in names and os.path.isfile(os.path.join(folder, tail + suffix)):
                    return Found(name, origin, os.path.join(folder, tail + suffix))
            if tail in names and os.path.isdir(os.path.join(folder, tail)):
                portions.append(os.path.join(folder, tail))
        return Found(name, origin, folders=portions) if portions else None

    def _names(self, folder: str) -> FrozenSet[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]

    def _absolute(self, entry: str) -> str:
        return os.path.realpath(os.path.join(self._folder, entry))


def _from_spec(name: str, spec: Any) -> Found:
    locations = spec.submodule_search_locations
    folders = None if locations is None else list(locations)
    origin = spec.origin if spec.has_location else None
    if origin is None and spec.origin == "frozen":
        return _frozen(name, spec, folders)
    if folders is not None and origin is None and spec.loader is not None and not _is_namespace(spec.loader):
        origin = "?"
    if folders is None and origin is None:
        origin = "?"
    return Found(name, ENVIRONMENT, origin, folders)


def _frozen(name: str, spec: Any, folders: Optional[List[str]]) -> Found:
    """A module of the standard library that is part of the executable: its source lies in the library's folder."""
    path = os.path.join(os.path.dirname(os.__file__), *name.split("."))
    for file in (path + ".py", os.path.join(path, "__init__.py")):
        if os.path.isfile(file):
            return Found(name, ENVIRONMENT, file, folders if folders is None or folders else [path])
    return Found(name, ENVIRONMENT, "?", folders)


def _is_namespace(loader: Any) -> bool:
    return "namespace" in type(loader).__name__.lower()


def absolute(node: Any, importer: Found) -> str:
    """The full name of the module that a `from … import` takes names from, "" when there is no such parent."""
    if not node.level:
        return node.module or ""
    parts = importer.name.split(".")
    keep = len(parts) - node.level + (1 if importer.folders is not None else 0)
    if keep <= 0:
        return ""
    base = ".".join(parts[:keep])
    return "%s.%s" % (base, node.module) if node.module else base
