"""Looks on while a handler is found, initialized and called: what it was given, and how long each step took."""

from __future__ import annotations

import functools
import inspect
import time

from flambeau.worker import loader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

STEPS = ("preprocess", "inference", "postprocess")
_PREVIEW = 60  # characters


class Watch:
    """Stands between the worker's Model and a handler. Times are in seconds."""

    def __init__(self, steps: bool) -> None:
        """With `steps` the methods preprocess, inference and postprocess are timed too, through wrappers on the instance."""
        self._steps = steps
        self.handler = ""  # what is called, in words
        self.load: Dict[str, float] = {}  # "import" and "initialize"
        self.run: Dict[str, float] = {}  # of the last batch: "handle" and, if there are any, the three steps
        self.rows: List[Dict[str, Dict[str, Any]]] = []  # of the last batch: what `about` says of each field
        self.headers: List[Dict[str, Any]] = []
        self.error: Optional[BaseException] = None  # what the handler raised in the last batch
        self.began = self.ended = 0.0  # of the last call

    def resolve(self, handler: str, model_dir: str) -> Tuple[loader.EntryPoint, loader.Initialize]:
        """Do as the worker's loader does. Raises what it raises."""
        began = time.perf_counter()
        try:
            entry, initialize = loader.resolve(handler, model_dir)
        finally:
            self.load["import"] = time.perf_counter() - began
        self.handler = _called(entry)
        if self._steps:
            self._watch_steps(getattr(entry, "__self__", None))
        return self._watched(entry), self._timed_load(initialize)

    def begin(self) -> None:
        """Forget the last batch."""
        self.run, self.error = {}, None
        self.began = self.ended = 0.0

    def _timed_load(self, initialize: loader.Initialize) -> loader.Initialize:
        def call(context: Any) -> Any:
            began = time.perf_counter()
            try:
                return initialize(context)
            except BaseException as err:
                forget_watchers(err)
                raise
            finally:
                self.load["initialize"] = time.perf_counter() - began

        return call

    def _watched(self, entry: loader.EntryPoint) -> loader.EntryPoint:
        def call(data: Any, context: Any) -> Any:
            self.rows = [{name: about(value) for name, value in row.items()} for row in data] if _is_rows(data) else []
            self.headers = [dict(row.get_request_properties()) for row in context.request_processor]
            self.began = time.perf_counter()
            try:
                returned = entry(data, context)
            except BaseException as err:
                self._failed(err)
                raise
            if inspect.isawaitable(returned):
                return self._awaited(returned)
            self._done()
            return returned

        call.__wrapped__ = entry  # type: ignore[attr-defined]  # the worker asks whether the handler is a coroutine function
        return call

    async def _awaited(self, returned: Any) -> Any:
        try:
            value = await returned
        except BaseException as err:
            self._failed(err)
            raise
        self._done()
        return value

    def _done(self) -> None:
        self.ended = time.perf_counter()
        self.run["handle"] = self.ended - self.began

    def _failed(self, err: BaseException) -> None:
        self._done()
        self.error = err
        forget_watchers(err)

    def _watch_steps(self, owner: Any) -> None:
        for name in STEPS:
            method = getattr(owner, name, None)
            if callable(method) and callable(getattr(type(owner), name, None)):
                try:
                    setattr(owner, name, self._timed_step(name, method))
                except Exception:  # an instance that cannot take attributes goes without these times
                    return

    def _timed_step(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def add(began: float) -> None:
            self.run[name] = self.run.get(name, 0.0) + time.perf_counter() - began

        async def finish(began: float, returned: Any) -> Any:
            try:
                return await returned
            finally:
                add(began)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            later = False
            try:
                returned = method(*args, **kwargs)
                later = inspect.iscoroutine(returned)
                return finish(began, returned) if later else returned
            finally:
                if not later:
                    add(began)

        return call


def forget_watchers(error: BaseException) -> None:
    """Take this file's frames out of the tracebacks of `error` and of those that led to it, but for the outermost."""
    seen: Set[int] = set()
    pending: List[Optional[BaseException]] = [error]
    while pending:
        err = pending.pop()
        if err is None or id(err) in seen:
            continue
        seen.add(id(err))
        pending += [err.__cause__, err.__context__]
        step: Optional[TracebackType] = err.__traceback__
        while step is not None:
            while step.tb_next is not None and step.tb_next.tb_frame.f_code.co_filename == __file__:
                step.tb_next = step.tb_next.tb_next
            step = step.tb_next


def about(value: Any) -> Dict[str, Any]:
    """What a value is, in short: {"type": its class's name, "size": in "unit", "preview": at most 60 characters}."""
    said: Dict[str, Any] = {"type": type(value).__name__}
    if isinstance(value, (bytes, bytearray)):
        said.update(size=len(value), unit="bytes", preview=_short(repr(bytes(value[:_PREVIEW])), len(value) > _PREVIEW))
    elif isinstance(value, str):
        said.update(size=len(value), unit="characters", preview=_short(repr(value[:_PREVIEW]), len(value) > _PREVIEW))
    else:
        if isinstance(value, (list, tuple, dict)):
            said.update(size=len(value), unit="keys" if isinstance(value, dict) else "elements")
        said["preview"] = _short(_brief(value), False)
    return said


def _brief(value: Any) -> str:
    import reprlib

    short = reprlib.Repr()
    short.maxdict = short.maxlist = short.maxtuple = 8
    short.maxstring = short.maxother = _PREVIEW
    return short.repr(value)


def _short(text: str, cut: bool) -> str:
    if len(text) > _PREVIEW:
        return text[: _PREVIEW - 3] + "..."
    return text + "..." if cut else text


def _is_rows(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(row, dict) for row in data)


def _called(entry: Any) -> str:
    """The handler in words, for example "handler.py: class Echo"."""
    owner = getattr(entry, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return "class %s of module %s" % (type(owner).__name__, type(owner).__module__)
    return "%s of module %s" % (getattr(entry, "__qualname__", type(entry).__name__), getattr(entry, "__module__", "?"))
