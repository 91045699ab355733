"""libflambeau.so as Python sees it: the gRPC side of the worker behind four C functions (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping

STOP, LOAD, BATCH, UNLOAD = 0, 1, 2, 3

_PyBUF_READ = 0x100  # of Python.h
_IOLBF = 1  # of stdio.h, in glibc


class LibraryError(Exception):
    """The library cannot be loaded, or says that it failed."""


class Job:
    """Something to do. `data` is a window on the library's memory, valid until the job's last answer is given."""

    __slots__ = ("data", "id", "kind")

    def __init__(self, kind: int, id: int, data: memoryview) -> None:
        self.kind = kind  # STOP, LOAD, BATCH or UNLOAD
        self.id = id
        self.data = data


class _Job(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint64),
        ("kind", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("len", ctypes.c_uint64),
    ]


class Library:
    """The loaded library. A forked child must not call it, and cannot: its methods raise LibraryError there."""

    def __init__(self, path: str) -> None:
        """Load the library at `path`. Raises LibraryError when that is not possible."""
        try:
            lib = ctypes.CDLL(path)
        except OSError as err:
            raise LibraryError(_why_not(path, err)) from err
        lib.flambeau_start.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int32]
        lib.flambeau_start.restype = ctypes.c_int32
        lib.flambeau_error.argtypes = []
        lib.flambeau_error.restype = ctypes.c_char_p
        lib.flambeau_take.argtypes = [ctypes.POINTER(_Job)]
        lib.flambeau_take.restype = ctypes.c_int32
        lib.flambeau_give.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32]
        lib.flambeau_give.restype = ctypes.c_int32
        self._lib = lib
        self._owner = os.getpid()
        self._job = _Job()
        self._window = _window_function()

    def start(self, env: Mapping[bytes, bytes], handshake_fd: int, lifeline_fd: int) -> None:
        """Start serving; the handshake line goes to `handshake_fd`, `lifeline_fd` is -1 when there is none."""
        block = b"".join(key + b"=" + value + b"\0" for key, value in env.items())
        if self._lib.flambeau_start(block, len(block), handshake_fd, lifeline_fd) != 0:
            raise LibraryError("libflambeau could not start: %s" % self._error())

    def take(self) -> Job:
        """Wait for the next job."""
        self._check()
        kind = self._lib.flambeau_take(ctypes.byref(self._job))
        if kind < 0:
            raise LibraryError("libflambeau could not take a job: %s" % self._error())
        job = self._job
        data = self._window(job.data, job.len, _PyBUF_READ) if job.data and job.len else memoryview(b"")
        return Job(kind, job.id, data)

    def give(self, id: int, data: bytes, last: bool) -> None:
        """Hand in an answer to the job `id`; with `last` it is the job's end."""
        self._check()
        if self._lib.flambeau_give(id, data, len(data), 1 if last else 0) != 0:
            raise LibraryError("libflambeau did not accept an answer: %s" % self._error())

    def _error(self) -> str:
        return (self._lib.flambeau_error() or b"(no reason given)").decode("utf-8", "replace")

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise LibraryError("process %d was forked from worker %d and cannot answer requests" % (os.getpid(), self._owner))


def _window_function() -> Any:
    # A ctypes array over the memory would do too, but makes a new type for every size that ever comes.
    function = ctypes.pythonapi.PyMemoryView_FromMemory
    function.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
    function.restype = ctypes.py_object
    return function


def find_library(environ: Mapping[str, str], package_dir: str) -> str:
    """Where the library is: FLAMBEAU_LIBRARY, else ``_lib/libflambeau.so`` in the package `package_dir`."""
    return environ.get("FLAMBEAU_LIBRARY") or os.path.join(package_dir, "_lib", "libflambeau.so")


def _why_not(path: str, err: OSError) -> str:
    hints: List[str] = []
    if not os.path.exists(path):
        hints.append("the file is not there: is the flambeau wheel installed whole? FLAMBEAU_LIBRARY can name another place")
    elif "musl" in _libc():
        hints.append("this Python uses musl, where a Go library cannot be loaded: use a Python for glibc")
    elif any(said in str(err) for said in ("invalid ELF header", "wrong ELF class", "file too short")):
        hints.append("it is no library, or one for another kind of machine than this Python's (%s)" % os.uname().machine)
    return "cannot load %s: %s%s" % (path, err, "".join("; " + hint for hint in hints))


def _libc() -> str:
    try:
        with open("/proc/self/maps") as maps:
            return "musl" if "musl" in maps.read() else ""
    except OSError:
        return ""


def flush_c_output() -> None:
    """Write out what C code left in the buffers of stdio, which a hard exit would lose."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def line_buffer_c_output() -> None:
    """Make printf in extension modules show up line by line; stdio would hold it back, as stdout is a pipe."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
