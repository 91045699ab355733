"""What the worker and the handler write: lines on two pipes, with markers that say for which requests and at which level."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import threading
from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Tuple

_MARK = "\x1e"
_LEVELS = ((logging.CRITICAL, "CRITICAL"), (logging.ERROR, "ERROR"), (logging.WARNING, "WARNING"), (logging.INFO, "INFO"))


class _Requests:
    """The requests of one asyncio task; a task that outlives them finds none here."""

    def __init__(self, ids: Tuple[str, ...]) -> None:
        self.ids = ids


class Scope:
    """The requests that are being worked on: whatever is written meanwhile is written for them."""

    def __init__(self) -> None:
        self._ids: Tuple[str, ...] = ()
        self._task: ContextVar[Optional[_Requests]] = ContextVar("flambeau_requests", default=None)
        self.owner = os.getpid()

    @property
    def ids(self) -> Tuple[str, ...]:
        """Those of the asyncio task that asks, if it is one's of `task`, else those that were set for the whole process."""
        own = self._task.get()
        return self._ids if own is None else own.ids

    @ids.setter
    def ids(self, ids: Tuple[str, ...]) -> None:
        self._ids = ids

    @contextlib.contextmanager
    def task(self, ids: Tuple[str, ...]) -> Iterator[None]:
        """Work on requests in an asyncio task, beside others. Until they are done, tasks that it starts count as its own."""
        own = _Requests(ids)
        self._task.set(own)
        try:
            yield
        finally:
            own.ids = ()

    def marker(self, level: str) -> bytes:
        """The marker line for what is written now at `level` ("" when nobody said one)."""
        return _marker(self.ids, level)


def _marker(ids: Tuple[str, ...], level: str) -> bytes:
    return (_MARK + json.dumps({"ids": ids, "level": level}) + "\n").encode("utf-8")


class MarkedOutput(io.RawIOBase):
    """A descriptor for log lines. A marker goes out only when the requests or the level changed since the last line.

    A line that somebody left unfinished is ended before a marker, which has to begin a line itself.
    """

    def __init__(self, fd: int, scope: Scope) -> None:
        super().__init__()
        self._fd = fd
        self._scope = scope
        # Reentrant: a signal handler or a finalizer may print while this thread is inside write. Guards the three below it.
        self._lock = threading.RLock()
        self._ids: Tuple[str, ...] = ()
        self._level = ""
        self._line_open = False

    def write(self, data: Any) -> int:
        """Write bytes without a level, as print() does; always all of them."""
        data = bytes(data)
        if data:
            self._put(data, "", False)
        return len(data)

    def write_record(self, text: str, level: str) -> None:
        """Write a log record on lines of its own; `text` ends with a newline."""
        self._put(text.encode("utf-8", "backslashreplace"), level, True)

    def write_for(self, lines: bytes, ids: Tuple[str, ...], level: str) -> None:
        """Write whole lines that another process wrote, for its requests."""
        self._put(lines, level, True, ids)

    def _put(self, data: bytes, level: str, own_line: bool, ids: Optional[Tuple[str, ...]] = None) -> None:
        with self._lock:
            if ids is None:
                ids = self._scope.ids
            # Markers describe what follows on the pipe: a forked child, which shares it, must not speak for its parent.
            changed = (ids != self._ids or level != self._level) and self._scope.owner == os.getpid()
            head = b"\n" if self._line_open and (changed or own_line) else b""
            if changed:
                head += _marker(ids, level)
                self._ids, self._level = ids, level
            self._line_open = not data.endswith(b"\n")
            _write_all(self._fd, head + data)

    def after_fork(self) -> None:
        """Make the output usable in a forked child, where another thread may have held the lock for ever."""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """True: it can be written."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """False: it is a pipe."""
        return False

    @property
    def name(self) -> str:
        """As of Python's own stream."""
        return "<stdout>" if self._fd == 1 else "<stderr>"

    @property
    def mode(self) -> str:
        """As of Python's own stream."""
        return "wb"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # A child process made the pipe non-blocking for all who share it.
            import select

            select.select([], [fd], [])
        except BrokenPipeError:
            return  # the server is gone, and this process with it in a moment


class RecordHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The root logger's handler: like TorchServe's it prints the bare message to stdout, and it says the record's level."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        output = getattr(self.stream, "buffer", None)
        if not isinstance(output, MarkedOutput):  # somebody gave this handler another stream
            super().emit(record)
            return
        try:
            text = self.format(record)
            self.stream.flush()
            output.write_record(text + self.terminator, level_name(record.levelno))
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)


def level_name(number: int) -> str:
    """The protocol's word for a level of the logging module; a custom level counts as the next lower standard one."""
    for level, name in _LEVELS:
        if number >= level:
            return name
    return "DEBUG"


def install(scope: Scope, stdout_fd: int = 1, stderr_fd: int = 2) -> None:
    """Replace sys.stdout and sys.stderr, and configure the root logger, as a handler finds them under TorchServe.

    Both are line buffered and UTF-8 whatever the locale says; what cannot be encoded is written with backslash escapes.
    """
    outputs: List[MarkedOutput] = []
    for name, fd in (("stdout", stdout_fd), ("stderr", stderr_fd)):
        output = MarkedOutput(fd, scope)
        outputs.append(output)
        stream = io.TextIOWrapper(output, encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
    handler = RecordHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # TorchServe's worker raises warnings to stderr in Python's own way; so does this one, captureWarnings stays off.
    if hasattr(os, "register_at_fork"):
        for output in outputs:
            os.register_at_fork(after_in_child=output.after_fork)


def flush() -> None:
    """Write out what is still in a buffer, of Python's streams whoever put them there."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # A handler's own stream may be closed or broken, which is nobody's business now.
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
