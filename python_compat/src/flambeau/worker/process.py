"""The worker as a process: its descriptors, signals, streams and end (docs/protocol.md)."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import signal
import sys

from flambeau.worker import library, logs
from flambeau.worker.loop import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Protocol, Tuple

    class Server(Protocol):
        """What this process is for: a worker, or the leader of several."""

        def serve(self) -> None:
            """Work until the server says stop."""


COOKIE = "FLAMBEAU_PLUGIN"  # the handshake's magic cookie; the library knows the value
LIFELINE_FD, LOG_FD = 3, 4

# What is between the server and the library, and must not reach programs that the handler starts: one may be a plugin, too.
_PRIVATE_VARIABLES = (
    COOKIE,
    "FLAMBEAU_MAX_MESSAGE_BYTES",
    "PLUGIN_CLIENT_CERT",
    "PLUGIN_MAX_PORT",
    "PLUGIN_MIN_PORT",
    "PLUGIN_MULTIPLEX_GRPC",
    "PLUGIN_PROTOCOL_VERSIONS",
    "PLUGIN_UNIX_SOCKET_DIR",
    "PLUGIN_UNIX_SOCKET_GROUP",
)

EXIT_CANNOT_START = 2

_NOT_BY_HAND = """\
This is a worker of the Flambeau model server. The server starts it itself, once for each worker of a model, and speaks to
it over descriptors and variables that are not there (%s is not set). To serve models, run: flambeau
"""


def main() -> None:
    """Serve until the server says stop; never returns."""
    if COOKIE not in os.environ:
        sys.stderr.write(_NOT_BY_HAND % COOKIE)
        sys.exit(EXIT_CANNOT_START)
    # A Ctrl-C in a terminal is the server's to handle. SIGTERM ends the process, as by default.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handshake_fd, lifeline_fd = _arrange_descriptors()
    scope = logs.Scope()
    logs.install(scope)
    library.line_buffer_c_output()
    faulthandler.enable(file=2)
    try:
        package_dir = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
        lib = library.Library(library.find_library(os.environ, package_dir))
        lib.start(os.environb, handshake_fd, lifeline_fd)
        os.close(handshake_fd)  # the library has its own
    except library.LibraryError as err:
        sys.stderr.write("worker cannot start: %s\n" % err)
        end(EXIT_CANNOT_START)
    folder = os.environ.get("PLUGIN_UNIX_SOCKET_DIR", "")
    for name in _PRIVATE_VARIABLES:
        os.environ.pop(name, None)
    if sys.argv[1:2] == ["leader"]:
        from flambeau.parallel import leader

        outputs = [stream.buffer for stream in (sys.stdout, sys.stderr)]
        end(serve(leader.make(lib, sys.argv[2:], folder, outputs)))  # type: ignore[arg-type]  # logs.install has put them there
    end(serve(Worker(lib, scope)))


def serve(worker: Server) -> int:
    """Run the loop of a worker or a leader, and give the process's exit status."""
    try:
        worker.serve()
    except SystemExit as err:
        return exit_status(err)
    except BaseException:
        logging.getLogger(__name__).critical("the worker has to end", exc_info=True)
        return 1
    return 0


def exit_status(err: SystemExit) -> int:
    """The status with which Python itself would end."""
    if err.code is None:
        return 0
    if isinstance(err.code, int):
        return err.code & 0xFF
    sys.stderr.write("%s\n" % err.code)
    return 1


def _arrange_descriptors() -> Tuple[int, int]:
    """Keep a private copy of stdout for the handshake and point stdout at the log; give the copy, and the lifeline or -1."""
    handshake_fd = os.dup(1)  # not inherited by programs that the handler starts
    if _is_open(LOG_FD):
        os.dup2(LOG_FD, 1)
        os.close(LOG_FD)
    else:
        os.dup2(2, 1)
    if not _is_open(LIFELINE_FD):
        return handshake_fd, -1
    os.set_inheritable(LIFELINE_FD, False)
    return handshake_fd, LIFELINE_FD


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def end(status: int) -> NoReturn:
    """End the process: exit functions run and output is written, but nobody waits for threads that the handler left running."""
    try:
        atexit._run_exitfuncs()
    except BaseException:
        logging.getLogger(__name__).error("an exit function failed", exc_info=True)
    logs.flush()
    library.flush_c_output()
    os._exit(status)
