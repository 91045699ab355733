"""What an exception means for the requests that it hit, or for the load."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from flambeau.worker.advice import advice
from flambeau.worker.frames import HANDLER_FAILED, INTERNAL, INVALID_OUTPUT, OUT_OF_MEMORY, Answer, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, Optional, Tuple, Union

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_OURS = (os.path.join(_PACKAGES, "flambeau", ""), os.path.join(_PACKAGES, "ts", ""))
_SKIPPED = (_OURS[0], importlib.__file__, "<frozen importlib")

LOWEST_STATUS, HIGHEST_STATUS = 200, 999


class Unsendable(Exception):
    """The handler answered, or set on the response, what no response can carry. TorchServe's worker dies of these."""


class UnsupportedOutput(Exception):
    """The handler answered with a value that has no encoding."""


def unsendable(why: str) -> Failure:
    """The result of a request whose answer no response can carry: TorchServe's, whose worker is dead then. This one goes on."""
    return Failure(INTERNAL, 500, "Worker died.", why)


def failure_of(error: BaseException, folder: str) -> Union[Answer, Failure]:
    """The result for each item of a batch whose handler, in `folder`, raised `error`: as TorchServe answers it."""
    if isinstance(error, UnsupportedOutput):
        return Failure(INVALID_OUTPUT, 503, "Unsupported model output data type.", _said(error, folder))
    if isinstance(error, Unsendable):
        return unsendable(_said(error, folder))
    detail = describe(error)
    if isinstance(error, MemoryError):
        return Failure(OUT_OF_MEMORY, 507, "Out of resources", detail)
    prediction_exception = getattr(sys.modules.get("ts.utils.util"), "PredictionException", None)
    if prediction_exception is not None and isinstance(error, prediction_exception):
        return _asked_for(error, detail)
    if "CUDA" in _text(error):
        return Failure(OUT_OF_MEMORY, 507, "Out of resources", detail)
    return Failure(HANDLER_FAILED, 503, "Prediction failed", detail)


def _asked_for(error: Any, detail: str) -> Union[Answer, Failure]:
    """The result of a PredictionException: the handler's own message and status."""
    message, code = error.message, error.error_code
    if not isinstance(message, str) or not hasattr(type(code), "__index__"):
        what = "PredictionException(%r, %r) needs a str and an int" % (message, code)
        return unsendable("%s\n%s" % (what, detail))
    code = int(code)
    if code == 200:
        return Answer(b"error", 200)
    if code == 413:
        code = 507
    if not LOWEST_STATUS <= code <= HIGHEST_STATUS:
        what = "PredictionException asked for status %d, which HTTP cannot carry: it has to be in 200..999" % code
        return Failure(HANDLER_FAILED, 500, message, "%s\n%s" % (what, detail))
    return Failure(HANDLER_FAILED, code, message, detail)


def _said(error: BaseException, folder: str) -> str:
    """What one of our own errors says, with the handler's line if it came up through the handler."""
    mine, _ = _places(error, folder)
    return "%s (%s)" % (error, mine) if mine else str(error)


def load_failure(error: BaseException, folder: str) -> Dict[str, Any]:
    """The `failure` object of a load, of the model in `folder`, that ended with `error`."""
    text = " ".join(_text(error).split())
    if isinstance(error, SystemExit):
        text = "the handler ended the process with sys.exit(%s) while it was loading" % _text(error)
    message = "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
    place = place_of(error, folder)
    if place:
        message = "%s (%s)" % (message, place)
    todo = _advice(error, folder)
    return {
        "message": "%s: %s" % (message, todo) if todo else message,
        "detail": describe(error),
        "out_of_memory": isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "CUDA" in str(error)),
    }


def _advice(error: BaseException, folder: str) -> str:
    try:
        return advice(error, folder, os.environ)
    except Exception:  # it looks at the user's files; what it cannot read must not hide the error
        return ""


def place_of(error: BaseException, folder: str) -> str:
    """ "file:line" of the innermost line of the user's that raised `error`, "" when there is none.

    That is a line below `folder`, the model's, if the traceback has one, else the innermost line of anybody but us.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return "%s:%d" % (_short(error.filename, folder), error.lineno)
    mine, other = _places(error, folder)
    return mine or other


def _places(error: BaseException, folder: str) -> Tuple[str, str]:
    """The innermost line below `folder`, and the innermost of others that are not ours; "" where there is none."""
    mine = other = ""
    here = os.path.join(os.path.realpath(folder), "")
    step: Optional[TracebackType] = error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        place = "%s:%d" % (_short(name, folder), step.tb_lineno)
        if name.startswith("<"):
            pass  # no file: the import system, or code that was made on the spot
        elif _real(name).startswith(here):
            mine = place
        elif not name.startswith(_OURS):
            other = place
        step = step.tb_next
    return mine, other


def _short(path: str, folder: str) -> str:
    here = os.path.join(os.path.realpath(folder), "")
    real = _real(path)
    return real[len(here) :] if real.startswith(here) else path


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # code that was made on the spot may have a name that no file can have
        return path


def describe(error: BaseException) -> str:
    """The traceback as text, without the frames of the worker's loop, and of the import system that it calls, at its top."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_SKIPPED):
        step = step.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, step)).rstrip("\n")
    except Exception as second:  # a class of the handler's may fail to print itself, and Python at surrogates
        text = _text(error)
        said = "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
        return "%s%s (its traceback cannot be printed: %s)" % (_steps(step), said, type(second).__name__)


def _steps(step: Optional[TracebackType]) -> str:
    """The lines of a traceback that say where, "" when that cannot be told either."""
    try:
        return "".join(traceback.format_tb(step))
    except Exception:
        return ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
