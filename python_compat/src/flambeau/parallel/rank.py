"""One rank of a model: the process that torchrun starts. It has the handler, and gets its jobs from the leader."""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import socket
import sys

from flambeau.parallel import link
from flambeau.worker import frames, library, logs, process
from flambeau.worker.library import BATCH, STOP, Job
from flambeau.worker.loop import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

log = logging.getLogger(__name__)

_F_SETSIG = getattr(fcntl, "F_SETSIG", 10)  # Linux's number; not every Python has the name


class LeaderTransport:
    """The jobs that the leader gives. What a rank other than 0 answers to a batch goes to nobody."""

    def __init__(self, leader: link.Link, rank: int) -> None:
        self._leader = leader
        self._rank = rank
        self._kinds: Dict[int, int] = {}  # of the jobs that are not answered yet

    def take(self) -> Job:
        """Wait for the next job; STOP when the leader ends the connection."""
        message = self._leader.receive()
        if message is None:
            return Job(STOP, 0, memoryview(b""))
        self._kinds[message.id] = message.kind
        return Job(message.kind, message.id, memoryview(message.data))

    def give(self, id: int, data: bytes, last: bool) -> None:
        """Hand in an answer."""
        kind = self._kinds.pop(id) if last else self._kinds[id]
        if kind != BATCH or self._rank == 0:
            self._leader.send(link.Message(kind, id, data, last, self._rank))
        elif last:
            _report(data)


def _report(results: bytes) -> None:
    """Log why a batch failed in a rank whose answers nobody reads. That it answers with nothing useful is no failure."""
    failure = frames.first_failure(results)
    if failure is not None and failure.reason in (frames.HANDLER_FAILED, frames.OUT_OF_MEMORY):
        log.error("%s; other ranks may wait for this one until the response timeout\n%s", failure.message, failure.detail)


def main() -> None:
    """Serve until the leader says stop; never returns. The command line ends with the leader's folder."""
    folder = sys.argv[2]
    del sys.argv[1:]  # a handler is to see a command line without arguments
    rank = int(os.environ["LOCAL_RANK"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold_lifeline(os.path.join(folder, link.LIFELINE))
    for fd, name in ((1, "stdout"), (2, "stderr")):
        pipe = os.open(link.log_pipe(folder, rank, name), os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    scope = logs.Scope()
    logs.install(scope)
    library.line_buffer_c_output()
    faulthandler.enable(file=2)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(folder, link.SOCKET))
    leader = link.Link(connection)
    leader.send(link.Message(link.HELLO, rank=rank))
    process.end(process.serve(Worker(LeaderTransport(leader, rank), scope)))


def hold_lifeline(path: str) -> None:
    """Have the kernel kill the whole process group of this process when nobody holds the pipe `path` open for writing any more.

    torchrun puts each rank into a session of its own, where the server's kill of the worker's process group does not reach. The
    kernel's signal needs no thread here: code that never gives the interpreter's lock back cannot hold it up.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        gone = os.read(fd, 1) == b""
    except BlockingIOError:
        gone = False  # the leader has it open, and writes nothing
    if gone:
        os.killpg(0, signal.SIGKILL)
