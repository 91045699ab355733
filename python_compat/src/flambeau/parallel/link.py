"""What a leader and its ranks say to each other, over one unix socket for each rank.

A message is a head and its data: ``u8 kind``, ``u8 last``, ``u16 zero``, ``u32 rank``, ``u64 id``, ``u64 length``, little endian.
The leader sends jobs, of the kinds that libflambeau gives; a rank begins with HELLO and then sends the answers to the jobs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    Buffer = Union[bytes, memoryview]

HELLO = 255

_HEAD = struct.Struct("<BBHIQQ")

# In the leader's folder.
SOCKET, LIFELINE = "ranks", "life"


class Message:
    """A job for a rank, or a rank's answer to one."""

    __slots__ = ("data", "id", "kind", "last", "rank")

    def __init__(self, kind: int, id: int = 0, data: Buffer = b"", last: bool = True, rank: int = 0) -> None:
        self.kind = kind  # HELLO, or that of the job
        self.id = id  # of the job
        self.data = data
        self.last = last  # False for an intermediate answer
        self.rank = rank  # the sender's, in HELLO


class Link:
    """One end of the connection between the leader and a rank. Sending is safe from several threads, receiving is for one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError when the other end is gone."""
        head = _HEAD.pack(message.kind, message.last, 0, message.rank, message.id, len(message.data))
        with self._sending:
            self._connection.sendall(head)
            self._connection.sendall(message.data)

    def receive(self) -> Optional[Message]:
        """Wait for the next message; None when the other end is gone."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, last, _, rank, id, length = _HEAD.unpack(head)
        data = self._exactly(length)
        return None if data is None else Message(kind, id, data, bool(last), rank)

    def _exactly(self, size: int) -> Optional[memoryview]:
        data = memoryview(bytearray(size))
        at = 0
        while at < size:
            try:
                got = self._connection.recv_into(data[at:])
            except OSError:
                return None
            if got == 0:
                return None
            at += got
        return data

    def finish(self) -> None:
        """Let the other end find that no more will come. This one still receives, until the other one's end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)


def log_pipe(folder: str, rank: int, name: str) -> str:
    """The named pipe for what a rank writes to `name`, stdout or stderr."""
    return os.path.join(folder, "%d.%s" % (rank, name))
