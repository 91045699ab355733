"""Coroutine handlers (asyncCommunication: true): the requests of a worker run together, on one event loop in the main thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
import warnings

from flambeau.worker import frames
from flambeau.worker.library import BATCH, STOP, UNLOAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Sequence, Set, Union

    from flambeau.worker import logs
    from flambeau.worker.frames import Answer, Failure
    from flambeau.worker.library import Job
    from flambeau.worker.loop import Transport
    from flambeau.worker.model import Model

log = logging.getLogger(__name__)

# Seconds that the handler's own tasks get to end after they were cancelled; the server's stop limit is the bound of all together.
_FAREWELL = 2.0


def current(fallback: Any = None) -> Any:
    """The event loop that asyncio.get_event_loop() gives in this thread, made when there is none.

    A handler may have made or chosen one while it was imported or initialized. `fallback` is taken when it left none, as
    asyncio.run does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, when it makes one
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            loop = None
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop() if fallback is None or fallback.is_closed() else fallback
    asyncio.set_event_loop(loop)
    return loop


def is_coroutine_function(entry: Any) -> bool:
    """Whether calling `entry` surely gives a coroutine: it may be wrapped by functools.wraps or functools.partial."""
    entry = inspect.unwrap(entry)
    while isinstance(entry, functools.partial):
        entry = inspect.unwrap(entry.func)
    # Of compiled modules such as Cython's only asyncio's own mark tells.
    return any(
        inspect.iscoroutinefunction(one) or getattr(one, "_is_coroutine", None) is not None
        for one in (entry, getattr(type(entry), "__call__", None))  # noqa: B004  # the method itself is asked, not whether it is there
    )


class _Batch:
    """A batch on its way through the loop."""

    __slots__ = ("answered", "id", "items", "job", "size")

    def __init__(self, job: Job) -> None:
        self.id, self.items = frames.decode_batch(job.data)
        job.data = memoryview(b"")
        self.size = len(self.items)
        self.job = job
        self.answered = False


class EventLoop:
    """Runs jobs as tasks. They are taken in another thread, so that the loop never stands still, nor the handler's own tasks."""

    def __init__(
        self,
        transport: Transport,
        scope: logs.Scope,
        model: Model,
        unload: Callable[[Job], None],
        check_fork: Callable[[Optional[BaseException]], bool],
    ) -> None:
        """`unload` ends an unload job; `check_fork` ends this process if it is one that the handler forked."""
        self._transport = transport
        self._scope = scope
        self._model: Optional[Model] = model
        self._unload_worker = unload
        self._check_fork = check_fork
        self._loop: Any = model.event_loop
        self._running: Set[Any] = set()
        self._ended: Any = self._loop.create_future()
        self._stopping = False

    def serve(self) -> None:
        """Work until the transport says stop. Raises what ends the process, as Worker.serve does."""
        threading.Thread(target=self._take, name="flambeau-jobs", daemon=True).start()
        try:
            # A future, no task: a handler may cancel all the tasks that it finds.
            self._loop.run_until_complete(self._ended)
        except (SystemExit, KeyboardInterrupt) as err:
            # The loop itself lets these through, whichever of the handler's tasks raised them.
            if not self._check_fork(err):
                log.error("the handler ended the process: %s(%s)", type(err).__name__, err)
            raise

    def _take(self) -> None:
        try:
            kind = -1
            while kind != STOP:
                job = self._transport.take()
                kind = job.kind
                self._call(self._begin, job)
        except BaseException as err:
            self._call(self._end, err)

    def _call(self, function: Callable[[Any], None], argument: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(function, argument)

    def _begin(self, job: Job) -> None:
        try:
            if job.kind == BATCH:
                batch = _Batch(job)
                task = self._loop.create_task(self._run(batch))
                self._running.add(task)
                task.add_done_callback(functools.partial(self._finished, batch))
            elif job.kind == UNLOAD:
                self._loop.create_task(self._unload(job)).add_done_callback(self._end_if_failed)
            elif job.kind == STOP:
                self._stopping = True
                self._end_if_idle()
            else:
                raise RuntimeError("unexpected kind of job: %d" % job.kind)
        except Exception as err:
            self._end(err)

    async def _run(self, batch: _Batch) -> None:
        if self._model is None:
            raise RuntimeError("a batch came after the model was unloaded")
        items, batch.items = batch.items, []
        with self._scope.task(tuple(item.id for item in items)):
            results = await self._model.run_together(items, functools.partial(self._give, batch, frames.PIECE))
        self._check_fork(None)
        self._give(batch, frames.RESULTS, results)

    def _give(self, batch: _Batch, kind: int, results: Sequence[Union[Answer, Failure]]) -> None:
        batch.answered = kind == frames.RESULTS
        self._transport.give(batch.job.id, frames.encode_results(kind, batch.id, results), batch.answered)

    def _finished(self, batch: _Batch, task: Any) -> None:
        self._running.discard(task)
        if task.cancelled() and not batch.answered:
            # By the handler, before the task had begun: nobody else would do it then.
            failure = frames.Failure(frames.HANDLER_FAILED, 503, "Prediction failed", "something cancelled the request's task")
            try:
                self._give(batch, frames.RESULTS, [failure] * batch.size)
            except Exception as err:
                self._end(err)
        self._end_if_failed(task)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._stopping and not self._running:
            self._end(None)

    def _end_if_failed(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._end(task.exception())

    def _end(self, error: Optional[BaseException]) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _unload(self, job: Job) -> None:
        if self._running:  # batches for which nobody waits any more
            await asyncio.wait(set(self._running))
        left = [task for task in asyncio.all_tasks(self._loop) if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_FAREWELL)
        del left
        await self._loop.shutdown_asyncgens()
        self._model = None
        self._unload_worker(job)
