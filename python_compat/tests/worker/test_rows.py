"""What a handler is given: TorchServe's rules of bodies, fields and headers."""

from __future__ import annotations

import logging
import math
from typing import Any, Dict, Tuple

import pytest
from workerkit import Request, body, encode_batch

from flambeau.worker.frames import decode_batch
from flambeau.worker.rows import decode_wanted, make_rows


def one(request: Request, decode: bool = True) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    _, items = decode_batch(memoryview(encode_batch(1, [request])))
    rows, headers = make_rows(items, decode)
    return rows[0], headers[0]


@pytest.mark.parametrize(
    ("content_type", "data", "wanted"),
    [
        ("application/json", b'{"a":1,"b":[1,2]}', {"a": 1, "b": [1, 2]}),
        ("application/json", b"[1,null]", [1, None]),
        ("application/json", b"null", None),
        ("application/json", b'{"a":1,"a":2}', {"a": 2}),
        ("application/json", b'"h\xc3\xa9"', "hé"),
        ("application/json", b'{"a":', bytearray(b'{"a":')),
        ("application/json", b"", bytearray()),
        ("application/json", b"\xef\xbb\xbf{}", bytearray(b"\xef\xbb\xbf{}")),
        ("application/json", b"\xff", bytearray(b"\xff")),
        ("Application/JSON", b"{}", bytearray(b"{}")),
        ("application/vnd.api+json", b"{}", bytearray(b"{}")),
        ("text/plain", "hé".encode(), "hé"),
        ("text", b"x", "x"),
        ("textual/thing", b"x", "x"),
        ("Text/plain", b"x", bytearray(b"x")),
        ("text/plain", b"\xff\xfe", bytearray(b"\xff\xfe")),
        ("text/plain", b"", ""),
        ("image/png", b"\x00\xff", bytearray(b"\x00\xff")),
        ("", b"{}", bytearray(b"{}")),
    ],
)
def test_value_by_content_type(content_type: str, data: bytes, wanted: Any) -> None:
    row, headers = one(body(data, content_type))
    assert row == {"body": wanted}
    assert type(row["body"]) is type(wanted)
    assert headers == {"body": {"content-type": content_type}}


def test_json_numbers_that_are_none() -> None:
    nan, infinity = one(body(b"[NaN, 1e999]", "application/json"))[0]["body"]
    assert math.isnan(nan)
    assert math.isinf(infinity)


def test_json_nested_too_deep_for_python_stays_bytes() -> None:
    data = b"[" * 200_000
    assert one(body(data, "application/json"))[0]["body"] == bytearray(data)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "image/png", ""])
def test_nothing_is_decoded_when_the_server_says_so(content_type: str) -> None:
    row, _ = one(body(b'{"a":1}', content_type), decode=False)
    assert row == {"body": bytearray(b'{"a":1}')}
    assert type(row["body"]) is bytearray


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [({}, True), ({"TS_DECODE_INPUT_REQUEST": "true"}, True), ({"TS_DECODE_INPUT_REQUEST": "false"}, False)],
)
def test_where_the_server_says_so(environ: Dict[str, str], wanted: bool) -> None:
    assert decode_wanted(environ) is wanted


def test_what_cannot_be_decoded_is_warned_of_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one(body(b"{bad", "application/json"))
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "'body'" in caplog.text
    assert "application/json" in caplog.text


def test_a_later_field_of_the_same_name_replaces_an_earlier_one() -> None:
    row, headers = one(Request("id", [("d", "text/plain", b"1"), ("e", "", b"x"), ("d", "", b"2")]))
    assert row == {"d": bytearray(b"2"), "e": bytearray(b"x")}
    assert headers == {"d": {"content-type": ""}, "e": {"content-type": ""}}


def test_a_request_without_fields_is_an_empty_row() -> None:
    assert one(Request("id")) == ({}, {})


def test_headers_follow_the_fields_and_the_last_of_equal_names_stays() -> None:
    _, headers = one(
        Request("id", [("body", "text/plain", b"x")], [("X-Dup", "a"), ("X-Dup", "b"), ("x-dup", "c"), ("Host", "h")])
    )
    assert headers == {"body": {"content-type": "text/plain"}, "X-Dup": "b", "x-dup": "c", "Host": "h"}
    assert next(iter(headers)) == "body"


def test_a_header_named_like_a_field_takes_its_entry() -> None:
    assert one(Request("id", [("body", "", b"x")], [("body", "mine")]))[1] == {"body": "mine"}


def test_a_bytearray_outlives_its_frame() -> None:
    frame = bytearray(encode_batch(1, [body(b"abc")]))
    _, items = decode_batch(memoryview(frame))
    rows, _ = make_rows(items, True)
    frame[-3:] = b"zzz"
    assert rows[0]["body"] == bytearray(b"abc")
