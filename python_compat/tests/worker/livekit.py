"""A server for tests of handlers whose requests run together: it sends while others wait, from a thread beside the worker's."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from workerkit import Request, Result, decode_results, encode_batch, make_model

from flambeau.worker import library, logs
from flambeau.worker.loop import Worker

LIMIT = 30.0  # seconds until a test that waits has failed


class Handle:
    """A job that was sent."""

    def __init__(self, server: Server, id: int, size: int) -> None:
        self._server = server
        self.id = id
        self.size = size
        self.given: List[Tuple[bytes, bool]] = []

    def wait(self) -> None:
        """Wait for the end of a job that is no batch."""
        with self._server.changed:
            assert self._server.changed.wait_for(lambda: bool(self.given), LIMIT), "no answer came in time"

    def frames(self, wanted: Callable[[List[Tuple[bytes, bool]]], bool]) -> List[Tuple[int, List[Result]]]:
        """Wait until `wanted` says yes to what was given, and give it decoded."""
        with self._server.changed:
            assert self._server.changed.wait_for(lambda: wanted(self.given) or self._server.ended, LIMIT), (
                "no answer came in time"
            )
            assert wanted(self.given), "the worker ended without an answer"
            given = list(self.given)
        out = []
        for data, last in given:
            kind, batch_id, results = decode_results(data)
            assert (batch_id, len(results), last) == (self.id, self.size, kind == 2)
            out.append((kind, results))
        return out

    def pieces(self, count: int) -> List[bytes]:
        """Wait for `count` pieces and give the first item's bodies."""
        return [results[0].body for _, results in self.frames(lambda given: len(given) >= count)][:count]

    def all(self) -> List[Tuple[int, List[Result]]]:
        """Wait for the end and give all the frames."""
        return self.frames(lambda given: bool(given) and given[-1][1])

    def results(self) -> List[Result]:
        """Wait for the end and give the results."""
        return self.all()[-1][1]

    @property
    def done(self) -> bool:
        """Whether the last answer was given."""
        with self._server.changed:
            return bool(self.given) and self.given[-1][1]


class Server:
    """The worker's transport, and what a test's script speaks to. Answers are kept by job, and in the order of their coming."""

    def __init__(self) -> None:
        self.scope = logs.Scope()
        self.worker = Worker(self, self.scope)
        self.changed = threading.Condition()  # guards the fields below, and `given` of the handles
        self.handles: Dict[int, Handle] = {}
        self.finished: List[int] = []  # jobs, in the order of their last answers
        self.ended = False
        self._jobs: queue.Queue[library.Job] = queue.Queue()
        self._last = 0

    def take(self) -> library.Job:
        """For the worker."""
        return self._jobs.get()

    def give(self, id: int, data: bytes, last: bool) -> None:
        """For the worker."""
        assert isinstance(data, bytes), "the C function takes bytes"
        with self.changed:
            assert id not in self.finished, "there was a last answer already"
            self.handles[id].given.append((data, last))
            if last:
                self.finished.append(id)
            self.changed.notify_all()

    def job(self, kind: int, data: bytes, size: int = 0) -> Handle:
        """Send a job."""
        with self.changed:
            self._last += 1
            handle = self.handles[self._last] = Handle(self, self._last, size)
        self._jobs.put(library.Job(kind, handle.id, memoryview(data)))
        return handle

    def send(self, *requests: Request) -> Handle:
        """Send a batch."""
        return self.job(library.BATCH, encode_batch(self._last + 1, requests), len(requests))

    def load(self, model_dir: Path, handler: str) -> Dict[str, Any]:
        """Load a model and give the answer. The worker must not serve yet."""
        request = {"model_name": "m", "model_dir": str(model_dir), "handler": handler, "batch_size": 1, "gpu": None}
        handle = self.job(library.LOAD, json.dumps(request).encode())
        self.worker._load(self.take())
        answer: Dict[str, Any] = json.loads(handle.given[0][0])
        return answer

    def serve(self, script: Callable[[Server], None]) -> None:
        """Let the worker serve in this thread while the script runs in another, and raise what either raises."""
        failed: List[BaseException] = []

        def run() -> None:
            try:
                script(self)
            except BaseException as err:
                failed.append(err)
            finally:
                self._jobs.put(library.Job(library.STOP, 0, memoryview(b"")))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            self.worker.serve()
        finally:
            with self.changed:
                self.ended = True
                self.changed.notify_all()
            thread.join(LIMIT)
        if failed:
            raise failed[0]


def make_async(folder: Path, code: str, **files: str) -> Path:
    """A model whose handler is `code`, with asyncCommunication on."""
    everything = {"h.py": code, "c.yaml": "asyncCommunication: true\n"}
    everything.update(files)
    return make_model(folder, everything, handler="h.py", configFile="c.yaml")
