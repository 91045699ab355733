"""Times of a handler's steps, for models whose configuration says ``handler: {profile: true}``."""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def timed(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a method of a handler: reports the time of each call as metric ts_handler_<name>, in milliseconds.

    Needs attribute `context`, which BaseHandler.handle sets; reports nothing while it is None or the configuration does not ask.
    """

    # Without functools.wraps: TorchServe's decorated methods are called wrap_func too.
    def wrap_func(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = self.context
        if not context or not _wanted(context.model_yaml_config):
            return func(self, *args, **kwargs)
        elapsed = _gpu_stopwatch() or _stopwatch()
        result = func(self, *args, **kwargs)
        context.metrics.add_time("ts_handler_" + func.__name__, elapsed())
        return result

    return wrap_func


def _wanted(config: Any) -> bool:
    return "handler" in config and "profile" in config["handler"] and bool(config["handler"]["profile"])


def _stopwatch() -> Callable[[], float]:
    begun = time.perf_counter()
    return lambda: (time.perf_counter() - begun) * 1000


def _gpu_stopwatch() -> Any:
    """A stopwatch that waits for the GPU's queue; None without torch or a GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()

    def elapsed() -> float:
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    return elapsed
