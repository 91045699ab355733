"""A decorator that prints how long a function took."""

from __future__ import annotations

import functools
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def timeit(func: Callable[..., Any]) -> Callable[..., Any]:
    """Print the elapsed and the CPU seconds of each call. (TorchServe's fails on every Python since 3.8: time.clock is gone.)"""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        result = func(*args, **kwargs)
        elapsed, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        print("func: %r took a total of %2.4f sec to run and %2.4f sec of CPU time" % (func.__name__, elapsed, cpu))
        return result

    return call
