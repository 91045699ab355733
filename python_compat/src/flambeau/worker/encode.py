"""From what a handler returned to the results of its batch."""

from __future__ import annotations

import io
import json
import sys

from flambeau.worker.failure import HIGHEST_STATUS, LOWEST_STATUS, Unsendable, UnsupportedOutput, unsendable
from flambeau.worker.frames import HANDLER_FAILED, INVALID_OUTPUT, RESPONSE_TOO_LARGE, Answer, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple, Union

STREAM_HEADER = "ts_stream_next"

# What TorchServe's HTTP library refuses in a header: its worker is killed for them.
_BAD_IN_NAME = frozenset("\0\t\n\v\f\r ,:;=")
_BAD_IN_VALUE = frozenset("\0\v\f\r\n")
_MAX_KNOWN_NAMES = 256
_known_names: Dict[str, bytes] = {}


class Encoder:
    """Makes the results of one model's batches."""

    def __init__(self, max_response_bytes: int) -> None:
        """`max_response_bytes` is the largest body of a single answer, 0 for no limit."""
        self._max = max_response_bytes

    def results(self, returned: Any, context: Any, size: int, streamed: bool, rows: int = 0) -> List[Union[Answer, Failure]]:
        """The results of a batch of `size` items for which the handler returned `returned`.

        `rows` is the number of rows that the handler left in its batch.
        `streamed` says that intermediate pieces went out before. What no response can carry fails its own request; if that is
        so for all of them, it raises Unsendable. Raises UnsupportedOutput, which fails the whole batch, as on TorchServe.
        """
        if not isinstance(returned, list):
            why = "the handler returned a %s; it must return a list with one element per request" % type(returned).__name__
            return [Failure(INVALID_OUTPUT, 503, "Invalid model predict output", why)] * size
        if len(returned) > size and len(returned) == rows:
            returned = returned[:size]  # the handler added rows to its batch: TorchServe drops their results
        if len(returned) != size:
            why = "the handler returned %d results for a batch of %d requests; it must return one for each" % (
                len(returned),
                size,
            )
            return [Failure(INVALID_OUTPUT, 503, "number of batch response mismatched", why)] * size
        results: List[Union[Answer, Failure]] = []
        refused: List[Unsendable] = []
        for index, value in enumerate(returned):
            try:
                streaming = self._mark_stream(value, context, index, streamed)
                results.append(self._answer(value, context, index, streaming))
            except Unsendable as err:
                refused.append(err)
                results.append(unsendable(str(err)))
        if refused and len(refused) == size:
            raise refused[0]
        return results

    def pieces(self, values: Any, context: Any, indexes: Any, size: int) -> List[Union[Answer, Failure]]:
        """The results of a piece frame for a batch of `size` items: values[i] for each of `indexes`, nothing for the others.

        A piece that no response can carry fails its own request. Raises Unsendable when there is no other piece, so that the
        handler learns of it; and UnsupportedOutput.
        """
        results: List[Union[Answer, Failure]] = []
        refused: List[Unsendable] = []
        good = 0
        for index in range(size):
            context.set_response_header(index, STREAM_HEADER, "true")
            mine = index in indexes
            try:
                results.append(self._answer(values[index] if mine else b"", context, index, True))
                good += mine
            except Unsendable as err:
                refused.append(err)
                results.append(unsendable(str(err)))
        if refused and not good:
            raise refused[0]
        return results

    @staticmethod
    def _mark_stream(value: Any, context: Any, index: int, streamed: bool) -> bool:
        """Set TorchServe's header for the end or the continuation of a stream; say whether this answer is part of one."""
        if context.stopping_criteria:
            try:
                stop = context.stopping_criteria[index](value)
            except Exception as err:
                raise Unsendable("stopping_criteria[%d] raised %s: %s" % (index, type(err).__name__, err)) from err
            if stop is not None:
                context.set_response_header(index, STREAM_HEADER, "false" if stop else "true")
                return True
        elif streamed and context.get_response_headers(index).get(STREAM_HEADER) == "true":
            context.set_response_header(index, STREAM_HEADER, "false")
        return streamed

    def _answer(self, value: Any, context: Any, index: int, streaming: bool) -> Union[Answer, Failure]:
        processor = context.request_processor[index]
        status = _status(processor)
        body = _body(value, index)
        headers = _headers(processor.get_response_headers(), streaming)
        if status is not None and not LOWEST_STATUS <= status <= HIGHEST_STATUS:
            what = "The handler set status %d, which HTTP cannot carry: it has to be in 200..999." % status
            return Failure(HANDLER_FAILED, 500, what)
        if self._max and len(body) > self._max:
            what = "The model's answer has %d bytes, over the limit of %d: max_response_size can be raised." % (
                len(body),
                self._max,
            )
            return Failure(RESPONSE_TOO_LARGE, 500, what)
        return Answer(body, status or 0, headers)


