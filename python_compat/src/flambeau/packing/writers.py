"""Writes archives and folders so that a reader sees the old one or the whole new one, never a part."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import shutil
import tarfile
import time
import zipfile
from typing import BinaryIO, Iterator, Sequence, cast

from flambeau.packing.errors import FileAccessError, NameTakenError, NotPackableError, PackingError
from flambeau.packing.plan import UNFINISHED_SUFFIX, Entry, leftovers

_CHUNK = 1 << 20
_MANIFEST_MODE = 0o644
_NAMES_SHOWN = 5


def write_zip(target: str, entries: Sequence[Entry], manifest_name: str, manifest: str, compress: bool = True) -> None:
    """Makes a zip file of the entries, with the manifest as its last member. compress: deflate, else only store."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with _replacing(target) as stream, _new_zip(stream, method) as archive:
        for entry in entries:
            add_to_zip(archive, entry)
        info = zipfile.ZipInfo(manifest_name, time.localtime()[:6])
        info.compress_type = method
        info.external_attr = _MANIFEST_MODE << 16
        archive.writestr(info, manifest.encode("utf-8"))


@contextlib.contextmanager
def _new_zip(stream: BinaryIO, method: int) -> Iterator[zipfile.ZipFile]:
    archive = zipfile.ZipFile(stream, "w", method, strict_timestamps=False)
    try:
        yield archive
        archive.close()
    finally:
        if archive.fp is not None:  # it is removed: closing it could fail after an interruption, and so could its members
            archive.fp, archive.mode = io.BytesIO(), "r"


def add_to_zip(archive: zipfile.ZipFile, entry: Entry) -> None:
    """Adds one file with its mode and time to an open zip file, compressed as the zip file was opened for."""
    try:
        entry.name.encode("utf-8")
    except UnicodeEncodeError as why:
        raise NotPackableError("the name of %r is not UTF-8, which a zip file needs. Rename the file." % entry.source) from why
    with _reading(entry.source) as stream:
        info = zipfile.ZipInfo.from_file(entry.source, entry.name, strict_timestamps=False)
        info.compress_type = archive.compression
        with archive.open(info, "w") as member:
            shutil.copyfileobj(stream, member, _CHUNK)


def write_tar(target: str, entries: Sequence[Entry], prefix: str, manifest_name: str, manifest: str) -> None:
    """Makes a .tar.gz file in which everything lies under the folder prefix, with the manifest as its last member."""
    with _replacing(target) as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for entry in entries:
            add_to_tar(archive, entry, prefix)
        data = manifest.encode("utf-8")
        info = tarfile.TarInfo(prefix + "/" + manifest_name)
        info.size = len(data)
        info.mtime = int(time.time())
        info.mode = _MANIFEST_MODE
        archive.addfile(info, io.BytesIO(data))


def add_to_tar(archive: tarfile.TarFile, entry: Entry, prefix: str) -> None:
    """Adds one file to an open tar file, as a plain file even where the source has several names, and owned by nobody."""
    with _reading(entry.source) as stream:
        state = os.fstat(stream.fileno())
        info = tarfile.TarInfo(prefix + "/" + entry.name)
        info.size, info.mode, info.mtime = state.st_size, state.st_mode & 0o7777, int(state.st_mtime)
        archive.addfile(info, cast(BinaryIO, stream))


def write_folder(target: str, entries: Sequence[Entry], manifest_name: str, manifest: str) -> None:
    """Makes a folder of the entries and the manifest.

    A folder that is there already keeps what the entries do not replace, as with TorchServe; a warning names it. Each file
    is replaced as a whole, so that a server that has mapped the old one into memory keeps it.
    """
    if os.path.lexists(target) and not os.path.isdir(target):
        raise NameTakenError("%s is a file, and a folder of that name is to be made. Move the file away." % target)
    if os.path.isdir(target):
        _fill(target, entries, manifest_name, manifest)
        kept = leftovers(target, frozenset([entry.name for entry in entries] + [manifest_name]))
        if kept:
            more = "" if len(kept) <= _NAMES_SHOWN else " and %d more" % (len(kept) - _NAMES_SHOWN)
            logging.warning(
                "%s still holds %d files that are not part of this build: %s%s.",
                target,
                len(kept),
                ", ".join(kept[:_NAMES_SHOWN]),
                more,
            )
        return
    unfinished = _unfinished(os.path.dirname(os.path.abspath(target)))
    with _words("write", target):
        os.mkdir(unfinished)
    try:
        _fill(unfinished, entries, manifest_name, manifest)
        with _words("write", target):
            os.rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def copy_into(folder: str, entries: Sequence[Entry]) -> None:
    """Copies the entries into a folder, each under its name."""
    for entry in entries:
        _put(folder, entry)


def _fill(folder: str, entries: Sequence[Entry], manifest_name: str, manifest: str) -> None:
    copy_into(folder, entries)
    path = os.path.join(folder, manifest_name)
    with _words("write", path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with _replacing(path) as stream:
        stream.write(manifest.encode("utf-8"))


def _put(folder: str, entry: Entry) -> None:
    path = os.path.join(folder, entry.name)
    with _words("write", path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with _reading(entry.source) as stream, _replacing(path, like=entry.source) as copy:
        shutil.copyfileobj(stream, copy, _CHUNK)


@contextlib.contextmanager
def _replacing(target: str, like: str = "") -> Iterator[BinaryIO]:
    """Gives a new file that takes the place of target when the block ends well, and is removed when it does not.

    like: a file whose mode and times the new one gets. Without one it gets those of the old file, or what the umask leaves.
    """
    place = os.path.realpath(target)
    if os.path.isdir(place):
        raise NameTakenError("%s is a folder, and a file of that name is to be written. Move the folder away." % target)
    unfinished = _unfinished(os.path.dirname(place))
    try:
        with _words("write", target):
            with open(unfinished, "x+b") as stream:
                yield cast(BinaryIO, stream)
            if like:
                shutil.copystat(like, unfinished)
            elif os.path.exists(place):
                shutil.copymode(place, unfinished)
            os.replace(unfinished, place)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[_Source]:
    with _words("read", path):
        stream = open(path, "rb")  # noqa: SIM115 - it is closed below
    with stream:
        yield _Source(stream, path)


class _Source:
    """An input file that says its own name when reading fails: what surrounds it would blame the archive."""

    def __init__(self, stream: BinaryIO, path: str) -> None:
        self._stream = stream
        self._path = path

    def read(self, size: int = -1) -> bytes:
        """Gives at most size bytes, none at the end."""
        with _words("read", self._path):
            return self._stream.read(size)

    def fileno(self) -> int:
        """Gives the descriptor of the file."""
        return self._stream.fileno()


@contextlib.contextmanager
def _words(verb: str, path: str) -> Iterator[None]:
    """Turns a refusal of the operating system into a sentence."""
    try:
        yield
    except OSError as why:
        if isinstance(why, PackingError):
            raise
        problem = FileAccessError(
            "cannot %s %s: %s. Check the permissions and the free space of %s." % (verb, path, why.strerror or why, _folder(path))
        )
        problem.errno = why.errno
        raise problem from why


def _unfinished(folder: str) -> str:
    """Gives a path beside the final one, so that the last step is a rename; hidden, so that a server does not pick it up."""
    return os.path.join(folder, "." + secrets.token_hex(8) + UNFINISHED_SUFFIX)


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))
