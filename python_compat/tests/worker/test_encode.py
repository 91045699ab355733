"""What becomes of a handler's results: bodies, headers, status, and what cannot be sent."""

from __future__ import annotations

import enum
import json
from http import HTTPStatus
from typing import Any, Callable, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.worker.encode import Encoder
from flambeau.worker.failure import Unsendable, UnsupportedOutput
from flambeau.worker.frames import Answer, Failure
from ts.context import Context, RequestProcessor


def context(size: int = 1) -> Context:
    made = Context("m", "/", None, 1, None, "0.12.0")
    made.request_processor = [RequestProcessor({}) for _ in range(size)]
    return made


def results(returned: Any, ctx: Optional[Context] = None, size: int = 1, streamed: bool = False, limit: int = 0) -> List[Any]:
    return Encoder(limit).results(returned, ctx or context(size), size, streamed)


def answer_of(set_up: Callable[[Context], Any], value: Any = "x", **options: Any) -> Any:
    ctx = context()
    set_up(ctx)
    return results([value], ctx, **options)[0]


class Colour(str, enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("plain é", "plain é".encode()),
        ("", b""),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ba"), b"ba"),
        (
            {"b": 1, "a": [1, 2.5, None, True], "u": "é"},
            b'{\n  "b": 1,\n  "a": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  "u": "\\u00e9"\n}',
        ),
        ([1, "two"], b'[\n  1,\n  "two"\n]'),
        ((1, 2), b"[\n  1,\n  2\n]"),
        (7, b"7"),
        (0.1, b"0.1"),
        (float("nan"), b"NaN"),
        (True, b"true"),
        (None, b"null"),
        ({1: "one"}, b'{\n  "1": "one"\n}'),
        ("\U0001f525", "\U0001f525".encode()),
        ({"lone": "\ud800"}, b'{\n  "lone": "\\ud800"\n}'),
        (Colour.RED, b"red"),
    ],
)
def test_body(value: Any, wanted: bytes) -> None:
    (answer,) = results([value])
    assert bytes(answer.body) == wanted
    assert (answer.status, list(answer.headers)) == (0, [])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_json_is_what_the_json_module_makes(value: Any) -> None:
    if not isinstance(value, str):
        assert results([value])[0].body == json.dumps(value, indent=2).encode()


@pytest.mark.parametrize("value", [{1, 2}, object(), {"b": b"x"}, memoryview(b"x"), {(1, 2): 3}, 1j])
def test_a_value_without_encoding_fails_the_batch(value: Any) -> None:
    with pytest.raises(UnsupportedOutput, match="result 1: "):
        results(["ok", value], size=2)