def _status(processor: Any) -> Optional[int]:
    """The status that the handler set, None for none. A processor that nobody touched has status 200 without a phrase."""
    code = processor.get_response_status_code()
    if code is None or (code == 200 and processor.get_response_status_phrase() is None):
        return None
    if not hasattr(type(code), "__index__"):
        raise Unsendable("the handler set status %r, a %s; it has to be an int" % (code, type(code).__name__))
    return int(code.__index__())


def _body(value: Any, index: int) -> Union[bytes, bytearray]:
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as err:
            raise Unsendable("result %d is a str that UTF-8 cannot encode: %s" % (index, err)) from err
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if isinstance(tensor, type) and isinstance(value, tensor):
        saved = io.BytesIO()
        sys.modules["torch"].save(value, saved)
        return saved.getvalue()
    try:
        return json.dumps(value, indent=2).encode("utf-8")
    except TypeError as err:
        raise UnsupportedOutput("result %d: %s" % (index, err)) from err
    except MemoryError:
        raise
    except Exception as err:
        raise Unsendable("result %d cannot be made JSON: %s: %s" % (index, type(err).__name__, err)) from err


def _headers(fields: Dict[Any, Any], streaming: bool) -> List[Tuple[bytes, bytes]]:
    """Encode response headers; of names that differ only in case the last one stays, in its own spelling."""
    if not fields:
        return []
    encoded: Dict[bytes, Tuple[bytes, bytes]] = {}
    for name, value in fields.items():
        raw_name = _known_names.get(name) if type(name) is str else None
        if raw_name is None:
            raw_name = _encode_name(name)
        if type(value) is not str and not isinstance(value, str):
            raise Unsendable("the value of response header %r is a %s; it has to be a str" % (name, type(value).__name__))
        if not _BAD_IN_VALUE.isdisjoint(value):
            raise Unsendable("the value of response header %r has a line break or a NUL: %r" % (name, value))
        try:
            raw_value = value.encode("utf-8")
        except UnicodeEncodeError as err:
            raise Unsendable("the value of response header %r cannot be encoded: %s" % (name, err)) from err
        key = raw_name.lower()
        if raw_name == b"content-type" and key in encoded:
            continue  # set_response_content_type loses to set_response_header("Content-Type"), whichever came first
        encoded.pop(key, None)
        encoded[key] = (raw_name, raw_value)
    if not streaming:
        # TorchServe would take the header for the end of a stream that never began, and the client would wait for ever.
        encoded.pop(b"ts_stream_next", None)
    return list(encoded.values())


def _encode_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise Unsendable("response header name %r is a %s; it has to be a str" % (name, type(name).__name__))
    if not name or not name.isascii() or not _BAD_IN_NAME.isdisjoint(name):
        raise Unsendable("%r cannot be the name of a response header" % name)
    raw = name.encode("ascii")
    if len(_known_names) < _MAX_KNOWN_NAMES:
        _known_names[name] = raw
    return raw
