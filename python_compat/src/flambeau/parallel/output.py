"""What torchrun and the ranks write, passed on to the leader's own log with the name of who wrote it."""

from __future__ import annotations

import collections
import json
import os
import selectors
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Tuple

    from flambeau.worker.logs import MarkedOutput

_MARK = b"\x1e"
_METRIC = b"[METRICS]"  # begins a metric; who wrote it is no part of that
_LONGEST = 64 * 1024  # bytes of a line; a longer one comes in pieces
_CHUNK = 64 * 1024
_KEPT = 50  # last lines of each source


class Source:
    """One descriptor that is read."""

    def __init__(self, fd: int, name: str, output: MarkedOutput) -> None:
        self.fd = fd
        self.name = name
        self._output = output
        self._prefix = ("[%s] " % name).encode("utf-8")
        self._ids: Tuple[str, ...] = ()
        self._level = ""
        self._rest = b""
        self._last: Deque[str] = collections.deque(maxlen=_KEPT)

    def feed(self, data: bytes) -> None:
        """Take what came, and pass on what is whole lines of it."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._line(line)
        while len(self._rest) >= _LONGEST:
            self._line(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]

    def finish(self) -> None:
        """Pass on a last line that was not ended."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def tail(self) -> str:
        """The last lines."""
        return "\n".join(self._last)

    def _line(self, line: bytes) -> None:
        if line.startswith(_MARK):
            self._mark(line)
            return
        if not line.startswith(_METRIC):
            self._last.append(line.decode("utf-8", "replace"))
            line = self._prefix + line
        self._output.write_for(line + b"\n", self._ids, self._level)

    def _mark(self, line: bytes) -> None:
        """Note what a marker (docs/protocol.md) says about the lines after it."""
        try:
            marker: Any = json.loads(line[len(_MARK) :])
            self._ids, self._level = tuple(str(id) for id in marker["ids"] or ()), str(marker["level"])
        except (ValueError, KeyError, TypeError):
            self._ids, self._level = (), ""


class Outputs:
    """Reads all the sources, in a thread of its own."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._sources: List[Source] = []
        self._ended = threading.Condition()  # guards _open
        self._open: Dict[str, int] = {}  # by name: how many of its sources have not ended yet

    def add(self, fd: int, name: str, output: MarkedOutput) -> None:
        """Read `fd`, which becomes this object's, and write its lines to `output`, with `name` before each. Only before start."""
        os.set_blocking(fd, False)
        source = Source(fd, name, output)
        self._sources.append(source)
        self._selector.register(fd, selectors.EVENT_READ, source)
        self._open[name] = self._open.get(name, 0) + 1

    def start(self) -> None:
        """Begin to read. The thread ends with the last source, or with the process."""
        threading.Thread(target=self._read, name="flambeau-outputs", daemon=True).start()

    def wait(self, name: str, limit: float) -> str:
        """Wait until all that `name` wrote was passed on, for `limit` seconds at most, and give its last lines."""
        with self._ended:
            self._ended.wait_for(lambda: not self._open.get(name), limit)
        return "\n".join(text for text in (source.tail() for source in self._sources if source.name == name) if text)

    def _read(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                source: Source = key.data
                try:
                    data = os.read(source.fd, _CHUNK)
                except BlockingIOError:
                    continue
                if data:
                    source.feed(data)
                else:
                    self._end(source)

    def _end(self, source: Source) -> None:
        source.finish()
        self._selector.unregister(source.fd)
        os.close(source.fd)
        with self._ended:
            self._open[source.name] -= 1
            self._ended.notify_all()
