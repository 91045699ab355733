"""The messages between TorchServe's frontend and its workers.

Flambeau's worker does not speak them (docs/protocol.md says what it speaks). They are here for code that makes or reads such
messages itself; send_intermediate_predict_response works as on TorchServe.
"""

from __future__ import annotations

import io
import json
import logging
import os
import struct
import sys
import time

from ts.utils.util import deprecated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

bool_size = 1
int_size = 4
END_OF_LIST = -1
LOAD_MSG = b"L"
PREDICT_MSG = b"I"
RESPONSE = 3

_INT = struct.Struct("!i")
_BOOL = struct.Struct("!?")


def _framed(data: Union[bytes, bytearray]) -> bytes:
    return _INT.pack(len(data)) + data


def encode_response_headers(resp_hdr_map: Dict[str, str]) -> bytearray:
    """Encode headers: their number, then each name and value with its length before it."""
    message = bytearray(_INT.pack(len(resp_hdr_map)))
    for name, value in resp_hdr_map.items():
        message += _framed(name.encode("utf-8")) + _framed(value.encode("utf-8"))
    return message


def create_predict_response(
    ret: Any,
    req_id_map: Dict[int, str],
    message: str,
    code: int,
    context: Any = None,
    ts_stream_next: bool = False,
) -> Optional[bytearray]:
    """Make the answer to a batch: ret[i] for each index i of `req_id_map`, or "error" for each when `ret` is None.

    With a context, status and headers of each row go with it, and the stream header is set on it. A value that JSON cannot
    encode turns the whole answer into an error of status 503. Gives None in a process whose LOCAL_RANK is not 0.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return None
    answer = bytearray(_INT.pack(code) + _framed(message.encode("utf-8")))
    for index, request_id in req_id_map.items():
        answer += _framed(request_id.encode("utf-8"))
        answer += _response_head(ret, index, code, context, ts_stream_next)
        try:
            answer += _framed(b"error" if ret is None else _encode_value(ret[index]))
        except _NotJSON:
            logging.warning("Unable to serialize model output.", exc_info=True)
            return create_predict_response(None, req_id_map, "Unsupported model output data type.", 503)
    answer += _INT.pack(END_OF_LIST)
    return answer


def _response_head(ret: Any, index: int, code: int, context: Any, ts_stream_next: bool) -> bytes:
    """Content type, status, reason phrase and headers of one row."""
    if context is None:
        return _framed(b"") + _INT.pack(code) + _framed(b"") + _INT.pack(0)
    if ts_stream_next is True:
        context.set_response_header(index, "ts_stream_next", "true")
    elif context.stopping_criteria:
        stop = context.stopping_criteria[index](ret[index])
        if stop is not None:
            context.set_response_header(index, "ts_stream_next", "false" if stop else "true")
    elif context.get_response_headers(index).get("ts_stream_next") == "true":
        context.set_response_header(index, "ts_stream_next", "false")
    content_type = context.get_response_content_type(index) or ""
    status, phrase = context.get_response_status(index)
    return b"".join(
        (
            _framed(content_type.encode("utf-8")),
            _INT.pack(200 if status is None else status),
            _framed((phrase or "").encode("utf-8")),
            encode_response_headers(context.get_response_headers(index)),
        )
    )


class _NotJSON(Exception):
    pass


def _encode_value(value: Any) -> Union[bytes, bytearray]:
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        saved = io.BytesIO()
        torch.save(value, saved)
        return saved.getvalue()
    try:
        return json.dumps(value, indent=2).encode("utf-8")
    except TypeError as err:
        raise _NotJSON from err


def create_load_model_response(code: int, message: str) -> bytearray:
    """Make the answer to a load."""
    return bytearray(_INT.pack(code) + _framed(message.encode("utf-8")) + _INT.pack(END_OF_LIST))


def retrieve_msg(conn: Any) -> Any:
    """Read a message from a socket: (b"L", dict) for a load, (b"I", list of requests) for a batch.

    Raises ValueError for another command, and SystemExit(0) when the other end has closed.
    """
    reader = _Reader(conn)
    command = reader.exactly(1)
    if command == LOAD_MSG:
        return command, reader.load()
    if command == PREDICT_MSG:
        batch = list(iter(reader.request, None))
        logging.info("Backend received inference at: %d", time.time())
        return command, batch
    raise ValueError("Invalid command: %s" % command)


class _Reader:
    """Reads the parts of a message from a socket."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def exactly(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            received = self._conn.recv(size - len(data))
            if not received:
                logging.info("Frontend disconnected.")
                sys.exit(0)
            data += received
        return data

    def integer(self) -> int:
        return int(_INT.unpack(self.exactly(int_size))[0])

    def framed(self) -> bytearray:
        return self.exactly(self.integer())

    def load(self) -> Dict[str, Any]:
        message: Dict[str, Any] = {"modelName": self.framed(), "modelPath": self.framed()}
        message["batchSize"] = self.integer()
        message["handler"] = self.framed()
        gpu = self.integer()
        if gpu >= 0:
            message["gpu"] = gpu
        message["envelope"] = self.framed()
        message["limitMaxImagePixels"] = _BOOL.unpack(self.exactly(bool_size))[0]
        return message

    def request(self) -> Optional[Dict[str, Any]]:
        size = self.integer()
        if size == END_OF_LIST:
            return None
        return {
            "requestId": self.exactly(size),
            "headers": self._list(lambda size: {"name": self.exactly(size), "value": self.framed()}),
            "parameters": self._list(self._parameter),
        }

    def _list(self, element: Any) -> List[Any]:
        return [element(size) for size in iter(self.integer, END_OF_LIST)]

    def _parameter(self, size: int) -> Dict[str, Any]:
        name, content_type, value = self.exactly(size).decode("utf-8"), self.framed().decode("utf-8"), self.framed()
        parameter: Dict[str, Any] = {"name": name, "contentType": content_type, "value": value}
        if os.environ.get("TS_DECODE_INPUT_REQUEST", "true") == "true":
            try:
                if content_type == "application/json":
                    parameter["value"] = json.loads(value.decode("utf-8"))
                elif content_type.startswith("text"):
                    parameter["value"] = value.decode("utf-8")
            except Exception:
                logging.warning("parameter %r cannot be decoded as %s, it stays bytes", name, content_type, exc_info=True)
        return parameter


@deprecated(version=1.0, replacement="ts.handler_utils.utils.send_intermediate_predict_response")
def send_intermediate_predict_response(
    ret: Any, req_id_map: Dict[int, str], message: str, code: int, context: Any = None
) -> None:
    """Older place of ts.handler_utils.utils.send_intermediate_predict_response."""
    from ts.handler_utils import utils

    utils.send_intermediate_predict_response(ret, req_id_map, message, code, context)
