"""Decides which file goes into an archive under which name, before anything is written."""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

from flambeau.packing.errors import FileAccessError, FolderNotFileError, MissingFileError, NameTakenError, NotPackableError

# A file that is still being written carries this ending, so that no later build takes it for an input.
UNFINISHED_SUFFIX = ".flambeau-unfinished"

_NOWHERE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_UNWANTED_FOLDERS = frozenset(("__MACOSX", "__pycache__"))


class Entry(NamedTuple):
    """One file of an archive: its name in it (relative, with slashes) and where it lies now."""

    name: str
    source: str


def wanted_folder(name: str) -> bool:
    """Says whether a folder of this name is packed: TorchServe drops hidden folders, ``__MACOSX`` and ``__pycache__``."""
    return name not in _UNWANTED_FOLDERS and not name.startswith(".")


class Plan:
    """The files of one archive by their names in it.

    manifest: name in the archive that is kept free for the manifest, for example ``MAR-INF/MANIFEST.json``.
    target: path of the archive itself; it is never packed into itself. None: there is none.
    """

    def __init__(self, manifest: str, target: Optional[str] = None) -> None:
        self._manifest = manifest
        self._target = None if target is None else os.path.realpath(target)
        self._files: Dict[str, str] = {}
        self._folders: Dict[str, str] = {}

    def entries(self) -> List[Entry]:
        """Gives the files sorted by name, so that equal inputs make equal archives."""
        return [Entry(name, self._files[name]) for name in sorted(self._files)]

    def add_file(self, path: str, option: str) -> None:
        """Puts one file into the root of the archive. option names the flag in messages.

        Raises MissingFileError, FolderNotFileError or NotPackableError.
        """
        mode = _mode(path)
        if mode is None:
            raise MissingFileError(
                "%s %s: there is no such file. Looked for %s; check the path." % (option, path, os.path.abspath(path))
            )
        if stat.S_ISDIR(mode):
            raise FolderNotFileError("%s %s is a folder. Give the path of one file." % (option, path))
        if not stat.S_ISREG(mode):
            raise NotPackableError(
                "%s %s is neither a file nor a folder. Copy its content to a file and give that." % (option, path)
            )
        if self._is_target(path):
            logging.warning("%s %s is the archive that is being made: left out.", option, path)
            return
        self._claim_file(os.path.basename(path), path)

    def add_contents(self, folder: str, option: str) -> None:
        """Puts what a folder holds into the root of the archive, sub-folders with their structure.

        Raises NameTakenError when a sub-folder of that name is there already, NotPackableError for loops of links.
        """
        top = _identity(folder)
        for name in _names(folder):
            path = os.path.join(folder, name)
            mode = _mode(path)
            if mode is None or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                logging.warning("%s: %s is neither a file nor a folder (a broken link or a socket): left out.", option, path)
            elif self._is_target(path):
                logging.warning("%s: %s is the archive that is being made: left out.", option, path)
            elif stat.S_ISREG(mode):
                self._claim_file(name, path)
            elif wanted_folder(name):
                self._claim_folder(name, path)
                for entry in _walk(path, name, {top: folder}, self._target):
                    self._claim_file(entry.name, entry.source)

    def _is_target(self, path: str) -> bool:
        return self._target is not None and os.path.realpath(path) == self._target

    def _claim_file(self, name: str, source: str) -> None:
        if name.endswith(UNFINISHED_SUFFIX):
            return
        if name == self._manifest:
            logging.warning("%s is left out: the archive gets a manifest of its own under that name.", source)
            return
        taken = self._folders.get(name)
        if taken is None and name == self._manifest.split("/")[0]:
            taken = "the manifest's folder"
        if taken is not None:
            raise NameTakenError(
                "%s cannot go into the archive: its name %s belongs to a folder there (%s). Rename one of them."
                % (source, name, taken)
            )
        before = self._files.get(name)
        if before is not None and not _same(before, source):
            logging.warning("%s replaces %s: both have the name %s in the archive.", source, before, name)
        self._files[name] = source

    def _claim_folder(self, name: str, source: str) -> None:
        taken = self._folders.get(name) or self._files.get(name)
        if taken is not None:
            raise NameTakenError(
                "%s cannot go into the archive: the name %s is taken by %s. Rename one of the two, or merge them first."
                % (source, name, taken)
            )
        self._folders[name] = source


def tree(folder: str, skip: Optional[str] = None) -> List[Entry]:
    """Gives every file under a folder that an archive of it holds, sorted by name. skip: a path to pass over."""
    return sorted(_walk(folder, "", {}, None if skip is None else os.path.realpath(skip)))


def _walk(folder: str, prefix: str, above: Dict[Tuple[int, int], str], skip: Optional[str] = None) -> Iterator[Entry]:
    """Yields the files under a folder. Links are followed; above holds the folders on the way here, to find loops.

    skip: real path of a file or folder to pass over.
    """
    key = _identity(folder)
    if key in above:
        raise NotPackableError(
            "%s is a link that leads back to %s: a loop. Remove the link or leave the folder out." % (folder, above[key])
        )
    inside = dict(above)
    inside[key] = folder
    for name in _names(folder):
        path = os.path.join(folder, name)
        mode = _mode(path)
        inner = prefix + "/" + name if prefix else name
        if skip is not None and os.path.realpath(path) == skip:
            continue
        if mode is None:
            raise MissingFileError("%s is a link to nothing. Remove it, or put there what it should lead to." % path)
        if stat.S_ISREG(mode):
            yield Entry(inner, path)
        elif not stat.S_ISDIR(mode):
            raise NotPackableError("%s is neither a file nor a folder (a socket, a pipe or a device). Move it elsewhere." % path)
        elif wanted_folder(name):
            yield from _walk(path, inner, inside, skip)


def leftovers(folder: str, wanted: FrozenSet[str]) -> List[str]:
    """Gives the names of files under a folder that are not in wanted, caches and hidden folders aside, sorted."""
    found: Set[str] = set()
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if wanted_folder(name)]
        for name in files:
            inner = os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")
            if inner not in wanted:
                found.add(inner)
    return sorted(found)


def _mode(path: str) -> Optional[int]:
    """Gives the file mode of what a path leads to, or None when it leads nowhere."""
    try:
        return os.stat(path).st_mode
    except OSError as why:
        if why.errno in _NOWHERE:
            return None
        raise FileAccessError("cannot read %s: %s." % (path, why.strerror)) from why


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as why:
        raise FileAccessError("cannot read the folder %s: %s." % (folder, why.strerror)) from why


def _identity(path: str) -> Tuple[int, int]:
    state = os.stat(path)
    return state.st_dev, state.st_ino


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
