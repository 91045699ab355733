"""TorchServe's own messages, for code that makes or reads them."""

from __future__ import annotations

import struct
from typing import Any, List, Optional

import pytest

from ts.context import Context, RequestProcessor
from ts.handler_utils import utils
from ts.protocol import otf_message_handler as otf
from ts.service import Service


def integer(value: int) -> bytes:
    return struct.pack("!i", value)


def framed(data: bytes) -> bytes:
    return integer(len(data)) + data


class Socket:
    """Gives its bytes in small parts."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.sent: List[bytes] = []

    def recv(self, size: int) -> bytes:
        part = self.data[: max(1, size // 2)]
        self.data = self.data[len(part) :]
        return part

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))


BATCH = (
    b"I"
    + (framed(b"id0") + framed(b"H") + framed(b"v") + integer(-1))
    + (framed(b"body") + framed(b"application/json") + framed(b'{"a":1}'))
    + (framed(b"t") + framed(b"text/plain") + framed(b"\xff"))
    + (framed(b"x") + framed(b"") + framed(b"raw"))
    + integer(-1)
    + (framed(b"id1") + integer(-1) + integer(-1))
    + integer(-1)
)


def test_a_batch_is_read() -> None:
    command, (first, second) = otf.retrieve_msg(Socket(BATCH))
    assert command == b"I"
    assert first["requestId"] == b"id0"
    assert first["headers"] == [{"name": b"H", "value": b"v"}]
    assert [p["value"] for p in first["parameters"]] == [{"a": 1}, bytearray(b"\xff"), bytearray(b"raw")]
    assert second == {"requestId": b"id1", "headers": [], "parameters": []}


@pytest.mark.parametrize(("gpu", "wanted"), [(-1, None), (2, 2)])
def test_a_load_is_read(gpu: int, wanted: Optional[int]) -> None:
    data = b"L" + framed(b"name") + framed(b"/p") + integer(3) + framed(b"h.py") + integer(gpu) + framed(b"") + b"\x01"
    command, message = otf.retrieve_msg(Socket(data))
    assert command == b"L"
    assert message.get("gpu") == wanted
    assert (message["modelName"], message["batchSize"], message["limitMaxImagePixels"]) == (b"name", 3, True)


def test_other_messages() -> None:
    with pytest.raises(ValueError, match="Invalid command"):
        otf.retrieve_msg(Socket(b"Z"))
    with pytest.raises(SystemExit) as ended:
        otf.retrieve_msg(Socket(b""))
    assert ended.value.code == 0
    assert bytes(otf.create_load_model_response(200, "é")) == integer(200) + framed("é".encode()) + integer(-1)


def row(request_id: bytes, code: int, value: bytes, kind: bytes = b"", phrase: bytes = b"", headers: bytes = integer(0)) -> bytes:
    return framed(request_id) + framed(kind) + integer(code) + framed(phrase) + headers + framed(value)


def test_an_answer_without_context() -> None:
    message = otf.create_predict_response(["é", b"b"], {0: "r0", 1: "r1"}, "ok", 200)
    wanted = integer(200) + framed(b"ok") + row(b"r0", 200, "é".encode()) + row(b"r1", 200, b"b") + integer(-1)
    assert bytes(message or b"") == wanted


def test_an_error_without_context() -> None:
    message = otf.create_predict_response(None, {0: "r0"}, "bad", 503)
    assert bytes(message or b"") == integer(503) + framed(b"bad") + row(b"r0", 503, b"error") + integer(-1)


def context(rows: int) -> Context:
    made = Context("m", "/d", None, 4, None, "0.12.0")
    made.request_processor = [RequestProcessor({}) for _ in range(rows)]
    made.request_ids = {i: "r%d" % i for i in range(rows)}
    return made


def test_an_answer_with_context() -> None:
    ctx = context(2)
    ctx.set_response_status(404, "nf", 1)
    ctx.set_response_content_type(1, "a/b")
    message = otf.create_predict_response([{"a": 1}, 7], {0: "r0", 1: "r1"}, "ok", 200, ctx)
    second = row(b"r1", 404, b"7", b"a/b", b"nf", integer(1) + framed(b"content-type") + framed(b"a/b"))
    assert bytes(message or b"") == integer(200) + framed(b"ok") + row(b"r0", 200, b'{\n  "a": 1\n}') + second + integer(-1)


def test_what_json_cannot_encode_makes_an_error_of_all() -> None:
    message = otf.create_predict_response(["x", {1}], {0: "r0", 1: "r1"}, "ok", 200, context(2))
    assert message == otf.create_predict_response(None, {0: "r0", 1: "r1"}, "Unsupported model output data type.", 503)


def test_only_the_first_rank_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert otf.create_predict_response(["x"], {0: "r"}, "ok", 200) is None
    utils.send_intermediate_predict_response(["x"], {0: "r"}, "ok", 200, None)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("send", [utils.send_intermediate_predict_response, otf.send_intermediate_predict_response])
def test_without_a_server_a_piece_goes_to_the_socket_of_the_context(send: Any) -> None:
    ctx = context(1)
    ctx.cl_socket = socket = Socket()  # type: ignore[attr-defined]
    send(["p"], ctx.request_ids, "m", 200, ctx)
    stream = integer(1) + framed(b"ts_stream_next") + framed(b"true")
    assert socket.sent == [integer(200) + framed(b"m") + row(b"r0", 200, b"p", headers=stream) + integer(-1)]
    assert ctx.get_response_headers(0) == {"ts_stream_next": "true"}
    otf.create_predict_response(["last"], ctx.request_ids or {}, "m", 200, ctx)
    assert ctx.get_response_headers(0) == {"ts_stream_next": "false"}


def test_the_older_place_warns() -> None:
    ctx = context(1)
    ctx.cl_socket = Socket()  # type: ignore[attr-defined]
    with pytest.warns(PendingDeprecationWarning, match="ts.handler_utils.utils.send_intermediate_predict_response"):
        otf.send_intermediate_predict_response(["p"], ctx.request_ids, "m", 200, ctx)


class Metrics:
    def __init__(self) -> None:
        self.times: List[str] = []

    def add_time(self, name: str, value: float) -> None:
        self.times.append(name)


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        (lambda data, ctx: ["a", "b"], 200, b"Prediction success"),
        (lambda data, ctx: ("a", "b"), 503, b"Invalid model predict output"),
        (lambda data, ctx: [], 503, b"number of batch response mismatched"),
        (lambda data, ctx: 1 / 0, 503, b"Prediction failed"),
    ],
)
def test_service(entry: Any, code: int, message: bytes) -> None:
    metrics = Metrics()
    service = Service("m", "/d", None, entry, None, 2, True, metrics)
    _, batch = otf.retrieve_msg(Socket(BATCH))
    answer = bytes(service.predict(batch) or b"")
    assert answer.startswith(integer(code) + framed(message))
    assert metrics.times == (["PredictionTime"] if code == 200 else [])
    assert service.context.request_ids == {0: "id0", 1: "id1"}
    assert service.context.get_all_request_header(0) == {
        "body": {"content-type": "application/json"},
        "t": {"content-type": "text/plain"},
        "x": {"content-type": ""},
        "H": "v",
    }
    with pytest.raises(ValueError, match="invalid inputs"):
        service.predict(None)
