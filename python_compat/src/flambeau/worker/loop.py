"""The worker's loop: takes jobs from the server, gives answers, one at a time and in the process's main thread.

For coroutine handlers flambeau.worker.eventloop takes over after the load.
"""

from __future__ import annotations

import gc
import json
import logging
import os

from flambeau.worker import frames, logs
from flambeau.worker.failure import load_failure
from flambeau.worker.library import BATCH, LOAD, STOP, UNLOAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Protocol, Sequence, Union

    from flambeau.worker.frames import Answer, Failure
    from flambeau.worker.library import Job
    from flambeau.worker.model import Model

    class Transport(Protocol):
        """Where jobs come from and answers go: libflambeau, or a test's own."""

        def take(self) -> Job:
            """Wait for the next job."""

        def give(self, id: int, data: bytes, last: bool) -> None:
            """Hand in an answer; with `last` it is the end of the job."""


log = logging.getLogger(__name__)


class Worker:
    """Serves one model over a transport."""

    def __init__(self, transport: Transport, scope: logs.Scope) -> None:
        self._transport = transport
        self._scope = scope
        self._model: Optional[Model] = None
        self._owner = os.getpid()

    def serve(self) -> None:
        """Work until the transport says stop.

        Raises SystemExit (or KeyboardInterrupt) when the handler raised it, and what a broken transport or frame raises.
        """
        while True:
            if self._model is not None and self._model.event_loop is not None:
                from flambeau.worker.eventloop import EventLoop

                EventLoop(self._transport, self._scope, self._model, self._unload, self._is_forked).serve()
                return
            job = self._transport.take()
            if job.kind == BATCH:
                self._batch(job)
            elif job.kind == LOAD:
                self._load(job)
            elif job.kind == UNLOAD:
                self._unload(job)
            elif job.kind == STOP:
                return
            else:
                raise RuntimeError("unknown kind of job: %d" % job.kind)

    def _load(self, job: Job) -> None:
        from flambeau.worker.model import Model

        request = json.loads(bytes(job.data))
        ended: Optional[BaseException] = None
        try:
            self._model = Model.load(request)
            answer: object = {"features": self._model.features}
        except BaseException as err:
            if isinstance(err, (SystemExit, KeyboardInterrupt)):
                ended = err
            failure = load_failure(err, request["model_dir"])
            log.error("model %s could not be loaded\n%s", request.get("model_name"), failure["detail"])
            answer = {"failure": failure}
        if not self._is_forked(ended):
            self._transport.give(job.id, json.dumps(answer).encode("utf-8"), True)
        if ended is not None:
            raise ended

    def _batch(self, job: Job) -> None:
        if self._model is None:
            raise RuntimeError("a batch came before a model was loaded")
        batch_id, items = frames.decode_batch(job.data)
        self._scope.ids = tuple(item.id for item in items)
        job.data = memoryview(b"")
        try:
            results = self._model.run(items, lambda piece: self._give(job, frames.PIECE, batch_id, piece))
            self._is_forked(None)
            self._give(job, frames.RESULTS, batch_id, results)
        except (SystemExit, KeyboardInterrupt) as err:
            if not self._is_forked(err):
                log.error("the handler ended the process: %s(%s)", type(err).__name__, err)
            raise
        finally:
            self._scope.ids = ()

    def _give(self, job: Job, kind: int, batch_id: int, results: Sequence[Union[Answer, Failure]]) -> None:
        self._transport.give(job.id, frames.encode_results(kind, batch_id, results), kind == frames.RESULTS)

    def _unload(self, job: Job) -> None:
        self._model = None
        gc.collect()
        logs.flush()
        self._transport.give(job.id, b"", True)

    def _is_forked(self, ending: Optional[BaseException]) -> bool:
        """Whether this is a process that the handler forked and that came back here; unless it is `ending` anyway, it ends now.

        It may not answer in its parent's name, nor take its parent's jobs.
        """
        if os.getpid() == self._owner:
            return False
        if ending is None:
            logs.flush()
            os._exit(0)
        return True
