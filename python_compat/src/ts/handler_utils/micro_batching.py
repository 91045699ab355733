"""Runs a handler's three steps on parts of a batch, each step in threads of its own, so that they overlap."""

from __future__ import annotations

import copy
import os
import queue
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

PROFILER_AVAILABLE = True

HANDLER_METHODS = ["preprocess", "inference", "postprocess"]


class WorkerThread:
    """A thread of a step, and the event that ends it."""

    def __init__(self, event: threading.Event, thread: threading.Thread) -> None:
        self.event = event
        self.thread = thread


class _Failed:
    """What travels through the later steps in place of a part whose earlier step raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def execute_call(
    in_queue: queue.Queue[Any],
    out_queue: queue.Queue[Any],
    handle: Callable[[Any], Any],
    thread_local_data: threading.local,
    event: threading.Event,
) -> None:
    """Loop of a thread: take (index, data), call, put (index, result), until `event` is set.

    What the step raises goes on instead of a result. (On TorchServe the thread dies and the request waits for ever.)
    """
    while not event.is_set():
        try:
            index, data = in_queue.get(timeout=0.5)
        except queue.Empty:
            continue
        thread_local_data.micro_batch_idx = index
        if not isinstance(data, _Failed):
            try:
                data = handle(data)
            except BaseException as err:
                data = _Failed(err)
        out_queue.put((index, data))


class MicroBatching:
    """Made in a handler's `initialize` and put in place of its `handle`: ``self.handle = MicroBatching(self, size)``."""

    def __init__(self, parent_handler: Any, micro_batch_size: int = 1, parallelism: Optional[Dict[str, int]] = None) -> None:
        """`parallelism` has the number of threads of each step of HANDLER_METHODS, 1 where it says nothing."""
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self.thread_groups: Dict[str, List[WorkerThread]] = {step: [] for step in HANDLER_METHODS}
        self.terminate = threading.Event()
        self.thread_local_data = threading.local()
        self._parallelism = dict(parallelism or {})
        self.queues: Dict[str, queue.Queue[Any]] = {}
        between: queue.Queue[Any] = queue.Queue()
        for step in HANDLER_METHODS:  # a step's output is the next one's input
            self.queues[step + "_in"] = between
            self.queues[step + "_out"] = between = queue.Queue()
        self._update_threads()

    def __del__(self) -> None:
        self.shutdown()

    @property
    def parallelism(self) -> Dict[str, int]:
        """A copy of the numbers of threads; assign a dict to change those that it names."""
        return copy.copy(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: Dict[str, int]) -> None:
        assert all(step in HANDLER_METHODS for step in parallelism), "steps are %s" % HANDLER_METHODS
        self._parallelism.update(parallelism)
        self._update_threads()

    def shutdown(self) -> None:
        """End all threads and wait for them."""
        groups = getattr(self, "thread_groups", {}).values()
        for one in [one for threads in groups for one in threads]:
            one.event.set()
        for threads in groups:
            _end(threads, 0)

    def _update_threads(self) -> None:
        for step, threads in self.thread_groups.items():
            wanted = self._parallelism.get(step, 1)
            assert wanted >= 0, "the number of threads of %s cannot be %d" % (step, wanted)
            while len(threads) < wanted:
                event = threading.Event()
                arguments = (
                    self.queues[step + "_in"],
                    self.queues[step + "_out"],
                    getattr(self.handler, step),
                    self.thread_local_data,
                    event,
                )
                thread = threading.Thread(target=execute_call, args=arguments, daemon=True)
                thread.start()
                threads.append(WorkerThread(event, thread))
            _end(threads, wanted)

    def handle(self, data: List[Any]) -> List[Any]:
        """Run the steps on each `micro_batch_size` rows and give all results in the order of the rows.

        Raises what a step raised for the first rows that it failed for, after all parts have come out.
        """
        parts = range(0, len(data), self.micro_batch_size)
        for index, start in enumerate(parts):
            self.queues[HANDLER_METHODS[0] + "_in"].put((index, data[start : start + self.micro_batch_size]))
        done = dict(self.queues[HANDLER_METHODS[-1] + "_out"].get() for _ in parts)
        results: List[Any] = []
        for index in sorted(done):
            if isinstance(done[index], _Failed):
                raise done[index].error
            results.extend(done[index])
        return results

    def get_micro_batch_idx(self) -> Optional[int]:
        """In a step: the number of the part that is being worked on. Elsewhere None."""
        return getattr(self.thread_local_data, "micro_batch_idx", None)

    def __call__(self, data: List[Any], context: Any) -> List[Any]:
        """What BaseHandler.handle does, with the three steps in parts."""
        begun = time.time()
        handler = self.handler
        handler.context = context
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            output, _ = handler._infer_with_profiler(data=data)
        elif handler._is_describe():
            output = [handler.describe_handle()]
        elif handler._is_explain():
            output = handler.explain_handle(handler.preprocess(data), data)
        else:
            output = self.handle(data)
        context.metrics.add_time("HandlerTime", round((time.time() - begun) * 1000, 2), None, "ms")
        return output  # type: ignore[no-any-return]


def _end(threads: List[WorkerThread], keep: int) -> None:
    """End the threads beyond the first `keep`."""
    going = threads[keep:]
    del threads[keep:]
    for one in going:
        one.event.set()
    for one in going:
        if one.thread is not threading.current_thread():
            one.thread.join()
