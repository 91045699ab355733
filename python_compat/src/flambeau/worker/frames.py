"""The frames of the Execute stream: batches in, results and pieces out (docs/protocol.md)."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple, Union

    Header = Tuple[str, str]
    Part = Tuple[str, str, memoryview]  # name, content type, payload (a window on the frame)
    Buffer = Union[bytes, bytearray, memoryview]

BATCH = 1
RESULTS = 2
PIECE = 3

HANDLER_FAILED = "handler_failed"
OUT_OF_MEMORY = "out_of_memory"
INVALID_OUTPUT = "invalid_output"
INTERNAL = "internal"

_HEAD = struct.Struct("<BBHIQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_OUTCOME = struct.Struct("<BII")  # outcome, status, number of headers

# Below this size a frame is copied whole for reading its strings: slices of bytes are cheaper than windows on memory.
_COPY_BELOW = 64 * 1024


class FrameError(Exception):
    """A frame that does not follow the protocol."""


class Item:
    """One request of a batch, as it came."""

    __slots__ = ("deadline", "headers", "id", "parts")

    def __init__(self, id: str, deadline: int, headers: List[Header], parts: List[Part]) -> None:
        self.id = id
        self.deadline = deadline  # Unix time in nanoseconds, 0 for none
        self.headers = headers  # in the order sent, duplicates kept
        self.parts = parts  # in the order sent, duplicates kept


class Answer:
    """The result of an item that was answered."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: Buffer, status: int = 0, headers: Sequence[Tuple[bytes, bytes]] = ()) -> None:
        self.body = body
        self.status = status  # HTTP status, 0 when the handler set none
        self.headers = headers  # names and values, encoded


class Failure:
    """The result of an item that failed."""

    __slots__ = ("detail", "message", "reason", "status")

    def __init__(self, reason: str, status: int, message: str, detail: str = "") -> None:
        self.reason = reason  # one of the four of the protocol
        self.status = status  # HTTP status, 0 to let the server choose by the reason
        self.message = message  # for the client
        self.detail = detail  # for the log only


def decode_batch(frame: memoryview) -> Tuple[int, List[Item]]:
    """Give the id and the items of a batch frame.

    The payloads are windows on `frame`, copied by nobody yet: they end with it.
    Raises FrameError when the frame is not a well-formed batch.
    """
    reader = _Reader(frame)
    kind, _, _, count, batch_id = reader.head()
    if kind != BATCH:
        raise FrameError("frame of kind %d where a batch (1) is expected" % kind)
    items = []
    for _ in range(count):
        id = reader.text()
        deadline = reader.i64()
        headers = [(reader.text(), reader.text()) for _ in range(reader.u32())]
        parts = [(reader.text(), reader.text(), reader.blob()) for _ in range(reader.u32())]
        items.append(Item(id, deadline, headers, parts))
    reader.end()
    return batch_id, items


class _Reader:
    """Reads a frame from front to back, and checks that everything lies inside it."""

    __slots__ = ("_at", "_frame", "_size", "_strings")

    def __init__(self, frame: memoryview) -> None:
        self._frame = frame
        self._size = len(frame)
        self._strings: Union[bytes, memoryview] = bytes(frame) if self._size < _COPY_BELOW else frame
        self._at = 0

    def head(self) -> Tuple[int, int, int, int, int]:
        at = self._step(_HEAD.size)
        return _HEAD.unpack_from(self._strings, at)

    def u32(self) -> int:
        at = self._at
        self._at = end = at + 4
        if end > self._size:
            raise self._short(at, 4)
        return int(_U32.unpack_from(self._strings, at)[0])

    def i64(self) -> int:
        return int(_I64.unpack_from(self._strings, self._step(8))[0])

    def text(self) -> str:
        at = self._at + 4
        if at > self._size:
            raise self._short(self._at, 4)
        end = at + _U32.unpack_from(self._strings, at - 4)[0]
        if end > self._size:
            raise self._short(at, end - at)
        self._at = end
        return str(self._strings[at:end], "utf-8", "replace")

    def blob(self) -> memoryview:
        size = _U64.unpack_from(self._strings, self._step(8))[0]
        at = self._step(size)
        return self._frame[at : at + size]

    def end(self) -> None:
        if self._at != self._size:
            raise FrameError("batch frame has %d bytes after its last item" % (self._size - self._at))

    def _step(self, size: int) -> int:
        at = self._at
        if at + size > self._size:
            raise self._short(at, size)
        self._at = at + size
        return at

    def _short(self, at: int, size: int) -> FrameError:
        return FrameError("batch frame of %d bytes ends inside the %d bytes at offset %d" % (self._size, size, at))


def encode_results(kind: int, batch_id: int, results: Sequence[Union[Answer, Failure]]) -> bytes:
    """Make a results frame (kind RESULTS) or a piece frame (kind PIECE); each body is copied once."""
    chunks: List[Buffer] = [_HEAD.pack(kind, 0, 0, len(results), batch_id)]
    add = chunks.append
    for result in results:
        if isinstance(result, Answer):
            add(_OUTCOME.pack(0, result.status, len(result.headers)))
            for name, value in result.headers:
                add(_U32.pack(len(name)))
                add(name)
                add(_U32.pack(len(value)))
                add(value)
            add(_U64.pack(len(result.body)))
            add(result.body)
        else:
            add(_OUTCOME.pack(1, result.status, 0))
            for text in (result.reason, result.message, result.detail):
                data = text.encode("utf-8", "backslashreplace")
                add(_U32.pack(len(data)))
                add(data)
    return b"".join(chunks)
