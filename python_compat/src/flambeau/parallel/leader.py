"""The process that the server starts for a model of several ranks: to the server it is a worker like any other.

It starts torchrun, which starts the ranks, and passes everything on between them and the server. It is light: no handler and no
torch is in it. A rank that ends, or torchrun itself, ends it, so that the server starts the whole anew.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from importlib.machinery import PathFinder

from flambeau.parallel import link, relay
from flambeau.parallel.output import Outputs
from flambeau.worker import paths, process
from flambeau.worker.library import LOAD, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence

    from flambeau.worker.library import Job
    from flambeau.worker.logs import MarkedOutput
    from flambeau.worker.loop import Transport

log = logging.getLogger(__name__)

_LAST_WORDS = 0.5  # seconds that may pass until a death is told about
_FAREWELL = 8.0  # seconds that the ranks have for their end; the server's own limit counts, too

_TORCHRUN = "torchrun"


class Plan:
    """What the leader is to start, as the server's command line says it: ``leader BATCHES RANKS TORCHRUN-ARGUMENT…``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """BATCHES is ``all`` or ``first``: the ranks that batches go to. RANKS is the number of ranks on this machine."""
        self.every_rank = arguments[0] == "all"
        self.ranks = int(arguments[1])
        self.torchrun = list(arguments[2:])


class Leader:
    """Serves one model of several ranks over a transport."""

    def __init__(
        self, transport: Transport, plan: Plan, folder: str, outputs: Sequence[MarkedOutput], end: Callable[[int], object]
    ) -> None:
        """`folder` is a private one, for sockets and pipes; `outputs` are those of stdout and stderr.

        `end` is called from any thread when nothing can be served any more: it ends the process with the status that it is given.
        """
        self._transport = transport
        self._plan = plan
        self._folder = folder
        self._outputs = outputs
        self._end = end
        self._logs = Outputs()
        self._torchrun: Optional[subprocess.Popen[bytes]] = None
        self._lifeline = -1
        self._state = threading.Condition()  # guards the rest
        self._relay: Optional[relay.Relay] = None  # set once, when all the ranks are there
        self._lost: Optional[str] = None  # why the ranks are no use any more
        self._stopping = False
        self._links: List[Optional[link.Link]] = [None] * plan.ranks

    def serve(self) -> None:
        """Work until the transport says stop."""
        while True:
            job = self._transport.take()
            if job.kind == LOAD:
                self._load(job)
            elif job.kind == STOP:
                self._stop()
                return
            elif self._relay is None:
                raise RuntimeError("a job of kind %d came before the ranks were there" % job.kind)
            else:
                self._relay.send(job)

    def _load(self, job: Job) -> None:
        if not _has_torch():
            message = "the model's parallelType needs PyTorch's torchrun: install torch for %s" % sys.executable
            log.error("%s", message)
            self._transport.give(job.id, relay.failed_load(message, message), True)
            return
        self._start()
        with self._state:
            self._state.wait_for(lambda: self._lost is not None or None not in self._links)
            reason = self._lost
            if reason is None:
                links = [one for one in self._links if one is not None]
                self._relay = relay.Relay(self._transport, links, self._plan.every_rank, self._lose)
        if self._relay is not None:
            self._relay.begin(job)
            return
        detail = self._logs.wait(_TORCHRUN, _LAST_WORDS)
        message = "%s before all %d ranks were there: its last words are in the log" % (reason, self._plan.ranks)
        self._transport.give(job.id, relay.failed_load(message, detail), True)

    def _start(self) -> None:
        """Make what the ranks connect to, and start torchrun."""
        lifeline = os.path.join(self._folder, link.LIFELINE)
        os.mkfifo(lifeline, 0o600)
        self._lifeline = os.open(lifeline, os.O_RDWR | os.O_CLOEXEC)  # kept open, and never written to, until this process ends
        for rank in range(self._plan.ranks):
            for name, output in zip(("stdout", "stderr"), self._outputs):
                pipe = link.log_pipe(self._folder, rank, name)
                os.mkfifo(pipe, 0o600)
                self._logs.add(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rank %d" % rank, output)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.path.join(self._folder, link.SOCKET))
        listener.listen(self._plan.ranks)
        threading.Thread(target=self._accept, args=(listener,), name="flambeau-accept", daemon=True).start()
        main = os.path.join(os.path.dirname(process.__file__), "__main__.py")
        command = [sys.executable, main, "torchrun", "--log-dir", os.path.join(self._folder, "log")]
        command += self._plan.torchrun + [main, "rank", self._folder]
        torchrun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._torchrun = torchrun
        for stream, output in zip((torchrun.stdout, torchrun.stderr), self._outputs):
            assert stream is not None
            self._logs.add(os.dup(stream.fileno()), _TORCHRUN, output)
            stream.close()
        self._logs.start()
        threading.Thread(target=self._watch, args=(torchrun,), name="flambeau-torchrun", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        """Take the connections of the ranks, each of which says first which one it is."""
        with listener:
            for _ in range(self._plan.ranks):
                connection, _ = listener.accept()
                one = link.Link(connection)
                hello = one.receive()
                if hello is None or hello.kind != link.HELLO or hello.rank >= self._plan.ranks:
                    continue  # it died at once; torchrun tells
                with self._state:
                    self._links[hello.rank] = one
                    self._state.notify_all()

    def _watch(self, torchrun: subprocess.Popen[bytes]) -> None:
        status = torchrun.wait()
        self._lose(_TORCHRUN, "has ended with %s" % ("status %d" % status if status >= 0 else "signal %d" % -status))

    def _lose(self, who: str, what: str) -> None:
        """Called when a rank or torchrun is gone, from any thread: fails the load that is under way, or ends this process."""
        with self._state:
            if self._lost is not None or self._stopping:
                return
            self._lost = reason = "%s %s" % (who, what)
            self._state.notify_all()
            current = self._relay
        if current is None:
            return  # _load waits for it
        # It may have said why, and torchrun is about to say how.
        detail = self._logs.wait(who, _LAST_WORDS)
        self._logs.wait(_TORCHRUN, _LAST_WORDS)
        if current.fail_load("%s while the model was loading" % reason, detail):
            return
        with self._state:
            if self._stopping:
                return  # the server wants its end, too, and serve is at it
        log.critical("%s: the worker ends, and is started again with all its ranks", reason)
        self._end(1)

    def drop_lifeline(self) -> None:
        """Have the kernel kill the ranks that still are there, as it does at the end of this process."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _stop(self) -> None:
        """Let the ranks end by themselves, if all are well; have those killed that do not. torchrun ends with this process."""
        with self._state:
            self._stopping = True
            well = self._relay is not None and self._relay.loaded and self._lost is None
        if self._relay is not None and not self._relay.finish(_FAREWELL if well else 0) and well:
            log.warning("ranks did not end within %g seconds, and are killed", _FAREWELL)
        self.drop_lifeline()
        if self._torchrun is not None:
            self._torchrun.kill()  # it may take its time over what nobody needs any more


def _has_torch() -> bool:
    """Whether torchrun will find torch, in the interpreter's packages or among the model's requirements; it is not imported."""
    where = [entry for entry in (os.environ.get(paths.INSTALLED), *sys.path) if entry]
    return PathFinder.find_spec("torch", where) is not None


def make(transport: Any, arguments: Sequence[str], folder: str, outputs: Sequence[MarkedOutput]) -> Leader:
    """The leader that a command line asks for."""
    return Leader(transport, Plan(arguments), folder, outputs, process.end)
