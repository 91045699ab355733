"""The frames of the Execute stream: batches in, results and pieces out (docs/protocol.md)."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Sequence, Tuple, Union

    Header = Tuple[str, str]
    Part = Tuple[str, str, memoryview]  # name, content type, payload (a window on the frame)
    Buffer = Union[bytes, bytearray, memoryview]

BATCH = 1
RESULTS = 2
PIECE = 3

CONCURRENT = "concurrent"  # the feature of a backend that runs several batches at the same time

HANDLER_FAILED = "handler_failed"
OUT_OF_MEMORY = "out_of_memory"
INVALID_OUTPUT = "invalid_output"
RESPONSE_TOO_LARGE = "response_too_large"
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
    size = len(frame)
    strings: Union[bytes, memoryview] = bytes(frame) if size < _COPY_BELOW else frame
    at = 0
    try:
        kind, _, _, count, batch_id = _HEAD.unpack_from(strings)
        if kind != BATCH:
            raise FrameError("frame of kind %d where a batch (%d) is expected" % (kind, BATCH))
        at = _HEAD.size
        items = []
        for _ in range(count):
            item, at = _item(frame, strings, at)
            items.append(item)
    except struct.error as err:
        raise FrameError("batch frame of %d bytes ends inside the number at or after offset %d" % (size, at)) from err
    if at != size:
        raise FrameError("batch frame has %d bytes after its last item" % (size - at))
    return batch_id, items


def _item(frame: memoryview, strings: Union[bytes, memoryview], at: int) -> Tuple[Item, int]:
    """The item at `at`, and where it ends."""
    (id,), at = _texts(strings, at, 1)
    deadline = _I64.unpack_from(strings, at)[0]
    fields, at = _texts(strings, at + 12, 2 * _U32.unpack_from(strings, at + 8)[0])
    pairs = iter(fields)
    headers = list(zip(pairs, pairs))
    parts = []
    number = _U32.unpack_from(strings, at)[0]
    at += 4
    for _ in range(number):
        (name, content_type), at = _texts(strings, at, 2)
        begin = at + 8
        end = begin + _U64.unpack_from(strings, at)[0]
        if end > len(frame):
            raise _short(len(frame), begin, end)
        parts.append((name, content_type, frame[begin:end]))
        at = end
    return Item(id, deadline, headers, parts), at


def _texts(strings: Union[bytes, memoryview], at: int, number: int) -> Tuple[List[str], int]:
    """The `number` strings that begin at `at`, and where they end. Most of the time of reading a frame is spent here."""
    texts = []
    length, size = _U32.unpack_from, len(strings)
    for _ in range(number):
        begin = at + 4
        at = begin + length(strings, at)[0]
        if at > size:
            raise _short(size, begin, at)
        texts.append(str(strings[begin:at], "utf-8", "replace"))
    return texts, at


def _short(size: int, begin: int, end: int) -> FrameError:
    return FrameError("batch frame of %d bytes ends inside the %d bytes at offset %d" % (size, end - begin, begin))


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


def first_failure(frame: Buffer) -> Optional[Failure]:
    """The failure that a results frame begins with; None when its first result is an answer, or when it has none."""
    _, _, _, count, _ = _HEAD.unpack_from(frame)
    if count == 0:
        return None
    outcome, status, headers = _OUTCOME.unpack_from(frame, _HEAD.size)
    if outcome == 0:
        return None
    texts, _ = _texts(bytes(frame), _HEAD.size + _OUTCOME.size, 2 * headers + 3)
    reason, message, detail = texts[-3:]
    return Failure(reason, status, message, detail)
