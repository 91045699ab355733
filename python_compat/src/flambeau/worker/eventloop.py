"""Coroutine handlers (asyncCommunication: true): the requests of a worker run together, on one event loop in the main thread."""

from __future__ import annotations

import asyncio
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
            loop = None  # type: ignore[assignment]
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


class EventLoop:
    """Takes jobs in a thread of its own, so that the loop, and what the handler has on it, never stands still; runs them as tasks."""

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
        self._ended: Any = None

    def serve(self) -> None:
        """Work until the transport says stop. Raises what ends the process, as Worker.serve does."""
        try:
            self._loop.run_until_complete(self._serve())
        except (SystemExit, KeyboardInterrupt) as err:
            # The loop itself lets these through, whichever of the handler's tasks raised them.
            if not self._check_fork(err):
                log.error("the handler ended the process: %s(%s)", type(err).__name__, err)
            raise

    async def _serve(self) -> None:
        self._ended = self._loop.create_future()
        threading.Thread(target=self._take, name="flambeau-jobs", daemon=True).start()
        await self._ended

    def _take(self) -> None:
        try:
            kind = -1
            while kind != STOP:
                job = self._transport.take()
                kind = job.kind
                self._loop.call_soon_threadsafe(self._begin, job)
        except BaseException as err:
            self._loop.call_soon_threadsafe(self._end, err)

    def _begin(self, job: Job) -> None:
        if job.kind == BATCH:
            task = self._loop.create_task(self._batch(job))
            self._running.add(task)
            task.add_done_callback(self._finished)
        elif job.kind == UNLOAD:
            self._loop.create_task(self._unload(job)).add_done_callback(self._finished)
        elif job.kind == STOP:
            self._end(None)
        else:
            self._end(RuntimeError("unexpected kind of job: %d" % job.kind))

    def _finished(self, task: Any) -> None:
        self._running.discard(task)
        if task.cancelled():
            self._end(RuntimeError("something of the handler's cancelled the worker's own task"))
        elif task.exception() is not None:
            self._end(task.exception())

    def _end(self, error: Optional[BaseException]) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _batch(self, job: Job) -> None:
        if self._model is None:
            raise RuntimeError("a batch came after the model was unloaded")
        batch_id, items = frames.decode_batch(job.data)
        job.data = memoryview(b"")
        with self._scope.task(tuple(item.id for item in items)):
            results = await self._model.run_together(items, lambda piece: self._give(job, frames.PIECE, batch_id, piece))
        self._check_fork(None)
        self._give(job, frames.RESULTS, batch_id, results)

    def _give(self, job: Job, kind: int, batch_id: int, results: Sequence[Union[Answer, Failure]]) -> None:
        self._transport.give(job.id, frames.encode_results(kind, batch_id, results), kind == frames.RESULTS)

    async def _unload(self, job: Job) -> None:
        if self._running:  # batches for which nobody waits any more
            await asyncio.wait(set(self._running))
        own = [task for task in asyncio.all_tasks(self._loop) if task is not asyncio.current_task() and not self._is_ours(task)]
        for task in own:
            task.cancel()
        if own:
            await asyncio.wait(own, timeout=_FAREWELL)
        await self._loop.shutdown_asyncgens()
        del own
        self._model = None
        self._unload_worker(job)

    def _is_ours(self, task: Any) -> bool:
        """Whether it is the task of `serve`, which waits for the future of the end."""
        return getattr(task.get_coro(), "cr_code", None) is EventLoop._serve.__code__
