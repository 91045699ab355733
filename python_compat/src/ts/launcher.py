"""Starts and stops a server from Python, for notebooks and scripts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from queue import Full, Queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, List, Optional

_STARTED = "Model server started"
_MANAGEMENT = "http://localhost:8081/models"
_KEPT_LINES = 1000


def _torchserve(*arguments: str) -> List[str]:
    # The command of this very installation: another one may be on the PATH.
    return [sys.executable, "-m", "flambeau", "torchserve", *arguments]


def stop(wait: bool = True) -> None:
    """Stop the server that was started here. `wait` is TorchServe's; this one always returns when the server is gone."""
    subprocess.run(_torchserve("--stop", *(["--foreground"] if wait else [])), check=False)


class Tee(threading.Thread):
    """Copies lines of text from `reader` to two queues, None behind the last. What finds no room is dropped."""

    def __init__(self, reader: IO[str]) -> None:
        super().__init__(daemon=True)
        self.reader = reader
        self.queue1: Queue[Optional[str]] = Queue()
        self.queue2: Queue[Optional[str]] = Queue(maxsize=_KEPT_LINES + 1)

    def run(self) -> None:
        """Copy to the end."""
        for line in self.reader:
            self.queue1.put(line)
            if self.queue2.qsize() < _KEPT_LINES:  # one place stays free for the end
                self.queue2.put(line)
        for queue in (self.queue1, self.queue2):
            with contextlib.suppress(Full):  # then somebody else put something there
                queue.put_nowait(None)


class PrintTillTheEnd(threading.Thread):
    """Prints the lines of a queue, up to None."""

    def __init__(self, queue: Queue[Optional[str]]) -> None:
        super().__init__(daemon=True)
        self._queue = queue

    def run(self) -> None:
        """Print to the end."""
        for line in iter(self._queue.get, None):
            if line:
                print(line.strip())


def start(
    model_store: Optional[str] = None,
    snapshot_file: Optional[str] = None,
    no_config_snapshots: bool = False,
    plugin_folder: Optional[str] = None,
    disable_token: bool = False,
    models: Optional[str] = None,
    enable_model_api: bool = False,
) -> Queue[Optional[str]]:
    """Stop a server that runs, start a new one, and wait until it is up; the arguments are options of the command torchserve.

    Gives a queue with the lines that the server prints from then on, at most 1000 of them, and None at its end. They are printed,
    too. Raises RuntimeError with the server's own words when it does not come up.
    """
    stop()
    command = _torchserve("--start")
    for option, value in (
        ("--model-store", model_store),
        ("--plugins-path", plugin_folder),
        ("--ts-config", snapshot_file),
        ("--models", models),
    ):
        if value:
            command += [option, value]
    for option, wanted in (
        ("--no-config-snapshots", no_config_snapshots),
        ("--disable-token-auth", disable_token),
        ("--enable-model-api", enable_model_api),
    ):
        if wanted:
            command.append(option)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None  # it was asked for
    said: List[str] = []
    for line in process.stdout:
        print(line.strip())
        said.append(line)
        if _STARTED in line:
            break
    else:
        process.wait()
        raise RuntimeError("the server did not start:\n%s" % "".join(said[-20:]).rstrip())
    splitter = Tee(process.stdout)
    splitter.start()
    PrintTillTheEnd(splitter.queue1).start()
    threading.Thread(target=process.wait, daemon=True).start()  # the command ends when the server is up
    return splitter.queue2


def register_model_with_params(params: Any) -> Any:
    """Register a model at http://localhost:8081 with these query parameters, and give requests' Response. Needs requests."""
    import requests

    return requests.post(_MANAGEMENT, params=params)


def register_model(model_name: str, url: str) -> Any:
    """Register a model with one worker, and wait until it serves."""
    return register_model_with_params(
        (("model_name", model_name), ("url", url), ("initial_workers", "1"), ("synchronous", "true"))
    )