def circular() -> Any:
    value: List[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(("value", "why"), [("a\ud800", "UTF-8"), (circular(), "Circular")])
def test_a_value_of_which_torchserves_worker_dies(value: Any, why: str) -> None:
    with pytest.raises(Unsendable, match=why):
        results([value])


@pytest.mark.parametrize(
    ("returned", "kind"),
    [({"a": 1}, "dict"), (("x",), "tuple"), ("abc", "str"), (None, "NoneType"), (iter([1]), "list_iterator")],
)
def test_what_is_no_list_fails_every_request(returned: Any, kind: str) -> None:
    failures = results(returned, size=3)
    assert [(f.reason, f.status, f.message) for f in failures] == [("invalid_output", 503, "Invalid model predict output")] * 3
    assert kind in failures[0].detail


class Rows(list):  # type: ignore[type-arg]
    pass


def test_a_subclass_of_list_is_a_list() -> None:
    assert results(Rows(["x"]))[0].body == b"x"


@pytest.mark.parametrize("returned", [[], ["a"], ["a", "b", "c"]])
def test_a_wrong_number_of_results_fails_every_request(returned: List[str]) -> None:
    failures = results(returned, size=2)
    assert [(f.reason, f.status, f.message) for f in failures] == [
        ("invalid_output", 503, "number of batch response mismatched")
    ] * 2
    assert str(len(returned)) in failures[0].detail
    assert "2 requests" in failures[0].detail


@pytest.mark.parametrize("code", [200, 201, 204, 299, 404, 413, 503, 999, HTTPStatus.ACCEPTED])
def test_status(code: int) -> None:
    answer = answer_of(lambda c: c.set_response_status(code=code, phrase="p", idx=0))
    assert (answer.status, answer.body) == (int(code), b"x")


def test_status_that_nobody_set() -> None:
    assert answer_of(lambda c: None).status == 0
    assert answer_of(lambda c: c.set_response_status(code=None)).status == 0


@pytest.mark.parametrize("code", [0, 1, 42, 100, 199, 1000, -1, 2**40, True])
def test_a_status_that_http_cannot_carry_fails_that_request_only(code: int) -> None:
    ctx = context(2)
    ctx.set_response_status(code=code, idx=0)
    failed, answered = results(["x", "y"], ctx, size=2)
    assert (failed.reason, failed.status) == ("handler_failed", 500)
    assert "status %d" % code in failed.message
    assert answered.body == b"y"


@pytest.mark.parametrize("code", ["200", 200.0, [200]])
def test_a_status_that_is_no_int(code: Any) -> None:
    with pytest.raises(Unsendable, match="has to be an int"):
        answer_of(lambda c: c.set_response_status(code=code))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"X-One": "1", "x-two": "é"}, [("X-One", "1"), ("x-two", "é")]),
        ({"X-A": "1", "x-a": "2"}, [("x-a", "2")]),
        ({"X-A": "1", "X-B": "2", "x-A": "3"}, [("X-B", "2"), ("x-A", "3")]),
        ({"content-type": "a/b", "Content-Type": "text/csv"}, [("Content-Type", "text/csv")]),
        ({"Content-Type": "text/csv", "content-type": "a/b"}, [("Content-Type", "text/csv")]),
        ({"content-type": ""}, [("content-type", "")]),
        ({"ts_stream_next": "false"}, []),
        ({"TS_Stream_Next": "true", "X": "1"}, [("X", "1")]),
        ({"X": "tab\tin it"}, [("X", "tab\tin it")]),
    ],
)
def test_headers(fields: Dict[str, str], wanted: List[Any]) -> None:
    def set_all(ctx: Context) -> None:
        for name, value in fields.items():
            ctx.set_response_header(0, name, value)

    assert [(n.decode(), v.decode()) for n, v in answer_of(set_all).headers] == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", 5),
        ("X", None),
        ("X", b"x"),
        ("X", "a\r\nX-Injected: yes"),
        ("X", "a\nb"),
        ("X", "a\0b"),
        ("X", "\ud800"),
        (5, "x"),
        ("", "x"),
        ("a b", "x"),
        ("a:b", "x"),
        ("a\nb", "x"),
        ("é", "x"),
    ],
)
def test_a_header_that_cannot_be_sent(name: Any, value: Any) -> None:
    for _ in range(2):  # also once the name might be known
        with pytest.raises(Unsendable):
            answer_of(lambda c: c.set_response_header(0, name, value))


def test_an_answer_over_the_limit_fails_that_request_only() -> None:
    small, large = results(["1234", "12345"], size=2, limit=4)
    assert isinstance(small, Answer)
    assert isinstance(large, Failure)
    assert (large.reason, large.status) == ("response_too_large", 500)
    assert "5 bytes" in large.message
    assert "max_response_size" in large.message


def test_the_end_of_a_stream_is_marked() -> None:
    answer = answer_of(lambda c: c.set_response_header(0, "ts_stream_next", "true"), streamed=True)
    assert list(answer.headers) == [(b"ts_stream_next", b"false")]


@pytest.mark.parametrize(
    ("said", "wanted"), [(True, [(b"ts_stream_next", b"false")]), (False, [(b"ts_stream_next", b"true")]), (None, [])]
)
def test_stopping_criteria_decide_row_by_row(said: Optional[bool], wanted: List[Any]) -> None:
    ctx = context(2)
    seen = []
    ctx.stopping_criteria = [lambda value: seen.append(value) or said, lambda value: True]
    first, second = results(["x", "y"], ctx, size=2)
    assert list(first.headers) == wanted
    assert list(second.headers) == [(b"ts_stream_next", b"false")]
    assert seen == ["x"]


def test_stopping_criteria_that_raise() -> None:
    ctx = context()
    ctx.stopping_criteria = {}
    assert results(["x"], ctx)[0].body == b"x"  # an empty one counts as none
    ctx.stopping_criteria = [lambda value: 1 / 0]
    with pytest.raises(Unsendable, match="ZeroDivisionError"):
        results(["x"], ctx)


def test_pieces_are_for_every_request_of_the_batch() -> None:
    ctx = context(3)
    ctx.set_response_status(202, idx=1)
    pieces = Encoder(0).pieces({1: "b"}, ctx, {1: "id-1"}, 3)
    assert [p.body for p in pieces] == [b"", b"b", b""]
    assert [p.status for p in pieces] == [0, 202, 0]
    assert all(list(p.headers) == [(b"ts_stream_next", b"true")] for p in pieces)
